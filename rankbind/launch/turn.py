"""Which commands of one script run at the same time: what is not in the background is over when the next begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class Step(NamedTuple):
    """One statement of a list of statements.

    Attributes:
        block: which list, by a number of its own in the file.
        at: where in the list.
        kind: ``&``: what follows does not wait for it; ``|``: one of several of which one happens; empty: what follows
            begins when it is over.
    """

    block: int
    at: int
    kind: Literal["", "&", "|"] = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """When a command of a file runs.

    Attributes:
        path: the statements it stands in, outermost first.
        order: among the commands of the file.
        endings: where in the file what is in the background comes to its end (``wait``, ``kill``).
    """

    file: str
    path: tuple[Step, ...]
    order: int
    endings: tuple[tuple[Step, ...], ...] = field(default=(), repr=False, compare=False)

    def beside(self, other: Turn) -> bool:
        """Whether both may run at the same time."""
        if self.file != other.file or self == other:
            return True
        first, second = (self, other) if self.order <= other.order else (other, self)
        at = parting(first.path, second.path)
        if at is None:
            return True
        if first.path[at].kind == "|" or _waited_for(first.path, at):
            return False
        return not any(_before(first.path, end) and _before(end, second.path, waited=True) for end in self.endings)


def _before(one: tuple[Step, ...], other: tuple[Step, ...], *, waited: bool = False) -> bool:
    """Whether `one` begins before `other` in the same shell; where `waited`, whether it is over by then."""
    at = parting(one, other)
    return at is not None and one[at].at < other[at].at and _waited_for(one if waited else other, at)


def _waited_for(path: tuple[Step, ...], at: int) -> bool:
    return all(step.kind != "&" for step in path[at:])


def parting(one: tuple[Step, ...], other: tuple[Step, ...]) -> int | None:
    """Where two paths part within one list of statements; None where neither comes before the other."""
    for at, (step, beside) in enumerate(zip(one, other, strict=False)):
        if step.block != beside.block:
            return None
        if step.at != beside.at:
            return at
    return None
