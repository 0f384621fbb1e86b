"""What differs from release to release. Read from the released wheels 0.5.9 to 0.5.23, every one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

VERSIONS = tuple(f"0.5.{patch}" for patch in range(9, 24))
"""The releases whose rules are known, oldest first."""

Terms = Mapping[str, int]
"""A gate: the index that each axis must have."""


@dataclass(frozen=True)
class Rules:
    """The rules of one release.

    Attributes:
        release: as people write it.
        kv_gate: who publishes KV events, and records them.
        kv_counts_replicas: whether the publisher's port tells the replicas of pure data parallelism apart.
        kv_metrics: whether the metrics collector works out by itself who publishes.
        kv_any_binds: whether ``0.0.0.0`` in an endpoint is taken for a wildcard, and bound.
        kv_bind_key: whether the configuration can say ``"bind": true``.
        kv_advertised: whether ``/server_info`` tells routers where to subscribe.
        bare_ipv6_advertised: whether it also tells an IPv6 address that stands without brackets.
        replay_advertised: and where to ask for a replay.
        load_events: whether there is a publisher of loads.
        log_gate: who logs, and exports metrics.
        imbalance: whether a ratio over all replicas is reported by "one" scheduler.
        reserved: how many ports the overflow rule keeps free behind the base; None: there is no such rule.
        reserved_with_rust: whether the Rust server's slots are added to them.
        load_collector: whether loads are collected over a port where shared memory does not reach.
        attn_dp_option: whether the width of attention data parallelism has an option of its own.
        rust: whether SGLANG_RUST_SERVER is known.
        rust_offset: ``node``: its ports count the leaders of a node; ``replica``: by the data-parallel rank.
        grpc: ``option``: --grpc-port; ``variable``: SGLANG_ENABLE_GRPC alone; None: there is no native server.
        grpc_followers: whether every node binds the gRPC port.
        forward_pass_metrics: whether they can be published.
        store_unchecked: whether a rendezvous from outside leaves the ports of our own unchecked.
        config_aliases: whether keys of a --config file may be any long spelling.
        config_json: whether tables in it arrive as JSON.
        positional_model: whether ``sglang serve MODEL`` is understood.
    """

    release: str
    kv_gate: Terms
    kv_counts_replicas: bool
    kv_metrics: bool
    kv_any_binds: bool
    kv_bind_key: bool
    kv_advertised: bool
    bare_ipv6_advertised: bool
    replay_advertised: bool
    load_events: bool
    log_gate: Terms
    imbalance: bool
    reserved: int | None
    reserved_with_rust: bool
    load_collector: bool
    attn_dp_option: bool
    rust: bool
    rust_offset: str
    grpc: str | None
    grpc_followers: bool
    forward_pass_metrics: bool
    store_unchecked: bool
    config_aliases: bool
    config_json: bool
    positional_model: bool


RANK_ZERO: Terms = MappingProxyType({"pp": 0, "attn_tp": 0, "attn_cp": 0})
"""Who talks to the tokenizer: the first rank of each KV cache. The same in all releases."""

ATTN_TP_ZERO: Terms = MappingProxyType({"attn_tp": 0})

LAST_STAGE: Terms = MappingProxyType({"pp": -1, "attn_tp": 0})
"""Who publishes forward-pass metrics: cp is not asked for."""

FIRST_GROUP: Terms = MappingProxyType({"attn_dp": 0, "attn_tp": 0, "attn_cp": 0})
"""Who reports what is true of all: neither pp nor the replica is asked for."""

_NO_PP: Terms = MappingProxyType({"attn_tp": 0, "attn_cp": 0})


def number(release: str) -> tuple[int, ...]:
    """``0.5.14`` of ``0.5.14.post1``, as it compares."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", release)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


@lru_cache(maxsize=32)
def rules_of(release: str) -> Rules:
    """The rules that hold for `release`."""
    at = number(release)

    def since(patch: int) -> bool:
        return at >= (0, 5, patch)

    return Rules(
        release=release,
        kv_gate=RANK_ZERO if since(15) else _NO_PP if since(11) else ATTN_TP_ZERO,
        kv_counts_replicas=since(15),
        kv_metrics=since(13),
        kv_any_binds=since(13),
        kv_bind_key=since(22),
        kv_advertised=since(13),
        bare_ipv6_advertised=not since(19),
        replay_advertised=since(22),
        load_events=since(19),
        log_gate=_NO_PP if since(23) else ATTN_TP_ZERO,
        imbalance=since(22),
        reserved=6 if since(17) else 5 if since(13) else None,
        reserved_with_rust=since(17),
        load_collector=since(13),
        attn_dp_option=since(22),
        rust=since(17),
        rust_offset="node" if since(20) else "replica",
        grpc="option" if since(16) else "variable" if since(11) else None,
        grpc_followers=since(22),
        forward_pass_metrics=since(12),
        store_unchecked=since(17),
        config_aliases=since(23),
        config_json=since(14),
        positional_model=since(16),
    )
