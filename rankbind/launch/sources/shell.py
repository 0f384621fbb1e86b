"""Shell scripts: their simple commands, as far as they can be told without running anything.

The grammar is tree-sitter's; loops over what is known are written out, both sides of a condition that is not known are
looked at, and what only running would tell (a substitution, a variable that nobody set) stays as it is written.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rankbind.launch.sources import expand, grammar, outputs
from rankbind.launch.sources.arithmetic import UnknownError, number
from rankbind.launch.sources.expand import Variables
from rankbind.launch.sources.found import FullError, Place, Shared
from rankbind.launch.sources.placed import Text, joined
from rankbind.launch.turn import Step

if TYPE_CHECKING:
    from tree_sitter import Node

_Given = TypeVar("_Given")

_MOST_ROUNDS = 4096
_DEEPEST = 30
_ASSIGNING = frozenset({"export", "declare", "typeset", "local", "readonly"})


class Shell:
    """One shell, and what it has set so far."""

    def __init__(self, shared: Shared, variables: Variables, place: Place, depth: int = 0) -> None:
        self.shared, self.variables, self.place, self.depth = shared, variables, place, depth
        self.found = shared.found
        self.path = place.path
        self.functions: dict[str, tuple[Text, Node, Callable[[int], int]]] = {}
        self.called: set[str] = set()
        self.active: set[str] = set()
        self.all_exported = False
        self.source: Text
        self.at: Callable[[int], int]

    # Reading

    def run(self, source: Text) -> None:
        """What `source` would start."""
        self.read(source)
        for name in sorted(self.functions.keys() - self.called):
            # Nobody is seen to call it; who does gives it arguments that are not known.
            self.call(name, None)

    def read(self, source: Text) -> None:
        """The statements of `source`."""
        if self.depth > _DEEPEST:
            self.found.note("shells in shells, too deeply to be read", source)
            return
        self.found.step()
        # A carriage return is a blank here, as it is for whoever wrote it.
        text = source.text.replace("\\\r\n", " \\\n").replace("\r\n", " \n").replace("\0", " ")
        clean = replace(source, text=text)
        root, at = grammar.parse(clean.text)
        self.source, self.at = clean, at
        for wrong in grammar.errors(root):
            first, stop = at(wrong.start_byte), at(wrong.end_byte)
            first += len(clean.text[first:stop]) - len(clean.text[first:stop].lstrip())
            where = clean.part(first, max(stop, first + 1))
            if clean.text[stop:].strip():
                self.found.note("a spot that the grammar of shells does not know: not looked at", where)
            else:
                what = f"{wrong.type} is missing" if wrong.is_missing else "what begins here does not end"
                self.found.unreadable(f"not shell: {what}", where.span)
        self.many(root)

    def many(self, node: Node) -> bool | None:
        """The statements in `node`."""
        return self._all(node.named_children)

    def _all(self, nodes: Sequence[Node]) -> bool | None:
        """Statements one after the other, except where one is put in the background."""
        status: bool | None = None
        block = self.found.block()
        for at, child in enumerate(nodes):
            following = child.next_sibling
            background = following is not None and following.type == "&"
            status = self.within(Step(block, at, "&" if background else ""), partial(self.statement, child))
        return status

    def within(self, step: Step, action: Callable[[], _Given]) -> _Given:
        """Do something as that statement of a list."""
        kept = self.path
        self.path = (*kept, step)
        try:
            return action()
        finally:
            self.path = kept

    def statement(self, node: Node) -> bool | None:
        """Run one statement; whether it succeeds, None where nobody knows."""
        self.found.step()
        method: Callable[[Node], bool | None] | None = getattr(self, f"_{node.type}", None)
        return method(node) if method else None

    def text(self, node: Node) -> Text:
        """The text of a node."""
        return self.source.part(self.at(node.start_byte), self.at(node.end_byte))

    def fields(self, raw: Text) -> list[Text]:
        """The words that a word becomes."""
        return expand.fields(raw, self.variables, self.substitute)

    def single(self, raw: Text) -> Text:
        """The value that a word becomes."""
        return expand.single(raw, self.variables, self.substitute)

    # Statements

    def _ERROR(self, node: Node) -> bool | None:  # noqa: N802
        return (
            self.many(node) if any(child.type.endswith(("statement", "command")) for child in node.children) else None
        )

    def _list(self, node: Node) -> bool | None:
        first, *rest = node.named_children
        block = self.found.block()
        status = self.within(Step(block, 0), partial(self.statement, first))
        operator = next((child.type for child in node.children if child.type in ("&&", "||")), "&&")
        for at, child in enumerate(rest, start=1):
            if status is not None and status == (operator == "||"):
                continue
            unknown = status is None
            action: Callable[[], bool | None] = partial(self.statement, child)
            other = self.within(Step(block, at), partial(self.perhaps, action) if unknown else action)
            status = None if unknown else other
        return status

    def _pipeline(self, node: Node) -> bool | None:
        block = self.found.block()
        for at, child in enumerate(node.named_children):
            self.within(Step(block, at, "&"), partial(self.apart, partial(self.statement, child)))
        return None

    def _subshell(self, node: Node) -> bool | None:
        return self.apart(lambda: self.many(node))

    def _compound_statement(self, node: Node) -> bool | None:
        if node.children and node.children[0].type == "((":
            value = self.calculated(self._between(node))
            return None if value is None else value != 0
        return self.many(node)

    _do_group = many

    def _negated_command(self, node: Node) -> bool | None:
        status = self.many(node)
        return None if status is None else not status

    def _redirected_statement(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        redirects = node.children_by_field_name("redirect")
        status = None
        if body is not None:
            status = self.command(body, redirects) if body.type == "command" else self.statement(body)
        for redirect in redirects:
            # "cat <<EOF | other": the grammar hangs what follows on the here-document.
            for child in redirect.named_children:
                if redirect.type == "heredoc_redirect" and child.type in _STATEMENTS:
                    self.statement(child)
        return status

    def _if_statement(self, node: Node) -> bool | None:
        branches: list[tuple[list[Node], list[Node]]] = []
        conditions = [child for child in node.children_by_field_name("condition") if child.is_named]
        body: list[Node] = []
        for child in node.named_children:
            if child.type == "elif_clause":
                branches.append((conditions, body))
                conditions, body = _elif(child)
            elif child.type == "else_clause":
                branches.append((conditions, body))
                conditions, body = [], [*child.named_children]
            elif child not in conditions:
                body.append(child)
        branches.append((conditions, body))
        self._branches(branches)
        return None

    def _branches(self, branches: Sequence[tuple[list[Node], list[Node]]]) -> None:
        """One of several, the first whose condition holds."""
        if not branches:
            return
        (conditions, body), *rest = branches
        status: bool | None = True
        for condition in conditions:
            status = self.statement(condition)
        if status:
            self._all(body)
        elif status is False:
            self._branches(rest)
        else:
            self.either(lambda: self._all(body), lambda: self._branches(rest))

    def _case_statement(self, node: Node) -> bool | None:
        value_node = node.child_by_field_name("value")
        if value_node is None:
            return None
        value = self.single(self.text(value_node))
        items = [child for child in node.named_children if child.type == "case_item"]
        self._case(value, items)
        return None

    def _case(self, value: Text, items: Sequence[Node]) -> None:
        if not items:
            return
        first, *rest = items
        patterns = first.children_by_field_name("value")
        body = [child for child in first.named_children if child not in patterns]
        fits: bool | None = False
        for pattern in patterns:
            wanted = self.single(self.text(pattern))
            if wanted.text == "*":
                fits = True
            elif not value.sure or not wanted.sure or "(" in wanted.text:
                fits = fits or None
            elif fnmatch.fnmatchcase(value.text, wanted.text):
                fits = True
        if fits:
            self._all(body)
        elif fits is False:
            self._case(value, rest)
        else:
            self.either(lambda: self._all(body), lambda: self._case(value, rest))

    def _for_statement(self, node: Node) -> bool | None:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None:
            return None
        name = self.text(variable).text
        raws = node.children_by_field_name("value")
        values: list[Text] = []
        for raw in grammar.words(self.source, self.at, raws):
            values += self.fields(raw)
        if not raws:
            values = self.variables.positional or [self.text(variable).saying("$@").unknown()]
        if len(values) > _MOST_ROUNDS:
            raise FullError
        block = self.found.block()
        for at, value in enumerate(values):
            self.variables.values[name] = value
            action = partial(self.within, Step(block, at), partial(self.many, body))
            if value.opaque:  # it may be several, or none
                self.perhaps(action)
            else:
                action()
        return None

    def _c_style_for_statement(self, node: Node) -> bool | None:
        body = node.child_by_field_name("body")
        if body is None:
            return None
        inner = self._between(node, "((", "))")
        parts = [*_semicolons(inner)]
        if len(parts) != 3:
            return None
        self.calculated(parts[0])
        block = self.found.block()
        for at in range(_MOST_ROUNDS):
            condition = self.calculated(parts[1]) if parts[1].text.strip() else None
            if condition is None:
                self.perhaps(lambda: self.many(body))
                return None
            if not condition:
                return None
            self.within(Step(block, at), partial(self.many, body))
            if self.calculated(parts[2]) is None:
                return None
        raise FullError

    def _while_statement(self, node: Node) -> bool | None:
        conditions = [child for child in node.children_by_field_name("condition") if child.is_named]
        body = node.child_by_field_name("body")
        if body is None:
            return None
        wanted = not any(child.type == "until" for child in node.children)
        block = self.found.block()
        for at in range(_MOST_ROUNDS):
            before = dict(self.variables.values)
            status: bool | None = None
            for condition in conditions:
                status = self.statement(condition)
            if status is None:
                self.perhaps(lambda: self.many(body))
                return None
            if status != wanted:
                return None
            self.within(Step(block, at), partial(self.many, body))
            if self.variables.values == before:
                return None  # for ever
        raise FullError

    def _function_definition(self, node: Node) -> bool | None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.text(name).text] = (self.source, body, self.at)
            self.called.discard(self.text(name).text)
        return True

    def call(self, name: str, arguments: list[Text] | None) -> bool | None:
        """A function of the script."""
        source, body, at = self.functions[name]
        self.called.add(name)
        if name in self.active:
            return None  # what calls itself is not followed
        self.active.add(name)
        kept = self.source, self.at, self.variables.positional
        self.source, self.at, self.variables.positional = source, at, arguments
        try:
            return self.statement(body)
        finally:
            self.active.discard(name)
            self.source, self.at, self.variables.positional = kept

    # Conditions

    def _test_command(self, node: Node) -> bool | None:
        if node.children and node.children[0].type == "((":
            value = self.calculated(self._between(node))
            return None if value is None else value != 0
        inner = node.named_children
        return self.test(inner[0]) if len(inner) == 1 else None

    def test(self, node: Node) -> bool | None:
        """What is between ``[`` and ``]``."""
        children = node.children
        if node.type == "parenthesized_expression":
            return self.test(node.named_children[0]) if node.named_child_count == 1 else None
        if node.type == "unary_expression" and len(children) == 2:
            operator = self.text(children[0]).text
            if operator == "!":
                status = self.test(children[1])
                return None if status is None else not status
            if operator not in ("-z", "-n"):
                return None
            value = self._tested(children[1])
            return None if value is None else (not value.text) == (operator == "-z")
        if node.type == "binary_expression" and len(children) == 3:
            left, operator, right = children[0], self.text(children[1]).text, children[2]
            if operator in ("&&", "-a", "||", "-o"):
                first, second = self.test(left), self.test(right)
                decided = operator in ("||", "-o")
                if decided in (first, second):
                    return decided
                return None if None in (first, second) else not decided
            negated = left.type == "unary_expression" and self.text(left.children[0]).text == "!"
            if negated:  # "! $A = 1": the grammar binds the mark to the word
                left = left.children[-1]
            status = self._compared(self.single(self.text(left)), operator, self.single(self.text(right)))
            return status if status is None else status != negated
        if node.type in ("binary_expression", "unary_expression"):
            return None
        value = self._tested(node)
        return None if value is None else bool(value.text)

    def _tested(self, node: Node) -> Text | None:
        """What is asked whether it is empty. What the script never sets is taken to be: it is written for that."""
        raw = self.text(node)
        value = self.single(raw)
        if value.sure:
            return value
        name = raw.text.strip('"').removeprefix("$").removeprefix("{").removesuffix("}")
        known = name in self.variables.values or self.variables.positional is not None
        return raw.saying("") if not known and (name.isidentifier() or name.isdecimal()) else None

    @staticmethod
    def _compared(left: Text, operator: str, right: Text) -> bool | None:
        if not left.sure or not right.sure:
            return None
        if operator in ("=", "=="):
            return fnmatch.fnmatchcase(left.text, right.text)
        if operator == "!=":
            return not fnmatch.fnmatchcase(left.text, right.text)
        try:
            first, second = number(left.text or "0"), number(right.text or "0")
        except UnknownError:
            return None
        results = {
            "-eq": first == second, "-ne": first != second, "-lt": first < second,
            "-le": first <= second, "-gt": first > second, "-ge": first >= second,
        }  # fmt: skip
        return results.get(operator)

    def calculated(self, raw: Text) -> int | None:
        """The value of an arithmetic expression; None where nobody knows."""
        try:
            return expand.arithmetic(raw, self.variables, self.substitute)
        except UnknownError:
            return None

    def _between(self, node: Node, opening: str = "((", closing: str = "))") -> Text:
        first = next((child for child in node.children if child.type == opening), node)
        last = next((child for child in node.children if child.type == closing), node)
        return self.source.part(self.at(first.end_byte), self.at(last.start_byte))

    # What is not certain to happen

    def apart(self, action: Callable[[], bool | None]) -> bool | None:
        """In a subshell: what it sets is lost."""
        kept = self.variables
        self.variables = kept.copy()
        try:
            return action()
        finally:
            self.variables = kept

    def perhaps(self, action: Callable[[], object]) -> bool | None:
        """Something that may happen or not."""
        self.either(action, lambda: None)
        return None

    def either(self, first: Callable[[], object], second: Callable[[], object]) -> None:
        """One of two; what they set differently is not known afterwards."""
        block = self.found.block()
        before = self.variables
        self.variables = before.copy()
        self.within(Step(block, 0, "|"), first)
        one = self.variables
        self.variables = before.copy()
        self.within(Step(block, 1, "|"), second)
        other = self.variables
        merged = Variables({}, one.exported | other.exported, one.positional)
        if one.positional is not other.positional:
            merged.positional = None
        for name in one.values.keys() | other.values.keys():
            a, b = one.values.get(name), other.values.get(name)
            if _same(a, b):
                merged.values[name] = a if a is not None else self.source.saying("")
            else:
                known = a if a is not None else b
                some = (known[0] if known else self.source.part(0, 0)) if isinstance(known, list) else known
                assert some is not None
                merged.values[name] = some.unknown()
        self.variables = merged

    # Variables

    def _variable_assignments(self, node: Node) -> bool | None:
        return self.many(node)

    def _variable_assignment(self, node: Node) -> bool | None:
        self.assign(node)
        return True

    def assign(self, node: Node) -> str | None:
        """``NAME=value``, ``NAME+=value``, ``NAME=(...)``, ``NAME[i]=value``; the name."""
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None:
            return None
        index = None
        if target.type == "subscript":
            inner, position = target.child_by_field_name("name"), target.child_by_field_name("index")
            if inner is None or position is None:
                return None
            name = self.text(inner).text
            index = self.calculated(self.text(position))
            if index is None:
                self._forget(name, self.text(node))
                return name
        else:
            name = self.text(target).text
        more = any(child.type == "+=" for child in node.children)
        known = self.variables.values.get(name)
        if value is not None and value.type == "array":
            items: list[Text] = []
            for raw in grammar.words(self.source, self.at, value.named_children):
                items += self.fields(raw)
            before = known if isinstance(known, list) else [] if known is None else [known]
            self.set(name, [*before, *items] if more else items)
            return name
        # The grammar may leave a part of the value outside of its node, but nothing stands between.
        single = self.single(self._whole_value(node, value))
        if index is not None:
            items = [*known] if isinstance(known, list) else []
            if 0 <= index <= len(items):
                self.set(name, [*items[:index], single, *items[index + 1 :]])
            else:
                self._forget(name, single)
        elif more and isinstance(known, list):
            self.set(name, [joined((known[0], single), single) if known else single, *known[1:]])
        elif more and isinstance(known, Text):
            self.set(name, single.unknown() if known.opaque else joined((known, single), single))
        else:
            self.set(name, single)
        return name

    def _whole_value(self, node: Node, value: Node | None) -> Text:
        start = self.at(value.start_byte) if value is not None else self.at(node.end_byte)
        stop = max(self.at(node.end_byte), start)
        return self.source.part(start, stop) if start < stop else self.text(node).saying("")

    def set(self, name: str, value: expand.Value) -> None:
        """A variable."""
        if isinstance(value, list) and len(value) > _MOST_ROUNDS:
            raise FullError
        self.variables.values[name] = value
        if self.all_exported:
            self.variables.exported.add(name)

    def _forget(self, name: str, at: Text) -> None:
        self.variables.values[name] = at.saying(f"${name}").unknown()

    def _declaration_command(self, node: Node) -> bool | None:
        word = node.children[0].type
        removed = False
        for child in node.named_children:
            if child.type == "variable_assignment":
                name = self.assign(child)
            elif child.type == "variable_name":
                name = self.text(child).text
            else:
                option = self.text(child).text
                removed |= option == "-n" and word == "export"
                if word in ("declare", "typeset") and option.startswith("-") and "x" in option:
                    word = "export"
                continue
            if name and word == "export":
                (self.variables.exported.discard if removed else self.variables.exported.add)(name)
        return True

    def _unset_command(self, node: Node) -> bool | None:
        for child in node.named_children:
            self.variables.values.pop(self.text(child).text, None)
        return True

    # Commands

    def _command(self, node: Node) -> bool | None:
        return self.command(node, ())

    def command(self, node: Node, redirects: Sequence[Node]) -> bool | None:
        """A simple command."""
        prefix: dict[str, Text] = {}
        ranges: list[Node] = []
        inner: list[Node] = []
        assignments = [child for child in node.children if child.type == "variable_assignment"]
        for child in node.children:
            if child.type == "variable_assignment":
                continue
            if child.type.endswith("_redirect"):
                inner.append(child)
            else:
                ranges.append(child)
        name = node.child_by_field_name("name")
        for child in assignments:
            gap = (
                self.source.text[self.at(child.end_byte) : self.at(child.next_sibling.start_byte)]
                if child.next_sibling
                else ""
            )
            if name is None or "\n" in gap.replace("\\\n", ""):
                # The grammar draws assignments of lines above into the command.
                self.assign(child)
                continue
            kept = self.variables
            self.variables = kept.copy()
            set_name = self.assign(child)
            value = self.variables.values.get(set_name or "")
            self.variables = kept
            if set_name and isinstance(value, Text):
                prefix[set_name] = value
        for redirect in (*inner, *redirects):
            # "> log --more words": all of them are destinations to the grammar.
            if redirect.type == "file_redirect":
                ranges += redirect.children_by_field_name("destination")[1:]
            elif redirect.type == "heredoc_redirect":
                ranges += redirect.children_by_field_name("argument")
        words: list[Text] = []
        for raw in grammar.words(self.source, self.at, ranges):
            words += self.fields(raw)
        if not words:
            return None
        return self.start(words, prefix, (*inner, *redirects))

    def start(self, words: list[Text], prefix: Mapping[str, Text], redirects: Sequence[Node] = ()) -> bool | None:
        """Start what `words` say, a builtin, a function or a program."""
        from rankbind.launch.sources import starters

        first = words[0].text if words[0].sure else ""
        if first in self.functions:
            return self.call(first, words[1:])
        builtin: Callable[[list[Text], Sequence[Node]], bool | None] | None = {
            ":": self._true, "true": self._true, "false": self._false, "set": self._set, "shift": self._shift,
            "let": self._let, "eval": self._eval, "read": self._read, "mapfile": self._mapfile,
            "readarray": self._mapfile, "[": self._bracket, "test": self._bracket,
        }.get(first)  # fmt: skip
        if builtin:
            return builtin(words, redirects)
        if first in _ASSIGNING:
            for word in words[1:]:
                name, equals, _ = word.text.partition("=")
                if equals and name.isidentifier():
                    self.set(name, word.part(len(name) + 1, len(word.text)))
                    self.variables.exported.add(name)
            return True
        place = replace(self.place, path=self.path)
        if place.name is None:
            place = replace(place, name=f"line {words[0].span.line}")
        starters.start(self.shared, words, self.variables.environment() | dict(prefix), place, self.depth)
        return None

    def _true(self, _words: list[Text], _redirects: Sequence[Node]) -> bool | None:
        return True

    def _false(self, _words: list[Text], _redirects: Sequence[Node]) -> bool | None:
        return False

    def _bracket(self, _words: list[Text], _redirects: Sequence[Node]) -> bool | None:
        return None  # only where the grammar did not know it for a test

    def _set(self, words: list[Text], _redirects: Sequence[Node]) -> bool | None:
        for at, word in enumerate(words[1:], start=1):
            if word.text == "--":
                self.variables.positional = words[at + 1 :]
                break
            following = [other.text for other in words[at + 1 : at + 2]]
            if word.text[:1] in ("-", "+") and ("a" in word.text or following == ["allexport"]):
                self.all_exported = word.text[0] == "-"
        return True

    def _shift(self, words: list[Text], _redirects: Sequence[Node]) -> bool | None:
        if self.variables.positional is not None:
            count = int(words[1].text) if len(words) > 1 and words[1].text.isdecimal() and len(words[1].text) < 6 else 1
            self.variables.positional = self.variables.positional[count:]
        return True

    def _let(self, words: list[Text], _redirects: Sequence[Node]) -> bool | None:
        for word in words[1:]:
            self.calculated(word)
        return None

    def _eval(self, words: list[Text], _redirects: Sequence[Node]) -> bool | None:
        if all(word.sure for word in words) and self.depth < _DEEPEST:
            blank = words[0].saying(" ")
            script = joined([part for word in words[1:] for part in (word, blank)], words[0])
            if script.sure:
                kept = self.source, self.at
                self.depth += 1
                self.read(script)
                self.depth -= 1
                self.source, self.at = kept
        return None

    def _read(self, words: list[Text], redirects: Sequence[Node]) -> bool | None:
        options = [word.text for word in words[1:] if word.text.startswith("-")]
        names = [word for word in words[1:] if word.text.isidentifier()]
        given = self._input(redirects) if any("a" in option for option in options) else None
        for word in names:
            if given is None:
                self._forget(word.text, word)
            else:
                self.set(word.text, self._lines(given))
        return None

    def _mapfile(self, words: list[Text], redirects: Sequence[Node]) -> bool | None:
        names = [word for word in words[1:] if word.text.isidentifier()]
        if names:
            given = self._input(redirects)
            if given is None:
                self._forget(names[-1].text, names[-1])
            else:
                self.set(names[-1].text, self._lines(given))
        return None

    @staticmethod
    def _lines(text: Text) -> list[Text]:
        return [text.saying(line, sure=text.sure) for line in text.text.split()]

    def _input(self, redirects: Sequence[Node]) -> Text | None:
        """What stands behind ``< <(...)`` or ``<<<``."""
        for redirect in redirects:
            for child in redirect.named_children:
                if child.type == "process_substitution":
                    text = self.text(child)
                    return self.substitute(text.part(2, len(text.text) - 1))
                if redirect.type == "herestring_redirect":
                    value = self.single(self.text(child))
                    return None if value.opaque else value
        return None

    # Substitutions

    def substitute(self, raw: Text) -> Text | None:
        """What ``$(...)`` gives; None where only running it would tell."""
        self.found.step()
        if self.depth > _DEEPEST or len(raw.text) > _MOST_ROUNDS:
            return None
        root, at = grammar.parse(raw.text)
        if root.has_error or root.named_child_count != 1:
            return None
        kept = self.source, self.at, self.depth
        self.source, self.at, self.depth = raw, at, self.depth + 1
        try:
            return self._output(root.named_children[0])
        finally:
            self.source, self.at, self.depth = kept

    def _output(self, node: Node) -> Text | None:
        first, *filters = node.named_children if node.type == "pipeline" else [node]
        words = self._plain(first)
        nodes = self.shared.allocation.nodes if self.shared.allocation else None
        found = outputs.of(words, self.source, self.variables, nodes, self.calculated)
        for child in filters:
            found = None if found is None else outputs.filtered(found, [word.text for word in self._plain(child)])
        return found

    def _plain(self, node: Node) -> list[Text]:
        """The words of a command; none where it is more than that."""
        body = node.child_by_field_name("body") if node.type == "redirected_statement" else node
        if body is None or body.type != "command":
            return []
        children = [child for child in body.children if child.type != "variable_assignment"]
        return [word for raw in grammar.words(self.source, self.at, children) for word in self.fields(raw)]


_STATEMENTS = ("command", "list", "pipeline", "subshell", "compound_statement", "redirected_statement")


def _same(a: expand.Value | None, b: expand.Value | None) -> bool:
    if a is b:
        return True
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, Text) and isinstance(b, Text) and a.text == b.text and not a.opaque and not b.opaque


def _elif(node: Node) -> tuple[list[Node], list[Node]]:
    conditions: list[Node] = []
    body: list[Node] = []
    into = conditions
    for child in node.children:
        if child.type == "then":
            into = body
        elif child.is_named:
            into.append(child)
    return conditions, body


def _semicolons(text: Text) -> Iterator[Text]:
    start = 0
    for index, char in enumerate(text.text):
        if char == ";":
            yield text.part(start, index)
            start = index + 1
    yield text.part(start, len(text.text))
