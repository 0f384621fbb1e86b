"""RB704: a collective that some members of its group reach and others do not.

Most files have no collective, and most collectives no gate, so the text is looked at before anything is parsed: a
function is read only where a call that may be a collective, or of something that makes one, stands below a condition
that sounds like ranks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from rankbind.audit.expression import (
    TRUE,
    Apply,
    Constant,
    Coordinate,
    Expression,
    Given,
    Parameter,
    Place,
    Unclear,
    axes,
    both,
    either,
    filled,
    kinds,
    large,
    mapped,
    negated,
    text,
    walk,
)
from rankbind.audit.meaning import Meaning, Scope
from rankbind.audit.program import Class, Function, Module, Program
from rankbind.audit.ranks import Layout, Point, Questions, points, table
from rankbind.audit.rules.common import comparisons, labels, listed
from rankbind.audit.sites import evident
from rankbind.audit.sources import Source
from rankbind.audit.spans import span
from rankbind.audit.walk import Bound, Imported, Path, Visit, tail
from rankbind.finding import Finding, Label, Level

_DEEPEST: Final = 4
"""Calls that are followed from a gate to the collective behind it."""
_MOST_DEFINITIONS: Final = 3
"""Functions of one name beyond which the name tells nothing."""
_MOST_FILES: Final = 24
"""Files that have a name beyond which it is a word like any other."""
_MOST_EFFECTS: Final = 40
_MOST_CALLERS: Final = 8

_NO_GROUP: Final = 99
_TORCH: Final[Mapping[str, int]] = {
    "barrier": 0,
    "monitored_barrier": 0,
    "all_reduce": 2,
    "all_gather": 2,
    "all_gather_into_tensor": 2,
    "all_gather_object": 2,
    "reduce": 3,
    "reduce_scatter": 3,
    "reduce_scatter_tensor": 3,
    "broadcast": 2,
    "broadcast_object_list": 2,
    "gather": 3,
    "gather_object": 3,
    "scatter": 3,
    "scatter_object_list": 3,
    "all_to_all": 2,
    "all_to_all_single": 4,
    # Every rank of the world has to call these, whichever group they make.
    "new_group": _NO_GROUP,
    "new_subgroups": _NO_GROUP,
    "new_subgroups_by_enumeration": _NO_GROUP,
    "init_device_mesh": _NO_GROUP,
}
"""Functions of torch.distributed, with the position of the group."""
_COORDINATOR: Final = frozenset(
    [
        *("barrier", "all_reduce", "all_gather", "all_gatherv", "all_gather_into_tensor", "all_gather_object"),
        *("broadcast", "broadcast_object", "broadcast_object_list", "broadcast_tensor_dict", "gather", "all_to_all"),
        *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatterv", "all_to_all_single"),
    ]
)
"""Methods of a group's coordinator."""
_LIBRARY: Final[Mapping[str, frozenset[str]]] = {
    # Hugging Face accelerate: all of them enter a collective on every process.
    "accelerator": frozenset(["wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes"]),
    # Lightning: `Trainer.save_checkpoint` ends in a barrier, `Fabric.save` gathers and waits.
    "fabric": frozenset(["barrier", "all_gather", "all_reduce", "broadcast", "save"]),
    "strategy": frozenset(["barrier", "all_gather", "reduce", "broadcast"]),
    "trainer": frozenset(["save_checkpoint"]),
}
"""Calls of libraries that hold a collective over the world, by what the object is called."""
_WORDS: Final = frozenset(
    name.encode() for name in (*_TORCH, *_COORDINATOR, *(name for names in _LIBRARY.values() for name in names))
) - {b"save"}
_COMMON: Final = frozenset(
    b"""barrier reduce gather scatter broadcast save_checkpoint all_to_all all_reduce all_gather reduce_scatter
    pad_across_processes""".split()
)
"""Words that are names of other things as well."""
_WHOSE: Final = re.compile(
    rb"(?:dist\w*|distributed|c10d|group|comm|coordinator|accelerator|fabric|strategy|trainer|\))[.]$"
)
_MODULES: Final = frozenset(["dist", "distributed", "torch_dist", "torch_distributed", "c10d", "distributed_c10d"])

