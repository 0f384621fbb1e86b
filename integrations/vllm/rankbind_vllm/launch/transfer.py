"""Side channels of the connectors that move KV and encoder caches between engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rankbind.finding import Level
from rankbind.launch.command import Word
from rankbind_vllm.launch.arguments import Arguments, Port
from rankbind_vllm.launch.layout import Node
from rankbind_vllm.launch.statement import Said, Statement, at_home, tcp

_NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
_TERMS = "its port has no term for pp: stages of one host would share it"
_MOVED = {"RB201": "VLLM_NIXL_SIDE_CHANNEL_PORT: a base out of the way of the others"}
_APART = {"RB201": "run the stages, or the replicas, that share a port on hosts of their own"}


def state(at: Statement) -> None:
    """The sockets of every connector that some node has."""
    for part in (_nixl, _mooncake, _moriio, _p2p_nccl, _p2p_tier, _encoder):
        part(at)


def connectors(arguments: Arguments) -> Iterator[Mapping[str, Any]]:
    """The configuration of each KV connector, those in a MultiConnector too."""
    config = arguments.mapping("kv_transfer_config")
    if config is None:
        return
    yield config
    inner = _extra(config).get("connectors")
    for entry in inner if isinstance(inner, list) else ():
        if isinstance(entry, Mapping):
            yield entry


def _named(node: Node, *names: str) -> Mapping[str, Any] | None:
    found = (config for config in connectors(node.arguments) if config.get("kv_connector") in names)
    return next(found, None)


def _extra(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("kv_connector_extra_config")
    return found if isinstance(found, Mapping) else {}


def _side_channel(arguments: Arguments, what: str, default: int) -> tuple[str, Port, tuple[Word, ...]]:
    """Host and port of a side channel, as its variables give them, and their words."""
    host, port = (f"VLLM_{what}_SIDE_CHANNEL_{part}" for part in ("HOST", "PORT"))
    found = arguments.port_variable(port, default)
    return arguments.address_variable(host, "localhost"), found, arguments.set(host, port)


def _every(node: Node) -> tuple[int, ...]:
    return node.ranks


def _nixl(at: Statement) -> None:
    per_engine = at.release.has("nixl per engine")

    def channel(node: Node) -> Said | None:
        if _named(node, *_NIXL) is None:
            return None
        host, port, words = _side_channel(node.arguments, "NIXL", 5600)
        about = "NIXL side channel: ROUTER" + ("" if per_engine else f"; {_TERMS}")
        keys = tcp(host, port.plus("dp" if per_engine else "dp * tp_size + tp"))
        keys |= {"process": "engine core" if per_engine else "worker", "about": about}
        keys |= {"remedies": _MOVED if per_engine else _APART}
        return Said(keys, (*node.arguments.words("kv_transfer_config"), *words), port)

    if per_engine:
        at.spread("nixl", channel, at.engine_ranks, at.engine)
    else:
        at.spread("nixl", channel, _every, {})
    asking = [node for node in at.deployment.nodes if _named(node, *_NIXL) is not None]
    if asking and not asking[0].arguments.set("VLLM_NIXL_SIDE_CHANNEL_HOST"):
        at.draft.find(
            "RB215",
            "peers are told to reach NIXL at localhost: on another host they reach themselves",
            *asking[0].arguments.words("kv_transfer_config")[:2],
            level=Level.NOTE,
            fix="VLLM_NIXL_SIDE_CHANNEL_HOST: an address of this host",
        )


def _mooncake(at: Statement) -> None:
    def base(node: Node) -> Port:
        return node.arguments.port_variable("VLLM_MOONCAKE_BOOTSTRAP_PORT", 8998)

    def words(node: Node) -> tuple[Any, ...]:
        arguments = node.arguments
        return (*arguments.words("kv_transfer_config"), *arguments.set("VLLM_MOONCAKE_BOOTSTRAP_PORT"))

    def produces(node: Node) -> Mapping[str, Any] | None:
        config = _named(node, "MooncakeConnector")
        return None if config is None or config.get("kv_role") == "kv_consumer" else config

    def channel(node: Node) -> Said | None:
        if produces(node) is None:
            return None
        about = f"Mooncake side channel; {_TERMS}"
        keys = at_home(node, base(node).plus("dp * tp_size + tp"))
        return Said({**keys, "process": "worker", "about": about}, words(node), base(node))

    def bootstrap(node: Node) -> Said | None:
        config = produces(node)
        if config is None or (
            at.release.has("bootstrap_server_address") and _extra(config).get("bootstrap_server_address")
        ):
            return None
        address = "127.0.0.1" if node.local_only else node.master if node.spans > 1 else node.address
        dial = tcp(address, base(node))["bind"]
        gate = {"rank": list(node.ranks)} if node.local_only else {}
        connect = (
            [{"to": dial, "owner": gate, "by": "workers that register"}]
            if at.meets(address) or node.local_only
            else None
        )
        about = "Mooncake bootstrap: HTTP; of " + (
            "the workers with tp 0 and pp 0, whatever their pcp" if by_tp_and_pp else "the first worker of the node"
        )
        keys = {**tcp("0.0.0.0", base(node)), "process": "worker", "about": about}
        return Said({**keys, "connect": connect if not node.local_only else None}, words(node), base(node))

    by_tp_and_pp = at.release.has("mooncake bootstrap by tp and pp")

    def launches(node: Node) -> Sequence[int]:
        """Those that start it in the first engine of a node, or of the job where that serves all."""
        if not node.local_only and node.start > 0:
            return []
        if not by_tp_and_pp:
            return at.engine_ranks(node) if node.multi_port else node.ranks[:1]
        if node.part:
            return []
        first = node.start * at.sizes.world
        here = set(node.ranks)
        indices = node.engines if node.multi_port else (node.start,)
        return [
            index * at.sizes.world + pcp * at.sizes.tp
            for index in indices
            for pcp in range(at.sizes.pcp)
            if first in here and index * at.sizes.world + pcp * at.sizes.tp in here
        ]

    def sender(node: Node) -> Said | None:
        if produces(node) is None:
            return None
        about = "Mooncake sender: a port that the kernel picks"
        return Said({**at_home(node, 0), "process": "worker", "about": about}, words(node))

    if at.release.has("mooncake bootstrap"):
        at.spread("mooncake-bootstrap", bootstrap, launches)
        at.spread("mooncake-sender", sender, _every, {})
    elif at.release.has("mooncake"):
        at.spread("mooncake", channel, _every, {})


def _moriio(at: Statement) -> None:
    def socket(which: str, default: int, node: Node) -> Said | None:
        config = _named(node, "MoRIIOConnector")
        if config is None:
            return None
        port = node.arguments.port_key("kv_transfer_config", _extra(config), which, default)
        # Of a dense model every replica counts itself as 0.
        dp = "" if node.independent else f"dp % {node.local} + " if at.release.has("moriio folds dp") else "dp + "
        about = f"MoRI-IO: replica and tp are added up, so that (0, 1) and (1, 0) share a port; {_TERMS}"
        keys = {**tcp(None, port.plus(f"{dp}tp")), "process": "worker", "about": about, "remedies": _APART}
        return Said(keys, node.arguments.words("kv_transfer_config"), port)

    if at.release.has("moriio"):
        for name, which, default in (
            ("moriio-handshake", "handshake_port", 6301),
            ("moriio-notify", "notify_port", 61005),
        ):
            at.spread(name, partial(socket, which, default), _every, {})


def _p2p_nccl(at: Statement) -> None:
    def channel(node: Node) -> Said | None:
        config = _named(node, "P2pNcclConnector")
        if config is None:
            return None
        port = node.arguments.port_key("kv_transfer_config", config, "kv_port", 14579)
        about = "P2P-NCCL: kv_port and the rank of the worker"
        keys = {**at_home(node, port.plus("rank")), "process": "worker", "about": about}
        return Said(keys, node.arguments.words("kv_transfer_config"), port)

    at.spread("p2p-nccl", channel, _every, {})


def _p2p_tier(at: Statement) -> None:
    def channel(node: Node) -> Said | None:
        tiers = (
            tier
            for config in connectors(node.arguments)
            for tier in _extra(config).get("secondary_tiers") or ()
            if isinstance(tier, Mapping) and tier.get("type") == "p2p"
        )
        tier = next(tiers, None)
        if tier is None:
            return None
        host, words = "localhost", node.arguments.words("kv_transfer_config")
        port = node.arguments.port_key("kv_transfer_config", tier, "port", 5710)
        if at.release.has("p2p and ec by environment"):
            host, variable, more = _side_channel(node.arguments, "P2P", 5710)
            words, port = words + more, port if port.words else variable
        keys = tcp(str(tier.get("host") or host), port.plus("dp"))
        about = "control socket of the peer-to-peer tier of the KV cache"
        return Said({**keys, "process": "engine core", "about": about}, words, port)

    if at.release.has("p2p tier"):
        at.spread("p2p-tier", channel, at.engine_ranks, at.engine)


def _encoder(at: Statement) -> None:
    def producer(node: Node, name: str) -> Mapping[str, Any] | None:
        config = node.arguments.mapping("ec_transfer_config")
        if config is None or config.get("ec_connector") != name or config.get("ec_role") == "ec_consumer":
            return None
        return config

    def cpu(node: Node) -> Said | None:
        if producer(node, "ECCPUConnector") is None:
            return None
        host, port, words = _side_channel(node.arguments, "EC", 5601)
        about = "side channel of the encoder cache: one port, whichever the replica"
        keys = {**tcp(host, port), "process": "engine core", "about": about}
        return Said(keys, (*node.arguments.words("ec_transfer_config"), *words), port)

    def mooncake(node: Node) -> Said | None:
        config = producer(node, "ECMooncakeConnector")
        if config is None:
            return None
        port = node.arguments.port_key("ec_transfer_config", config, "ec_port", 14579)
        keys = tcp(str(config.get("ec_ip", "127.0.0.1")), port.plus("dp * tp_size + tp"))
        about = "control socket of the encoder cache"
        return Said({**keys, "process": "worker", "about": about}, node.arguments.words("ec_transfer_config"), port)

    if at.release.has("p2p and ec by environment"):
        at.spread("ec", cpu, at.engine_ranks, at.engine)
    if at.release.has("ec mooncake"):
        at.spread("ec-mooncake", mooncake, _every, {})
