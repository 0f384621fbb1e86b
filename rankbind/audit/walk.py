"""A function read from top to bottom: what is called, assigned and returned, under which conditions, with which names.

Nothing is evaluated here. A name is bound to the node that gives its value, together with the names that held at that
point, so that only what somebody asks for is ever worked out (`rankbind.audit.meaning`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Names: TypeAlias = Mapping[str, "Binding"]


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """The value of `node`, where `names` held."""

    node: ast.expr
    names: Names


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One item of a sequence that was unpacked; `name` took it."""

    whole: Bound
    index: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Either:
    """One binding or another, as a test turned out."""

    test: Bound
    then: Binding
    otherwise: Binding


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """A container after an item was put into it."""

    before: Binding
    item: Bound


@dataclass(frozen=True, slots=True, eq=False)
class Looped:
    """One of many: a loop's variable."""

    name: str
    over: Bound | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """What an import inside a function names."""

    dotted: str


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """A function defined inside the function."""

    node: ast.FunctionDef | ast.AsyncFunctionDef


Binding: TypeAlias = Bound | Part | Either | Changed | Looped | Imported | Local


@dataclass(slots=True, eq=False)
class Path:
    """What has to hold for a statement to be reached: a test more than for `parent`, or one of `alternatives`."""

    parent: Path | None = None
    test: Bound | None = None
    holds: bool = True
    alternatives: tuple[Path, ...] = ()
    value: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """A call, an assignment to an attribute, a return or an inner function, and how it is reached.

    Attributes:
        tried: whether it stands in a loop in which a failure of it is caught: one after another is tried.
        caught: whether it stands where an exception is handled.
    """

    node: ast.AST
    path: Path
    names: Names
    tried: bool = False
    caught: bool = False


@dataclass(slots=True)
class Walk:
    """What a function does.

    Attributes:
        calls: every call, in order of evaluation as far as that matters.
        stores: assignments to attributes: node is the statement's target, with the value beside it.
        assigned: those to names.
        returns: every return that gives a value.
        inner: functions defined inside.
        names: as they are at the end.
    """

    calls: list[Visit] = field(default_factory=list)
    stores: list[tuple[Visit, Bound]] = field(default_factory=list)
    assigned: list[tuple[Visit, Bound]] = field(default_factory=list)
    returns: list[Visit] = field(default_factory=list)
    inner: list[Visit] = field(default_factory=list)
    tests: list[Visit] = field(default_factory=list)
    names: Names = field(default_factory=dict)


def walk(body: Sequence[ast.stmt]) -> Walk:
    """Read the statements of a function or a module."""
    walker = _Walker()
    try:
        walker.block(body, {}, Path())
    except RecursionError:
        # A function that nests deeper than Python itself can follow is left alone.
        return Walk()
    return walker.found


_PUTS = frozenset({"append", "extend", "add", "insert", "update", "setdefault"})
_DEAD = None
_State: TypeAlias = "tuple[dict[str, Binding], Path] | None"


