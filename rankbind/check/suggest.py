"""The smallest change of ports after which nothing collides: what ``rankbind check --suggest`` says.

A port is moved by its *knob*: the flag, or the number in a file, that says it, with everything that moves one for one
with it. Sets of ports and of distances are integers, one bit each, so that all distances are looked at together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from rankbind.check.clashes import alike, clashes, meet
from rankbind.check.deployments import between, together
from rankbind.check.plan import Binding, Plan
from rankbind.endpoint import MAX_PORT, UNPRIVILEGED_PORT_START, Endpoint
from rankbind.errors import RankbindError
from rankbind.finding import Finding
from rankbind.resource import Address, Resource
from rankbind.source import Span
from rankbind.template import Template

_FEW = 12
"""So many knobs are moved in every way there is; of more, one after the other."""
_STEPS = 4000
"""How many partial answers are looked at before the best that is known is taken."""
_ZERO = 1 << 17
"""The bit that stands for distance 0."""
_STAY = 1 << _ZERO
_DOWN = _STAY - 1


@dataclass(frozen=True, slots=True)
class Knob:
    """Something that a person can turn to move ports.

    Attributes:
        flag: what it is called: ``--port``; ``kv-events.bind`` in a topology file.
        value: the port that it says now.
        moves: the addresses whose ports move with it, one for one: the name of a resource and a role of it (``bind``),
            or one address of several in that role, numbered from 1 (``bind 2``). No address moves with two knobs.
        span: where the value stands; None where it is a default that nobody has written.
    """

    flag: str
    value: int
    moves: frozenset[tuple[str, str]]
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One knob, turned. `deployment`: the number of the plan it belongs to."""

    deployment: int
    knob: Knob
    new: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to change.

    Attributes:
        moves: in the order of the deployments and their knobs; none where nothing has to move.
        left: what of RB5 stays, as no port stands for it (paths, names), no knob moves it, or there is no room.
        exact: whether it is known that nothing smaller will do.
    """

    moves: tuple[Move, ...]
    left: tuple[Finding, ...] = ()
    exact: bool = True

    def lines(self, names: Sequence[str]) -> tuple[str, ...]:
        """``b.sh: --port 30000 -> 30010``, for each move; `names` are those of the deployments."""
        return tuple(
            f"{names[move.deployment]}: {move.knob.flag} "
            f"{move.knob.value}{'' if move.knob.span else ' (the default)'} -> {move.new}"
            for move in self.moves
        )


def suggest(
    plans: Sequence[Plan],
    names: Sequence[str],
    knobs: Sequence[Sequence[Knob]],
    apart: Collection[tuple[int, int]] = (),
) -> Suggestion:
    """Which knobs to turn so that the deployments, and the resources of each, do not collide.

    As few knobs as can be, and of these ways the one with the smallest distances in all. Nothing moves to ports that
    the hosts reserve, need a privilege for, or are said to draw from for outgoing connections, and the first deployment
    stays as it is, wherever that can be had: it is the one that runs already.

    Args:
        knobs: of each plan.
        apart: the numbers, smaller first, of those that never run at the same time.
    """
    board = _Board(plans, knobs, apart)
    shifts, exact = board.answer()
    moves = tuple(
        Move(board.owner[at], board.knobs[at], board.knobs[at].value + by) for at, by in sorted(shifts.items()) if by
    )
    moved = [board.moved(plan, number, shifts) for number, plan in enumerate(plans)]
    return Suggestion(moves, between(moved, names, apart), exact)


def knobs(plan: Plan) -> tuple[Knob, ...]:
    """Those of a topology file: the number in each address that all its ports move with, one for one."""
    found = []
    for resource in plan.job.resources:
        for address in resource.addresses:
            ports = [b for b in plan.bindings if b.address is address and b.resource is resource]
            if not any(b.endpoint and b.endpoint.transport == "tcp" and not b.endpoint.kernel_picks for b in ports):
                continue
            same = [other for other in resource.addresses if other.role == address.role]
            number = same.index(address) + 1
            base = _base(plan, resource, address, ports)
            if base is not None:
                value, column, width = base
                path = plan.declaration.address_path(resource, address)
                span = plan.declaration.document.inside(path, column, width)
                flag = f"{resource.name}.{address.role}" + (f"[{number - 1}]" if len(same) > 1 else "")
                found.append(Knob(flag, value, frozenset({(resource.name, f"{address.role} {number}")}), span))
    return tuple(found)


def _base(plan: Plan, resource: Resource, address: Address, ports: Sequence[Binding]) -> tuple[int, int, int] | None:
    """The number to change, its column and width: the largest after the host whose change all ports follow.

    A range has two; its last port has to be written anew as well, so that only a range within one pair of braces, or of
    two literal numbers, is not moved by one number.
    """
    text = address.template.text
    found = []
    for start, stop in _numbers(text, text.rfind(":") + 1):
        value = int(text[start:stop])
        template = Template(f"{text[:start]}{value + 1}{text[stop:]}")
        if all(_follows(plan, resource, b, template) for b in ports):
            found.append((value, start, stop - start))
    return max(found, default=None)


def _follows(plan: Plan, resource: Resource, binding: Binding, template: Template) -> bool:
    before = binding.endpoint
    if before is None:
        return False
    try:
        after = Endpoint.parse(template.render(plan.job.variables(binding.rank, binding.node)))
    except RankbindError:
        return False
    return (after.host, after.first, after.last) == (before.host, before.first + 1, before.last + 1)


def _numbers(text: str, start: int) -> Iterator[tuple[int, int]]:
    at = start
    while at < len(text):
        stop = at
        while stop < len(text) and text[stop].isdecimal():
            stop += 1
        if stop > at and not (at > start and (text[at - 1].isalnum() or text[at - 1] == "_")):
            yield at, stop
        at = max(stop, at + 1)


@dataclass(slots=True, eq=False)
class _Piece:
    """Bindings that are alike.

    Attributes:
        knob: the one that moves them, if any.
        avoid: ports that they had better not move to.
        kind: what decides, apart from the ports, whether they clash with those of another resource.
    """

    bindings: Sequence[Binding]
    first: int
    last: int
    knob: int | None
    avoid: tuple[tuple[int, int], ...] = ()

    host: str = field(init=False)
    deployment: int = field(init=False)
    kind: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        b = self.bindings[0]
        assert b.endpoint is not None
        self.host, self.deployment = b.host, b.deployment
        self.kind = b.endpoint.host, b.endpoint.ipv6, b.endpoint.v6only, b.resource.shared, b.probe

    def at(self, by: int) -> _Piece:
        """The same at another place."""
        return replace(self, first=self.first + by, last=self.last + by) if by else self


class _Board:
    """All tcp addresses of all deployments, by host, and the knobs that move them.

    Attributes:
        of: the pieces that each knob moves.
        clashing: the knobs of those that clash as it is, where turning them takes the two apart.
    """

    def __init__(
        self, plans: Sequence[Plan], knobs: Sequence[Sequence[Knob]], apart: Collection[tuple[int, int]]
    ) -> None:
        self.apart = apart
        self.knobs = [knob for mine in knobs for knob in mine]
        self.owner = [number for number, mine in enumerate(knobs) for _ in mine]
        self.moved_by: dict[tuple[int, int], int] = {}
        for at, knob in enumerate(self.knobs):
            for address in _addresses(plans[self.owner[at]], knob):
                self.moved_by.setdefault((self.owner[at], id(address)), at)
        self.hosts: dict[str, list[_Piece]] = {}
        self.of: list[list[_Piece]] = [[] for _ in self.knobs]
        for bindings in alike(together(plans)):
            b = bindings[0]
            if b.endpoint is None or b.endpoint.transport != "tcp" or b.endpoint.last > MAX_PORT:
                continue
            mover = self.knob_of(b)
            avoid = _avoided(plans[b.deployment], b.endpoint)
            piece = _Piece(bindings, b.endpoint.first, b.endpoint.last, mover, avoid)
            self.hosts.setdefault(b.host, []).append(piece)
            if mover is not None:
                self.of[mover].append(piece)
        self._rivals: dict[tuple[object, ...], bool] = {}
        pieces = (piece for on_host in self.hosts.values() for piece in on_host)
        met = clashes(b for piece in pieces for b in piece.bindings)
        movers = {
            (self.knob_of(clash.a), self.knob_of(clash.b))
            for clash in met
            if not self.never_together(clash.a.deployment, clash.b.deployment)
        }
        # Two that nothing moves, or one thing, stay together whatever is turned.
        self.clashing = {(one, other) for one, other in movers if one != other}

    def knob_of(self, binding: Binding, number: int | None = None) -> int | None:
        """The knob that moves a binding; `number`: of its deployment, where it does not say so itself."""
        return self.moved_by.get((binding.deployment if number is None else number, id(binding.address)))

    def never_together(self, one: int, other: int) -> bool:
        """Whether two deployments never run at the same time."""
        return (min(one, other), max(one, other)) in self.apart

    def rivals(self, a: _Piece, b: _Piece) -> bool:
        """Whether they would clash if they had one port."""
        x, y = a.bindings[0], b.bindings[0]
        if self.never_together(x.deployment, y.deployment):
            return False
        same = x.deployment == y.deployment
        if same and x.resource is y.resource:
            return any(meet(a.bindings, b.bindings, anywhere=True))
        key = (same, *a.kind, *b.kind)
        if key not in self._rivals:
            self._rivals[key] = any(meet(a.bindings, b.bindings, anywhere=True))
        return self._rivals[key]

    # Distances

    def allowed(self, knob: int, *, careful: bool) -> int:
        """The distances at which all ports of a knob are ports, and none that are to be left alone."""
        lowest = max((1 - piece.first for piece in self.of[knob]), default=0)
        highest = min((MAX_PORT - piece.last for piece in self.of[knob]), default=0)
        if lowest > highest:
            return _STAY
        found = _run(lowest, highest)
        if careful:
            for piece in self.of[knob]:
                for first, last in piece.avoid:
                    found &= ~_run(first - piece.last, last - piece.first)
        return found | _STAY

    def forbidden(self, knob: int, others: _Taken) -> int:
        """The distances at which a knob's pieces meet one of `others`, which stay."""
        found = 0
        taken: dict[tuple[object, ...], int] = {}
        for piece in self.of[knob]:
            where = piece.host, piece.kind
            if where not in taken:
                taken[where] = others.ports(piece, self.rivals)
            found |= _met(taken[where], piece.first, piece.last)
            own = others.own(piece.host, piece.deployment)
            for other in own:
                if other.knob != knob and self.rivals(piece, other):
                    found |= _run(other.first - piece.last, other.last - piece.first)
        return found

    def between(self, one: int, other: int) -> int:
        """The differences, distance of `other` less that of `one`, at which the two meet."""
        runs = [
            (a.first - b.last, a.last - b.first)
            for a in self.of[one]
            for b in self.of[other]
            if a.host == b.host and self.rivals(a, b)
        ]
        found = 0
        for low, high in runs:
            found |= _run(low, high)
        return found

    # Answers

    def answer(self) -> tuple[dict[int, int], bool]:
        """How far to move each knob that has to move, and whether nothing smaller will do."""
        if not self.clashing:
            return {}, True
        for careful in (True, False):
            for least in (1, 0):
                free = [at for at, number in enumerate(self.owner) if number >= least]
                found, exact = self.solve(free, careful=careful)
                if found is not None:
                    return found, exact
        return {}, False

    def solve(self, free: Sequence[int], *, careful: bool) -> tuple[dict[int, int] | None, bool]:
        """The same with the knobs that are `free`; None: there is no way."""
        chosen = set(free)
        if any(one not in chosen and other not in chosen for one, other in self.clashing):
            return None, True
        if len(free) > _FEW:
            # To turn more knobs than those would not help, unless they have no room.
            hot = {at for pair in self.clashing for at in pair}
            free = [at for at in free if at in hot]
        if len(free) > _FEW:
            return self.one_by_one(free, careful=careful), False
        chosen = set(free)
        fixed = _Taken(p for pieces in self.hosts.values() for p in pieces if p.knob not in chosen)
        domains = [self.allowed(at, careful=careful) & ~self.forbidden(at, fixed) for at in free]
        pairs = combinations(range(len(free)), 2)
        apart = {(one, other): self.between(free[one], free[other]) for one, other in pairs}
        search = _Search(domains, {pair: bits for pair, bits in apart.items() if bits})
        search.run()
        exact = search.steps < _STEPS
        if search.best is not None:
            return dict(zip(free, search.best, strict=True)), exact
        return (None, True) if exact else (self.one_by_one(free, careful=careful), False)

    def one_by_one(self, free: Sequence[int], *, careful: bool) -> dict[int, int] | None:
        """Each that is in the way of those before it, or of those that stay, to the nearest room there is."""
        shifts: dict[int, int] = {}
        waiting = set(free)
        standing = [piece for pieces in self.hosts.values() for piece in pieces]
        everyone, settled = _Taken(standing), _Taken(piece for piece in standing if piece.knob not in waiting)
        for at in free:
            waiting.discard(at)
            domain = self.allowed(at, careful=careful)
            here = domain & ~self.forbidden(at, settled)
            if not here & _STAY:
                # Those that wait will make room themselves, but should not be given more to do.
                by = _nearest(here & ~self.forbidden(at, everyone) or here)
                if by is None:
                    return None
                shifts[at] = by
            for piece in self.of[at]:
                now = piece.at(shifts.get(at, 0))
                everyone.replace(piece, now)
                settled.replace(None, now)
        return shifts

    def moved(self, plan: Plan, number: int, shifts: Mapping[int, int]) -> Plan:
        """A plan as it would be."""
        found = copy.copy(plan)
        found.bindings = tuple(self._shift(b, number, shifts) for b in plan.bindings)
        return found

    def _shift(self, binding: Binding, number: int, shifts: Mapping[int, int]) -> Binding:
        at = self.knob_of(binding, number)
        by = 0 if at is None else shifts.get(at, 0)
        endpoint = binding.endpoint
        if not by or endpoint is None or endpoint.transport != "tcp" or endpoint.kernel_picks:
            return binding
        endpoint = replace(endpoint, first=endpoint.first + by, last=endpoint.last + by)
        return replace(binding, endpoint=endpoint, text=str(endpoint))