_DEFINED: Final = re.compile(rb"([ \t]*)(?:async )?def (\w+)")
_HEADER: Final = re.compile(rb"(?:if|elif|while)\b")
_EXIT: Final = re.compile(rb"(?:return|continue|break)\b")
_RANKS: Final = re.compile(
    rb"(?<!lora_)rank(?:_?0|_zero\w*|_in_group)?\b|(?:is|on|if|only)_\w*rank|main_process|global_zero|"
    rb"is_(?:the_)?(?:first|last)|is_\w*(?:master|leader|chief|driver|writer)"
)
_SOUNDS: Final = re.compile(rb"(?:if|while)\b")
_FLAG: Final = re.compile(rb"[ \t]*(?:self\.)?(\w+)(?:: ?bool)? = .*(?:[=!]=|[<>]| in |not |is_|\?)")
_NEVER: Final = re.compile(rb"(?!)")
_DECORATED: Final = re.compile(
    rb"@[\w.]*(?:rank_zero_only|on_main_process|on_local_main_process|master_only)\b[^\n]*\n[^\n]*\Z"
)
_DECORATORS: Final[Mapping[str, str]] = {
    "rank_zero_only": "rank",
    "on_main_process": "rank",
    "master_only": "rank",
    "on_local_main_process": "local_rank",
}


@dataclass(frozen=True, slots=True)
class Effect:
    """A collective that a function runs, itself or through what it calls.

    Attributes:
        name: of the collective.
        group: the axis along which its group runs, a parameter that says, or None where it is not known.
        gate: the condition for it, from where the function is entered.
        call: the collective itself.
        made: the call in the function that has it.
        chain: the functions on the way to it, the outermost first.
        loops: whether it is in a loop without an end.
        once: whether it is run on the first call only: the others may have made theirs from elsewhere.
    """

    name: str
    group: str | Parameter | None
    gate: Expression
    call: Place
    made: ast.Call
    chain: tuple[Function, ...]
    loops: bool = False
    once: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """A pair of ranks of one group of which one joins and the other does not."""

    axes: tuple[str, ...]
    sizes: Mapping[str, int]
    joins: Point
    absent: Point


def findings(meaning: Meaning) -> Iterator[Finding]:
    """RB704, one for each collective and gate."""
    rule = _Rule(meaning)
    seen: set[tuple[str, int]] = set()
    for function in rule.suspects():
        for effect, missing, gates in rule.lacking(function):
            at = (effect.call.file, id(effect.call.node))
            if at not in seen:
                seen.add(at)
                yield _finding(function, effect, missing, gates)


