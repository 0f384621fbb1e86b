"""What the audited code itself declares with `rankbind.singleton_per`: on what, with which owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary

from rankbind.audit.expression import (
    TRUE,
    Apply,
    Constant,
    Coordinate,
    Expression,
    Place,
    Size,
    Unclear,
    both,
)
from rankbind.audit.meaning import Meaning, Scope
from rankbind.audit.program import Class, Function, Module, Program
from rankbind.scope import HOST, LOCAL_RANK, WORLD
from rankbind.scope import Scope as Owner

WORD: Final = "singleton_per"
Said: TypeAlias = Owner | Literal["by name", "computed"]


@dataclass(frozen=True, slots=True)
class Declared:
    """A function or a class that is decorated with ``singleton_per``.

    Attributes:
        said: its owner, as `rankbind.check.code.Site` has it.
        name: what it is called there, or else its own name.
        call: the ``singleton_per(...)``.
    """

    target: Function | Class
    said: Said
    name: str
    call: Place


def declared(meaning: Meaning) -> Iterator[Declared]:
    """Everything that is declared, in the order of the files."""
    program = meaning.program
    places = {source.name: source for word in _known(program).words for source in program.mentioning(word)}
    for name in sorted(places):
        if (module := program.module(places[name])) is not None:
            for target in _targets(module):
                if (found := declaration(meaning, target)) is not None:
                    yield found


@dataclass(frozen=True, slots=True)
class _Known:
    """Where declarations may be: the files that say the word, and all words that may decorate."""

    modules: tuple[Module, ...]
    words: frozenset[str]


_PROGRAMS: Final[WeakKeyDictionary[Program, _Known]] = WeakKeyDictionary()


def _known(program: Program) -> _Known:
    found = _PROGRAMS.get(program)
    if found is None:
        modules = tuple(module for source in program.mentioning(WORD) if (module := program.module(source)) is not None)
        # A declaration may be made in one file and put on things in others, by its name.
        names = {name for module in modules for name, value in module.names.items() if _is_call(value, module)}
        found = _Known(modules, frozenset([WORD, *names] if modules else ()))
        _PROGRAMS[program] = found
    return found


def _targets(module: Module) -> Iterator[Function | Class]:
    found: dict[int, Function | Class] = {id(one): one for one in module.functions[1:]}
    found.update((id(one.owner), one.owner) for one in module.functions if one.owner is not None)
    found.update((id(one), one) for one in module.names.values() if isinstance(one, Class))
    return iter(sorted(found.values(), key=lambda one: getattr(one.node, "lineno", 0)))


def declaration(meaning: Meaning, target: Function | Class) -> Declared | None:
    """The declaration that decorates a function or a class; None where there is none."""
    if isinstance(target.node, ast.Module) or not _known(meaning.program).modules:
        return None
    for decorator in target.node.decorator_list:
        found = _referred(meaning, target.module, decorator)
        if found is not None:
            home, call = found

            def value(node: ast.expr, home: Module = home) -> Any:
                return _value(meaning.evaluate(node, Scope(home.body, {})))

            # What reads declarations reads topology files, too: needed by few programs, and slow to import.
            from rankbind.check.code import said

            told = said(call, value, target.name)
            return Declared(target, told.owner, told.name or target.name, Place(home.source.name, call))
    return None


def _referred(meaning: Meaning, module: Module, decorator: ast.expr) -> tuple[Module, ast.Call] | None:
    """The ``singleton_per(...)`` that a decorator is, or is the name of."""
    if _is_call(decorator, module):
        assert isinstance(decorator, ast.Call)
        return module, decorator
    if not isinstance(decorator, (ast.Name, ast.Attribute)):
        return None
    found = meaning.program.resolve(module, decorator)
    if not isinstance(found, ast.Call):
        return None
    homes = (one for one in _known(meaning.program).modules if any(found is value for value in one.names.values()))
    home = next(homes, module)
    return (home, found) if _is_call(found, home) else None


def _is_call(node: object, module: Module) -> bool:
    if not isinstance(node, ast.Call):
        return False
    match node.func:
        case ast.Attribute(_, name):
            return name == WORD
        case ast.Name(name):
            bound = module.names.get(name)
            return name == WORD or (isinstance(bound, str) and bound.endswith(f":{WORD}"))
    return False


def _value(expression: Expression) -> Any:
    match expression:
        case Constant(value):
            return value
        case Apply("tuple", arguments):
            return tuple(map(_value, arguments))
    return None


def passes(found: Declared) -> Expression:
    """The condition that a declaration is: on whom it lets run what it decorates."""
    owner = found.said
    if not isinstance(owner, Owner):
        # The file, or only the run, says who: some rank, and nobody knows here which.
        return Unclear(f"the declaration of {found.name}")
    if owner.group == (WORLD,):
        return _index(("rank",), owner.rank)
    if owner.group == (HOST,):
        return _index((LOCAL_RANK,), owner.rank)
    return _index(owner.group, owner.rank)


def _index(axes: tuple[str, ...], rank: int | str) -> Expression:
    # Of those that may be elected it is one, so it may as well be the first.
    wanted = 0 if isinstance(rank, str) else rank
    if wanted == 0:
        return both(*(Apply("==", (Coordinate(axis), Constant(0))) for axis in axes))
    if wanted == -1:
        return both(*(Apply("==", (Coordinate(axis), Apply("-", (Size(axis), Constant(1))))) for axis in axes))

    def step(before: Expression, axis: str) -> Expression:
        return Apply("+", (Apply("*", (before, Size(axis))), Coordinate(axis)))

    first: Expression = Coordinate(axes[0])
    here = reduce(step, axes[1:], first)
    if wanted > 0:
        return Apply("==", (here, Constant(wanted)))

    def larger(before: Expression, axis: str) -> Expression:
        return Apply("*", (before, Size(axis)))

    whole: Expression = Size(axes[0])
    count = reduce(larger, axes[1:], whole)
    return Apply("==", (here, Apply("-", (count, Constant(-wanted)))))


def gate(meaning: Meaning, function: Function) -> Expression:
    """The condition that the declarations around a function add to whatever leads to it."""
    found = declaration(meaning, function)
    own = TRUE if found is None else passes(found)
    if function.owner is not None and (outer := declaration(meaning, function.owner)) is not None:
        own = both(own, passes(outer))
    return own


__all__ = ["Declared", "Said", "declaration", "declared", "gate", "passes"]
