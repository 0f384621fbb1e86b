from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import pytest

from rankbind.launch.command import Word, typed
from rankbind.launch.options import Option, OptionTable, Reading, config_words
from rankbind.source import Span, parse

OPTIONS = (
    Option("model", (), "?"),
    Option("nodes", ("--nnodes", "-n"), kind="int", default=1),
    Option("tp_size", ("--tp-size", "--tensor-parallel-size", "-tp"), kind="int", default=1),
    Option("pp_size", ("--pp-size",), kind="int", default=1),
    Option("pp_depth", ("--pp-async-batch-depth",), kind="int"),
    Option("host", ("--host",), default="127.0.0.1"),
    Option("ratio", ("--ratio",), kind="float", default=0.5),
    Option("level", ("--level",), choices=("low", "high"), default="low"),
    Option("labels", ("--labels",), "*"),
    Option("paths", ("--paths",), "+"),
    Option("pair", ("--pair",), 2, kind="int"),
    Option("token", ("--token",), "?", const=True),
    Option("trust", ("--trust",), 0, action="const", const=True, default=False),
    Option("cache", ("--cache", "--no-cache"), 0, action="boolean", negative=("--no-cache",)),
    Option("middleware", ("--middleware",), action="append"),
    Option("events", ("--events",), kind="json"),
    Option("size", ("--size",), kind="readable"),
    Option("old", ("--old",), 0, action="refuse"),
    Option("gone", ("--gone",), action="nothing"),
    Option("help", ("-h", "--help"), 0, action="help", const=True),
)
TABLE = OptionTable(["1"], {"1": OPTIONS})


def words(*texts: str, uncertain: tuple[str, ...] = ()) -> tuple[Word, ...]:
    return tuple(Word(word.text, word.span, word.text not in uncertain) for word in typed(["engine", *texts]).words[1:])


def read(*texts: str, uncertain: tuple[str, ...] = ()) -> Reading:
    return TABLE.read(words(*texts, uncertain=uncertain), "1", kinds={"readable": lambda text: int(text[:-1]) * 1000})


def test_nothing_said() -> None:
    reading = read()
    assert {dest: setting.value for dest, setting in reading.settings.items()} == {
        option.dest: option.default for option in OPTIONS
    }
    assert not reading.refusals
    assert not reading.unknown
    assert not reading.given("tp_size")
    assert reading.value("no_such", 7) == 7
    assert reading.words("no_such") == ()


@pytest.mark.parametrize(
    ("texts", "dest", "value", "told"),
    [
        (["--tp-size", "8"], "tp_size", 8, "--tp-size 8"),
        (["--tensor-parallel-size=8"], "tp_size", 8, "--tensor-parallel-size=8"),
        (["--tp", "8"], "tp_size", 8, "--tp 8"),
        (["--tens=8"], "tp_size", 8, "--tens=8"),
        (["-tp", "8"], "tp_size", 8, "-tp 8"),
        (["-tp=8"], "tp_size", 8, "-tp=8"),
        (["-n8"], "nodes", 8, "-n8"),
        (["-n=8"], "nodes", 8, "-n=8"),
        (["--tp", "8", "--tp-size", "4"], "tp_size", 4, "--tp-size 4"),
        (["--tp", "-8"], "tp_size", -8, "--tp -8"),
        (["--host", ""], "host", "", "--host "),
        (["--host", "-x y"], "host", "-x y", "--host -x y"),
        (["--host=-x"], "host", "-x", "--host=-x"),
        (["--host=--tp-size=3"], "host", "--tp-size=3", "--host=--tp-size=3"),
        (["--ratio", "1e-3"], "ratio", 0.001, "--ratio 1e-3"),
        (["--level", "high"], "level", "high", "--level high"),
        (["--labels", "--trust"], "labels", [], "--labels"),
        (["--labels", "a", "b", "--trust"], "labels", ["a", "b"], "--labels a b"),
        (["--pair", "1", "2", "m"], "pair", [1, 2], "--pair 1 2"),
        (["--token"], "token", True, "--token"),
        (["--token", "a"], "token", "a", "--token a"),
        (["--trust"], "trust", True, "--trust"),
        (["--cache"], "cache", True, "--cache"),
        (["--cache", "--no-cache"], "cache", False, "--no-cache"),
        (["--no-c"], "cache", False, "--no-c"),
        (["--middleware", "a", "--middleware", "b"], "middleware", ["a", "b"], "--middleware a --middleware b"),
        (["--events", '{"a": [1]}'], "events", {"a": [1]}, '--events {"a": [1]}'),
        (["--size", "3k"], "size", 3000, "--size 3k"),
        (["m", "--tp", "8"], "model", "m", "m"),
        (["--", "--tp"], "model", "--tp", "--tp"),
        (["--gone", "x", "m"], "gone", None, ""),
    ],
)
def test_values_and_the_words_that_set_them(texts: list[str], dest: str, value: Any, told: str) -> None:
    reading = read(*texts)
    assert not reading.refusals
    assert not reading.unknown
    assert reading.value(dest) == value
    assert type(reading.value(dest)) is type(value)
    assert " ".join(word.text for word in reading.words(dest)) == told