class _Taken:
    """Pieces where they stand, by host."""

    def __init__(self, pieces: Iterable[_Piece]) -> None:
        self._pieces: dict[tuple[str, int], list[_Piece]] = {}
        self._stale: set[tuple[str, int]] = set()
        self._ports: dict[str, dict[int, dict[tuple[object, ...], tuple[_Piece, int]]]] = {}
        for piece in pieces:
            self.replace(None, piece)

    def replace(self, old: _Piece | None, new: _Piece) -> None:
        """Enter a piece, in the place of another."""
        where = new.host, new.deployment
        mine = self._pieces.setdefault(where, [])
        if old is not None:
            mine.remove(old)
        mine.append(new)
        self._stale.add(where)

    def own(self, host: str, deployment: int) -> Sequence[_Piece]:
        """Those of one deployment."""
        return self._pieces.get((host, deployment), ())

    def ports(self, piece: _Piece, rivals: Callable[[_Piece, _Piece], bool]) -> int:
        """The ports of its host on which it would meet another deployment."""
        for where in self._stale:
            host, number = where
            kinds: dict[tuple[object, ...], tuple[_Piece, int]] = {}
            for each in self._pieces[where]:
                kinds[each.kind] = each, kinds.get(each.kind, (each, 0))[1] | _bits(each.first, each.last)
            self._ports.setdefault(host, {})[number] = kinds
        self._stale.clear()
        found = 0
        for number, known in self._ports.get(piece.host, {}).items():
            if number != piece.deployment:
                for other, bits in known.values():
                    if rivals(piece, other):
                        found |= bits
        return found


