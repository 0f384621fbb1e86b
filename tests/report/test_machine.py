"""The JSON that programs read: its keys are a promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankbind.check import codes
from rankbind.finding import Finding, Label, Level
from rankbind.report.machine import render
from rankbind.report.result import Result, exit_status
from rankbind.source import Span

from ..support.pages import checked, example


def test_the_whole_shape() -> None:
    finding = Finding(
        "RB201",
        "two bind",
        Level.ERROR,
        (Label(Span("t.toml", 3, 8, 5), "bound here"),),
        {"ranks": [0, 4]},
        ("ranks 0, 4",),
        "write it",
    )
    found = json.loads(render([Result("t.toml", (finding,), 1, 8, 2, ignored=1), Result("gone.toml")]))

    assert found == {
        "version": 1,
        "files": [
            {
                "file": "t.toml",
                "deployment": None,
                "verdict": "findings",
                "resources": 1,
                "ranks": 8,
                "hosts": 2,
                "declarations": None,
                "ignored": 1,
                "findings": [
                    {
                        "code": "RB201",
                        "level": "error",
                        "message": "two bind",
                        "labels": [{"file": "t.toml", "line": 3, "column": 8, "length": 5, "text": "bound here"}],
                        "facts": {"ranks": [0, 4]},
                        "details": ["ranks 0, 4"],
                        "fix": "write it",
                    }
                ],
            },
            {
                "file": "gone.toml",
                "deployment": None,
                "verdict": "unchecked",
                "resources": None,
                "ranks": None,
                "hosts": None,
                "declarations": None,
                "ignored": 0,
                "findings": [],
            },
        ],
    }


@pytest.mark.parametrize("code", codes.titles())
def test_every_finding_can_be_written(code: str, tmp_path: Path) -> None:
    text = render(checked(example(code, "bad"), tmp_path))

    assert text.isascii()
    findings = [finding for file in json.loads(text)["files"] for finding in file["findings"]]
    assert findings[0]["code"] == code
    assert all(finding["labels"] for finding in findings)


@pytest.mark.parametrize(
    ("findings", "verdict", "status"),
    [
        ([], "clean", 0),
        ([Finding("RB205", "x", Level.NOTE)], "clean", 0),
        ([Finding("RB204", "x", Level.WARNING)], "findings", 1),
        ([Finding("RB201", "x")], "findings", 1),
        ([Finding("RB201", "x"), Finding("RB904", "x")], "unchecked", 2),
    ],
)
def test_verdict_and_exit_status(findings: list[Finding], verdict: str, status: int) -> None:
    result = Result("t.toml", tuple(findings), 1, 1, 1)

    assert result.verdict == verdict
    assert exit_status([result]) == status
    assert exit_status([Result("a", (), 1, 1, 1), result]) == status
