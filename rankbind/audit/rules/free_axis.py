"""RB701 and RB705: what two ranks create at one address, because an axis is left out or two are added up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rankbind.audit.creations import Made
from rankbind.audit.expression import (
    Apply,
    Constant,
    Coordinate,
    Expression,
    Given,
    Place,
    Size,
    Unclear,
    axes,
    text,
    walk,
)
from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Function
from rankbind.audit.ranks import Layout, Meeting, added, free, pinned, sums
from rankbind.audit.rules.common import comparisons, gate_labels, labels, listed
from rankbind.audit.sites import Way, evident
from rankbind.audit.spans import span
from rankbind.finding import Finding, Label, Level


@dataclass(frozen=True, slots=True)
class Judged:
    """A creation with what was found out about it, on one of the ways to it.

    Attributes:
        pinned: the axes of which the gate lets one index pass.
        varies: the axes that the address takes in.
        free: a meeting for each axis that neither tells apart.
        summed: meetings of ranks that differ in two axes.
        evident: the axes that the code on the way knows; of the others only the profile does.
        unclear: whether something on the way could not be followed.
        near: the axes that the code around the creation itself knows.
        by_class: whether the profile says of a class on the way on which axes its process stands.
    """

    made: Made
    way: Way
    layout: Layout
    pinned: tuple[str, ...]
    varies: tuple[str, ...]
    free: tuple[Meeting, ...]
    summed: tuple[Meeting, ...]
    evident: frozenset[str]
    unclear: bool
    by_class: bool
    near: frozenset[str]


def judge(meaning: Meaning, one: Made, way: Way) -> Judged:
    """Work out which axes are pinned, which vary, and which are left."""
    vocabulary = meaning.vocabulary
    known = frozenset[str]().union(*(evident(meaning, function) for function in way.chain))
    named = (*axes(way.gate), *axes(way.address))
    layout = vocabulary.layout(known.union(named))
    among = () if _handed_in(way) else _among(meaning, way, layout, known, named)
    held = pinned(way.gate, axes(way.gate)[:5])
    met = free(way.gate, way.address, layout, among) if among else []
    alone = {axis for meeting in met for axis in meeting.axes}
    rest = tuple(axis for axis in among if axis not in alone)
    mixed = sums(way.gate, way.address, layout, rest) if added(way.address) and len(rest) > 1 else []
    unclear = any(isinstance(part, Unclear) for side in (way.gate, way.address) for part in walk(side))
    known_parts = frozenset(part for axis in known.union(named) for part in (*layout.parts(axis), axis))
    by_class = any(
        vocabulary.role_of(function.module.source.module, function.qualified, by_class=True) is not None
        for function in way.chain
    )
    return Judged(
        one,
        way,
        layout,
        held,
        axes(way.address),
        tuple(met),
        tuple(mixed),
        known_parts,
        unclear,
        by_class,
        evident(meaning, way.function),
    )


def _handed_in(way: Way) -> bool:
    """Whether the address is whatever a caller gives that is not in sight, in code that knows no axis but the world.

    That is a library's: who tells it its rank may tell it an address for each.
    """
    named = set(axes(way.gate)) - {"rank", "local_rank", "node"}
    return not named and not axes(way.address) and _only_given(way.address, way.chain[-1])


def _only_given(address: Expression, root: Function) -> bool:
    names = {part.text for part in walk(address) if isinstance(part, Given)}
    return bool(names) and names <= set(root.parameters)


def _tests(function: Function) -> bool:
    """Whether a function is a test: what runs it is no rank, whatever rank it plays."""
    name, _, _ = function.qualified.partition(".")
    return re.match(r"test_|Test", name) is not None and _TESTS.search(function.module.source.name) is not None


_TESTS: Final = re.compile(r"(?:^|/)(?:tests?/|test_[^/]*\.py$|[^/]*_test\.py$|conftest\.py$)")


def _among(meaning: Meaning, way: Way, layout: Layout, known: frozenset[str], named: Sequence[str]) -> tuple[str, ...]:
    """The axes along which the process that runs the code exists more than once."""
    if any(map(_tests, way.chain)):
        return ()
    for function in way.chain:
        role = meaning.vocabulary.role_of(function.module.source.module, function.qualified, by_class=True)
        if role is not None:
            return role
    for function in way.chain:
        role = meaning.vocabulary.role_of(function.module.source.module, function.qualified)
        if role is not None:
            # Where no rank is in sight, the place of the file alone is no reason to believe in several processes.
            return role if (known or named) and set(named) != {"node"} else ()
        if evident(meaning, function):
            # It knows its rank, so it is a rank's; who starts the process may be something else.
            break
    if (not known and not named) or set(named) == {"node"}:
        # Nobody's rank is in sight; or the place is told by the node alone, so it is a process of the node.
        return ()
    if meaning.vocabulary.profile.layout is not None:
        return layout.order
    told = {
        part for axis in (*known, *named) if axis not in meaning.vocabulary.auxiliary for part in layout.parts(axis)
    }
    if told:
        return tuple(axis for axis in layout.order if axis in told)
    return layout.order if layout.order == ("rank",) and "rank" in {*known, *named} else ()


def findings(judged: Iterable[Judged]) -> Iterator[Finding]:
    """RB701 and RB705, one for each place."""
    by_place: dict[tuple[str, int, int], list[Judged]] = {}
    for item in judged:
        at = span(item.way.anchor)
        by_place.setdefault((at.file, at.line, at.column), []).append(item)
    for items in by_place.values():
        met = {meeting.axes: (meeting, item) for item in reversed(items) for meeting in item.free}
        if met:
            yield _free(met)
        mixed = next(((meeting, item) for item in items for meeting in item.summed), None)
        if mixed is not None:
            yield _summed(*mixed)


def _free(met: dict[tuple[str, ...], tuple[Meeting, Judged]]) -> Finding:
    first_meeting, item = min(met.values(), key=lambda found: item_order(found[1], found[0]))
    names = [axis for axis in item.layout.order if (axis,) in met]
    row = item.made.row
    return Finding(
        "RB701",
        f"{row.kind}: ranks that differ only in {listed(names, 'or')} {row.verb} {first_meeting.address}; "
        f"{_told(item, names)}",
        _level(item, any(axis in met[(axis,)][1].evident for axis in names)),
        labels=_labels(item, f"nothing tells {listed(names)} apart"),
        facts=_facts(item, names, first_meeting),
        details=tuple(_example(met[(axis,)][0], row.verb) for axis in names),
        fix=_remedy(item, names),
    )


def _level(item: Judged, sure: bool) -> Level:
    """An error where the code itself tells ranks apart, and knows the axis that it leaves out."""
    if axes(item.way.gate) or item.varies:
        return Level.ERROR if sure else Level.WARNING
    given = any(isinstance(part, Given) for part in walk(item.way.address))
    # Nothing tells ranks apart: they may well be told apart where the address is configured.
    near = any(axis in item.near for meeting in item.free for axis in meeting.axes)
    return Level.NOTE if given and not near and not item.by_class else Level.WARNING


def item_order(item: Judged, meeting: Meeting) -> tuple[int, int]:
    """The finding's example: an axis that the code itself knows, the outermost first."""
    axis = meeting.axes[0]
    return (axis not in item.evident, item.layout.order.index(axis))


