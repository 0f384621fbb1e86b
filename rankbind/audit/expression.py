"""What a gate or an address is: an expression over the coordinates of a rank, and over what is not known.

Four sorts of unknown are told apart, since they mean different things for two ranks: `Given` is the same on all of
them (configuration, environment), `Private` differs in every process (a temporary file, a port that the kernel
chooses), `Unclear` may be either, and `Parameter` is not known yet: whoever calls the function says.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias


class Place(NamedTuple):
    """A node and the file that it stands in."""

    file: str
    node: ast.AST


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that stands in the source."""

    value: Any
    at: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Where this rank stands on an axis.

    Attributes:
        local: counted among the ranks of one host.
    """

    axis: str
    local: bool = False
    at: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Size:
    """How many indices an axis has."""

    axis: str
    at: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Given:
    """The same on every rank, and not known here."""

    text: str
    at: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Private:
    """Another one in each process."""

    text: str
    at: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unclear:
    """Whether it differs between ranks cannot be told."""

    text: str
    at: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a function, until its callers are known."""

    function: str
    name: str
    at: Place | None = field(default=None, compare=False, repr=False)


class Apply:
    """An operator or a function of `arguments`.

    `operator` is Python's for arithmetic, comparison and logic; ``if`` (condition, then, else), ``text`` (parts
    joined), ``tuple``; anything else is a function of which only this is assumed: equal arguments give equal results.

    Attributes:
        weight: how many nodes it has, itself included.
        kinds: the sorts of leaves in it.
    """

    __slots__ = ("_hash", "arguments", "at", "kinds", "operator", "weight")
    __match_args__ = ("operator", "arguments", "at")

    def __init__(self, operator: str, arguments: tuple[Expression, ...], at: Place | None = None) -> None:
        self.operator = operator
        self.arguments = arguments
        self.at = at
        self.weight = 1
        self.kinds: frozenset[type] = _NOTHING
        for argument in arguments:
            if isinstance(argument, Apply):
                self.weight += argument.weight
                self.kinds |= argument.kinds
            else:
                self.weight += 1
                self.kinds |= _ONE[type(argument)]
        # Kept, since trees of hundreds of nodes are looked up again and again.
        self._hash = hash((operator, arguments))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Apply)
            and self._hash == other._hash
            and self.operator == other.operator
            and self.arguments == other.arguments
        )

    def __repr__(self) -> str:
        return f"Apply({self.operator!r}, {self.arguments!r})"


_NOTHING: Final[frozenset[type]] = frozenset()
_ONE: Final[Mapping[type, frozenset[type]]] = {
    kind: frozenset([kind]) for kind in (Constant, Coordinate, Size, Given, Private, Unclear, Parameter)
}
Expression: TypeAlias = Constant | Coordinate | Size | Given | Private | Unclear | Parameter | Apply

EACH: Final = "each "
"""Begins the name of what is given once for each turn of a loop."""
LONG: Final = "a long expression"
TRUE: Final = Constant(True)
FALSE: Final = Constant(False)
_MOST: Final = 400
"""Nodes beyond which an expression is not worth following."""
_LONG: Final = 24
"""Nodes beyond which a fact that is the same everywhere is not spelled out."""


_CLASS: Final = re.compile(r"(?:^|\.)_*[A-Z]\w*[a-z]\w*$")
_FOLDING: Final = frozenset({"is", "is not", "==", "!="})
_UNIFORM: Final = frozenset({Constant, Size, Given})
_TELLING: Final = frozenset({Coordinate, Unclear, Private})
"""What may tell one rank from another."""


def both(*parts: Expression) -> Expression:
    """The conjunction, folded."""
    kept: dict[Expression, None] = {}
    for part in parts:
        for piece in part.arguments if isinstance(part, Apply) and part.operator == "and" else (part,):
            if isinstance(piece, Constant):
                if not piece.value:
                    return FALSE
                continue
            kept[piece] = None
    found = tuple(kept)
    return TRUE if not found else found[0] if len(found) == 1 else Apply("and", found)


def either(*parts: Expression) -> Expression:
    """The disjunction, folded."""
    kept: dict[Expression, None] = {}
    for part in parts:
        for piece in part.arguments if isinstance(part, Apply) and part.operator == "or" else (part,):
            if isinstance(piece, Constant):
                if piece.value is True:
                    return TRUE
                if not piece.value:
                    continue
            kept[piece] = None
    found = tuple(kept)
    return FALSE if not found else found[0] if len(found) == 1 else Apply("or", found)


