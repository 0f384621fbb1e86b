"""What vLLM's parser does to the words of a command before argparse sees them, and what its types make of a value.

Seen in the sources of every release from 0.11.0 to 0.33.0; `_since` marks what differs between them. In the order of
the engine: `model_first`, the file of ``--config`` (the reader's), `dashed`, `folded`. Each keeps the words' places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rankbind.launch.command import Word
from rankbind.launch.options import Refusal

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_NAME = re.compile(r"(?<=--)[^.]*")
_LEVELS = frozenset("0123")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_READABLE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_BARE_READABLE = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
_TEXTS = re.compile(r'("(?:[^"\\]|\\.)*")')


def _since(version: str, first: str) -> bool:
    return _number(version) >= _number(first)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def model_first(words: Sequence[Word], version: str) -> tuple[list[Word], list[Refusal]]:
    """``vllm serve ... --model M`` is ``vllm serve M ...``, and a name that is served needs a model in front.

    Args:
        words: those after ``serve``.
    """
    at = next((at for at, word in enumerate(words) if _is_model(word.text, version)), None)
    if at is not None:
        word = words[at]
        if not _since(version, "0.11.1"):
            return _without(words, at), [
                Refusal("--model is not taken: the model stands alone, behind serve", word, "--model")
            ]
        if word.text != "--model":
            model = Word(word.text.removeprefix("--model="), word.span, word.certain)
            words = [model, *words[:at], *words[at + 1 :]]
        elif at + 1 == len(words):
            return list(words[:at]), [Refusal("--model needs a value", word, "--model")]
        else:
            words = [words[at + 1], *words[:at], *words[at + 2 :]]
    served = next((word for word in words if re.match(r"--served[-_]model[-_]name(=.+|$)", word.text)), None)
    if (
        _since(version, "0.17.0")
        and served is not None
        and words[0].text.startswith("-")
        and not any(re.match(r"--config(=.+|$)", word.text) for word in words)
    ):
        message = f"{served.text.partition('=')[0]} without a model behind serve"
        return list(words), [Refusal(message, served, "--served-model-name")]
    return list(words), []


def _is_model(text: str, version: str) -> bool:
    if text == "--model":
        return True
    # A text that ends with the equals sign was taken as well, until it was not.
    least = len("--model=") + _since(version, "0.17.0")
    return _since(version, "0.11.1") and text.startswith("--model=") and len(text) >= least


def _without(words: Sequence[Word], at: int) -> list[Word]:
    kept = list(words)
    del kept[at : at + 2]
    return kept


def dashed(words: Sequence[Word], version: str) -> list[Word]:
    """Underscores of an option as dashes, up to its first dot; ``-O3`` spelled out."""
    found: list[Word] = []
    for at, word in enumerate(words):
        text = word.text
        if text.startswith("--help="):
            found.append(_as(word, "--help"))
        elif text.startswith("--"):
            key, equals, value = text.partition("=")
            found.append(_as(word, _NAME.sub(lambda part: part[0].replace("_", "-"), key, count=1) + equals + value))
        elif text.startswith("-O") and text != "-O" and (text[2] != "." or _since(version, "0.13.0")):
            level = text[3:] if text[2] == "=" else text[2:]
            if _since(version, "0.12.0"):
                found += [_as(word, "--optimization-level"), _as(word, level)]
            else:
                found.append(_as(word, f"{_level(version)}={level}"))
        elif text == "-O" and at + 1 < len(words) and words[at + 1].text in _LEVELS:
            found.append(_as(word, _level(version)))
        elif text.startswith("-O.") and _since(version, "0.12.0"):
            found.append(_as(word, text.replace("-O", "-cc", 1)))
        else:
            found.append(word)
    return found


def _level(version: str) -> str:
    """What ``-O`` before a number stands for."""
    if _since(version, "0.12.0"):
        return "--optimization-level"
    return "-O.mode" if _since(version, "0.11.1") else "-O.level"


def folded(words: Sequence[Word], version: str) -> tuple[list[Word], list[Refusal]]:
    """Dotted keys as one JSON option for each, behind everything else: one given as JSON before comes to nothing.

    The words of such an option stand where its first key does.
    """
    kept: list[Word] = []
    dotted: dict[str, dict[str, Any]] = {}
    origins: dict[str, list[Word]] = {}
    rest = iter(words)
    for word in rest:
        key, equals, value = word.text.partition("=")
        if not word.text.startswith("-") or "." not in key:
            kept.append(word)
            continue
        certain = word.certain
        if not equals:
            following = next(rest, None)
            if following is None:
                return kept, [Refusal(f"{key} needs a value", word, key)]
            value, certain = following.text, certain and following.certain
        if key.endswith("+"):
            key, value = key[:-1], json.dumps(value.split(","))
        option, *path = key.split(".")
        nested: Any = _parsed(value, version)
        for name in reversed(path):
            nested = {name: nested}
        try:
            _update(dotted.setdefault(option, {}), nested)
        except AttributeError:
            # `--x+`, which has a dot in its value alone, and so on: the engine's own failure.
            return kept, [Refusal(f"{key} cannot be put together", word, key)]
        origins.setdefault(option, []).append(Word(word.text, word.span, certain))
    for option, values in dotted.items():
        first = origins[option][0]
        certain = all(word.certain for word in origins[option])
        kept += [Word(option, first.span), Word(json.dumps(values), first.span, certain)]
    return kept, []


def _parsed(text: str, version: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    if _since(version, "0.20.0"):
        try:
            return human_readable(version)(text)
        except ValueError:
            pass
    return text


def _update(original: dict[str, Any], update: Mapping[str, Any]) -> None:
    for key, value in update.items():
        before = original.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            _update(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            before += value
        else:
            original[key] = value


def _as(word: Word, text: str) -> Word:
    return Word(text, word.span, word.certain)


# Types


def human_readable(version: str) -> Callable[[str], int]:
    """``1k`` is 1000 and ``1K`` is 1024."""
    letters = "kmgt" if _since(version, "0.13.0") else "kmg"

    def convert(text: str) -> int:
        text = text.strip()
        match = _READABLE.fullmatch(text)
        if match and match[2].lower() in letters:
            if match[2] in _DECIMAL:
                return int(float(match[1]) * _DECIMAL[match[2]])
            return int(match[1]) * _BINARY[match[2]]
        return int(text)

    return convert


@cache
def kinds(version: str) -> Mapping[str, Callable[[str], Any]]:
    """The types of the table in a release; see `rankbind.launch.options.OptionTable.read`."""
    readable = human_readable(version)

    def readable_or_auto(text: str) -> int:
        return -1 if text.strip().lower() in ("-1", "auto") else readable(text)

    def lora(text: str) -> Any:
        if text == "" or text == "None":
            return None
        if "=" in text and "," not in text:
            name, path = text.split("=", 1 if _since(version, "0.30.0") else -1)
            return {"name": name, "path": path}
        found = json.loads(text)
        if not {"name", "path"} <= found.keys() <= {"name", "path", "base_model_name"}:
            raise ValueError(text)
        return found

    found: dict[str, Callable[[str], Any]] = {
        "str": str,
        "int": int,
        "float": float,
        "json": json.loads,
        "human_readable_int": readable,
        "human_readable_int_or_auto": readable_or_auto,
        "lora": lora,
        "union_dict_and_str": lambda text: _optional(json.loads)(text) if re.match(r"(?s)\s*{.*}\s*$", text) else text,
        "parse_reasoning_parser": lambda text: "" if text.lower() == "none" else text,
        "device_ids": lambda text: [
            int(part) if part.isdigit() else part for part in (part.strip() for part in text.split(","))
        ],
        **dict.fromkeys(
            ("moe_backend", "linear_backend", "sparse_indexer_topk_backend"),
            lambda text: text.lower().replace("-", "_"),
        ),
    }
    table = json.loads(files(__package__).joinpath("options.json").read_text(encoding="utf-8"))
    versions = table["versions"]
    at = versions.index(version)
    names = {entry.get("kind", "").removesuffix("?") for entry in table["options"]}
    shapes = {
        entry["dest"]: entry
        for entry in table["shapes"]
        if versions.index(entry.get("from", versions[0])) <= at <= versions.index(entry.get("to", versions[-1]))
    }
    for name in names:
        if name.startswith("json:"):
            found[name] = _shaped(shapes.get(name.removeprefix("json:")), version)
    found |= {f"{name}?": _optional(convert) for name, convert in found.items()}
    return MappingProxyType(found)


def _optional(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text in ("", "None") else convert(text)


def _shaped(shape: Mapping[str, Any] | None, version: str) -> Callable[[str], Any]:
    """What reads one of the engine's dataclasses: its fields, as far as the table knows them. What is not given is not
    in the value."""

    def convert(text: str) -> Any:
        if _since(version, "0.20.0"):
            parts = _TEXTS.split(text)
            for at in range(0, len(parts), 2):
                parts[at] = _BARE_READABLE.sub(lambda match: str(human_readable(version)(match[0])), parts[at])
            text = "".join(parts)
        if shape is None:
            value = json.loads(text)
            if not isinstance(value, dict):
                raise ValueError("not an object")
            return value
        return dict(_adapter(json.dumps(shape)).validate_json(text))

    return convert


@cache
def _adapter(shape: str) -> TypeAdapter[dict[str, Any]]:
    """pydantic's, so that it takes a text for a number exactly where the engine does."""
    from typing import Literal

    from pydantic import ConfigDict, TypeAdapter
    from typing_extensions import TypedDict

    data = json.loads(shape)
    names = {"Literal": Literal, "Any": Any, "dict": dict[str, Any], "list": list[Any]}
    fields = {name: eval(hint, {}, names) for name, hint in data["fields"].items()}
    # Its functional form, which has no static type.
    make: Any = TypedDict
    made = make(data["dest"], fields, total=False)
    made.__pydantic_config__ = ConfigDict(extra="forbid" if data["closed"] else "ignore")
    return TypeAdapter(made)