def _summed(meeting: Meeting, item: Judged) -> Finding:
    row = item.made.row
    pair = " and ".join(meeting.axes)
    return Finding(
        "RB705",
        f"{row.kind}: {pair} are added up in the address, and ranks that differ in both meet at {meeting.address}",
        Level.ERROR if set(meeting.axes) <= item.evident else Level.WARNING,
        labels=_labels(item, f"not one address for each ({', '.join(meeting.axes)})"),
        facts=_facts(item, meeting.axes, meeting),
        details=(_example(meeting, row.verb),),
        fix=f"scale one by the size of the other: {meeting.axes[0]} * {meeting.axes[1]}_size + {meeting.axes[1]}",
    )


def _told(item: Judged, names: Sequence[str]) -> str:
    held = [axis for axis in item.pinned if axis not in names]
    gate = f"the gate pins {', '.join(held)}" if held else "no gate tells ranks apart"
    address = (
        f"the address varies over {', '.join(item.varies)}" if item.varies else "the address is the same on every rank"
    )
    return f"{gate}, {address}"


def _example(meeting: Meeting, verb: str) -> str:
    shape = " x ".join(f"{axis}={size}" for axis, size in meeting.sizes.items())
    a, b = meeting.points
    where = [", ".join(f"{axis} {point.at[axis]}" for axis in meeting.axes) for point in (a, b)]
    return f"with {shape}: ranks {a.rank} ({where[0]}) and {b.rank} ({where[1]}) both {verb} {meeting.address}"


def _labels(item: Judged, told: str) -> tuple[Label, ...]:
    address = (Label(span(place), f"the address: {name}") for place, name in comparisons(item.way.address))
    made = Label(span(Place(item.made.function.module.source.name, item.made.call)), "made here")
    return labels(Label(span(item.way.anchor), told), [*gate_labels(item.way.gate), *address, made])


def _facts(item: Judged, names: Iterable[str], meeting: Meeting) -> dict[str, object]:
    return {
        "creation": item.made.row.kind,
        "function": item.way.function.qualified,
        "axes": list(names),
        "pinned": list(item.pinned),
        "varies": list(item.varies),
        "address": meeting.address,
        "topology": dict(meeting.sizes),
        "ranks": [point.rank for point in meeting.points],
        "gate": text(item.way.gate),
    }


def _remedy(item: Judged, names: Sequence[str]) -> str:
    """The declaration that says it right, and what the address has to take in where each is meant to have its own."""
    replicas = [axis for axis in names if axis.endswith("dp")]
    told = f"let the address vary over {listed(replicas)}" if replicas else ""
    group = [axis for axis in names if axis not in replicas]
    if not group:
        return f"{told}: one for each replica"
    decorator = _decorator(item, group)
    return f"{decorator}; and {told}" if told else decorator


def _decorator(item: Judged, names: Sequence[str]) -> str:
    last = [axis for axis in item.pinned if _last(item.way.gate, axis)]
    group = [
        _WORD.get(axis, axis) for axis in dict.fromkeys((*names, *(a for a in item.pinned if a not in last), *last))
    ]
    if last:
        rank = ", ".join(f'"{axis}": {-1 if axis in last else 0}' for axis in group)
        return f"@singleton_per(group={_group(group)}, rank={{{rank}}})"
    return f"@singleton_per(group={_group(group)}, rank=0)"


_WORD: Final = {"rank": "world", "local_rank": "host"}
"""What rankbind calls the group of all ranks, and of those on a host."""


def _last(gate: Expression, axis: str) -> bool:
    end = Apply("==", (Coordinate(axis), Apply("-", (Size(axis), Constant(1)))))
    return any(part == end for part in walk(gate))


def _group(names: Sequence[str]) -> str:
    return f'"{names[0]}"' if len(names) == 1 else "(" + ", ".join(f'"{name}"' for name in names) + ")"
