"""Which owners take one address on one host, found without comparing every binding with every other."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from rankbind.check.plan import Binding
from rankbind.endpoint import normal_path, overlaps


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


def clashes(bindings: Iterable[Binding]) -> Iterator[Clash]:
    """All that clash and are not meant to share, folded: the bindings that come out alike are compared once."""
    alike: dict[Hashable, list[Binding]] = {}
    for b in bindings:
        if b.endpoint is None or not b.endpoint.kernel_picks:
            alike.setdefault((b.resource.name, id(b.address), _reach(b), b.text, b.election), []).append(b)
    ports: dict[int, list[list[Binding]]] = {}
    places: dict[Hashable, list[list[Binding]]] = {}
    for found in alike.values():
        endpoint = found[0].endpoint
        if endpoint is not None and endpoint.transport == "tcp":
            ports.setdefault(found[0].node, []).append(found)
        else:
            places.setdefault(_place(found[0]), []).append(found)
    for on_host in ports.values():
        yield from (clash for one, other in _sweep(on_host) for clash in _meet(one, other))
    for at_place in places.values():
        for index, other in enumerate(at_place):
            yield from (clash for one in at_place[: index + 1] for clash in _meet(one, other))


def _reach(binding: Binding) -> int | None:
    """The host beyond which nobody sees the address; None for one that all hosts share."""
    return binding.node if binding.address.scope == "host" else None


def _place(binding: Binding) -> Hashable:
    """What two bindings other than tcp must have in common to meet. A file and a socket's path are one thing."""
    if binding.endpoint is None:
        if binding.address.kind == "path":
            return "path", normal_path(binding.text)
        return "name", binding.resource.name, binding.text
    if binding.endpoint.file is not None:
        return "path", binding.endpoint.file
    return binding.endpoint.transport, binding.endpoint.path


def _sweep(alike: list[list[Binding]]) -> Iterator[tuple[list[Binding], list[Binding]]]:
    """Pairs of tcp addresses of one host that share a port, each with itself too, from low ports to high."""
    waiting: list[tuple[int, list[Binding]]] = []
    for first, last, found in sorted(
        ((b.endpoint.first, b.endpoint.last, found) for found in alike if (b := found[0]).endpoint),
        key=lambda item: item[:2],
    ):
        waiting = [item for item in waiting if item[0] >= first]
        yield from ((other, found) for _, other in waiting)
        yield found, found
        waiting.append((last, found))


def _meet(one: list[Binding], other: list[Binding]) -> Iterator[Clash]:
    """The clashes of bindings that are alike with others that are, or with one another."""
    a, b = one[0], other[0]
    if _meant(a, b) or (a.node != b.node and None not in (_reach(a), _reach(b))):
        return
    if a.endpoint and b.endpoint and not overlaps(a.endpoint, b.endpoint, same_process=True):
        return
    silent = not a.endpoint or not b.endpoint or a.endpoint.file is not None
    in_process = a.endpoint is not None and a.endpoint.transport == "inproc"
    if in_process or (a.resource is b.resource and a.election is not None and a.election == b.election):
        # An inproc name stays in its process, and an election has one winner: only two addresses of one rank can meet.
        if one is not other:
            mine, theirs = _by_rank(one), _by_rank(other)
            for rank in mine.keys() & theirs.keys():
                yield Clash(mine[rank], theirs[rank], silent)
    elif one is not other or len(one) > 1:
        yield Clash(one, other, silent)


def _by_rank(bindings: list[Binding]) -> dict[int, list[Binding]]:
    found: dict[int, list[Binding]] = {}
    for binding in bindings:
        found.setdefault(binding.rank, []).append(binding)
    return found


def _meant(a: Binding, b: Binding) -> bool:
    """Whether the two share on purpose.

    SO_REUSEPORT is for ports: with it a second bind of an ipc path takes the path over all the same.
    """
    tcp = all(x.endpoint is not None and x.endpoint.transport == "tcp" for x in (a, b))
    if a.resource is not b.resource:
        return a.resource.shared == b.resource.shared == "reuseport" and tcp
    if a.address is not b.address or a.resource.shared is None:
        return False
    return a.resource.shared == "inherited" or tcp or a.endpoint is None
