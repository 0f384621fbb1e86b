"""Which owners take one address on one host, found without comparing every binding with every other."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement, product

from rankbind.check.plan import Binding
from rankbind.endpoint import MAX_PORT, Endpoint, normal_path, overlaps


@dataclass(frozen=True, slots=True)
class Clash:
    """Bindings that are alike and get in the way of others that are, or, where both sides are one, of one another.

    `silent` tells whether the kernel says nothing about it.
    """

    one: Sequence[Binding]
    other: Sequence[Binding]
    silent: bool

    @property
    def a(self) -> Binding:
        """The first of the first pair."""
        return self.one[0]

    @property
    def b(self) -> Binding:
        """The second of the first pair."""
        return self.other[1 if self.one is self.other else 0]

    @property
    def count(self) -> int:
        """How many pairs it stands for."""
        if self.one is self.other:
            return len(self.one) * (len(self.one) - 1) // 2
        return len(self.one) * len(self.other)

    def pairs(self) -> Iterator[tuple[Binding, Binding]]:
        """All of them."""
        return combinations(self.one, 2) if self.one is self.other else product(self.one, self.other)

    def swapped(self) -> Clash:
        """The same, told from the other side."""
        return self if self.one is self.other else Clash(self.other, self.one, self.silent)


def clashes(bindings: Iterable[Binding], *, between: bool = False) -> Iterator[Clash]:
    """All that clash and are not meant to share, folded: the bindings that come out alike are compared once.

    Args:
        between: only those of two different deployments.
    """
    ports: dict[str, list[Sequence[Binding]]] = {}
    places: dict[Hashable, list[Sequence[Binding]]] = {}
    for found in alike(bindings):
        endpoint = found[0].endpoint
        if endpoint is not None and endpoint.transport == "tcp":
            ports.setdefault(found[0].host, []).append(found)
        else:
            places.setdefault(_place(found[0]), []).append(found)
    pairs = (
        *(pair for on_host in ports.values() for pair in _sweep(on_host)),
        *(pair for at in places.values() for pair in combinations_with_replacement(at, 2)),
    )
    for one, other in pairs:
        if not between or one[0].deployment != other[0].deployment:
            yield from meet(one, other)


def alike(bindings: Iterable[Binding]) -> Iterable[Sequence[Binding]]:
    """Those of which one can stand for all: they differ in their ranks alone. None that the kernel chooses."""
    found: dict[Hashable, list[Binding]] = {}
    for b in bindings:
        if b.endpoint is None or not b.endpoint.kernel_picks:
            key = b.deployment, b.resource.name, id(b.address), _reach(b), b.text, b.election
            found.setdefault(key, []).append(b)
    return found.values()


def _reach(binding: Binding) -> str | None:
    """The host beyond which nobody sees the address; None for one that all hosts share."""
    return binding.host if binding.address.scope == "host" else None


def _place(binding: Binding) -> Hashable:
    """What two bindings other than tcp must have in common to meet. A file and a socket's path are one thing."""
    if binding.endpoint is None:
        if binding.address.kind == "path":
            return "path", normal_path(binding.text)
        # What a name means belongs to its resource; a device is the same for all.
        return binding.address.kind, binding.resource.name if binding.address.kind == "name" else "", binding.text
    if binding.endpoint.file is not None:
        return "path", binding.endpoint.file
    return binding.endpoint.transport, binding.endpoint.path


def _sweep(found: list[Sequence[Binding]]) -> Iterator[tuple[Sequence[Binding], Sequence[Binding]]]:
    """Pairs of tcp addresses of one host that share a port, each with itself too, from low ports to high."""
    waiting: list[tuple[int, Sequence[Binding]]] = []
    for first, last, other in sorted(
        ((b.endpoint.first, b.endpoint.last, each) for each in found if (b := each[0]).endpoint),
        key=lambda item: item[:2],
    ):
        waiting = [item for item in waiting if item[0] >= first]
        yield from ((one, other) for _, one in waiting)
        yield other, other
        waiting.append((last, other))


def meet(one: Sequence[Binding], other: Sequence[Binding], *, anywhere: bool = False) -> Iterator[Clash]:
    """The clashes of bindings that are alike with others that are, or with one another.

    Args:
        anywhere: whatever their ports: those that would clash if they had one port.
    """
    a, b = one[0], other[0]
    if one is other and len(one) == 1:
        return
    if _meant(a, b) or (a.host != b.host and None not in (_reach(a), _reach(b))):
        return
    if a.endpoint and b.endpoint and not overlaps(*_ports(a.endpoint, b.endpoint, anywhere), same_process=True):
        return
    silent = not a.endpoint or not b.endpoint or a.endpoint.file is not None
    same = a.resource is b.resource and a.deployment == b.deployment
    elected = same and a.election is not None and a.election == b.election
    device = a.address.kind == "device"
    if device and a.deployment == b.deployment:
        # A rank may put several things on its device: only two ranks can meet there.
        if not elected:
            yield from _other_ranks(one, other)
    elif elected or (a.endpoint is not None and a.endpoint.transport == "inproc"):
        # An inproc name stays in its process, and an election has one winner: only two addresses of one rank can meet.
        if one is not other and a.deployment == b.deployment:
            mine, theirs = _by_rank(one), _by_rank(other)
            for rank in mine.keys() & theirs.keys():
                yield Clash(mine[rank], theirs[rank], silent)
    else:
        yield Clash(one, other, silent)


def _ports(a: Endpoint, b: Endpoint, anywhere: bool) -> tuple[Endpoint, Endpoint]:
    if not anywhere:
        return a, b
    return replace(a, first=1, last=MAX_PORT), replace(b, first=1, last=MAX_PORT)


def _other_ranks(one: Sequence[Binding], other: Sequence[Binding]) -> Iterator[Clash]:
    """The pairs of two different ranks."""
    mine, theirs = _by_rank(one), _by_rank(other)
    if mine.keys().isdisjoint(theirs) or (one is other and len(mine) == len(one)):
        yield Clash(one, other, silent=True)
        return
    for rank, bindings in mine.items():
        rest = [b for b in other if b.rank > rank or (b.rank != rank and one is not other)]
        if rest:
            yield Clash(bindings, rest, silent=True)


def _by_rank(bindings: Sequence[Binding]) -> dict[int, list[Binding]]:
    found: dict[int, list[Binding]] = {}
    for binding in bindings:
        found.setdefault(binding.rank, []).append(binding)
    return found


def _meant(a: Binding, b: Binding) -> bool:
    """Whether the two share on purpose, or never meet.

    SO_REUSEPORT is for ports: with it a second bind of an ipc path takes the path over all the same.
    """
    if a.probe or b.probe:
        # A job looks before it binds, and two that look leave nothing behind.
        return a.deployment == b.deployment or a.probe is b.probe
    tcp = all(x.endpoint is not None and x.endpoint.transport == "tcp" for x in (a, b))
    if a.resource is not b.resource or a.deployment != b.deployment:
        return a.resource.shared == b.resource.shared == "reuseport" and tcp
    if a.address is not b.address or a.resource.shared is None:
        return False
    return a.resource.shared == "inherited" or tcp or a.endpoint is None
