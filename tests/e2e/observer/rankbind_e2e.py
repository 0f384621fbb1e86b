"""A plugin for the tests alone: it counts, inside a scheduler that publishes nothing, the KV events its cache records.

The counts go to the file ``$RANKBIND_E2E/<pp rank>``. Its other entry point is rankbind's without the hook of the cache
builder, to show what that one is for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

PUBLISHER = "sglang.srt.managers.scheduler_components.kv_events_publisher.SchedulerKvEventsPublisher.publish_kv_events"


def observe() -> None:
    """Count at each point where a scheduler would publish."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    kept, told = 0, -1

    def count(_: Any, publisher: Any) -> None:
        nonlocal kept, told
        if publisher.kv_event_publisher is not None:
            return
        kept += len(publisher.tree_cache.take_events())
        if kept != told:
            told = kept
            file = Path(os.environ["RANKBIND_E2E"], str(pp_rank(publisher)))
            whole = file.with_suffix(".part")
            whole.write_text(str(kept))
            whole.replace(file)

    HookRegistry.register(PUBLISHER, count, HookType.AFTER)


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
