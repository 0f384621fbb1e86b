"""rankbind for vLLM: one declaration of who owns the KV events, applied to the publishers of its engine cores.

The map of this package:

    releases   what the hooks rely on, and where it is
    position   which engine core am I, and what follows from that: the declaration, and rankbind's answers to it
    sockets    which addresses a publisher binds: vLLM is asked
    claims     the owner's claim on them, before the model is loaded
    hooks      all of it applied to an engine core

    launch     a package of its own: what vLLM's launch commands say, for ``rankbind check``

vLLM calls `install` in each of its processes, by the entry point ``vllm.general_plugins``.
"""

from __future__ import annotations

import logging
import os

from rankbind_vllm.hooks import when_there_are_engine_cores
from rankbind_vllm.position import KV_EVENTS

__version__ = "0.1.0"

__all__ = ["KV_EVENTS", "SWITCH", "__version__", "install"]

SWITCH = "RANKBIND_VLLM"
"""The environment variable that turns the plugin off: ``off`` or ``on`` (the default)."""

_log = logging.getLogger("vllm.rankbind")


def install() -> None:
    """Put the declaration in force for the engine cores of this process. Never raises, imports no engine module.

    vLLM also loads its plugins in API servers and in workers, which have no publishers, and sometimes before it has
    imported the engine core: then it is done as soon as it has. Calling it again does nothing.
    """
    try:
        switch = os.environ.get(SWITCH, "on")
        if switch == "off":
            _log.info("rankbind-vllm is switched off by %s=off", SWITCH)
            return
        if switch != "on":
            _log.warning("rankbind-vllm: %s=%s means nothing; it is off or on, and stays on", SWITCH, switch)
        when_there_are_engine_cores()
    except Exception as error:
        _log.warning("rankbind-vllm leaves the engine alone: %s: %s", type(error).__name__, error)
