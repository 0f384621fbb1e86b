"""Which release of SGLang keeps which site where.

Read from the released wheels 0.5.12 to 0.5.23, every one. Plugins exist from 0.5.12 on. Later releases are taken to be
as the last one here; `lacking` finds out whether they are.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Site = Literal["publisher", "port index", "cache builder", "metrics collector"]
"""The three sites that have to agree on the owner, and the call that turns an index into the publisher's port."""

Ranks = Literal["scheduler", "ps", "runtime context"]
"""Where a site finds its ranks: on the scheduler itself, in a `ParallelState` that it is given (as an argument or an
attribute, ``ps``), or in the process-wide ``runtime_context.get_parallel()``."""


@dataclass(frozen=True)
class Target:
    """A function of the engine, and the parameters of it that a hook relies on."""

    path: str
    parameters: tuple[str, ...]

    def lacking(self) -> str | None:
        """What the running engine lacks of this target, in words; None if nothing."""
        try:
            function = pkgutil.resolve_name(self.path)
        except (ImportError, AttributeError):
            return f"there is no {self.path}"
        has = inspect.signature(function).parameters
        absent = [name for name in self.parameters if name not in has]
        return f"{self.path} takes no {', '.join(absent)}" if absent else None


@dataclass(frozen=True)
class Layout:
    """The sites of one line of releases, from `since` on."""

    since: tuple[int, ...]
    ranks: Ranks
    sites: Mapping[Site, Target]


KV_EVENTS_MODULE = "sglang.srt.disaggregation.kv_events"

_PORT_INDEX = Target(f"{KV_EVENTS_MODULE}.EventPublisherFactory.create", ("config", "attn_dp_rank"))
_PUBLISHER = Target(
    "sglang.srt.managers.scheduler_components.kv_events_publisher.SchedulerKvEventsPublisher.init_kv_events",
    ("self", "kv_events_config"),
)
_CACHE_BUILDER = "sglang.srt.mem_cache.kv_cache_builder.build_kv_cache"
_METRICS_COLLECTOR = "sglang.srt.observability.metrics_collector.SchedulerMetricsCollector.init_new"

START = Target("sglang.srt.managers.scheduler.Scheduler.init_model_config", ("self",))
"""Where a scheduler knows its ranks and its arguments, and has no model yet. The same in 0.5.12 to 0.5.23."""

LAYOUTS = (
    # The scheduler is its own publisher, and hands the flag that init_kv_events sets to the cache and to the metrics.
    Layout(
        since=(0, 5, 12),
        ranks="scheduler",
        sites={
            "publisher": Target("sglang.srt.managers.scheduler.Scheduler.init_kv_events", ("self", "kv_events_config")),
            "port index": _PORT_INDEX,
        },
    ),
    # Each site works the flag out for itself. To 0.5.14 all three forget pp, and the index the replica.
    Layout(
        since=(0, 5, 13),
        ranks="ps",
        sites={
            "publisher": _PUBLISHER,
            "port index": _PORT_INDEX,
            "cache builder": Target(_CACHE_BUILDER, ("enable_kv_cache_events", "ps")),
            "metrics collector": Target(_METRICS_COLLECTOR, ("ps",)),
        },
    ),
    # The ranks are no longer passed around.
    Layout(
        since=(0, 5, 21),
        ranks="runtime context",
        sites={
            "publisher": _PUBLISHER,
            "port index": _PORT_INDEX,
            "cache builder": Target(_CACHE_BUILDER, ("enable_kv_cache_events",)),
            "metrics collector": Target(_METRICS_COLLECTOR, ()),
        },
    ),
)


def layout_of(release: str) -> Layout:
    """The layout of a release such as ``0.5.14`` or ``0.5.15.post1``.

    A release older than the first with plugins is a build that does not know its number (``0.0.0.dev0``), and so new.
    """
    match = re.match(r"\d+(?:\.\d+)*", release)
    number = tuple(int(part) for part in match.group().split(".")) if match else ()
    fitting = [layout for layout in LAYOUTS if layout.since <= number]
    return fitting[-1] if fitting else LAYOUTS[-1]


_PUBLISHER_HAS = (
    *("_ctx", "_pub", "_replay", "_endpoint", "_replay_endpoint", "_dp_rank", "_running"),
    *("_event_queue", "_buffer", "_seq_gen", "_thread", "_socket_setup", "_publisher_thread"),
)
"""What the watch relies on in a ``ZmqEventPublisher``. The same in 0.5.12 to 0.5.23, whose methods differ in what they
bind, and in nothing else that matters here."""


def publisher_lacks(publisher: object) -> list[str]:
    """What the watch would miss in a publisher."""
    return [name for name in _PUBLISHER_HAS if not hasattr(publisher, name)]
