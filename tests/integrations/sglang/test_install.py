from __future__ import annotations

import logging
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import rankbind_sglang
from rankbind_sglang import SWITCH, install

from ...support import fake_sglang
from ...support.fake_sglang import FakeSGLang

HEAVY = """
import sys
import rankbind_sglang.hooks
heavy = {"torch", "zmq", "pydantic", "click", "rich", "yaml", "msgspec", "sglang"}
print(*sorted(heavy & set(sys.modules)))
"""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeSGLang:
    monkeypatch.delenv(SWITCH, raising=False)
    return FakeSGLang(monkeypatch)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "rankbind_sglang")
    return caplog


def test_sglang_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="sglang.srt.plugins", name="rankbind")
    assert found.load() is install


def test_the_exports_are_exact() -> None:
    assert rankbind_sglang.__all__ == sorted(rankbind_sglang.__all__)
    assert all(hasattr(rankbind_sglang, name) for name in rankbind_sglang.__all__)


def test_it_hooks_every_site(engine: FakeSGLang) -> None:
    install()
    assert [target.rpartition(".")[2] for target, _, _ in engine.hooks] == [
        "init_kv_events",
        "create",
        "build_kv_cache",
        "init_new",
        "init_model_config",
    ]


def test_it_can_be_switched_off(
    engine: FakeSGLang, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SWITCH, "off")
    install()
    assert engine.hooks == []
    assert log.messages == ["rankbind-sglang is switched off by RANKBIND_SGLANG=off"]


def test_a_switch_that_is_neither_on_nor_off_is_named(
    engine: FakeSGLang, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SWITCH, "false")
    install()
    assert engine.hooks
    assert log.messages == ["rankbind-sglang: RANKBIND_SGLANG=false means nothing; it is off or on, and stays on"]


def test_a_process_without_a_scheduler_is_left_alone(engine: FakeSGLang, log: pytest.LogCaptureFixture) -> None:
    engine.leave_the_scheduler()
    install()
    assert engine.hooks == []
    assert log.messages == []


def test_it_never_breaks_a_start(
    engine: FakeSGLang, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "sglang.srt.plugins.hook_registry")
    install()
    (line,) = log.messages
    assert line.startswith("rankbind-sglang leaves the engine alone: ModuleNotFoundError")


def test_sites_that_have_moved_do_not_break_it_either(engine: FakeSGLang, log: pytest.LogCaptureFixture) -> None:
    engine.move(fake_sglang.PUBLISHER, "SchedulerKvEventsPublisher")
    engine.move(fake_sglang.CACHE_BUILDER, "build_kv_cache")
    install()
    assert len(log.messages) == 2


def test_importing_it_drags_nothing_in() -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY], check=True, capture_output=True, text=True, env={"PATH": ""})
    assert done.stdout.split() == []


def test_importing_the_reader_brings_nothing_of_the_plugin() -> None:
    code = """
import sys
import rankbind_sglang.launch
heavy = {"torch", "zmq", "click", "rich", "tree_sitter", "sglang", "rankbind_sglang.hooks", "rankbind_sglang.watch"}
print(*sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PATH": ""})
    assert done.stdout.split() == []
