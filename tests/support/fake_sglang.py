"""An SGLang of a few lines, for what real ones do not do: sites that have moved, ranks that make no sense."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCHEDULER = "sglang.srt.managers.scheduler"
PUBLISHER = "sglang.srt.managers.scheduler_components.kv_events_publisher"
FACTORY = "sglang.srt.disaggregation.kv_events"
CACHE_BUILDER = "sglang.srt.mem_cache.kv_cache_builder"
METRICS_COLLECTOR = "sglang.srt.observability.metrics_collector"


def ranks(**changes: int | None) -> SimpleNamespace:
    """The ranks of a lone scheduler, but for the changes."""
    alone: dict[str, int | None] = {
        **dict.fromkeys(("tp_size", "pp_size", "dp_size", "attn_tp_size", "attn_cp_size"), 1),
        **dict.fromkeys(("tp_rank", "pp_rank", "attn_tp_rank", "attn_cp_rank", "attn_dp_rank"), 0),
        "dp_rank": None,
    }
    return SimpleNamespace(**{**alone, **changes})


class HookType(Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"


@dataclass(frozen=True)
class Context:
    enable_kv_cache_events: bool


class FakeSGLang:
    """The modules that the plugin looks at, as in 0.5.13 to 0.5.14; gone again at the end of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, release: str = "0.5.14") -> None:
        self._monkeypatch = monkeypatch
        self.hooks: list[tuple[str, Callable[..., Any], HookType]] = []
        engine = self

        class HookRegistry:
            @staticmethod
            def register(target: str, hook: Callable[..., Any], kind: HookType) -> None:
                engine.hooks.append((target, hook, kind))

            @staticmethod
            def apply_hooks() -> None:
                for target, hook, kind in engine.hooks:
                    engine._apply(target, hook, kind)

        class ZmqEventPublisher:
            @staticmethod
            def offset_endpoint_port(endpoint: str | None, index: int) -> str | None:
                if endpoint is None or not index:
                    return endpoint
                if "tcp" not in endpoint:
                    raise ValueError("Invalid endpoint")
                host, _, port = endpoint.rpartition(":")
                return f"{host}:{int(port) + index}"

            def _socket_setup(self) -> None:
                self._pub = self._ctx.socket()
                self._pub.bind(self._endpoint) if "*" in self._endpoint else self._pub.connect(self._endpoint)
                if self._replay_endpoint is not None:
                    self._replay = self._ctx.socket()
                    self._replay.bind(self._replay_endpoint)

        class NullEventPublisher:
            pass

        class Made(tuple[str | None, int], NullEventPublisher):
            """What a publisher was made with."""

        class EventPublisherFactory:
            @classmethod
            def create(cls, config: str | None, attn_dp_rank: int = 0) -> Made:
                return Made((config, attn_dp_rank))

        EventPublisherFactory.__module__ = FACTORY

        class KVEventsConfig:
            @classmethod
            def from_cli(cls, config: str) -> SimpleNamespace:
                default = {"publisher": "null", "endpoint": "tcp://*:5557", "replay_endpoint": None, "hwm": 1}
                return SimpleNamespace(**{**default, **json.loads(config)})

        class Scheduler:
            def __init__(self, config: str | None, ps: Any) -> None:
                self.server_args, self.ps = SimpleNamespace(kv_events_config=config, port=30_000), ps
                self.has_a_model = False
                self.init_model_config()

            def init_model_config(self) -> None:
                self.has_a_model = True

        class SchedulerKvEventsPublisher:
            def __init__(self, config: str | None, ps: Any) -> None:
                self.ps = ps
                self.kv_event_publisher: Any = None
                self.init_kv_events(config)

            def init_kv_events(self, kv_events_config: str | None) -> None:
                self.enable_kv_cache_events = bool(kv_events_config and self.ps.attn_tp_rank == 0)
                if self.enable_kv_cache_events:
                    self.kv_event_publisher = EventPublisherFactory.create(kv_events_config, self.ps.attn_dp_rank)

        def build_kv_cache(*, enable_kv_cache_events: bool, ps: Any) -> bool:
            return enable_kv_cache_events

        class SchedulerMetricsCollector:
            @classmethod
            def init_new(cls, *, events: bool, ps: Any) -> Context:
                return Context(enable_kv_cache_events=events)

        self._module("sglang.version", __version__=release)
        self._module("sglang.srt.managers.scheduler", Scheduler=Scheduler)
        self._module("sglang.srt.plugins.hook_registry", HookRegistry=HookRegistry, HookType=HookType)
        self._module(
            FACTORY,
            EventPublisherFactory=EventPublisherFactory,
            ZmqEventPublisher=ZmqEventPublisher,
            NullEventPublisher=NullEventPublisher,
            KVEventsConfig=KVEventsConfig,
            KVEventBatch=SimpleNamespace,
            AllBlocksCleared=SimpleNamespace,
        )
        self._module(PUBLISHER, SchedulerKvEventsPublisher=SchedulerKvEventsPublisher)
        self._module(CACHE_BUILDER, build_kv_cache=build_kv_cache)
        self._module(METRICS_COLLECTOR, SchedulerMetricsCollector=SchedulerMetricsCollector)

    def publisher(self, config: str | None, ps: Any) -> Any:
        """What a scheduler publishes with: its configuration and port index, or None."""
        return sys.modules[PUBLISHER].SchedulerKvEventsPublisher(config, ps).kv_event_publisher

    def records(self, events: bool, ps: Any) -> bool:
        """Whether a scheduler's cache records events."""
        records: bool = sys.modules[CACHE_BUILDER].build_kv_cache(enable_kv_cache_events=events, ps=ps)
        return records

    def counts(self, events: bool, ps: Any) -> bool:
        """Whether a scheduler's metrics count events."""
        context: Context = sys.modules[METRICS_COLLECTOR].SchedulerMetricsCollector.init_new(events=events, ps=ps)
        return context.enable_kv_cache_events

    def starts(self, config: str | None, ps: Any) -> bool:
        """Whether a scheduler comes to have a model."""
        started: bool = sys.modules[SCHEDULER].Scheduler(config, ps).has_a_model
        return started

    def move(self, module: str, name: str) -> None:
        """Take something out of a module, as a later release might."""
        self._monkeypatch.delattr(sys.modules[module], name)

    def leave_the_scheduler(self) -> None:
        """Make this a process that has no scheduler."""
        self._monkeypatch.delitem(sys.modules, "sglang.srt.managers.scheduler")

    def _module(self, name: str, **content: Any) -> None:
        parent, _, last = name.rpartition(".")
        if parent and parent not in sys.modules:
            self._module(parent)
        module = ModuleType(name)
        module.__path__ = []
        module.__dict__.update(content)
        self._monkeypatch.setitem(sys.modules, name, module)
        if parent:
            self._monkeypatch.setattr(sys.modules[parent], last, module, raising=False)

    def _apply(self, target: str, hook: Callable[..., Any], kind: HookType) -> None:
        path, name = target.rsplit(".", 1)
        module = path if path in sys.modules else path.rpartition(".")[0]
        holder: Any = sys.modules[module] if module == path else getattr(sys.modules[module], path.rpartition(".")[2])
        is_class_method = isinstance(vars(holder)[name], classmethod)
        original = vars(holder)[name].__func__ if is_class_method else vars(holder)[name]

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if kind is HookType.AROUND:
                return hook(original, *args, **kwargs)
            if kind is HookType.BEFORE:
                args, kwargs = hook(*args, **kwargs) or (args, kwargs)
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            changed = hook(result, *args, **kwargs)
            return result if changed is None else changed

        self._monkeypatch.setattr(holder, name, classmethod(wrapped) if is_class_method else wrapped)