@pytest.mark.parametrize(
    ("texts", "message", "word"),
    [
        (["--tp", "two"], "--tp-size takes an integer, not 'two'", "two"),
        (["--tp=two"], "--tp-size takes an integer, not 'two'", "--tp=two"),
        (["--ratio", "half"], "--ratio takes a number, not 'half'", "half"),
        (["--events", "{"], "--events takes JSON, not '{'", "{"),
        (["--size", "x"], "--size does not take 'x'", "x"),
        (["--level", "mid"], "--level is low or high, not 'mid'", "mid"),
        (["--tp"], "--tp-size needs a value", "--tp"),
        (["--tp", "--trust"], "--tp-size needs a value", "--tp"),
        (["--host", "-x"], "--host needs a value", "--host"),
        (["--paths"], "--paths needs at least one value", "--paths"),
        (["--pair", "1"], "--pair needs 2 values", "--pair"),
        (["--pair", "1", "x"], "--pair takes an integer, not 'x'", "x"),
        (["--trust=yes"], "--trust takes no value", "--trust=yes"),
        (["--old"], "--old is no longer an option", "--old"),
    ],
)
def test_refused(texts: list[str], message: str, word: str) -> None:
    [refusal] = [one for one in read(*texts).refusals if one.option != "-x"]
    assert refusal.message == message
    assert refusal.word.text == word
    assert refusal.certain
    assert not refusal.meant


def test_an_abbreviation_of_several() -> None:
    reading = read("--pp", "2", "--tp", "4")
    [refusal] = reading.refusals
    assert refusal.meant == ("--pp-size", "--pp-async-batch-depth")
    assert refusal.word.text == "--pp"
    assert refusal.message == "--pp could be --pp-size or --pp-async-batch-depth"
    assert not reading.unknown
    assert reading.value("tp_size") == 4


def test_everything_that_is_refused_is_told_at_once() -> None:
    reading = read("m", "--pp", "2", "--tp", "x", "--nope", "--host", "h", "--level", "mid", "--tp_size=3")
    assert [refusal.word.text for refusal in reading.refusals] == ["--pp", "x", "mid"]
    assert [word.text for word in reading.unknown] == ["--nope", "--tp_size=3"]
    assert reading.value("host") == "h"
    assert reading.value("model") == "m"
    assert reading.value("tp_size") == 1
    assert [word.text for word in reading.words("tp_size")] == ["--tp", "x"]


def test_refusals_are_in_the_order_of_the_words() -> None:
    reading = read("m", "$EXTRA", "--tp", "x", uncertain=("$EXTRA",))
    assert [refusal.word.text for refusal in reading.refusals] == ["$EXTRA", "x"]


def test_a_type_may_fail_as_it_likes() -> None:
    def convert(text: str) -> int:
        return {"a": 1}[text]

    for text, refused in (("a", False), ("b", True)):
        reading = TABLE.read(words("--size", text), "1", kinds={"readable": convert})
        assert bool(reading.refusals) == refused


def test_a_default_may_be_a_list() -> None:
    table = OptionTable(["1"], {"1": (Option("paths", ("--paths",), "*", default=["a"]),)})
    assert table.read((), "1").value("paths") == ["a"]


def test_words_that_no_option_takes() -> None:
    assert [word.text for word in read("m", "n", "--trust", "o").unknown] == ["n", "o"]
    [first, second] = read("m", "m", "--tp", "2").settings["model"].words, read("m", "m").unknown
    assert first[0].span.column < second[0].span.column


def test_what_is_missing() -> None:
    table = OptionTable(["1"], {"1": (Option("model", ("--model-path",), required=True),)})
    [refusal] = table.read(words("--", "x"), "1").refusals[:1]
    assert refusal.message == "--model-path is missing"
    assert refusal.word.text == "x"
    [refusal] = table.read((), "1").refusals
    assert refusal.option == "--model-path"
    assert not table.read(words("--model-path", "m"), "1").refusals


@pytest.mark.parametrize(
    ("texts", "word", "message"),
    [
        (["--tp", "$TP"], "$TP", "cannot be told: $TP is not set here"),
        (["--tp=${TP:?}"], "--tp=${TP:?}", "cannot be told: $TP is not set here"),
        (["--tp", "$A$B"], "$A$B", "cannot be told: $A and $B are not set here"),
        (["--tp", "$(nproc)"], "$(nproc)", "cannot be told: $(nproc) is known at run time alone"),
        (["--level", "$LEVEL"], "$LEVEL", "cannot be told: $LEVEL is not set here"),
        (["m", "$EXTRA"], "$EXTRA", "cannot be told: $EXTRA is not set here"),
    ],
)
def test_what_cannot_be_told(texts: list[str], word: str, message: str) -> None:
    reading = read(*texts, uncertain=(word,))
    [refusal] = reading.refusals
    assert (refusal.message, refusal.word.text, refusal.certain) == (message, word, False)
    assert not reading.unknown


