from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rankbind_sglang import SITES, claims, hooks, register, watch

from rankbind.errors import ClaimedError, DirectoryError
from rankbind.runtime import claim as runtime

from ...support import fake_sglang
from ...support.fake_sglang import FakeSGLang, ranks

CONFIG = json.dumps({"publisher": "zmq", "endpoint": "tcp://*:5557"})
SECOND_STAGE = ranks(pp_size=2, pp_rank=1)
SECOND_REPLICA = ranks(dp_size=2, dp_rank=1)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeSGLang]:
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "claims"))
    monkeypatch.delenv("RANKBIND_DEPLOYMENT", raising=False)
    before = set(runtime._held)
    yield FakeSGLang(monkeypatch)
    for held in runtime._held - before:
        held.release()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "rankbind_sglang")
    return caplog


def applied() -> bool:
    """What SGLang does: it lets the plugins register their hooks, then applies them all."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    done = register()
    HookRegistry.apply_hooks()
    return done


def test_the_fake_engine_has_the_bug(engine: FakeSGLang) -> None:
    assert engine.publisher(CONFIG, SECOND_STAGE) == (CONFIG, 0)
    assert engine.publisher(CONFIG, SECOND_REPLICA) == (CONFIG, 0)


def test_applying_is_left_to_the_engine(engine: FakeSGLang) -> None:
    # The engine's registry patches a function once: a plugin that is loaded later would be shut out of ours.
    assert register()
    assert engine.publisher(CONFIG, SECOND_STAGE) == (CONFIG, 0)


def test_a_rank_that_does_not_own_is_gated_at_every_site(engine: FakeSGLang) -> None:
    assert applied()
    assert engine.publisher(CONFIG, SECOND_STAGE) is None
    assert not engine.records(True, SECOND_STAGE)
    assert not engine.counts(True, SECOND_STAGE)


def test_the_owner_is_left_as_it_is(engine: FakeSGLang) -> None:
    applied()
    owner = ranks(pp_size=2)
    assert engine.publisher(CONFIG, owner) == (CONFIG, 0)
    assert engine.records(True, owner)
    assert engine.counts(True, owner)


def test_a_flag_that_is_off_is_never_turned_on(engine: FakeSGLang, log: pytest.LogCaptureFixture) -> None:
    applied()
    assert engine.publisher(None, ranks()) is None
    assert not engine.records(False, ranks())
    assert not engine.counts(False, ranks())
    assert log.messages == []


def test_a_replica_publishes_on_the_port_of_its_own(engine: FakeSGLang) -> None:
    applied()
    assert engine.publisher(CONFIG, SECOND_REPLICA) == (CONFIG, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": "ipc:///tmp/kv"},
        {"replay_endpoint": "ipc:///tmp/kv"},
        {"endpoint": "tcp://*:*"},
        {"endpoint": "tcp://*:0"},
        {"endpoint": "tcp://127.0.0.1:65535"},
    ],
)
def test_an_endpoint_that_cannot_count_keeps_the_engines_index(
    engine: FakeSGLang, log: pytest.LogCaptureFixture, settings: dict[str, str]
) -> None:
    applied()
    config = json.dumps({"publisher": "zmq", **settings})
    assert engine.publisher(config, SECOND_REPLICA) == (config, 0)
    assert "KV cache 1 cannot have a KV events endpoint of its own" in log.messages[-1]


def test_only_zmq_endpoints_are_looked_at(engine: FakeSGLang) -> None:
    applied()
    config = json.dumps({"publisher": "their-own", "endpoint": "ipc:///tmp/kv"})
    assert engine.publisher(config, SECOND_REPLICA) == (config, 1)


@pytest.mark.parametrize(
    ("module", "name", "site"),
    [
        (fake_sglang.PUBLISHER, "SchedulerKvEventsPublisher", "publisher"),
        (fake_sglang.FACTORY, "EventPublisherFactory", "port index"),
        (fake_sglang.CACHE_BUILDER, "build_kv_cache", "cache builder"),
        (fake_sglang.METRICS_COLLECTOR, "SchedulerMetricsCollector", "metrics collector"),
    ],
)
def test_one_site_that_has_moved_leaves_the_engine_alone(
    engine: FakeSGLang, log: pytest.LogCaptureFixture, module: str, name: str, site: str
) -> None:
    engine.move(module, name)
    assert not applied()
    assert engine.hooks == []
    (line,) = log.messages
    assert line.startswith(f"rankbind-sglang does not know the {site} of SGLang 0.5.14 (there is no {module}.{name}")
    assert line.endswith("leaves the engine alone")


def test_a_site_that_has_lost_its_ranks_has_moved(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    engine = FakeSGLang(monkeypatch, "0.5.23")
    assert applied(), "the ranks are elsewhere in this release"
    engine = FakeSGLang(monkeypatch, "0.5.14")
    monkeypatch.setattr(f"{fake_sglang.CACHE_BUILDER}.build_kv_cache", lambda *, enable_kv_cache_events: None)
    assert not applied()
    assert engine.hooks == []
    assert f"{fake_sglang.CACHE_BUILDER}.build_kv_cache takes no ps" in log.messages[-1]


def test_ranks_that_make_no_sense_fall_back_to_the_engine(engine: FakeSGLang, log: pytest.LogCaptureFixture) -> None:
    applied()
    broken = ranks(tp_size=8, attn_tp_size=3)
    assert engine.publisher(CONFIG, broken) == (CONFIG, 0)
    assert engine.records(True, broken)
    assert engine.counts(True, broken)
    assert [line.partition(" of SGLang")[0] for line in log.messages] == [
        f"rankbind-sglang leaves the {site}" for site in ("publisher", "cache builder", "metrics collector")
    ]


@pytest.mark.parametrize("site", SITES)
def test_a_hook_that_fails_falls_back_to_the_engine(
    engine: FakeSGLang, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("an engine that nobody has seen")

    applied()
    broken = {"port index": "_has_room_for", "metrics collector": "replace"}.get(site, "position")
    monkeypatch.setattr(hooks, broken, fail)
    assert engine.publisher(CONFIG, SECOND_REPLICA) == (CONFIG, 1 if broken == "replace" else 0)
    if site == "cache builder":
        assert engine.records(True, SECOND_STAGE)
    if site == "metrics collector":
        assert engine.counts(True, SECOND_STAGE)
    assert "an engine that nobody has seen" in log.messages[-1]


def test_the_engines_own_error_is_not_swallowed(engine: FakeSGLang, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise OSError("Address already in use")

    monkeypatch.setattr(f"{fake_sglang.FACTORY}.EventPublisherFactory.create", bind)
    applied()
    with pytest.raises(OSError, match="Address already in use"):
        engine.publisher(CONFIG, ranks())


def test_an_engine_that_does_not_let_the_owner_publish_is_named(
    engine: FakeSGLang, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(self: Any, kv_events_config: str | None) -> None:
        self.enable_kv_cache_events = False

    monkeypatch.setattr(f"{fake_sglang.PUBLISHER}.SchedulerKvEventsPublisher.init_kv_events", nobody)
    applied()
    assert engine.publisher(CONFIG, ranks()) is None
    assert "publishes no KV events from this scheduler" in log.messages[-1]


def test_each_scheduler_tells_once(engine: FakeSGLang, log: pytest.LogCaptureFixture) -> None:
    applied()
    engine.counts(True, SECOND_STAGE)
    engine.records(True, SECOND_STAGE)
    engine.publisher(CONFIG, SECOND_STAGE)
    (line,) = log.messages
    assert line == (
        "rankbind-sglang on SGLang 0.5.14 (publisher, port index, cache builder, metrics collector): this scheduler "
        "(dp 0, pp 1, attn_dp 0, attn_cp 0, attn_tp 0) does not own the KV events of cache 0; they belong to rank 0 of "
        "each (pp, attn_tp, attn_cp) group"
    )


class TestTheStart:
    """The claim on the KV events, before there is a model."""

    def test_the_owner_holds_them(self, engine: FakeSGLang) -> None:
        applied()
        assert engine.starts(CONFIG, SECOND_REPLICA)
        (held,) = runtime._held
        assert str(held.key) == "sglang-30000-5557/kv-events[attn_dp=0,dp=1]"
        assert dict(held.record.endpoints) == {"bind": "tcp://*:5558"}
        with pytest.raises(ClaimedError, match=r"sglang-30000-5557/kv-events\[attn_dp=0,dp=1\] is held") as caught:
            engine.starts(CONFIG, SECOND_REPLICA)
        (note,) = caught.value.__notes__
        assert note.endswith("RANKBIND_SGLANG_CLAIMS=off starts it without asking")

    @pytest.mark.parametrize(
        ("config", "at"),
        [
            pytest.param(CONFIG, SECOND_STAGE, id="not the owner"),
            pytest.param(None, ranks(), id="no events"),
            pytest.param(json.dumps({"publisher": "null"}), ranks(), id="no publisher"),
            pytest.param(json.dumps({"publisher": "zmq", "endpoint": "ipc:///kv"}), SECOND_REPLICA, id="no room"),
        ],
    )
    def test_nothing_is_held_where_nothing_is_published(
        self, engine: FakeSGLang, log: pytest.LogCaptureFixture, config: str | None, at: Any
    ) -> None:
        before = set(runtime._held)
        applied()
        assert engine.starts(config, at)
        assert runtime._held == before
        assert not [line for line in log.messages if "without a claim" in line]

    @pytest.mark.parametrize("problem", [DirectoryError("not safe"), RuntimeError("anything")])
    def test_a_claim_that_cannot_be_made_is_named_and_the_server_starts(
        self, engine: FakeSGLang, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, problem: Exception
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise problem

        monkeypatch.setattr(runtime, "claim", fail)
        applied()
        assert engine.starts(CONFIG, ranks())
        assert f"without a claim on its KV events: {type(problem).__name__}: {problem}" in log.messages[-1]

    def test_a_configuration_that_cannot_be_read_is_left_to_the_engine(
        self, engine: FakeSGLang, log: pytest.LogCaptureFixture
    ) -> None:
        applied()
        assert engine.starts("{", ranks())
        assert "without a claim on its KV events: JSONDecodeError" in log.messages[-1]

    def test_a_start_that_has_moved_costs_the_claim_and_nothing_else(
        self, engine: FakeSGLang, log: pytest.LogCaptureFixture
    ) -> None:
        engine.move(fake_sglang.SCHEDULER, "Scheduler")
        assert applied()
        assert engine.publisher(CONFIG, SECOND_STAGE) is None
        assert log.messages[0].startswith(
            "rankbind-sglang does not know the start of SGLang 0.5.14 (there is no sglang.srt.managers.scheduler."
        )

    @pytest.mark.parametrize(("switch", "claims_made"), [("off", False), ("on", True), ("no", True)])
    def test_claims_can_be_switched_off(
        self,
        engine: FakeSGLang,
        log: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        switch: str,
        claims_made: bool,
    ) -> None:
        monkeypatch.setenv(claims.SWITCH, switch)
        assert applied()
        assert ("init_model_config" in str(engine.hooks)) == claims_made
        assert log.messages == (
            ["rankbind-sglang: RANKBIND_SGLANG_CLAIMS=no means nothing; it is off or on, and stays on"]
            if switch == "no"
            else []
        )

    def test_a_holder_in_another_network_does_not_hinder(
        self, engine: FakeSGLang, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elsewhere = SimpleNamespace(process=SimpleNamespace(net_ns="another"))
        real, names = runtime.claim, []

        def claim(resource: str, **how: Any) -> Any:
            names.append(how["deployment"])
            if len(names) == 1:
                raise ClaimedError("held", holder=elsewhere)
            return real(resource, **how)

        monkeypatch.setattr(runtime, "claim", claim)
        applied()
        assert engine.starts(CONFIG, ranks())
        assert names[0] == "sglang-30000-5557"
        assert names[1].startswith("sglang-30000-5557-net")


class TestTheWatch:
    """What is watched; test_watch.py has what that is for."""

    def test_a_publisher_of_another_kind_is_named_and_left_alone(
        self, engine: FakeSGLang, log: pytest.LogCaptureFixture
    ) -> None:
        assert watch.watch(object(), 0, "0.5.14") is None
        assert log.messages == [
            "rankbind-sglang does not know the publisher object of SGLang 0.5.14 (a plugin's own) and does not watch it"
        ]

    def test_a_publisher_of_a_release_that_nobody_has_seen(
        self, engine: FakeSGLang, log: pytest.LogCaptureFixture
    ) -> None:
        from sglang.srt.disaggregation.kv_events import ZmqEventPublisher

        strange = ZmqEventPublisher()
        vars(strange).update(dict.fromkeys(hooks_need() - {"_thread", "_buffer"}))
        assert watch.watch(strange, 0, "0.6.0") is None
        assert "SGLang 0.6.0 (it has no _buffer, _thread) and does not watch it" in log.messages[-1]

    def test_a_watch_that_cannot_begin_does_not_break_a_start(
        self, engine: FakeSGLang, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("no more threads")

        monkeypatch.setattr(hooks, "watch", fail)
        applied()
        assert engine.publisher(CONFIG, ranks()) == (CONFIG, 0)
        assert log.messages[-1] == "rankbind-sglang does not watch the publisher: RuntimeError: no more threads"


def hooks_need() -> set[str]:
    from rankbind_sglang.releases import publisher_lacks

    return set(publisher_lacks(object()))
