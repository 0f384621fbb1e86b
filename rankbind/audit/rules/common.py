"""What several rules need: how a place is reached, and how findings show what they are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rankbind.audit.expression import (
    FALSE,
    Apply,
    Coordinate,
    Expression,
    Place,
    both,
    either,
    filled,
    kinds,
    large,
    text,
    walk,
)
from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Function
from rankbind.audit.ranks import Point
from rankbind.audit.spans import span
from rankbind.audit.walk import Visit
from rankbind.finding import Label

_COMPARISONS: Final = frozenset(["==", "!=", "<", "<=", ">", ">=", "in", "not in", "%"])
_DEEPEST: Final = 5
_MOST: Final = 12
"""Ways to one place that are followed."""


def reached(meaning: Meaning, visit: Visit, function: Function) -> Expression:
    """The condition under which a call in `function` is reached, on any of the ways to it."""
    gate = meaning.condition(visit.path, function)
    return either(*_climbed(meaning, gate, function, (function,), [_MOST]))


def _climbed(
    meaning: Meaning, gate: Expression, function: Function, chain: tuple[Function, ...], budget: list[int]
) -> Iterator[Expression]:
    callers = [caller for caller in meaning.callers(function) if caller.function not in chain]
    if not callers or len(chain) > _DEEPEST or budget[0] <= 0:
        budget[0] -= 1
        yield meaning.completed(gate)
        return
    for caller in callers:
        here = both(meaning.condition(caller.visit.path, caller.function), filled(gate, caller.values))
        if here == FALSE or large(here):
            continue
        yield from _climbed(meaning, here, caller.function, (*chain, caller.function), budget)


def comparisons(gate: Expression) -> Iterator[tuple[Place, str]]:
    """The comparisons of coordinates in a condition, and coordinates that stand alone; each once."""
    covered: set[int] = set()
    for part in walk(gate):
        at = part.at
        if at is None or id(part) in covered or Coordinate not in kinds(part):
            continue
        if isinstance(part, Coordinate) or (isinstance(part, Apply) and part.operator in _COMPARISONS):
            covered.update(map(id, walk(part)))
            yield at, text(part)


def labels(first: Label, others: Iterable[Label], most: int = 6) -> tuple[Label, ...]:
    """`first`, and those of the others that point elsewhere."""
    found = {first.span: first}
    for label in others:
        found.setdefault(label.span, label)
    return tuple(found.values())[:most]


def gate_labels(gate: Expression) -> Iterator[Label]:
    """Where a gate stands."""
    return (Label(span(place), f"the gate: {name}") for place, name in comparisons(gate))


def at(point: Point, axes: Sequence[str]) -> str:
    """``rank 3 (pp 1, tp 1)``."""
    return f"rank {point.rank} ({', '.join(f'{axis} {point.at[axis]}' for axis in axes)})"


def listed(names: Sequence[str], word: str = "and") -> str:
    """``pp, cp and tp``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
