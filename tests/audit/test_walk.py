"""A function read from top to bottom: how each call is reached, and what names are there."""

from __future__ import annotations

import ast
import textwrap

import pytest

from rankbind.audit.walk import Binding, Bound, Changed, Either, Imported, Local, Looped, Part, Path, Visit, Walk, walk


def walked(body: str) -> Walk:
    return walk(ast.parse(textwrap.dedent(body)).body)


def condition(path: Path) -> str:
    """The condition for a place, as it is written; alternatives in angle brackets."""
    if path.alternatives:
        return f"<{' | '.join(condition(one) or 'True' for one in path.alternatives)}>"
    if path.parent is None or path.test is None:
        return ""
    test = ast.unparse(path.test.node)
    here = test if path.holds else f"not ({test})"
    before = condition(path.parent)
    return f"{before} & {here}" if before else here


def calls(found: Walk, name: str = "go") -> list[Visit]:
    return [
        visit
        for visit in found.calls
        if isinstance(visit.node, ast.Call) and isinstance(visit.node.func, ast.Name) and visit.node.func.id == name
    ]


def reached(body: str) -> list[str]:
    """The conditions for the calls of ``go``, in order."""
    return [condition(visit.path) for visit in calls(walked(body))]


REACHED = {
    "a statement": ("go()", [""]),
    "an if": ("if a:\n  go()\ngo()", ["a", ""]),
    "an else": ("if a:\n  pass\nelse:\n  go()", ["not (a)"]),
    "an elif": ("if a:\n  pass\nelif b:\n  go()\nelse:\n  go()", ["not (a) & b", "not (a) & not (b)"]),
    "an if in an if": ("if a:\n  if b:\n    go()\n  go()", ["a & b", "a"]),
    "an early return": ("if a:\n  return\ngo()", ["not (a)"]),
    "a return in an else": ("if a:\n  pass\nelse:\n  return\ngo()", ["a"]),
    "a return in a nested if": ("if a:\n  if b:\n    return\n  x()\ngo()", ["<a & not (b) | not (a)>"]),
    "two early returns": ("if a:\n  return\nif b:\n  return 1\ngo()", ["not (a) & not (b)"]),
    "a raise": ("if a:\n  raise ValueError\ngo()", ["not (a)"]),
    "a continue": ("for x in xs:\n  if a:\n    continue\n  go()\ngo()", ["not (a)", ""]),
    "a break": ("for x in xs:\n  if a:\n    break\n  go()", ["not (a)"]),
    "the end of the process": ("if a:\n  sys.exit(1)\ngo()", ["not (a)"]),
    "after a return": ("return\ngo()", []),
    "both branches return": ("if a:\n  return\nelse:\n  return\ngo()", []),
    "a while": ("while a:\n  go()\ngo()", ["a", ""]),
    "the else of a for": ("for x in xs:\n  pass\nelse:\n  go()", [""]),
    "a with": ("if a:\n  with open(b) as f:\n    go()", ["a"]),
    "a try": ("try:\n  go()\nexcept E:\n  go()\nelse:\n  go()\nfinally:\n  go()", [""] * 4),
    "a try that returns": ("try:\n  return\nexcept E:\n  pass\ngo()", [""]),
    "a finally after a return": ("try:\n  return\nfinally:\n  go()", [""]),
    "a try and a handler that both return": ("try:\n  return 1\nexcept E:\n  return 2\ngo()", []),
    "an if in a try": ("try:\n  if a:\n    return\nexcept E:\n  pass\ngo()", ["not (a)"]),
    "a ternary": ("x = go() if a else go()", ["a", "not (a)"]),
    "an and": ("x = a and b and go()", ["a & b"]),
    "an or": ("x = a or go()", ["not (a)"]),
    "an and in a test": ("if a and go():\n  go()", ["a", "a and go()"]),
    "a comparison": ("x = go() == 1 < go()", ["", ""]),
    "an argument": ("f(1, *go(), k=go(), **go())", ["", "", ""]),
    "a comprehension": ("x = [go() for x in go()]", ["", ""]),
    "a lambda": ("x = lambda: go()", [""]),
    "an f-string": ("x = f'{go()}'", [""]),
    "an index": ("x = xs[go()]", [""]),
    "an assertion about a rank": ("assert rank == 0\ngo()", ["rank == 0"]),
    "another assertion": ("assert x\ngo()", [""]),
    "a match": (
        "match x:\n  case 1:\n    go()\n  case None:\n    go()\n  case _:\n    go()",
        ["x == 1", "not (x == 1) & x is None", "not (x == 1) & not (x is None)"],
    ),
    "a match of one or another": ("match x:\n  case 1 | 2:\n    go()", ["x == 1 or x == 2"]),
    "a match of a pair": ("match x, y:\n  case 0, 1:\n    go()", ["x == 0 and y == 1"]),
    "a match of a pair, half of it": ("match x, y:\n  case 0, _:\n    go()", ["x == 0"]),
    "a guard": ("match x:\n  case 1 if a:\n    go()", ["x == 1 and a"]),
    "a guard alone": ("match x:\n  case y if a:\n    go()", ["a"]),
    "a class pattern": ("match x:\n  case A():\n    go()", [""]),
    "after a match of which one returns": (
        "match x:\n  case 0:\n    return\n  case _:\n    pass\ngo()",
        ["not (x == 0)"],
    ),
    "after a match of which nothing may fit": (
        "match x:\n  case 0:\n    y = 1\ngo()",
        ["<x == 0 | not (x == 0)>"],
    ),
}


