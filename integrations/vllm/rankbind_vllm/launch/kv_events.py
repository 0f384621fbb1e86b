"""The publisher of KV cache events: what it makes of its endpoints, and what is told to routers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from rankbind.endpoint import MAX_PORT, Endpoint
from rankbind.errors import EndpointError
from rankbind.finding import Level
from rankbind_vllm.launch.arguments import Arguments, Port
from rankbind_vllm.launch.layout import LOOPBACK, Node
from rankbind_vllm.launch.releases import Release
from rankbind_vllm.launch.statement import Statement, listed, tcp

_FLAG = "--kv-events-config"
_ANYWHERE = "tcp://*:0"


@dataclass(frozen=True)
class Events:
    """The configuration of one node, resolved.

    Attributes:
        records: whether events are recorded at all.
        publishes: whether a socket is opened.
        address: that of the node, where it is known and an endpoint takes it: ``tcp://*:0``.
    """

    records: bool
    publishes: bool
    endpoint: str
    replay: str | None
    address: str | None = None


@dataclass(frozen=True)
class Placed:
    """What an endpoint becomes for the replicas `dp` (None: all of them).

    Attributes:
        template: over `dp`; None where the engine raises, which `problem` says.
    """

    template: str | None
    dp: tuple[int, ...] | None = None
    problem: str = ""


def events(arguments: Arguments) -> Events | None:
    """What a command says about KV events; None: nothing. What the engine refuses is among its remarks."""
    config = arguments.mapping("kv_events_config")
    if config is None:
        return None
    words, release = arguments.words("kv_events_config"), arguments.release
    enabled = bool(config.get("enable_kv_cache_events", False))
    publisher = config.get("publisher")
    by_default = release.has("publisher by default")
    if publisher is None:
        publisher = "zmq" if enabled and by_default else "null"
        if enabled and not by_default:
            arguments.remark(
                "RB607",
                "KV events are recorded and nobody publishes them: this release takes no publisher by itself",
                *words,
                level=Level.WARNING,
                fix=f'"publisher": "zmq" in {_FLAG}',
            )
    elif publisher not in ("zmq", "null"):
        arguments.refuse("RB605", f"{_FLAG}: publisher is zmq or null, not {publisher!r}", *words)
    publishes = publisher == "zmq" and (enabled or not by_default)
    if publishes and not enabled:
        arguments.remark(
            "RB607",
            "the publisher of KV events opens its socket, although events are not enabled: nothing is ever sent",
            *words,
            level=Level.NOTE,
        )
    endpoint, replay = str(config.get("endpoint", "tcp://*:5557")), config.get("replay_endpoint")
    address = None
    if _ANYWHERE in (endpoint, replay) and release.has("sources advertised"):
        address = arguments.address_variable("VLLM_HOST_IP", "") or None
    return Events(enabled, publishes, endpoint, replay, address)


def binds(endpoint: str) -> bool:
    """Whether the publisher binds, as it tells by the spelling; it connects otherwise."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def placed(endpoint: str, release: Release, replicas: int) -> Iterator[Placed]:
    """What ZmqEventPublisher.offset_endpoint_port makes of an endpoint, replica by replica.

    Replica 0 takes it as it is written; of the others some have no value.
    """
    text = endpoint.replace("{", "{{").replace("}", "}}")
    first, others = (0,), tuple(range(1, replicas))
    if "inproc" in endpoint:
        yield _known(text, endpoint, first)
        if others:
            yield _known(f"{text}_dp{{dp}}", endpoint, others)
        return
    head, colon, port = text.rpartition(":")
    if "tcp" in endpoint and not colon:
        yield _known(text, endpoint, None)
    elif "tcp" in endpoint and port.isdecimal():
        kept = int(port) == 0 and release.has("sources advertised")
        yield _known(text if kept else f"{head}:{{{int(port)} + dp}}", endpoint, None)
    else:
        yield _known(text, endpoint, first)
        if others:
            what = f"{port!r} is no port" if "tcp" in endpoint else "it is neither tcp nor inproc"
            yield Placed(None, others, f"replicas from 1 on cannot make an endpoint of {endpoint}: {what}")


def _known(template: str, endpoint: str, dp: tuple[int, ...] | None) -> Placed:
    """`template`, if it is an endpoint that libzmq knows."""
    if not endpoint.isprintable():
        return Placed(None, dp, f"{endpoint!r} has characters that cannot be seen")
    try:
        Endpoint.parse(endpoint)
    except EndpointError as error:
        return Placed(None, dp, str(error))
    return Placed(template, dp)


