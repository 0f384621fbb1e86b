"""The creations of a program: from where each is reached, under which condition, at which address."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rankbind.audit import declarations
from rankbind.audit.creations import ROWS, WORDS, Made, Row, made, unported
from rankbind.audit.expression import (
    FALSE,
    TRUE,
    Apply,
    Constant,
    Coordinate,
    Expression,
    Parameter,
    Place,
    Private,
    Unclear,
    axes,
    both,
    filled,
    holes,
    relevant,
    trimmed,
    walk,
)
from rankbind.audit.meaning import Caller, Meaning
from rankbind.audit.program import Class, Function, Module, Program, occurrences

_DEEPEST: Final = 10
_MOST: Final = 8
"""Ways to one creation that are followed, from where its address is known."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way on which a creation is reached.

    Attributes:
        gate: the condition for it, over coordinates.
        address: where it is made.
        anchor: the outermost call at which the address is known; the creation itself where nothing is handed in.
        function: the one that `anchor` stands in.
        chain: the functions on the way, the innermost first.
        whole: whether it was followed to where nobody calls.
    """

    row: Row
    gate: Expression
    address: Expression
    anchor: Place
    function: Function
    chain: tuple[Function, ...]
    whole: bool


def making(program: Program, more: Mapping[str, str]) -> Iterator[Module]:
    """The modules in which something may be made."""
    words = (*WORDS, *(name.rpartition(".")[2] for name in more))
    found = {
        source.name
        for word in words
        for source in program.mentioning(word)
        if any(source.data.startswith(b"(", place + len(word)) for place in occurrences(source.data, word.encode()))
    }
    found |= {source.name for word in ("uvicorn", "sqlite3") for source in program.mentioning(word)}
    found |= {source.name for source in program.sources if b"PublisherFactory.create(" in source.data}
    found |= {source.name for source in program.mentioning("open") if _opens(source.data)}
    for source in program.sources:
        if source.name in found and (module := program.module(source)) is not None:
            yield module


def _opens(data: bytes) -> bool:
    """Whether a file may be written that one process can have, by the looks of it."""
    for place in occurrences(data, b"open"):
        call = data[place : place + 160]
        if call.startswith(b"open(") and any(mode in call for mode in _MODES) and _KNOWN_FILE.search(call):
            return True
    return False


_MODES: Final = (b'"w', b"'w", b'"x', b"'x", b'"ab', b"O_EXCL")
_KNOWN_FILE: Final = re.compile(rb"trace|prof|timeline|\.rpd|\.pid|snapshot|[\"']x", re.IGNORECASE)


def ways(meaning: Meaning, more: Mapping[str, str]) -> Iterator[tuple[Made, list[Way]]]:
    """Every creation, in the order of the files, with the ways to it."""
    meaning.common = frozenset(ROWS)
    words = (*ROWS, *(name.rpartition(".")[2] for name in more))
    names = re.compile(rb"\b(?:" + b"|".join(word.encode() for word in words) + rb")\(")
    for module in making(meaning.program, more):
        for function in module.functions:
            if not _mentions(function, names):
                continue
            for one in made(meaning, function, more):
                yield one, list(_climbed(meaning, one))


def _mentions(function: Function, names: re.Pattern[bytes]) -> bool:
    return names.search(function.text) is not None


@dataclass(frozen=True, slots=True)
class _Step:
    """How far a way has been followed: as `Way` has it, from where the last function of its chain is entered."""

    row: Row
    gate: Expression
    address: Expression
    anchor: Place
    home: Function
    chain: tuple[Function, ...]

    def end(self, gate: Expression, address: Expression, *, whole: bool) -> Way:
        """The way, followed no further."""
        return Way(self.row, gate, address, self.anchor, self.home, self.chain, whole)


def _climbed(meaning: Meaning, one: Made) -> Iterator[Way]:
    anchor = Place(one.function.module.source.name, one.call)
    return _climb(meaning, _Step(one.row, one.gate, one.address, anchor, one.function, (one.function,)), [_MOST])


def _climb(meaning: Meaning, step: _Step, budget: list[int]) -> Iterator[Way]:
    """Every way that goes on from `step` to where nobody calls.

    Args:
        budget: how many more ways may end.
    """
    function, address = step.chain[-1], step.address
    gate = both(step.gate, declarations.gate(meaning, function), _decorated(meaning, function))
    alone = meaning.vocabulary.role_of(function.module.source.module, function.qualified) == ()
    if alone or _private(address):
        # Nobody can meet there, or nobody else is there: who calls does not matter.
        yield step.end(gate, address, whole=False)
        return
    callers = [
        caller for caller in meaning.callers(function) if caller.function not in step.chain and not caller.starts
    ]
    existence: Expression = TRUE
    if function.bound and function.owner is not None and function.name not in _CONSTRUCTORS:
        if callers:
            existence = _existence(meaning, function.owner)
        else:
            callers = [one for one in meaning.constructions(function.owner) if one.function not in step.chain]
            if callers and any(hole.function == function.key for hole in holes(address)):
                # Whoever calls is not in sight, and may give another address on each rank.
                gate = both(gate, Unclear("whoever calls"))
    if not callers or len(step.chain) > _DEEPEST or budget[0] <= 0:
        budget[0] -= 1
        gate = both(gate, existence)
        if _unknown_caller(meaning, function, gate, whole=not callers):
            gate = both(gate, Unclear("whoever calls"))
        place = unported(meaning.completed(address))
        found = relevant(meaning.completed(gate), place)
        if found != FALSE:
            yield _made_at(meaning, function, step).end(found, place, whole=not callers)
        return
    for caller in callers:
        outside = caller.function.owner is not function.owner
        reached = trimmed(both(meaning.condition(caller.visit.path, caller.function), filled(gate, caller.values)))
        reached = both(reached, existence) if outside else reached
        if reached == FALSE:
            continue
        if _told_rank(caller, gate, meaning):
            # Who says outright that it is rank 0 knows that it is the only one that says so.
            reached = both(reached, Unclear("the rank that the caller says it is"))
        next_step = _made_at(meaning, function, step) if outside else step
        up = _handed_in(address, function, meaning)
        if up:
            stands = Place(caller.function.module.source.name, caller.visit.node)
            next_step = replace(step, anchor=stands, home=caller.function)
        next_step = replace(
            next_step, gate=reached, address=filled(address, caller.values), chain=(*step.chain, caller.function)
        )
        yield from _climb(meaning, next_step, [_MOST] if up else budget)


def _told_rank(caller: Caller, gate: Expression, meaning: Meaning) -> bool:
    """Whether a gate asks for a rank that a call gives as a number."""
    given = [
        node
        for part in (*getattr(caller.visit.node, "args", ()), *getattr(caller.visit.node, "keywords", ()))
        for node in ast.walk(part)
    ]
    return any(
        isinstance(value := caller.values.get(hole), Constant)
        and type(value.value) is int
        and (meaning.vocabulary.coordinate(hole.name) or meaning.vocabulary.weak(hole.name)) is not None
        and value.at is not None
        and any(node is value.at.node for node in given)
        for hole in holes(gate)
    )


def _decorated(meaning: Meaning, function: Function) -> Expression:
    """The condition under which the decorators of a function let it run."""
    if isinstance(function.node, ast.Module):
        return TRUE
    found = []
    for node in function.node.decorator_list:
        known = _DECORATORS.get(ast.unparse(node).rpartition(".")[2])
        if known is not None:
            found.append(known)
            continue
        made = meaning.program.resolve(function.module, node)
        if not isinstance(made, Function) or not made.parameters:
            continue
        for inner in made.module.functions:
            if inner.parent is not made:
                continue
            for visit in inner.walk.calls:
                called = visit.node
                if (
                    isinstance(called, ast.Call)
                    and isinstance(called.func, ast.Name)
                    and called.func.id == made.parameters[0]
                ):
                    found.append(meaning.completed(meaning.condition(visit.path, inner)))
    return both(*found)


_FIRST: Final = Apply("==", (Coordinate("rank"), Constant(0)))
_FIRST_ON_HOST: Final = Apply("==", (Coordinate("local_rank"), Constant(0)))
_DECORATORS: Final[Mapping[str, Expression]] = {
    # lightning.pytorch.utilities; accelerate.Accelerator
    "rank_zero_only": _FIRST,
    "on_main_process": _FIRST,
    "on_local_main_process": _FIRST_ON_HOST,
}


def _unknown_caller(meaning: Meaning, function: Function, gate: Expression, *, whole: bool) -> bool:
    """Whether somebody further up may have a gate of which nothing is known."""
    if not whole:
        return not axes(gate)
    return function.bound and function.owner is not None and meaning.handed_out(function.owner)


def _private(address: Expression) -> bool:
    """Whether an address is another one in each process, whatever else."""
    if isinstance(address, Apply) and address.operator in {"if", "and", "or"}:
        branches = address.arguments[1:] if address.operator == "if" else address.arguments
        return all(map(_private, branches))
    if isinstance(address, Apply):
        return any(map(_private, address.arguments))
    return isinstance(address, Private)


_CONSTRUCTORS: Final = frozenset({"__init__", "__post_init__", "__new__"})


def _made_at(meaning: Meaning, function: Function, step: _Step) -> _Step:
    """`step`, at the place where the object of a method is made with the address that it uses, if that is one place."""
    owner = function.owner
    if owner is None or axes(step.address):
        return step
    given = {hole.function for hole in holes(step.address)}
    constructor = meaning.program.method(owner, "__init__")
    if owner.key not in given and (constructor is None or constructor.key not in given):
        return step
    found = meaning.constructions(owner)
    if len(found) != 1:
        return step
    anchor = Place(found[0].function.module.source.name, found[0].visit.node)
    return replace(step, anchor=anchor, home=found[0].function)


def _existence(meaning: Meaning, owner: Class) -> Expression:
    """The condition under which an object of a class is made, where it is made in one place."""
    found = meaning.constructions(owner)
    return meaning.condition(found[0].visit.path, found[0].function) if len(found) == 1 else TRUE


def _handed_in(address: Expression, function: Function, meaning: Meaning) -> bool:
    """Whether the address is what a function was given: nothing of it, but for constants, is known inside."""
    own = {hole for hole in holes(address) if hole.function == function.key or _of_owner(hole, function)}
    if not own or axes(address):
        return False
    named = [hole for hole in own if meaning.vocabulary.coordinate(hole.name) is None]
    return bool(named) and not any(isinstance(part, Coordinate) for part in walk(address))


def _of_owner(hole: Parameter, function: Function) -> bool:
    """Whether a parameter is a field of the data class whose constructor a function is."""
    return function.owner is not None and function.name in _CONSTRUCTORS and hole.function == function.owner.key


def evident(meaning: Meaning, function: Function) -> frozenset[str]:
    """The axes of which a function, its class, or a function around it knows this process's coordinate."""
    known = meaning.evidence.get(function.key)
    if known is not None:
        return known
    found: set[str] = set()
    here: Function | None = function
    while here is not None:
        if not isinstance(here.node, ast.Module):
            found |= _named(meaning, here.parameters)
            found |= _read(meaning, here.text, _READ)
            arguments = here.node.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if argument.annotation is not None:
                    found |= _fields(meaning, meaning.annotated(here.module, argument.annotation))
        here = here.parent
    if function.owner is not None:
        for one in meaning.program.bases(function.owner):
            found |= _fields(meaning, one)
            for field in one.fields.values():
                if isinstance(field, ast.AnnAssign):
                    found |= _fields(meaning, meaning.annotated(one.module, field.annotation))
            for method in one.methods.values():
                found |= _read(meaning, method.text, _READ_THROUGH_SELF)
    meaning.evidence[function.key] = frozenset(found)
    return meaning.evidence[function.key]


