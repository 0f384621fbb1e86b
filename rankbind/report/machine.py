"""Findings as JSON, for programs. The shape is stable: `VERSION` rises when a key changes its meaning or goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rankbind.finding import Finding
from rankbind.report.result import Result

if TYPE_CHECKING:
    from rankbind.check.suggest import Suggestion

VERSION = 1


def render(results: Sequence[Result], suggestion: Suggestion | None = None, names: Sequence[str] = ()) -> str:
    """One object with every file, its verdict and its findings; ends with a newline.

    Args:
        suggestion: which ports to move, where somebody asked.
        names: what its deployments are called, by their numbers.
    """
    asked = {} if suggestion is None else {"suggestion": _suggestion(suggestion, names)}
    return dump({"version": VERSION, "files": [_file(result) for result in results], **asked})


def _suggestion(suggestion: Suggestion, names: Sequence[str]) -> dict[str, Any]:
    return {
        "moves": [
            {
                "deployment": names[move.deployment],
                "flag": move.knob.flag,
                "value": move.knob.value,
                "new": move.new,
            }
            for move in suggestion.moves
        ],
        "exact": suggestion.exact,
        "left": [finding_data(finding) for finding in suggestion.left if finding.fails],
    }


def dump(data: Any) -> str:
    """`data` as indented ASCII, so that nothing in a file can disturb the terminal it is printed on."""
    return json.dumps(data, indent=2) + "\n"


def _file(result: Result) -> dict[str, Any]:
    return {
        "file": result.file,
        "deployment": result.deployment,
        "verdict": result.verdict,
        "resources": result.resources,
        "ranks": result.ranks,
        "hosts": result.hosts,
        "declarations": result.declarations,
        "ignored": result.ignored,
        "findings": [finding_data(finding) for finding in result.findings],
    }


def finding_data(finding: Finding) -> dict[str, Any]:
    """One finding."""
    return {
        "code": finding.code,
        "level": str(finding.level),
        "message": finding.message,
        "labels": [
            {
                "file": label.span.file,
                "line": label.span.line,
                "column": label.span.column,
                "length": label.span.length,
                "text": label.text,
            }
            for label in finding.labels
        ],
        "facts": dict(finding.facts),
        "details": list(finding.details),
        "fix": finding.fix,
    }
