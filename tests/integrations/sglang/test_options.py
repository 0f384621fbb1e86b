"""The table of SGLang's options: what its own parser answered is what ours says."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from rankbind_sglang.launch.kinds import KINDS

from rankbind.launch.options import OptionTable

from ...support.parsers import Lines, disagreement, engines_own, words_of

TABLE = OptionTable.load(files("rankbind_sglang.launch").joinpath("options.json"))
ROWS = json.loads((Path(__file__).parents[2] / "oracles" / "sglang-cli.json").read_text())["rows"]
OUTCOMES = {"accepted": None, "rejected: ambiguous": "meant", "rejected: unrecognized": "unknown"}

VALUES = {
    "human_readable_int": ["8", "1k", "25.6k", "1Ki", "-1"],
    "json_list_type": ["[1, 2]", "{}"],
    "nullable_str": ["", "None", "abc"],
    "lora": ["a=b", '{"lora_name": "a", "lora_path": "b"}', " c "],
    "parse_cuda_graph_config_arg": ['{"decode": {"max_bs": 4}}', "{}"],
    "parse_cuda_graph_backend_arg": ["full"],
}
ODD = ["--tp", "--pp", "--dp", "--tp_size=8", "--tp=8", "--dist", "-h", "--context-length=1.5k", ""]


def read(version: str, *words: str) -> Any:
    return TABLE.read(words_of(["--model-path", "m", *words]), version, kinds=KINDS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["version"])
def test_options_of_the_release(row: dict[str, Any]) -> None:
    ours = {string: option for option in TABLE.options(row["version"]) for string in option.strings}
    theirs = {string: (dest, told) for dest, told in row["options"].items() for string in told["options"]}
    assert theirs.keys() <= ours.keys()
    # The oracle has one action of each dest; the others are deprecated spellings.
    dests = {dest for dest, _ in theirs.values()}
    assert {option.dest for option in ours.values()} == dests
    for string, (dest, told) in theirs.items():
        option = ours[string]
        assert option.dest == dest
        assert (1 if option.nargs is None else option.nargs) == told["takes"], string
        if told["default"] not in ("str", "list", "dict") and dest != "help":
            assert option.default == told["default"], string


@pytest.mark.parametrize(
    ("version", "probe", "told"),
    [(row["version"], probe, told) for row in ROWS for probe, told in row["prefix_probe"].items()],
)
def test_abbreviations(version: str, probe: str, told: dict[str, Any]) -> None:
    """Each probe is the option alone: what is right needs a value, or takes none."""
    reading = read(version, probe)
    if told.get("outcome") == "unknown":
        assert [word.text for word in reading.unknown] == [probe]
        return
    if told.get("outcome") == "ambiguous":
        [refusal] = reading.refusals
        assert set(refusal.meant) == set(told["prefix_matches"])
        return
    dest = told["exact"] if "exact" in told else told["outcome"].removeprefix("ok ")
    strings = {string for option in TABLE.options(version) if option.dest == dest for string in option.strings}
    assert reading.given(dest)
    assert all(refusal.option in strings and not refusal.meant for refusal in reading.refusals)
    assert not reading.unknown


@pytest.mark.parametrize(
    ("version", "line", "told"),
    [(row["version"], line, told) for row in ROWS for line, told in row["parse_probe"].items()],
)
def test_lines(version: str, line: str, told: str) -> None:
    reading = read(version, *line.split())
    expected = OUTCOMES[told]
    assert bool(reading.unknown) == (expected == "unknown")
    assert bool(reading.refusals) == (expected == "meant")
    assert all(refusal.meant for refusal in reading.refusals)


@pytest.mark.parsers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", TABLE.versions)
def test_agrees_with_the_engine(version: str) -> None:
    source = Lines(f"sglang {version}", TABLE.options(version), VALUES, ODD)
    lines = [["--model-path", "m"], *(["--model-path", "m", *source.line()] for _ in range(500))]
    told = engines_own("sglang", version, lines)
    defaults = told[0]["values"]
    wrong = []
    for line, answer in zip(lines, told, strict=True):
        found = disagreement(TABLE.read(words_of(line), version, kinds=KINDS), answer, defaults, lambda _, value: value)
        if found:
            wrong.append(f"{line}: {found}")
    print(f"SGLang {version}: {sum('values' in answer for answer in told)} accepted of {len(told)}")
    assert not wrong, "\n".join(wrong)