class _Rule:
    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        self.program: Program = meaning.program
        self._effects: dict[str, list[Effect]] = {}
        self._open: set[str] = set()
        self._conditions: dict[int, Expression] = {}
        self._raising: dict[int, set[tuple[int, bool]]] = {}
        self._endless: dict[str, bool] = {}
        self._flags: dict[str, re.Pattern[bytes]] = {}
        self.names: set[str] = set()
        """Functions that run a collective, as far as names tell, and that few others share a name with."""
        self.more: set[str] = set()
        """All names of functions that run a collective, however common."""

    # The text.

    def suspects(self) -> Iterator[Function]:
        """The functions in which a collective, or a call of what runs one, stands below a condition about ranks."""
        found: dict[tuple[str, int], Source] = {}
        homes = {word: self.program.mentioning(word.decode()) for word in sorted(_WORDS)}
        for direct in (True, False, False):
            around: set[bytes] = set()
            spots: dict[str, tuple[Source, list[int]]] = {}
            for word, sources in homes.items():
                for source in sources:
                    if calls := _calls(source.data, word, direct):
                        spots.setdefault(source.name, (source, []))[1].extend(calls)
            for source, places in spots.values():
                self._scan(source, places, found, around)
            self.more.update(name.decode() for name in around)
            homes = self._homes(frozenset(name for name in around if not name.startswith(b"__")) - _WORDS)
            self.names.update(name.decode() for name in homes)
        for (_, line), source in sorted(found.items(), key=lambda item: item[0]):
            module = self.program.module(source)
            if module is not None:
                yield from (one for one in module.functions if getattr(one.node, "lineno", 0) == line)

    def _homes(self, names: frozenset[bytes]) -> dict[bytes, list[Source]]:
        """The files that have each of the names that stand for something in particular: few files, few functions."""
        homes = {name: self.program.mentioning(name.decode()) for name in sorted(names)}
        return {
            name: sources
            for name, sources in homes.items()
            if len(sources) <= _MOST_FILES
            and sum(source.data.count(b"def " + name + b"(") for source in sources) <= _MOST_DEFINITIONS
        }

    def _scan(
        self, source: Source, spots: Sequence[int], found: dict[tuple[str, int], Source], around: set[bytes]
    ) -> None:
        data = source.data
        for at in spots:
            line = data.rfind(b"\n", 0, at) + 1
            indent = len(data[line:at]) - len(data[line:at].lstrip())
            home = _home(data, line, indent)
            if home is not None:
                around.add(_defines(data, home))
            start = 0 if home is None else home.start()
            if not (_SOUNDS.search(data, start, at) or _DECORATED.search(data, max(0, start - 200), start)):
                continue
            number = 0 if home is None else data.count(b"\n", 0, start) + 1
            if (source.name, number) in found:
                continue
            flags = self._flags.get(source.name)
            if flags is None:
                flags = self._flags[source.name] = _flags(data)
            above = data[start if home is None else home.end() : line]
            if _dominated(above, indent, flags) or _DECORATED.search(data, max(0, start - 200), start):
                found[source.name, number] = source

    # What a function runs.

    def effects(self, function: Function, depth: int = 0) -> list[Effect]:
        """The collectives that a function runs."""
        key = f"{function.key}:{function.name}"
        found = self._effects.get(key)
        if found is not None:
            return found
        if key in self._open:
            return []
        if depth > _DEEPEST:
            place = Place(function.module.source.name, function.node)
            return [Effect(function.name, None, TRUE, place, _NO_CALL, (function,))]
        self._open.add(key)
        found = []
        gate = _decorated(function)
        for visit in function.walk.calls:
            if len(found) < _MOST_EFFECTS:
                for one in self._of_call(function, visit, depth):
                    found.append(replace(one, gate=both(gate, one.gate)) if gate != TRUE else one)
        self._open.discard(key)
        self._effects[key] = found
        return found

    def _of_call(self, function: Function, visit: Visit, depth: int) -> Iterator[Effect]:
        node = visit.node
        assert isinstance(node, ast.Call)
        name = tail(node.func)
        if name not in _KNOWN and name not in self.more:
            return
        scope = Scope(function, visit.names)
        place = Place(function.module.source.name, node)
        if name in _KNOWN and (told := self._collective(node, name, scope)) is not None:
            gate = self.condition(visit.path, function)
            once = _once(function, visit.path)
            yield Effect(name, told[0], gate, place, node, (function,), _endless(function, node), once)
            return
        callee = self.meaning.callee(node, scope)
        if isinstance(callee, Class):
            callee = self.program.method(callee, "__init__")
        if isinstance(callee, Function) and isinstance(callee.node, ast.Module):
            callee = None
        inner = [one for one in self.effects(callee, depth + 1) if not one.once] if callee is not None else []
        if callee is None or not inner:
            # Something of that name runs a collective, if not this: it may be what the others join.
            if callee is None or callee.owner is not None:
                yield Effect(name, None, self.condition(visit.path, function), place, node, (function,))
            return
        gate = self.condition(visit.path, function)
        values = self.meaning.arguments(node, callee, scope)
        for one in inner:
            yield Effect(
                one.name,
                self._handed(one.group, node, callee, scope) if isinstance(one.group, Parameter) else one.group,
                both(gate, filled(one.gate, values)),
                one.call,
                node,
                (function, *one.chain),
                one.loops or _endless(function, node),
                _once(function, visit.path),
            )

    def _collective(self, node: ast.Call, name: str, scope: Scope) -> tuple[str | Parameter | None] | None:
        """The group of a collective; None if the call is none."""
        match node.func:
            case ast.Attribute(value, _):
                whose = tail(value)
                library = _LIBRARY.get(whose.lstrip("_"))
                if library is not None and name in library and not _of_library(scope.function.module):
                    return ("rank",)
                if name in _TORCH and whose in _MODULES and not isinstance(value, ast.Call):
                    return (self._group(node, name, scope),)
                if name in _COORDINATOR:
                    axis = self._along(value, scope)
                    if isinstance(axis, str) or (isinstance(axis, Parameter) and _GROUP.search(axis.name)):
                        return (axis,)
            case ast.Name() if name in _TORCH:
                binding = scope.names.get(name)
                dotted = binding.dotted if isinstance(binding, Imported) else scope.function.module.names.get(name)
                if isinstance(dotted, str) and dotted.partition(":")[0] in _HOMES:
                    return (self._group(node, name, scope),)
        return None

    def _group(self, node: ast.Call, name: str, scope: Scope) -> str | Parameter | None:
        position = _TORCH[name]
        if position == _NO_GROUP:
            # Then only the members of the new group call it, and who they are is not known.
            return None if any(one.arg == "use_local_synchronization" for one in node.keywords) else "rank"
        given = next((one.value for one in node.keywords if one.arg in {"group", "pg", "process_group"}), None)
        if any(one.arg is None for one in node.keywords) or any(isinstance(one, ast.Starred) for one in node.args):
            return None
        if given is None:
            if len(node.args) <= position:
                return "rank"
            given = node.args[position]
        return self._along(given, scope)

    def _along(self, node: ast.expr, scope: Scope, steps: int = 4) -> str | Parameter | None:
        """The axis along which a group runs, or the parameter that says."""
        if not steps:
            return None
        match node:
            case ast.Constant(None):
                return "rank"
            case ast.Attribute(value, "WORLD") if tail(value) == "group":
                return "rank"
        found = self.meaning.group(node, scope)
        if found is not None:
            return found
        function = scope.function
        match node:
            case ast.Name(name):
                binding = scope.names.get(name)
                if isinstance(binding, Bound):
                    return self._along(binding.node, Scope(function, binding.names), steps - 1)
                if binding is None and name in function.parameters:
                    return Parameter(function.key, name)
            case ast.Attribute(ast.Name("self"), name) if function.owner is not None:
                stored = [
                    (method, bound)
                    for method in function.owner.stores.get(name, ())
                    for visit, bound in method.walk.stores
                    if isinstance(visit.node, ast.Attribute) and visit.node.attr == name
                ]
                if len(stored) == 1 and stored[0][0] is not function:
                    method, bound = stored[0]
                    told = self._along(bound.node, Scope(method, bound.names), steps - 1)
                    return told if isinstance(told, str) else None
        return None

    def _handed(self, hole: Parameter, node: ast.Call, callee: Function, scope: Scope) -> str | Parameter | None:
        """The group that a call hands to a function."""
        if hole.function != callee.key:
            return None
        given = next((one.value for one in node.keywords if one.arg == hole.name), None)
        if given is None:
            names = callee.parameters[1 if callee.bound else 0 :]
            place = names.index(hole.name) if hole.name in names else len(node.args)
            if any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords):
                return None
            given = node.args[place] if place < len(node.args) else callee.default(hole.name)
        return None if given is None else self._along(given, scope)

    def condition(self, path: Path, function: Function) -> Expression:
        """The condition for a statement, but for tests whose failure raises: a rank that raises ends the run."""
        found = self._conditions.get(id(path))
        if found is not None:
            return found
        if path.alternatives:
            found = either(*(self.condition(one, function) for one in path.alternatives))
        elif path.parent is None or path.test is None:
            found = TRUE
        else:
            before = self.condition(path.parent, function)
            if (id(path.test.node), path.holds) in self._raises(function):
                found = before
            else:
                test = _looped(self.meaning.bound(path.test, function))
                found = both(before, test if path.holds else negated(test))
                if large(found):
                    found = both(before, Unclear("a long condition"))
        self._conditions[id(path)] = found
        return found

    def _raises(self, function: Function) -> set[tuple[int, bool]]:
        found = self._raising.get(id(function))
        if found is None:
            found = self._raising[id(function)] = set()
            for node in ast.walk(function.node):
                if isinstance(node, ast.If):
                    for body, holds in ((node.body, False), (node.orelse, True)):
                        if body and isinstance(body[-1], ast.Raise):
                            found.add((id(node.test), holds))
                elif isinstance(node, ast.Assert):
                    found.add((id(node.test), True))
        return found

    # Who is missing.

    def lacking(self, function: Function) -> Iterator[tuple[Effect, Missing, list[tuple[Place, str]]]]:
        """The collectives of a function that some members of the group do not reach, and the tests that say so."""
        own = _decorated(function)
        for visit in function.walk.calls:
            if not self._named(visit) or (own == TRUE and not self._sounds(visit.path, function)):
                continue
            if kinds(both(own, self.condition(visit.path, function))).isdisjoint({Coordinate, Parameter}):
                continue
            for one in self._of_call(function, visit, 0):
                if not isinstance(one.group, str) or one.loops or _expected(function, one.made):
                    continue
                effect = replace(one, gate=self.meaning.completed(both(own, one.gate)))
                missing = self._missing(function, effect, ())
                if missing is None:
                    continue
                missing = self._missing(function, effect, self.effects(function))
                if missing is not None and not self._answered(function, effect, missing):
                    tests = [*self._tests(visit.path, function), *comparisons(effect.gate)]
                    yield effect, missing, list(dict.fromkeys(tests))

    def _tests(self, path: Path, function: Function) -> Iterator[tuple[Place, str]]:
        """The tests about ranks on the way to a statement."""
        for one in path.alternatives:
            yield from self._tests(one, function)
        if path.parent is not None:
            yield from self._tests(path.parent, function)
        if path.test is not None and (id(path.test.node), path.holds) not in self._raises(function):
            value = self.meaning.completed(self.meaning.bound(path.test, function))
            if Coordinate in kinds(value):
                yield Place(function.module.source.name, path.test.node), text(value)

    def _sounds(self, path: Path, function: Function) -> bool:
        """Whether a test on the way to a statement has a word in it that sounds like ranks."""
        flags = self._flags.get(function.module.source.name)
        return any(
            _RANKS.search(word) or (flags is not None and flags.fullmatch(word))
            for test in _path_tests(path)
            for node in ast.walk(test)
            if (word := (getattr(node, "id", "") or getattr(node, "attr", "")).encode())
        )

    def _named(self, visit: Visit) -> bool:
        assert isinstance(visit.node, ast.Call)
        name = tail(visit.node.func)
        return name in _KNOWN or name in self.names

    def _missing(self, function: Function, effect: Effect, effects: Sequence[Effect]) -> Missing | None:
        meaning = self.meaning
        assert isinstance(effect.group, str)
        gate = self._completed(effect.gate)
        named = axes(gate)
        if not named:
            return None
        others = [
            self._completed(one.gate)
            for one in effects
            if (one.made is not effect.made or one.call.node is not effect.call.node)
            and (one.group == effect.group or not isinstance(one.group, str))
        ]
        layout = meaning.vocabulary.layout({*evident(meaning, function), *named, effect.group})
        group = layout.parts(effect.group)
        if not group:
            layout, group = Layout((effect.group,)), (effect.group,)
        found: list[str] = []
        first: Missing | None = None
        for part in group:
            for size in (2, 3):
                missing = _pair(gate, others, layout, part, size)
                if missing is not None:
                    first = first or missing
                    found += [axis for axis in named if part in layout.parts(axis) and axis not in found]
                    break
        return None if first is None or not found else replace(first, axes=tuple(found))

    def _completed(self, gate: Expression) -> Expression:
        return self.meaning.completed(gate)

    def _answered(self, function: Function, effect: Effect, missing: Missing) -> bool:
        """Whether those who are missing may join from elsewhere: in a caller, or in a loop that serves the others."""
        if self._served(function.module, effect):
            return True
        for caller in self.meaning.callers(function)[:_MOST_CALLERS]:
            if caller.function is function:
                continue
            for one in self.effects(caller.function):
                if one.made is caller.visit.node or (isinstance(one.group, str) and one.group != effect.group):
                    continue
                gate = self._completed(one.gate)
                questions = Questions()
                may, _ = table(gate, missing.absent, questions)
                _, must = table(gate, missing.joins, questions)
                if axes(gate) and may & ~must:
                    return True
        return False

    def _served(self, module: Module, effect: Effect) -> bool:
        found = self._endless.get(module.source.name)
        if found is None:
            found = self._endless[module.source.name] = any(
                isinstance(node, ast.While)
                and _forever(node)
                and any(isinstance(one, ast.Call) and tail(one.func) in _TORCH for one in ast.walk(node))
                for node in ast.walk(module.tree)
            )
        return found