def negated(part: Expression) -> Expression:
    """The negation, folded."""
    if isinstance(part, Constant):
        return Constant(not part.value)
    if isinstance(part, Apply) and part.operator == "not":
        return part.arguments[0]
    return Apply("not", (part,))


def chosen(condition: Expression, then: Expression, otherwise: Expression) -> Expression:
    """``then if condition else otherwise``, folded."""
    if isinstance(condition, Constant):
        return then if condition.value else otherwise
    return then if then == otherwise else Apply("if", (condition, then, otherwise))


def compared(operator: str, left: Expression, right: Expression, at: Place | None = None) -> Expression:
    """A comparison, folded as far as its sides are known."""
    if operator in {"is", "is not", "==", "!="}:
        if isinstance(right, Constant) and isinstance(left, Apply) and left.operator == "if":
            condition, then, otherwise = left.arguments
            if isinstance(then, Constant) or isinstance(otherwise, Constant):
                return _alternative(
                    condition, compared(operator, then, right, at), compared(operator, otherwise, right, at)
                )
        positive = operator in {"is", "=="}
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant((left.value == right.value) == positive, at)
        if isinstance(left, Given) and isinstance(right, Given) and _named(left) and _named(right):
            return Constant((left.text == right.text) == positive, at)
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Constant) and one.value is None and isinstance(other, (Coordinate, Size, Private)):
                return Constant(not positive, at)
            if isinstance(one, Constant) and one.value is None and (_number(other) or _object(other)):
                return Constant(not positive, at)
    if operator in {"in", "not in"} and isinstance(right, Apply) and right.operator == "tuple":
        found = either(*(compared("==", left, item, at) for item in right.arguments))
        return found if operator == "in" else negated(found)
    return Apply(operator, (left, right), at)


def _alternative(condition: Expression, then: Expression, otherwise: Expression) -> Expression:
    """A condition that is `then` or `otherwise`, without an if where logic will do."""
    if then == TRUE:
        return either(condition, otherwise)
    if then == FALSE:
        return both(negated(condition), otherwise)
    if otherwise == FALSE:
        return both(condition, then)
    if otherwise == TRUE:
        return either(negated(condition), then)
    return chosen(condition, then, otherwise)


def _named(given: Given) -> bool:
    """Whether it is one of the constants of a library, of which each is another value."""
    return given.text.startswith(("zmq.", "socket."))


def _object(expression: Expression) -> bool:
    """Whether it surely is an object: what a class, by the spelling of its name, makes."""
    return isinstance(expression, Apply) and _CLASS.search(expression.operator) is not None


def _number(expression: Expression) -> bool:
    """Whether it surely is a number: arithmetic, or one coordinate or another."""
    match expression:
        case Apply("+" | "-" | "*" | "//" | "%" | "int", _):
            return True
        case Apply("if", (_, then, otherwise)):
            return all(isinstance(part, (Coordinate, Size)) or _number(part) for part in (then, otherwise))
    return False


def walk(expression: Expression) -> Iterator[Expression]:
    """`expression` and all that it is made of."""
    stack = [expression]
    while stack:
        found = stack.pop()
        yield found
        if isinstance(found, Apply):
            stack += reversed(found.arguments)


def kinds(expression: Expression) -> frozenset[type]:
    """The sorts of leaves in it."""
    return expression.kinds if isinstance(expression, Apply) else _ONE[type(expression)]


def large(expression: Expression) -> bool:
    """Whether it is too large to be followed further."""
    return isinstance(expression, Apply) and expression.weight > _MOST


def folded(expression: Expression, said: ast.expr | str = "...") -> Expression:
    """`expression`, as one fact where it is long and the same on every rank: nothing in it would be of interest.

    Args:
        said: how it stands in the source.
    """
    if not isinstance(expression, Apply) or expression.weight < _LONG:
        return expression
    if not expression.kinds <= _UNIFORM:
        if expression.weight <= _MOST:
            return expression
        if expression.kinds & _TELLING:
            return Unclear(LONG)
    name = said if isinstance(said, str) else ast.unparse(said)
    # The mark keeps apart what is called the same in two functions.
    return Given(f"{name if len(name) <= _WIDEST else '...'}{_MARK}{expression._hash & 0xFFFFFF:06x}")


_MARK: Final = "\x1f"
_WIDEST: Final = 40


def holes(expression: Expression) -> frozenset[Parameter]:
    """The parameters in it."""
    if Parameter not in kinds(expression):
        return frozenset()
    return frozenset(part for part in walk(expression) if isinstance(part, Parameter))


