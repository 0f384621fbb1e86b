"""What the audit shows: a person's text, a program's JSON, the listing of sites and gates."""

from __future__ import annotations

import json

import pytest

from rankbind.audit import Audit, Gate, Site
from rankbind.finding import Finding, Label, Level
from rankbind.report.audit import Outcome, diff_to_terminal, gates_to_json, gates_to_text, to_json, to_text
from rankbind.report.style import cells
from rankbind.source import Span


def found(code: str = "RB701", level: Level = Level.ERROR, file: str = "a.py") -> Finding:
    return Finding(code, "wrong", level, (Label(Span(file, 1, 1, 4), "here"), Label(Span("gate.py", 1, 1), "gate")))


ERROR, WARNING, NOTE, UNREAD = found(), found(level=Level.WARNING), found(level=Level.NOTE), found("RB901", file="b.py")


@pytest.mark.parametrize(
    ("outcome", "line", "status"),
    [
        (Outcome(()), "clean: 0 files, 0 sites", 0),
        (Outcome((), 1, 1, gates=1), "clean: 1 file, 1 site, 1 gate", 0),
        (Outcome((NOTE, NOTE), 3, 2), "clean: 3 files, 2 sites; 2 notes", 0),
        (Outcome((WARNING,), 3, 2), "1 warning in 1 file; audited 3 files, 2 sites", 1),
        (
            Outcome((NOTE, ERROR, found(file="c.py")), 3, 2, 1, 2, 3),
            (
                "2 errors, 1 note in 2 files; audited 3 files, 2 sites; 1 ignored; 2 known before; "
                "3 of the baseline are gone (--write-baseline)"
            ),
            1,
        ),
        (
            Outcome((UNREAD, ERROR), 1, 2, stale=1),
            (
                "2 errors in 2 files; audited 1 file, 2 sites; 1 could not be audited; "
                "1 of the baseline is gone (--write-baseline)"
            ),
            2,
        ),
        (Outcome((Finding("RB702", "no place"),)), "1 error in 0 files; audited 0 files, 0 sites", 1),
    ],
)
def test_the_last_line_and_the_exit_status(outcome: Outcome, line: str, status: int) -> None:
    assert to_text(outcome).splitlines()[-1] == line
    assert outcome.status == status
    assert json.loads(to_json(outcome))["verdict"] == ["clean", "findings", "unchecked"][status]


def test_texts_at_hand_are_shown_and_what_they_hold_disturbs_no_terminal() -> None:
    shown = to_text(Outcome((ERROR,), texts={"a.py": "bind\x1b[2J()\n", "gate.py": "if x\n"}))

    assert "1 | bind\\x1b[2J()\n" in shown
    assert "::: gate.py:1:1\n" in shown
    assert "\x1b" not in shown


def test_it_stays_within_the_width() -> None:
    outcome = Outcome((ERROR, NOTE), 1000, 1000, 1000, 1000, 1000, 1000, {"a.py": "x" * 300, "gate.py": "日" * 300})

    assert max(map(cells, to_text(outcome, width=40).splitlines())) <= 40


def test_colour() -> None:
    assert "\x1b[1;31m1 error in 1 file" in to_text(Outcome((ERROR,)), colour=True)


def test_a_diff_for_eyes() -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\x1b[2J\n+\tb\r\n c\n"

    assert diff_to_terminal(diff) == "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\\x1b[2J\n+   b\n c\n"
    assert "\x1b[32m+   b\x1b[0m\n" in diff_to_terminal(diff, colour=True)


SITE = Site(Span("a b.py", 3, 5, 6), "C.f", "zmq bind", ("pp",), (), ("dp", "tp"), True, "pp = 0", "tcp://*:5557")
GATE = Gate(Span("日\x1b.py", 2, 1, 9), "", "if", "self.on", ("pp", "tp"), ("pp",), "pp = 0\nand tp < 2")


def test_the_listing_is_aligned_and_complete() -> None:
    assert gates_to_text(Audit((), (SITE,), (GATE, GATE), 1)) == (
        "site      function  pinned  varies  free    creation\n"
        "a b.py:3  C.f       pp      -       dp,tp?  zmq bind at tcp://*:5557\n"
        "\n"
        "gate         function  kind  target   axes   pinned  condition\n"
        "日\\x1b.py:2  -         if    self.on  pp,tp  pp      pp = 0 and tp < 2\n"
        "日\\x1b.py:2  -         if    self.on  pp,tp  pp      pp = 0 and tp < 2\n"
    )


def test_nothing_to_list() -> None:
    assert gates_to_text(Audit((), (), (), 0)) == (
        "site  function  pinned  varies  free  creation\n\ngate  function  kind  target  axes  pinned  condition\n"
    )


def test_the_listing_for_a_program() -> None:
    assert json.loads(gates_to_json(Audit((), (SITE,), (GATE,), 1))) == {
        "version": 1,
        "sites": [
            {
                "file": "a b.py",
                "line": 3,
                "column": 5,
                "length": 6,
                "function": "C.f",
                "creation": "zmq bind",
                "pinned": ["pp"],
                "varies": [],
                "free": ["dp", "tp"],
                "unknown": True,
                "gate": "pp = 0",
                "address": "tcp://*:5557",
            }
        ],
        "gates": [
            {
                "file": "日\x1b.py",
                "line": 2,
                "column": 1,
                "length": 9,
                "function": "",
                "kind": "if",
                "target": "self.on",
                "axes": ["pp", "tp"],
                "pinned": ["pp"],
                "text": "pp = 0\nand tp < 2",
            }
        ],
    }
