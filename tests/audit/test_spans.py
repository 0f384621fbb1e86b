"""Nodes as the spans that findings point at."""

from __future__ import annotations

import ast

import pytest

from rankbind.audit.expression import Place
from rankbind.audit.spans import span

SPANS = {
    "x = f(1)": (1, 5, 4),
    "xx": (1, 1, 2),
    # a call over several lines: up to its parenthesis
    "x = foo.bar(\n    1,\n)": (1, 5, 8),
    # whatever else is on several lines: where it starts
    "x = [\n    1,\n]": (1, 5, 1),
    "x = (foo\n  .bar(1))": (1, 6, 1),
}


@pytest.mark.parametrize(("source", "expected"), SPANS.items(), ids=SPANS)
def test_a_span_is_what_a_node_has_on_its_first_line(source: str, expected: tuple[int, int, int]) -> None:
    (statement,) = ast.parse(source).body
    assert isinstance(statement, (ast.Assign, ast.Expr))
    found = span(Place("a.py", statement.value))
    assert (found.line, found.column, found.length) == expected
    assert found.file == "a.py"


def test_a_node_that_stands_nowhere_is_at_the_start() -> None:
    found = span(Place("a.py", ast.parse("x")))
    assert (found.line, found.column, found.length) == (1, 1, 1)
