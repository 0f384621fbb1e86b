"""The arithmetic of a shell: 64-bit integers, and variables that it changes."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+#\w+|\d+)|\$?\{?(?P<name>[A-Za-z_]\w*)\}?"
    r"|(?P<operator>\+\+|--|\*\*|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),]))"
)
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_DEEPEST = 64


class UnknownError(Exception):
    """The value cannot be told."""


class Arithmetic:
    """One expression. `get` gives the value of a variable or raises `UnknownError`; `put` sets it."""

    def __init__(self, text: str, get: Callable[[str], int], put: Callable[[str, int], None]) -> None:
        self.get, self.put = get, put
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        self.depth = 0
        self.idle = 0
        end = 0
        text = text.strip()
        while end < len(text):
            found = _TOKEN.match(text, end)
            if not found:
                raise UnknownError
            end = found.end()
            kind = found.lastgroup or ""
            self.tokens.append((kind, found[kind]))

    def value(self) -> int:
        """What it comes to."""
        if not self.tokens:
            return 0
        found = self._comma()
        if self.at < len(self.tokens):
            raise UnknownError
        return found

    def _peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at][1] if at < len(self.tokens) and self.tokens[at][0] == "operator" else ""

    def _take(self, *texts: str) -> str:
        found = self._peek()
        if found and found in texts:
            self.at += 1
            return found
        return ""

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise UnknownError

    def _comma(self) -> int:
        found = self._assign()
        while self._take(","):
            found = self._assign()
        return found

    def _assign(self) -> int:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UnknownError
        operator = self._peek(1)
        if self._is_name() and operator.endswith("=") and operator not in ("==", "!=", "<=", ">="):
            name = self.tokens[self.at][1]
            self.at += 2
            value = self._assign()
            if operator != "=":
                value = self._apply(operator[:-1], self._read(name), value)
            found = self._write(name, value)
        else:
            found = self._ternary()
        self.depth -= 1
        return found

    def _ternary(self) -> int:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        first = self._quiet(not condition and not self.idle)
        self._need(":")
        second = self._quiet(bool(condition) and not self.idle)
        return first if condition else second

    def _quiet(self, idle: bool) -> int:
        self.idle += idle
        found = self._assign()
        self.idle -= idle
        return found

    def _binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._power()
        found = self._binary(level + 1)
        while operator := self._take(*_LEVELS[level]):
            short = (operator == "||" and found != 0) or (operator == "&&" and found == 0)
            self.idle += short
            other = self._binary(level + 1)
            self.idle -= short
            found = self._apply(operator, found, other)
        return found

    def _power(self) -> int:
        base = self._unary()
        if not self._take("**"):
            return base
        exponent = self._power()
        if not 0 <= exponent < 64:
            raise UnknownError
        return _wrapped(base**exponent)

    def _unary(self) -> int:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UnknownError
        operator = self._take("+", "-", "!", "~", "++", "--")
        if operator in ("++", "--"):
            name = self._name()
            found = self._write(name, self._read(name) + (1 if operator == "++" else -1))
        elif operator:
            value = self._unary()
            found = {"+": value, "-": _wrapped(-value), "!": int(not value), "~": ~value}[operator]
        else:
            found = self._primary()
        self.depth -= 1
        return found

    def _primary(self) -> int:
        if self._take("("):
            found = self._comma()
            self._need(")")
            return found
        if self._is_name():
            name = self._name()
            found = self._read(name)
            if operator := self._take("++", "--"):
                self._write(name, found + (1 if operator == "++" else -1))
            return found
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "number":
            self.at += 1
            return number(self.tokens[self.at - 1][1])
        raise UnknownError

    def _is_name(self) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at][0] == "name"

    def _name(self) -> str:
        if not self._is_name():
            raise UnknownError
        self.at += 1
        return self.tokens[self.at - 1][1]

    def _read(self, name: str) -> int:
        return 0 if self.idle else self.get(name)

    def _write(self, name: str, value: int) -> int:
        value = _wrapped(value)
        if not self.idle:
            self.put(name, value)
        return value

    def _apply(self, operator: str, left: int, right: int) -> int:
        if operator in ("/", "%"):
            if self.idle:
                return 0
            if right == 0:
                raise UnknownError
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return _wrapped(quotient if operator == "/" else left - quotient * right)
        if operator in ("<<", ">>") and not 0 <= right < 64:
            raise UnknownError
        return _wrapped(_OPERATIONS[operator](left, right))


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def number(text: str) -> int:
    """A number as a shell writes it: ``010`` is eight. Raises `UnknownError` for what is none."""
    text = text.strip()
    sign = -1 if text.startswith("-") else 1
    text = text.removeprefix("-").removeprefix("+")
    base, mark, digits = text.partition("#")
    try:
        if len(text) > 24:
            raise ValueError
        if mark:
            return sign * int(digits, int(base))
        if text[:2] in ("0x", "0X"):
            return sign * int(text, 16)
        return sign * int(text, 8 if text.startswith("0") and text.isdecimal() else 10)
    except ValueError:
        raise UnknownError from None


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