def _of_library(module: Module) -> bool:
    """Whether a file is of one of the libraries in the table: there the source says more, and of its own release."""
    return module.source.module.partition(".")[0] in {"pytorch_lightning", "lightning", "lightning_fabric"}


_NO_CALL: Final = ast.Call(ast.Name("", ast.Load()), [], [])
_GROUP: Final = re.compile(r"group|comm|coordinator")
_KNOWN: Final = frozenset([*_TORCH, *_COORDINATOR, *(name for names in _LIBRARY.values() for name in names)])
_HOMES: Final = frozenset(["torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh"])


def _calls(data: bytes, word: bytes, direct: bool) -> list[int]:
    """Where a word is called."""
    called = word + b"("
    found = []
    at = data.find(called)
    while at >= 0:
        before = data[at - 1 : at]
        if before == b".":
            fits = not direct or word not in _COMMON or _WHOSE.search(data, max(0, at - 40), at) is not None
        else:
            fits = not (before.isalnum() or before == b"_" or data[at - 4 : at] == b"def ")
            fits = fits and (not direct or word not in _COMMON or b"torch.distributed" in data)
        if fits:
            found.append(at)
        at = data.find(called, at + 1)
    return found


def _home(data: bytes, at: int, indent: int) -> re.Match[bytes] | None:
    """The head of the function that a line with an indentation is in; None at the top of a module."""
    while indent and (at := data.rfind(b"def ", 0, at)) >= 0:
        found = _DEFINED.match(data, data.rfind(b"\n", 0, at) + 1)
        if found is not None and len(found[1]) < indent:
            return found
    return None


