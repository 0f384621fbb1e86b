"""`rankbind audit --fix`: the declaration written in place of a gate, where that takes no thought.

Only gates of RB701 are rewritten, and only those that are plain: an ``if`` that asks for rank 0 of some axes, perhaps
together with other facts, around the creation of something that is made once. The ranks go out of the condition, and
what is made goes into a function that the declaration decorates: the function that the gate stands in where it does
nothing else, the one that is called where it is ours and nobody else calls it, a local one elsewhere.

The source is cut and pasted, never printed anew, so that comments and layout stay. Every rewrite is audited: one that
leaves its finding, or brings another, is dropped.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

from rankbind.audit.declarations import WORD
from rankbind.audit.expression import Apply, Constant, Coordinate, Expression, axes, negated
from rankbind.audit.meaning import Meaning, Scope
from rankbind.audit.program import Function, Module, Program
from rankbind.audit.settings import PROFILES as _PROFILES
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import PROFILES, Vocabulary, profile_of
from rankbind.finding import Finding

_REPEATED: Final = frozenset({"file", "trace file", "memory snapshot", "profiler database", "lock file"})
"""Creations that may well be meant to happen again and again: a declaration would let only the first happen."""
_DECORATOR: Final = re.compile(r"@singleton_per\(group=(?P<group>[^=]*), rank=0\)")
_NO_AXIS: Final = frozenset({"rank", "local_rank", "node"})
_REPLICAS: Final = frozenset({"dp", "attn_dp"})
"""Axes of replicas. Each of them is to have its own: what is forgotten is a term of the address, not of the gate."""


class ChangedError(Exception):
    """A file is not as it was when it was audited."""


@dataclass(frozen=True, slots=True)
class Edit:
    """What becomes of one file.

    Attributes:
        findings: those that it mends; one that takes two files is with both.
    """

    file: str
    before: bytes
    after: bytes
    findings: tuple[Finding, ...]

    @property
    def diff(self) -> str:
        """As a unified diff."""
        # Lines as `diff` and git have them; `splitlines` would end some in the middle of a string.
        old, new = (re.findall(r"[^\n]*\n|[^\n]+", data.decode()) for data in (self.before, self.after))
        lines = difflib.unified_diff(old, new, f"a/{self.file.lstrip('/')}", f"b/{self.file.lstrip('/')}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def fixes(findings: Sequence[Finding], sources: Sequence[Source], settings: Settings) -> list[Edit]:
    """The edits that mend those of `findings` that can be, one for each file, in the order of the files.

    Nothing is written. What is left out of `findings` is left alone.
    """
    wanted = [finding for finding in findings if finding.code == "RB701" and _DECORATOR.match(finding.fix or "")]
    if not wanted:
        return []
    rewriter = _Rewriter(sources, settings)
    made = [rewrite for finding in wanted if (rewrite := rewriter.rewrite(finding)) is not None]
    kept = _compatible(made)
    if not kept:
        return []
    before = _counted(sources, settings)
    if not _mends(kept, sources, settings, before):
        # One of them is to blame: they are tried one after the other.
        good: list[_Rewrite] = []
        for one in kept:
            if _mends([*good, one], sources, settings, before):
                good.append(one)
        kept = good
    return list(_edits(kept, sources))


def diff(edits: Iterable[Edit]) -> str:
    """All edits as one unified diff."""
    return "".join(edit.diff for edit in edits)


def write(edits: Sequence[Edit]) -> None:
    """Write all edits, each file at once or not at all.

    Raises:
        ChangedError: a file has changed since it was audited; nothing is written then.
        OSError: a file cannot be read or written; those before it are.
    """
    for edit in edits:
        if Path(edit.file).read_bytes() != edit.before:
            raise ChangedError(f"{edit.file} has changed since it was read: audit it again")
    for edit in edits:
        try:
            _replace(Path(edit.file), edit.after)
        except OSError as error:
            # It may name the file that is written first, which nobody knows.
            raise OSError(error.errno, error.strerror, edit.file) from error


def _replace(path: Path, data: bytes) -> None:
    # Where it leads, so that a link stays one.
    real = path.resolve()
    handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(real.stat().st_mode & 0o7777)
        part.replace(real)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class _Splice(NamedTuple):
    """Bytes of a file, and what is put in their place."""

    start: int
    end: int
    text: bytes


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """What mends one finding.

    Attributes:
        splices: by file; none of them overlap.
    """

    finding: Finding
    splices: Mapping[str, tuple[_Splice, ...]]


def _compatible(made: Sequence[_Rewrite]) -> list[_Rewrite]:
    """Those that touch nothing that one before them does. The same splice for two findings is one."""
    taken: dict[str, list[_Splice]] = {}
    kept = []
    for one in made:
        pairs = ((new, old) for file, splices in one.splices.items() for new in splices for old in taken.get(file, ()))
        if not any(_clash(new, old) for new, old in pairs):
            kept.append(one)
            for file, splices in one.splices.items():
                taken.setdefault(file, []).extend(splices)
    return kept


def _clash(new: _Splice, old: _Splice) -> bool:
    if new == old:
        return False
    here = new.start == new.end == old.start == old.end
    return here or (new.start < old.end and old.start < new.end)


def _edits(kept: Sequence[_Rewrite], sources: Sequence[Source]) -> Iterator[Edit]:
    for source in sources:
        splices = {splice: None for one in kept for splice in one.splices.get(source.name, ())}
        if splices:
            data = source.data
            for splice in sorted(splices, reverse=True):
                data = data[: splice.start] + splice.text + data[splice.end :]
            yield Edit(source.name, source.data, data, tuple(one.finding for one in kept if source.name in one.splices))


_Key = tuple[str, str, str]


def _counted(sources: Sequence[Source], settings: Settings) -> Counter[_Key]:
    from rankbind import audit

    # Lines move, so a finding is known by what it says.
    found = audit.run(sources, settings).findings
    return Counter(_key(finding) for finding in found)


def _key(finding: Finding) -> _Key:
    return (finding.labels[0].span.file if finding.labels else "", finding.code, finding.message)


def _mends(kept: Sequence[_Rewrite], sources: Sequence[Source], settings: Settings, before: Counter[_Key]) -> bool:
    """Whether the findings are gone after the edits, and no other is there."""
    changed = {edit.file: edit.after for edit in _edits(kept, sources)}
    after = _counted([replace(source, data=changed.get(source.name, source.data)) for source in sources], settings)
    gone = Counter(_key(one.finding) for one in kept)
    return after <= before - gone


class _UnfitError(Exception):
    """The gate is not one that can be rewritten without thought."""


class _Rewriter:
    def __init__(self, sources: Sequence[Source], settings: Settings) -> None:
        self.program = Program(sources)
        profile = (
            PROFILES[settings.profile]
            if settings.profile in _PROFILES
            else profile_of(source.module.partition(".")[0] for source in sources)
        )
        self.meaning = Meaning(self.program, Vocabulary(profile, settings.axes, settings.order))
        self.by_name = {source.name: source for source in sources}

    def rewrite(self, finding: Finding) -> _Rewrite | None:
        """The rewrite of one finding; None where it is not mechanical."""
        try:
            return _Rewrite(finding, self._rewritten(finding))
        except _UnfitError:
            return None

    def _rewritten(self, finding: Finding) -> Mapping[str, tuple[_Splice, ...]]:
        place = finding.labels[0].span
        source = self.by_name.get(place.file)
        module = self.program.module(source) if source else None
        if source is None or module is None or finding.facts.get("creation") in _REPEATED:
            raise _UnfitError
        named = finding.facts.get("axes"), finding.facts.get("pinned")
        if not all(isinstance(names, list) and not _NO_AXIS & set(names) for names in named):
            raise _UnfitError
        if _REPLICAS & set(finding.facts["axes"]):
            raise _UnfitError
        text = _Text(source.data)
        parents = {child: node for node in ast.walk(module.tree) for child in ast.iter_child_nodes(node)}
        call = next(
            (
                node
                for node in ast.walk(module.tree)
                if isinstance(node, ast.Call) and (node.lineno, node.col_offset + 1) == (place.line, place.column)
            ),
            None,
        )
        if call is None:
            raise _UnfitError
        # The longest call that starts there: `a.b(c).d(e)` and `a.b(c)` start at one place.
        function = self._function(module, call, parents)
        found = _Site(self, module, function, text, parents, call, str(finding.fix).partition("\n")[0])
        splices = found.rewritten(set(finding.facts["pinned"]))
        return {
            file: (*(_imported(self._module(file), _Text(self.by_name[file].data)) if _declares(some) else ()), *some)
            for file, some in splices.items()
        }

    def _module(self, file: str) -> Module:
        module = self.program.module(self.by_name[file])
        assert module is not None
        return module

    def _function(self, module: Module, node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Function:
        here: ast.AST | None = node
        while here is not None:
            if here in module.by_node:
                return module.by_node[here]
            if isinstance(here, (ast.Lambda, ast.ClassDef)):
                raise _UnfitError
            here = parents.get(here)
        return module.body


def _declares(splices: Sequence[_Splice]) -> bool:
    return any(f"@{WORD}(".encode() in splice.text for splice in splices)


class _Text:
    """A file's bytes, and where its lines start. `ast` counts bytes, too."""

    def __init__(self, data: bytes) -> None:
        if data.startswith(b"\xef\xbb\xbf") or b"\r" in data.replace(b"\r\n", b"") or b"\f" in data:
            raise _UnfitError
        try:
            data.decode()
        except UnicodeDecodeError:
            raise _UnfitError from None
        self.data = data
        self.newline = b"\r\n" if b"\r\n" in data else b"\n"
        self.starts = [0, *(match.end() for match in re.finditer(rb"\n", data))]

    def start(self, node: ast.stmt | ast.expr) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.stmt | ast.expr) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def line(self, at: int) -> int:
        """Where the line of a place starts."""
        return self.data.rfind(b"\n", 0, at) + 1

    def after(self, at: int) -> int:
        """Where the next line starts."""
        found = self.data.find(b"\n", at)
        if found < 0:
            raise _UnfitError
        return found + 1

    def indent(self, node: ast.stmt) -> bytes:
        """What stands before a statement on its line: blanks only."""
        start = self.start(node)
        found = self.data[self.line(start) : start]
        if found.strip():
            raise _UnfitError
        return found