@dataclass(slots=True)
class _Search:
    """Distances for all knobs, from the sets of those that each may have and of the differences that no two may.

    The best is the one that moves the fewest, then the shortest way in all. The first of equals is taken: the earlier
    a knob, the sooner it stays.
    """

    domains: Sequence[int]
    apart: Mapping[tuple[int, int], int]
    best: tuple[int, ...] | None = None
    steps: int = 0
    _way: int | None = None

    def run(self) -> None:
        """Find `best`."""
        every = range(len(self.domains))
        clashing = [pair for pair, bits in self.apart.items() if bits & _STAY]
        least = sum(not bits & _STAY for bits in self.domains)
        for count in range(least, len(every) + 1):
            for some in combinations(reversed(every), count):
                chosen = set(some)
                if all(one in chosen or other in chosen for one, other in clashing):
                    moving = [bits & (~_STAY if at in chosen else _STAY) for at, bits in enumerate(self.domains)]
                    if all(moving):
                        self._go((), moving, 0)
            if self.best is not None or self.steps >= _STEPS:
                return

    def _go(self, chosen: tuple[int, ...], domains: list[int], way: int) -> None:
        at = len(chosen)
        if at == len(domains):
            self._way, self.best = way, chosen
            return
        least = way + sum(abs(_nearest(bits) or 0) for bits in domains[at + 1 :])
        for by in _by_distance(domains[at]):
            if self.steps >= _STEPS or (self._way is not None and least + abs(by) >= self._way):
                return
            self.steps += 1
            rest = list(domains)
            for other in range(at + 1, len(rest)):
                rest[other] &= ~_shifted(self.apart.get((at, other), 0), by)
            if all(rest[at + 1 :]):
                self._go((*chosen, by), rest, way + abs(by))