_PLACES: Final = (b"_rank", b"_index", b"_group", b"mesh_dim_names")
_READ: Final = re.compile(
    rb"\b(\w+)(?:\(\))?\.((?!get_local_rank)\w+_(?:rank|index))\b|\b(get_local_rank)\(\s*[\"'](\w+)"
    rb"|\b()(get_\w+_rank)\(|\b()((?:get_)?\w+_group)\b|\b(mesh_dim_names)\s*=\s*([(\[][^)\]]*)"
)
_READ_THROUGH_SELF: Final = re.compile(
    rb"\bself(?:\.\w+)*?\.(\w+)\.((?!get_local_rank)\w+_(?:rank|index))\b|\bself\.()(\w+_(?:rank|index|group))\b"
    rb"|\b(get_local_rank)\(\s*[\"'](\w+)|\b()(get_\w+_rank)\("
)


def _read(meaning: Meaning, source: bytes, pattern: re.Pattern[bytes]) -> set[str]:
    """The axes of the coordinates that a piece of source reads."""
    found: set[str] = set()
    if not any(word in source for word in _PLACES):
        return found
    for groups in pattern.findall(source):
        whose, name = next(
            ((a.decode(), b.decode()) for a, b in zip(groups[::2], groups[1::2], strict=True) if b), ("", "")
        )
        if whose in {"get_local_rank", "mesh_dim_names"}:
            words = re.findall(r"\w+", name)
            found.update(meaning.vocabulary.axis(word) or word for word in words)
        elif whose == "self" or not meaning.foreign(whose):
            found |= _named(meaning, (name,))
    return found


def _named(meaning: Meaning, names: Iterable[str]) -> set[str]:
    """The axes that names of coordinates and of process groups are about."""
    found: set[str] = set()
    for name in names:
        coordinate = meaning.vocabulary.coordinate(name)
        group = meaning.vocabulary.group(name)
        if coordinate is not None:
            found.update(axes(coordinate))
        elif group is not None:
            found.add(group)
        elif name == "rank":
            found.add("rank")
    return found


def _fields(meaning: Meaning, owner: Class | None) -> set[str]:
    """The axes whose coordinates the objects of a class hold."""
    return set() if owner is None else _named(meaning, (*owner.fields, *owner.stores))
