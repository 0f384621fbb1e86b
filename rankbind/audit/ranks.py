"""Expressions on small topologies: who gets there, at which address, and which two ranks meet.

A topology in which one axis has two indices, and every other axis one, shows in two ranks what the axis does; pairs of
axes show where their sum meets. The arithmetic is `rankbind.topology`'s.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import combinations
from math import prod
from typing import Any, Final, TypeAlias

from rankbind.audit.expression import (
    EACH,
    Apply,
    Constant,
    Coordinate,
    Expression,
    Given,
    Parameter,
    Private,
    Size,
    Unclear,
    axes,
    kinds,
    text,
    walk,
)
from rankbind.topology import Topology

_MOST_QUESTIONS: Final = 10
"""Yes-or-no facts of which every combination is tried."""
_MOST_COMBINATIONS: Final = 8
"""Combinations of them under which addresses are compared."""
_REMEMBERED: Final = 4096
"""Answers that are kept: many ways lead to one place in the same manner."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of the ranks that run a piece of code.

    Attributes:
        order: axes outermost first; the ranks are their product.
        whole: axes that are the product of others: tp of attn_dp, attn_cp, attn_tp.
        exclusive: pairs of axes of which one has size 1.
        outside: axes that ``rank`` does not count (replicas, each a world of its own).
    """

    order: tuple[str, ...]
    whole: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclusive: tuple[frozenset[str], ...] = ()
    outside: tuple[str, ...] = ()

    def parts(self, axis: str) -> tuple[str, ...]:
        """The axes of `order` that `axis` is made of; itself where it is one of them."""
        if axis in self.order:
            return (axis,)
        if axis in {"rank", "local_rank"}:
            return tuple(name for name in self.order if name not in self.outside)
        return next((parts for name, parts in self.whole if name == axis), ())


@dataclass(frozen=True, slots=True)
class Point:
    """One rank of a small topology.

    Attributes:
        rank: its number in the topology.
        at: its coordinate on every axis. An axis that is not there has index 0 and size 1.
        sizes: of every axis.
    """

    rank: int
    at: Mapping[str, int]
    sizes: Mapping[str, int]


@cache
def points(layout: Layout, sizes: tuple[tuple[str, int], ...]) -> tuple[Point, ...]:
    """Every rank of the topology in which the axes named have those sizes, and all others 1."""
    named = dict(sizes)
    # By number, since a mesh may call an axis what a topology cannot: `0`, `rank`.
    axes = {f"axis{place}": name for place, name in enumerate(layout.order or ("rank",))}
    topology = Topology({axis: named.get(name, 1) for axis, name in axes.items()})
    found = []
    for rank in range(topology.size):
        at = {axes[axis]: index for axis, index in topology.coordinates(rank).items()}
        size = {axes[axis]: count for axis, count in topology.sizes.items()}
        wholes = [*layout.whole, ("rank", layout.parts("rank")), ("local_rank", layout.parts("local_rank"))]
        for name, parts in wholes:
            index = 0
            for part in parts:
                index = index * size[part] + at[part]
            at[name], size[name] = index, prod(size[part] for part in parts)
        found.append(Point(rank, at, size))
    return tuple(found)


Table: TypeAlias = tuple[int, int]
"""Bits, one for each combination of answers: those under which it may hold, and those under which it surely does."""


@dataclass(slots=True)
class Questions:
    """The yes-or-no facts that are the same on every rank, each a bit of a combination."""

    known: dict[str, int] = field(default_factory=dict)

    def mask(self, question: str) -> int | None:
        """The combinations in which the answer is yes; None where there are too many questions."""
        place = self.known.setdefault(question, len(self.known))
        return None if place >= _MOST_QUESTIONS else _pattern(place)

    def answer(self, question: str, combination: int) -> bool:
        """The answer to `question` in a combination."""
        place = self.known.get(question)
        return True if place is None or place >= _MOST_QUESTIONS else bool(combination >> place & 1)


_FULL: Final = (1 << (1 << _MOST_QUESTIONS)) - 1


@cache
def _pattern(place: int) -> int:
    found = 0
    for combination in range(1 << _MOST_QUESTIONS):
        if combination >> place & 1:
            found |= 1 << combination
    return found


class _FogError(Exception):
    """The value cannot be told."""


class _QuestionError(Exception):
    """The value depends on a fact that is the same on every rank."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A value that stands for one that is given: different names, different values."""

    name: str

    @property
    def value(self) -> int:
        return 10_007 + zlib.crc32(self.name.encode()) % 1_000_003 * 1009