def _bits(first: int, last: int) -> int:
    return ((1 << (last - first + 1)) - 1) << first


def _run(low: int, high: int) -> int:
    """The distances from `low` to `high`."""
    return _bits(low + _ZERO, high + _ZERO) if high >= low else 0


def _met(ports: int, first: int, last: int) -> int:
    """The distances at which some port from `first` to `last` comes to be one of `ports`."""
    found, width = ports << (_ZERO - last), 0
    while width < last - first:
        step = min(width + 1, last - first - width)
        found |= found << step
        width += step
    return found


def _shifted(bits: int, by: int) -> int:
    return bits << by if by >= 0 else bits >> -by


def _nearest(bits: int) -> int | None:
    """The distance among `bits` that is nearest to 0, up rather than down."""
    up, down = bits >> _ZERO, bits & _DOWN
    above = (up & -up).bit_length() - 1 if up else None
    below = down.bit_length() - 1 - _ZERO if down else None
    if above is None or (below is not None and -below < above):
        return below
    return above


def _by_distance(bits: int) -> Iterator[int]:
    """All of them, the nearest to 0 first."""
    while (by := _nearest(bits)) is not None:
        yield by
        bits &= ~(1 << (by + _ZERO))


def _addresses(plan: Plan, knob: Knob) -> Iterator[Address]:
    """What a knob moves."""
    for resource in plan.job.resources:
        count: dict[str, int] = {}
        for address in resource.addresses:
            count[address.role] = number = count.get(address.role, 0) + 1
            if not knob.moves.isdisjoint({(resource.name, address.role), (resource.name, f"{address.role} {number}")}):
                yield address


def _avoided(plan: Plan, endpoint: Endpoint) -> tuple[tuple[int, int], ...]:
    """The ports that an address had better not move to; it may stay among those it is in."""
    facts = plan.job.facts
    start = UNPRIVILEGED_PORT_START if facts.unprivileged_port_start is None else facts.unprivileged_port_start
    ranges = [(0, start - 1), *((each.first, each.last) for each in facts.reserved)]
    if facts.ephemeral is not None:
        ranges.append(facts.ephemeral)
    return tuple((low, high) for low, high in ranges if endpoint.last < low or endpoint.first > high)