def reaches_nobody(endpoint: str, own: set[str]) -> bool:
    """Whether it is the publisher itself that whoever wrote `endpoint` to connect to took for the one who listens.

    Args:
        own: addresses of the hosts of the job.
    """
    host = _host(endpoint)
    return host in own or _is(host, "is_unspecified")


def is_loopback(endpoint: str) -> bool:
    """Whether what it connects to is on its own host."""
    host = _host(endpoint)
    return host == "localhost" or _is(host, "is_loopback")


def _host(endpoint: str) -> str:
    try:
        return Endpoint.parse(endpoint).host
    except EndpointError:
        return ""


def _is(host: str, what: str) -> bool:
    try:
        found: Any = getattr(ip_address(host), what)
    except ValueError:
        return False
    return bool(found)


def state(at: Statement) -> None:
    """The publishers, and what they publish."""
    configured = [(node, events(node.arguments)) for node in at.deployment.nodes if at.engine_ranks(node)]
    groups: dict[Events, list[Node]] = {}
    recording: list[int] = []
    for node, found in configured:
        if found is not None and found.publishes:
            groups.setdefault(found, []).append(node)
        if found is not None and found.records:
            recording += at.engine_ranks(node)
    for number, (found, nodes) in enumerate(groups.items()):
        name = "kv-events" if number == 0 else f"kv-events-{number + 1}"
        _Publisher(at, name, found, nodes, alone=len(groups) == 1).state()
    if recording and groups:
        at.draft.resource(
            "kv-recording",
            *at.deployment.words("kv_events_config"),
            owner=at.engine if len(recording) == at.sizes.dp else {"rank": listed(recording)},
            process="engine core",
            about="blocks that are stored and removed: enable_kv_cache_events",
        )


