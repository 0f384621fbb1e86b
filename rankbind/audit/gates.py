"""Every condition about the rank of this process, wherever it stands, and the axes that it is about.

Conditions are looked for where a rank is named. What they are put into (a flag, an attribute, a predicate, an argument)
is followed by its name, so that a condition that names no rank itself is found too.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from rankbind.audit.expression import (
    Apply,
    Constant,
    Coordinate,
    Expression,
    Given,
    Parameter,
    Place,
    Size,
    axes,
    both,
    either,
    filled,
    holes,
    kinds,
    mapped,
    negated,
    text,
    walk,
)
from rankbind.audit.meaning import Meaning, Scope
from rankbind.audit.program import Class, Function, Module, Program
from rankbind.audit.ranks import Layout, Questions, points, table
from rankbind.audit.spans import span
from rankbind.audit.vocabulary import Vocabulary
from rankbind.audit.walk import Names
from rankbind.source import Span

_WORDS: Final = (b"rank", b"RANK", b"main_process", b"global_zero", b"is_pipeline_", b"parallel_ind", b"dp_ind")
"""Parts of words that may name a rank."""
_ROUNDS: Final = 3
"""How often what a condition was put into is followed to the conditions that use it."""
_MOST_FILES: Final = 12
"""Files in which a name may occur and still be followed: one that is everywhere is many things."""
_MOST_AXES: Final = 5
_MOST_HANDS: Final = 30
"""How often what is about a rank is assigned on from one local name to the next."""
_MEMBERS: Final = frozenset(["is_first_rank", "is_last_rank"])
_TRUTHS: Final = frozenset(["bool", "all", "any"])
_COMPARISONS: Final = frozenset(["==", "!=", "<", "<=", ">", ">=", "is", "is not", "in", "not in"])


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition about ranks, wherever it stands.

    Attributes:
        kind: ``if``, ``while``, ``assert``, ``match``, ``ifexp``, ``assign``, ``keyword``, ``argument``, ``return``.
        target: the flag or the parameter that it becomes.
        axes: the axes that it tests, as they are named there.
        pinned: those of which it lets one index pass.
        text: the condition, over coordinates.
    """

    span: Span
    function: str
    kind: str
    target: str | None
    axes: tuple[str, ...]
    pinned: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A gate with what it means, for rules.

    Attributes:
        value: the condition, over coordinates and what is given.
        into: the parameter that takes it, where it is an argument.
    """

    gate: Gate
    function: Function
    place: Place
    value: Expression
    into: Parameter | None = None


def gates(meaning: Meaning, modules: Iterable[Module] | None = None) -> Iterator[Gate]:
    """Every gate, in the order of the files and of the lines.

    Args:
        modules: those that name a rank; what they put a gate into is followed to files that have been parsed, and no
            further. All files where it is left out.
    """
    for condition in conditions(meaning, modules):
        yield condition.gate


def conditions(meaning: Meaning, modules: Iterable[Module] | None = None) -> list[Condition]:
    """Every gate with what it means, in the order of the files and of the lines."""
    search = _Search(meaning, everywhere=modules is None)
    search.start(relevant(meaning.program, meaning.vocabulary) if modules is None else modules)
    return search.sorted()


def near(meaning: Meaning, functions: Iterable[Function]) -> list[Condition]:
    """The gates in the files of some functions, and in those files that ask for an option that such a gate asks for.

    Files that nothing has been asked of before are left out.
    """
    parsed = {module.source.name: module for module in relevant(meaning.program, meaning.vocabulary, parsed=True)}
    named = (function.module.source.name for function in functions)
    first = parsed if meaning.program.small else {name: parsed[name] for name in named if name in parsed}
    search = _Search(meaning, everywhere=False)
    search.start(first.values())
    options = {
        part.text.rpartition(".")[2]
        for condition in search.found.values()
        if Coordinate in kinds(condition.value)
        for part in walk(condition.value)
        if isinstance(part, Given)
    }
    asking = [sources for name in options if len(sources := meaning.program.mentioning(name)) <= _MOST_FILES]
    names = {source.name for sources in asking for source in sources} - first.keys()
    search.start(module for name, module in parsed.items() if name in names)
    return search.sorted()


def relevant(program: Program, vocabulary: Vocabulary, *, parsed: bool = False) -> Iterator[Module]:
    """The modules that name a rank.

    Args:
        parsed: only those that something has been asked of before.
    """
    words = _words(vocabulary)
    for source in program.sources:
        if parsed and not program.parsed(source):
            continue
        if any(word in source.data for word in words) and (module := program.module(source)) is not None:
            yield module


def _words(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    own = (name.rpartition(".")[2].strip("*") for name in vocabulary.named)
    return (*_WORDS, *(name.encode() for name in own if name))


@dataclass(slots=True)
class _Search:
    meaning: Meaning
    everywhere: bool = True
    found: dict[Span, Condition] = field(default_factory=dict)
    lines: dict[str, set[int]] = field(default_factory=dict)
    """By file, those with a word on them that may be about a rank."""
    words: dict[str, None] = field(default_factory=dict)
    """Names of attributes and functions that hold or give a condition."""
    taken: dict[Parameter, None] = field(default_factory=dict)
    """Parameters that are given one."""

    def start(self, modules: Iterable[Module]) -> None:
        pattern = re.compile(b"|".join(map(re.escape, _words(self.meaning.vocabulary))))
        for module in modules:
            for function in self.marked(module, pattern):
                self.look(function)
        words: set[str] = set()
        taken: set[Parameter] = set()
        for _ in range(_ROUNDS if self.everywhere or self.meaning.program.small else 1):
            new = [name for name in self.words if name not in words]
            given = [parameter for parameter in self.taken if parameter not in taken]
            words.update(new)
            taken.update(given)
            todo = {id(function): function for name in new for function in self.mentioning(name)}
            todo.update((id(function), function) for function in self.takers(given))
            for function in todo.values():
                self.look(function)

    def sorted(self) -> list[Condition]:
        return [self.found[at] for at in sorted(self.found)]

    def marked(self, module: Module, pattern: re.Pattern[bytes]) -> list[Function]:
        """The functions in whose own lines a pattern occurs, in the order of the lines, which are kept."""
        lines = lines_of(module.source.data, pattern)
        self.lines.setdefault(module.source.name, set()).update(lines)
        return around(module, lines)

    def mentioning(self, name: str) -> Iterator[Function]:
        sources = self.meaning.program.mentioning(name)
        if len(sources) > _MOST_FILES:
            return
        pattern = re.compile(rb"\b" + name.encode() + rb"\b")
        for source in sources:
            if not self.everywhere and not self.meaning.program.parsed(source):
                continue
            if (module := self.meaning.program.module(source)) is not None:
                yield from self.marked(module, pattern)

    def takers(self, parameters: Iterable[Parameter]) -> Iterator[Function]:
        """The functions of parameters; all methods of the class whose fields they are."""
        files = {source.name: source for source in self.meaning.program.sources}
        for parameter in parameters:
            source = files.get(parameter.function.rpartition(":")[0])
            module = self.meaning.program.module(source) if source else None
            for function in module.functions if module else ():
                if function.key == parameter.function:
                    yield function
                elif function.owner is not None and function.owner.key == parameter.function and module is not None:
                    pattern = re.compile(rb"\." + parameter.name.encode() + rb"\b")
                    self.lines.setdefault(module.source.name, set()).update(lines_of(module.source.data, pattern))
                    yield function

    def look(self, function: Function) -> None:
        """Note the conditions of a function, and what they are put into."""
        read = function.walk
        near = _Near(function, self.lines.get(function.module.source.name, set()), self.taken)
        kind_of = _Kinds(function)
        before = len(self.found)
        flags = {name for name in function.parameters if Parameter(function.key, name) in self.taken}
        for visit, bound in (*read.assigned, *read.stores):
            if not (near(bound.node) and self.may_be(bound.node, flags)):
                continue
            if self.note(function, bound.node, bound.names, "assign", ast.unparse(visit.node)):
                match visit.node:
                    case ast.Name(name):
                        flags.add(name)
                    case ast.Attribute(_, name):
                        self.words[name] = None
        for visit in read.tests:
            assert isinstance(visit.node, ast.expr)
            if near(visit.node):
                self.note(function, visit.node, visit.names, kind_of, None)
        for visit in read.returns:
            assert isinstance(visit.node, ast.expr)
            put = near(visit.node) and self.may_be(visit.node, flags)
            if put and self.note(function, visit.node, visit.names, "return", None):
                self.words[function.name] = None
        if len(self.found) > before and read.returns and all(_answers(visit.node) for visit in read.returns):
            self.words[function.name] = None
        for visit in read.calls:
            assert isinstance(visit.node, ast.Call)
            if near(visit.node):
                self.handed(function, visit.node, visit.names, near, flags)

    def handed(self, function: Function, node: ast.Call, names: Names, near: _Near, flags: set[str]) -> None:
        """Note the conditions among the arguments of a call, and the parameters that take them."""
        callee: Function | Class | None = None
        asked = False
        if isinstance(node.func, ast.Name) and node.func.id in _TRUTHS:
            return
        for place, value in enumerate((*node.args, *(keyword.value for keyword in node.keywords))):
            if not self.may_be(value, flags) or not near(value):
                continue
            keyword = node.keywords[place - len(node.args)].arg if place >= len(node.args) else None
            if place >= len(node.args) and keyword is None:
                continue
            if not self.note(function, value, names, "keyword" if keyword else "argument", keyword):
                continue
            if not asked:
                callee, asked = self.meaning.callee(node, Scope(function, names)), True
            into = _parameter(self.meaning.program, callee, keyword or place)
            if into is None:
                continue
            self.taken[into] = None
            at = span(Place(function.module.source.name, value))
            known = self.found[at]
            if known.gate.kind in {"keyword", "argument"}:
                self.found[at] = replace(known, into=into, gate=replace(known.gate, target=into.name))

    def may_be(self, node: ast.expr, flags: set[str]) -> bool:
        """Whether something that is put somewhere may be a condition, going by what it looks like.

        Args:
            flags: the names that hold one here.
        """
        match node:
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(ast.Not()):
                return True
            case ast.IfExp(_, then, otherwise):
                return all(_answers(side) or self.may_be(side, flags) for side in (then, otherwise))
            case ast.Name(name):
                return name in flags
            case ast.Attribute(_, name):
                return name in self.words or name in _MEMBERS
            case ast.Call(ast.Name(name) | ast.Attribute(_, name)):
                return name in _TRUTHS or name in self.words
        return False

    def note(self, function: Function, node: ast.expr, names: Names, kind: str | _Kinds, target: str | None) -> bool:
        """Keep an expression if it is a condition about ranks; whether it is."""
        test = isinstance(kind, _Kinds)
        scope = Scope(function, names)
        value = self.known(self.meaning.evaluate(node, scope))
        tested, pinned = told(value) if test or _logical(value) else ((), ())
        if not tested:
            # What a rank is taken from may be out of sight: then its name counts.
            spelled = self.known(self.spelled(node, scope))
            tested, pinned = told(spelled) if spelled != value else ((), ())
            value = spelled
        anyone = not tested and _asks(node)
        if not tested and not anyone:
            return False
        place = Place(function.module.source.name, node)
        at = span(place)
        if at not in self.found or self.found[at].gate.kind == "argument":
            said = kind(node) if isinstance(kind, _Kinds) else kind
            gate = Gate(at, function.qualified, said, target, tested, pinned, text(value))
            self.found[at] = Condition(gate, function, place, value)
        return True

    def known(self, value: Expression) -> Expression:
        """`value` with the parameters filled that are ranks by their names, or are given a condition."""
        vocabulary = self.meaning.vocabulary
        given: dict[Parameter, Expression] = {}
        for hole in holes(value):
            named = vocabulary.coordinate(hole.name) or vocabulary.size(hole.name)
            if named is not None:
                given[hole] = named
            elif hole in self.taken or vocabulary.weak(hole.name) is not None:
                found = self.meaning.completed(hole)
                plain = kinds(found) <= {Coordinate, Constant, Size}
                given[hole] = found if plain else vocabulary.weak(hole.name) or found
        return filled(value, given)

    def spelled(self, node: ast.expr, scope: Scope) -> Expression:
        """A condition with what is compared taken for the coordinate that its name says."""
        match node:
            case ast.BoolOp(operator, values):
                join = both if isinstance(operator, ast.And) else either
                parts = [self.spelled(value, scope) for value in values]
                # What always or never holds may do so only because an assignment was missed.
                return join(*(part for part in parts if not isinstance(part, Constant)))
            case ast.UnaryOp(ast.Not(), value):
                return negated(self.spelled(value, scope))
            case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARED:
                sides = tuple(self.named(side, scope) or self.meaning.evaluate(side, scope) for side in (left, right))
                return Apply(_COMPARED[type(operator)], sides, Place(scope.function.module.source.name, node))
        return self.meaning.evaluate(node, scope)

    def named(self, node: ast.expr, scope: Scope) -> Expression | None:
        """The coordinate that a name says, unless it is another process's."""
        vocabulary = self.meaning.vocabulary
        match node:
            case ast.Name(name):
                coordinate = vocabulary.coordinate(name)
                given = scope.function.parameters
                if coordinate is None and name in given and name not in scope.names and "group" not in given:
                    return vocabulary.weak(name)
                return coordinate
            case ast.Attribute(value, name):
                whose = ast.unparse(value)
                if whose == "self" or (whose.startswith("self.") and not _ELSEWHERE.search(whose)):
                    return vocabulary.coordinate(name)
        return None


