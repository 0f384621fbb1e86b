"""Topology files that went wrong: valid ones in three formats, mutated at the level of the grammar and of the text."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

ENDINGS = ("toml", "yaml", "json")


@dataclass(frozen=True)
class Raw:
    """A value that stands in the text as it is: a date, a NaN, something that is no value at all."""

    text: str


@dataclass(frozen=True)
class Mutant:
    """A file that may be wrong, and what was done to it."""

    name: str
    raw: bytes
    done: str


def sglang() -> dict[str, Any]:
    return {
        "axes": {"pp": 2, "tp": 4},
        "views": {"attention": {"of": "tp", "axes": {"attn_dp": 2, "attn_tp": 2}}},
        "hosts": {"count": 2, "names": ["a", "b"], "ephemeral": "32768-60999", "reserved": {"nccl": [20000, 20100]}},
        "resources": {
            "kv-events": {
                "singleton_per": {"group": ["pp", "attn_tp"], "rank": 0},
                "once_per": ["attn_dp"],
                "bind": "tcp://*:{5557 + attn_dp}",
                "replay": ["tcp://*:{5657 + attn_dp}", "ipc:///run/kv-{attn_dp}.sock"],
                "connect": [
                    {"to": "tcp://a:{5557 + replica}", "axes": {"replica": 2}},
                    {"to": "tcp://a:{5657 + attn_dp}", "role": "replay", "owner": {"attn_tp": [0, -1]}},
                ],
            },
            "cache": {"owner": {"pp": 0, "attn_tp": 0}, "with": "kv-events"},
        },
    }


def trainer() -> dict[str, Any]:
    return {
        "axes": {"dp": 2, "cp": 2, "tp": 2},
        "views": {
            "expert": {"of": ["dp", "tp"], "axes": {"ep": 4}},
            "inner": {"of": ["ep"], "axes": {"edp": 2, "etp": 2}},
        },
        "hosts": {"ranks": {"first": "0-3, 5", "second": [4, 6, 7]}, "addresses": {"first": ["192.0.2.1", "::1"]}},
        "resources": {
            "log": {"owner": {"rank": [0, 4]}, "path": "log-{dp}", "scope": "shared", "once_per": "dp"},
            "metrics": {"owner": {"local_rank": 0}, "bind": "tcp://[::]:9400-9403", "ipv6": True, "v6only": False},
            "store": {"singleton_per": {"group": "world", "rank": "any"}, "bind": "tcp://*:0", "shared": "reuseport"},
            "names": {"owner": {}, "name": "r{rank % world_size}-{(dp * cp_size + cp) // 1}"},
            "each": {"singleton_per": {"group": "host", "rank": -1}, "bind": "ipc://@each", "connect": "ipc://@each"},
        },
    }


def small() -> dict[str, Any]:
    return {"axes": {"tp": 2}, "hosts": 1, "resources": {"a": {"owner": {"tp": 0}, "bind": "tcp://127.0.0.1:5557"}}}


STARTS: tuple[Callable[[], dict[str, Any]], ...] = (sglang, trainer, small)

WORDS = [
    "",
    " ",
    "tp",
    "rank",
    "world",
    "any",
    "host",
    "-1",
    "0-3, 8",
    "0-",
    "9-1",
    "1,,2",
    "é😀",
    "\x00",
    "\x1b[31m",
    "a\nb",
    "\u2028",
    "\u202e",
    "tcp://",
    "tcp://*:",
    "tcp://*:99999999999999999999",
    "udp://x:1",
    "ipc://",
    "ipc://@",
    "inproc://",
    "tcp://[::1",
    "tcp://a;b:1",
    "tcp://*:9-1",
    "x" * 300,
    "{",
    "}",
    "{}",
    "{{",
    "{tp",
    "{tp +}",
    "{tp}}",
    "{1 / 2}",
    "{tp // 0}",
    "{tp % (tp - tp)}",
    "{" + "(" * 100 + "1" + ")" * 100 + "}",
    "{" + "-" * 100 + "1}",
    "{" + "1 + " * 100 + "1}",
    "{99999999999999999999}",
    "{tq}",
    "{tp.real}",
    "{__import__('os')}",
    "{tp!r}",
    "{tp:>9}",
    "tcp://*:{tp}-{0 - tp}",
    "ipc:///{tp}\t",
]
NUMBERS = [-1, 0, 1, 2, 3, 7, 1023, 65535, 65536, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 63, 10**30, 1 << 21, -7]
NAMES = [
    "rank",
    "world_size",
    "tp_size",
    "",
    "a b",
    "1x",
    "é",
    "tp",
    "pp",
    "_",
    "a.b",
    "x" * 200,
    "\x00",
    "\u202e",
    "{tp}",
]


def value(rng: Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 3 else 5)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice(WORDS)
    if kind == 2:
        return rng.choice([True, False, 0.5, 2.0, -1e300, 1e-9])
    if kind == 3:
        return Raw(
            rng.choice(["null", "NaN", "-Infinity", "inf", "nan", "2026-11-30", "2026-02-30", "07:32:00", "~", "0x1F"])
        )
    if kind == 4:
        return Raw(
            rng.choice(
                ["1e999", "0b2", "*a", "&a x", "!!int foo", "[1", "{", "'", '"""', "1_000", "9" * 5000, "yes", "<<"]
            )
        )
    if kind == 5:
        return {}
    if kind == 6:
        return []
    if kind == 7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(1, 4))]
    return {
        rng.choice([*NAMES, "group", "to", "axes", "of"]): value(rng, depth + 1) for _ in range(rng.randrange(1, 3))
    }