def _defines(data: bytes, home: re.Match[bytes]) -> bytes:
    """What a function is called by: its name, or that of its class if it is the constructor."""
    if home[2] != b"__init__":
        return home[2]
    at = data.rfind(b"\nclass ", 0, home.start())
    found = re.match(rb"\w+", data[at + 7 : at + 107]) if at >= 0 else None
    return found[0] if found else home[2]


def _flags(data: bytes) -> re.Pattern[bytes]:
    """The names that a comparison of ranks is assigned to."""
    found: set[bytes] = set()
    for word in (b"rank", b"main_process", b"global_zero"):
        at = data.find(word)
        while at >= 0:
            start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            line = data[start : end if end >= 0 else len(data)]
            if b" = " in line and (flag := _FLAG.match(line)) and _RANKS.search(line, flag.end(1)):
                found.add(flag[1])
            at = -1 if end < 0 else data.find(word, end)
    return re.compile(rb"\b(?:" + b"|".join(sorted(found)) + rb")\b") if found else _NEVER


def _dominated(above: bytes, level: int, flags: re.Pattern[bytes]) -> bool:
    """Whether a condition that sounds like ranks decides if the line below `above` is reached, as indentation tells."""
    exits = False
    rest = b""
    for line in reversed(above.split(b"\n")):
        bare = line.lstrip()
        if not bare or bare[:1] == b"#":
            continue
        indent = len(line) - len(bare)
        head = _HEADER.match(bare) is not None
        if bare[:1] in b")]" and indent <= level:
            rest, level = bare, indent
            continue
        if rest and indent > level:
            rest += bare
            continue
        if indent < level or (indent == level and (exits or rest)) or (indent > level and exits):
            if head and (_RANKS.search(bare + rest) or flags.search(bare + rest)):
                return True
            if indent < level:
                # The branches before an `else` or an `elif` say when it is reached.
                exits = bare.startswith((b"else", b"elif"))
            elif head and indent == level and bare.startswith(b"if"):
                exits = False
            rest = b""
            level = min(level, indent)
        elif indent > level and _EXIT.match(bare):
            exits = True
    return False


