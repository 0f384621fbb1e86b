"""The audit: gates about ranks in Python code, and what they forget.

The code is read and never run. See `rankbind.audit.walk` for how a function is read, `rankbind.audit.meaning` for what
its names are, `rankbind.audit.ranks` for what that makes of two ranks, and `rankbind.audit.rules` for what is wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from rankbind.audit.expression import axes, text
from rankbind.audit.gates import Gate, conditions, near
from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Program, depth
from rankbind.audit.rules import collective, declared, disagree, free_axis, other_axis
from rankbind.audit.settings import Settings
from rankbind.audit.sites import ways
from rankbind.audit.sources import Source
from rankbind.audit.spans import span
from rankbind.audit.vocabulary import PROFILES, Vocabulary, profile_of
from rankbind.finding import Finding, Label
from rankbind.source import Span

_DEEPEST: Final = 100
"""Of a tree: code that is written by hand keeps well below."""


@dataclass(frozen=True, slots=True)
class Site:
    """One creation of something exclusive, as it is reached from one place.

    Attributes:
        span: the outermost call at which its address is known.
        creation: what is made.
        pinned: the axes of which the gate lets one index pass.
        varies: the axes that the address takes in.
        free: the axes along which two ranks meet.
        unknown: whether something on the way could not be followed.
    """

    span: Span
    function: str
    creation: str
    pinned: tuple[str, ...]
    varies: tuple[str, ...]
    free: tuple[str, ...]
    unknown: bool
    gate: str
    address: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found in all sources."""

    findings: tuple[Finding, ...]
    sites: tuple[Site, ...]
    gates: tuple[Gate, ...]
    files: int


def run(sources: Sequence[Source], settings: Settings, *, listing: bool = False) -> Audit:
    """Find what is created, and what is wrong with it.

    Args:
        listing: look for every gate there is, too, which means to read more files.

    Returns:
        Files that cannot be parsed are findings RB901. Of many files only those are parsed in which something is
        found that may matter; of few, all.
    """
    with _uncollected():
        try:
            return _run(sources, settings, listing=listing)
        except RecursionError:
            # Some file nests deeper than Python follows. Which one is not looked for as long as there is none.
            deep = {source.name for source in sources if depth(source) > _DEEPEST}
            found = _run([source for source in sources if source.name not in deep], settings, listing=listing)
            unread = [_unread(file, ("its expressions are nested too deeply to be read", 1, 1)) for file in deep]
            return replace(found, findings=tuple(sorted((*found.findings, *unread), key=_place)), files=len(sources))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Trees are made in plenty and none is garbage: looking for some would take longer than making them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _run(sources: Sequence[Source], settings: Settings, *, listing: bool) -> Audit:
    profile = (
        PROFILES[settings.profile]
        if settings.profile is not None
        else profile_of(source.module.partition(".")[0] for source in sources)
    )
    program = Program(sources)
    vocabulary = Vocabulary(profile, settings.axes, settings.order)
    vocabulary.within(program.mentions)
    meaning = Meaning(program, vocabulary)
    judged: list[free_axis.Judged] = []
    for one, found in ways(meaning, settings.creations):
        judged += [free_axis.judge(meaning, one, way) for way in found]
    if program.small:
        for source in sources:
            program.module(source)
    with program.sealed():
        told_apart = [item.way for item in judged if axes(item.way.gate) or item.varies]
        about_ranks = near(meaning, (function for way in told_apart for function in way.chain))
        findings = [*free_axis.findings(judged), *other_axis.findings(meaning, about_ranks, judged)]
    findings += disagree.findings(meaning, about_ranks)
    findings += collective.findings(meaning)
    findings += declared.findings(meaning)
    gates = tuple(condition.gate for condition in (conditions(meaning) if listing else ()))
    findings += _broken(program)
    return Audit(tuple(sorted(findings, key=_place)), _sites(judged), gates, len(sources))


def _sites(judged: Sequence[free_axis.Judged]) -> tuple[Site, ...]:
    found = {
        Site(
            span(item.way.anchor),
            item.way.function.qualified,
            item.made.row.kind,
            item.pinned,
            item.varies,
            tuple(axis for meeting in item.free for axis in meeting.axes),
            item.unclear,
            text(item.way.gate),
            text(item.way.address),
        ): None
        for item in judged
    }
    return tuple(sorted(found, key=lambda site: (site.span, site.gate, site.address)))


def _broken(program: Program) -> Iterator[Finding]:
    for file, why in program.broken.items():
        yield _unread(file, why)


def _unread(file: str, broken: tuple[str, int, int]) -> Finding:
    why, line, column = broken
    return Finding(
        "RB901", f"cannot read {file}: line {line}: {why}", labels=(Label(Span(file, line, max(column, 1), 1)),)
    )


def _place(finding: Finding) -> tuple[str, int, int, str, str]:
    at = finding.labels[0].span if finding.labels else Span("", 0, 0, 0)
    return (at.file, at.line, at.column, finding.code, finding.message)


__all__ = ["Audit", "Gate", "Site", "run"]
