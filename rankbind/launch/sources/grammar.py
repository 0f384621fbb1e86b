"""The grammar of shells: tree-sitter's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from rankbind.launch.sources.placed import Text

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


@lru_cache(maxsize=32)
def parse(text: str) -> tuple[Node, Callable[[int], int]]:
    """The tree of a script, and what turns its byte offsets into those of characters."""
    raw = text.encode(errors="replace")
    root = _parser().parse(raw).root_node
    if len(raw) == len(text):
        return root, lambda at: at
    table: list[int] = []
    for index, char in enumerate(text):
        table += [index] * len(char.encode(errors="replace"))
    table.append(len(text))
    return root, table.__getitem__


def errors(node: Node) -> Iterator[Node]:
    """The places that the grammar stumbled over, where it does not know what it sees or misses something."""
    if node.is_error or node.is_missing:
        yield node
    elif node.has_error:
        for child in node.children:
            yield from errors(child)


def words(source: Text, at: Callable[[int], int], nodes: Sequence[Node]) -> Iterator[Text]:
    """The words that nodes are: what stands without a blank between is one, though the grammar may tear it apart."""
    start = stop = -1
    for node in nodes:
        if node.type == "comment":
            continue
        first, last = at(node.start_byte), at(node.end_byte)
        if first == stop and start >= 0:
            stop = last
            continue
        if start >= 0:
            yield source.part(start, stop)
        start, stop = first, last
    if start >= 0:
        yield source.part(start, stop)
