"""One diagnostic: what, where, which ranks on which hosts, what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rankbind.source import Span


class Level(StrEnum):
    """How bad. Errors and warnings fail a check; a note never does.

    A warning rests on a fact that was declared, a note on an assumption (the default of a kernel setting).
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Label:
    """A place in a file and what it has to do with the finding."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnostic.

    Attributes:
        code: stable, ``RB`` and three digits; ``rankbind explain CODE`` tells what it means.
        message: one line, complete without the rest.
        labels: places in the file, the first one the culprit.
        facts: the same for a program: resources, endpoints, hosts, ranks. JSON types only.
        details: further lines for a person: which ranks on which hosts.
        fix: what to write instead.
    """

    code: str
    message: str
    level: Level = Level.ERROR
    labels: tuple[Label, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    fix: str | None = None

    @property
    def family(self) -> str:
        """What it is about.

        RB1 owners, RB2 endpoints, RB3 exposure, RB4 sites, RB5 deployments, RB6 placement, RB7 audit of code,
        RB9 the file.
        """
        return self.code[:3]

    @property
    def fails(self) -> bool:
        """Whether a check that has this finding is not clean."""
        return self.level is not Level.NOTE


def ranges(ranks: Sequence[int]) -> str:
    """Ranks as text, with runs folded: ``0, 4`` or ``0..3, 8``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}..{b}" for a, b in runs)


def who(ranks: Sequence[int], verb: str) -> str:
    """``rank 4 binds`` or ``ranks 0, 4 bind``."""
    return f"{ranks_text(ranks)} {verb}{'s' * (len(set(ranks)) == 1)}"


def few(texts: Sequence[str], most: int = 4) -> str:
    """The first of `texts`, and how many there are in all."""
    distinct = list(dict.fromkeys(texts))
    return ", ".join(distinct[:most]) + (f", ... ({len(distinct)} in all)" if len(distinct) > most else "")


def ranks_text(ranks: Sequence[int], most: int = 12) -> str:
    """``rank 4`` or ``ranks 0, 4``, cut short when the list would be long."""
    distinct = sorted(set(ranks))
    text = ranges(distinct)
    if len(text) > most * 6:
        text = f"{', '.join(map(str, distinct[:4]))}, ... ({len(distinct)} in all)"
    return f"rank{'s' * (len(distinct) != 1)} {text or 'none'}"
