"""The declaration, applied to a running SGLang through its own HookRegistry.

Each hook of a site asks `position` and then takes away at most one thing: the configuration that makes a publisher, the
flag that makes a cache record events, the flag that makes the metrics count them. An engine that gates as declared is
left as it is. A hook that fails says so in one line, and the engine does what it would have done without it.

One more hook has the owner claim what it will publish on, before it has a model; and what it then made is watched.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rankbind.errors import ClaimedError
from rankbind_sglang import claims
from rankbind_sglang.position import KV_EVENTS, Position, position, ranks_of
from rankbind_sglang.releases import KV_EVENTS_MODULE, START, Layout, Site, layout_of
from rankbind_sglang.sockets import bound
from rankbind_sglang.watch import watch

if TYPE_CHECKING:
    from rankbind.runtime.claim import Claim

SITES: tuple[Site, ...] = ("publisher", "port index", "cache builder", "metrics collector")

_log = logging.getLogger("rankbind_sglang")


def register(sites: Collection[Site] = SITES) -> bool:
    """Register the hooks for the running release, and say whether that was done.

    SGLang applies them when it has called every plugin. To apply them here would keep a plugin that comes after this
    one from a function that both hook.

    It is done for all sites or for none: a publisher that is gated while the cache is not leaves a cache that records
    events for nobody, and grows without bound. Hence a site that is not where the table of releases has it is named
    in a warning, and nothing is changed.

    Args:
        sites: only for tests, which show what happens when one is left out.

    Raises:
        ImportError: there is no SGLang, or none with plugins (before 0.5.12).
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.version import __version__ as release

    layout = layout_of(release)
    lacking = {site: target.lacking() for site, target in layout.sites.items()}
    moved = {site: what for site, what in lacking.items() if what is not None}
    for site, what in moved.items():
        _log.warning(
            "rankbind-sglang does not know the %s of SGLang %s (%s) and leaves the engine alone", site, release, what
        )
    if moved:
        return False
    hooks = _Hooks(release, layout)
    kinds: Mapping[Site, tuple[Callable[..., Any], Any]] = {
        "publisher": (hooks.publisher, HookType.AROUND),
        "port index": (hooks.port_index, HookType.BEFORE),
        "cache builder": (hooks.cache_builder, HookType.BEFORE),
        "metrics collector": (hooks.metrics_collector, HookType.AFTER),
    }
    for site, target in layout.sites.items():
        if site in sites:
            hook, kind = kinds[site]
            HookRegistry.register(target.path, hook, kind)
    if claims.switched_on():
        absent = START.lacking()
        if absent is None:
            HookRegistry.register(START.path, hooks.start, HookType.BEFORE)
        else:
            _log.warning(
                "rankbind-sglang does not know the start of SGLang %s (%s) and claims nothing: two servers with one KV "
                "port find out after they have loaded their models",
                release,
                absent,
            )
    return True


