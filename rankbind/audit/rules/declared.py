"""RB706: what is declared with ``singleton_per``, and gated by hand as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rankbind.audit.declarations import Declared, declared, passes
from rankbind.audit.expression import (
    FALSE,
    Expression,
    Place,
    axes,
    both,
    negated,
    text,
)
from rankbind.audit.gates import told
from rankbind.audit.meaning import Meaning, Scope
from rankbind.audit.program import Class, Function
from rankbind.audit.ranks import Layout, Point, Questions, points, table
from rankbind.audit.rules.common import at, gate_labels, labels, listed, reached
from rankbind.audit.spans import span
from rankbind.audit.walk import Visit
from rankbind.finding import Finding, Label, Level
from rankbind.scope import HOST, LOCAL_RANK, WORLD
from rankbind.scope import Scope as Owner

_MOST_AXES: Final = 4


@dataclass(frozen=True, slots=True)
class _Gated:
    """One use of what is declared, and the condition under which it is reached.

    Attributes:
        inside: the gate is the first that the body of the declared function does.
    """

    declared: Declared
    place: Place
    function: Function
    gate: Expression
    inside: bool = False


def findings(meaning: Meaning) -> Iterator[Finding]:
    """RB706, one for each place."""
    for one in declared(meaning):
        for gated in _uses(meaning, one):
            tested, _ = told(gated.gate)
            if tested:
                yield _finding(meaning, gated)


def _uses(meaning: Meaning, one: Declared) -> Iterator[_Gated]:
    target = one.target
    if isinstance(target, Class):
        constructor = meaning.program.method(target, "__init__")
        callers = meaning.constructions(target)
        body = constructor if constructor is not None and constructor.owner is target else None
    else:
        callers = meaning.callers(target)
        body = target
    for caller in callers:
        gate = reached(meaning, caller.visit, caller.function)
        if gate != FALSE:
            yield _Gated(one, Place(caller.function.module.source.name, caller.visit.node), caller.function, gate)
    if body is not None and (gated := _body(meaning, one, body)) is not None:
        yield gated
    yield from _asked(meaning, one)


def _body(meaning: Meaning, one: Declared, function: Function) -> _Gated | None:
    """The gate that a declared function begins with."""
    assert not isinstance(function.node, ast.Module)
    body = [node for node in function.node.body if not _says_nothing(node)]
    if not body or not isinstance(body[0], ast.If) or body[0].orelse:
        return None
    first = body[0]
    visit = next((visit for visit in function.walk.tests if visit.node is first.test), None)
    if visit is None:
        return None
    gate = meaning.evaluate(first.test, Scope(function, visit.names))
    last = first.body[-1]
    if isinstance(last, ast.Raise) or (isinstance(last, ast.Return) and _nothing(last.value)):
        gate = negated(gate)
    elif len(body) > 1 and not (len(body) == 2 and isinstance(body[1], ast.Return) and _nothing(body[1].value)):
        return None
    return _Gated(one, Place(function.module.source.name, first.test), function, meaning.completed(gate), inside=True)


def _says_nothing(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _nothing(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _asked(meaning: Meaning, one: Declared) -> Iterator[_Gated]:
    """Where ``.owned`` is asked together with a rank."""
    for source in meaning.program.mentioning(one.target.name, "owned"):
        if (module := meaning.program.module(source)) is None:
            continue
        for function in module.functions:
            walk = function.walk
            kept = (*walk.stores, *walk.assigned)
            visits = [
                *walk.tests,
                *walk.returns,
                *(Visit(bound.node, visit.path, bound.names) for visit, bound in kept),
            ]
            for visit in visits:
                for node, others in _owned(visit.node):
                    scope = Scope(function, visit.names)
                    whose = ast.copy_location(ast.Call(node.value, [], []), node.value)
                    if meaning.callee(whose, scope) is one.target:
                        beside = both(*(meaning.evaluate(other, scope) for other in others))
                        gate = meaning.completed(both(meaning.condition(visit.path, function), beside))
                        yield _Gated(one, Place(source.name, node), function, gate)


def _owned(node: ast.AST) -> Iterator[tuple[ast.Attribute, list[ast.expr]]]:
    """Every ``x.owned`` in an expression, with what else has to hold beside it."""
    beside: dict[int, list[ast.expr]] = {}
    for part in ast.walk(node):
        if isinstance(part, ast.BoolOp) and isinstance(part.op, ast.And):
            for value in part.values:
                beside[id(value)] = [other for other in part.values if other is not value]
        if isinstance(part, ast.Attribute) and part.attr == "owned":
            yield part, beside.get(id(part), [])


@dataclass(frozen=True, slots=True)
class _Verdict:
    """How a gate by hand and a declaration compare.

    Attributes:
        axes: of the small topology.
        missed: an owner that the gate keeps away.
        extra: a rank that passes the gate and does not own.
        compared: whether they could be.
    """

    axes: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    missed: Point | None = None
    extra: Point | None = None
    compared: bool = True


def _compared(meaning: Meaning, gated: _Gated) -> _Verdict:
    owner = gated.declared.said
    named = axes(gated.gate)
    if not isinstance(owner, Owner):
        return _Verdict(compared=False)
    if owner.group == (HOST,):
        if named != (LOCAL_RANK,):
            return _Verdict(compared=False)
        layout = Layout((LOCAL_RANK,))
        spanned: tuple[str, ...] = (LOCAL_RANK,)
    elif LOCAL_RANK in named:
        # Which ranks are the first of a host, the axes do not say.
        return _Verdict(compared=False)
    else:
        known = named if owner.group == (WORLD,) else (*owner.group, *named)
        layout = meaning.vocabulary.layout(known)
        lost = [axis for axis in dict.fromkeys(known) if not layout.parts(axis)]
        layout = Layout((*layout.order, *lost), layout.whole, layout.exclusive, layout.outside)
        spanned = tuple(part for axis in owner.group for part in layout.parts("rank" if axis == WORLD else axis))
    tried = tuple(
        dict.fromkeys(
            (
                *(part for axis in named if axis not in {"rank", LOCAL_RANK} for part in layout.parts(axis)),
                *spanned,
                *(part for axis in named for part in layout.parts(axis)),
            )
        )
    )[:_MOST_AXES]
    order = tuple(axis for axis in layout.order if axis in tried)
    sizes = tuple((axis, 3 if len(order) < 3 else 2) for axis in order)
    return _judged(gated, owner, points(layout, tuple(sorted(sizes))), order, sizes, spanned)


def _judged(
    gated: _Gated,
    owner: Owner,
    ranks: Sequence[Point],
    order: tuple[str, ...],
    sizes: tuple[tuple[str, int], ...],
    spanned: Sequence[str],
) -> _Verdict:
    questions = Questions()
    tables = [table(gated.gate, point, questions) for point in ranks]
    own = passes(gated.declared)
    owns = [table(own, point, questions)[1] != 0 for point in ranks]
    somebody = 0
    for _, must in tables:
        somebody |= must
    missed = None
    for place, point in enumerate(ranks):
        if not owns[place]:
            continue
        may = tables[place][0]
        if owner.rank == "any":
            # Any of its group may come to own, so it is enough that one gets there.
            for other, (passing, _) in zip(ranks, tables, strict=True):
                if all(point.at[axis] == other.at[axis] for axis in order if axis not in spanned):
                    may |= passing
        if not may or somebody & ~may:
            missed = point
            break
    extra = next((point for point, (may, _), owned in zip(ranks, tables, owns, strict=True) if may and not owned), None)
    return _Verdict(order, sizes, missed, extra)


def _finding(meaning: Meaning, gated: _Gated) -> Finding:
    one = gated.declared
    tested, pinned = told(gated.gate)
    verdict = _compared(meaning, gated)
    said = one.said
    owner = (
        str(said) if isinstance(said, Owner) else "the topology file" if said == "by name" else "the code at run time"
    )
    hand = text(gated.gate)
    shape = " x ".join(f"{axis}={size}" for axis, size in verdict.sizes)
    who = listed([f"{axis}_rank" if axis not in {"rank", LOCAL_RANK} else axis for axis in tested])
    details: tuple[str, ...] = ()
    if verdict.missed is not None:
        level = Level.ERROR
        there = at(verdict.missed, verdict.axes)
        message = f"{one.name} is declared ({owner}) and gated by {who} as well: its owner does not get there"
        details = (f"with {shape}: {there} owns {one.name} and does not pass the gate",)
    elif not verdict.compared or verdict.extra is not None:
        level = Level.WARNING
        message = f"{one.name} is declared ({owner}) and gated by {who} as well, which is not the same"
        if verdict.extra is not None:
            details = (f"with {shape}: {at(verdict.extra, verdict.axes)} passes the gate and does not own {one.name}",)
    else:
        level = Level.NOTE
        message = f"{one.name} is declared ({owner}) and gated by {who} as well, which says the same once more"
    what = "the gate by hand" if gated.inside else f"{one.name} is asked for here"
    return Finding(
        "RB706",
        message,
        level,
        labels=labels(
            Label(span(gated.place), what),
            [*gate_labels(gated.gate), Label(span(one.call), "the declaration")],
        ),
        facts={
            "resource": one.name,
            "function": gated.function.qualified,
            "axes": list(pinned or tested),
            "pinned": list(pinned),
            "gate": hand,
            "declared": {"group": list(said.group), "rank": said.rank} if isinstance(said, Owner) else said,
        },
        details=details,
        fix=f"take {who} out of the condition: every rank may ask for {one.name}, and the declaration says who gets it",
    )


__all__ = ["findings"]
