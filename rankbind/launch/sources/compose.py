"""docker compose files: a command for each service, and for each of its replicas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rankbind.launch.command import Publication
from rankbind.launch.sources.found import Found, Place, Shared
from rankbind.launch.sources.nodes import Tree, is_null, walk
from rankbind.launch.sources.placed import LONGEST, Text, joined, split, whole
from rankbind.launch.sources.starters import contained, publications
from rankbind.source import Document

MOST_REPLICAS = 4096
_NAME = re.compile(r"[A-Za-z_]\w*")
_OPERATOR = re.compile(r":?[-?+]")
_LARGEST_ENV_FILE = 1 << 18


def read(trees: Sequence[Tree], found: Found) -> None:
    """The commands of a compose file."""
    for tree in trees:
        _Compose(tree, found).read()


class _Compose:
    def __init__(self, tree: Tree, found: Found) -> None:
        self.tree, self.found = tree, found
        self.shared = Shared(found)
        self.services = {key.text: (key, value) for key, value in walk(tree, tree.get(tree.root, "services"))}
        self.defaults = _env_file(tree.document.file, ".env") or {}

    def read(self) -> None:
        for name, (key, service) in self.services.items():
            if isinstance(service, yaml.MappingNode):
                self.service(name, key, service)

    def service(self, name: str, key: Text, service: Any) -> None:
        tree = self.tree
        extended = tree.get(service, "extends")
        if extended is not None:
            self.found.note(f"what service {name} takes over by extends is not looked at", tree.span(extended))
        image_node = tree.get(service, "image")
        image = self.interpolated(image_node)
        bare = (image.span if image else key.span) if image or tree.get(service, "build") is not None else None
        entrypoint, command = self.words(service, "entrypoint"), self.words(service, "command")
        if (
            entrypoint is None
            and "entrypoint" in tree.entries(service)
            and not is_null(tree.entries(service)["entrypoint"][1])
        ):
            return
        words = [*(entrypoint or ()), *(command or ())]
        if entrypoint is not None:
            bare = None
        environment = self.environment(service)
        count = tree.number(service, "deploy", "replicas")
        count = tree.number(service, "scale") if count is None else count
        count = 1 if count is None else count
        if count > MOST_REPLICAS:
            self.found.note(
                f"{count} replicas are more than rankbind writes out: the first {MOST_REPLICAS} are looked at", key
            )
        for index in range(min(count, MOST_REPLICAS)):
            self.found.step()
            own = name if count == 1 else f"{name}-{index + 1}"
            host, apart = self.namespace(name, own)
            place = Place(
                host=host,
                image=image.text if image and image.sure else None,
                name=own,
                bare=bare,
                published=tuple(self.published(service)) if apart else (),
            )
            contained(self.shared, words, environment, place, 0)

    def namespace(self, name: str, own: str) -> tuple[str | None, bool]:
        """The network namespace of a service, and whether ports can be published from it."""
        seen = set()
        while name not in seen:
            seen.add(name)
            service = self.services[name][1]
            mode = self.tree.string(service, "network_mode") or self.tree.string(service, "net") or ""
            kind, _, other = mode.partition(":")
            if mode == "host":
                return None, False
            if kind == "service" and other in self.services:
                name = own = other
            elif kind in ("container", "service"):
                return other, False
            else:
                return own, len(seen) == 1 and mode != "none"
        return own, False

    def words(self, service: Any, key: str) -> list[Text] | None:
        """The words of ``command`` or ``entrypoint``; None where there are none, or nobody can tell."""
        node = self.tree.get(service, key)
        if node is None:
            return None
        if isinstance(node, yaml.SequenceNode):
            items = [self.interpolated(item) for item in self.tree.items(node)]
            return [item for item in items if item is not None]
        text = self.interpolated(node)
        if text is None:
            self.found.unreadable(f"{key} should be text or a list", self.tree.span(node))
            return None
        if len(text.text) > LONGEST:
            self.found.note("a line too long to be read", text)
            return None
        if text.opaque:
            return [text]
        words = split(text)
        if words is None:
            self.found.unreadable(f"a quote in this {key} is not closed", text.span)
        return words

    def environment(self, service: Any) -> dict[str, Text]:
        found: dict[str, Text] = {}
        tree = self.tree
        files = tree.get(service, "env_file")
        for entry in tree.items(files) or ([files] if files is not None else []):
            path = tree.string(entry, "path") if isinstance(entry, yaml.MappingNode) else tree.string(entry)
            known = _env_file(tree.document.file, path) if path else None
            if known is None:
                self.found.note(
                    "what this file of variables holds is not known: it does not lie beside", tree.span(entry)
                )
            else:
                found |= known
        node = tree.get(service, "environment")
        for key, value in walk(tree, node):
            text = self.interpolated(value)
            if text is not None:
                found[key.text] = text
            elif key.text in self.defaults:
                found[key.text] = self.defaults[key.text]
        for item in tree.items(node):
            text = self.interpolated(item)
            name, equals, _ = (text.text if text else "").partition("=")
            if text is not None and equals:
                found[name] = text.part(len(name) + 1, len(text.text))
            elif name in self.defaults:
                found[name] = self.defaults[name]
        return found

    def published(self, service: Any) -> list[Publication]:
        tree = self.tree
        found: list[Publication] = []
        for item in tree.items(tree.get(service, "ports")):
            if isinstance(item, yaml.MappingNode):
                ports = [self.interpolated(tree.get(item, key)) for key in ("published", "target")]
                if any(port is None or not port.sure for port in ports):
                    continue
                protocol, address = tree.string(item, "protocol") or "tcp", tree.string(item, "host_ip") or ""
                first, last = (port.text for port in ports if port is not None)
                at = ports[0] or ports[1]
                assert at is not None
                last = (
                    f"{last}-{int(last) + _width(first)}"
                    if last.isdecimal() and len(last) < 6 and _width(first)
                    else last
                )
                address = f"[{address}]" if ":" in address else address
                found += publications(at.saying(f"{address}:{first}:{last}/{protocol}"), None)
            else:
                text = self.interpolated(item)
                if text is not None:
                    found += publications(text, None)
        return found

    # Interpolation

    def interpolated(self, node: Any) -> Text | None:
        """The text of a scalar with its variables put in; None where it is none."""
        if node is None or is_null(node):
            return None
        text = self.tree.text(node)
        return None if text is None else _interpolated(text, self.defaults, 0)


def _width(ports: str) -> int:
    low, dash, high = ports.partition("-")
    return int(high) - int(low) if dash and low.isdecimal() and high.isdecimal() and len(high) < 6 else 0


def _interpolated(text: Text, variables: Mapping[str, Text], depth: int) -> Text:
    """``$NAME``, ``${NAME}``, ``${NAME:-default}``, ``$$``; what is set nowhere stays as it is written."""
    if "$" not in text.text:
        return text
    if depth > 8 or len(text.text) > LONGEST:
        return text.unknown()
    value = text.text
    parts: list[Text] = []
    opaque = 0
    at = run = 0
    while at < len(value):
        if value[at] != "$":
            at += 1
            continue
        if run < at:
            parts.append(text.part(run, at))
        if value.startswith("$$", at):
            parts.append(text.part(at, at + 1))
            at = run = at + 2
            continue
        name = _NAME.match(value, at + 1)
        stop = name.end() if name else at + 1
        argument: Text | None = None
        operator = ""
        if value.startswith("${", at):
            stop = _closing(value, at + 2)
            name = _NAME.match(value, at + 2, stop)
            end = name.end() if name else at + 2
            found = _OPERATOR.match(value, end, stop)
            operator = found[0] if found else ""
            argument = text.part(end + len(operator), stop)
            stop = min(stop + 1, len(value))
        written = text.part(at, stop)
        known = variables.get(name[0]) if name else None
        missing = known is None or (operator[:1] == ":" and not known.text)
        if operator[-1:] in ("-", "+") and argument is not None and missing == (operator[-1] == "-"):
            inner = _interpolated(argument, variables, depth + 1)
            # One word stands where all of it does, several where each is written.
            parts.append(inner if any(map(str.isspace, inner.text)) else inner.moved(written))
        elif operator[-1:] == "+":
            pass
        elif known is None:
            parts.append(written.unknown())
            opaque += 1
        else:
            parts.append(known.moved(written))
        at = run = stop
    if run < len(value):
        parts.append(text.part(run, len(value)))
    return replace(joined(parts, text), opaque=opaque > 0 and len(parts) == opaque == 1)


def _closing(value: str, at: int) -> int:
    depth = 1
    while at < len(value):
        depth += value.startswith("${", at)
        depth -= value[at] == "}"
        if not depth:
            return at
        at += 1
    return at


# Files of variables


def _env_file(file: str, name: str) -> dict[str, Text] | None:
    """The variables of a file that lies beside the compose file; None where there is none."""
    base = Path(file)
    try:
        if not base.is_file():
            return None
        path = base.parent / name
        if not path.resolve().is_relative_to(base.parent.resolve()) or not path.is_file():
            return None
        if path.stat().st_size > _LARGEST_ENV_FILE:
            return None
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None
    source = whole(Document(str(path), text))
    found: dict[str, Text] = {}
    for line in re.finditer(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=[ \t]*(.*?)[ \t\r]*$", text, re.MULTILINE):
        first, stop = line.span(2)
        value = text[first:stop]
        quote = value[:1] if value[:1] in ("'", '"') and value[1:].find(value[:1]) >= 0 else ""
        if quote:
            stop = first + 1 + value[1:].find(quote)
            first += 1
        elif " #" in value:
            stop = first + len(value.partition(" #")[0].rstrip())
        part = source.part(first, stop)
        found[line[1]] = _interpolated(part, found, 0) if quote != "'" else part
    return found