def table(gate: Expression, point: Point, questions: Questions) -> Table:
    """Under which answers a rank passes `gate`."""
    match gate:
        case Apply("and", arguments):
            may = must = _FULL
            for argument in arguments:
                m, s = table(argument, point, questions)
                may, must = may & m, must & s
            return may, must
        case Apply("or", arguments):
            may = must = 0
            for argument in arguments:
                m, s = table(argument, point, questions)
                may, must = may | m, must | s
            return may, must
        case Apply("not", (inner,)):
            may, must = table(inner, point, questions)
            return _FULL & ~must, _FULL & ~may
        case Apply("if", (condition, then, otherwise)):
            may, must = table(condition, point, questions)
            a, b = table(then, point, questions), table(otherwise, point, questions)
            return (may & a[0]) | (_FULL & ~must & b[0]), (must & a[1]) | (_FULL & ~may & b[1])
    try:
        found = _decided(gate, point)
    except _FogError:
        return _FULL, 0
    except _QuestionError:
        mask = questions.mask(_asked(gate, point))
        return (_FULL, 0) if mask is None else (mask, mask)
    return (_FULL, _FULL) if found else (0, 0)


def _asked(gate: Expression, point: Point) -> str:
    """The question, with this rank's coordinates in it."""
    if isinstance(gate, Apply):
        parts = [_asked(part, point) for part in gate.arguments]
        return f"{gate.operator}({', '.join(parts)})"
    if isinstance(gate, (Coordinate, Size)):
        return str(_leaf(gate, point))
    return gate.text if isinstance(gate, Given) else text(gate)


def _decided(gate: Expression, point: Point) -> bool:
    """Whether a condition without logic in it holds on a rank."""
    leaves = kinds(gate)
    if Unclear in leaves or Private in leaves:
        raise _FogError
    if Given in leaves or Parameter in leaves:
        if Coordinate not in leaves:
            raise _QuestionError
        if isinstance(gate, Apply) and gate.operator in {"==", "!="} and len(gate.arguments) == 2:
            sides = [kinds(side) for side in gate.arguments]
            turns = any(isinstance(part, Given) and part.text.startswith(EACH) for part in walk(gate))
            if not turns and any(side <= {Given, Parameter} for side in sides):
                # A rank is compared with one that is configured: whichever it is, it is one.
                rest = gate.arguments[1 if sides[0] <= {Given, Parameter} else 0]
                return bool(value(rest, point, None, 0) == 0) == (gate.operator == "==")
        raise _FogError
    if any(isinstance(part, Apply) and part.operator not in _KNOWN for part in walk(gate)):
        if Coordinate in leaves:
            raise _FogError
        raise _QuestionError
    return bool(value(gate, point, None, 0))


def value(expression: Expression, point: Point, questions: Questions | None, combination: int) -> Any:
    """The value on a rank, comparable with that on another; what is given has one value, what is private its own."""
    match expression:
        case Apply("if", (condition, then, otherwise)):
            holds = _holds(condition, point, questions, combination)
            return value(then if holds else otherwise, point, questions, combination)
        case Apply("and" | "or" as operator, arguments):
            found: Any = None
            for argument in arguments:
                found = value(argument, point, questions, combination)
                if _truth(found, argument, point, questions, combination) != (operator == "and"):
                    break
            return found
        case Apply("not", (inner,)):
            return not _holds(inner, point, questions, combination)
        case Apply(operator, arguments):
            return _applied(operator, [value(argument, point, questions, combination) for argument in arguments])
        case _:
            return _leaf(expression, point)


def _holds(condition: Expression, point: Point, questions: Questions | None, combination: int) -> bool:
    asked = Questions() if questions is None else questions
    may, must = table(condition, point, asked)
    if may != must and (may ^ must) >> combination & 1:
        raise _FogError
    return bool(must >> combination & 1)


def _truth(found: Any, expression: Expression, point: Point, questions: Questions | None, combination: int) -> bool:
    if isinstance(found, (_Number, tuple)):
        return _holds(expression, point, questions, combination)
    return bool(found)


def _leaf(expression: Expression, point: Point) -> Any:
    match expression:
        case Constant(found):
            return found
        case Coordinate(axis, _):
            return point.at.get(axis, 0)
        case Size(axis):
            return point.sizes.get(axis, 1)
        case Given(name) | Parameter(_, name):
            return _Number(name)
        case Private(name):
            return ("private", name, point.rank)
        case _:
            raise _FogError