class _Publisher:
    """The publishers of the nodes that give them the same endpoints."""

    def __init__(self, at: Statement, name: str, events: Events, nodes: Sequence[Node], *, alone: bool) -> None:
        self.at, self.name, self.nodes, self.alone = at, name, nodes, alone
        self.endpoint, self.replay, self.address = events.endpoint, events.replay, events.address
        self.ranks = [rank for node in nodes for rank in at.engine_ranks(node)]
        self.indices = [rank // at.sizes.world for rank in self.ranks]
        self.words = tuple(word for node in nodes for word in node.arguments.words("kv_events_config"))
        self.binds = binds(self.endpoint)

    def state(self) -> None:
        at = self.at
        if not self.endpoint:
            at.draft.find(
                "RB607",
                "the endpoint of the KV events is empty: they are published nowhere",
                *self.words,
                level=Level.WARNING,
            )
        publish = self.places(self.endpoint)
        replay = self.places(self.replay)
        whole = all(place.dp is None for place in (*publish, *replay))
        for number, chosen in enumerate([None] if whole else [(0,), tuple(range(1, at.sizes.dp))]):
            if chosen is not None and not set(chosen) & set(self.indices):
                continue
            name = self.name if number == 0 else f"{self.name}-others"
            here = [
                next((p.template for p in places if p.dp is None or p.dp == chosen), None)
                for places in (publish, replay)
            ]
            self.resource(name, chosen, here[0] if self.binds else None, here[1], here[0])
            self.moves(name, "bind" if self.binds else None, "endpoint", self.endpoint)
            self.moves(name, "replay", "replay_endpoint", self.replay)

    def places(self, endpoint: str | None) -> list[Placed]:
        """What becomes of an endpoint; where the engine raises is said, and left out."""
        if not endpoint:
            return []
        found = list(placed(endpoint, self.at.release, self.at.sizes.dp))
        for place in found:
            if place.template is None and (place.dp is None or set(place.dp) & set(self.indices)):
                fix = "write tcp://*:PORT: replicas add their index to the port"
                self.at.draft.refuse("RB606", f"KV events: {place.problem}", *self.words[:2], fix=fix)
        if endpoint == _ANYWHERE and self.address:
            return [Placed(tcp(self.address, 0)["bind"])]
        return [place for place in found if place.template is not None]

    def resource(
        self, name: str, chosen: Sequence[int] | None, bind: str | None, replay: str | None, endpoint: str | None
    ) -> None:
        at = self.at
        if endpoint is None and replay is None:
            return
        owner: dict[str, Any] = {"rank": listed(self.ranks)}
        if len(self.ranks) == at.sizes.dp:
            owner = ({} if chosen is None else {"dp": listed(chosen)}) | at.engine
        elif chosen is not None:
            owner = {
                "rank": listed(rank for rank, index in zip(self.ranks, self.indices, strict=True) if index in chosen)
            }
        connect = self.advertised(bind, replay) if bind else self.connected(endpoint, owner)
        at.draft.resource(
            name,
            *self.words,
            owner=owner,
            once_per=["dp"] if chosen is None and self.alone else None,
            bind=bind,
            replay=replay,
            authenticated=False if any("tcp:" in each for each in (bind, replay) if each) else None,
            connect=connect or None,
            process="engine core",
            about="KV cache events: PUB"
            + (", ROUTER for replays" if replay else "")
            + ("" if self.binds else f"; connects to {self.endpoint}, because there is neither * nor :: in it"),
            remedies=self.remedies(),
        )

    def moves(self, name: str, role: str | None, key: str, endpoint: str | None) -> None:
        """Note which key of the configuration says the port of an address."""
        number = (endpoint or "").rpartition(":")[2]
        if role is None or not number.isdecimal():
            return
        arguments = self.nodes[0].arguments
        given = key in (arguments.mapping("kv_events_config") or {})
        words = arguments.words("kv_events_config")[-1:] if given else ()
        self.at.moves(Port(f"{_FLAG} {key}", int(number), words), name, role)

    def remedies(self) -> dict[str, str]:
        port = self.endpoint.rpartition(":")[2]
        if not self.binds:
            advice = f"tcp://*:{port}: the publisher binds only what has * or :: in it"
            return {"RB210": advice, "RB211": advice}
        return {
            "RB101": f"{_FLAG}: the same on every node",
            "RB201": "move the port of the endpoint, or of the replay endpoint, by at least the number of replicas",
            "RB203": f"a port below {MAX_PORT - self.at.sizes.dp + 2}: replicas add their index to it",
            "RB209": f"tcp://*:{port}: the publisher's sockets have no IPv6",
            "RB2": "another port in the endpoint",
        }

    def connected(self, endpoint: str | None, owner: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What a publisher that connects dials, where that can only be a mistake."""
        at, head = self.at, self.at.head
        if endpoint is None:
            return []
        own = {host.name for host in at.deployment.hosts} | {
            a for a in (head.address, head.master) if a not in LOOPBACK
        }
        announced = at.release.has("sources advertised")
        if reaches_nobody(self.endpoint, own):
            found: list[dict[str, Any]] = [{"to": endpoint, "owner": dict(owner), "by": "the publisher itself"}]
            if announced:
                found.append(
                    {"to": endpoint, "axes": {"dp": at.sizes.dp}, "by": "a router that reads /kv_event_sources"}
                )
            return found
        near = is_loopback(self.endpoint)
        at.draft.find(
            "RB215",
            f"the publisher of KV events connects to {self.endpoint}: whoever wants them has to listen there"
            + (", and /kv_event_sources announces it as if the engine did" if announced else ""),
            *self.words[:2],
            level=Level.WARNING if near else Level.NOTE,
            fix=f"for subscribers that connect: tcp://*:{self.endpoint.rpartition(':')[2]}",
            resource=self.name,
            mode="connect",
            advertised_as="bind",
        )
        return []

    def advertised(self, bind: str, replay: str | None) -> list[dict[str, Any]]:
        """What a router dials that has read /kv_event_sources."""
        at = self.at
        if not at.release.has("sources advertised") or not bind.startswith("tcp://*:{"):
            return []
        serving = [node for node in self.nodes if not node.headless]
        told = {index for node in serving for index in node.engines}
        far = sorted(set(self.indices) - told)
        if far:
            at.draft.find(
                "RB215",
                f"/kv_event_sources lists replicas {far[0]} to {far[-1]} with * for a host: a router has to know it",
                *self.words[:2],
                level=Level.NOTE,
                fix="tcp://*:0 is announced with the address of the node",
            )
            return []
        found = []
        for node in serving:
            host = at.dialled(at.deployment.host_of(node))
            if host is None:
                return []
            for role, template in (("bind", bind), ("replay", replay)):
                if template is None or not template.startswith("tcp://*:{"):
                    continue
                base = int(template.removeprefix("tcp://*:{").partition(" ")[0]) + node.start
                entry: dict[str, Any] = {
                    "to": f"tcp://{host}:{{{base} + dp}}",
                    "axes": {"dp": len(node.engines)},
                    "by": "a router that reads /kv_event_sources",
                }
                found.append(entry if role == "bind" else entry | {"role": role})
        return found
