"""What torch's stores do, as rankbind/runtime/line.py relies on it, and that nothing of it makes anybody wait."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from rankbind.errors import ClaimError, StoreGoneError
from rankbind.runtime.line import open_line, read

from ..support.forks import SERVER, Fork, Nursery, a_store

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    dist = pytest.importorskip("torch.distributed")

PATIENCE = 30.0


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("forks")) as made:
        yield made


@pytest.fixture
def server(nursery: Nursery) -> Iterator[Fork]:
    yield nursery.fork(SERVER)
    nursery.clear()


def client(server: Fork) -> Any:
    return dist.TCPStore("127.0.0.1", int(server.says("port")), None, False, timeout=timedelta(seconds=5))


@pytest.mark.parametrize("kind", ["tcp", "file", "hash", "prefix"])
def test_a_store_compares_and_sets_as_all_others_do(kind: str, tmp_path: Path) -> None:
    store = a_store(kind, tmp_path)
    assert store.compare_set("k", "wrong", "new") == b"wrong", "missing: what was expected comes back"
    assert not store.check(["k"])
    assert read(store, "k") is None
    assert store.compare_set("k", "", "one") == b"one"
    assert store.compare_set("k", "", "two") == b"one"
    assert store.compare_set("k", "wrong", "two") == b"one"
    special = '{"a b": "=;,/\\u00e9\\n"}' + "x" * 5000
    assert store.compare_set("k", "one", special) == special.encode()
    assert read(store, "k") == special
    assert store.compare_set("n", "", "1785000000000000") == b"1785000000000000"
    assert store.add("n", 1) == 1785000000000001


def test_a_server_that_is_stopped_holds_nobody_longer_than_he_said(server: Fork) -> None:
    store = client(server)
    line, threads = open_line(store), threading.active_count()
    server.signal(SIGSTOP)
    began = time.monotonic()
    with pytest.raises(StoreGoneError, match=r"the TCPStore at 127.0.0.1:\d+ has not answered for 0.3 s: its server"):
        line.ask(lambda store: store.add("a", 1), 0.3)
    assert 0.3 <= time.monotonic() - began < PATIENCE
    for _ in range(20):
        other = open_line(store)
        with pytest.raises(StoreGoneError):
            other.ask(lambda store: store.add("b", 1), 0.01)
        other.close()
    assert threading.active_count() == threads, "one thread waits, however often it is tried"
    server.signal(SIGCONT)
    assert line.ask(lambda store: store.add("c", 1), PATIENCE) == 1
    assert line.ask(lambda store: store.add("b", 1), PATIENCE) == 1, "what nobody waits for any more is not asked"
    line.close()
    until_ended(line)


def test_what_is_answered_too_late_is_undone(server: Fork) -> None:
    line = open_line(client(server))
    line.ask(lambda store: store.add("a", 1), PATIENCE)
    server.signal(SIGSTOP)
    with pytest.raises(StoreGoneError):
        line.ask(lambda store: store.add("a", 10), 0.2, undo=lambda store, _sum: store.add("a", -10))
    server.signal(SIGCONT)
    assert line.ask(lambda store: store.add("a", 1), PATIENCE) == 2
    line.close()
    until_ended(line)


def test_who_is_called_off_waits_no_longer(server: Fork) -> None:
    line, cancel = open_line(client(server)), threading.Event()
    server.signal(SIGSTOP)
    threading.Timer(0.2, cancel.set).start()
    began = time.monotonic()
    assert line.ask(lambda store: store.add("a", 1), 100.0, cancel=cancel) is None
    assert time.monotonic() - began < PATIENCE
    server.signal(SIGCONT)
    line.close()
    until_ended(line)


def test_a_server_that_is_killed_is_reported_at_once_and_not_asked_again(
    server: Fork, capfd: pytest.CaptureFixture[str]
) -> None:
    line = open_line(client(server))
    line.ask(lambda store: store.add("a", 1), PATIENCE)
    server.kill()
    began = time.monotonic()
    with pytest.raises(StoreGoneError, match="is gone: "):
        line.ask(lambda store: store.add("a", 1), 100.0)
    capfd.readouterr()
    with pytest.raises(StoreGoneError, match="is gone: "):
        line.ask(lambda store: store.add("a", 1), 100.0)
    assert time.monotonic() - began < PATIENCE
    assert capfd.readouterr().err == "", "torch prints a page for every operation on a lost connection"
    line.close()
    until_ended(line)


def test_a_wait_of_the_job_holds_up_its_connection_and_not_a_clone(server: Fork) -> None:
    store = client(server)

    def wait() -> None:
        with contextlib.suppress(RuntimeError):
            store.wait(["nothing"], timedelta(seconds=4))

    job = threading.Thread(target=wait)
    job.start()
    own = open_line(store.clone())
    assert own.ask(lambda store: store.add("a", 1), 3.0) == 1
    shared = open_line(store)
    with pytest.raises(StoreGoneError, match="or another thread of this process waits for a key in the same store"):
        shared.ask(lambda store: store.add("a", 1), 0.1)
    job.join()
    for line in (own, shared):
        line.close()
        until_ended(line)


def test_a_store_without_the_operations_says_which() -> None:
    class Without:
        def compare_set(self, *_: str) -> bytes:
            raise NotImplementedError("compare_set")

    line = open_line(Without())
    with pytest.raises(ClaimError, match="the Without of this process cannot hold claims: compare_set"):
        line.ask(lambda store: read(store, "a"), PATIENCE)
    line.close()
    until_ended(line)


def until_ended(line: Any) -> None:
    line._thread.join(PATIENCE)
    assert not line._thread.is_alive()


@pytest.mark.parametrize("state", ["stopped", "goes on after 0.1", "goes on after 1.3", "busy"])
def test_the_end_of_the_interpreter_is_no_abort_and_no_hang(nursery: Nursery, server: Fork, state: str) -> None:
    """torch's binding aborts when a thread comes back from an operation while the interpreter ends."""
    child = nursery.fork(f"""
import os, signal, subprocess, threading, time
from rankbind.runtime.line import open_line
line = open_line(dist.TCPStore("127.0.0.1", {server.says("port")}, None, False))
line.ask(lambda store: store.add("a", 1), 60)
if {state!r} == "busy":
    def again(store):
        store.add("a", 1)
        line.post(again)
    line.post(again)
else:
    os.kill({server.pid}, signal.SIGSTOP)
    line.post(lambda store: store.add("a", 1))
    time.sleep(0.1)
    if "after" in {state!r}:
        subprocess.Popen(["sh", "-c", "sleep {state.split()[-1]}; kill -CONT {server.pid}"])
""")
    began = time.monotonic()
    assert child.reap() == 0, child.said
    assert time.monotonic() - began < PATIENCE
    assert "terminate called" not in child.said
    server.signal(SIGCONT)