def _decorated(function: Function) -> Expression:
    """The gate that a decorator is."""
    if isinstance(function.node, ast.Module):
        return TRUE
    for item in function.node.decorator_list:
        axis = _DECORATORS.get(tail(item))
        if axis is not None:
            at = Place(function.module.source.name, item)
            return Apply("==", (Coordinate(axis, at=at), Constant(0)), at)
    return TRUE


def _endless(function: Function, node: ast.Call) -> bool:
    """Whether a call is in a loop without an end: those who do not serve in it ask for each round from elsewhere."""
    return any(
        isinstance(loop, ast.While) and _forever(loop) and any(one is node for one in ast.walk(loop))
        for loop in ast.walk(function.node)
    )


def _once(function: Function, path: Path) -> bool:
    """Whether a test on the way asks for something global, or an attribute, that the function itself assigns."""
    tested = {name for test in _path_tests(path) for part in ast.walk(test) if (name := _kept(part))}
    if not tested:
        return False
    shared = {name for node in ast.walk(function.node) if isinstance(node, ast.Global) for name in node.names}
    return any(
        name in tested and ("." in name or name in shared)
        for node in ast.walk(function.node)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store) and (name := _kept(node))
    )


def _kept(node: ast.AST) -> str:
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(owner), name):
            return f"{owner}.{name}"
    return ""


