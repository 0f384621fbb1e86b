"""A plugin for the tests alone: what happens inside the schedulers of a server, in files of $RANKBIND_E2E.

``<pp rank>``: how many KV events the cache of a scheduler has recorded that publishes none.
``order``, ``answer``: what the publishing scheduler is to do to its publisher, or to say of its cache, as JSON.
``started``, ``loading``, ``failed``: when a scheduler began, was about to load its model, or failed to start.

Its other entry point is rankbind's without the hook of the cache builder, to show what that one is for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import rankbind_inside

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
PUBLISHER = "sglang.srt.managers.scheduler_components.kv_events_publisher.SchedulerKvEventsPublisher.publish_kv_events"
LOOK = 0.01
"""Seconds between two looks for an order."""


def observe() -> None:
    """Look at each point where a scheduler would publish, and at its start."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    kept, told, looked = 0, -1, 0.0

    def publishing(_: Any, publisher: Any) -> None:
        nonlocal kept, told, looked
        if publisher.kv_event_publisher is not None:
            if time.monotonic() > looked + LOOK:
                looked = time.monotonic()
                obey(publisher)
            return
        kept += len(publisher.tree_cache.take_events())
        if kept != told:
            told = kept
            tell(str(pp_rank(publisher)), str(kept))

    def starting(original: Any, *args: Any, **kwargs: Any) -> None:
        tell("started", str(time.monotonic()))
        try:
            original(*args, **kwargs)
        except BaseException:
            tell("failed", str(time.monotonic()))
            raise

    def loading(*_: Any) -> None:
        tell("loading", str(time.monotonic()))

    HookRegistry.register(PUBLISHER, publishing, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.__init__", starting, HookType.AROUND)
    HookRegistry.register(f"{SCHEDULER}.init_model_worker", loading, HookType.BEFORE)


def obey(publisher: Any) -> None:
    """Do what a test has ordered, if it has."""
    file = Path(os.environ["RANKBIND_E2E"], "order")
    if not file.exists():
        return
    order = json.loads(file.read_text())
    file.unlink()
    if order["do"] == "hurt":
        began = time.monotonic()
        rankbind_inside.hurt(publisher.kv_event_publisher, order["how"])
        tell("answer", json.dumps(began))
    else:
        tell("answer", json.dumps(rankbind_inside.cached(publisher.tree_cache, publisher.tree_cache.page_size)))


def tell(name: str, text: str) -> None:
    """Write a file, whole or not at all."""
    file = Path(os.environ["RANKBIND_E2E"], name)
    whole = file.with_name(f"{name}.{os.getpid()}")
    whole.write_text(text)
    whole.replace(file)


def pp_rank(publisher: Any) -> int:
    """Where the publisher's scheduler stands in the pipeline."""
    if hasattr(publisher, "ps"):
        rank: int = publisher.ps.pp_rank
        return rank
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().pp_rank)


def ungated() -> None:
    """Rankbind, and a cache that is not told."""
    if "sglang.srt.managers.scheduler" in sys.modules:
        import rankbind_sglang

        rankbind_sglang.register([site for site in rankbind_sglang.SITES if site != "cache builder"])