class _Walker:
    def __init__(self) -> None:
        self.found = Walk()
        self._loops = 0
        self._tried = 0
        self._caught = 0

    def block(self, body: Iterable[ast.stmt], names: dict[str, Binding], path: Path) -> _State:
        state = (names, path)
        for statement in body:
            after = self.statement(statement, *state)
            if after is None:
                return None
            state = after
        self.found.names = state[0]
        return state

    def statement(self, node: ast.stmt, names: dict[str, Binding], path: Path) -> _State:
        match node:
            case ast.Expr(value):
                names = self.expression(value, names, path)
                match value:
                    case ast.Call(ast.Attribute(ast.Name(name), method), [*_, item]) if (
                        method in _PUTS and name in names
                    ):
                        names = {**names, name: Changed(names[name], Bound(item, names))}
                return None if _ends(value) else (names, path)
            case ast.Assign(targets, value):
                names = self.expression(value, names, path)
                for target in targets:
                    names = self.assign(target, Bound(value, names), names, path)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                names = self.expression(value, names, path)
                names = self.assign(target, Bound(value, names), names, path)
            case ast.AugAssign(target, operator, value):
                names = self.expression(value, names, path)
                left = ast.copy_location(_loaded(target), target)
                made = ast.copy_location(ast.BinOp(left, operator, value), node)
                names = self.assign(target, Bound(made, names), names, path)
            case ast.If():
                return self.branch(node, names, path)
            case ast.Return(value):
                if value is not None:
                    names = self.expression(value, names, path)
                    self.found.returns.append(Visit(value, path, names))
                return _DEAD
            case ast.Raise() | ast.Continue() | ast.Break():
                return _DEAD
            case ast.For() | ast.AsyncFor() | ast.While():
                return self.loop(node, names, path)
            case ast.With() | ast.AsyncWith():
                for opened in node.items:
                    names = self.expression(opened.context_expr, names, path)
                    if opened.optional_vars is not None:
                        names = self.assign(opened.optional_vars, Bound(opened.context_expr, names), names, path)
                return self.block(node.body, names, path)
            case ast.Try() | ast.TryStar():
                return self.attempt(node, names, path)
            case ast.Match():
                return self.match(node, names, path)
            case ast.Assert(test):
                names = self.expression(test, names, path)
                if not any("rank" in name for name in _names(test)):
                    # What has to hold for the program to go on at all is no gate.
                    return names, path
                self.found.tests.append(Visit(test, path, names))
                return names, Path(path, Bound(test, names))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names = {**names, node.name: Local(node)}
                self.found.inner.append(Visit(node, path, names))
            case ast.Import(aliases):
                for alias in aliases:
                    bound = alias.asname or alias.name.partition(".")[0]
                    names = {**names, bound: Imported(alias.name if alias.asname else bound)}
            case ast.ImportFrom():
                for alias in node.names:
                    if alias.name != "*":
                        dotted = f"{'.' * node.level}{node.module or ''}:{alias.name}"
                        names = {**names, alias.asname or alias.name: Imported(dotted)}
        return names, path

    def branch(self, node: ast.If, names: dict[str, Binding], path: Path) -> _State:
        names = self.expression(node.test, names, path)
        test = Bound(node.test, names)
        self.found.tests.append(Visit(node.test, path, names))
        yes, no = Path(path, test), Path(path, test, holds=False)
        then = self.block(node.body, names, yes)
        otherwise = self.block(node.orelse, names, no)
        return _joined(test, names, path, (then, yes), (otherwise, no))

    def loop(self, node: ast.For | ast.AsyncFor | ast.While, names: dict[str, Binding], path: Path) -> _State:
        inside = path
        if isinstance(node, ast.While):
            names = self.expression(node.test, names, path)
            self.found.tests.append(Visit(node.test, path, names))
            inside = Path(path, Bound(node.test, names))
        else:
            names = self.expression(node.iter, names, path)
            over = Bound(node.iter, names)
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name):
                    names = {**names, name.id: Looped(name.id, over)}
        self._loops += 1
        after = self.block(node.body, names, inside)
        self._loops -= 1
        names = names if after is None else after[0]
        return self.block(node.orelse, names, path) or (names, path)

    def attempt(self, node: ast.Try | ast.TryStar, names: dict[str, Binding], path: Path) -> _State:
        trying = self._loops > 0 and bool(node.handlers)
        self._tried += trying
        state = self.block([*node.body, *node.orelse], names, path)
        self._tried -= trying
        self._caught += 1
        for handler in node.handlers:
            caught = self.block(handler.body, names, path)
            state = state or caught
        self._caught -= 1
        if state is None:
            self.block(node.finalbody, names, path)
            return None
        return self.block(node.finalbody, *state)

    def match(self, node: ast.Match, names: dict[str, Binding], path: Path) -> _State:
        names = self.expression(node.subject, names, path)
        ends: _State = None
        rest = path
        for case in node.cases:
            test = _pattern(node.subject, case)
            inside = rest
            if test is not None:
                bound = Bound(test, names)
                self.found.tests.append(Visit(test, rest, names))
                inside, rest = Path(rest, bound), Path(rest, bound, holds=False)
            found = self.block(case.body, names, inside)
            ends = found if ends is None else ends if found is None else (ends[0], _any(ends[1], found[1]))
            if test is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                return ends
        return (names, rest) if ends is None else (ends[0], _any(ends[1], rest))

    def assign(self, target: ast.expr, value: Bound, names: dict[str, Binding], path: Path) -> dict[str, Binding]:
        match target:
            case ast.Name(name):
                self.found.assigned.append((Visit(target, path, names), value))
                return {**names, name: value}
            case ast.Tuple(items) | ast.List(items):
                for index, item in enumerate(items):
                    if isinstance(value.node, (ast.Tuple, ast.List)) and len(value.node.elts) == len(items):
                        names = self.assign(item, Bound(value.node.elts[index], value.names), names, path)
                    elif isinstance(item, ast.Name):
                        names = {**names, item.id: Part(value, index, item.id)}
                    elif isinstance(item, ast.Attribute):
                        whole = ast.copy_location(
                            ast.Subscript(value.node, ast.Constant(index), ast.Load()), value.node
                        )
                        self.found.stores.append(
                            (Visit(item, path, names, caught=self._caught > 0), Bound(whole, value.names))
                        )
            case ast.Attribute():
                self.found.stores.append((Visit(target, path, names, caught=self._caught > 0), value))
                dotted = spelled(target)
                if dotted is not None:
                    return {**names, dotted: value}
            case ast.Subscript(ast.Name(name)) if name in names:
                return {**names, name: Changed(names[name], value)}
        return names

    def expression(self, node: ast.expr, names: dict[str, Binding], path: Path) -> dict[str, Binding]:
        """Note the calls in an expression; the names after it (a walrus may bind some)."""
        match node:
            case ast.Constant() | ast.Name():
                return names
            case ast.Call():
                names = self.expression(node.func, names, path)
                for argument in node.args:
                    names = self.expression(argument, names, path)
                for keyword in node.keywords:
                    names = self.expression(keyword.value, names, path)
                self.found.calls.append(Visit(node, path, names, self._tried > 0))
            case ast.Attribute(value):
                return self.expression(value, names, path)
            case ast.Compare(left, _, rights):
                names = self.expression(left, names, path)
                for right in rights:
                    names = self.expression(right, names, path)
            case ast.BinOp(left, _, right):
                return self.expression(right, self.expression(left, names, path), path)
            case ast.UnaryOp(_, value):
                return self.expression(value, names, path)
            case ast.Subscript(value, index):
                return self.expression(index, self.expression(value, names, path), path)
            case ast.IfExp(test, body, otherwise):
                names = self.expression(test, names, path)
                self.found.tests.append(Visit(test, path, names))
                bound = Bound(test, names)
                names = self.expression(body, names, Path(path, bound))
                names = self.expression(otherwise, names, Path(path, bound, holds=False))
            case ast.BoolOp(operator, values):
                for value in values:
                    names = self.expression(value, names, path)
                    path = Path(path, Bound(value, names), holds=isinstance(operator, ast.And))
            case ast.NamedExpr(ast.Name(name), value):
                names = self.expression(value, names, path)
                return {**names, name: Bound(value, names)}
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        names = self.expression(child, names, path)
                    elif isinstance(child, ast.comprehension):
                        names = self.expression(child.iter, names, path)
        return names