def _path_tests(path: Path) -> Iterator[ast.expr]:
    """The tests on the way to a statement, each once."""
    waiting: list[Path] = [path]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        waiting += one.alternatives
        if one.parent is not None:
            waiting.append(one.parent)
        if one.test is not None:
            yield one.test.node


def _expected(function: Function, node: ast.Call) -> bool:
    """Whether a test says that a call fails."""
    return any(
        isinstance(block, ast.With)
        and any(_RAISES.match(tail(item.context_expr)) for item in block.items)
        and any(one is node for one in ast.walk(block))
        for block in ast.walk(function.node)
    )


_RAISES: Final = re.compile(r"assertRaises|assertWarns|raises$")


def _forever(node: ast.While) -> bool:
    return isinstance(node.test, ast.Constant) and bool(node.test.value)


def _looped(condition: Expression) -> Expression:
    """`condition`, in which one of many is not the one that is configured: each rank may have its turn."""
    if Given not in kinds(condition) or Coordinate not in kinds(condition):
        return condition
    return mapped(
        condition,
        lambda part: Unclear(part.text) if isinstance(part, Given) and part.text.startswith("each ") else None,
    )


def _pair(gate: Expression, others: Sequence[Expression], layout: Layout, part: str, size: int) -> Missing | None:
    """Two ranks that differ in `part`: one passes `gate`, the other neither that nor what the first does not."""
    ranks = points(layout, ((part, size),))
    questions = Questions()
    tables = [table(gate, point, questions) for point in ranks]
    rest = [[table(other, point, questions) for point in ranks] for other in others]
    for one, joins in enumerate(ranks):
        for two, absent in enumerate(ranks):
            if one == two:
                continue
            lost = tables[one][1] & ~tables[two][0]
            if lost:
                lost &= ~reduce(lambda mask, other: mask | (other[two][0] & ~other[one][1]), rest, 0)
            if lost > 0:
                return Missing((part,), {part: size}, joins, absent)
    return None