def misspelt(rng: Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return rng.choice(
        [
            text[:at] + text[at + 1 :],
            text[:at] + text[at : at + 1] * 2 + text[at + 1 :],
            text[:at] + "_" + text[at:],
            text.upper(),
            text[::-1],
        ]
    )


def broken(rng: Random, text: str) -> str:
    """A template with a character taken away, put in or doubled."""
    at = rng.randrange(len(text) + 1)
    odd = rng.choice(
        [
            "{",
            "}",
            "(",
            ")",
            "+",
            "//",
            "%",
            ":",
            "-",
            "/",
            "\\",
            "\x07",
            "é",
            " ",
            "9" * 30,
            ";",
            "[",
            "]",
            "tq",
            "\ud83d",
        ]
    )
    odd = odd if odd.isprintable() or odd == "\x07" else "?"
    return rng.choice([text[:at] + odd + text[at:], text[:at] + text[at + 1 :], text[:at], text + text])


def places(found: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    steps: list[str | int] = (
        list(found) if isinstance(found, dict) else list(range(len(found))) if isinstance(found, list) else []
    )
    return [path, *(inner for step in steps for inner in places(found[step], (*path, step)))]


def change(rng: Random, data: dict[str, Any]) -> str:
    """Spoil one thing in `data`; what was done."""
    path = rng.choice([place for place in places(data) if place])
    holder: Any = data
    for step in path[:-1]:
        holder = holder[step]
    key = path[-1]
    kind = rng.randrange(6)
    if kind == 0 and isinstance(key, str):
        new = misspelt(rng, key) if rng.random() < 0.7 else rng.choice(NAMES)
        renamed = {new if name == key else name: inner for name, inner in holder.items()}
        holder.clear()
        holder.update(renamed)
        return f"{path} renamed {new!r}"
    if kind == 1:
        del holder[key]
        return f"{path} deleted"
    if kind == 2 and isinstance(holder, dict):
        name = rng.choice([*NAMES, "owner", "singleton_per", "bind", "axes", "count"])
        holder[name] = value(rng)
        return f"{path[:-1]}.{name!r} added"
    if kind == 3 and isinstance(holder[key], str):
        holder[key] = broken(rng, holder[key])
        return f"{path} broken: {holder[key]!r}"
    if kind == 4:
        deep: Any = value(rng)
        for _ in range(rng.choice([2, 40, 150, 3000])):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        holder[key] = Raw(flat(deep))
        return f"{path} nested"
    holder[key] = value(rng)
    return f"{path} = {str(holder[key])[:60]!r}"


def flat(found: Any) -> str:
    """Nested lists and keys as JSON (and YAML) write them, without recursion."""
    opened, closed = [], []
    while isinstance(found, (list, dict)) and len(found) == 1:
        inner = found[0] if isinstance(found, list) else next(iter(found.values()))
        opened.append("[" if isinstance(found, list) else '{"a": ')
        closed.append("]" if isinstance(found, list) else "}")
        found = inner
    return "".join(opened) + "1" + "".join(reversed(closed))


def inline(found: Any, equals: str) -> str:
    if isinstance(found, Raw):
        return found.text
    if isinstance(found, dict):
        return "{" + ", ".join(f"{json.dumps(name)}{equals} {inline(x, equals)}" for name, x in found.items()) + "}"
    if isinstance(found, list):
        return "[" + ", ".join(inline(x, equals) for x in found) + "]"
    return json.dumps(found, ensure_ascii=False)


def toml(data: Any, path: str = "") -> str:
    lines = [f"{json.dumps(key)} = {inline(x, ' =')}" for key, x in data.items() if not isinstance(x, dict)]
    for key, x in data.items():
        if isinstance(x, dict):
            inner = f"{path}.{json.dumps(key)}" if path else json.dumps(key)
            lines += [f"[{inner}]", toml(x, inner)]
    return "\n".join(lines)


def block(data: Any, indent: str = "") -> str:
    lines = []
    for key, x in data.items():
        if isinstance(x, dict) and x:
            lines += [f"{indent}{json.dumps(key)}:", block(x, indent + "  ")]
        else:
            lines.append(f"{indent}{json.dumps(key)}: {inline(x, ':')}")
    return "\n".join(lines)


def written(rng: Random, data: dict[str, Any], ending: str) -> str:
    if ending == "toml":
        return "# a comment: é\n" + toml(data) + "\n"
    if ending == "yaml" and rng.random() < 0.7:
        return "# a comment: é\n" + block(data) + "\n"
    return inline(data, ":")


def spoil(rng: Random, raw: bytes) -> tuple[bytes, str]:
    """Spoil the text, whatever it says."""
    lines = raw.split(b"\n")
    at, line = rng.randrange(len(raw) + 1), rng.randrange(len(lines))
    kind = rng.randrange(8)
    if kind == 0:
        return raw[:at], f"cut at byte {at}"
    if kind == 1:
        return b"\n".join([*lines[:line], *lines[line + 1 :]]), f"line {line + 1} deleted"
    if kind == 2:
        return b"\n".join([*lines[: line + 1], *lines[line:]]), f"line {line + 1} doubled"
    if kind == 3:
        odd = rng.choice(
            [
                b"\x00",
                b"\xff",
                b"\xc3",
                b"\xed\xa0\x80",
                b"\x1b",
                b"\r",
                b"\t",
                b"\xe2\x80\xa8",
                b"\xef\xbb\xbf",
                b"\x7f",
            ]
        )
        return raw[:at] + odd + raw[at:], f"{odd!r} at byte {at}"
    if kind == 4:
        return raw[:at] + raw[at + 1 :], f"byte {at} deleted"
    if kind == 5:
        odd = rng.choice(
            [b"{", b"}", b"[", b"]", b'"', b"'", b"=", b":", b",", b"#", b"\n", b"---\n", b"\n[axes]\n", b"\\"]
        )
        return raw[:at] + odd + raw[at:], f"{odd!r} at byte {at}"
    if kind == 6:
        other = rng.randrange(len(lines))
        lines[line], lines[other] = lines[other], lines[line]
        return b"\n".join(lines), f"lines {line + 1} and {other + 1} swapped"
    return raw.replace(b"\n", b"\r\n"), "lines ended by CRLF"


def mutant(seed: str) -> Mutant:
    """The mutant of that seed: one or two things spoilt in the data, or in the text, or in both."""
    rng = Random(seed)
    ending = rng.choice(ENDINGS)
    data = copy.deepcopy(rng.choice(STARTS)())
    in_data, in_text = rng.choice([(1, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1)])
    done = [change(rng, data) for _ in range(in_data) if data]
    raw = written(rng, data, ending).encode("utf-8", "surrogatepass")
    for _ in range(in_text):
        raw, what = spoil(rng, raw)
        done.append(what)
    return Mutant(f"{seed}.{ending}", raw, f"{ending}: {'; '.join(done)}")
