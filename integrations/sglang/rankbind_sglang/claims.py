"""The owner's claim on its KV events and their addresses, made before the model is loaded.

Two servers with one KV port otherwise find out when the second has loaded its weights; with one ``ipc://`` path never:
the second silently takes it over.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from rankbind_sglang.position import Position
from rankbind_sglang.sockets import would_bind

if TYPE_CHECKING:
    from rankbind.runtime.claim import Claim

SWITCH = "RANKBIND_SGLANG_CLAIMS"
"""The environment variable that turns the claims off: ``off`` or ``on`` (the default)."""

RESOURCE = "kv-events"

_log = logging.getLogger("rankbind_sglang")


def switched_on() -> bool:
    """Whether claims are to be made."""
    switch = os.environ.get(SWITCH, "on")
    if switch not in ("on", "off"):
        _log.warning("rankbind-sglang: %s=%s means nothing; it is off or on, and stays on", SWITCH, switch)
    return switch != "off"


def take(server_args: Any, config: str, at: Position) -> Claim | None:
    """Hold the KV events of a cache and the addresses that its publisher will bind; None where it has no publisher.

    Raises:
        ClaimedError: another process holds one of them.
        ClaimError: the runtime directory cannot be used.
        ValueError, AttributeError: as `would_bind`.
    """
    addresses = would_bind(config, at.index)
    if addresses is None:
        return None
    from rankbind.runtime.claim import claim_as

    return claim_as(
        name_of(server_args, config, would_bind(config, 0) or {}),
        RESOURCE,
        group=at.group,
        endpoints=addresses,
        rank=at.rank,
        coordinates=at.coordinates,
        declared="--kv-events-config",
    )


def name_of(server_args: Any, config: str, addresses: dict[str, str]) -> str:
    """What a server is called that nobody gave a name: the same each time it is started, another for another server.

    Neither port alone will do. Two servers may publish to one collector, and an engine without an HTTP server has a
    ``--port`` all the same, the same in each.

    Args:
        addresses: that its first cache binds.
    """
    port = addresses.get("bind", "").rpartition(":")[2]
    # Nothing that another server could not do as well: there is nothing to hold, and only its process tells it apart.
    where = port if port not in ("", "*", "0") else f"pid{os.getpid()}"
    return f"sglang-{server_args.port}-{where.strip('/').replace('/', '_')}"
