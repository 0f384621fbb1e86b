"""Which axes explain groups of ranks: the inverse of what a scope does with axes.

A group whose ranks lie at fixed distances is a layout, sizes and strides as in CuTe and in torch's DeviceMesh. Layouts
that tile the world without overlap are the axes; every other one joins some of them, or cuts them another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, TypeAlias

from rankbind.errors import TopologyError

WORLD = "world"

Groups: TypeAlias = Mapping[str, Sequence[Sequence[int]]]
"""By axis, its groups, each in the order in which the axis counts its members."""


class Mode(NamedTuple):
    """`size` steps of `stride` ranks."""

    size: int
    stride: int

    @property
    def end(self) -> int:
        """The stride of what stands outside of it."""
        return self.size * self.stride


Modes: TypeAlias = tuple[Mode, ...]
"""How an axis counts ranks, outermost first."""


class Cut(NamedTuple):
    """A view: the axes it is of, and those it has instead."""

    of: tuple[str, ...]
    axes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """Axes, outermost first, and views in an order in which a topology takes them."""

    axes: Mapping[str, int]
    views: Mapping[str, Cut]


def explain(groups: Groups, world: int) -> Layout:
    """The axes of `world` ranks that have these groups.

    Axes are made of the earliest names that tile the world; the others become views. Where no names do, what is left is
    an axis ``rest``, and the parts of an axis that is spread have numbers: ``tp_0``, ``tp_1``. A group ``world`` of all
    ranks is left out, as every topology has it.

    Args:
        groups: of each axis at least one group; what is not given is taken to be the same elsewhere.

    Raises:
        TopologyError: no axes explain the groups. The message names two ranks: where one of them would have to be
            elsewhere, or which no axis tells apart.
    """
    dims = {
        name: _modes(name, given, world)
        for name, given in groups.items()
        if (name, [list(group) for group in given]) != (WORLD, [list(range(world))])
    }
    _tell_apart(dims, world)
    return _Search(dims, world).layout()


def check_complete(groups: Groups) -> int:
    """How many ranks there are, if each axis has every rank in one group.

    Raises:
        TopologyError: an axis leaves a rank out, or has it twice.
    """
    ranks = {rank for given in groups.values() for group in given for rank in group}
    world = len(ranks)
    if not world or ranks != set(range(world)):
        lost = next((rank for rank in range(world) if rank not in ranks), 0)
        raise TopologyError(
            f"the groups hold {world} ranks, and rank {lost} is not among them: give those of all ranks"
        )
    for name, given in groups.items():
        home: dict[int, Sequence[int]] = {}
        for group in given:
            for rank in group:
                if rank in home:
                    raise TopologyError(
                        f"rank {rank} is in two {name} groups: {few(home[rank])} and {few(group)}", name
                    )
                home[rank] = group
        if len(home) < world:
            lost = next(rank for rank in range(world) if rank not in home)
            raise TopologyError(f"rank {lost} is in no {name} group: give those of all {world} ranks", name)
    return world


def index(rank: int, modes: Modes) -> int:
    """Where `rank` stands on an axis that counts by `modes`."""
    found = 0
    for size, stride in modes:
        found = found * size + rank // stride % size
    return found


def _modes(name: str, groups: Sequence[Sequence[int]], world: int) -> Modes:
    """How the axis `name` counts the ranks of its groups."""
    if not groups or not all(groups):
        raise TopologyError(f"axis {name} has an empty group, or none", name)
    first = groups[0]
    offsets = [rank - first[0] for rank in first]
    for group in groups:
        if len(group) != len(first):
            raise TopologyError(f"the {name} groups {few(first)} and {few(group)} are not of one size", name)
        for offset, rank in zip(offsets, group, strict=True):
            if rank - group[0] != offset:
                raise _odd(name, group, rank, f"in {few(first)} they are {offset} apart")
    found: list[Mode] = []
    rest, step = offsets, 1
    while len(rest) > 1:
        stride = rest[1]
        size = next((at for at, offset in enumerate(rest) if offset != at * stride), len(rest))
        whole = len(rest) // size * size
        for at, offset in enumerate(rest):
            if stride < 1 or at >= whole or offset != rest[at // size * size] + at % size * stride:
                raise _odd(name, first, first[max(at, 1) * step], "no sizes and strides count the group in this order")
        found.append(Mode(size, stride))
        rest, step = rest[::size], step * size
    end = 1
    for mode in sorted(found, key=lambda mode: mode.stride):
        if mode.stride % end or world % mode.end:
            other = first[offsets.index(mode.stride)]
            raise _odd(name, first, other, f"{world} ranks cannot be cut in {mode.size} with {mode.stride} inside")
        end = mode.end
    for group in groups:
        if len(group) > 1 and index(group[0], tuple(found)):
            raise _odd(name, group, group[1], f"the group would have to begin before rank {group[0]}")
    return tuple(reversed(found))


def _odd(name: str, group: Sequence[int], rank: int, reason: str) -> TopologyError:
    return TopologyError(
        f"the {name} group {few(group)} is no axis: ranks {group[0]} and {rank} cannot be in it so, as {reason}",
        name,
    )


def few(group: Sequence[int]) -> str:
    """A group for people, who read no more than some of it."""
    return str(list(group)) if len(group) <= 8 else f"[{', '.join(map(str, group[:7]))}, ... {group[-1]}]"


def _tell_apart(dims: Mapping[str, Modes], world: int) -> None:
    """Raise `TopologyError` for the first two ranks that no axis tells apart."""
    seen: dict[tuple[int, ...], int] = {}
    for rank in range(world):
        at = tuple(index(rank, modes) for modes in dims.values())
        if at in seen:
            where = ", ".join(f"{name} {place}" for name, place in zip(dims, at, strict=True)) or "no axis"
            raise TopologyError(
                f"ranks {seen[at]} and {rank} are at one place ({where}): give the groups of the axis they differ on"
            )
        seen[at] = rank


class _Factors:
    """The ranks between two strides, cut in factors, outermost first; those without a name can be cut further."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.parts: list[tuple[str | None, Mode]] = [(None, Mode(high // low, low))] if high > low else []

    def carve(self, name: str, mode: Mode) -> None:
        """Give `mode` its name. It lies within a factor that has none."""
        for at, (taken, part) in enumerate(self.parts):
            if taken is None and mode.stride % part.stride == 0 and part.end % mode.end == 0:
                outer, inner = Mode(part.end // mode.end, mode.end), Mode(mode.stride // part.stride, part.stride)
                parts = [(None, outer), (name, mode), (None, inner)]
                self.parts[at : at + 1] = [each for each in parts if each[0] or each[1].size > 1]
                return
        raise AssertionError((name, mode, self.parts))

    def whole(self, modes: Modes) -> tuple[str, ...] | None:
        """The factors that are `modes` together, in their order; None if it takes parts of some."""
        found: list[str] = []
        for mode in modes:
            inside = [(name, part) for name, part in self.parts if _within(part, mode)]
            if prod(part.size for _, part in inside) != mode.size:
                return None
            found += [name for name, _ in inside if name is not None]
        return tuple(found)

    def name_rest(self, fresh: _Names, plain: str | None = None) -> None:
        """Name the factors that have none: `plain`, or after the neighbour within, or that without."""
        names = [name for name, _ in self.parts]
        for at, (name, part) in enumerate(self.parts):
            if name is None:
                inner, outer = (names[at + 1] if at + 1 < len(names) else None), names[at - 1]
                near = f"{inner}_outer" if inner else f"{outer}_inner"
                self.parts[at] = (fresh(plain or near), part)


class _Names:
    """Names that nobody has yet."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def __call__(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name


class _Search:
    def __init__(self, dims: Mapping[str, Modes], world: int) -> None:
        self._dims, self._world = dims, world
        self._fresh = _Names(dims)
        self._views: dict[str, Cut] = {}

    def layout(self) -> Layout:
        spread = [name for name, modes in self._dims.items() if modes]
        chosen = self._tiling(spread, 0, (), []) or self._earliest(spread)
        base = _Factors(1, self._world)
        joined = self._carve(base, chosen)
        base.name_rest(self._fresh, "rest")
        self._join(joined, base)
        left = [name for name in spread if name not in chosen]
        whole = {name: names for name in left if (names := base.whole(self._dims[name]))}
        for name, names in whole.items():
            self._views[name] = Cut(names, {name: self._size(name)})
        self._cut(base, [name for name in left if name not in whole])
        return Layout(self._axes(base), self._views)

    def _axes(self, base: _Factors) -> dict[str, int]:
        """The factors, and between them, as they were given, the axes of size 1."""
        order = [name for name, _ in base.parts if name is not None]
        before: str | None = None
        for name, modes in self._dims.items():
            if not modes:
                order.insert(order.index(before) + 1 if before else 0, name)
            if name in order:
                before = name
        sizes = {name: part.size for name, part in base.parts}
        return {name: sizes.get(name, 1) for name in order}

    def _cut(self, base: _Factors, left: list[str]) -> None:
        """Views for what cuts axes: what fits together is in one view, so that a scope may name it all."""
        cuts: list[_Factors] = []
        while left:
            others = [name for name, modes in self._dims.items() if modes and name not in left]
            together = [name for name in self._best(left, others) if name in left]
            left = [name for name in left if name not in together]
            for cut in cuts:
                found = {name: cut.whole(self._dims[name]) for name in together}
                if all(found.values()):
                    self._views.update(
                        (name, Cut(names, {name: self._size(name)})) for name, names in found.items() if names
                    )
                    break
            else:
                for low, high, names in self._regions(base, together):
                    cut = _Factors(low, high)
                    cuts.append(cut)
                    joined = self._carve(cut, names)
                    cut.name_rest(self._fresh)
                    of = tuple(name for name, part in base.parts if name and low <= part.stride < high)
                    title = f"{names[0]}_parts" if names[0] in joined else names[0]
                    self._views[title] = Cut(of, {name: part.size for name, part in cut.parts if name})
                    self._join(joined, cut)

    def _regions(self, base: _Factors, names: list[str]) -> list[tuple[int, int, list[str]]]:
        """Which axes the views of `names` have to be of, as the strides they lie between: as few as will do."""
        ends = [1, *(part.end for _, part in reversed(base.parts))]
        found: list[tuple[int, int, list[str]]] = []
        for name in names:
            strides = [mode.stride for mode in self._dims[name]]
            last = max(mode.end for mode in self._dims[name])
            low = max(end for end in ends if min(strides) % end == 0)
            high = min(end for end in ends if end % last == 0)
            near = [each for each in found if each[0] < high and low < each[1]]
            found = [each for each in found if each not in near]
            low, high = min([low, *(each[0] for each in near)]), max([high, *(each[1] for each in near)])
            found.append((low, high, [*(other for each in near for other in each[2]), name]))
        return found

    def _carve(self, factors: _Factors, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Cut `names` out. Those with several modes get a factor for each: the names of these are returned."""
        joined: dict[str, tuple[str, ...]] = {}
        for name in names:
            modes = self._dims[name]
            parts = (name,) if len(modes) == 1 else tuple(self._fresh(f"{name}_{at}") for at in range(len(modes)))
            for part, mode in zip(parts, modes, strict=True):
                factors.carve(part, mode)
            if len(parts) > 1:
                joined[name] = parts
        return joined

    def _join(self, joined: Mapping[str, tuple[str, ...]], factors: _Factors) -> None:
        for name, parts in joined.items():
            self._views[name] = Cut(parts, {name: self._size(name)})

    def _tiling(self, names: Sequence[str], start: int, taken: Modes, chosen: list[str]) -> list[str] | None:
        """The earliest of `names` that make all ranks together."""
        if prod(mode.size for mode in taken) == self._world:
            return chosen
        for at in range(start, len(names)):
            if _disjoint(taken, self._dims[names[at]]):
                found = self._tiling(names, at + 1, taken + self._dims[names[at]], [*chosen, names[at]])
                if found is not None:
                    return found
        return None

    def _earliest(self, names: Sequence[str]) -> list[str]:
        """The earliest of `names` that do not overlap."""
        chosen: list[str] = []
        taken: Modes = ()
        for name in names:
            if _disjoint(taken, self._dims[name]):
                chosen.append(name)
                taken += self._dims[name]
        return chosen

    def _best(self, left: Sequence[str], others: Sequence[str]) -> list[str]:
        """Some of `left`, and of `others`, that make the most ranks together; among these, the most of them."""
        names = [*left, *others]
        best: tuple[int, int, list[str]] = (0, 0, [])

        def grow(start: int, taken: Modes, chosen: list[str]) -> None:
            nonlocal best
            found = (prod(mode.size for mode in taken), len(chosen), chosen)
            if chosen and found[:2] > best[:2]:
                best = found
            for at in range(start, len(names) if chosen else len(left)):
                if _disjoint(taken, self._dims[names[at]]):
                    grow(at + 1, taken + self._dims[names[at]], [*chosen, names[at]])

        grow(0, (), [])
        return best[2]

    def _size(self, name: str) -> int:
        return prod(mode.size for mode in self._dims[name])


def _disjoint(taken: Modes, modes: Modes) -> bool:
    return all(one.stride % other.end == 0 or other.stride % one.end == 0 for one in taken for other in modes)


def _within(part: Mode, mode: Mode) -> bool:
    return part.stride % mode.stride == 0 and mode.end % part.end == 0