def trimmed(gate: Expression) -> Expression:
    """`gate`, kept readable: long conditions that are the same on every rank go, other long ones are unclear."""
    if not large(gate):
        return gate
    parts = gate.arguments if isinstance(gate, Apply) and gate.operator == "and" else (gate,)
    return both(*map(_short, parts))


def _short(part: Expression) -> Expression:
    if not isinstance(part, Apply) or part.weight <= _MOST // 4:
        return part
    return Unclear("a long condition") if part.kinds & _TELLING else TRUE


def relevant(gate: Expression, address: Expression) -> Expression:
    """`gate` without those of its conditions that are the same on every rank and say nothing about the rest.

    They hold or nothing is made at all, and a reader need not see them.
    """
    if isinstance(gate, Constant):
        return gate
    if not isinstance(gate, Apply) or gate.operator != "and":
        return gate if kinds(gate) - {Constant, Given} else _kept(gate, (address,))
    told = [part for part in gate.arguments if kinds(part) - {Constant, Given}]
    return both(*(part if part in told else _kept(part, (*told, address)) for part in gate.arguments))


def _kept(part: Expression, others: Iterable[Expression]) -> Expression:
    names = {one.text for one in walk(part) if isinstance(one, Given)}
    shared = any(isinstance(one, Given) and one.text in names for other in others for one in walk(other))
    return part if shared else TRUE


def axes(expression: Expression) -> tuple[str, ...]:
    """The axes whose coordinates are in it, in the order they are named."""
    if Coordinate not in kinds(expression):
        return ()
    return tuple(dict.fromkeys(part.axis for part in walk(expression) if isinstance(part, Coordinate)))


def mapped(expression: Expression, change: Callable[[Expression], Expression | None]) -> Expression:
    """`expression` with every leaf for which `change` gives something replaced by it."""
    if not isinstance(expression, Apply):
        return change(expression) or expression
    arguments = tuple(mapped(argument, change) for argument in expression.arguments)
    if all(new is old for new, old in zip(arguments, expression.arguments, strict=True)):
        return expression
    if expression.operator == "and":
        return both(*arguments)
    if expression.operator == "or":
        return either(*arguments)
    if expression.operator == "not":
        return negated(arguments[0])
    if expression.operator == "if":
        return chosen(*arguments)
    if expression.operator in _FOLDING:
        return compared(expression.operator, arguments[0], arguments[1], expression.at)
    return Apply(expression.operator, arguments, expression.at)


def filled(expression: Expression, values: Mapping[Parameter, Expression]) -> Expression:
    """`expression` with the parameters that have a value replaced by it."""
    if not values or Parameter not in kinds(expression):
        return expression
    return mapped(expression, lambda part: values.get(part) if isinstance(part, Parameter) else None)


def text(expression: Expression) -> str:
    """As a reader would write it."""
    match expression:
        case Constant(value):
            return value if isinstance(value, str) else repr(value)
        case Coordinate(axis, local):
            return f"local_{axis}_rank" if local else axis if axis in {"rank", "local_rank"} else f"{axis}_rank"
        case Size(axis):
            return f"{axis}_size"
        case Given(name) | Private(name) | Unclear(name):
            return name.partition(_MARK)[0]
        case Parameter(_, name):
            return name
        case Apply("str", (inner,)):
            return text(inner)
        case Apply("+", arguments) if any(
            isinstance(part, Constant) and isinstance(part.value, str) for part in arguments
        ):
            return text(Apply("text", arguments))
        case Apply("text", arguments):
            return "".join(text(part) if isinstance(part, Constant) else "{" + text(part) + "}" for part in arguments)
        case Apply("if", (condition, then, otherwise)):
            return f"({text(then)} if {text(condition)} else {text(otherwise)})"
        case Apply("not", (inner,)):
            return f"not {_grouped(inner)}"
        case Apply("tuple", arguments):
            return ", ".join(map(text, arguments))
        case Apply("[]", (whole, index)):
            return f"{text(whole)}[{index.value!r}]" if isinstance(index, Constant) else f"{text(whole)}[{text(index)}]"
        case Apply(operator, arguments):
            if operator in _INFIX and len(arguments) > 1:
                return f" {operator} ".join(map(_grouped, arguments))
            if operator == "-":
                return f"-{_grouped(arguments[0])}"
            return f"{operator}({', '.join(map(text, arguments))})"


def _grouped(expression: Expression) -> str:
    infix = isinstance(expression, Apply) and (expression.operator in _INFIX or expression.operator == "not")
    return f"({text(expression)})" if infix else text(expression)


_INFIX: Final = frozenset(
    ["and", "or", "==", "!=", "<", "<=", ">", ">=", "is", "is not", "in", "not in", "+", "-", "*", "//", "%", "/"]
)