class _Hooks:
    """The hooks of one process: it asks the declaration at every site, and is told where it stands by the engine."""

    def __init__(self, release: str, layout: Layout) -> None:
        self._release = release
        self._ranks = layout.ranks
        self._sites = tuple(layout.sites)
        self._index: int | None = None
        self._told = False
        self._claim: Claim | None = None

    def start(self, scheduler: Any) -> None:
        """BEFORE ``Scheduler.init_model_config``: the owner holds its KV events, or the server does not start."""
        config = getattr(scheduler.server_args, "kv_events_config", None)
        at = self._position("start", config, scheduler, {})
        if config is None or at is None or not at.owns:
            return
        try:
            if not at.index or _has_room_for(at.index, sys.modules[KV_EVENTS_MODULE], config):
                self._claim = claims.take(scheduler.server_args, config, at)
        except ClaimedError as error:
            error.add_note(
                "rankbind-sglang: this server would publish its KV events there, and ends before it loads its model. "
                "Stop the other one, or give this one another port in --kv-events-config (endpoint, replay_endpoint). "
                f"{claims.SWITCH}=off starts it without asking"
            )
            raise
        except Exception as error:
            _log.warning(
                "rankbind-sglang starts this server without a claim on its KV events: %s: %s",
                type(error).__name__,
                error,
            )

    def publisher(self, original: Callable[..., Any], holder: Any, kv_events_config: str | None) -> None:
        """AROUND ``init_kv_events``: a rank that does not own is given no configuration, as if events were off."""
        at = self._position("publisher", kv_events_config, holder, {})
        if at is None or not at.owns:
            original(holder, kv_events_config if at is None else None)
            return
        self._index = at.index
        try:
            original(holder, kv_events_config)
        finally:
            self._index = None
        if not getattr(holder, "enable_kv_cache_events", True):
            _log.warning(
                "rankbind-sglang: SGLang %s publishes no KV events from this scheduler (%s), their declared owner",
                self._release,
                at,
            )
        self._watch(getattr(holder, "kv_event_publisher", None), at.index)

    def _watch(self, publisher: Any, index: int) -> None:
        """Watch what was made, and let the claim say where it really is."""
        try:
            watching = watch(publisher, index, self._release, told=self._note)
            if watching is not None and self._claim is not None:
                self._claim.update(endpoints=bound(publisher))
        except Exception as error:
            _log.warning("rankbind-sglang does not watch the publisher: %s: %s", type(error).__name__, error)

    def _note(self, text: str) -> None:
        if self._claim is not None:
            self._claim.update(notes={"publisher": text})

    def port_index(self, cls: Any, config: str | None, attn_dp_rank: int = 0) -> Any:
        """BEFORE ``EventPublisherFactory.create``: the port is that of this KV cache."""
        if self._index is None:
            return None
        try:
            if self._index and not _has_room_for(self._index, sys.modules[cls.__module__], config):
                _log.warning(
                    "rankbind-sglang: KV cache %d cannot have a KV events endpoint of its own, for SGLang %s adds its "
                    "number to the port of a tcp:// endpoint and to an inproc:// name, to nothing else; write "
                    "tcp://*:PORT in --kv-events-config",
                    self._index,
                    self._release,
                )
                return None
        except Exception as error:
            self._leave("port index", error)
            return None
        return None if attn_dp_rank == self._index else ((cls, config, self._index), {})

    def cache_builder(self, *args: Any, **kwargs: Any) -> Any:
        """BEFORE ``build_kv_cache``: a cache whose events nobody takes does not record any."""
        at = self._position("cache builder", kwargs.get("enable_kv_cache_events"), None, kwargs)
        return None if at is None or at.owns else (args, {**kwargs, "enable_kv_cache_events": False})

    def metrics_collector(self, context: Any, *_: Any, **kwargs: Any) -> Any:
        """AFTER ``SchedulerMetricsCollector.init_new``: metrics of KV events are those of the owner."""
        at = self._position("metrics collector", getattr(context, "enable_kv_cache_events", None), None, kwargs)
        if at is None or at.owns:
            return None
        try:
            return replace(context, enable_kv_cache_events=False)
        except Exception as error:
            self._leave("metrics collector", error)
            return None

    def _position(
        self, site: Site | Literal["start"], events: object, holder: Any, arguments: Mapping[str, Any]
    ) -> Position | None:
        """Where this process stands; None when it publishes no events anyway, or cannot tell."""
        if not events:
            return None
        try:
            at = position(ranks_of(self._ranks, holder, arguments))
            self._tell(at)
            return at
        except Exception as error:
            self._leave(site, error)
            return None

    def _tell(self, at: Position) -> None:
        if self._told:
            return
        self._told = True
        _log.info(
            "rankbind-sglang on SGLang %s (%s): this scheduler (%s) %s the KV events of cache %d; they belong to %s",
            self._release,
            ", ".join(self._sites),
            at,
            "owns" if at.owns else "does not own",
            at.index,
            KV_EVENTS,
        )

    def _leave(self, site: Site | Literal["start"], error: Exception) -> None:
        _log.warning(
            "rankbind-sglang leaves the %s of SGLang %s as it is: %s: %s",
            site,
            self._release,
            type(error).__name__,
            error,
        )


def _has_room_for(index: int, kv_events: Any, config: str | None) -> bool:
    """Whether the endpoints that SGLang makes for `index` can be that cache's own. SGLang is asked what it makes.

    Raises:
        ValueError: the configuration is not JSON.
    """
    settings = json.loads(config or "{}")
    if settings.get("publisher") != "zmq":
        return True
    offset = kv_events.ZmqEventPublisher.offset_endpoint_port
    for endpoint in (settings.get("endpoint"), settings.get("replay_endpoint")):
        try:
            made = offset(endpoint, index)
            # Of port 0, whatever port is free, it makes the port `index`.
            if made is not None and made.startswith("tcp://") and not index < int(made.rpartition(":")[2]) <= 65535:
                return False
        except ValueError:
            return False
    return True
