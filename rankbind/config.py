"""The topology file: axes, views, hosts, resources. TOML, YAML or JSON, by one pydantic model.

`load` gives the `Job` it declares; `read` also the positions, which findings point at. Everything wrong with the
file is collected and raised at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
from pydantic_core import ErrorDetails

from rankbind.endpoint import MAX_PORT, Endpoint
from rankbind.errors import ConfigError, EndpointError, ScopeError, TemplateError, TopologyError
from rankbind.finding import Finding, Label, few
from rankbind.resource import Address, Consumer, HostFacts, Job, Kind, ReservedPorts, Resource
from rankbind.scope import Gate, Scope
from rankbind.source import Document, KeyPath, SourceError, Span
from rankbind.source import parse as parse_source
from rankbind.source import read as read_source
from rankbind.template import Template
from rankbind.topology import MAX_RANKS, Topology, View, nearest

_BRACES = re.compile(r"\{\{|\}\}|\{[^}]*\}")


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _as_count(value: object) -> object:
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _as_dialled(value: object) -> object:
    return [{"to": item} if isinstance(item, str) else item for item in (value if isinstance(value, list) else [value])]


def _as_group_rank(value: object) -> object:
    if type(value) is int or value == "any":
        return value
    raise ValueError(f'should be an integer or "any", not {_shown(value)}')


def _as_ranks(value: object) -> object:
    """``"0-3, 8"`` as a list of ranks."""
    if not isinstance(value, str):
        return value
    ranks: list[int] = []
    for part in value.split(","):
        first, dash, last = (text.strip() for text in part.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError(f'should be ranks like "0-3, 8"; {part.strip()!r} is neither a rank nor a range')
        low, high = int(first), int(last or first)
        if high >= MAX_RANKS or high < low:
            raise ValueError(f"should be ranks that rise and end below {MAX_RANKS}, not {part.strip()!r}")
        ranks.extend(range(low, high + 1))
    return ranks


def _as_ports(value: object) -> object:
    """``[32768, 60999]``, ``"32768-60999"`` or one port as a pair."""
    if isinstance(value, str):
        first, dash, last = (text.strip() for text in value.partition("-"))
        if first.isdecimal() and (last.isdecimal() or not dash):
            value = [int(first), int(last or first)]
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value, value]
    if isinstance(value, list) and len(value) == 2 and all(type(port) is int for port in value):
        if not 0 <= value[0] <= value[1] <= MAX_PORT:
            raise ValueError(f"should be ports that rise from 0 to {MAX_PORT}, not {value[0]}-{value[1]}")
        return tuple(value)
    raise ValueError('should be ports, [32768, 60999] or "32768-60999"')


_Texts = Annotated[list[StrictStr], BeforeValidator(_as_list), Field(min_length=1)]
_Ranks = Annotated[list[StrictInt], BeforeValidator(_as_ranks)]
_Indices = Annotated[list[StrictInt], BeforeValidator(_as_list)]
_Ports = Annotated[tuple[int, int], BeforeValidator(_as_ports)]
_Sizes = dict[str, StrictInt]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class _View(_Model):
    of: _Texts
    axes: _Sizes


class _Hosts(_Model):
    count: StrictInt | None = None
    blocks: list[StrictInt] | None = None
    ranks: dict[str, _Ranks] | None = None
    names: list[StrictStr] | None = None
    addresses: dict[str, _Texts] = {}
    ephemeral: _Ports | None = None
    unprivileged_port_start: Annotated[StrictInt, Field(ge=0, le=MAX_PORT + 1)] | None = None
    reserved: dict[str, _Ports] = {}


class _Scope(_Model):
    group: _Texts
    rank: Annotated[int | Literal["any"], BeforeValidator(_as_group_rank)] = 0


class _Consumer(_Model):
    to: StrictStr
    by: StrictStr | None = None
    role: Literal["bind", "replay"] = "bind"
    axes: _Sizes | None = None
    owner: dict[str, _Indices] = {}


class _Resource(_Model):
    singleton_per: _Scope | None = None
    owner: dict[str, _Indices] | None = None
    once_per: Annotated[list[StrictStr], BeforeValidator(_as_list)] | None = None
    bind: _Texts | None = None
    replay: _Texts | None = None
    name: _Texts | None = None
    path: _Texts | None = None
    device: _Texts | None = None
    probe: _Texts | None = None
    process: StrictStr | None = None
    scope: Literal["host", "shared"] | None = None
    connect: Annotated[list[_Consumer], BeforeValidator(_as_dialled)] = []
    shared: Literal["inherited", "reuseport"] | None = None
    same_owner_as: StrictStr | None = Field(default=None, alias="with")
    ipv6: StrictBool = False
    v6only: StrictBool = False
    authenticated: StrictBool | None = None


class _File(_Model):
    deployment: StrictStr | None = None
    axes: _Sizes
    views: dict[str, _View] = {}
    hosts: Annotated[_Hosts, BeforeValidator(_as_count)] = Field(default_factory=_Hosts)
    resources: dict[str, _Resource] = {}


_Steps: TypeAlias = tuple[str, ...]
# Which model stands at which place of the file; "*" is any name. Only for "did you mean".
_MODELS: Mapping[_Steps, type[_Model]] = {
    (): _File,
    ("views", "*"): _View,
    ("hosts",): _Hosts,
    ("resources", "*"): _Resource,
    ("resources", "*", "singleton_per"): _Scope,
    ("resources", "*", "connect", "*"): _Consumer,
}


@dataclass(frozen=True, slots=True)
class Declaration:
    """A job and the file that declares it."""

    job: Job
    document: Document

    def address_path(self, resource: Resource, address: Address) -> KeyPath:
        """Where in the data an address of `resource` stands."""
        same_role = [other for other in resource.addresses if other.role == address.role]
        return self._item("resources", resource.name, address.role, same_role.index(address))

    def consumer_path(self, resource: Resource, consumer: Consumer) -> KeyPath:
        """Where in the data what `consumer` dials stands."""
        path = self._item("resources", resource.name, "connect", resource.consumers.index(consumer))
        return path if isinstance(self.document.at(path), str) else (*path, "to")

    def _item(self, *path: str | int) -> KeyPath:
        return path if isinstance(self.document.at(path[:-1]), list) else path[:-1]


def load(path: Path | str) -> Job:
    """The job that the topology file at `path` declares.

    Raises:
        ConfigError: the file cannot be read, or is wrong; the message holds every finding with its position.
    """
    return read(path).job


def read(path: Path | str) -> Declaration:
    """As `load`, with the positions in the file."""
    try:
        return declare(read_source(path))
    except SourceError as error:
        raise refuse([Finding("RB901", str(error), labels=(Label(error.span),))]) from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(
            [Finding("RB901", f"cannot read {path}: {reason}", labels=(Label(Span(str(path), 1, 1)),))]
        ) from None


def parse(text: str, file: str = "topology.toml") -> Declaration:
    """As `read`, from a text; the ending of `file` says what it is."""
    try:
        return declare(parse_source(text, file))
    except SourceError as error:
        raise refuse([Finding("RB901", str(error), labels=(Label(error.span),))]) from None


def refuse(findings: list[Finding]) -> ConfigError:
    """The error that holds all that is wrong with a file, in its order."""
    findings = sorted(findings, key=lambda finding: finding.labels[0].span)
    lines = [f"{finding.labels[0].span}: {finding.code}: {finding.message}" for finding in findings]
    return ConfigError("\n".join(lines), tuple(findings))


def declare(document: Document) -> Declaration:
    """As `read`, from a text that is parsed already."""
    try:
        file = _File.model_validate(document.data)
    except ValidationError as error:
        raise refuse([explain(document, detail, _known) for detail in error.errors(include_url=False)]) from None
    builder = _Builder(document, file)
    job = builder.job()
    if builder.findings:
        raise refuse(builder.findings)
    return Declaration(job, document)


class _Builder:
    """Turns a file of the right shape into the model, and collects what the model refuses."""

    def __init__(self, document: Document, file: _File) -> None:
        self.document, self.file = document, file
        self.findings: list[Finding] = []

    def add(self, code: str, message: str, span: Span, fix: str | None = None) -> None:
        self.findings.append(Finding(code, message, labels=(Label(span),), fix=fix))

    def job(self) -> Job:
        self.check_names()
        topology = self.topology()
        resources = tuple(self.resource(name, entry) for name, entry in self.file.resources.items())
        for name, entry in self.file.resources.items():
            other = entry.same_owner_as
            if other is not None and other not in self.file.resources:
                span = self.document.value("resources", name, "with")
                self.add(
                    "RB906",
                    f"resource {name} is to go with {other!r}, which is not declared",
                    span,
                    _meant(other, self.file.resources),
                )
        hosts = self.file.hosts
        facts = HostFacts(
            hosts.ephemeral,
            hosts.unprivileged_port_start,
            tuple(ReservedPorts(first, last, holder) for holder, (first, last) in hosts.reserved.items()),
            {name: tuple(addresses) for name, addresses in hosts.addresses.items()},
        )
        return Job(topology, resources, facts, self.file.deployment)

    def check_names(self) -> None:
        """Names go into messages and reports, and are typed on a command line: something has to be seen of them."""
        hosts = self.file.hosts
        named: list[tuple[KeyPath, Iterable[str]]] = [
            (("resources",), self.file.resources),
            (("views",), self.file.views),
            (("hosts", "ranks"), hosts.ranks or ()),
            (("hosts", "reserved"), hosts.reserved),
        ]
        spans = [(name, self.document.key(*path, name)) for path, names in named for name in names]
        spans += [(name, self.document.value("hosts", "names", at)) for at, name in enumerate(hosts.names or ())]
        if self.file.deployment is not None:
            spans.append((self.file.deployment, self.document.value("deployment")))
        for name, span in spans:
            if not name.strip() or not name.isprintable():
                self.add("RB903", f"{name!r} is no name: it is empty, or has characters that cannot be seen", span)

    def topology(self) -> Topology:
        axes = self.axes(("axes",), self.file.axes)
        views = self.views(axes)
        if self.findings:
            return Topology(axes, views)
        try:
            topology = Topology(axes, views, self.placement(axes))
        except TopologyError as error:
            self.add("RB603", str(error), self._placement_span(axes))
            return Topology(axes, views)
        names = [host.name for host in topology.hosts]
        for name in self.file.hosts.addresses:
            if name not in names:
                message = f"addresses are given for host {name!r}, which does not exist"
                self.add("RB903", message, self.document.key("hosts", "addresses", name), _meant(name, names))
        return topology

    def axes(self, path: KeyPath, sizes: Mapping[str, int]) -> dict[str, int]:
        """Those of the axes at `path` that can be, the others reported: one at a time shows which are wrong."""
        good: dict[str, int] = {}
        for name, size in sizes.items():
            try:
                Topology({**good, name: size})
            except TopologyError as error:
                self.add("RB905", str(error), self.document.key(*path, name))
            else:
                good[name] = size
        return good

    def views(self, axes: Mapping[str, int]) -> dict[str, View]:
        good: dict[str, View] = {}
        known = set(axes)
        declared = {*self.file.axes, *(axis for view in self.file.views.values() for axis in view.axes)}
        for name, entry in self.file.views.items():
            view = View(entry.of, entry.axes)
            try:
                Topology(axes, {**good, name: view})
            except TopologyError as error:
                # A view of something already refused only follows from that.
                if not self.findings or known.issuperset(declared.intersection(view.of)):
                    self.add("RB905", str(error), self._view_span(name, view, error.axis))
            else:
                good[name] = view
                known.update(view.axes)
        return good

    def _view_span(self, name: str, view: View, axis: str | None) -> Span:
        at: KeyPath = ("views", name)
        if axis is not None and axis in view.axes:
            return self.document.key(*at, "axes", axis)
        if axis is not None and axis in view.of:
            return self.document.value(*self._item(at, "of", view.of.index(axis)))
        return self.document.value(*at, "axes" if view.of else "of")

    def placement(self, axes: Mapping[str, int]) -> int | list[int] | Mapping[str, list[int]]:
        hosts = self.file.hosts
        given = [key for key in ("count", "blocks", "ranks") if getattr(hosts, key) is not None]
        if len(given) > 1:
            raise TopologyError(f"hosts are given by {' and by '.join(given)}: keep one")
        if hosts.ranks is not None:
            if hosts.names is not None:
                raise TopologyError("hosts.ranks names the hosts already: take hosts.names away")
            return hosts.ranks
        placed: int | list[int] = (
            hosts.blocks if hosts.blocks is not None else 1 if hosts.count is None else hosts.count
        )
        if hosts.names is None:
            return placed
        found = Topology(axes, hosts=placed).hosts
        if len(found) != len(hosts.names) or len(set(hosts.names)) != len(hosts.names):
            raise TopologyError(
                f"{len(found)} hosts need as many different names, not {', '.join(hosts.names) or 'none'}"
            )
        return {name: list(host.ranks) for name, host in zip(hosts.names, found, strict=True)}

    def _placement_span(self, axes: Mapping[str, int]) -> Span:
        """Where the first thing stands that no placement can have."""
        hosts = self.file.hosts
        for name, ranks in (hosts.ranks or {}).items():
            try:
                Topology(axes, hosts={name: ranks})
            except TopologyError:
                return self.document.value("hosts", "ranks", name)
        wrong = [key for key in ("names", "count", "blocks", "ranks") if getattr(hosts, key) is not None]
        return self.document.value("hosts", wrong[0]) if len(wrong) == 1 else self.document.value("hosts")

    def resource(self, name: str, entry: _Resource) -> Resource:
        at: KeyPath = ("resources", name)
        owner: Scope | Gate = Gate({})
        if (entry.singleton_per is None) == (entry.owner is None):
            both = entry.owner is not None
            self.add(
                "RB903",
                f"resource {name} {'has both singleton_per and owner' if both else 'does not say who owns it'}",
                self.document.key(*at, *(("owner",) if both else ())),
                "keep singleton_per"
                if both
                else 'singleton_per = { group = "world", rank = 0 } for one in all, or owner = {} for every rank',
            )
        elif entry.singleton_per is not None:
            try:
                owner = Scope(entry.singleton_per.group, entry.singleton_per.rank)
            except ScopeError as error:
                self.add("RB903", str(error), self.document.value(*at, "singleton_per", "group"))
        elif entry.owner is not None:
            owner = Gate(entry.owner)
        if entry.path and entry.scope is None and self._several_hosts():
            self.add(
                "RB903",
                f"resource {name} has a path and the job has several hosts: say how far the path reaches",
                self.document.key(*at, "path"),
                'scope = "host" for a local disk, scope = "shared" for a shared file system',
            )
        if entry.scope and not (entry.path or entry.name):
            self.add(
                "RB903",
                f"resource {name} says how far it reaches, and has neither a path nor a name",
                self.document.key(*at, "scope"),
                "a port always belongs to its host: take scope away",
            )
        return Resource(
            name,
            owner,
            tuple(self._addresses(at, entry)),
            tuple(self._consumers(at, entry)),
            None if entry.once_per is None else tuple(entry.once_per),
            entry.same_owner_as,
            entry.shared,
            entry.ipv6,
            entry.v6only,
            entry.process,
            entry.authenticated,
        )

    def _several_hosts(self) -> bool:
        hosts = self.file.hosts
        return (hosts.count or 1) > 1 or len(hosts.blocks or ()) > 1 or len(hosts.ranks or ()) > 1

    def _addresses(self, at: KeyPath, entry: _Resource) -> Iterator[Address]:
        kinds: Mapping[str, Kind] = {
            "bind": "endpoint",
            "replay": "endpoint",
            "name": "name",
            "path": "path",
            "device": "device",
            "probe": "endpoint",
        }
        for role, kind in kinds.items():
            texts: list[str] = getattr(entry, role) or []
            for index, text in enumerate(texts):
                path = self._item(at, role, index)
                if text in texts[:index]:
                    self.add("RB903", f"{role} says {text!r} twice", self.document.value(*path))
                template = self._template(path, text, endpoint=kind == "endpoint")
                if template is not None:
                    default: Literal["host", "shared"] = "shared" if kind == "name" else "host"
                    on_host = kind in ("endpoint", "device")
                    yield Address(role, template, kind, "host" if on_host else entry.scope or default)

    def _consumers(self, at: KeyPath, entry: _Resource) -> Iterator[Consumer]:
        for index, consumer in enumerate(entry.connect):
            path = self._item(at, "connect", index)
            path = path if isinstance(self.document.at(path), str) else (*path, "to")
            template = self._template(path, consumer.to, endpoint=True)
            axes = None if consumer.axes is None else self.axes((*path[:-1], "axes"), consumer.axes)
            if template is not None:
                yield Consumer(template, consumer.role, axes, Gate(consumer.owner), consumer.by)

    def _item(self, at: KeyPath, key: str, index: int) -> KeyPath:
        return (*at, key, index) if isinstance(self.document.at((*at, key)), list) else (*at, key)

    def _template(self, path: KeyPath, text: str, *, endpoint: bool) -> Template | None:
        try:
            template = Template(text)
        except TemplateError as error:
            self.add("RB904", str(error), self.document.inside(path, error.column, error.width))
            return None
        odd = next((at for at, char in enumerate(text) if not char.isprintable()), None)
        if odd is not None:
            self.add("RB904", f"{text[odd]!r} cannot be seen, and is not taken", self.document.inside(path, odd, 1))
            return None
        if endpoint:
            # Its shape shows with any number in a brace, as wide as the brace to keep the columns; whether a range that
            # depends on the rank rises is for the checks.
            shape = _BRACES.sub(lambda found: found[0] if found[0] in ("{{", "}}") else "1".zfill(len(found[0])), text)
            try:
                Endpoint.parse(shape)
            except EndpointError as error:
                end = error.column + error.width
                if not template.names or "-" not in shape[error.column : end]:
                    message = str(error).replace(shape, text)
                    message = message.replace(shape[error.column : end], text[error.column : end])
                    self.add("RB904", message, self.document.inside(path, error.column, error.width))
                    return None
        return template


_SHAPES: Mapping[str, str] = {
    "model_type": "keys and values",
    "dict_type": "keys and values",
    "list_type": "a list",
    "int_type": "an integer",
    "string_type": "text",
    "bool_type": "true or false",
}
"""What pydantic wants, by the type of its error, in words of the file."""


def explain(
    document: Document, detail: ErrorDetails, known: Callable[[KeyPath], Iterable[str]], table: KeyPath = ()
) -> Finding:
    """A pydantic error in our words, at its place in the file.

    Args:
        known: the keys that may stand at a place, counted from `table`.
        table: where in the file stands what the model is of; empty for all of it.
    """
    path = table
    for step in detail["loc"]:
        # pydantic also names an element of what is a list only to us; that is not in the file.
        if isinstance(step, int | str) and _has(document.at(path), step):
            path = (*path, step)
    where = ".".join(str(step) for step in path[len(table) :]) or ".".join(map(str, table)) or "the file"
    name = str(detail["loc"][-1]) if detail["loc"] else ""
    kind = detail["type"]
    if kind == "extra_forbidden":
        near = _meant(name, list(known(path[len(table) : -1])))
        return Finding("RB902", f"unknown key {name!r}", labels=(Label(document.key(*path)),), fix=near)
    if kind == "missing":
        return Finding("RB903", f"{where} needs {name!r}", labels=(Label(document.key(*path)),))
    if kind == "value_error":
        message = detail["msg"].removeprefix("Value error, ")
    elif kind == "too_short":
        message = "should have at least one element"
    else:
        wanted = _SHAPES.get(kind) or detail["msg"].removeprefix("Input should be ")
        message = f"should be {wanted}, not {_shown(document.at(path))}"
    return Finding("RB903", f"{where} {message}", labels=(Label(document.value(*path)),))


def _shown(value: object) -> str:
    """A value of a file, short."""
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 40 else f"{value[:40]}...", ensure_ascii=False)
    return str(value)


def _has(container: object, step: int | str) -> bool:
    if isinstance(container, list):
        return isinstance(step, int) and step < len(container)
    return isinstance(container, dict) and step in container


def _known(path: KeyPath) -> Iterator[str]:
    return (field.alias or key for key, field in _model_at(path).model_fields.items())


def _model_at(path: KeyPath) -> type[_Model]:
    for steps, model in _MODELS.items():
        if len(steps) == len(path) and all(a in ("*", b) for a, b in zip(steps, path, strict=True)):
            return model
    # A single consumer written without a list.
    return _Consumer if path[-1:] == ("connect",) else _File


def _meant(name: str, known: Any) -> str:
    near = nearest(name, known)
    return f"did you mean {near}?" if near else f"known are {few(list(known), 20) or 'none'}"
