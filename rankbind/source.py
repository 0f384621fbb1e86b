"""Where in a TOML, YAML or JSON text each value stands.

The values come from tomllib, PyYAML's safe loader and json; the positions of TOML and JSON from their tree-sitter
grammars, those of YAML from PyYAML's nodes.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tree_sitter import Node

KeyPath: TypeAlias = tuple[str | int, ...]
"""Where a value is in the data: ``("resources", "kv-events", "bind")``; integers index arrays."""

# TOML promises 64-bit integers and no more.
_LARGEST = 1 << 63
_BEYOND = "an integer beyond 64 bits"
_TOO_DEEP = "nested too deeply to be read"
_DEEPEST = 100


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A stretch of one line. `line` and `column` count from 1, in characters; `length` is at least 1."""

    file: str
    line: int
    column: int
    length: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class SourceError(Exception):
    """The text is not TOML, YAML or JSON. `span` says where."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.span = span


@dataclass(slots=True)
class Document:
    """A parsed text and the position of every key and value in it."""

    file: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    keys: dict[KeyPath, Span] = field(default_factory=dict)
    values: dict[KeyPath, Span] = field(default_factory=dict)
    lines: list[str] = field(init=False)
    starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)

    def key(self, *path: str | int) -> Span:
        """Where the key at `path` stands; of the nearest enclosing key if it is not in the text."""
        return self._nearest(path, self.keys, self.values)

    def value(self, *path: str | int) -> Span:
        """Where the value at `path` stands; of the nearest enclosing one if it is not in the text."""
        return self._nearest(path, self.values, self.keys)

    def inside(self, path: KeyPath, column: int, width: int) -> Span:
        """A part of the text value at `path`, counted from its first character; all of it behind escapes."""
        whole = self.value(*path)
        value = self.at(path)
        line = self.line(whole.line)
        start = line.find(value, whole.column - 1) if isinstance(value, str) and value else -1
        if start < 0 or start > whole.column + 2:
            return whole
        return Span(self.file, whole.line, start + 1 + min(column, len(value)), max(1, width))

    def at(self, path: KeyPath) -> Any:
        """The value at `path`, None where there is none."""
        found: Any = self.data
        for step in path:
            if isinstance(found, dict):
                found = found.get(step)
            elif isinstance(found, list) and isinstance(step, int) and step < len(found):
                found = found[step]
            else:
                return None
        return found

    def line(self, number: int) -> str:
        """The text of a line, counted from 1."""
        return self.lines[number - 1].rstrip("\r") if 0 < number <= len(self.lines) else ""

    def span(self, start: int, stop: int = 0) -> Span:
        """From one character of the text to another, counted from 0; what goes beyond the first line is left out."""
        start = min(max(start, 0), len(self.text))
        number = bisect_right(self.starts, start)
        column = start - self.starts[number - 1]
        length = min(stop - start, len(self.line(number)) - column)
        return Span(self.file, number, column + 1, max(1, length))

    def _nearest(self, path: KeyPath, first: Mapping[KeyPath, Span], second: Mapping[KeyPath, Span]) -> Span:
        for end in range(len(path), -1, -1):
            found = first.get(path[:end]) or second.get(path[:end])
            if found:
                return found
        return Span(self.file, 1, 1)

    def add(self, path: KeyPath, key: Span, value: Span) -> None:
        """Enter a key and its value. Raises `SourceError` when the key is there already."""
        if path in self.keys:
            raise SourceError(f"key {path[-1]!r} is given twice (first in line {self.keys[path].line})", key)
        self.keys[path] = key
        self.values[path] = value


def parse(text: str, file: str) -> Document:
    """Read `text` as what the ending of `file` says (.toml, .yaml, .yml, .json), or else as what it looks like.

    Raises:
        SourceError: it is not that, a key is given twice, it nests too deeply, or holds what no topology needs: an
            integer beyond 64 bits, half a character (a lone surrogate).
    """
    document = Document(file, text)
    reader = _READERS.get(Path(file).suffix.lower())
    if reader is None:
        reader = _read_json if text.lstrip().startswith("{") else _read_yaml if _YAML.search(text) else _read_toml
    try:
        if half := _SURROGATE.search(text):
            # Bytes that are no UTF-8, kept by "surrogateescape", are these.
            what = "not UTF-8 text" if "\udc80" <= half[0] <= "\udcff" else "not Unicode text: a lone surrogate"
            raise SourceError(what, document.span(half.start()))
        _refuse_depth(document)
        reader(document)
    except RecursionError:
        raise SourceError(_TOO_DEEP, Span(file, 1, 1)) from None
    if not isinstance(document.data, dict):
        raise SourceError("expected keys and values at the top", Span(file, 1, 1, max(1, len(document.line(1)))))
    for path, span in document.values.items():
        value = document.at(path)
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise SourceError(_BEYOND, span)
        if isinstance(value, str) and _SURROGATE.search(value):
            raise SourceError(_HALF, span)
    for path, span in document.keys.items():
        if _SURROGATE.search(str(path[-1])):
            raise SourceError(_HALF, span)
    return document


_YAML = re.compile(r"^[A-Za-z_]+\s*:", re.MULTILINE)
_HALF = "an escape that stands for half a character (a lone surrogate)"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Outside strings. int() refuses more digits than these.
_ODD_NUMBER = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?P<odd>-?Infinity|NaN|[0-9_]{4300,})')


def _refuse_depth(document: Document) -> None:
    """PyYAML takes minutes for what nobody writes: brackets in brackets by the thousand, in one line."""
    for number, line in enumerate(document.lines, start=1):
        if line.count("[") + line.count("{") > _DEEPEST:
            depth = 0
            for column, char in enumerate(line, start=1):
                depth += (char in "[{") - (char in "]}")
                if depth > _DEEPEST:
                    raise SourceError(_TOO_DEEP, Span(document.file, number, column))


def read(path: Path | str) -> Document:
    """`parse` the file at `path`.

    Raises:
        SourceError: it cannot be parsed, or is not UTF-8.
        OSError: it cannot be read.
    """
    return parse(read_text(path), str(path))


def read_text(path: Path | str) -> str:
    """The text of the file at `path`; bytes that are no UTF-8 become what `parse` refuses, with their place.

    Raises:
        OSError: it cannot be read.
    """
    return Path(path).read_bytes().decode("utf-8-sig", "surrogateescape")


def _read_toml(document: Document) -> None:
    import tree_sitter_toml

    language = tree_sitter_toml.language()
    try:
        document.data = tomllib.loads(document.text)
    except tomllib.TOMLDecodeError as error:
        message, _, where = str(error).rpartition(" (at ")
        if message.startswith(("Cannot", "Duplicate")):
            _find_double(document, language)
        if message == "Illegal character '\\n'":
            message = "the text that begins in this line is not closed in it"
        raise SourceError(f"not TOML: {message}", _toml_error(document, where)) from None
    except ValueError as error:
        raise _odd_number(document, error) from None
    _Toml(document).walk(_tree(document, language))


def _find_double(document: Document, language: object) -> None:
    """Raise what `Document.add` raises for a key that is given twice; tomllib says neither which nor where first."""
    tree = _tree(document, language)
    if not tree.has_error:
        try:
            _Toml(Document(document.file, document.text)).walk(tree)
        except ValueError:
            return  # a key that tomllib would have refused later


def _toml_error(document: Document, where: str) -> Span:
    found = re.match(r"line (\d+), column (\d+)\)$", where)
    return Span(document.file, int(found[1]), int(found[2])) if found else document.span(len(document.text))


def _odd_number(document: Document, error: ValueError) -> SourceError:
    """What Python's parsers refuse without saying where: NaN in JSON, and digits without end."""
    found = next((match for match in _ODD_NUMBER.finditer(document.text) if match["odd"]), None)
    if not found:
        return SourceError(str(error), Span(document.file, 1, 1))
    reason = _BEYOND if found["odd"][0].isdecimal() else f"{found['odd']} is no JSON number"
    return SourceError(reason, document.span(found.start(), found.end()))


