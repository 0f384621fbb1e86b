"""rankbind for SGLang: one declaration of who owns the KV events, obeyed at the three sites that have to agree.

The map of this package:

    releases   which release keeps which site where: a table of facts
    position   who am I, and what follows from that: the declaration, and rankbind's answers to it
    sockets    which addresses a publisher binds: SGLang is asked
    claims     the owner's claim on them, before the model is loaded
    mirror     what the cache holds, to be told again
    watch      the publisher started again when it fails
    hooks      all of it applied through SGLang's HookRegistry

SGLang calls `install` in each of its processes, by the entry point ``sglang.srt.plugins``.
"""

from __future__ import annotations

import logging
import os
import sys

from rankbind_sglang.hooks import SITES, register
from rankbind_sglang.position import KV_EVENTS

__version__ = "0.1.0"

__all__ = ["KV_EVENTS", "SITES", "SWITCH", "__version__", "install", "register"]

SWITCH = "RANKBIND_SGLANG"
"""The environment variable that turns the plugin off: ``off`` or ``on`` (the default)."""

_SCHEDULER = "sglang.srt.managers.scheduler"

_log = logging.getLogger(__name__)


def install() -> None:
    """Put the declaration in force in this process, if it is a scheduler's. Never raises, imports no engine module.

    SGLang also loads its plugins in the launcher and, from 0.5.22, in the detokenizer, which have none of the three
    sites: a scheduler's process is one that has imported the scheduler.
    """
    switch = os.environ.get(SWITCH, "on")
    if switch == "off":
        _log.info("rankbind-sglang is switched off by %s=off", SWITCH)
        return
    if switch != "on":
        _log.warning("rankbind-sglang: %s=%s means nothing; it is off or on, and stays on", SWITCH, switch)
    if _SCHEDULER not in sys.modules:
        return
    try:
        register()
    except Exception as error:
        _log.warning("rankbind-sglang leaves the engine alone: %s: %s", type(error).__name__, error)