def _joined(
    test: Bound,
    before: dict[str, Binding],
    path: Path,
    then: tuple[_State, Path],
    otherwise: tuple[_State, Path],
) -> _State:
    (first, yes), (second, no) = then, otherwise
    if first is None or second is None:
        return first or second
    names = before
    if first[0] is not before or second[0] is not before:
        names = dict(first[0])
        for name in {**first[0], **second[0]}:
            a, b = first[0].get(name), second[0].get(name)
            if a is not b:
                names[name] = Either(test, a or _outer(name, before), b or _outer(name, before))
    reached = path if first[1] is yes and second[1] is no else Path(alternatives=(first[1], second[1]))
    return names, reached


def _outer(name: str, before: Names) -> Binding:
    """What a name is that is bound further out: a parameter, if anything."""
    if name in before:
        return before[name]
    first, *rest = name.split(".")
    node: ast.expr = ast.Name(first, ast.Load())
    for attribute in rest:
        node = ast.Attribute(node, attribute, ast.Load())
    return Bound(node, before)


def _any(first: Path, second: Path) -> Path:
    return first if first is second else Path(alternatives=(first, second))


def spelled(node: ast.expr) -> str | None:
    """A name or a dotted name as it is written; None for anything else."""
    words = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(words)]) if isinstance(node, ast.Name) else None


def tail(node: ast.expr) -> str:
    """The last word of a name, a dotted name or a call; empty for anything else."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Call(called, _) | ast.Subscript(called, _):
            return tail(called)
    return ""


def _names(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def _ends(value: ast.expr) -> bool:
    """Whether a statement ends the process."""
    return isinstance(value, ast.Call) and spelled(value.func) in {"sys.exit", "os._exit", "exit", "quit"}


def _loaded(target: ast.expr) -> ast.expr:
    match target:
        case ast.Name(name):
            return ast.Name(name, ast.Load())
        case ast.Attribute(value, name):
            return ast.Attribute(value, name, ast.Load())
    return ast.Constant(None)


def _pattern(subject: ast.expr, case: ast.match_case) -> ast.expr | None:
    """A pattern as the test that it makes; None where it always fits or cannot be told."""

    def tested(pattern: ast.pattern) -> ast.expr | None:
        match pattern:
            case ast.MatchValue(value):
                return ast.Compare(subject, [ast.Eq()], [value])
            case ast.MatchSingleton(value):
                return ast.Compare(subject, [ast.Is()], [ast.Constant(value)])
            case ast.MatchOr(patterns):
                tests = [tested(one) for one in patterns]
                if all(test is not None for test in tests):
                    return ast.BoolOp(ast.Or(), [test for test in tests if test is not None])
            case ast.MatchSequence(patterns) if isinstance(subject, ast.Tuple):
                pairs = zip(subject.elts, patterns, strict=False)
                parts: list[ast.expr] = [
                    ast.Compare(item, [ast.Eq()], [one.value]) for item, one in pairs if isinstance(one, ast.MatchValue)
                ]
                return ast.BoolOp(ast.And(), parts) if len(parts) > 1 else parts[0] if parts else None
        return None

    test = tested(case.pattern)
    if case.guard is not None:
        test = case.guard if test is None else ast.BoolOp(ast.And(), [test, case.guard])
    if test is not None:
        for node in ast.walk(test):
            if isinstance(node, ast.expr) and not hasattr(node, "lineno"):
                ast.copy_location(node, case.pattern)
                node.end_lineno, node.end_col_offset = case.pattern.end_lineno, case.pattern.end_col_offset
    return test