_KNOWN: Final = frozenset(
    [
        *("and", "or", "not", "if", "==", "!=", "<", "<=", ">", ">=", "is", "is not", "in", "not in"),
        *("+", "-", "*", "//", "%", "/", "text", "tuple", "int", "str", "max", "min", "len"),
    ]
)


def _applied(operator: str, values: list[Any]) -> Any:
    numbers = [found.value if isinstance(found, _Number) else found for found in values]
    if operator == "tuple":
        return tuple(numbers)
    if operator == "text" or (operator == "+" and any(isinstance(found, str) for found in values)):
        if None in numbers:
            # Where a part of an address is missing, nothing is made.
            raise _FogError
        return "".join(str(number) for number in numbers)
    if operator in {"int", "str"} and len(values) == 1:
        if isinstance(values[0], _Number):
            return values[0]
        return (int if operator == "int" else str)(values[0]) if isinstance(values[0], (int, str)) else numbers[0]
    try:
        return _compute(operator, numbers)
    except (TypeError, ValueError, ArithmeticError):
        return (operator, *numbers)


def _compute(operator: str, numbers: list[Any]) -> Any:
    if operator in "+-*//%" and not all(isinstance(number, (int, float)) for number in numbers):
        # A text times a number that only stands for one may be of any length.
        raise TypeError(operator)
    match operator, numbers:
        case "+", [a, b]:
            return a + b
        case "-", [a, b]:
            return a - b
        case "-", [a]:
            return -a
        case "*", [a, b]:
            return a * b
        case "//", [a, b]:
            return a // b
        case "/", [a, b]:
            return a / b
        case "%", [a, b]:
            return a % b
        case "==" | "is", [a, b]:
            return a == b
        case "!=" | "is not", [a, b]:
            return a != b
        case "<", [a, b]:
            return a < b
        case "<=", [a, b]:
            return a <= b
        case ">", [a, b]:
            return a > b
        case ">=", [a, b]:
            return a >= b
        case "in", [a, b]:
            return a in b
        case "not in", [a, b]:
            return a not in b
        case "max", [_, *_]:
            return max(numbers)
        case "min", [_, *_]:
            return min(numbers)
        case "len", [tuple() as found]:
            return len(found)
    raise TypeError(operator)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two ranks that get to one place at one address.

    Attributes:
        axes: what they differ in.
        sizes: the topology, axes of size 1 left out.
        points: the two.
        address: theirs, as text.
    """

    axes: tuple[str, ...]
    sizes: Mapping[str, int]
    points: tuple[Point, Point]
    address: str


def meeting(
    gate: Expression,
    address: Expression,
    layout: Layout,
    sizes: Mapping[str, int],
    differing: tuple[str, ...] | None = None,
) -> Meeting | None:
    """Two ranks of a topology that both surely pass `gate`, under the same circumstances, at the same address.

    Args:
        differing: the axes in which they differ; all that have a size.
    """
    apart = frozenset(sizes if differing is None else differing)
    questions = Questions()
    ranks = points(layout, tuple(sorted(sizes.items())))
    passed = [(point, table(gate, point, questions)[1]) for point in ranks]
    pairs = [
        (a, b, first & second)
        for (a, first), (b, second) in combinations(passed, 2)
        if first & second and {name for name in layout.order if a.at[name] != b.at[name]} == apart
    ]
    common = 0
    for _, _, mask in pairs:
        common |= mask
    if not _branches(address) and all(common & mask & -common for _, _, mask in pairs):
        # It is the same address under all circumstances: one of them will do.
        common &= -common
    for combination in _combinations(common):
        at: dict[int, Any] = {}
        for a, b, mask in pairs:
            if not mask >> combination & 1:
                continue
            for point in (a, b):
                if point.rank not in at:
                    at[point.rank] = _told(address, point, questions, combination)
            if at[a.rank] is not _UNTOLD and at[a.rank] == at[b.rank]:
                differ = tuple(name for name in layout.order if a.at[name] != b.at[name])
                return Meeting(differ, dict(sizes), (a, b), shown(address, a, questions, combination))
    return None


_UNTOLD: Final = object()


def _told(address: Expression, point: Point, questions: Questions, combination: int) -> Any:
    try:
        found = value(address, point, questions, combination)
    except _FogError:
        return _UNTOLD
    # None stands for an address that is not there yet.
    return _UNTOLD if found is None else found


def _branches(address: Expression) -> bool:
    """Whether an address is another one under other circumstances."""
    return any(isinstance(part, Apply) and part.operator in {"if", "and", "or", "not"} for part in walk(address))


_LONGEST_SUM: Final = 120


def added(address: Expression) -> bool:
    """Whether coordinates of two axes are added up somewhere in it. One that is very long is no such sum."""
    if isinstance(address, Apply) and address.weight > _LONGEST_SUM:
        return False
    return any(
        isinstance(part, Apply) and part.operator in {"+", "-"} and len(axes(part)) > 1 for part in walk(address)
    )


def _combinations(mask: int) -> Iterator[int]:
    for _ in range(_MOST_COMBINATIONS):
        if not mask:
            return
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def shown(address: Expression, point: Point, questions: Questions, combination: int) -> str:
    """The address on a rank, with what is given by its name."""

    def put(part: Expression) -> Expression:
        match part:
            case Apply("if", (condition, then, otherwise)):
                try:
                    return put(then if _holds(condition, point, questions, combination) else otherwise)
                except _FogError:
                    return part
            case Apply(operator, arguments):
                placed = tuple(map(put, arguments))
                if operator == "+" and len(placed) == 2:
                    rest = [part for part in placed if part != Constant(0)]
                    if len(rest) < len(placed):
                        return rest[0] if rest else Constant(0)
                if all(isinstance(argument, Constant) for argument in placed) and operator != "tuple":
                    try:
                        return Constant(value(Apply(operator, placed), point, questions, combination))
                    except _FogError:
                        return part
                if operator == "or" and isinstance(placed[0], Constant):
                    return placed[0] if placed[0].value else placed[-1]
                return Apply(operator, placed)
            case Coordinate() | Size():
                return Constant(_leaf(part, point))
        return part

    found = put(address)
    if isinstance(found, Apply) and found.operator == "tuple" and len(found.arguments) == 2:
        first, second = map(text, found.arguments)
        return f"{first}:{second}" if _HOST.search(first) else f"{first}, {second}"
    return text(found)


_HOST: Final = re.compile(r"host|addr|(?:^|_|\.)ip$|^[\d.:\[\]]+$|^localhost$")


@lru_cache(_REMEMBERED)
def free(gate: Expression, address: Expression, layout: Layout, among: tuple[str, ...]) -> list[Meeting]:
    """A meeting for each of the axes `among` in which two ranks may differ and still meet."""
    wide = _indices(gate, layout)
    found = (
        meeting(gate, address, layout, {axis: 2})
        or (meeting(gate, address, layout, {**wide, axis: 2}, (axis,)) if wide.keys() - {axis} else None)
        for axis in among
    )
    return [item for item in found if item is not None]


def _indices(gate: Expression, layout: Layout) -> dict[str, int]:
    """The sizes that axes need for the indices to be there that a gate names, where that is more than the first."""
    found: dict[str, int] = {}
    for part in walk(gate):
        match part:
            case Apply("==", (Coordinate(axis), Constant(int(index)))) if 0 < index < _LARGEST_INDEX:
                parts = layout.parts(axis)
                if parts:
                    found[parts[-1]] = max(found.get(parts[-1], 0), index + 1)
    return found


_LARGEST_INDEX: Final = 4


@lru_cache(_REMEMBERED)
def sums(gate: Expression, address: Expression, layout: Layout, among: tuple[str, ...]) -> list[Meeting]:
    """Meetings of ranks that differ in two axes at once, for axes neither of which is free alone."""
    found = []
    for pair in combinations(among, 2):
        if frozenset(pair) in layout.exclusive:
            continue
        for sizes in ((2, 2), (2, 3), (3, 2)):
            met = meeting(gate, address, layout, dict(zip(pair, sizes, strict=True)))
            if met is not None:
                found.append(met)
                break
    return found


@lru_cache(_REMEMBERED)
def pinned(gate: Expression, named: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the axes `named` of which `gate` lets one index pass, whatever else holds.

    Each is taken for an axis of its own, of size 3.
    """
    layout = Layout(tuple(named))
    questions = Questions()
    ranks = points(layout, tuple((name, 3 if len(named) < 4 else 2) for name in layout.order))
    tables = {tuple(point.at[name] for name in layout.order): table(gate, point, questions)[0] for point in ranks}
    found = []
    for place, name in enumerate(layout.order):
        if not any(
            here & there
            for at, here in tables.items()
            for to, there in tables.items()
            if here and at[place] < to[place] and at[:place] == to[:place] and at[place + 1 :] == to[place + 1 :]
        ):
            found.append(name)
    return tuple(found)