def test_an_uncertain_text_is_a_text() -> None:
    reading = read("--host", "$HOST", uncertain=("$HOST",))
    assert not reading.refusals
    assert reading.value("host") == "$HOST"
    assert not reading.words("host")[1].certain


def test_help_is_an_option_like_others() -> None:
    assert read("-h").given("help")


def test_ranges_of_releases(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    entries = [
        {"dest": "a", "strings": ["--a"]},
        {"dest": "b", "to": "2", "strings": ["--b"], "kind": "int"},
        {"dest": "b", "from": "3", "strings": ["--b", "--bb"]},
        {"dest": "c", "from": "2", "to": "2", "strings": ["--c"], "choices": ["x"]},
    ]
    file.write_text(json.dumps({"versions": ["1", "2", "3"], "options": entries}))
    table = OptionTable.load(file)
    assert table.versions == ("1", "2", "3")
    strings = {version: [one for option in table.options(version) for one in option.strings] for version in "123"}
    assert strings == {"1": ["--a", "--b"], "2": ["--a", "--b", "--c"], "3": ["--a", "--b", "--bb"]}
    assert table.read(words("--c", "y"), "2").refusals
    assert table.read(words("--c", "y"), "3").unknown


def test_a_configuration_file_as_words() -> None:
    document = parse("tp-size: 8\nhost: 0.0.0.0\ntrust: true\nskip: 1\n", "serve.yaml")

    def spelled(key: str, value: Any) -> list[str]:
        return [] if key == "skip" else [f"--{key}"] if value is True else [f"--{key}", str(value)]

    found = config_words(document, spelled)
    assert [word.text for word in found] == ["--tp-size", "8", "--host", "0.0.0.0", "--trust"]
    assert found[0].span == Span("serve.yaml", 1, 1, 7)
    assert found[1].span == Span("serve.yaml", 1, 10, 1)


class Plain(argparse.ArgumentParser):
    """What an engine would have."""

    def error(self, message: str) -> Any:
        raise ValueError(message)


def plain() -> Plain:
    parser = Plain(add_help=False)
    for option in OPTIONS:
        if option.action in ("refuse", "nothing", "help"):
            continue
        kind: Any = {"int": int, "float": float, "json": json.loads}.get(option.kind, str)
        more: dict[str, Any] = {"nargs": option.nargs, "type": kind, "choices": option.choices, "const": option.const}
        if option.action == "const":
            more = {"action": "store_true"}
        elif option.action == "boolean":
            parser.add_argument("--cache", action=argparse.BooleanOptionalAction, dest=option.dest)
            continue
        elif option.action == "append":
            more = {"action": "append"}
        parser.add_argument(
            *(option.strings or (option.dest,)),
            **({"dest": option.dest} if option.strings else {}),
            default=option.default,
            **more,
        )
    return parser


PIECES = [
    *("--tp", "--tp=3", "-tp", "-tp=4", "--pp", "--pp-s", "--host", "--h", "--ratio=1", "--le", "--labels", "--paths"),
    *(
        "--pair",
        "--token",
        "--trust",
        "--cache",
        "--no-cache",
        "--no",
        "--middleware",
        "--events",
        "--t",
        "--",
        "-",
        "-t",
    ),
    *("1", "-1", "-.5", "x", "low", "", "a b", "-a b", "{}", "--x", "--x=1", "m", "-tp5", "--trust=", "-n3", "-nx"),
]


@pytest.mark.parametrize("seed", range(40))
def test_accepted_exactly_where_argparse_does(seed: int) -> None:
    """With what argparse makes of it; every refusal and every stray word is one of the words given."""
    source = random.Random(seed)
    options = tuple(option for option in OPTIONS if option.action not in ("refuse", "nothing", "help"))
    table = OptionTable(["1"], {"1": options})
    for _ in range(50):
        line = words(*source.choices(PIECES, k=source.randint(0, 6)))
        reading = table.read(line, "1")
        try:
            expected = vars(plain().parse_args([word.text for word in line]))
        except (ValueError, argparse.ArgumentError):
            assert reading.refusals or reading.unknown, line
        else:
            assert not reading.refusals, line
            assert not reading.unknown, line
            assert {dest: setting.value for dest, setting in reading.settings.items()} == expected
            for dest, setting in reading.settings.items():
                if setting.value != next(option.default for option in options if option.dest == dest):
                    assert setting.words, (line, dest)
        places = {id(word) for word in line}
        assert {id(refusal.word) for refusal in reading.refusals} <= places
        assert {id(word) for word in reading.unknown} <= places
