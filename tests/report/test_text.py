"""How findings look. The snapshots are the bad example of every page, rendered at 100 columns.

After a change that is meant: ``RANKBIND_UPDATE_SNAPSHOTS=1 python -m pytest tests/report -n 0``, and read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rankbind.check import codes
from rankbind.finding import Finding, Label, Level
from rankbind.report.result import Result, Sources
from rankbind.report.style import cells, safe, wrap
from rankbind.report.text import render
from rankbind.source import Span

from ..support.pages import checked, example

SNAPSHOTS = Path(__file__).parent / "snapshots"
LINE = 'bind = "tcp://*:{5557 + dp}", other = "x"'


def label(part: str, text: str = "", line: str = LINE, number: int = 1) -> Label:
    return Label(Span("t.toml", number, line.index(part) + 1, len(part)), text)


def shown(finding: Finding, text: str = LINE, width: int | None = None, *, colour: bool = False) -> str:
    """The finding alone, without the last line that sums up."""
    whole = render([Result("t.toml", (finding,), 1, 1, 1, text=text)], width=width, colour=colour)
    return whole.rpartition("\n\n")[0] + "\n"


@pytest.mark.parametrize("code", codes.titles())
def test_the_snapshot_of_every_code(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = checked(example(code, "bad"), tmp_path)
    monkeypatch.chdir(tmp_path)
    found = render(results, width=100)
    file = SNAPSHOTS / f"{code}.txt"
    if os.environ.get("RANKBIND_UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")

    assert found == file.read_text(encoding="utf-8")


def test_there_is_no_snapshot_of_a_code_that_is_gone() -> None:
    assert {file.stem for file in SNAPSHOTS.glob("*.txt")} == set(codes.titles())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100])
@pytest.mark.parametrize("code", codes.titles())
def test_no_line_is_wider_than_the_terminal(code: str, width: int, tmp_path: Path) -> None:
    results = checked(example(code, "bad"), tmp_path)

    for line in render(results, width=width).splitlines():
        # A place in a file stays in one piece, so that it can be clicked.
        assert cells(line) <= width or line.lstrip().startswith(("-->", ":::"))


@pytest.mark.parametrize("code", codes.titles())
def test_without_colour_there_is_no_control_character(code: str, tmp_path: Path) -> None:
    results = checked(example(code, "bad"), tmp_path)

    assert all(char == "\n" or char.isprintable() for char in render(results, width=40))


@pytest.mark.parametrize("code", codes.titles())
def test_colours_change_nothing_but_colours(code: str, tmp_path: Path) -> None:
    results = checked(example(code, "bad"), tmp_path)
    coloured = render(results, width=60, colour=True)
    bare = "".join(f"{line.rstrip()}\n" for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines())

    assert bare == render(results, width=60)
    assert any(f"\x1b[1;{colour}m" in coloured for colour in (31, 33, 36))


def test_one_label_stands_beside_its_marks() -> None:
    assert shown(Finding("RB000", "wrong", labels=(label("5557", "the base"),))) == (
        "error[RB000]: wrong\n"
        " --> t.toml:1:18\n"
        "  |\n"
        '1 | bind = "tcp://*:{5557 + dp}", other = "x"\n'
        "  |                  ^^^^ the base\n"
    )


def test_labels_of_one_line_hang_below_it_without_crossing() -> None:
    finding = Finding("RB000", "wrong", labels=(label("5557", "first"), label("dp", "second"), label("other", "third")))

    assert shown(finding).splitlines()[3:] == [
        '1 | bind = "tcp://*:{5557 + dp}", other = "x"',
        "  |                  ^^^^   --    ----- third",
        "  |                  |      |",
        "  |                  |      second",
        "  |                  first",
    ]


def test_the_culprit_is_marked_over_what_it_overlaps() -> None:
    finding = Finding("RB000", "wrong", labels=(label("dp", "this"), label("5557 + dp", "in this")))

    assert shown(finding).splitlines()[4:] == [
        "  |                  -------^^ this",
        "  |                  |",
        "  |                  in this",
    ]


def test_two_labels_on_one_place() -> None:
    finding = Finding("RB000", "wrong", labels=(label("dp", "bound here"), label("dp", "and here")))

    assert shown(finding).splitlines()[4:] == [
        "  |                         ^^ bound here",
        "  |                         |",
        "  |                         and here",
    ]


def test_lines_far_apart_are_joined_by_dots_and_near_ones_shown() -> None:
    text = "one\ntwo\nthree\nfour\nfive\nsix"
    spans = [Label(Span("t.toml", number, 1, 3), f"line {number}") for number in (6, 1, 3)]

    assert shown(Finding("RB000", "wrong", labels=tuple(spans)), text).splitlines()[1:] == [
        " --> t.toml:6:1",
        "  |",
        "1 | one",
        "  | --- line 1",
        "2 | two",
        "3 | three",
        "  | --- line 3",
        "...",
        "6 | six",
        "  | ^^^ line 6",
    ]


def test_a_second_file_has_an_arrow_of_its_own(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("x = 1\r\n@singleton_per()\r\n", encoding="utf-8")
    finding = Finding(
        "RB000", "wrong", labels=(Label(Span(str(code), 2, 1, 16), "said here"), label("bind", "and here"))
    )

    assert shown(finding).splitlines()[1:] == [
        f" --> {code}:2:1",
        "  |",
        "2 | @singleton_per()",
        "  | ^^^^^^^^^^^^^^^^ said here",
        " ::: t.toml:1:1",
        "  |",
        '1 | bind = "tcp://*:{5557 + dp}", other = "x"',
        "  | ---- and here",
    ]


def test_a_file_that_cannot_be_shown_is_still_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "gone.py")
    finding = Finding("RB000", "wrong", labels=(Label(Span(missing, 3, 7), "said here"),), fix="write it")

    assert shown(finding).splitlines() == [
        "error[RB000]: wrong",
        f" --> {missing}:3:7",
        f"  = {missing}:3:7: said here",
        "  = help: write it",
    ]


@pytest.mark.parametrize("kind", ["folder", "binary", "large"])
def test_sources_that_are_no_text_to_show(kind: str, tmp_path: Path) -> None:
    file = tmp_path / kind
    if kind == "folder":
        file.mkdir()
    elif kind == "binary":
        file.write_bytes(b"\xff\x00\xfe\n")
    else:
        with file.open("wb") as stream:
            stream.truncate(1 << 30)

    line = Sources().line(str(file), 1)
    assert (line is not None) == (kind == "binary")


def test_a_place_past_the_end() -> None:
    finding = Finding("RB000", "wrong", labels=(Label(Span("t.toml", 9, 50, 3), "ended too early"),))

    assert shown(finding).splitlines()[3:] == ["9 |", "  | ^ ended too early"]


def test_details_and_fix_are_remarks_and_keep_their_lines() -> None:
    finding = Finding("RB000", "wrong", Level.NOTE, details=("ranks 0, 4", "ranks 2, 6"), fix="first\nor second")

    assert shown(finding).splitlines() == [
        "note[RB000]: wrong",
        "  = ranks 0, 4",
        "  = ranks 2, 6",
        "  = help: first",
        "          or second",
    ]


def test_tabs_and_wide_characters_keep_the_marks_under_what_they_mark() -> None:
    line = '\tname = "日本語" # 終'
    found = shown(Finding("RB000", "wrong", labels=(label("日本語", "wide", line),)), line).splitlines()

    assert found[3] == '1 |     name = "日本語" # 終'
    assert found[4] == "  |             ^^^^^^ wide"


@pytest.mark.parametrize("width", [30, 40, 60])
@pytest.mark.parametrize("part", ["first", "middle", "final"])
def test_a_long_line_is_cut_around_what_matters(part: str, width: int) -> None:
    line = "first " + "x" * 90 + " middle " + "y" * 90 + " final"
    found = shown(Finding("RB000", "wrong", labels=(label(part, "here", line),)), line, width).splitlines()
    source, marks = found[3], found[4]

    assert cells(source) <= width
    start = marks.index("^")
    assert source[start : start + len(part)] == part
    assert marks.count("^") == len(part)
    assert source.endswith("...") == (part != "final")
    assert source.startswith("1 | ...") == (part != "first")


def test_a_very_long_line_is_cut_in_a_pipe_too() -> None:
    line = "x" * 100_000 + "end"
    found = shown(Finding("RB000", "wrong", labels=(label("end", "here", line),)), line)

    assert max(map(len, found.splitlines())) < 250


def test_a_span_wider_than_the_terminal_keeps_its_beginning() -> None:
    line = 'bind = "' + "z" * 300 + '"'
    found = shown(Finding("RB000", "wrong", labels=(Label(Span("t.toml", 1, 8, 302), "here"),)), line, 40).splitlines()

    assert '"zzz' in found[3]
    assert set(found[4][4:].strip()) == {"^"}
    assert "here" in found[5]


def test_in_a_pipe_nothing_is_wrapped() -> None:
    message = "word " * 60

    assert shown(Finding("RB000", message, fix=message)).count("\n") == 2


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\x00b\x7f", "a\\x00b\\x7f"),
        ("\u202eright to left", "\\u202eright to left"),
        ("half \ud800", "half \\ud800"),
        ("a\u2028b\x85", "a\\u2028b\\x85"),
        ("plain, 日本語, é", "plain, 日本語, é"),
    ],
)
def test_what_would_disturb_a_terminal_is_escaped_everywhere(text: str, escaped: str) -> None:
    assert safe(text) == escaped
    finding = Finding("RB000", text, labels=(Label(Span(f"{text}.toml", 1, 1), text),), details=(text,), fix=text)
    found = render([Result("t.toml", (finding,), 1, 1, 1, text="")])

    assert found.count(escaped) == 6
    assert all(char == "\n" or char.isprintable() for char in found)


@pytest.mark.parametrize(
    "text", ["", "word", "two words", "  leading", "a" * 50, "some words and " + "b" * 30, "日本語 " * 9]
)
@pytest.mark.parametrize("width", [1, 2, 7, 12, 100])
def test_wrapping_loses_nothing_and_keeps_the_width(text: str, width: int) -> None:
    lines = wrap(text, width)

    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cells(line) <= max(width, 2) for line in lines)


NOTE = Finding("RB205", "assumed", Level.NOTE)
ERROR = Finding("RB201", "wrong")
WARNING = Finding("RB204", "declared", Level.WARNING)
BROKEN = Finding("RB901", "unreadable")


@pytest.mark.parametrize(
    ("results", "line"),
    [
        ([Result("a", (), 3, 8, 1)], "clean: 3 resources, 8 ranks, 1 host"),
        ([Result("a", (), 1, 1, 2, declarations=2)], "clean: 1 resource, 1 rank, 2 hosts, 2 declarations in the code"),
        ([Result("a", (NOTE,), 3, 8, 1)], "clean: 3 resources, 8 ranks, 1 host; 1 note"),
        ([Result("a", (), 3, 8, 1, ignored=2)], "clean: 3 resources, 8 ranks, 1 host; 2 ignored"),
        ([Result("a", (), 3, 8, 1), Result("b", (), 2, 4, 2)], "clean: 2 files, 5 resources, 12 ranks, 3 hosts"),
        ([Result("a", (ERROR, ERROR, NOTE), 3, 8, 1)], "2 errors, 1 note in 1 file"),
        ([Result("a", (WARNING,), 3, 8, 1)], "1 warning in 1 file"),
        ([Result("a", (BROKEN,))], "1 error in 1 file, which could not be checked"),
        ([Result("a", (ERROR,), 3, 8, 1), Result("b", (), 3, 8, 1)], "1 error in 1 file; 1 clean"),
        (
            [Result("a", (ERROR,), 3, 8, 1), Result("b", (BROKEN,)), Result("c", (), 3, 8, 1)],
            "2 errors in 2 files; 1 file could not be checked; 1 clean",
        ),
    ],
)
def test_the_last_line_sums_up(results: list[Result], line: str) -> None:
    assert render(results).splitlines()[-1] == line
