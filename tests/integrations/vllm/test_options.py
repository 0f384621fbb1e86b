"""The table of vLLM's options, and what its parser does before: what its own parser answered is what ours says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from rankbind_vllm.launch.flexible import dashed, folded, kinds, model_first

from rankbind.launch.command import Word
from rankbind.launch.options import OptionTable, Reading

from ...support.parsers import Lines, disagreement, engines_own, words_of

TABLE = OptionTable.load(files("rankbind_vllm.launch").joinpath("options.json"))
ROWS = json.loads((Path(__file__).parents[2] / "oracles" / "vllm-cli.json").read_text())["rows"]

VALUES = {
    "json:KVEventsConfig?": [
        '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}',
        '{"endpoint": 5}',
        '{"hwm": "7", "buffer_steps": 5.0}',
        '{"bind": true}',
        '{"enable_kv_cache_events": "yes"}',
        '{"topic": null}',
        "{}",
        "[]",
        "",
    ],
    "human_readable_int": ["8", "1k", "1K", "25.6k", "1.5K", "2t"],
    "human_readable_int?": ["8", "None", "2m", "x"],
    "human_readable_int_or_auto": ["auto", "-1", "4k", "Auto"],
    "union_dict_and_str": ["abc", '{"a": 1}', "{a}", "{}"],
    "lora": ["a=b", '{"name": "a", "path": "b"}', "a", "{}", ""],
    "device_ids": ["0,1", "a, 2"],
    "moe_backend": ["Triton", "auto"],
    "int?": ["8", "None", "", "1.5"],
    "float?": ["0.5", "None"],
    "str?": ["abc", "None", "", "tcp://*:5557", "a.b"],
    "json?": ['{"a": 1}', "None", "{"],
}
ODD = [
    *("--tp", "-tp2", "-tp=2", "-tp", "--dp", "-dph", "-O3", "-O", "-O=2", "-n2", "-asc=3", "--help=all", ""),
    *("--kv-events-config.endpoint=tcp://*:6000", "--kv_events_config.enable_kv_cache_events=true", "-0.5"),
    *("--kv-events-config.hwm=5k", "--kv-events-config.topic", "--override-generation-config.a.b+=1,2"),
    *("--override_generation_config.a_b=1", "--override-generation-config={}", "--no.such=1", "--x.y+=a"),
    *("--kv_events_config={}", "--tensor_parallel_size=2", "--Tensor-parallel-size=2", "--model=x", "--model"),
]


def read(words: Sequence[Word], version: str) -> Reading:
    """As the reader does."""
    words, refused = model_first(words, version)
    words, more = folded(dashed(words, version), version)
    reading = TABLE.read(words, version, kinds=kinds(version))
    return Reading(reading.settings, (*refused, *more, *reading.refusals), reading.unknown)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["version"])
def test_options_of_the_release(row: dict[str, Any]) -> None:
    ours = {string: option for option in TABLE.options(row["version"]) for string in option.strings}
    theirs = {string: (dest, told) for dest, told in row["options"].items() for string in told["options"]}
    assert theirs.keys() <= ours.keys()
    # What the engine hides from its help is taken as well.
    assert all(string.startswith(("--no-", "--disable-", "--enable-")) for string in ours.keys() - theirs.keys())
    for string, (dest, told) in theirs.items():
        option = ours[string]
        assert option.dest == dest
        assert (1 if option.nargs is None else option.nargs) == told["takes"], string
        boolean = told["action"] in ("BooleanOptionalAction", "EnableDisableAction")
        assert (option.action == "boolean") == boolean
        if told["default"] is None or isinstance(told["default"], bool | int | float):
            assert option.default == told["default"], string


@pytest.mark.parametrize(
    ("version", "probe"),
    [(row["version"], probe) for row in ROWS for probe in row["parse_probe"]],
    ids=lambda value: value if isinstance(value, str) else " ".join(value["args"]),
)
def test_lines(version: str, probe: dict[str, Any]) -> None:
    reading = read(words_of(probe["args"]), version)
    if probe["result"] == "rejected":
        assert bool(reading.unknown) == (probe["why"] == "unrecognized")
        assert any(refusal.meant for refusal in reading.refusals) == (probe["why"] == "ambiguous")
        assert reading.unknown or reading.refusals
        return
    assert not reading.unknown
    assert not reading.refusals
    plain = read((), version)
    changed = {dest for dest in reading.settings if reading.value(dest) != plain.value(dest)}
    assert changed == probe["changed"].keys()
    for dest, value in probe["changed"].items():
        ours = reading.value(dest)
        if isinstance(ours, dict):
            value = {key: item for key, item in value.items() if key in ours}
        assert ours == value


def test_words_keep_their_places() -> None:
    words = words_of(
        ["--kv_events_config.endpoint", "tcp://*:1", "-tp", "2", "-O2", "--kv-events-config.hwm=3", "--model", "m"]
    )
    reading = read(words, "0.33.0")
    assert reading.value("kv_events_config") == {"endpoint": "tcp://*:1", "hwm": 3}
    assert {word.span for word in reading.words("kv_events_config")} == {words[0].span}
    assert reading.words("tensor_parallel_size") == words[2:4]
    assert {word.span for word in reading.words("optimization_level")} == {words[4].span}
    assert reading.words("model_tag") == words[7:]


def test_a_part_that_cannot_be_told_makes_the_whole_uncertain() -> None:
    [first, value, *rest] = words_of(["--kv-events-config.endpoint", "tcp://*:$PORT", "--kv-events-config.hwm", "3"])
    words, _ = folded([first, Word(value.text, value.span, certain=False), *rest], "0.33.0")
    assert [word.certain for word in words] == [True, False]


@pytest.mark.parametrize(
    ("version", "words", "became"),
    [
        ("0.11.0", ["-O3"], ["-O", '{"level": 3}']),
        ("0.11.1", ["-O=3"], ["-O", '{"mode": 3}']),
        ("0.11.2", ["-O", "1"], ["-O", '{"mode": 1}']),
        ("0.12.0", ["-O3"], ["--optimization-level", "3"]),
        ("0.12.0", ["-O.backend=eager"], ["-cc", '{"backend": "eager"}']),
        ("0.19.0", ["--a.b", "5k"], ["--a", '{"b": "5k"}']),
        ("0.20.0", ["--a.b", "5k"], ["--a", '{"b": 5000}']),
        ("0.33.0", ["--a_b.c_d=1", "--a-b.e.f+=x,y"], ["--a-b", '{"c_d": 1, "e": {"f": ["x", "y"]}}']),
        ("0.33.0", ["--a_b=c_d.e"], ["--a-b=c_d.e"]),
    ],
)
def test_before_argparse(version: str, words: list[str], became: list[str]) -> None:
    after, refused = folded(dashed(words_of(words), version), version)
    assert [word.text for word in after] == became
    assert not refused


@pytest.mark.parametrize(
    ("version", "words", "option"),
    [
        ("0.11.0", ["--model", "m"], "--model"),
        ("0.33.0", ["--served-model-name", "m"], "--served-model-name"),
        ("0.33.0", ["-tp", "2", "--model"], "--model"),
    ],
)
def test_the_model(version: str, words: list[str], option: str) -> None:
    _, [refusal] = model_first(words_of(words), version)
    assert refusal.option == option


@pytest.mark.parsers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", TABLE.versions)
def test_agrees_with_the_engine(version: str) -> None:
    # Of the engine's other objects anything may be refused for reasons of its own; --config is the reader's.
    options = [
        option
        for option in TABLE.options(version)
        if (not option.kind.startswith("json:") or option.kind in VALUES) and option.dest != "config"
    ]
    source = Lines(f"vllm {version}", options, VALUES, ODD)
    drawn = (["m", *source.line()] if at % 8 else source.line() for at in itertools.count())
    # Also --config-format cut short is --config.
    lines = [[], *itertools.islice((line for line in drawn if "--config" not in line), 500)]
    told = engines_own("vllm", version, lines)
    defaults = told[0]["values"]
    wrong = []
    for line, answer in zip(lines, told, strict=True):
        found = disagreement(read(words_of(line), version), answer, defaults, normal)
        if found:
            wrong.append(f"{line}: {found}")
    print(f"vLLM {version}: {sum('values' in answer for answer in told)} accepted of {len(told)}")
    assert not wrong, "\n".join(wrong)


def normal(dest: str, value: Any) -> Any:
    if dest == "lora_modules" and isinstance(value, list):
        # What is not said has a default there.
        return [(one["name"], one["path"]) for one in value if one]
    return value