@pytest.mark.parametrize(("body", "expected"), REACHED.values(), ids=REACHED)
def test_how_a_call_is_reached(body: str, expected: list[str]) -> None:
    inside = "def f():\n" + textwrap.indent(body, "  ")
    (function,) = ast.parse(inside).body
    assert isinstance(function, ast.FunctionDef)
    assert [condition(visit.path) for visit in calls(walk(function.body))] == expected


def test_the_tests_of_a_function_are_noted_with_what_holds_before_them() -> None:
    found = walked("""
        if a:
            while b:
                pass
        x = 1 if c else 2
        match x:
            case 1: pass
        assert rank == 0
    """)
    assert [(ast.unparse(visit.node), condition(visit.path)) for visit in found.tests] == [
        ("a", ""),
        ("b", "a"),
        ("c", ""),
        ("x == 1", ""),
        ("rank == 0", "<x == 1 | not (x == 1)>"),
    ]


def test_the_test_that_a_pattern_makes_stands_where_the_pattern_does() -> None:
    found = walked("match x:\n    case 10: pass")
    (visit,) = found.tests
    assert isinstance(visit.node, ast.Compare)
    assert (visit.node.lineno, visit.node.col_offset, visit.node.end_col_offset) == (2, 9, 11)


# ---- names


def shown(binding: Binding | None) -> str:
    match binding:
        case None:
            return "?"
        case Bound(node):
            return ast.unparse(node)
        case Part(whole, index, _):
            return f"part {index} of {ast.unparse(whole.node)}"
        case Either(test, then, otherwise):
            return f"({shown(then)} if {ast.unparse(test.node)} else {shown(otherwise)})"
        case Changed(before, item):
            return f"{shown(before)} with {ast.unparse(item.node)}"
        case Looped(name, over):
            return f"each {name}" + (f" of {ast.unparse(over.node)}" if over else "")
        case Imported(dotted):
            return f"import {dotted}"
        case Local(node):
            return f"def {node.name}"


NAMES = {
    "assigned": ("x = 1", "1"),
    "assigned twice": ("x = 1\nx = 2", "2"),
    "assigned with others": ("y = x = 1", "1"),
    "annotated": ("x: int = 1", "1"),
    "annotated only": ("x: int", "?"),
    "unpacked from a tuple": ("y, x = 1, 2", "2"),
    "unpacked from a call": ("y, x = f()", "part 1 of f()"),
    "unpacked within": ("y, (z, x) = 1, (2, 3)", "3"),
    "changed in a branch": ("x = 1\nif a:\n  x = 2", "(2 if a else 1)"),
    "changed in the other branch": ("x = 1\nif a:\n  pass\nelse:\n  x = 2", "(1 if a else 2)"),
    "a parameter that a branch changes": ("if a:\n  x = 2", "(2 if a else x)"),
    "set in both branches": ("if a:\n  x = 1\nelse:\n  x = 2", "(1 if a else 2)"),
    "changed in a branch that ends": ("x = 1\nif a:\n  x = 2\n  return", "1"),
    "changed in a nested branch": ("x = 1\nif a:\n  if b:\n    x = 2", "((2 if b else 1) if a else 1)"),
    "not changed": ("x = 1\nif a:\n  y = 2", "1"),
    "added to": ("x = 1\nx += 2", "x + 2"),
    "a walrus": ("if (x := f()):\n  pass", "f()"),
    "a walrus in an and": ("a and (x := 1)", "1"),
    "a container that grows": ("x = []\nx.append(1)\nx.append(2)", "[] with 1 with 2"),
    "a container with an item set": ("x = {}\nx['a'] = 1", "{} with 1"),
    "a container of somebody else": ("x.append(1)", "?"),
    "another method": ("x = []\nx.pop(1)", "[]"),
    "a loop's variable": ("for x in xs:\n  pass", "each x of xs"),
    "one of several of a loop": ("for y, x in xs:\n  pass", "each x of xs"),
    "changed in a loop": ("x = 1\nfor y in ys:\n  x = 2", "2"),
    "what a with gives": ("with f() as x:\n  pass", "f()"),
    "imported": ("import x", "import x"),
    "imported from within": ("import x.y", "import x"),
    "imported by another name": ("import a.b as x", "import a.b"),
    "imported by name": ("from ..a import b as x", "import ..a:b"),
    "a star": ("from a import *", "?"),
    "a function": ("def x(): pass", "def x"),
    "set in a try": ("try:\n  x = 1\nexcept E:\n  x = 2", "1"),
    "set in a handler alone": ("try:\n  return\nexcept E:\n  x = 2", "2"),
    "set in a finally": ("try:\n  x = 1\nfinally:\n  x = 3", "3"),
    "an attribute": ("self.x = 1\nx = self.x", "self.x"),
}


