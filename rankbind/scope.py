"""Who owns a resource. Every part of rankbind that asks "is this rank the owner?" asks here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, Literal

from rankbind.errors import ScopeError, UnknownAxisError
from rankbind.topology import Topology

WORLD = "world"
HOST = "host"
LOCAL_RANK = "local_rank"


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that differ only along the axes of a scope.

    Attributes:
        members: world ranks; the position of a rank is its group rank.
        fixed: index on each axis that the group does not span; ``{"node_rank": n}`` for a host's group.
    """

    members: tuple[int, ...]
    fixed: Mapping[str, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fixed", MappingProxyType(dict(self.fixed)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Group, (self.members, dict(self.fixed))

    def __hash__(self) -> int:
        return hash(self.members)


class Scope:
    """Exactly one owner in each group: what ``singleton_per(group=..., rank=...)`` says.

    Args:
        group: an axis, or several: the group spans these, and there is one such group for each combination of the
            others. ``"world"`` is every rank, ``"host"`` the ranks of one host. The order of several does not matter.
        rank: which member owns: 0..n-1 in the group's order (that of the axes in the topology, for hosts the order
            of placement), negative from the end, or ``"any"`` for whoever claims first.
    """

    __slots__ = ("group", "rank")
    group: tuple[str, ...]
    rank: int | Literal["any"]

    def __init__(self, group: str | Sequence[str], rank: int | Literal["any"] = 0) -> None:
        names = (group,) if isinstance(group, str) else tuple(group)
        if not names:
            raise ScopeError('a group needs at least one axis; for a group of everything write "world"')
        if len(set(names)) != len(names):
            raise ScopeError(f"group {', '.join(names)} names an axis twice")
        if len(names) > 1 and (WORLD in names or HOST in names):
            raise ScopeError(f'group {", ".join(names)}: "world" and "host" stand alone')
        if rank != "any" and (isinstance(rank, bool) or not isinstance(rank, int)):
            raise ScopeError(f'the owner\'s rank in its group must be an integer or "any", not {rank!r}')
        object.__setattr__(self, "group", names)
        object.__setattr__(self, "rank", rank)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Scope is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Scope is immutable: cannot delete {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Scope, (self.group, self.rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and (frozenset(self.group), self.rank) == (
            frozenset(other.group),
            other.rank,
        )

    def __hash__(self) -> int:
        return hash((frozenset(self.group), self.rank))

    def __repr__(self) -> str:
        return f"Scope(group={self.group[0] if len(self.group) == 1 else self.group!r}, rank={self.rank!r})"

    def __str__(self) -> str:
        which = "any rank" if self.rank == "any" else f"rank {self.rank}"
        if self.group == (WORLD,):
            return f"{which} of the world"
        return f"{which} of each host" if self.group == (HOST,) else f"{which} of each ({', '.join(self.group)}) group"

    def validate(self, topology: Topology) -> None:
        """Say no to a scope that `topology` does not have.

        Raises:
            UnknownAxisError: the group names an axis that is not declared.
            ScopeError: the axes cannot span one group, or some group has no member of that rank.
        """
        for size, where in self._group_sizes(topology):
            if self.rank != "any" and not -size <= self.rank < size:
                last = f"the last is {size - 1}, or -1" if size > 1 else "its only rank is 0" if size else "it is empty"
                raise ScopeError(f"rank {self.rank} is outside the group: {where} has size {size}, {last}")

    def groups(self, topology: Topology) -> tuple[Group, ...]:
        """All groups, each with its members in group-rank order."""
        if self.group == (WORLD,):
            return (Group(tuple(range(topology.size)), {}),)
        if self.group == (HOST,):
            return tuple(Group(host.ranks, {"node_rank": node}) for node, host in enumerate(topology.hosts))
        leaves = topology.factors(self.group)
        spanned = tuple(name for name in leaves if name in self.group)
        fixed = tuple(name for name in leaves if name not in self.group)
        found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for rank in range(topology.size):
            at = topology.coordinates(rank)
            found.setdefault(tuple(at[name] for name in fixed), []).append((tuple(at[name] for name in spanned), rank))
        return tuple(
            Group(tuple(rank for _, rank in sorted(members)), dict(zip(fixed, key, strict=True)))
            for key, members in found.items()
        )

    def owners(self, topology: Topology) -> tuple[int, ...]:
        """The world rank that owns, one for each group; for ``rank="any"`` every rank that may come to own."""
        self.validate(topology)
        if self.rank == "any":
            return tuple(sorted(rank for group in self.groups(topology) for rank in group.members))
        return tuple(sorted(group.members[self.rank] for group in self.groups(topology)))

    def is_owner(self, topology: Topology, coordinates: Mapping[str, int]) -> bool:
        """Whether the process at `coordinates` owns; for ``rank="any"`` whether it may.

        Only what decides the answer has to be given: the group's axes, or others from which they follow.

        Raises:
            UnknownAxisError: a coordinate that decides is missing, or is no axis.
            ScopeError, TopologyError: the scope does not fit the topology, a coordinate is outside its axis.
        """
        self.validate(topology)
        if self.rank == "any":
            topology.complete(coordinates)
            return True
        index, size = self._place_in_group(topology, coordinates)
        return index == self.rank % size

    def group_rank(self, topology: Topology, coordinates: Mapping[str, int]) -> int:
        """The position of the process in its group. Raises as `is_owner`."""
        self.validate(topology)
        return self._place_in_group(topology, coordinates)[0]

    def owner_of(self, topology: Topology, coordinates: Mapping[str, int]) -> int:
        """The world rank that owns for the process at `coordinates`.

        Raises:
            ScopeError: ``rank="any"``, whose owner is only known while the job runs.
            TopologyError: the coordinates do not say which rank it is; for ``"host"`` also when no host runs it.
        """
        self.validate(topology)
        if self.rank == "any":
            raise ScopeError('rank="any" has no owner before one of them claims it')
        rank = topology.rank(coordinates)
        if self.group == (HOST,):
            return topology.host_of(rank).ranks[self.rank]
        if self.group == (WORLD,):
            return self.rank % topology.size
        at = topology.coordinates(rank)
        owner = {name: at[name] for name in topology.factors(self.group)}
        index = self.rank % prod(topology.sizes[name] for name in self.group)
        for name in reversed([name for name in owner if name in self.group]):
            index, owner[name] = divmod(index, topology.sizes[name])
        return topology.rank(owner)

    def identity(self, topology: Topology) -> tuple[str, ...]:
        """The axes the resource exists once for: those the group does not span (none for world and host)."""
        if self.group in ((WORLD,), (HOST,)):
            return ()
        return tuple(name for name in topology.factors(self.group) if name not in self.group)

    def group_of(self, topology: Topology, coordinates: Mapping[str, int]) -> Mapping[str, int]:
        """What tells the group of the process at `coordinates` from the others: `Group.fixed` of its group.

        Raises:
            UnknownAxisError: a coordinate that decides is missing, or is no axis.
            ScopeError, TopologyError: as `is_owner`; for ``"host"`` also when no host runs it.
        """
        self.validate(topology)
        if self.group == (HOST,):
            host = topology.host_of(topology.rank(coordinates))
            return {"node_rank": topology.hosts.index(host)}
        at = topology.complete(coordinates)
        return {name: _look_up(at, name, coordinates) for name in self.identity(topology)}

    def _group_sizes(self, topology: Topology) -> Iterator[tuple[int, str]]:
        if self.group == (WORLD,):
            yield topology.size, "the world"
        elif self.group == (HOST,):
            yield from ((len(host.ranks), f"host {host.name}") for host in topology.hosts)
        else:
            topology.factors(self.group)
            sizes = {name: topology.sizes[name] for name in self.group}
            yield (
                prod(sizes.values()),
                "a group of " + " x ".join(f"{name} {size}" for name, size in sizes.items()),
            )

    def _place_in_group(self, topology: Topology, coordinates: Mapping[str, int]) -> tuple[int, int]:
        if self.group == (WORLD,):
            return topology.rank(coordinates), topology.size
        if self.group == (HOST,):
            rank = topology.rank(coordinates)
            ranks = topology.host_of(rank).ranks
            return ranks.index(rank), len(ranks)
        at = topology.complete(coordinates)
        index, size = 0, 1
        for name in topology.factors(self.group):
            if name in self.group:
                index = index * topology.sizes[name] + _look_up(at, name, coordinates)
                size *= topology.sizes[name]
        return index, size


class Gate:
    """A condition written by hand, as it stands in today's code: ``Gate({"tp": 0})`` is ``if tp_rank == 0``.

    Axes that are not named stay free, so a gate promises nothing about how many ranks pass it: that is what `check`
    finds out. A term is an axis, ``rank`` or ``local_rank``, and an index or a list of those let through (negative
    from the end). ``Gate({})`` lets every rank through.

    Raises:
        ScopeError: an index that is not an integer.
    """

    __slots__ = ("terms",)
    terms: Mapping[str, tuple[int, ...]]

    def __init__(self, terms: Mapping[str, int | Sequence[int]]) -> None:
        fixed = {name: tuple(value) if isinstance(value, Sequence) else (value,) for name, value in terms.items()}
        for name, values in fixed.items():
            for value in values:
                if isinstance(value, bool) or not isinstance(value, int):
                    raise ScopeError(f"{name} = {value!r}: a gate compares {name} with integers")
        object.__setattr__(self, "terms", MappingProxyType(fixed))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Gate is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Gate is immutable: cannot delete {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Gate, (dict(self.terms),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gate) and dict(self.terms) == dict(other.terms)

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __repr__(self) -> str:
        return (
            f"Gate({ {name: values[0] if len(values) == 1 else list(values) for name, values in self.terms.items()} })"
        )

    def __str__(self) -> str:
        if not self.terms:
            return "every rank"
        return ", ".join(
            f"{name} = {values[0] if len(values) == 1 else list(values)}" for name, values in self.terms.items()
        )

    def validate(self, topology: Topology) -> None:
        """Say no to a term that no rank can meet.

        Raises:
            UnknownAxisError: a term names an axis that is not declared.
            ScopeError: an index outside its axis, or no index at all.
        """
        for name, values in self.terms.items():
            size = self._size(topology, name)
            if not values:
                raise ScopeError(f"{name} = [] lets nobody through: give at least one index")
            for value in values:
                if not -size <= value < size:
                    last = f"its last rank is {size - 1}, or -1" if size > 1 else "its only rank is 0"
                    raise ScopeError(f"{name} = {value} lets nobody through: {name} has size {size}, {last}")

    def owners(self, topology: Topology) -> tuple[int, ...]:
        """The world ranks that pass, in order; terms outside their axis let nobody through.

        A rank that is placed several times passes if one of its processes does.

        Raises:
            UnknownAxisError: a term names an axis that is not declared.
        """
        for name in self.terms:
            self._size(topology, name)
        local: dict[int, list[tuple[int, int]]] = {}
        for host in topology.hosts:
            for index, rank in enumerate(host.ranks):
                local.setdefault(rank, []).append((index, len(host.ranks)))
        return tuple(
            rank
            for rank in range(topology.size)
            if any(
                self._passes(topology, {**topology.coordinates(rank), "rank": rank}, place)
                for place in local.get(rank, [None])
            )
        )

    def is_owner(self, topology: Topology, coordinates: Mapping[str, int]) -> bool:
        """Whether the process at `coordinates` passes.

        Raises:
            UnknownAxisError: a term's coordinate is missing, or a term or coordinate is no axis.
            TopologyError: a term is ``rank`` or ``local_rank``, and the coordinates or the placement do not say it.
        """
        at = topology.complete(coordinates)
        local = None
        if "rank" in self.terms or LOCAL_RANK in self.terms:
            at["rank"] = topology.rank(coordinates)
        if LOCAL_RANK in self.terms:
            ranks = topology.host_of(at["rank"]).ranks
            local = ranks.index(at["rank"]), len(ranks)
        for name in self.terms:
            if name != LOCAL_RANK:
                self._size(topology, name)
                _look_up(at, name, coordinates)
        return self._passes(topology, at, local)

    def _size(self, topology: Topology, name: str) -> int:
        if name == "rank":
            return topology.size
        if name == LOCAL_RANK:
            return max((len(host.ranks) for host in topology.hosts), default=0)
        topology.check_names((name,))
        return topology.sizes[name]

    def _passes(self, topology: Topology, at: Mapping[str, int], local: tuple[int, int] | None) -> bool:
        for name, values in self.terms.items():
            if name == LOCAL_RANK:
                if local is None:
                    return False
                index, size = local
            else:
                index, size = at[name], self._size(topology, name)
            if index not in {value % size for value in values if -size <= value < size}:
                return False
        return True


def _look_up(at: Mapping[str, int], name: str, given: Mapping[str, int]) -> int:
    try:
        return at[name]
    except KeyError:
        raise UnknownAxisError(
            f"the coordinate on axis {name} decides who owns and is not known; given were {dict(given) or 'none'}",
            name,
            tuple(at),
        ) from None
