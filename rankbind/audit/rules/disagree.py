"""RB702 and RB703: gates about one thing that let different ranks pass.

Two gates are about one thing if they ask for the same options of the configuration, and nothing else that is not known.
What is recorded is taken somewhere else: where nothing takes it, it piles up.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from rankbind.audit.expression import (
    FALSE,
    TRUE,
    Apply,
    Constant,
    Coordinate,
    Expression,
    Given,
    Parameter,
    Place,
    Private,
    Unclear,
    axes,
    both,
    chosen,
    either,
    holes,
    kinds,
    mapped,
    negated,
    text,
    walk,
)
from rankbind.audit.gates import Condition, around, lines_of
from rankbind.audit.meaning import Caller, Meaning
from rankbind.audit.program import Class, Function, Module
from rankbind.audit.ranks import Layout, Point, Questions, points, table
from rankbind.audit.rules.common import listed
from rankbind.audit.spans import span
from rankbind.audit.walk import Visit
from rankbind.finding import Finding, Label, Level

_COUNT: Final = 3
"""Indices of an axis in the topology that is looked at: of two, `!= 0` would let one pass too."""
_KEPT: Final = re.compile(rb"\.(?:append|appendleft|put|put_nowait|add|extend)\(")
_RECORDS: Final = re.compile(rb"\bself\.\w*(?:record|event|trac|collect|captur|histor|stat|metric|log)\w*")
_STORING: Final = frozenset(["append", "appendleft", "put", "put_nowait", "add", "extend"])
_TAKING: Final = frozenset(["clear", "popleft", "pop", "get", "get_nowait"])
_BOUNDED: Final = re.compile(r"maxlen|maxsize")
_MAKING: Final = frozenset(["__init__", "__post_init__"])
_MOST_FILES: Final = 12
_COMMON: Final = 40
"""Files beyond which a name is one of many things."""
_STEPS: Final = 6


def findings(meaning: Meaning, conditions: Sequence[Condition]) -> Iterator[Finding]:
    """RB703, then RB702 for what that does not say already."""
    piled = list(_unconsumed(meaning, {name for one in conditions if (name := one.gate.target) and one.gate.pinned}))
    yield from (finding for finding, _ in piled)
    said = {key for _, keys in piled for key in keys}
    for finding, keys in _disagreeing(meaning, conditions):
        if keys not in said:
            yield finding
    yield from _unreachable(meaning, conditions)


# RB702.


@dataclass(frozen=True, slots=True)
class _Site:
    """A gate that says whether something is there.

    Attributes:
        what: the flag, the parameter, the predicate or the attribute.
        keys: the options that it asks for.
    """

    place: Place
    function: Function
    what: str
    value: Expression
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Apart:
    """Two gates on a topology on which they let different ranks pass.

    Attributes:
        axis: the one that the topology has.
        points: a rank that passes the first and not the second.
        never: whether the first lets another single index pass, so that no rank passes both.
    """

    axis: str
    point: Point
    never: bool


def _disagreeing(meaning: Meaning, conditions: Iterable[Condition]) -> Iterator[tuple[Finding, frozenset[str]]]:
    by_keys: dict[frozenset[str], dict[Expression, _Site]] = {}
    for site in _sites(conditions):
        # The first place that spells a condition out stands for all that say the same.
        same = by_keys.setdefault(site.keys, {})
        if site.value not in same or (_handed_on(same[site.value]) and not _handed_on(site)):
            same[site.value] = site
    for keys, sites in by_keys.items():
        found = [pair for pair in combinations(sites.values(), 2) if _comparable(meaning, *pair)]
        for wide, narrow, apart in _widest(meaning, found):
            yield _finding(wide, narrow, apart, keys), keys


def _handed_on(site: _Site) -> bool:
    return isinstance(site.place.node, (ast.Name, ast.Attribute))


def _sites(conditions: Iterable[Condition]) -> Iterator[_Site]:
    for condition in conditions:
        what = _made(condition)
        if what is None:
            continue
        value = mapped(existing(condition.value), _named)
        keys = _keys(value)
        if keys:
            yield _Site(condition.place, condition.function, what, value, keys)


def _made(condition: Condition) -> str | None:
    """What a condition says is there; None for one that only steers."""
    gate = condition.gate
    match gate.kind:
        case "assign" | "keyword":
            return (gate.target or "").rpartition(".")[2]
        case "argument":
            return gate.target
        case "return":
            return condition.function.name
        case "if":
            return _attribute(condition)
    return None


def _attribute(condition: Condition) -> str | None:
    """The attribute that is made, or set to True, under an ``if``."""
    for node in ast.walk(condition.function.node):
        if isinstance(node, ast.If) and node.test is condition.place.node:
            for statement in node.body:
                match statement:
                    case ast.Assign([ast.Attribute(_, name)], ast.Call() | ast.Constant(True)):
                        return name
                    case ast.AnnAssign(ast.Attribute(_, name), value=ast.Call() | ast.Constant(True)):
                        return name
    return None


def _named(part: Expression) -> Expression | None:
    """An option by its last name: ``args.enable_metrics`` and ``get_observability().enable_metrics`` are one."""
    match part:
        case Given(name) | Parameter(_, name):
            return Given(name.rpartition(".")[2])
    return None


def _keys(value: Expression) -> frozenset[str]:
    """The options that a condition asks for; none where it asks for anything else."""
    if Unclear in kinds(value) or Private in kinds(value):
        return frozenset()
    if any(isinstance(part, Apply) and part.operator not in _PLAIN for part in walk(value)):
        return frozenset()
    found = frozenset(part.text for part in walk(value) if isinstance(part, Given))
    return found if all(_OPTION.fullmatch(name) and not _ROLE.search(name) for name in found) else frozenset()


_PLAIN: Final = frozenset(
    [
        "and",
        "or",
        "not",
        "if",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "is",
        "is not",
        "in",
        "not in",
        "+",
        "-",
        "*",
        "//",
        "%",
    ]
)
_OPTION: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")
_ROLE: Final = re.compile(r"(?:^|_)(?:rank|leader|main|master|owner|world|size|mode)(?:_|$)|^(?:is|tie)_")


def _comparable(meaning: Meaning, first: _Site, second: _Site) -> bool:
    """Whether processes of one kind get to both."""
    roles = [
        meaning.vocabulary.role_of(site.function.module.source.module, site.function.qualified)
        for site in (first, second)
    ]
    return roles[0] == roles[1]


def _widest(meaning: Meaning, pairs: Iterable[tuple[_Site, _Site]]) -> Iterator[tuple[_Site, _Site, list[_Apart]]]:
    """The pairs that disagree, each site with the one that it differs most from."""
    found: dict[int, tuple[_Site, _Site, list[_Apart]]] = {}
    for first, second in pairs:
        layout = meaning.vocabulary.layout({*axes(first.value), *axes(second.value)})
        for wide, narrow in ((first, second), (second, first)):
            apart = [one for axis in layout.order if (one := apart_on(wide.value, narrow.value, layout, axis))]
            if apart and id(narrow) in found and all(one.never for one in apart):
                # Neither is the wider one, and it is said already.
                continue
            if apart and len(apart) > len(found.get(id(wide), ((), (), ()))[2]):
                found[id(wide)] = (wide, narrow, apart)
    yield from found.values()


def apart_on(wide: Expression, narrow: Expression, layout: Layout, axis: str) -> _Apart | None:
    """Whether `narrow` lets one index of an axis pass where `wide` lets more or another pass, for the same options."""
    questions = Questions()
    ranks = points(layout, ((axis, _COUNT),))
    more = [table(wide, point, questions) for point in ranks]
    less = [table(narrow, point, questions) for point in ranks]
    for place in range(_COUNT):
        # Where, for some answers, this index alone passes the narrow gate.
        alone = less[place][1]
        for other in range(_COUNT):
            if other != place:
                alone &= ~less[other][0]
        for other in range(_COUNT):
            if other == place or not alone & more[other][1]:
                continue
            shared = alone & more[other][1] & more[place][0]
            if shared:
                return _Apart(axis, ranks[other], False)
            if all(not alone & more[third][0] for third in range(_COUNT) if third != other):
                return _Apart(axis, ranks[other], True)
    return None


def _unreachable(meaning: Meaning, conditions: Iterable[Condition]) -> Iterator[Finding]:
    """Where something is asked for on a rank other than the one that makes it."""
    for condition in conditions:
        if condition.gate.kind != "if" or not any(map(_object, walk(condition.value))):
            continue
        value = existing(condition.value)
        layout = meaning.vocabulary.layout(axes(value))
        for axis in layout.order:
            # A condition that passes on one index alone says that there is one, and means it.
            if _passes(value, layout, axis, 1) and not _passes(value, layout, axis, _COUNT):
                if (made := _elsewhere(value, condition.place)) is not None:
                    yield _unreached(condition, made, axis, value)
                break


def _object(part: Expression) -> bool:
    """Whether something is there under a condition, and None otherwise."""
    match part:
        case Apply("if", (_, then, Constant(None))):
            return not isinstance(then, Constant)
        case Apply("is not" | "!=", (_, Constant(None))):
            return True
    return False


def _passes(value: Expression, layout: Layout, axis: str, count: int) -> bool:
    questions = Questions()
    return any(table(value, point, questions)[0] for point in points(layout, ((axis, count),)))


def _elsewhere(value: Expression, place: Place) -> Place | None:
    """Where the part of a condition stands that is not in its own text."""
    here = set(map(id, ast.walk(place.node)))
    for part in walk(value):
        if (
            isinstance(part, Apply)
            and part.at is not None
            and id(part.at.node) not in here
            and Coordinate in part.kinds
        ):
            return part.at
    return None


def _unreached(condition: Condition, made: Place, axis: str, value: Expression) -> Finding:
    return Finding(
        "RB702",
        f"no rank passes: what is asked for is made on another {axis} than the one that asks",
        Level.WARNING,
        labels=(
            Label(span(condition.place), f"never, with {axis} of more than one: {text(value)}"),
            Label(span(made), "it is made here"),
        ),
        facts={"axes": [axis], "functions": [condition.function.qualified], "gates": [text(value)]},
        details=(f"with {axis}={_COUNT}: each of the two lets one rank pass, and not the same one",),
        fix="ask for what was made alone: there is one on its owner, and none elsewhere",
    )


def _finding(wide: _Site, narrow: _Site, apart: Sequence[_Apart], keys: frozenset[str]) -> Finding:
    names = [one.axis for one in apart]
    never = next((one for one in apart if one.never), None)
    option = " and ".join(sorted(keys))
    first, second = wide.what, narrow.what
    if first == second:
        first, second = (f"{site.what} of {site.function.qualified}" for site in (wide, narrow))
    if never is not None:
        message = f"{first} and {second} both ask for {option}, and no rank passes both: {never.axis}"
        told = f"{text(wide.value)}: another {never.axis} than there"
    else:
        message = f"{first} and {second} both ask for {option}, and only the second pins {listed(names)}"
        told = f"{listed(names)} not pinned: {text(wide.value)}"
    return Finding(
        "RB702",
        message,
        Level.WARNING,
        labels=(Label(span(wide.place), told), Label(span(narrow.place), f"pinned: {text(narrow.value)}")),
        facts={
            "axes": names,
            "options": sorted(keys),
            "sites": [wide.what, narrow.what],
            "functions": [wide.function.qualified, narrow.function.qualified],
            "gates": [text(wide.value), text(narrow.value)],
        },
        details=tuple(
            f"with {one.axis}={_COUNT}: rank {one.point.rank} ({one.axis} {one.point.at[one.axis]}) passes the first"
            " and not the second"
            for one in apart
        ),
        fix="let one predicate answer at both: declare the owner once with @singleton_per(...), and ask it everywhere",
    )


# What there is, as a condition.


def existing(value: Expression) -> Expression:
    """A condition with what is made under another replaced by that other: ``self.publisher is not None``."""
    match value:
        case Apply("and", arguments):
            return both(*map(existing, arguments))
        case Apply("or", arguments):
            return either(*map(existing, arguments))
        case Apply("not", (inner,)):
            return negated(existing(inner))
        case Apply("is not" | "!=", (Apply("if", _) as inner, Constant(None))):
            return _there(inner)
        case Apply("is" | "==", (Apply("if", _) as inner, Constant(None))):
            return negated(_there(inner))
        case Apply("if", (condition, then, otherwise)):
            if isinstance(otherwise, Constant) and not otherwise.value:
                return both(existing(condition), _true(then))
            if isinstance(then, Constant) and not then.value:
                return both(negated(existing(condition)), _true(otherwise))
            return chosen(existing(condition), existing(then), existing(otherwise))
    return value


def _there(value: Expression) -> Expression:
    """The condition under which a value is not None."""
    match value:
        case Apply("if", (condition, then, otherwise)):
            return chosen(existing(condition), _there(then), _there(otherwise))
        case Constant(None):
            return FALSE
    return TRUE


def _true(value: Expression) -> Expression:
    """The condition under which the value of one branch holds, where the other has nothing: an object does."""
    match value:
        case Apply("and" | "or" | "not" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "is" | "is not" | "in" | "if"):
            return existing(value)
        case Constant(found):
            return Constant(bool(found))
        case Given(name) if "(" not in name:
            return value
        case Parameter() | Coordinate():
            return value
    return TRUE


# RB703.


def _unconsumed(meaning: Meaning, flags: Iterable[str]) -> Iterator[tuple[Finding, frozenset[frozenset[str]]]]:
    """What is recorded on ranks on which nothing takes it.

    Args:
        flags: what gates about ranks are put into. In a large program only files with one of these names are read.
    """
    names = {name.rpartition(".")[2] for name in flags}
    known = [meaning.program.mentioning(name) for name in names]
    asked = {source.name for sources in known if len(sources) <= _COMMON for source in sources}
    for source in meaning.program.sources:
        if not (source.name in asked or meaning.program.small) or not (
            _KEPT.search(source.data) and _RECORDS.search(source.data)
        ):
            continue
        module = meaning.program.module(source)
        if module is None:
            continue
        asking = around(module, lines_of(source.data, _RECORDS))
        keeping = set(map(id, around(module, lines_of(source.data, _KEPT))))
        by_owner: dict[str, tuple[Class, list[Function]]] = {}
        for method in asking:
            if method.owner is not None and id(method) in keeping:
                by_owner.setdefault(method.owner.key, (method.owner, []))[1].append(method)
        for owner, methods in by_owner.values():
            yield from _piling(meaning, owner, methods)


@dataclass(frozen=True, slots=True)
class _Recording:
    """Where a class keeps something.

    Attributes:
        where: the attribute that it is kept in.
        gate: the condition for it, over what its object is made with.
    """

    visit: Visit
    method: Function
    where: str
    gate: Expression


def _piling(
    meaning: Meaning, owner: Class, methods: Iterable[Function]
) -> Iterator[tuple[Finding, frozenset[frozenset[str]]]]:
    seen: set[str] = set()
    for recording in _recordings(meaning, owner, methods):
        if recording.where in seen:
            continue
        seen.add(recording.where)
        producer = mapped(existing(meaning.completed(recording.gate)), _named)
        takers = _takers(meaning, owner, recording)
        if not takers or Unclear in kinds(producer):
            continue
        gates = [mapped(existing(meaning.completed(gate)), _named) for _, gate in takers]
        consumer = either(*gates)
        # One that may be reached on every rank takes it there.
        if Unclear in kinds(consumer) or not all(Coordinate in kinds(gate) for gate in gates):
            continue
        layout = meaning.vocabulary.layout({*axes(producer), *axes(consumer)})
        apart = [
            one
            for axis in layout.order
            if (one := apart_on(producer, consumer, layout, axis)) is not None and not one.never
        ]
        if apart:
            keys = frozenset({_keys(producer), _keys(consumer)}) - {frozenset()}
            yield _piled(meaning, owner, recording, producer, consumer, takers, apart), keys


def _recordings(meaning: Meaning, owner: Class, methods: Iterable[Function]) -> Iterator[_Recording]:
    """What methods of a class put into its own containers, where an argument of its constructor says so."""
    for method in methods:
        for visit in method.walk.calls:
            match visit.node:
                case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self"), where), name)) if name in _STORING:
                    gate = meaning.condition(visit.path, method)
                    if gate != TRUE and holes(gate) and not _bounded(owner, where):
                        yield _Recording(visit, method, where, gate)


def _bounded(owner: Class, where: str) -> bool:
    """Whether a container forgets, or blocks, when it is full."""
    for method in owner.stores.get(where, ()):
        for visit, bound in method.walk.stores:
            mine = isinstance(visit.node, ast.Attribute) and visit.node.attr == where
            if mine and _BOUNDED.search(ast.unparse(bound.node)):
                return True
    return False


def _takers(meaning: Meaning, owner: Class, recording: _Recording) -> list[tuple[Place, Expression]]:
    """Where a container is emptied, and under which condition; nothing where that is not known."""
    found: list[tuple[Place, Expression]] = []
    inside: dict[str, None] = {}
    sources = meaning.program.mentioning(recording.where)
    if len(sources) > _MOST_FILES:
        return []
    for source in sources:
        module = meaning.program.module(source)
        for function, place, visit in _emptied(module, recording.where) if module is not None else ():
            if function.owner is not owner:
                found.append((place, meaning.condition(visit.path, function)))
            elif function.name != recording.method.name:
                inside[function.name] = None
    for name in inside:
        if len(meaning.program.mentioning(name)) > _MOST_FILES:
            return []
        for function, visit in _calls(meaning, name):
            # One that hands on to a method of the same name is none of its own.
            if function.name != name:
                found.append((Place(function.module.source.name, visit.node), meaning.condition(visit.path, function)))
    return found


def _calls(meaning: Meaning, name: str) -> Iterator[tuple[Function, Visit]]:
    pattern = re.compile(rb"\." + name.encode() + rb"\(")
    for source in meaning.program.mentioning(name):
        module = meaning.program.module(source)
        for function in around(module, lines_of(source.data, pattern)) if module is not None else ():
            for visit in function.walk.calls:
                match visit.node:
                    case ast.Call(ast.Attribute(_, called)) if called == name:
                        yield function, visit


def _emptied(module: Module, where: str) -> Iterator[tuple[Function, Place, Visit]]:
    """Where a container by the name `where` is emptied in a module."""
    file = module.source.name
    pattern = re.compile(rb"\b" + where.encode() + rb"\b")
    for function in around(module, lines_of(module.source.data, pattern)):
        for visit, _ in function.walk.stores:
            if isinstance(visit.node, ast.Attribute) and visit.node.attr == where and function.name not in _MAKING:
                yield function, Place(file, visit.node), visit
        for visit in function.walk.calls:
            match visit.node:
                case ast.Call(ast.Attribute(ast.Attribute(_, name), verb)) if name == where and verb in _TAKING:
                    yield function, Place(file, visit.node), visit


def _piled(
    meaning: Meaning,
    owner: Class,
    recording: _Recording,
    producer: Expression,
    consumer: Expression,
    takers: Sequence[tuple[Place, Expression]],
    apart: Sequence[_Apart],
) -> Finding:
    names = [one.axis for one in apart]
    kept = f"{owner.name}.{recording.where}"
    switch = _switch(meaning, recording.gate) or Place(recording.method.module.source.name, recording.visit.node)
    return Finding(
        "RB703",
        f"{kept} grows on ranks on which nothing takes what is recorded: {listed(names)} is pinned there, not here",
        Level.ERROR,
        labels=(
            Label(span(switch), f"recording is switched on: {_about_ranks(producer)}"),
            Label(span(takers[0][0]), f"what is recorded is taken: {_about_ranks(consumer)}"),
            Label(span(Place(recording.method.module.source.name, recording.visit.node)), "recorded here"),
        ),
        facts={
            "axes": names,
            "container": kept,
            "gates": [text(producer), text(consumer)],
        },
        details=tuple(
            f"with {one.axis}={_COUNT}: rank {one.point.rank} ({one.axis} {one.point.at[one.axis]}) records, and takes"
            " nothing"
            for one in apart
        ),
        fix="switch recording on where the taker is: one @singleton_per(...) for both, asked at each site",
    )


def _about_ranks(value: Expression) -> str:
    """The parts of a condition that are about ranks."""
    if not axes(value):
        return "on every rank"
    parts = value.arguments if isinstance(value, Apply) and value.operator == "and" else (value,)
    return text(both(*(part for part in parts if Coordinate in kinds(part))))


def _switch(meaning: Meaning, gate: Expression) -> Place | None:
    """The argument that switches recording on, in the outermost call that decides it."""
    place: Place | None = None
    waiting = [(hole, _STEPS) for hole in sorted(holes(gate), key=lambda hole: hole.name)]
    while waiting:
        hole, steps = waiting.pop(0)
        for caller in _givers(meaning, hole)[:2]:
            node = _argument(caller, hole)
            if node is None:
                continue
            place = Place(caller.function.module.source.name, node)
            value = caller.values.get(hole)
            if steps and value is not None and isinstance(value, Parameter):
                waiting.insert(0, (value, steps - 1))
                break
            return place
    return place


def _givers(meaning: Meaning, hole: Parameter) -> list[Caller]:
    file = hole.function.rpartition(":")[0]
    source = next((one for one in meaning.program.sources if one.name == file), None)
    module = meaning.program.module(source) if source is not None else None
    if module is None:
        return []
    for function in module.functions:
        if function.key == hole.function and hole.name in function.parameters:
            return meaning.callers(function)
    for found in module.names.values():
        if isinstance(found, Class) and found.key == hole.function:
            return meaning.constructions(found)
    return []


def _argument(caller: Caller, hole: Parameter) -> ast.expr | None:
    node = caller.visit.node
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if keyword.arg == hole.name:
            return keyword.value
    if hole not in caller.values:
        return None
    return node if node.args else None


__all__ = ["apart_on", "existing", "findings"]
