from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
import rankbind_vllm
from rankbind_vllm import SWITCH, install
from rankbind_vllm.hooks import _Await

from .test_position import parallel

LOGGER = "vllm.rankbind"

CORE = "import vllm.v1.executor.abstract\n"
EXECUTOR = """
class Executor:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
"""
KV_EVENTS = """
class NullEventPublisher: pass
class ZmqEventPublisher:
    def _socket_setup(self): pass
class EventPublisherFactory:
    _registry = {}
    @classmethod
    def create(cls, config, data_parallel_rank=0):
        return cls, config, data_parallel_rank
"""

HEAVY = """
import sys
import rankbind_vllm
heavy = {"torch", "zmq", "pydantic", "click", "rich", "yaml", "msgspec", "vllm"}
print(*sorted(heavy & set(sys.modules)))
"""


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOGGER)
    return caplog


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM of the three modules that are looked at. None of them is imported yet."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    modules = {"v1/engine/core": CORE, "v1/executor/abstract": EXECUTOR, "distributed/kv_events": KV_EVENTS}
    for name, text in modules.items():
        file = tmp_path / "vllm" / f"{name}.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        for folder in (file.parent, file.parent.parent):
            (folder / "__init__.py").touch()
    (tmp_path / "vllm" / "__init__.py").write_text("__version__ = '9.9.9'\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "vllm"


def hooked() -> bool:
    return hasattr(importlib.import_module("vllm.v1.executor.abstract").Executor.__init__, "_rankbind")


def test_vllm_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="rankbind")
    assert found.load() is install


def test_the_exports_are_exact() -> None:
    assert rankbind_vllm.__all__ == sorted(rankbind_vllm.__all__)
    assert all(hasattr(rankbind_vllm, name) for name in rankbind_vllm.__all__)


@pytest.mark.parametrize("imported_first", [True, False])
def test_it_hooks_an_engine_core_whenever_that_is_imported(
    engine: Path, log: pytest.LogCaptureFixture, imported_first: bool
) -> None:
    if imported_first:
        importlib.import_module("vllm.v1.engine.core")
        install()
    else:
        install()
        install()
        assert not any(name.partition(".")[0] == "vllm" for name in sys.modules)
        assert len([each for each in sys.meta_path if isinstance(each, _Await)]) == 1
        core = importlib.import_module("vllm.v1.engine.core")
        assert core.__spec__ is not None
        assert core.__loader__ is core.__spec__.loader is not None
        assert not isinstance(core.__loader__, _Await)
        assert not any(isinstance(each, _Await) for each in sys.meta_path)
    assert hooked()
    once = importlib.import_module("vllm.v1.executor.abstract").Executor.__init__
    install()
    assert importlib.import_module("vllm.v1.executor.abstract").Executor.__init__ is once
    factory = importlib.import_module("vllm.distributed.kv_events").EventPublisherFactory
    assert factory.create(None, 1) == (factory, None, 1)
    assert log.messages == []


def test_it_can_be_switched_off(engine: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(SWITCH, "off")
    importlib.import_module("vllm.v1.engine.core")
    install()
    assert not hooked()
    assert log.messages == ["rankbind-vllm is switched off by RANKBIND_VLLM=off"]


def test_a_switch_that_is_neither_on_nor_off_is_named(
    engine: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SWITCH, "false")
    importlib.import_module("vllm.v1.engine.core")
    install()
    assert hooked()
    assert log.messages == ["rankbind-vllm: RANKBIND_VLLM=false means nothing; it is off or on, and stays on"]


def test_an_engine_that_has_moved_is_left_alone_and_named_once(engine: Path, log: pytest.LogCaptureFixture) -> None:
    (engine / "distributed" / "kv_events.py").write_text(KV_EVENTS.replace("data_parallel_rank", "index"))
    (engine / "v1" / "executor" / "abstract.py").write_text("class Executed: pass\n")
    importlib.import_module("vllm.v1.engine.core")
    install()
    (line,) = log.messages
    assert line == (
        "rankbind-vllm does not know vLLM 9.9.9 (there is no vllm.v1.executor.abstract.Executor.__init__; "
        "vllm.distributed.kv_events.EventPublisherFactory.create takes no data_parallel_rank) and leaves the engine "
        "alone"
    )


def test_it_never_breaks_a_start(engine: Path, log: pytest.LogCaptureFixture) -> None:
    (engine / "distributed" / "kv_events.py").write_text("raise RuntimeError('no such luck')\n")
    install()
    importlib.import_module("vllm.v1.engine.core")
    assert log.messages == ["rankbind-vllm leaves the engine alone: RuntimeError: no such luck"]


def test_an_engine_core_that_does_not_own_gets_no_publisher_and_is_named(
    engine: Path, log: pytest.LogCaptureFixture
) -> None:
    install()
    importlib.import_module("vllm.v1.engine.core")
    executor = importlib.import_module("vllm.v1.executor.abstract").Executor
    factory = importlib.import_module("vllm.distributed.kv_events").EventPublisherFactory
    follower = parallel(tensor_parallel_size=16, nnodes=2, node_rank_within_dp=1, local_world_size=8)
    config = SimpleNamespace(kv_events_config=object(), parallel_config=follower)
    assert executor(config).vllm_config is config
    assert factory.create(config.kv_events_config, 0) == (factory, None, 0)
    (line,) = log.messages
    assert line.startswith("rankbind-vllm on vLLM 9.9.9: this engine core (dp 0, pp 0, pcp 0, tp 8) does not own ")
    assert line.endswith("start this host with --headless")


def test_importing_it_drags_nothing_in() -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY], check=True, capture_output=True, text=True, env={"PATH": ""})
    assert done.stdout.split() == []