def _read_json(document: Document) -> None:
    import tree_sitter_json

    try:
        document.data = json.loads(document.text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise SourceError(f"not JSON: {error.msg}", document.span(error.pos)) from None
    except ValueError as error:
        raise _odd_number(document, error) from None
    _json_value(document, _tree(document, tree_sitter_json.language()).named_children[0], ())


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _read_yaml(document: Document) -> None:
    import yaml

    try:
        for event in yaml.parse(document.text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise SourceError("YAML aliases are not supported: write the value out", _yaml_span(document, event))
        loader = yaml.SafeLoader(document.text)
        try:
            node = loader.get_single_node()
            if node is not None:
                document.data = _yaml_value(document, loader, node, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = ", ".join(filter(None, (error.context, error.problem)))
        raise SourceError(f"not YAML: {message}", document.span(mark.index if mark else 0)) from None
    except yaml.reader.ReaderError as error:
        raise SourceError(f"not YAML: {error.reason}", document.span(error.position)) from None


def _yaml_value(document: Document, loader: Any, node: Any, path: KeyPath) -> Any:
    """The value of `node`, and the positions of everything in it."""
    import yaml

    span = _yaml_span(document, node)
    document.values.setdefault(path, span)
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if isinstance(node, yaml.MappingNode) and kind == "map":
        found = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise SourceError("keys must be text: quote this one", _yaml_span(document, key))
            inner = (*path, key.value)
            document.add(inner, _yaml_span(document, key), _yaml_span(document, value))
            found[key.value] = _yaml_value(document, loader, value, inner)
        return found
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        return [_yaml_value(document, loader, value, (*path, index)) for index, value in enumerate(node.value)]
    if not isinstance(node, yaml.ScalarNode) or kind not in _YAML_SCALARS:
        raise SourceError(f"not supported: YAML's {node.tag}", span)
    try:
        return loader.construct_object(node)
    except (ValueError, LookupError, AttributeError):
        # 2026-02-30, or a tag that contradicts its text: PyYAML's constructors trip over their own assumptions.
        raise SourceError(f"{node.value[:40]!r} is no YAML {kind}", span) from None


_YAML_SCALARS = frozenset({"str", "int", "float", "bool", "null", "timestamp"})


def _yaml_span(document: Document, node: Any) -> Span:
    return document.span(node.start_mark.index, node.end_mark.index)


def _tree(document: Document, language: object) -> Node:
    from tree_sitter import Language, Parser

    return Parser(Language(language)).parse(document.text.encode()).root_node


def _span(document: Document, node: Node) -> Span:
    # tree-sitter counts bytes; a row of its is a "\n" row.
    text = document.line(node.start_point.row + 1)
    row = text.encode()
    start = len(row[: node.start_point.column].decode(errors="replace"))
    stop = node.end_point.column if node.end_point.row == node.start_point.row else len(row)
    length = len(row[node.start_point.column : stop].decode(errors="replace"))
    return Span(document.file, node.start_point.row + 1, start + 1, max(1, length))


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def _json_value(document: Document, node: Node, path: KeyPath) -> None:
    document.values.setdefault(path, _span(document, node))
    if node.type == "object":
        for pair in node.named_children:
            key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
            if key is None or value is None or key.type != "string":
                # The grammar does not know every number of JSON's (-1e+300): what it makes of one has no place.
                continue
            inner = (*path, json.loads(_text(key)))
            document.add(inner, _span(document, key), _span(document, value))
            _json_value(document, value, inner)
    elif node.type == "array":
        for index, value in enumerate(node.named_children):
            _json_value(document, value, (*path, index))


class _Toml:
    """Walks the tree of a TOML text."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.elements: dict[KeyPath, int] = {}
        self.headers: set[KeyPath] = set()

    def walk(self, root: Node) -> None:
        for node in root.named_children:
            if node.type == "pair":
                self.pair(node, ())
            elif node.type in ("table", "table_array_element"):
                self.table(node)

    def table(self, node: Node) -> None:
        header, *pairs = (child for child in node.named_children if child.type != "comment")
        path = self.add(header, (), header, again=True)
        if node.type == "table_array_element":
            self.elements[path] = self.elements.get(path, -1) + 1
            path = (*path, self.elements[path])
            self.document.add(path, _span(self.document, header), _span(self.document, header))
        elif path in self.headers:
            self.document.add(path, _span(self.document, header), _span(self.document, header))
        self.headers.add(path)
        for pair in pairs:
            self.pair(pair, path)

    def pair(self, node: Node, path: KeyPath) -> None:
        key, value = (child for child in node.named_children if child.type != "comment")
        self.value(value, self.add(key, path, value))

    def value(self, node: Node, path: KeyPath) -> None:
        self.document.values[path] = _span(self.document, node)
        children = [child for child in node.named_children if child.type != "comment"]
        if node.type == "inline_table":
            for pair in children:
                self.pair(pair, path)
        elif node.type == "array":
            for index, element in enumerate(children):
                self.value(element, (*path, index))

    def add(self, key: Node, path: KeyPath, value: Node, *, again: bool = False) -> KeyPath:
        """Enter every step of a dotted key below `path`; the path of its end, which `again` lets stand there before."""
        parts = [*_toml_key_parts(key)]
        for part in parts:
            if path in self.elements:
                path = (*path, self.elements[path])
            path = (*path, *tomllib.loads(f"{_text(part)} = 0"))
            here, there = _span(self.document, part), _span(self.document, value)
            if path not in self.document.keys or (part is parts[-1] and not again):
                self.document.add(path, here, there)
        return path


def _toml_key_parts(node: Node) -> Iterator[Node]:
    if node.type == "dotted_key":
        for child in node.named_children:
            yield from _toml_key_parts(child)
    else:
        yield node


_READERS = {".toml": _read_toml, ".json": _read_json, ".yaml": _read_yaml, ".yml": _read_yaml}
