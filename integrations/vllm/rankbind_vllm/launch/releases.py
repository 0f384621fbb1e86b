"""What differs between releases, one row a fact, with the first release that has it.

Each row was looked up in the sources of all 35 releases from 0.11.0 to 0.33.0, patch releases included; none is
interpolated. The engine's functions were run, for the tables that the tests hold the reader to, with 0.11.0 and 0.33.0
alone: of the releases between, what the rows say is all that is known to differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SINCE: Mapping[str, str] = {
    # One NIXL listener for each engine core, where each worker had one.
    "nixl per engine": "0.11.1",
    # A publisher that is not named is zmq where events are enabled; none is opened where they are not.
    "publisher by default": "0.11.1",
    "pcp": "0.12.0",
    # The image runs `vllm serve`, where it ran the module of the API server.
    "image serves": "0.12.0",
    "mooncake": "0.13.0",
    # Dense replicas are worlds of their own, and only data_parallel_index counts them; no EP group either. The
    # coordinator runs where it is needed, VLLM_DP_SIZE refuses dense models.
    "independent dense replicas": "0.14.0",
    "moriio": "0.14.0",
    # As many API servers as replicas.
    "api servers by default": "0.15.0",
    "mappings in a config file": "0.16.0",
    # Mooncake's workers register with one server, where each worker had a port.
    "mooncake bootstrap": "0.16.0",
    "external lb needs moe": "0.21.0",
    # --data-parallel-multi-port-external-lb, and that two modes exclude each other.
    "one balancing mode": "0.22.0",
    # Of the workers with tp 0 and pp 0, where it was the first worker of a node.
    "mooncake bootstrap by tp and pp": "0.24.0",
    "p2p tier": "0.25.0",
    "p2p and ec by environment": "0.26.0",
    # Dense replicas keep the nodes that they take; before, each took all of them.
    "dense replicas keep their nodes": "0.28.0",
    "start rank 0 counts": "0.28.0",
    # Workers of one engine on one node meet through a file.
    "file store": "0.28.0",
    "false in a config file": "0.28.0",
    "moriio folds dp": "0.28.0",
    "ec mooncake": "0.30.0",
    # GET /kv_event_sources; tcp://*:0 keeps its port 0 and binds the node's own address.
    "sources advertised": "0.31.0",
    # A store of rank 0 hands out the ports that replicas meet at, which are tried and let go before that.
    "coordination store": "0.32.0",
    "bootstrap_server_address": "0.32.0",
}


@dataclass(frozen=True)
class Release:
    """A release of vLLM and what it does."""

    text: str

    @property
    def title(self) -> str:
        """As people write it."""
        return f"vLLM {self.text}"

    def has(self, fact: str) -> bool:
        """Whether it does what a row of `_SINCE` says."""
        return _number(self.text) >= _number(_SINCE[fact])


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3])
