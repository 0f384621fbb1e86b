"""What a text is, where its name does not tell: standard input, a process substitution, a file without an ending."""

from __future__ import annotations

import re
import tomllib
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import yaml

from rankbind.launch.sources import grammar, nodes
from rankbind.launch.sources.placed import LARGEST

if TYPE_CHECKING:
    from rankbind.launch.sources import Kind

_RENDERED = frozenset({".j2", ".jinja", ".jinja2", ".tpl", ".tmpl", ".gotmpl"})
_MARK = re.compile(r"\{\{|\{%")
_HELM = re.compile(r"\{\{-?[^{}\n]*\.(?:Values|Release|Chart|Capabilities)\b")
_PASSED_OVER = re.compile(r"\s*(?:#.*|\{\{.*\}\}\s*|\{%.*%\}\s*)?\Z")
_YAML = re.compile(r"---(?:\s|\Z)|[\w./\"'-]+\s*:(?:\s|\Z)|[{\[]")
_KEY = re.compile(r"^(services|apiVersion|kind|axes)\s*:", re.MULTILINE)
_KINDS: dict[str, Kind] = {"services": "compose", "axes": "topology"}
# A line as in a topology file; "[ -f a ]", "a=b" and "[1]=a" are of a shell.
_TOML = re.compile(r"^[ \t]*(?:\[{1,2}[\w.-]+(?:\]{1,2}[ \t]*(?:#.*)?)?$|[A-Za-z_][\w.-]*[ \t]+=)", re.MULTILINE)
_QUOTED = frozenset({"string", "raw_string", "ansi_c_string", "heredoc_body", "comment"})
_MOST_LINES = 64


def of_yaml(file: str, text: str) -> Kind | None:
    """What a YAML text is."""
    if template(file, text) is not None:
        return "kubernetes"
    documents, wrong = nodes.read(file, text)
    for document in documents:
        keys = document.keys()
        if "axes" in keys:
            return "topology"
        if "services" in keys:
            return "compose"
        if "kind" in keys and ("apiVersion" in keys or "spec" in keys or "items" in keys):
            return "kubernetes"
    if wrong and not nodes.is_yaml(file) and (key := _KEY.search(text)):
        return _KINDS.get(key[1], "kubernetes")
    return None


def of_text(file: str, text: str) -> Kind | None:
    """What any text is."""
    if len(text) > LARGEST:
        return None
    if _yaml_like(text) and (kind := of_yaml(file, text)):
        return kind
    if template(file, text) is not None:
        return "shell"
    try:
        return "topology" if "axes" in tomllib.loads(text.removeprefix("\ufeff")) else None
    except (ValueError, RecursionError):
        return "shell" if _is_shell(text) else None


def template(file: str, text: str) -> int | None:
    """Where a text that is still to be rendered (by Helm, by Jinja) first says so; None: it is none."""
    first = _MARK.search(text)
    if first is None or len(text) > LARGEST:
        return None
    if PurePath(file).suffix.lower() in _RENDERED:
        return first.start()
    if not nodes.is_yaml(file) and not _yaml_like(text, brackets=False):
        return None
    if helm := _HELM.search(text):
        return helm.start()
    documents, wrong = nodes.read(file, text)
    # Braces in quotes may be anybody's: those of a chat template, of docker inspect.
    return first.start() if wrong else _bare_braces([document.root for document in documents])


def _bare_braces(todo: list[Any]) -> int | None:
    """Where ``{{ ... }}`` stands without quotes, which YAML takes for a mapping with a mapping for a key."""
    found: list[int] = []
    seen: set[int] = set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if node.flow_style and isinstance(key, yaml.MappingNode) and key.flow_style:
                    found.append(node.start_mark.index)
                todo.append(value)
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value
    return min(found, default=None)


def _yaml_like(text: str, *, brackets: bool = True) -> bool:
    """Whether the first line that says something is one of YAML; a bracket may begin a shell script as well."""
    for line in text.removeprefix("\ufeff").splitlines():
        if not _PASSED_OVER.match(line):
            return _YAML.match(line) is not None and (brackets or line[0] not in "{[")
    return False


def _is_shell(text: str) -> bool:
    root, _ = grammar.parse(text)
    if root.has_error:
        return False
    plain = text.isascii()
    for line in islice(_TOML.finditer(text), _MOST_LINES):
        at = line.end() - 1
        at = at if plain else len(text[:at].encode(errors="replace"))
        node = root.descendant_for_byte_range(at, at)
        while node is not None and node.type not in _QUOTED:
            node = node.parent
        if node is None:
            return False
    return True
