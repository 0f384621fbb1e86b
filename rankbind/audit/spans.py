"""Nodes of the source as the spans that findings point at."""

from __future__ import annotations

import ast

from rankbind.audit.expression import Place
from rankbind.source import Span


def span(place: Place) -> Span:
    """Where a node starts, and how far it goes on its first line. Columns count characters where they are ASCII."""
    node = place.node
    line = getattr(node, "lineno", 1)
    column = getattr(node, "col_offset", 0)
    last, end = getattr(node, "end_lineno", line), getattr(node, "end_col_offset", column + 1)
    return Span(place.file, line, column + 1, max(end - column, 1) if last == line else _first_line(node, column))


def _first_line(node: ast.AST, column: int) -> int:
    """The length of what a call that goes on over several lines has on its first: up to its parenthesis."""
    if isinstance(node, ast.Call) and node.func.end_lineno == node.lineno and node.func.end_col_offset is not None:
        return node.func.end_col_offset - column + 1
    return 1