@dataclass(frozen=True, slots=True)
class _Site:
    """A creation that is looked at, and the statements around it."""

    rewriter: _Rewriter
    module: Module
    function: Function
    text: _Text
    parents: Mapping[ast.AST, ast.AST]
    call: ast.Call
    decorator: str

    def rewritten(self, pinned: set[str]) -> dict[str, tuple[_Splice, ...]]:
        """The splices, by file."""
        gate = self._gate()
        if gate is None:
            return self._early(pinned)
        if self.text.data[self.text.start(gate) :][:2] != b"if":
            raise _UnfitError
        header = self._header(gate, pinned)
        if not gate.orelse and self._alone(gate):
            return self._whole(gate, header)
        if (handed := self._ours(gate)) is not None:
            return self._called(gate, header, handed)
        return self._local(gate, header)

    # The gate.

    def _gate(self) -> ast.If | None:
        """The innermost ``if`` around the creation that asks for ranks."""
        here: ast.AST = self.call
        while here is not self.function.node and here in self.parents:
            above = self.parents[here]
            if isinstance(above, ast.If) and here in above.body and axes(self._value(above.test)):
                return above
            if isinstance(above, (ast.For, ast.AsyncFor, ast.While, ast.IfExp, ast.comprehension)):
                raise _UnfitError
            here = above
        return None

    def _value(self, node: ast.expr) -> Expression:
        names = next((visit.names for visit in self.function.walk.tests if visit.node is node), None)
        if names is None:
            # A part of a test: where the whole stands, the same names hold.
            names = next(
                (
                    visit.names
                    for visit in self.function.walk.tests
                    if any(part is node for part in ast.walk(visit.node))
                ),
                {},
            )
        meaning = self.rewriter.meaning
        return meaning.completed(meaning.evaluate(node, Scope(self.function, names)))

    def _header(self, gate: ast.If, pinned: set[str]) -> bytes:
        """What is left of the condition without the ranks; empty where nothing is."""
        return self._without(gate.test, ast.And, pinned)

    def _without(self, test: ast.expr, joined: type[ast.boolop], pinned: set[str]) -> bytes:
        values = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, joined) else [test]
        kept, asked = [], set()
        for value in values:
            meant = self._value(value)
            if not axes(meant):
                kept.append(value)
                continue
            asked |= _zeros(meant if joined is ast.And else negated(meant))
        if asked != pinned:
            raise _UnfitError
        if not kept:
            return b""
        start, end = self.text.start(test), self.text.end(test)
        if b"#" in self.text.data[start:end]:
            raise _UnfitError
        # A value is cut with the parentheses around it, which `ast` does not count to it.
        pieces = [self._parenthesised(value, start, end) for value in values]
        where = [place for place, value in enumerate(values) if value in kept]
        if where != list(range(where[0], where[-1] + 1)):
            parts = [self.text.data[slice(*pieces[place])] for place in where]
            return (b" and " if joined is ast.And else b" or ").join(parts)
        return self.text.data[pieces[where[0]][0] : pieces[where[-1]][1]]

    def _parenthesised(self, node: ast.expr, first: int, last: int) -> tuple[int, int]:
        data = self.text.data
        start, end = self.text.start(node), self.text.end(node)
        while True:
            before, after = start, end
            while before > first and data[before - 1 : before].isspace():
                before -= 1
            while after < last and data[after : after + 1].isspace():
                after += 1
            if (
                before > first
                and after < last
                and data[before - 1 : before] == b"("
                and data[after : after + 1] == b")"
            ):
                start, end = before - 1, after + 1
            else:
                return start, end

    # Where the declaration goes.

    def _alone(self, gate: ast.If) -> bool:
        """Whether a function does nothing but what the gate allows."""
        node = self.function.node
        if isinstance(node, ast.Module) or not self._decoratable(self.function):
            return False
        return [one for one in node.body if not _quiet(one)] == [gate]

    def _decoratable(self, function: Function) -> bool:
        node = function.node
        if not isinstance(node, ast.FunctionDef) or (node.name.startswith("__") and node.name.endswith("__")):
            return False
        plain = all(decorator in {"staticmethod", "classmethod"} for decorator in function.decorators)
        return plain and not any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node))

    def _decorated(self, function: Function, text: _Text) -> _Splice:
        node = function.node
        assert isinstance(node, ast.FunctionDef)
        first: ast.stmt | ast.expr = node.decorator_list[0] if node.decorator_list else node
        at = text.line(text.start(first))
        indent = text.data[at : text.start(first)].rstrip(b"@")
        if indent.strip():
            raise _UnfitError
        return _Splice(at, at, indent + self.decorator.encode() + text.newline)

    def _whole(self, gate: ast.If, header: bytes) -> dict[str, tuple[_Splice, ...]]:
        """Decorate the function around the gate, and take the ranks out of its condition."""
        splices = [self._decorated(self.function, self.text)]
        text = self.text
        if header:
            splices.append(_Splice(*self._test(gate), header))
        else:
            head = text.line(text.start(gate))
            body = text.line(self._body(gate))
            splices.append(_Splice(head, body, b""))
            inner, outer = text.indent(gate.body[0]), text.indent(gate)
            splices += _dedented(text, body, text.after(text.end(gate.body[-1]) - 1), inner, outer)
        return {self.module.source.name: tuple(splices)}

    def _early(self, pinned: set[str]) -> dict[str, tuple[_Splice, ...]]:
        """The function begins with a return for all the others: decorate it, and take the return away."""
        node = self.function.node
        if isinstance(node, ast.Module) or not self._decoratable(self.function):
            raise _UnfitError
        # Names may be given to things first: nobody but the owner comes to need them.
        first = next((one for one in node.body if not (_quiet(one) or _names_only(one))), None)
        if not isinstance(first, ast.If) or first.orelse or len(first.body) != 1:
            raise _UnfitError
        leaves = first.body[0]
        if not isinstance(leaves, ast.Return) or not _nothing(leaves.value):
            raise _UnfitError
        rest = self._without(first.test, ast.Or, pinned)
        text = self.text
        splices = [self._decorated(self.function, text)]
        if rest:
            splices.append(_Splice(*self._test(first), rest))
        else:
            start, end = text.line(text.start(first)), text.after(text.end(leaves) - 1)
            if b"#" in text.data[start:end]:
                raise _UnfitError
            while text.data[end:].startswith(text.newline):
                end += len(text.newline)
            splices.append(_Splice(start, end, b""))
        return {self.module.source.name: tuple(splices)}

    def _test(self, gate: ast.If) -> tuple[int, int]:
        """What stands between ``if`` and the colon."""
        start = self.text.start(gate) + len(b"if")
        while self.text.data[start : start + 1].isspace():
            start += 1
        return start, self._colon(gate)

    def _colon(self, gate: ast.If) -> int:
        data = self.text.data
        at = self.text.end(gate.test)
        while data[at : at + 1] != b":":
            if data[at : at + 1] not in {b" ", b"\t", b"\n", b"\r", b")"}:
                raise _UnfitError
            at += 1
        return at

    def _body(self, gate: ast.If) -> int:
        """Where the lines of the body start; comments before its first statement belong to it."""
        colon = self._colon(gate)
        end = self.text.after(colon)
        if self.text.data[colon + 1 : end].strip():
            raise _UnfitError
        return end

    def _ours(self, gate: ast.If) -> Function | None:
        """The function that is called for what is made, where it is there for nothing else."""
        if len(gate.body) != 1:
            return None
        assigned = _assigned(gate.body[0])
        alone = gate.body[0]
        value = assigned[1] if assigned else alone.value if isinstance(alone, ast.Expr) else None
        if not isinstance(value, ast.Call) or value is not self.call:
            return None
        names = next((visit.names for visit in self.function.walk.calls if visit.node is value), {})
        callee = self.rewriter.meaning.callee(value, Scope(self.function, names))
        if not isinstance(callee, Function) or not self._decoratable(callee) or callee.parent is not None:
            return None
        if callee.decorators or len(self.rewriter.meaning.callers(callee)) != 1:
            return None
        return callee

    def _called(self, gate: ast.If, header: bytes, callee: Function) -> dict[str, tuple[_Splice, ...]]:
        """Decorate the function that is called, and take the ranks out of the condition."""
        there = callee.module.source
        text = self.text if there is self.module.source else _Text(there.data)
        found: dict[str, tuple[_Splice, ...]] = {there.name: (self._decorated(callee, text),)}
        here = self.module.source.name
        if header:
            splices: tuple[_Splice, ...] = (_Splice(*self._test(gate), header),)
        else:
            splices = self._unwrapped(gate)
        found[here] = (*found.get(here, ()), *splices)
        return found

    def _unwrapped(self, gate: ast.If) -> tuple[_Splice, ...]:
        """The body without its ``if``; what the others got is what a declaration gives them."""
        text = self.text
        head, body = text.line(text.start(gate)), self._body(gate)
        inner, outer = text.indent(gate.body[0]), text.indent(gate)
        end = text.after(text.end(gate.body[-1]) - 1)
        splices = [_Splice(head, body, b""), *_dedented(text, body, end, inner, outer)]
        if gate.orelse:
            splices.append(self._otherwise(gate, end))
        return tuple(splices)

    def _otherwise(self, gate: ast.If, start: int) -> _Splice:
        """The ``else`` taken away, where it gives what a declaration gives to everyone else."""
        made, other = _assigned(gate.body[0]), _assigned(gate.orelse[0])
        if len(gate.orelse) != 1 or made is None or other is None or not _nothing(other[1]):
            raise _UnfitError
        if ast.unparse(made[0]) != ast.unparse(other[0]):
            raise _UnfitError
        end = self.text.after(self.text.end(gate.orelse[0]) - 1)
        if b"#" in self.text.data[start:end]:
            raise _UnfitError
        return _Splice(start, end, b"")

    def _local(self, gate: ast.If, header: bytes) -> dict[str, tuple[_Splice, ...]]:
        """Put what the gate allows into a function of its own beside it, and call that."""
        self._movable(gate)
        text = self.text
        outer, inner = text.indent(gate), text.indent(gate.body[0])
        step = inner[len(outer) :]
        start, body = text.line(text.start(gate)), self._body(gate)
        end = text.after(text.end(gate.body[-1]) - 1)
        assigned = _assigned(gate.body[0]) if len(gate.body) == 1 else None
        if gate.orelse and assigned is None:
            raise _UnfitError
        kept = self._receiver()
        name = self._named(assigned[0] if assigned else kept)
        lines = [] if _after_opening(text, start) else [b""]
        lines += [outer + self.decorator.encode(), outer + f"def {name}():".encode()]
        splices = [_Splice(start, body, text.newline.join(lines) + text.newline)]
        called = f"{name}()".encode()
        closing: list[bytes] = []
        if assigned is not None:
            first, value = text.start(gate.body[0]), text.start(assigned[1])
            splices.append(_Splice(first, value, b"return "))
            called = text.data[first:value] + called
        elif isinstance(kept, (ast.Name, ast.Attribute)):
            shown = ast.unparse(kept).encode()
            closing.append(inner + b"return " + shown)
            if isinstance(kept, ast.Name):
                called = shown + b" = " + called
        closing.append(b"")
        closing += [outer + b"if " + header + b":", outer + step + called] if header else [outer + called]
        splices.append(_Splice(end, end, text.newline.join(closing) + text.newline))
        if gate.orelse and not header:
            splices.append(self._otherwise(gate, end))
        return {self.module.source.name: tuple(splices)}

    def _movable(self, gate: ast.If) -> None:
        """Make sure that statements mean the same in a function of their own."""
        inside = [part for statement in gate.body for part in ast.walk(statement)]
        moved = set(map(id, inside))
        for part in inside:
            if isinstance(
                part,
                ast.Return
                | ast.Yield
                | ast.YieldFrom
                | ast.Await
                | ast.Break
                | ast.Continue
                | ast.Global
                | ast.Nonlocal
                | ast.NamedExpr
                | ast.AsyncFor
                | ast.AsyncWith
                | ast.Import
                | ast.ImportFrom
                | ast.Delete,
            ):
                raise _UnfitError
            if isinstance(part, ast.Name) and part.id in {"super", "__class__", "locals", "vars"}:
                raise _UnfitError
        single = _assigned(gate.body[0]) if len(gate.body) == 1 else None
        bound = {part.id for part in inside if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        bound |= {part.name for part in inside if isinstance(part, (ast.FunctionDef, ast.ClassDef))}
        if single is not None and isinstance(single[0], ast.Name):
            bound.discard(single[0].id)
        others = [part for part in ast.walk(self.function.node) if isinstance(part, ast.Name) and id(part) not in moved]
        shared = bound & {*(part.id for part in others), *self.function.parameters}
        kept = self._receiver()
        if isinstance(kept, ast.Name) and single is None and shared <= {kept.id}:
            # What is made is kept under a name, which nobody else has anything but None in.
            first = _assigned(gate.body[0])
            stores = [part for part in others if part.id == kept.id and isinstance(part.ctx, ast.Store)]
            empty = [(made := _made(self.parents.get(part))) is not None and _nothing(made) for part in stores]
            if first is None or ast.unparse(first[0]) != kept.id or not empty or not all(empty):
                raise _UnfitError
        elif shared or (bound and isinstance(self.function.node, ast.Module)):
            raise _UnfitError
        above = self.parents.get(gate)
        while above is not None and above is not self.function.node:
            if isinstance(above, (ast.For, ast.AsyncFor, ast.While, ast.ClassDef)):
                raise _UnfitError
            above = self.parents.get(above)

    def _receiver(self) -> ast.expr | None:
        """What the creation is a method of: the socket that is bound."""
        return self.call.func.value if isinstance(self.call.func, ast.Attribute) else None

    def _named(self, target: ast.expr | None) -> str:
        """A name for the function that makes something, which nothing here has yet."""
        named = self.call.func if target is None else target
        tail = named.attr if isinstance(named, ast.Attribute) else named.id if isinstance(named, ast.Name) else "it"
        if target is None:
            tail = re.sub(r"^(?:start|make|create|open|run|serve|get)_+(?=\w)", "", tail)
        taken = {part.id for part in ast.walk(self.module.tree) if isinstance(part, ast.Name)} | set(self.module.names)
        name = f"make_{tail.strip('_')}"
        while name in taken:
            name += "_"
        return name


def _zeros(meant: Expression) -> set[str]:
    """The axes of which a condition wants index 0, and nothing else."""
    match meant:
        case Apply("==", (Coordinate(axis, False), Constant(0)) | (Constant(0), Coordinate(axis, False))) | Apply(
            "not", (Coordinate(axis, False),)
        ):
            return {axis}
        case Apply("not", (Apply("!=", (Coordinate(axis, False), Constant(0))),)):
            return {axis}
        case Apply("not", (Apply("or", arguments),)):
            return set().union(*(_zeros(negated(argument)) for argument in arguments))
        case Apply("and", arguments):
            return set().union(*map(_zeros, arguments))
    raise _UnfitError


def _quiet(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _nothing(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _assigned(node: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """The target and the value of a plain assignment."""
    match node:
        case ast.Assign([ast.Name() | ast.Attribute() as target], value):
            return target, value
        case ast.AnnAssign(target=ast.Name() | ast.Attribute() as target, value=value) if value is not None:
            return target, value
    return None


def _names_only(node: ast.stmt) -> bool:
    found = _assigned(node)
    return found is not None and isinstance(found[0], ast.Name)


def _made(node: ast.AST | None) -> ast.expr | None:
    """The value of an assignment; the declaration of a name without one is none."""
    found = _assigned(node) if isinstance(node, ast.stmt) else None
    return None if found is None else found[1]


def _dedented(text: _Text, start: int, end: int, inner: bytes, outer: bytes) -> Iterator[_Splice]:
    """Lines moved to the left."""
    if not inner.startswith(outer) or _long_strings(text, start, end):
        raise _UnfitError
    less = len(inner) - len(outer)
    at = start
    while at < end:
        line = text.data[at : text.data.find(b"\n", at) + 1]
        if line.strip():
            if line[len(outer) : len(inner)].strip():
                raise _UnfitError
            yield _Splice(at + len(outer), at + len(outer) + less, b"")
        at += len(line)


def _long_strings(text: _Text, start: int, end: int) -> bool:
    """Whether a string goes over several lines there: what it holds would change with them."""
    first, last = text.data.count(b"\n", 0, start) + 1, text.data.count(b"\n", 0, end)
    for token in tokenize.tokenize(BytesIO(text.data).readline):
        long = token.start[0] != token.end[0] and token.type not in {tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER}
        if long and first <= token.end[0] and token.start[0] <= last:
            return True
    return False


def _after_opening(text: _Text, at: int) -> bool:
    """Whether the line before is blank, or opens the block."""
    before = text.data[text.line(at - 1) : at].strip() if at else b""
    return not before or before.endswith(b":") or before.startswith(b"@")


def _imported(module: Module, text: _Text) -> tuple[_Splice, ...]:
    """The import of the decorator, after the others at the top of a file; none where it is there."""
    known = module.names.get(WORD)
    if known == f"rankbind:{WORD}":
        return ()
    if known is not None or any(isinstance(part, ast.Name) and part.id == WORD for part in ast.walk(module.tree)):
        raise _UnfitError
    line = f"from rankbind import {WORD}".encode() + text.newline
    heads = [node for node in module.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    others = [node for node in heads if _package(node) not in {None, "__future__", *sys.stdlib_module_names}]
    before = [node for node in others if isinstance(node, ast.Import) or (node.module or "") < "rankbind"]
    if others and not before:
        at = text.line(text.start(others[0]))
        return (_Splice(at, at, line),)
    known_before = before or [node for node in heads if _package(node) is not None]
    if known_before:
        at = text.after(text.end(known_before[-1]) - 1)
        return (_Splice(at, at, line if before else text.newline + line),)
    first = module.tree.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        at = text.after(text.end(first) - 1)
        return (_Splice(at, at, text.newline + line),)
    at = text.line(text.start(first))
    return (_Splice(at, at, line + text.newline),)


def _package(node: ast.Import | ast.ImportFrom) -> str | None:
    """The package that an import is from; None for one that is relative."""
    if isinstance(node, ast.Import):
        return node.names[0].name.partition(".")[0]
    return None if node.level else (node.module or "").partition(".")[0]


__all__ = ["ChangedError", "Edit", "diff", "fixes", "write"]
