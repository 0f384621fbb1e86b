"""The owner's claim on its KV events and their addresses, made before the model is loaded.

Two engine cores with one KV port otherwise find out when the second has loaded its weights; with one ``ipc://`` path
never: the second silently takes it over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rankbind_vllm.position import Position

if TYPE_CHECKING:
    from rankbind.runtime.claim import Claim

SWITCH = "RANKBIND_VLLM_CLAIMS"
"""The environment variable that turns the claims off: ``off`` or ``on`` (the default)."""

RESOURCE = "kv-events"

_log = logging.getLogger("vllm.rankbind")


def switched_on() -> bool:
    """Whether claims are to be made."""
    switch = os.environ.get(SWITCH, "on")
    if switch not in ("on", "off"):
        _log.warning("rankbind-vllm: %s=%s means nothing; it is off or on, and stays on", SWITCH, switch)
    return switch != "off"


def take(at: Position, addresses: Mapping[str, str], first: Mapping[str, str]) -> Claim:
    """Hold the KV events of a replica, and the addresses that its publisher will bind.

    Args:
        addresses: those, by role.
        first: those of replica 0 of the same launch.

    Raises:
        ClaimedError: another process holds one of them.
        ClaimError: the runtime directory cannot be used.
    """
    from rankbind.runtime.claim import claim_as

    return claim_as(
        name_of(first),
        RESOURCE,
        group=at.group,
        endpoints=addresses,
        rank=at.rank,
        coordinates=at.coordinates,
        declared="--kv-events-config",
    )


def name_of(addresses: Mapping[str, str]) -> str:
    """What a server is called that nobody gave a name: the same each time it is started, and in all its replicas.

    An engine core does not know the port of the API that it serves.

    Args:
        addresses: that its first replica binds.
    """
    port = addresses.get("bind", "").rpartition(":")[2]
    # Nothing that another server could not do as well: there is nothing to hold, and only its process tells it apart.
    where = port if port not in ("", "*", "0") else f"pid{os.getpid()}"
    return f"vllm-{where.strip('/').replace('/', '_')}"