def _finding(function: Function, effect: Effect, missing: Missing, gates: Sequence[tuple[Place, str]]) -> Finding:
    group = "world" if effect.group == "rank" else f"{effect.group} group"
    part, size = next(iter(missing.sizes.items()))
    shape = f"{size} ranks" if part == "rank" else f"{part}={size}"
    only = f"only where {text(_plain(effect.gate))}"
    if len(only) > _LONGEST:
        only = f"only on some ranks, as {listed(missing.axes)} says"
    through = f" (through {', '.join(one.qualified for one in effect.chain[1:])})" if len(effect.chain) > 1 else ""
    culprit = Label(span(effect.call), f"not every rank of the {group} joins")
    others = [Label(span(Place(function.module.source.name, effect.made)), "reached from here")]
    lines: set[tuple[str, int]] = set()
    for place, name in gates:
        at = span(place)
        if (at.file, at.line) not in lines:
            lines.add((at.file, at.line))
            others.append(Label(at, f"the gate: {name}" if len(name) <= _LONGEST else "the gate"))
    sure = not any(_compares(part) and {Coordinate, Given} <= kinds(part) for part in walk(effect.gate))
    joins, absent = missing.joins.rank, missing.absent.rank
    detail = f"with {shape}: rank {joins} waits in {effect.name}{through}, rank {absent} does not come"
    return Finding(
        "RB704",
        f"collective: {effect.name} on the {group} is reached {only}; with {shape}, rank {absent} never joins",
        Level.ERROR if sure else Level.WARNING,
        labels=labels(culprit, others),
        facts={
            "collective": effect.name,
            "group": effect.group,
            "function": function.qualified,
            "axes": list(missing.axes),
            "topology": dict(missing.sizes),
            "ranks": [joins, absent],
            "gate": text(effect.gate),
        },
        details=(detail,),
        fix=f"call {effect.name} on every rank of the {group}, and gate only what one of them does alone",
    )


_LONGEST: Final = 100
"""Characters of a condition that are shown."""


def _plain(gate: Expression) -> Expression:
    """`gate` as a reader would say it: ``a == b`` for ``not (a != b)``."""
    match gate:
        case Apply("not", (Apply(operator, sides),)) if operator in _OPPOSITE:
            return Apply(_OPPOSITE[operator], sides)
        case Apply("and" | "or" as operator, arguments):
            return Apply(operator, tuple(map(_plain, arguments)))
    return gate


_OPPOSITE: Final[Mapping[str, str]] = {
    "==": "!=",
    "!=": "==",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "in": "not in",
    "not in": "in",
    "is": "is not",
    "is not": "is",
}


def _compares(part: Expression) -> bool:
    return isinstance(part, Apply) and part.operator in _COMPARISONS


_COMPARISONS: Final = frozenset(["==", "!=", "<", "<=", ">", ">=", "in", "not in", "%"])


__all__ = ["findings"]