@pytest.mark.parametrize(("body", "expected"), NAMES.values(), ids=NAMES)
def test_what_a_name_is_bound_to(body: str, expected: str) -> None:
    found = walked(body + "\ngo()")
    assert shown(found.names.get("x")) == expected


def test_the_names_at_a_call_are_those_that_held_there() -> None:
    first, second = calls(walked("x = 1\ngo(x)\nx = 2\ngo(x)"))
    assert shown(first.names["x"]) == "1"
    assert shown(second.names["x"]) == "2"


def test_a_name_that_is_added_to_is_added_to_what_it_was() -> None:
    found = walked("x = 1\nx += 2").names["x"]
    assert isinstance(found, Bound)
    assert shown(found.names["x"]) == "1"


def test_an_attribute_is_kept_among_the_names() -> None:
    found = walked("self.a.x = 1\nif c:\n    self.a.x = 2")
    assert shown(found.names["self.a.x"]) == "(2 if c else 1)"
    assert [(ast.unparse(visit.node), ast.unparse(bound.node)) for visit, bound in found.stores] == [
        ("self.a.x", "1"),
        ("self.a.x", "2"),
    ]
    assert [condition(visit.path) for visit, _ in found.stores] == ["", "c"]


def test_an_attribute_that_one_branch_sets_is_else_what_it_was_before() -> None:
    assert shown(walked("if c:\n    self.x = 2").names["self.x"]) == "(2 if c else self.x)"


def test_attributes_that_take_what_a_call_gives_take_an_item_each() -> None:
    found = walked("self.a, self.b = f()")
    assert [ast.unparse(bound.node) for _, bound in found.stores] == ["f()[0]", "f()[1]"]


def test_names_that_are_assigned_are_noted_with_their_condition() -> None:
    found = walked("if a:\n    x = 1\ny, z = 1, 2")
    assert [(ast.unparse(visit.node), condition(visit.path)) for visit, _ in found.assigned] == [
        ("x", "a"),
        ("y", ""),
        ("z", ""),
    ]


# ---- what else is noted


def test_returns_and_inner_functions_are_noted_with_their_condition() -> None:
    function = ast.parse(
        textwrap.dedent("""
            def f():
                if a:
                    return 1
                def g():
                    return 2
                return
        """)
    ).body[0]
    assert isinstance(function, ast.FunctionDef)
    found = walk(function.body)
    assert [(ast.unparse(visit.node), condition(visit.path)) for visit in found.returns] == [("1", "a")]
    assert [condition(visit.path) for visit in found.inner] == ["not (a)"]


TRIED = {
    "once": ("try:\n  go()\nexcept E:\n  pass", False),
    "in a loop": ("for port in ports:\n  try:\n    go()\n    break\n  except OSError:\n    continue", True),
    "in a while": ("while True:\n  try:\n    go()\n    break\n  except OSError:\n    pass", True),
    "a loop in a try": ("try:\n  for port in ports:\n    go()\nexcept OSError:\n  pass", False),
    "a loop without a handler": ("for port in ports:\n  try:\n    go()\n  finally:\n    x()", False),
    "after the loop": ("for port in ports:\n  try:\n    x()\n  except OSError:\n    pass\ngo()", False),
    "in the handler": ("for port in ports:\n  try:\n    x()\n  except OSError:\n    go()", False),
}


@pytest.mark.parametrize(("body", "expected"), TRIED.values(), ids=TRIED)
def test_one_after_another_is_tried_where_a_failure_is_caught_in_a_loop(body: str, expected: bool) -> None:
    (visit,) = calls(walked(body))
    assert visit.tried is expected


def test_calls_are_noted_in_the_order_in_which_they_are_made() -> None:
    found = walked("a(b(c()), d=e()).f(g())")
    assert [ast.unparse(visit.node).partition("(")[0] for visit in found.calls] == ["c", "b", "e", "a", "g", "a"]


def test_a_function_that_nests_too_deep_is_left_alone() -> None:
    deep: ast.expr = ast.Name("x", ast.Load())
    for _ in range(5000):
        deep = ast.Attribute(deep, "a", ast.Load())
    found = walk([ast.Expr(ast.Call(ast.Name("go", ast.Load()), [], [])), ast.Expr(deep)])
    assert found.calls == []