_ELSEWHERE: Final = re.compile(r"remote|peer|prefill|decode|target|dst|src|dest|other|[\[(]")
_COMPARED: Final[dict[type, str]] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def _answers(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _asks(node: ast.expr) -> bool:
    """Whether a condition compares the rank in a group that is not known here with the first of it."""
    match node:
        case ast.BoolOp(_, values):
            return any(map(_asks, values))
        case ast.UnaryOp(ast.Not(), value):
            return _asks(value)
        case ast.Compare(left, [ast.Eq() | ast.NotEq() | ast.Gt()], [ast.Constant(0)]):
            return _of_group(left)
        case ast.Attribute(_, name) if name in _MEMBERS:
            return True
    return False


def _of_group(node: ast.expr) -> bool:
    match node:
        case ast.Call(ast.Name(name) | ast.Attribute(_, name)):
            return name == "get_rank"
        case ast.Name(name) | ast.Attribute(ast.Name("self"), name):
            return name.lstrip("_") in {"rank", "local_rank", "rank_in_group"}
    return False


@dataclass(slots=True)
class _Near:
    """Whether a piece of a function stands on lines with a word that may be about a rank.

    Lines, not words: a statement too many is cheaper than a look at every word.
    """

    function: Function
    marked: set[int]
    taken: Mapping[Parameter, None]
    _lines: list[int] | None = None

    def __call__(self, node: ast.expr) -> bool:
        if self._lines is None:
            self._lines = self._found()
        place = bisect_left(self._lines, _first_line(node))
        return place < len(self._lines) and self._lines[place] <= (node.end_lineno or node.lineno)

    def _found(self) -> list[int]:
        own = self.function
        lines = set(self.marked)
        known: set[str] = set()
        names = {name for name in own.parameters if Parameter(own.key, name) in self.taken}
        for _ in range(_MOST_HANDS):
            if names:
                lines.update(_within(own, names))
            known |= names
            self._lines = sorted(lines)
            # A name that is given something on a marked line marks the lines that it stands on in turn.
            names = {
                visit.node.id
                for visit, bound in own.walk.assigned
                if isinstance(visit.node, ast.Name) and visit.node.id not in known and self(bound.node)
            }
            if not names:
                break
        return self._lines or []


def _first_line(node: ast.expr) -> int:
    """Where an expression starts; the test that a pattern makes starts at what is matched."""
    first = node.lineno
    while True:
        match node:
            case ast.Compare(left=inner) | ast.BoolOp(values=[inner, *_]) | ast.UnaryOp(operand=inner):
                node = inner
                first = min(first, node.lineno)
            case _:
                return first


def _within(function: Function, names: Iterable[str]) -> set[int]:
    """The lines of a function on which one of `names` stands."""
    node = function.node
    pattern = re.compile(rb"\b(?:" + b"|".join(re.escape(name.encode()) for name in sorted(names)) + rb")\b")
    first = 1 if isinstance(node, ast.Module) else node.lineno
    return {first - 1 + line for line in lines_of(function.text, pattern)}


class _Kinds:
    """What the statements are that the tests of a function belong to."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._known: dict[int, str] | None = None

    def __call__(self, test: ast.expr) -> str:
        if self._known is None:
            self._known = {
                id(node.test): _TESTED[type(node)]
                for node in ast.walk(self._function.node)
                if isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp))
            }
        return self._known.get(id(test), "match")


_TESTED: Final[dict[type, str]] = {ast.If: "if", ast.While: "while", ast.Assert: "assert", ast.IfExp: "ifexp"}


def lines_of(data: bytes, pattern: re.Pattern[bytes]) -> list[int]:
    """The lines on which a pattern occurs, each once."""
    found: list[int] = []
    line, last = 1, 0
    for match in pattern.finditer(data):
        line += data.count(b"\n", last, match.start())
        last = match.start()
        if not found or found[-1] != line:
            found.append(line)
    return found


def around(module: Module, lines: Iterable[int]) -> list[Function]:
    """The innermost functions around some lines, in the order of the lines."""
    heads, spans = module.places
    found: dict[int, Function] = {}
    for line in lines:
        # Functions nest, so the innermost is the last that starts before the line and has not ended.
        place = bisect_right(heads, line) - 1
        while place >= 0 and spans[place][0] < line:
            place -= 1
        function = spans[place][1] if place >= 0 else module.body
        found[id(function)] = function
    return list(found.values())


def _parameter(program: Program, callee: Function | Class | None, which: int | str) -> Parameter | None:
    """The parameter of a function, or the field of a data class, that an argument becomes."""
    if isinstance(callee, Class):
        made = program.method(callee, "__init__")
        if made is not None:
            callee = made
        else:
            names = [
                (one, name)
                for one in reversed(program.bases(callee))
                if one.is_dataclass
                for name, item in one.fields.items()
                if isinstance(item, ast.AnnAssign)
            ]
            if isinstance(which, int):
                return Parameter(names[which][0].key, names[which][1]) if which < len(names) else None
            return next((Parameter(one.key, name) for one, name in names if name == which), None)
    if callee is None:
        return None
    known: Sequence[str] = callee.parameters
    if isinstance(which, int):
        which += 1 if callee.bound else 0
        return Parameter(callee.key, known[which]) if which < len(known) else None
    return Parameter(callee.key, which) if which in known else None


def _logical(value: Expression) -> bool:
    """Whether a value is a truth that some part about ranks decides."""
    match value:
        case Apply("and" | "or", arguments):
            return any(_logical(argument) for argument in arguments)
        case Apply("not", (inner,)):
            return Coordinate in kinds(inner)
        case Apply("if", (_, then, otherwise)):
            sides = (then, otherwise)
            return any(_logical(side) for side in sides) or all(_truth(side) for side in sides)
        case Apply(operator, _):
            return operator in _COMPARISONS and Coordinate in kinds(value)
    return False


def _truth(value: Expression) -> bool:
    return isinstance(value, Constant) and isinstance(value.value, bool)


@cache
def told(value: Expression) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes that a condition surely depends on, and those of which it lets one index pass.

    Each axis is taken for one of its own, with more than one index. The size of any other is a fact that is given; or,
    where that shows nothing, an axis too: ``tp_rank % attn_tp_size == 0``.
    """
    named = axes(value)
    if not named or len(named) > _MOST_AXES:
        return (), ()
    others = {part for part in walk(value) if isinstance(part, Size) and part.axis not in named}
    if named == ("rank",) and others and any(isinstance(part, Apply) and part.operator == "%" for part in walk(value)):
        # The rank modulo a size is the coordinate on the innermost axis.
        inner = tuple(sorted({part.axis for part in others}))
        found = _told(value, inner, ("outer", *inner)[:_MOST_AXES])
        if found[0]:
            return found
    given = mapped(value, lambda part: Given(text(part)) if part in others else None) if others else value
    found = _told(given, named, named)
    if not found[0] and isinstance(value, Apply) and value.operator == "and":
        # Where two parts exclude each other nobody passes, and each is about ranks all the same.
        parts = [told(part) for part in value.arguments]
        found = tuple(dict.fromkeys(axis for part in parts for axis in part[0])), ()
    if found[0] or not others:
        return found
    return _told(value, named, (*named, *sorted({part.axis for part in others}))[:_MOST_AXES])


def _told(value: Expression, named: Sequence[str], order: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    questions = Questions()
    count = 3 if len(order) < 4 else 2
    ranks = points(Layout(tuple(order)), tuple((name, count) for name in order))
    tables = {tuple(point.at[name] for name in order): table(value, point, questions) for point in ranks}
    tested, pinned = [], []
    for place, name in enumerate(order):
        if name not in named:
            continue
        pairs = [
            (here, there)
            for at, here in tables.items()
            for to, there in tables.items()
            if at[place] < to[place] and at[:place] == to[:place] and at[place + 1 :] == to[place + 1 :]
        ]
        if any(here != there for here, there in pairs):
            tested.append(name)
        if not any(here[0] & there[0] for here, there in pairs):
            pinned.append(name)
    return tuple(tested), tuple(pinned)


__all__ = ["Condition", "Gate", "around", "conditions", "gates", "lines_of", "relevant", "told"]
