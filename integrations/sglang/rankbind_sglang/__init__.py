"""rankbind for SGLang: one declaration of who owns the KV events, obeyed at the three sites that have to agree.

The map of this package:

    launch     SGLang's launch commands, read as if they were topology files: a package of its own
    releases   which release keeps which site where: a table of facts
    position   who am I, and what follows from that: the declaration, and rankbind's answers to it
    sockets    which addresses a publisher binds: SGLang is asked
    claims     the owner's claim on them, before the model is loaded
    mirror     what the cache holds, to be told again
    watch      the publisher started again when it fails
    hooks      all of it applied through SGLang's HookRegistry
    taken      which addresses of a launch are taken on this host already
    preflight  the launch checked before anything is started

SGLang calls `install` in each of its processes, by the entry point ``sglang.srt.plugins``. What a process does not need
it does not import.
"""

from __future__ import annotations

import logging
import os
import sys
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankbind_sglang.hooks import SITES, register
    from rankbind_sglang.position import KV_EVENTS

__version__ = "0.1.0"

__all__ = ["KV_EVENTS", "PREFLIGHT", "SITES", "SWITCH", "__version__", "install", "register"]

SWITCH = "RANKBIND_SGLANG"
"""The environment variable that turns the plugin off: ``off`` or ``on`` (the default)."""

PREFLIGHT = "RANKBIND_PREFLIGHT"
"""The environment variable for the check of the launch: ``off``, ``warn`` (the default) or ``error``."""

_SCHEDULER = "sglang.srt.managers.scheduler"

_log = logging.getLogger(__name__)


def install() -> None:
    """Check the launch, in the process that is about to start it; put the declaration in force, in a scheduler's.

    Imports no engine module, and raises nothing but SystemExit: where the check was told to stop a launch.

    SGLang loads its plugins in the launcher, before its arguments are parsed, in the schedulers and, from 0.5.22, in
    the detokenizer. The sites are in schedulers alone: in processes that have imported the scheduler.
    """
    if parent_process() is None and os.environ.get(PREFLIGHT) != "off":
        from rankbind_sglang import preflight

        preflight.run(os.environ.get(PREFLIGHT, "warn"))
    switch = os.environ.get(SWITCH, "on")
    if switch == "off":
        _log.info("rankbind-sglang is switched off by %s=off", SWITCH)
        return
    if switch != "on":
        _log.warning("rankbind-sglang: %s=%s means nothing; it is off or on, and stays on", SWITCH, switch)
    if _SCHEDULER not in sys.modules:
        return
    try:
        from rankbind_sglang.hooks import register

        register()
    except Exception as error:
        _log.warning("rankbind-sglang leaves the engine alone: %s: %s", type(error).__name__, error)


def __getattr__(name: str) -> Any:
    if name in ("SITES", "register"):
        from rankbind_sglang import hooks

        return getattr(hooks, name)
    if name == "KV_EVENTS":
        from rankbind_sglang import position

        return position.KV_EVENTS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
