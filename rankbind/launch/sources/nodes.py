"""YAML as a graph of nodes with positions: aliases and merge keys are followed, never written out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import yaml

from rankbind.finding import Finding, Label
from rankbind.launch.sources.placed import LARGEST, Text
from rankbind.source import Document, Span

_DEEPEST = 100
_MOST_ENTRIES = 4096
_STR = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_SURROGATE = re.compile("[\ud800-\udfff]")
_WIDTHS = {"x": 2, "u": 4, "U": 8}


@dataclass(slots=True)
class Tree:
    """One YAML document of a file."""

    document: Document
    root: Any
    _merged: dict[int, dict[str, tuple[Any, Any]]] = field(default_factory=dict)

    def keys(self) -> set[str]:
        """Those at the top."""
        return set(self.entries(self.root))

    def entries(self, node: Any) -> dict[str, tuple[Any, Any]]:
        """The keys of a mapping with the nodes of keys and values, merge keys followed; nothing for other nodes."""
        if not isinstance(node, yaml.MappingNode):
            return {}
        known = self._merged.get(id(node))
        if known is not None:
            return known
        self._merged[id(node)] = {}  # what a mapping that merges itself finds
        own: dict[str, tuple[Any, Any]] = {}
        merged: dict[str, tuple[Any, Any]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.tag == _MERGE:
                for other in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    for name, entry in self.entries(other).items():
                        merged.setdefault(name, entry)
            else:
                own[key.value] = key, value
        found = self._merged[id(node)] = merged | own
        return found

    def get(self, node: Any, *path: str | int) -> Any:
        """The node at `path` below `node`, None where there is none."""
        for step in path:
            if isinstance(step, int):
                node = node.value[step] if isinstance(node, yaml.SequenceNode) and step < len(node.value) else None
            else:
                entry = self.entries(node).get(step)
                node = entry[1] if entry else None
        return None if is_null(node) else node

    def items(self, node: Any) -> list[Any]:
        """The nodes of a list; nothing for other nodes."""
        return node.value[:_MOST_ENTRIES] if isinstance(node, yaml.SequenceNode) else []

    def text(self, node: Any) -> Text | None:
        """The text of a scalar, also of a number; None for other nodes."""
        return placed(self.document, node) if isinstance(node, yaml.ScalarNode) else None

    def string(self, node: Any, *path: str | int) -> str | None:
        """The text at `path`."""
        found = self.get(node, *path)
        return found.value if isinstance(found, yaml.ScalarNode) else None

    def number(self, node: Any, *path: str | int) -> int | None:
        """The integer at `path`."""
        value = self.string(node, *path)
        return int(value) if value is not None and re.fullmatch(r"\d{1,18}", value) else None

    def true(self, node: Any, *path: str | int) -> bool:
        """Whether ``true`` stands at `path`."""
        return (self.string(node, *path) or "").lower() in ("true", "yes", "on")

    def span(self, node: Any) -> Span:
        """Where a node stands."""
        return self.document.span(node.start_mark.index, node.end_mark.index)


def is_null(node: Any) -> bool:
    """Whether a node says that there is nothing."""
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def is_yaml(file: str) -> bool:
    """Whether the name of a file says that it is YAML, or JSON."""
    return PurePath(file).suffix.lower() in (".yaml", ".yml", ".json")


@lru_cache(maxsize=8)
def read(file: str, text: str) -> tuple[Sequence[Tree], Sequence[Finding]]:
    """The documents of a YAML (or JSON) text that are mappings, and what keeps the rest from being read."""
    document = Document(file, text)
    if len(text) > LARGEST:
        return [], [_unreadable("too long for a file that people keep commands in", Span(file, 1, 1))]
    deep = _too_deep(document)
    if deep:
        return [], [_unreadable("nested too deeply to be read", deep)]
    if PurePath(file).suffix.lower() == ".json":
        text = text.replace("\t", " ")  # which YAML does not take for a blank; JSON has none in its strings
    found: list[Tree] = []
    try:
        loader = yaml.SafeLoader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                if isinstance(node, yaml.MappingNode):
                    found.append(Tree(document, node))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(", ".join(filter(None, (error.context, error.problem))).split())
        return found, [_unreadable(f"not YAML: {message}", document.span(mark.index if mark else 0))]
    except yaml.reader.ReaderError as error:
        return found, [_unreadable(f"not YAML: {error.reason}", document.span(error.position))]
    except RecursionError:
        return [], [_unreadable("nested too deeply to be read", Span(file, 1, 1))]
    return found, []


def _unreadable(message: str, span: Span) -> Finding:
    return Finding("RB901", message, labels=(Label(span),))


def _too_deep(document: Document) -> Span | None:
    """Brackets in brackets, or lists in lists, which PyYAML takes minutes for."""
    depth = 0
    for number, line in enumerate(document.lines, start=1):
        if line.count("[") + line.count("{") > _DEEPEST:
            depth = 0
            for column, char in enumerate(line, start=1):
                depth += (char in "[{") - (char in "]}")
                if depth > _DEEPEST:
                    return Span(document.file, number, column)
        if line.count("- ") + line.count("? ") > _DEEPEST and re.match(r"\s*(?:[-?] +){100}", line):
            return Span(document.file, number, 1)
    return None


# Where the characters of a scalar stand


def placed(document: Document, node: Any) -> Text:
    """The text of a scalar with the place of each of its characters; of all of it, where they cannot be told apart."""
    start, stop = node.start_mark.index, node.end_mark.index
    value = _SURROGATE.sub("\ufffd", node.value)
    raw = document.text[start:stop]
    found = _aligned(raw, value, node.style, start)
    if found is None:
        starts, stops = [start] * len(value), [stop] * len(value)
    else:
        starts, stops = found
    if node.style in ("|", ">") and starts:
        start = starts[0]
    return Text(document, value, starts, stops, start, stop)


def _aligned(raw: str, value: str, style: str | None, offset: int) -> tuple[list[int], list[int]] | None:
    """For each character of `value` where it stands in `raw`, which is how it is written."""
    at = 0
    if style in ("|", ">"):
        at = raw.find("\n") + 1
    elif style:
        at = 1
    starts: list[int] = []
    stops: list[int] = []
    for char in value:
        blank = char in " \t\n\r\x85\u2028\u2029"
        width = 1
        if style == '"':
            while raw[at : at + 1] == "\\" and raw[at + 1 : at + 2] in ("\n", "\r"):
                at += 2
                at = _past_blanks(raw, at)
        if style == '"' and not blank:
            at = _past_blanks(raw, at)
            while raw[at : at + 1] == "\\" and raw[at + 1 : at + 2] in ("\n", "\r"):
                at = _past_blanks(raw, at + 2)
        if style == '"' and raw[at : at + 1] == "\\":
            width = 2 + _WIDTHS.get(raw[at + 1 : at + 2], 0)
        elif blank:
            if raw[at : at + 1] != char:
                # A line that was folded: what is left of it is passed over with the next character.
                width = 0
        else:
            at = _past_blanks(raw, at)
            if raw[at : at + 1] != char:
                return None
            if style == "'" and char == "'":
                width = 2
        starts.append(offset + at)
        stops.append(offset + at + max(width, 1))
        at += width
    return starts, stops


def _past_blanks(raw: str, at: int) -> int:
    while at < len(raw) and raw[at] in " \t\n\r\x85\u2028\u2029":
        at += 1
    return at


def walk(tree: Tree, node: Any) -> Iterator[tuple[Text, Any]]:
    """The entries of a mapping, keys as text."""
    for key, value in list(tree.entries(node).values())[:_MOST_ENTRIES]:
        yield placed(tree.document, key), value
