"""Claims across hosts, by the hazards: who dies, who is stopped, and what becomes of the store."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from rankbind.errors import ClaimedError, ClaimError, DeposedError, StoreGoneError
from rankbind.runtime import store as module
from rankbind.runtime.line import read
from rankbind.runtime.store import StoreClaim, claim_in_store, stand_by_in_store

from ..support.forks import SERVER, Fork, Nursery, a_store

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    dist = pytest.importorskip("torch.distributed")

PATIENCE = 30.0
KINDS = ("tcp", "file", "hash", "prefix")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("forks")) as made:
        yield made


@pytest.fixture
def server(nursery: Nursery) -> Iterator[Fork]:
    yield nursery.fork(SERVER)
    nursery.clear()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    for each in tuple(module._held):
        with contextlib.suppress(StoreGoneError):
            each.release()
    until(lambda: not any(thread.name.startswith("rankbind-") for thread in threading.enumerate()))


@pytest.fixture
def _far(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every other process were on another host, where its death cannot be seen."""
    monkeypatch.setattr(module, "_seen_dead", lambda holder: False)


def until(done: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def client(server: Fork) -> Any:
    return dist.TCPStore("127.0.0.1", int(server.says("port")), None, False, timeout=timedelta(seconds=5))


def owner(nursery: Nursery, folder: Path, more: str = "", **options: object) -> Fork:
    """A process that owns ``r`` in the FileStore of a folder."""
    made = nursery.fork(f"""
import signal, time
from rankbind.runtime.store import claim_in_store
claim = claim_in_store("r", store=dist.FileStore({str(folder / "store")!r}), rank=5, **{options!r})
print("token", claim.token, flush=True)
{more or "signal.pause()"}
""")
    made.says("token")
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_claimant_is_told_who_holds_it(kind: str, tmp_path: Path) -> None:
    store = a_store(kind, tmp_path)
    with claim_in_store(
        "r", group={"dp": 1}, store=store, rank=3, coordinates={"dp": 1}, declared="serve.py:7"
    ) as claim:
        claim.update(endpoints={"bind": "tcp://10.0.0.1:5557"}, notes={"é": "=;\n"})
        with pytest.raises(ClaimedError) as refusal:
            claim_in_store("r", group={"dp": 1}, store=store, rank=4)
        said = str(refusal.value)
        assert re.match(rf"default/r\[dp=1\] is held by rank 3 \(dp 1\), pid {os.getpid()} on \S+, since ", said)
        assert f"with token {claim.token}, in the " in said
        assert "tcp://10.0.0.1:5557" in said
        assert "serve.py:7" in said
        assert "rank 4" in said
        assert refusal.value.key == claim.key
        assert refusal.value.holder == claim.record
        with claim_in_store("r", group={"dp": 2}, store=store), claim_in_store("r", deployment="b", store=store):
            pass
    assert not claim.held
    with pytest.raises(ClaimError, match=r"default/r.* is not held by this process"):
        claim.check()


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_rise_and_keys_do_not_pile_up(kind: str, tmp_path: Path) -> None:
    store = a_store(kind, tmp_path)
    tokens = []
    for _ in range(50):
        with claim_in_store("r", store=store) as claim:
            tokens.append(claim.token)
    assert all(one < other for one, other in itertools.pairwise(tokens))
    assert claim.record.takeovers == 0
    if kind == "hash":
        assert store.num_keys() == 2
    if kind != "file":
        # A store started anew knows nothing of the old one, and a consumer may have outlived that.
        with claim_in_store("r", store=a_store(kind, tmp_path)) as claim:
            assert claim.token > tokens[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_of_threads_that_race_one_owns(kind: str, tmp_path: Path) -> None:
    store, won, barrier = a_store(kind, tmp_path), [], threading.Barrier(8)

    def race() -> None:
        barrier.wait()
        with contextlib.suppress(ClaimedError):
            won.append(claim_in_store("r", store=store))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


@pytest.mark.parametrize("how", ["add lost", "text lost"])
def test_a_token_is_greater_although_somebody_deleted_a_key(how: str) -> None:
    store = dist.HashStore()
    with claim_in_store("r", store=store) as claim:
        pass
    store.delete_key("rankbind/token/default/r" if how == "add lost" else "rankbind/claim/default/r")
    with claim_in_store("r", store=store) as again:
        assert again.token > claim.token


def test_something_else_under_the_key_is_no_claim() -> None:
    store = dist.HashStore()
    store.set("rankbind/claim/default/r", '{"hello": 1}')
    with pytest.raises(
        ClaimError, match=r"something else where a claim of this version of rankbind should be: '\{\"hel"
    ):
        claim_in_store("r", store=store)


@pytest.mark.parametrize("lease", [0.0, -1.0, 0.01, float("inf"), float("nan")])
def test_a_lease_that_is_none_is_refused(lease: float) -> None:
    with pytest.raises(ClaimError, match="a lease of"):
        claim_in_store("r", store=dist.HashStore(), lease=lease)


@pytest.mark.usefixtures("_far")
def test_without_a_lease_a_dead_owner_keeps_it_and_the_refusal_says_so(nursery: Nursery, tmp_path: Path) -> None:
    dead = owner(nursery, tmp_path)
    dead.kill()
    with pytest.raises(ClaimedError, match=f"cannot be seen from another host.*Look for pid {dead.pid} on "):
        claim_in_store("r", store=a_store("file", tmp_path), rank=1)


def test_a_death_that_can_be_seen_is_proof_enough(nursery: Nursery, tmp_path: Path) -> None:
    dead = owner(nursery, tmp_path)
    store = a_store("file", tmp_path)
    dead.signal(SIGSTOP)
    with pytest.raises(ClaimedError):
        claim_in_store("r", store=store)
    dead.kill()
    with claim_in_store("r", store=store) as claim:
        assert claim.token > int(dead.says("token"))
        assert claim.record.takeovers == 1


@pytest.mark.usefixtures("_far")
def test_a_dead_owner_is_followed_after_its_lease_and_not_before(nursery: Nursery, tmp_path: Path) -> None:
    dead = owner(nursery, tmp_path, lease=1.0)
    dead.kill()
    store, began = a_store("file", tmp_path), time.monotonic()
    with pytest.raises(
        ClaimedError, match=r"it is alive, or has been dead for less than its lease of 1 s: stand_by_in"
    ):
        claim_in_store("r", store=store)
    claim = stand_by_in_store("r", store=store)
    assert claim is not None
    assert 1.0 <= time.monotonic() - began < PATIENCE
    assert claim.token > int(dead.says("token"))
    claim.release()


@pytest.mark.usefixtures("_far")
def test_a_living_owner_keeps_its_lease_as_long_as_it_likes(tmp_path: Path) -> None:
    store, cancel = a_store("tcp", tmp_path), threading.Event()
    with claim_in_store("r", store=store, lease=1.2) as claim:
        threading.Timer(4.0, cancel.set).start()
        assert stand_by_in_store("r", store=store, cancel=cancel) is None
        assert claim.held
        claim.check()
    assert cancel.is_set()


def test_a_release_lets_a_stand_by_in_within_a_second(tmp_path: Path) -> None:
    store, found = a_store("tcp", tmp_path), []
    with claim_in_store("r", store=store):
        waiting = threading.Thread(target=lambda: found.append(stand_by_in_store("r", store=store)))
        waiting.start()
        time.sleep(0.3)
        assert not found
        released = time.monotonic()
    waiting.join(PATIENCE)
    assert time.monotonic() - released < 1.0
    found[0].release()


@pytest.mark.usefixtures("_far")
def test_an_owner_that_was_stopped_finds_itself_deposed_and_is_told_once(nursery: Nursery, tmp_path: Path) -> None:
    stopped = nursery.fork(f"""
import time
from rankbind.errors import DeposedError
from rankbind.runtime.store import claim_in_store
store = dist.FileStore({str(tmp_path / "store")!r})
def lost(error):
    print(f"lost {{error}}\\n", end="", flush=True)
claim = claim_in_store("r", store=store, lease=0.5, lost=lost)
print("token", claim.token, flush=True)
while claim.held:
    time.sleep(0.001)
while True:
    try:
        claim.check()
        print("wrong", flush=True)
    except DeposedError as error:
        if error.holder is not None:
            print(f"deposed {{claim.held}} {{error}}\\n", end="", flush=True)
            break
    time.sleep(0.01)
time.sleep(1)
""")
    old = int(stopped.says("token"))
    stopped.signal(SIGSTOP)
    claim = stand_by_in_store("r", store=a_store("file", tmp_path), rank=7, lease=30.0)
    assert claim is not None
    assert claim.token > old
    stopped.signal(SIGCONT)
    told = stopped.says("deposed")
    assert told.startswith(f"False default/r is not owned here any more (token {old}): since ")
    assert f"its owner is rank 7, pid {os.getpid()} on " in told
    assert f"with token {claim.token}. Stop using it" in told
    assert stopped.reap() == 0, stopped.said
    assert stopped.said.count("lost ") == 1
    assert "wrong" not in stopped.said
    assert claim.held
    claim.release()


@pytest.mark.usefixtures("_far")
def test_a_store_that_is_stopped_ends_the_lease_and_is_reported_in_time(server: Fork) -> None:
    store, lost = client(server), list[DeposedError]()
    claim = claim_in_store("r", store=store, lease=1.5, timeout=5.0, lost=lost.append)
    server.signal(SIGSTOP)
    began = time.monotonic()
    until(lambda: not claim.held)
    assert time.monotonic() - began < PATIENCE
    with pytest.raises(
        DeposedError, match=r"its lease of 1.5 s ran out before it was renewed, and the TCPStore at .* has not"
    ):
        claim.check()
    until(lambda: lost)
    assert isinstance(lost[0].__cause__, StoreGoneError)
    with pytest.raises(StoreGoneError, match=r"has not answered for 0\.3 s"):
        claim_in_store("q", store=store, timeout=0.3)
    with pytest.raises(StoreGoneError):
        stand_by_in_store("q", store=store, timeout=0.3)
    claim.release()
    server.signal(SIGCONT)
    # What was given up meanwhile does not stay claimed: neither what was lost, nor what came too late.
    other = client(server)
    for resource in ("r", "q"):
        until(lambda resource=resource: free(resource, other))
    assert len(lost) == 1


def free(resource: str, store: Any) -> bool:
    try:
        claim_in_store(resource, store=store).release()
    except ClaimedError:
        return False
    return True


def test_a_claim_that_is_answered_too_late_is_undone(server: Fork) -> None:
    """The server has the request, and grants it when nobody waits any more. Without a lease it would stay for ever."""
    store, other = client(server), client(server)
    original, stop = module._Claimant._next_token, threading.Event()

    def stopping(self: Any, line_store: Any, found: Any) -> int:
        token = original(self, line_store, found)
        server.signal(SIGSTOP)
        stop.set()
        return token

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Claimant, "_next_token", stopping)
        with pytest.raises(StoreGoneError):
            claim_in_store("r", store=store, timeout=3.0)
    assert stop.is_set()
    server.signal(SIGCONT)
    until(lambda: (text := read(other, "rankbind/claim/default/r")) is not None and '"released"' in text)
    claim_in_store("r", store=other).release()


def test_a_release_that_the_store_does_not_answer_is_said_and_made_up_for(server: Fork) -> None:
    claim = claim_in_store("r", store=client(server), timeout=2.0)
    server.signal(SIGSTOP)
    with pytest.raises(StoreGoneError):
        claim.release()
    assert not claim.held
    server.signal(SIGCONT)
    until(lambda: free("r", client(server)))


def test_an_error_within_is_not_hidden_by_a_store_that_is_gone(server: Fork) -> None:
    store = client(server)

    def within() -> None:
        with claim_in_store("r", store=store, timeout=3.0):
            server.kill()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        within()


@pytest.mark.usefixtures("_far")
def test_a_store_that_is_killed_is_reported_and_the_lease_ends(server: Fork) -> None:
    store, lost = client(server), list[DeposedError]()
    claim = claim_in_store("r", store=store, lease=1.0, lost=lost.append)
    server.kill()
    began = time.monotonic()
    with pytest.raises(StoreGoneError, match=r"the TCPStore at \S+ is gone: "):
        claim_in_store("q", store=store, timeout=100.0)
    assert time.monotonic() - began < PATIENCE
    until(lambda: lost)
    assert not claim.held


class Store:
    """A HashStore of which an operation can be made to fail after it was done."""

    def __init__(self) -> None:
        self.store, self.fails = dist.HashStore(), 0

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        found: bytes = self.store.compare_set(key, expected, desired)
        if self.fails and expected != desired:
            self.fails -= 1
            raise RuntimeError("timed out\nand a page of this")
        return found

    def add(self, key: str, value: int) -> int:
        return int(self.store.add(key, value))


@pytest.mark.usefixtures("_far")
def test_a_beat_that_was_written_although_it_failed_costs_nothing() -> None:
    store = Store()
    with claim_in_store("r", store=store, lease=4.0) as claim:
        store.fails = 1
        until(lambda: store.fails == 0)
        beat = claim._text.beat
        until(lambda: claim._text.beat >= beat + 2)
        claim.check()


def test_a_change_that_was_written_although_it_failed_is_gone_on_from() -> None:
    store = Store()
    with claim_in_store("r", store=store) as claim:
        store.fails = 1
        with pytest.raises(StoreGoneError, match="does not work: timed out"):
            claim.update(notes={"publisher": "restarted"})
        claim.update(notes={"publisher": "restarted 2 times"})
    claim_in_store("r", store=store).release()


def test_a_claim_that_was_written_although_it_failed_is_undone() -> None:
    store = Store()
    claim_in_store("r", store=store).release()
    store.fails = 1
    with pytest.raises(StoreGoneError, match=r"the Store of this process does not work: timed out$"):
        claim_in_store("r", store=store)
    claim_in_store("r", store=store).release()


@pytest.mark.parametrize("gone", ["deleted", "taken"])
def test_an_owner_whose_text_is_not_there_any_more_stops(gone: str) -> None:
    store, lost = dist.HashStore(), list[DeposedError]()
    claim = claim_in_store("r", store=store, lease=100.0, lost=lost.append)
    if gone == "deleted":
        store.delete_key("rankbind/claim/default/r")
    else:
        store.set("rankbind/claim/default/r", claim._text.text.replace(str(claim.token), str(claim.token + 1)))
    claim._next = 0.0
    module._keeper._changed.set()
    until(lambda: lost)
    assert not claim.held
    with pytest.raises(
        DeposedError, match="the store has lost it" if gone == "deleted" else "its owner is a process of"
    ):
        claim.check()


def test_a_forked_child_holds_nothing_and_gives_nothing_up(nursery: Nursery, tmp_path: Path) -> None:
    parent = owner(
        nursery,
        tmp_path,
        """
import os
from rankbind.errors import ClaimError
if os.fork() == 0:
    claim.release()
    try:
        claim.check()
    except ClaimError:
        print("child", claim.held, flush=True)
    raise SystemExit
os.wait()
print("parent", claim.held, flush=True)
signal.pause()
""",
        lease=30.0,
    )
    assert parent.says("child") == "False"
    assert parent.says("parent") == "True"
    with pytest.raises(ClaimedError):
        claim_in_store("r", store=a_store("file", tmp_path))
    parent.kill()


@pytest.mark.parametrize("how", ["exit", "spawned", "error"])
@pytest.mark.usefixtures("_far")
def test_an_orderly_end_releases(nursery: Nursery, tmp_path: Path, how: str) -> None:
    """Across hosts nobody would see it otherwise. multiprocessing ends its children without atexit."""
    ends = {"exit": "pass", "error": "1 / 0", "spawned": ""}
    if how == "spawned":
        process = nursery.fork(f"""
import multiprocessing
def run():
    from rankbind.runtime.store import claim_in_store
    print("token", claim_in_store("r", store=dist.FileStore({str(tmp_path / "store")!r})).token, flush=True)
multiprocessing.get_context("fork").Process(target=run).start()
""")
        process.says("token")
    else:
        process = owner(nursery, tmp_path, ends[how])
    assert process.reap() == (1 if how == "error" else 0), process.said
    claim_in_store("r", store=a_store("file", tmp_path)).release()


def test_the_jobs_own_store_is_found_and_torch_is_not_imported(nursery: Nursery, server: Fork) -> None:
    job = nursery.fork(f"""
store = dist.TCPStore("127.0.0.1", {server.says("port")}, None, False)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
from rankbind.runtime.store import claim_in_store
with claim_in_store("r") as claim:
    print("claim", claim, flush=True)
dist.destroy_process_group()
""")
    assert "default/r in the TCPStore at 127.0.0.1" in job.says("claim")
    assert job.reap() == 0, job.said
    with pytest.raises(ClaimError, match=r"there is no store to claim in: torch.distributed is not initialised"):
        claim_in_store("r")
    code = "import rankbind.runtime.store, sys; print([n for n in ('torch', 'filelock', 'zmq') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_claim_is_kept_by_nobody_who_refers_to_it(tmp_path: Path) -> None:
    store = a_store("hash", tmp_path)
    claim_in_store("r", store=store)
    with pytest.raises(ClaimedError, match="this very process holds it already"):
        claim_in_store("r", store=store)


def test_held_asks_nobody(server: Fork) -> None:
    claim: StoreClaim = claim_in_store("r", store=client(server), lease=60.0, timeout=5.0)
    server.signal(SIGSTOP)
    began = time.monotonic()
    for _ in range(1000):
        claim.check()
    assert time.monotonic() - began < 1.0
    server.signal(SIGCONT)
    claim.release()
