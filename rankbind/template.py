"""Text with integer arithmetic in braces: ``tcp://*:{5557 + dp}``. Parsed here, never evaluated as Python.

Inside braces: integers, names, ``+ - * // %`` and parentheses. Names are coordinates (``dp``), sizes (``dp_size``),
``rank``, ``local_rank``, ``node_rank``, ``world_size``, ``local_world_size`` and ``nnodes``, as torchrun spells them.
``{{`` and ``}}`` are literal braces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from rankbind.errors import TemplateError
from rankbind.topology import nearest

_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<op>//|[-+*%()]))")
_MAX_DIGITS = 18
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class _Number:
    value: int


@dataclass(frozen=True, slots=True)
class _Name:
    name: str
    column: int


@dataclass(frozen=True, slots=True)
class _Operation:
    operator: str
    left: _Expression
    right: _Expression
    column: int


_Expression: TypeAlias = _Number | _Name | _Operation

_LEVELS: tuple[tuple[str, ...], ...] = (("+", "-"), ("*", "//", "%"))
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


class Template:
    """A parsed template. Equal when the texts are equal.

    Raises:
        TemplateError: the text does not parse; `column` (from 0) points into it.
    """

    __slots__ = ("_parts", "names", "text")
    text: str
    names: Mapping[str, int]

    def __init__(self, text: str) -> None:
        parts = tuple(_parse(text))
        names: dict[str, int] = {}
        for part in parts:
            if not isinstance(part, str):
                _collect(part, names)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "names", MappingProxyType(names))

    _parts: tuple[str | _Expression, ...]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Template is immutable: cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Template is immutable: cannot delete {name}")

    def __reduce__(self) -> tuple[type[Template], tuple[str]]:
        return Template, (self.text,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def __str__(self) -> str:
        return self.text

    def check_names(self, known: Mapping[str, object] | frozenset[str] | set[str]) -> None:
        """Raise `TemplateError` at the first name that is not among `known`, with the nearest that is."""
        for error in self.unknown_names(known):
            raise error

    def unknown_names(self, known: Mapping[str, object] | frozenset[str] | set[str]) -> Iterator[TemplateError]:
        """What `check_names` would raise, for every name that is not among `known`."""
        for name, column in self.names.items():
            if name not in known:
                near = nearest(name, sorted(known))
                ordered = known if isinstance(known, Mapping) else sorted(known)
                hint = f"; did you mean {near}?" if near else f"; known are {', '.join(ordered)}"
                yield TemplateError(f"unknown name {name!r} in {self.text!r}{hint}", column, len(name))

    def render(self, values: Mapping[str, int]) -> str:
        """The text with every brace replaced by its value.

        Raises:
            TemplateError: a name has no value, or a division is by zero.
        """
        return "".join(part if isinstance(part, str) else str(_value(part, values, self.text)) for part in self._parts)


def _parse(text: str) -> list[str | _Expression]:
    parts: list[str | _Expression] = []
    literal = ""
    at = 0
    while at < len(text):
        char = text[at]
        if char in "{}" and text[at : at + 2] == char * 2:
            literal += char
            at += 2
        elif char == "}":
            raise TemplateError("'}' without '{' before it; for a literal brace write '}}'", at)
        elif char == "{":
            end = text.find("}", at)
            if end < 0:
                raise TemplateError("'{' is never closed; for a literal brace write '{{'", at)
            if literal:
                parts.append(literal)
                literal = ""
            parts.append(_Parser(text, at + 1, end).parse())
            at = end + 1
        else:
            literal += char
            at += 1
    if literal:
        parts.append(literal)
    return parts


class _Parser:
    """Precedence climbing over the text between two braces."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.at, self.end, self.depth = text, start, end, 0

    def parse(self) -> _Expression:
        found = self.level(0)
        token, start, stop = self.peek()
        if token:
            raise TemplateError(f"unexpected {token!r}", start, stop - start)
        return found

    def peek(self) -> tuple[str, int, int]:
        match = _TOKEN.match(self.text, self.at, self.end)
        if match:
            return match[match.lastgroup or 0], match.start(match.lastgroup or 0), match.end()
        rest = self.text[self.at : self.end]
        at = self.at + len(rest) - len(rest.lstrip())
        if at < self.end:
            hint = "; // is whole division" if self.text[at] == "/" else ""
            raise TemplateError(
                f"unexpected {self.text[at]!r}: a template knows integers, names, + - * // % and ( ){hint}", at
            )
        return "", self.end, self.end + 1

    def level(self, depth: int) -> _Expression:
        if depth == len(_LEVELS):
            return self.atom()
        left = self.level(depth + 1)
        while True:
            token, start, stop = self.peek()
            if token not in _LEVELS[depth]:
                return left
            self.at = stop
            left = _Operation(token, left, self.level(depth + 1), start)

    def atom(self) -> _Expression:
        token, start, stop = self.peek()
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise TemplateError(f"an expression with more than {_MAX_DEPTH} terms", start)
        self.at = stop
        if token.isdigit():
            if len(token) > _MAX_DIGITS:
                raise TemplateError(f"a number of more than {_MAX_DIGITS} digits", start, len(token))
            return _Number(int(token))
        if token == "-":
            return _Operation("-", _Number(0), self.atom(), start)
        if token == "(":
            inner = self.level(0)
            close, _, after = self.peek()
            if close != ")":
                raise TemplateError("'(' is never closed", start)
            self.at = after
            return inner
        if token and (token[0].isalpha() or token[0] == "_"):
            return _Name(token, start)
        what = repr(token) if token else "the end of the braces"
        raise TemplateError(f"expected a number or a name, found {what}", start, max(1, stop - start))


def _collect(expression: _Expression, names: dict[str, int]) -> None:
    if isinstance(expression, _Name):
        names.setdefault(expression.name, expression.column)
    elif isinstance(expression, _Operation):
        _collect(expression.left, names)
        _collect(expression.right, names)


def _value(expression: _Expression, values: Mapping[str, int], text: str) -> int:
    if isinstance(expression, _Number):
        return expression.value
    if isinstance(expression, _Name):
        try:
            return values[expression.name]
        except KeyError:
            raise TemplateError(
                f"{expression.name!r} in {text!r} has no value here", expression.column, len(expression.name)
            ) from None
    left, right = _value(expression.left, values, text), _value(expression.right, values, text)
    if right == 0 and expression.operator in ("//", "%"):
        raise TemplateError(f"{text!r} divides by zero", expression.column, len(expression.operator))
    return _OPERATIONS[expression.operator](left, right)
