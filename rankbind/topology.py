"""Ranks on axes: mixed-radix arithmetic, the same that torch's DeviceMesh does.

The axes are given outermost first, so ``{"pp": 2, "tp": 4}`` places rank 6 at pp 1, tp 2. A `View` cuts some of
the axes another way, as SGLang cuts tp into attn_dp x attn_cp x attn_tp for its attention layers. Hosts hold ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from types import MappingProxyType
from typing import Any

from rankbind import layout, mesh
from rankbind.errors import ScopeError, TopologyError, UnknownAxisError

MAX_RANKS = 1 << 20
"""The largest world size accepted: everything rankbind proves, it proves rank by rank."""

RESERVED_NAMES = frozenset(
    {"rank", "local_rank", "node_rank", "world", "host", "any", "world_size", "local_world_size", "nnodes"}
)
"""Names with a meaning of their own in scopes, gates and templates; no axis may have one. An axis may not end in
``_size`` either, because ``{tp_size}`` in a template is the size of axis tp."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace (a machine, or a pod with its own network) and its ranks in local-rank order."""

    name: str
    ranks: tuple[int, ...]


class View:
    """Another factorisation of one axis, or of several taken together.

    ``View(of="tp", axes={"attn_dp": 2, "attn_tp": 4})`` cuts tp 8; ``View(of=("dp", "tp"), axes={"ep": 16})`` joins
    two axes. The product of the sizes must be that of the axes in ``of``, whose order (outermost first) is the order in
    which their ranks are counted; they need not be neighbours.
    """

    __slots__ = ("axes", "of")
    of: tuple[str, ...]
    axes: Mapping[str, int]

    def __init__(self, of: str | Sequence[str], axes: Mapping[str, int]) -> None:
        object.__setattr__(self, "of", (of,) if isinstance(of, str) else tuple(of))
        object.__setattr__(self, "axes", MappingProxyType(dict(axes)))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"View is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"View is immutable: cannot delete {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self.of, dict(self.axes))

    def _key(self) -> tuple[Any, ...]:
        return self.of, tuple(self.axes.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"View(of={self.of!r}, axes={dict(self.axes)!r})"


class Topology:
    """The ranks of a job, where each stands on every axis, and on which host.

    Args:
        axes: size of each axis, outermost first; ``rank = (pp * tp_size) + tp`` for ``{"pp": ..., "tp": ...}``.
        views: other factorisations, by name. A view may cut the axes of the topology or the axes of one earlier view.
        hosts: ``n`` for n hosts with equal blocks of consecutive ranks (default 1); a sequence of block sizes for
            uneven ones; or a mapping from host name to the ranks it runs, in local-rank order.

    Raises:
        TopologyError: a size below 1, a name used twice or reserved, a view whose sizes do not multiply to the axes it
            cuts, more than `MAX_RANKS` ranks, ranks that no host can hold. The message names the axis. A placement
            that leaves a rank out or places it twice is kept: see `unplaced` and `placed_twice`.
    """

    __slots__ = ("_axes", "_home", "_hosts", "_sizes", "_strides", "_views")
    _axes: Mapping[str, int]
    _views: Mapping[str, View]
    _sizes: Mapping[str, int]
    _strides: Mapping[str, int]
    _home: Mapping[str, str]
    _hosts: tuple[Host, ...]

    def __init__(
        self,
        axes: Mapping[str, int],
        views: Mapping[str, View] | None = None,
        hosts: int | Sequence[int] | Mapping[str, Iterable[int]] = 1,
    ) -> None:
        sizes: dict[str, int] = {}
        for name, size in axes.items():
            _check_axis(name, size, sizes)
            sizes[name] = size
        if prod(sizes.values()) > MAX_RANKS:
            raise TopologyError(
                f"the axes {_product(axes)} make {_number(prod(sizes.values()))} ranks; "
                f"rankbind handles up to {MAX_RANKS}"
            )
        strides: dict[str, int] = {}
        stride = 1
        for name, size in reversed(list(axes.items())):
            strides[name] = stride
            stride *= size
        home: dict[str, str] = {}
        for view_name, view in (views or {}).items():
            _check_view(view_name, view, sizes, home)
            for name, size in view.axes.items():
                sizes[name] = size
                home[name] = view_name
        set_ = object.__setattr__
        set_(self, "_axes", MappingProxyType(dict(axes)))
        set_(self, "_views", MappingProxyType(dict(views or {})))
        set_(self, "_sizes", MappingProxyType(sizes))
        set_(self, "_strides", MappingProxyType(strides))
        set_(self, "_home", MappingProxyType(home))
        set_(self, "_hosts", _place(self.size, hosts))

    @classmethod
    def from_groups(
        cls, groups: layout.Groups, hosts: int | Sequence[int] | Mapping[str, Iterable[int]] = 1
    ) -> Topology:
        """The topology in which ``Scope(name).groups`` are `groups`, for each name.

        ``{"tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]]}`` is ``Topology({"pp": 2, "tp": 2})``. The earliest names
        that make up the world become its axes, the others views of them, together where they fit into one.

        Args:
            groups: by axis, all its groups, each in the order in which the axis counts.
            hosts: as in `Topology`.

        Raises:
            TopologyError: a rank is missing or in two groups of an axis, or no axes explain the groups. Then the
                message names two ranks: where one of them would have to be elsewhere, or which no group tells apart.
        """
        return cls.from_layout(layout.explain(groups, layout.check_complete(groups)), hosts)

    @classmethod
    def from_device_mesh(
        cls,
        device_mesh: Any,
        names: Sequence[str] | None = None,
        hosts: int | Sequence[int] | Mapping[str, Iterable[int]] | None = None,
    ) -> Topology:
        """The topology of a ``torch.distributed`` DeviceMesh of the whole world; of a part, that of the mesh it is of.

        Its dimensions become the axes, in the order in which they count ranks, and those that were flattened or
        unflattened so far become views. Nothing is communicated.

        Args:
            device_mesh: with ``mesh_dim_names``; what was sliced, flattened or unflattened from one serves as well.
            names: for the dimensions of a mesh that has no names, or others than these.
            hosts: as in `Topology`. Left out, they are not known: `rankbind.init` takes the launcher's.

        Raises:
            TopologyError: there are no names, a rank of the job has no place in the mesh, or no axes explain it. The
                message names the ranks.
        """
        found = mesh.read(device_mesh, names)
        return cls.from_layout(layout.explain(found.groups, found.world), {} if hosts is None else hosts)

    @classmethod
    def from_process_groups(
        cls,
        process_groups: Mapping[str, Any],
        hosts: int | Sequence[int] | Mapping[str, Iterable[int]] | None = None,
        timeout: float = mesh.TIMEOUT,
    ) -> Topology:
        """The topology of a job from the ``torch.distributed`` process groups that each rank is in.

        Every rank has to call it, with the same names: they tell each other by way of the job's store. Where it fails,
        it fails on every rank.

        Args:
            process_groups: by axis, the group that this process is in; see `from_groups`.
            hosts: as in `Topology`. Left out, they are the network namespaces that the ranks are found in.
            timeout: seconds that the slowest rank may take to call it.

        Raises:
            TopologyError: torch.distributed is not initialised, a rank does not call, the ranks do not agree, or as
                `from_groups`.
        """
        groups, found = mesh.gather_groups(process_groups, timeout)
        return cls.from_groups(groups, found if hosts is None else hosts)

    @classmethod
    def from_layout(cls, found: layout.Layout, hosts: int | Sequence[int] | Mapping[str, Iterable[int]]) -> Topology:
        """The topology with the axes and views of a `layout.Layout`."""
        return cls(found.axes, {name: View(cut.of, cut.axes) for name, cut in found.views.items()}, hosts)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Topology is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Topology is immutable: cannot delete {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Topology, (
            dict(self._axes),
            dict(self._views),
            {host.name: host.ranks for host in self._hosts},
        )

    def _key(self) -> tuple[Any, ...]:
        return tuple(self._axes.items()), tuple(self._views.items()), self._hosts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        views = f", views={dict(self._views)!r}" if self._views else ""
        hosts = (
            f", hosts={{{', '.join(f'{h.name!r}: {len(h.ranks)} ranks' for h in self._hosts)}}}"
            if len(self._hosts) > 1
            else ""
        )
        return f"Topology({dict(self._axes)!r}{views}{hosts})"

    @property
    def axes(self) -> Mapping[str, int]:
        """Size of each axis, outermost first, without the views' axes."""
        return self._axes

    @property
    def views(self) -> Mapping[str, View]:
        """The views by name."""
        return self._views

    @property
    def sizes(self) -> Mapping[str, int]:
        """Size of every axis that has a name, the views' axes included."""
        return self._sizes

    @property
    def size(self) -> int:
        """How many ranks there are: torch's world size."""
        return prod(self._axes.values())

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts, in order; a host's index is its node rank."""
        return self._hosts

    def coordinates(self, rank: int) -> dict[str, int]:
        """Index of `rank` on every axis, the views' axes included.

        Raises:
            TopologyError: there is no such rank.
        """
        if not 0 <= rank < self.size:
            raise TopologyError(
                f"rank {rank} does not exist: the topology has ranks 0..{self.size - 1} ({_product(self._axes)})"
            )
        found = {name: rank // self._strides[name] % size for name, size in self._axes.items()}
        for view in self._views.values():
            _cut(view, found, self._sizes)
        return found

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank at `coordinates`: all the axes, or any mixture with views' axes (or ``rank``) that decides it.

        Raises:
            UnknownAxisError: a name is no axis of this topology.
            TopologyError: an index outside its axis, indices that contradict each other, or too few of them.
        """
        known = self.complete(coordinates)
        missing = [name for name in self._axes if name not in known]
        if missing:
            raise TopologyError(f"coordinates {dict(coordinates)} do not say which {', '.join(missing)}", missing[0])
        return sum(known[name] * stride for name, stride in self._strides.items())

    def complete(self, coordinates: Mapping[str, int]) -> dict[str, int]:
        """`coordinates` and everything that follows from them: attn_tp from tp, tp from all axes of a view of it.

        Raises: as `rank`, but too few coordinates are no error.
        """
        known: dict[str, int] = {}
        for name, index in coordinates.items():
            if name == "rank":
                for axis, value in self.coordinates(index).items():
                    _agree(known, axis, value, coordinates)
                continue
            self.check_names((name,))
            if not 0 <= index < self._sizes[name]:
                raise TopologyError(
                    f"{name} {index} is outside axis {name}, which has indices 0..{self._sizes[name] - 1}",
                    name,
                )
            _agree(known, name, index, coordinates)
        before = -1
        while len(known) != before:
            before = len(known)
            for view in self._views.values():
                for whole, parts in ((view.of, tuple(view.axes)), (tuple(view.axes), view.of)):
                    if all(name in known for name in whole):
                        flat = _flatten(whole, known, self._sizes)
                        for name, index in _split(flat, parts, self._sizes):
                            _agree(known, name, index, coordinates)
        return known

    def check_names(self, names: Iterable[str]) -> None:
        """Raise `UnknownAxisError` for the first of `names` that is no axis, with the nearest name there is."""
        for name in names:
            if name not in self._sizes:
                near = nearest(name, self._sizes)
                hint = f"; did you mean {near}?" if near else f"; the axes are {', '.join(self._sizes) or 'none'}"
                raise UnknownAxisError(f"unknown axis {name!r}{hint}", name, tuple(self._sizes))

    def factors(self, names: Iterable[str]) -> tuple[str, ...]:
        """A complete factorisation of the ranks that has all of `names` in it, outermost first.

        Raises:
            UnknownAxisError: a name is no axis.
            ScopeError: the names cut one axis in two ways (attn_tp and moe_ep), or name an axis and a part of it.
        """
        wanted = tuple(names)
        self.check_names(wanted)
        chosen: set[str] = set()
        for name in wanted:
            while name in self._home:
                chosen.add(self._home[name])
                name = self._views[self._home[name]].of[0]
        leaves = list(self._axes)
        for view_name, view in self._views.items():
            if view_name not in chosen:
                continue
            lost = [name for name in view.of if name not in leaves]
            if lost:
                raise ScopeError(f"{' and '.join(wanted)} cut axis {lost[0]} in two ways: take the axes of one view")
            at = leaves.index(view.of[0])
            leaves[at : at + 1] = view.axes
            leaves = [name for name in leaves if name not in view.of]
        for name in wanted:
            if name not in leaves:
                raise ScopeError(f"{' and '.join(wanted)} overlap: {name} is already cut by one of the others")
        return tuple(leaves)

    def hosts_of(self, rank: int) -> tuple[Host, ...]:
        """Every host that runs `rank`: one in a sound placement."""
        return tuple(host for host in self._hosts if rank in host.ranks)

    def host_of(self, rank: int) -> Host:
        """The host that runs `rank`.

        Raises:
            TopologyError: no host runs it, or several do.
        """
        found = self.hosts_of(rank)
        if len(found) != 1:
            names = ", ".join(host.name for host in found)
            raise TopologyError(f"rank {rank} is placed on {f'several hosts ({names})' if found else 'no host'}")
        return found[0]

    @property
    def unplaced(self) -> tuple[int, ...]:
        """Ranks that no host runs."""
        placed = {rank for host in self._hosts for rank in host.ranks}
        return tuple(rank for rank in range(self.size) if rank not in placed)

    @property
    def placed_twice(self) -> Mapping[int, tuple[Host, ...]]:
        """Ranks that more than one process runs, with the host of each such process."""
        runs: dict[int, list[Host]] = {}
        for host in self._hosts:
            for rank in host.ranks:
                runs.setdefault(rank, []).append(host)
        return {rank: tuple(where) for rank, where in sorted(runs.items()) if len(where) > 1}


def _check_axis(name: str, size: int, taken: Mapping[str, int]) -> None:
    if not _NAME.match(name):
        raise TopologyError(
            f"axis name {name!r} must be letters, digits and underscores, and not begin with a digit", name
        )
    if name in RESERVED_NAMES or name.endswith("_size"):
        raise TopologyError(
            f"axis name {name!r} is reserved: it has a meaning of its own in scopes and templates", name
        )
    if name in taken:
        raise TopologyError(f"axis {name} is declared twice", name)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise TopologyError(f"axis {name} needs a size of at least 1, not {size!r}", name)


def _check_view(view_name: str, view: View, sizes: Mapping[str, int], home: Mapping[str, str]) -> None:
    if not view.of:
        raise TopologyError(f"view {view_name} cuts no axis: name one in 'of'")
    for name in view.of:
        if name not in sizes:
            near = nearest(name, sizes)
            hint = f"did you mean {near}?" if near else f"the axes are {', '.join(sizes) or 'none'}"
            raise TopologyError(f"view {view_name} is of unknown axis {name!r}; {hint}", name)
    twice = next((name for at, name in enumerate(view.of) if name in view.of[:at]), None)
    if twice:
        raise TopologyError(f"view {view_name} names axis {twice} twice", twice)
    if len({home.get(name) for name in view.of}) > 1:
        raise TopologyError(f"view {view_name} mixes axes of different views: {', '.join(view.of)}", view.of[0])
    taken = dict(sizes)
    for name, size in view.axes.items():
        _check_axis(name, size, taken)
        taken[name] = size
    whole, parts = prod(sizes[name] for name in view.of), prod(view.axes.values())
    if whole != parts:
        raise TopologyError(
            f"view {view_name} does not divide {_product({name: sizes[name] for name in view.of})}: "
            f"{_product(view.axes)} makes {_number(parts)}, not {whole}",
            view.of[0],
        )


def _place(size: int, hosts: int | Sequence[int] | Mapping[str, Iterable[int]]) -> tuple[Host, ...]:
    if isinstance(hosts, Mapping):
        placed = tuple(Host(name, tuple(ranks)) for name, ranks in hosts.items())
        for host in placed:
            for rank in host.ranks:
                if not 0 <= rank < size:
                    raise TopologyError(f"host {host.name} runs rank {rank}, but there are only ranks 0..{size - 1}")
        return placed
    if isinstance(hosts, int):
        if hosts < 1:
            raise TopologyError(f"a job needs at least 1 host, not {hosts}")
        if size % hosts:
            raise TopologyError(f"{size} ranks do not divide over {hosts} hosts: say how many ranks each host runs")
        blocks: Sequence[int] = [size // hosts] * hosts
    else:
        blocks = hosts
        if any(block < 0 for block in blocks):
            raise TopologyError("a host cannot run a negative number of ranks")
        if sum(blocks) > size:
            raise TopologyError(f"the hosts run {sum(blocks)} ranks, but the topology has {size}")
    return tuple(Host(str(node), tuple(ranks)) for node, ranks in enumerate(_blocks(blocks)))


def _blocks(sizes: Sequence[int]) -> Iterator[range]:
    start = 0
    for size in sizes:
        yield range(start, start + size)
        start += size


def _flatten(names: Iterable[str], at: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    flat = 0
    for name in names:
        flat = flat * sizes[name] + at[name]
    return flat


def _split(flat: int, names: Sequence[str], sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for name in reversed(names):
        yield name, flat % sizes[name]
        flat //= sizes[name]


def _cut(view: View, at: dict[str, int], sizes: Mapping[str, int]) -> None:
    cut = dict(_split(_flatten(view.of, at, sizes), tuple(view.axes), sizes))
    at.update((name, cut[name]) for name in view.axes)


def _agree(known: dict[str, int], name: str, index: int, given: Mapping[str, int]) -> None:
    if known.setdefault(name, index) != index:
        raise TopologyError(
            f"coordinates {dict(given)} contradict each other: {name} is both {known[name]} and {index}", name
        )


def _number(value: int) -> str:
    # Python refuses to write integers of more than some thousand digits.
    return str(value) if value < 1 << 64 else "far more"


def _product(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in sizes.items()) or "(no axes)"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Which of `known` is meant by `name`, if one seems to be: engines call the coordinate on tp ``tp_rank``."""
    names = list(known)
    short = name.lower().removesuffix("_rank").removesuffix("_index")
    near = [short] if short in names else get_close_matches(name, names, 1)
    return near[0] if near else None
