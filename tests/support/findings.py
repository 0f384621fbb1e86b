"""What a check finds in a topology file that is written out in a test."""

from __future__ import annotations

from rankbind.check import Plan, run
from rankbind.config import parse
from rankbind.finding import Finding

JOB = """
[axes]
pp = 2
tp = 4

[views.attention]
of = "tp"
axes = { attn_dp = 2, attn_tp = 2 }

[resources.kv]
"""
"""Eight ranks on one host and a resource that is still to be described."""


def findings(text: str, *codes: str) -> list[Finding]:
    """Those of some codes, or all."""
    return [finding for finding in run(parse(text)) if not codes or finding.code in codes]


def finding(text: str, code: str) -> Finding:
    """The one of that code."""
    (found,) = findings(text, code)
    return found


def codes(text: str) -> list[str]:
    return [found.code for found in findings(text)]


def failing(text: str) -> list[str]:
    """The codes of what would fail a check."""
    return [found.code for found in findings(text) if found.fails]


def underlined(found: Finding, text: str) -> list[str]:
    """What each label stands under."""
    lines = text.split("\n")
    return [
        lines[span.line - 1][span.column - 1 : span.column - 1 + span.length]
        for span in (label.span for label in found.labels)
    ]


def plan(text: str) -> Plan:
    return Plan(parse(text))
