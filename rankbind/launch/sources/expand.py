"""Words of a shell command: quotes, variables, arithmetic, braces. What is not known stays as it is written."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rankbind.launch.sources.arithmetic import Arithmetic, UnknownError, number
from rankbind.launch.sources.placed import LONGEST, Text, joined

Value: TypeAlias = Text | list[Text]
"""The value of a variable, or of an array."""

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]|[@*#?$!-]")
_PARAMETER = re.compile(
    r"(?P<length>#(?=.))?(?P<indirect>!)?(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?"
)
_OPERATOR = re.compile(r":[-=+?]|[-=+?]|%%?|##?|//?|\^\^?|,,?|:|@")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?\Z")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}
_MOST = 4096
_DEEPEST = 40


@dataclass(slots=True)
class Variables:
    """What a shell has set.

    Attributes:
        exported: the names that the commands it starts see.
        positional: ``$1`` and further; None where they are not known.
    """

    values: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    positional: list[Text] | None = None

    def copy(self) -> Variables:
        """What a subshell has."""
        return Variables(dict(self.values), set(self.exported), self.positional)

    def environment(self) -> dict[str, Text]:
        """What a command that is started sees."""
        return {name: value for name, value in self.values.items() if name in self.exported and isinstance(value, Text)}


Substitute: TypeAlias = Callable[[Text], Text | None]
"""What a command substitution gives; None where only running it would tell."""


def fields(raw: Text, variables: Variables, substitute: Substitute) -> list[Text]:
    """The words that one word of a script becomes."""
    found: list[Text] = []
    for one in _braces(raw):
        found += _Word(one, variables, substitute).fields()
    return found


def single(raw: Text, variables: Variables, substitute: Substitute) -> Text:
    """The text that a word becomes where it is not split: a value, a here-string, what is compared."""
    word = _Word(raw, variables, substitute)
    word.splits = False
    found = word.fields()
    if not found:
        return raw.saying("")
    return replace(found[0], opaque=word.lone) if len(found) == 1 else joined(found, raw)


def arithmetic(raw: Text, variables: Variables, substitute: Substitute) -> int:
    """The value of an arithmetic expression. Raises `UnknownError`."""

    def get(name: str) -> int:
        value = variables.values.get(name)
        if value is None:
            raise UnknownError
        value = value[0] if isinstance(value, list) and value else value
        if not isinstance(value, Text) or not value.sure:
            raise UnknownError
        return number(value.text) if value.text.strip() else 0

    def put(name: str, value: int) -> None:
        variables.values[name] = raw.saying(str(value))

    text = raw.text
    if re.search(r"\$\(|`|\$\{[^}]*[^}\w]|\$[0-9#@]|\[|\"", text):
        # Substitutions, defaults and elements inside, which the word's rules know.
        inner = single(
            Text(raw.document, f'"{text}"' if '"' not in text else text, *_framed(raw, '"' not in text)),
            variables,
            substitute,
        )
        if not inner.sure:
            raise UnknownError
        text = inner.text
    return Arithmetic(text, get, put).value()


def _framed(raw: Text, frame: bool) -> tuple[list[int], list[int], int, int]:
    starts, stops = [*raw.starts], [*raw.stops]
    if frame:
        starts, stops = [raw.start, *starts, raw.stop], [raw.start, *stops, raw.stop]
    return starts, stops, raw.start, raw.stop


class _Word:
    """One word being expanded."""

    def __init__(self, raw: Text, variables: Variables, substitute: Substitute, depth: int = 0) -> None:
        self.raw, self.variables, self.substitute, self.depth = raw, variables, substitute, depth
        self.splits = True
        self.pieces = 0  # expansions and runs of literal text
        self.lone = False  # nothing but one expansion of which nothing is known
        self.done: list[Text] = []
        self.parts: list[Text] = []
        self.begun = False

    def fields(self) -> list[Text]:
        if len(self.raw.text) > LONGEST or self.depth > _DEEPEST:
            self.lone = True
            return [self.raw.unknown()]
        self._read(self.raw.text, 0, len(self.raw.text), quoted=False)
        self._close()
        if len(self.done) == 1:
            one = self.done[0]
            return [replace(one, start=self.raw.start, stop=self.raw.stop)]
        return self.done

    def _close(self) -> None:
        if self.begun:
            if len(self.parts) == 1:
                self.done.append(self.parts[0])
            elif self.parts:
                first, last = self.parts[0], self.parts[-1]
                stop = last.stop if last.document is first.document and last.stop > first.start else first.stop
                self.done.append(joined(self.parts, replace(first, stop=stop)))
            else:
                self.done.append(self.raw.saying(""))
        self.parts, self.begun = [], False

    def _add(self, text: Text) -> None:
        self.begun = True
        self.parts.append(text)

    def _literal(self, first: int, stop: int) -> None:
        if first < stop:
            self.pieces += 1
            self.lone = False
            self._add(self.raw.part(first, stop))

    def _read(self, text: str, at: int, end: int, *, quoted: bool) -> None:
        """Expand from `at` to `end`; inside double quotes where `quoted`."""
        run = at
        while at < end:
            char = text[at]
            if char == "\\" and at + 1 < end:
                if quoted and text[at + 1] not in '$`"\\\n':
                    at += 2
                    continue
                self._literal(run, at)
                if text[at + 1] != "\n":
                    self._literal(at + 1, at + 2)
                at = run = at + 2
            elif char == "'" and not quoted:
                self._literal(run, at)
                stop = _until(text, at + 1, end, "'")
                self.begun = True
                self._literal(at + 1, stop)
                at = run = stop + 1
            elif char == '"':
                self._literal(run, at)
                if quoted:  # only an expression that was framed has one here
                    at = run = at + 1
                    continue
                stop = _closing_quote(text, at + 1, end)
                self.begun = self.begun or not _only_array(text[at + 1 : stop])
                self._read(text, at + 1, stop, quoted=True)
                at = run = stop + 1
            elif char == "$" and at + 1 < end and (text[at + 1] in "({" or _NAME.match(text, at + 1, end)):
                self._literal(run, at)
                at = run = self._dollar(text, at, end, quoted=quoted)
            elif char == "$" and text[at + 1 : at + 2] in ("'", '"') and not quoted:
                self._literal(run, at)
                run = at = self._ansi(text, at, end) if text[at + 1] == "'" else at + 1
            elif char == "`":
                self._literal(run, at)
                stop = _until(text, at + 1, end, "`")
                self._substitution(at, stop + 1, at + 1, stop, quoted=quoted)
                at = run = stop + 1
            else:
                at += 1
        self._literal(run, end)

    def _ansi(self, text: str, at: int, end: int) -> int:
        """``$'...'``"""
        self.begun = True
        at += 2
        while at < end and text[at] != "'":
            width = 2 if text[at] == "\\" and at + 1 < end else 1
            char = self.raw.part(at, at + width)
            self.pieces += 1
            self._add(char if width == 1 else char.saying(_ESCAPES.get(text[at + 1], text[at : at + 2])))
            at += width
        return at + 1

    def _dollar(self, text: str, at: int, end: int, *, quoted: bool) -> int:
        if text.startswith("$((", at):
            stop = _closing(text, at + 1, end)
            if text[stop - 1 : stop + 1] == "))":
                written = self.raw.part(at, stop + 1)
                try:
                    value = arithmetic(self.raw.part(at + 3, stop - 1), self.variables, self.substitute)
                    self._value(written.saying(str(value)), written, quoted=quoted)
                except UnknownError:
                    self._unknown(written)
                return stop + 1
        if text[at + 1] == "(":
            stop = _closing(text, at + 1, end)
            self._substitution(at, stop + 1, at + 2, stop, quoted=quoted)
            return stop + 1
        if text[at + 1] == "{":
            stop = _closing(text, at + 1, end)
            self._parameter(self.raw.part(at, stop + 1), self.raw.part(at + 2, stop), quoted=quoted)
            return stop + 1
        name = _NAME.match(text, at + 1, end)
        assert name
        written = self.raw.part(at, name.end())
        self._variable(name[0], None, written, quoted=quoted)
        return name.end()

    def _substitution(self, at: int, stop: int, first: int, last: int, *, quoted: bool) -> None:
        written = self.raw.part(at, stop)
        found = self.substitute(self.raw.part(first, last))
        if found is None:
            self._unknown(written)
        else:
            found = found.part(0, len(found.text.rstrip("\n")))
            self._value(found, written, quoted=quoted)

    def _unknown(self, written: Text) -> None:
        self.lone = not self.pieces
        self.pieces += 1
        self._add(written.unknown())

    def _value(self, value: Text, written: Text, *, quoted: bool) -> None:
        """A value that stands where `written` does; unquoted it is split."""
        if value.opaque or not written.sure:  # a reference that another shell was to resolve
            self._unknown(written)
            return
        if not quoted and self.splits and any(char.isspace() for char in value.text):
            self.pieces += 1
            self.lone = False
            words = list(re.finditer(r"\S+", value.text))
            if value.text[:1].isspace():
                self._close()
            for index, found in enumerate(words):
                if index:
                    self._close()
                piece = (
                    value.part(found.start(), found.end())
                    if len(value.starts) == len(value.text)
                    else value.saying(found[0], sure=value.sure)
                )
                self._add(piece if len(words) > 1 else piece.moved(written))
            if value.text[-1:].isspace():
                self._close()
            return
        self.pieces += 1
        self.lone = False
        if value.text or quoted:
            self._add(value.moved(written))

    def _all(self, values: list[Text], written: Text, *, quoted: bool, star: bool) -> None:
        """``"$@"`` and the like: a word for each."""
        self.pieces += 1
        self.lone = False
        if quoted and star:
            self._add(
                written.saying(" ".join(value.text for value in values), sure=all(value.sure for value in values))
            )
            return
        for index, value in enumerate(values):
            if index:
                self._close()
            if quoted or not self.splits or not value.text:
                self._add(value)
            else:
                self._value(value, replace(value, doubts=()), quoted=False)

    def _variable(self, name: str, index: str | None, written: Text, *, quoted: bool) -> None:
        found = self._lookup(name, index)
        if found is None:
            self._unknown(written)
        elif isinstance(found, list):
            self._all(found, written, quoted=quoted, star=name == "*" or index == "*")
        else:
            self._value(found, written, quoted=quoted)

    def _lookup(self, name: str, index: str | None = None) -> Value | None:
        """The value; None where it is not set, or nobody knows."""
        positional = self.variables.positional
        if name in ("@", "*"):
            return positional
        if name == "#":
            return None if positional is None else self.raw.saying(str(len(positional)))
        if name.isdecimal():
            if name == "0":
                return self.variables.values.get(name)
            if positional is None:
                return None
            return positional[int(name) - 1] if 0 < int(name) <= len(positional) else self.raw.saying("")
        value = self.variables.values.get(name)
        if index is None:
            return (value[0] if value else self.raw.saying("")) if isinstance(value, list) else value
        if isinstance(value, Text) and value.opaque:
            return None
        values = value if isinstance(value, list) else [] if value is None else [value]
        if index in ("@", "*"):
            return None if value is None else values
        if value is None:
            return None
        try:
            at = arithmetic(self.raw.saying(index), self.variables, self.substitute)
        except UnknownError:
            return None
        if any(item.opaque for item in values):
            return None  # any of them may be several
        return values[at] if -len(values) <= at < len(values) else self.raw.saying("")

    def _parameter(self, written: Text, inside: Text, *, quoted: bool) -> None:
        """``${...}``"""
        head = _PARAMETER.match(inside.text)
        if not head:
            self._unknown(written)
            return
        name, index, rest = head["name"], head["index"], inside.text[head.end() :]
        if head["length"] and not rest:
            found = self._lookup(name, index)
            many = index in ("@", "*") or name in ("@", "*")
            known = found is not None and (isinstance(found, list) or found.sure)
            known = known and not (isinstance(found, list) and any(item.opaque for item in found))
            if known and found is not None:
                size = (
                    len(found)
                    if many and isinstance(found, list)
                    else len(found.text if isinstance(found, Text) else "")
                )
                self._value(written.saying(str(size)), written, quoted=quoted)
            else:
                self._unknown(written)
            return
        if head["indirect"] and index in ("@", "*") and not rest:
            values = self._lookup(name, index)
            if not isinstance(values, list) or any(item.opaque for item in values):
                self._unknown(written)
            else:
                self._all([written.saying(str(at)) for at in range(len(values))], written, quoted=quoted, star=False)
            return
        if head["indirect"]:
            through = self._lookup(name)
            if index or rest or not isinstance(through, Text) or not through.sure or not _NAME.fullmatch(through.text):
                self._unknown(written)
            else:
                self._variable(through.text, None, written, quoted=quoted)
            return
        if not rest:
            self._variable(name, index, written, quoted=quoted)
            return
        operator = _OPERATOR.match(rest)
        if not operator:
            self._unknown(written)
            return
        argument = inside.part(head.end() + operator.end(), len(inside.text))
        self._operate(name, index, operator[0], argument, written, quoted=quoted)

    def _operate(
        self, name: str, index: str | None, operator: str, argument: Text, written: Text, *, quoted: bool
    ) -> None:
        found = self._lookup(name, index)
        unset = found is None and (name.isdecimal() or name not in self.variables.values)
        if operator[-1] in "-=+?" and operator != "-:":
            empty = operator[0] == ":" and (found == [] or (isinstance(found, Text) and found.sure and not found.text))
            missing = unset or empty
            if operator[-1] == "+":
                if not missing and (found is None or (isinstance(found, Text) and not found.sure)):
                    self._unknown(written)
                elif not missing:
                    self._nested(argument, written, quoted=quoted)
                return
            if missing and operator[-1] in "-=":
                # Who runs it may have set it, but this is what it is written for.
                before = len(self.parts)
                self._nested(argument, written, quoted=quoted)
                if operator[-1] == "=" and len(self.parts) > before:
                    self.variables.values[name] = joined(self.parts[before:], written)
                return
            if missing:
                self._unknown(written)
                return
            self._variable(name, index, written, quoted=quoted)
            return
        if isinstance(found, list) and operator == ":":
            self._slice(found, argument, written, quoted=quoted)
            return
        if not isinstance(found, Text) or not found.sure:
            self._unknown(written)
            return
        result = self._changed(found.text, operator, argument)
        if result is None:
            self._unknown(written)
        else:
            self._value(written.saying(result), written, quoted=quoted)

    def _nested(self, argument: Text, written: Text, *, quoted: bool) -> None:
        inner = _Word(argument, self.variables, self.substitute, self.depth + 1)
        inner.splits = self.splits
        if inner.depth > _DEEPEST:
            self._unknown(written)
            return
        parts = [(0, len(argument.text))] if quoted or not self.splits else _unquoted(argument.text)
        for first, stop in parts:
            inner._read(argument.text, first, stop, quoted=quoted)
            inner._close()
        found = inner.done
        self.lone = inner.lone and not self.pieces
        self.pieces += 1
        for index, one in enumerate(found):
            if index:
                self._close()
            self._value(
                one if len(found) > 1 else replace(one, start=written.start, stop=written.stop, opaque=False),
                written if len(found) == 1 else one,
                quoted=True,
            )
        self.lone = inner.lone and self.pieces <= 2

    def _slice(self, values: list[Text], argument: Text, written: Text, *, quoted: bool) -> None:
        first, colon, count = argument.text.partition(":")
        try:
            low = arithmetic(written.saying(first), self.variables, self.substitute)
            size = arithmetic(written.saying(count), self.variables, self.substitute) if colon else len(values)
        except UnknownError:
            self._unknown(written)
            return
        if values is self.variables.positional:
            low = max(low - 1, 0)
        self._all(values[low:][: max(size, 0)], written, quoted=quoted, star=False)

    def _changed(self, value: str, operator: str, argument: Text) -> str | None:
        if operator == ":":
            first, colon, count = argument.text.partition(":")
            try:
                low = arithmetic(argument.saying(first), self.variables, self.substitute)
                size = arithmetic(argument.saying(count), self.variables, self.substitute) if colon else len(value)
            except UnknownError:
                return None
            return value[low:][:size]
        if operator == "@" or len(value) > _MOST:
            return None
        if operator[0] in "^,":
            if argument.text:
                return None
            change = str.upper if operator[0] == "^" else str.lower
            return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
        if operator[0] == "/":
            old, _, new = argument.text.partition("/")
            sides = [single(argument.saying(side), self.variables, self.substitute) for side in (old, new)]
            if not all(side.sure for side in sides) or re.search(r"[*?\[#%]", old):
                return None
            found = value.replace(sides[0].text, sides[1].text, -1 if operator == "//" else 1) if old else value
            return found if len(found) <= LONGEST else None
        pattern = single(argument, self.variables, self.substitute)
        if not pattern.sure or len(pattern.text) > 64:
            return None
        return _trimmed(value, pattern.text, operator)


def _trimmed(value: str, pattern: str, operator: str) -> str:
    """``${x#pattern}`` and its kin."""
    fits = re.compile(fnmatch.translate(pattern)).match
    cuts = range(len(value) + 1) if operator in ("#", "%%") else range(len(value), -1, -1)
    for cut in cuts:
        gone, kept = (value[:cut], value[cut:]) if operator[0] == "#" else (value[cut:], value[:cut])
        if fits(gone):
            return kept
    return value


def _unquoted(text: str) -> list[tuple[int, int]]:
    """The words of a text: where each begins and ends."""
    found: list[tuple[int, int]] = []
    at, begin = 0, -1
    while at < len(text):
        if text[at].isspace():
            if begin >= 0:
                found.append((begin, at))
            begin = -1
        else:
            begin = at if begin < 0 else begin
            if text[at] == "\\":
                at += 1
            elif text[at] == "'":
                at = _until(text, at + 1, len(text), "'")
            elif text[at] == '"':
                at = _closing_quote(text, at + 1, len(text))
            elif text[at] == "$" and text[at + 1 : at + 2] in ("(", "{"):
                at = _closing(text, at + 1, len(text))
        at += 1
    return [*found, (begin, len(text))] if begin >= 0 else found


def _only_array(text: str) -> bool:
    """Whether it may be no word at all, as an empty ``"${A[@]}"``."""
    return bool(re.fullmatch(r"\$@|\$\{@.*\}|\$\{\w+\[@\].*\}", text))


def _until(text: str, at: int, end: int, what: str) -> int:
    """Where the first `what` stands, `end` where there is none; behind a backslash it does not count in `...`."""
    while at < end and text[at] != what:
        at += 2 if what == "`" and text[at] == "\\" else 1
    return min(at, end)


def _closing_quote(text: str, at: int, end: int) -> int:
    """The double quote that closes, past what stands in substitutions."""
    while at < end and text[at] != '"':
        if text[at] == "\\":
            at += 1
        elif text[at] == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = _closing(text, at + 1, end)
        at += 1
    return min(at, end)


def _closing(text: str, at: int, end: int) -> int:
    """The bracket that closes the one at `at`, past quotes; the last character where there is none."""
    expected: list[str] = []
    while at < end:
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "'" and expected[-1:] != ['"']:
            stop = text.find("'", at + 1, end)
            at = stop if stop >= 0 else at
        elif char == '"':
            if expected and expected[-1] == '"':
                expected.pop()
            else:
                expected.append('"')
        elif char in "({" and (expected[-1:] != ['"'] or text[at - 1] == "$"):
            expected.append(")" if char == "(" else "}")
        elif expected and char == expected[-1]:
            expected.pop()
            if not expected:
                return at
        at += 1
    return end - 1


def _braces(raw: Text) -> list[Text]:
    """``{0..3}`` and ``{a,b}`` written out."""
    text = raw.text
    if "{" not in text or len(text) > LONGEST:
        return [raw]
    for first, last, items in _brace_groups(text):
        number_range = _RANGE.match(text, first + 1, last)
        heads, tails = raw.part(0, first), _braces(raw.part(last + 1, len(text)))
        if number_range:
            inner = [raw.part(first, last + 1).saying(item) for item in _counted(number_range)]
        elif len(items) > 1:
            inner = [found for start, stop in items for found in _braces(raw.part(start, stop))]
        else:
            continue
        if not inner or len(inner) * len(tails) > _MOST:
            return [raw]
        return [joined((heads, middle, tail), raw) for middle in inner for tail in tails]
    return [raw]


def _counted(found: re.Match[str]) -> Iterator[str]:
    try:
        first, last, step = (
            number(found[1].lstrip("0") or "0"),
            number(found[2].lstrip("0") or "0"),
            abs(number(found[3] or "1")),
        )
    except UnknownError:
        return
    step = step or 1
    if abs(last - first) // step >= _MOST:
        return
    width = max(len(found[1]), len(found[2])) if any(re.match(r"-?0\d", found[end]) for end in (1, 2)) else 0
    for value in range(first, last + 1, step) if first <= last else range(first, last - 1, -step):
        yield str(value).zfill(width)


def _brace_groups(text: str) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Groups in braces outside of quotes, outermost first: where they begin and end, and their items."""
    stack: list[tuple[int, list[int]]] = []
    found: list[tuple[int, int, list[tuple[int, int]]]] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "'":
            at = _until(text, at + 1, len(text), "'")
        elif char == '"':
            at = _closing_quote(text, at + 1, len(text))
        elif char == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = _closing(text, at + 1, len(text))
        elif char == "{":
            stack.append((at, []))
        elif char == "," and stack:
            stack[-1][1].append(at)
        elif char == "}" and stack:
            first, commas = stack.pop()
            if not stack:
                ends = [first, *commas, at]
                found.append((first, at, [(ends[i] + 1, ends[i + 1]) for i in range(len(ends) - 1)]))
        at += 1
    return iter(found)
