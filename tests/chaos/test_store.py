"""Sixteen processes claim across hosts, and whatever can fail does: owners, the store, the way to it, the link.

Every run leaves two histories. One is what a consumer behind a `Fence` accepted, and `history.check(fenced=True)` says
what a token promises. The other is when each owner was told by `check` that it is the owner, whatever the consumer made
of it, and it is judged as strictly as the history of one host: between the first and the last such moment of one owner
there is none of another. RANKBIND_CHAOS=n makes the runs n times longer.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from rankbind.runtime.fence import Fence

from ..support.namespaces import unavailable
from ..support.proxy import Proxy
from .history import Event, Log, check, now, read
from .ranks import Setup

ROOT = Path(__file__).parents[2]
RANKS = 16
RESOURCES = ("kv-events", "metrics", "balancer")
LONGER = float(os.environ.get("RANKBIND_CHAOS", "1"))
LEASE, TIMEOUT = 0.6, 3.0
PATIENCE = 40.0
"""Seconds for something that is to happen, on a machine that does much else."""
LATE = 10.0
"""Seconds that an error may come after its time-out, there."""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120 + 60 * LONGER)]


class Job:
    """Sixteen ranks, their store, and the consumer of what they do. `owners`: who acted last, by resource."""

    def __init__(self, folder: Path, *, fenced: bool = True, wrong: str = "", hosts: int = 0) -> None:
        self.history, self._socket = folder / "history", str(folder / "consumer")
        self.setup = Setup(
            log=str(self.history),
            consumer=self._socket,
            resources=RESOURCES,
            lease=LEASE,
            timeout=TIMEOUT,
            hosts=hosts,
            wrong=wrong,
        )
        self.log = Log(self.history)
        self.owners: dict[str, tuple[int, int, int]] = {}
        self.accepted: Counter[str] = Counter()
        self.checked: dict[tuple[str, int, int, int], list[int]] = {}
        self.said: list[dict[str, Any]] = []
        self.refused = 0
        self.running: dict[int, int] = {}
        self._fence = Fence() if fenced else None
        self._open: set[tuple[int, int]] = set()
        self._over = threading.Event()
        self._rank = 0

    def __enter__(self) -> Self:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._socket)
        self._listener.listen(64)
        self._consumer = threading.Thread(target=self._consume)
        self._consumer.start()
        command = [sys.executable, "-m", "tests.chaos.ranks", json.dumps(asdict(self.setup))]
        self.stderr = (self.history.parent / "stderr").open("w+")
        self._nursery = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, text=True
        )
        self.addresses: list[str] = self._answer()["ready"]
        self.server = self.ask(do="server", host=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.close()
        self._nursery.wait(60)
        self._nursery.stdout.close()
        self._over.set()
        self._consumer.join(30)
        self._listener.close()
        self.stderr.close()
        self.log.close()

    def ask(self, **what: Any) -> dict[str, Any]:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(json.dumps(what) + "\n")
        self._nursery.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._nursery.stdout is not None
        line = self._nursery.stdout.readline()
        assert line, (self.history.parent / "stderr").read_text()[-3000:]
        found: dict[str, Any] = json.loads(line)
        return found

    def start(self, port: int | None = None, host: int = 0) -> int:
        self._rank += 1
        at = [self.addresses[0], port or self.server["port"]]
        made = self.ask(do="rank", rank=self._rank, host=host, at=at)
        self.running[made["pid"]] = made["start"]
        return int(made["pid"])

    def kill(self, pid: int) -> None:
        at = now()
        os.kill(pid, signal.SIGKILL)
        self.ask(do="reap", pid=pid)
        start = self.running.pop(pid)
        # What it sent before it was killed is taken before it is written down as dead.
        self.until(lambda: (pid, start) not in self._open)
        self.log.write(Event(kind="death", resource="", token=0, pid=pid, start=start, at=at, seen=now()))

    def end(self) -> list[int]:
        """Have all ranks end by themselves; their exit statuses."""
        for pid in self.running:
            os.kill(pid, signal.SIGTERM)
        statuses = [self.reap(pid) for pid in self.running]
        self.running.clear()
        return statuses

    def reap(self, pid: int) -> int:
        """The exit status of one that ends by itself."""
        return int(self.ask(do="reap", pid=pid)["status"])

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, self._state()
            time.sleep(0.005)

    def _state(self) -> str:
        """What all are doing, for a run that does not go on."""
        for pid in self.running:
            os.kill(pid, signal.SIGUSR1)
        time.sleep(1)
        errors = Counter(each["error"] for each in self.told("error"))
        stacks = (self.history.parent / "stderr").read_text()[-20_000:]
        return f"accepted {self.accepted}, owners {self.owners}, errors {errors}\n{stacks}"

    def until_all_act(self) -> None:
        """Every resource has an owner that is heard, from now on."""
        before = self.accepted.copy()
        self.until(lambda: all(self.accepted[each] > before[each] for each in RESOURCES))

    def faults(self) -> list[str]:
        events, _torn = read(self.history)
        return check(events, fenced=True, over=not self.running)

    def strict_faults(self) -> list[str]:
        """What is wrong with when the owners were told that they are."""
        events = []
        for (resource, token, pid, start), moments in self.checked.items():
            for kind, at in (("acquire", moments[0]), ("release", moments[-1])):
                events.append(Event(kind=kind, resource=resource, token=token, pid=pid, start=start, at=at))  # type: ignore[arg-type]
        return check(events)

    def told(self, word: str) -> list[dict[str, Any]]:
        return [each for each in self.said if word in each]

    def _consume(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)
        who: dict[socket.socket, tuple[int, int]] = {}
        rest: dict[socket.socket, bytes] = {}
        while not self._over.is_set():
            for key, _ in selector.select(0.1):
                if key.fileobj is self._listener:
                    connection, _address = self._listener.accept()
                    selector.register(connection, selectors.EVENT_READ)
                    rest[connection] = b""
                    continue
                connection = key.fileobj  # type: ignore[assignment]
                try:
                    data = connection.recv(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    selector.unregister(connection)
                    connection.close()
                    self._open.discard(who.pop(connection, (0, 0)))
                    continue
                *lines, rest[connection] = (rest[connection] + data).split(b"\n")
                for line in lines:
                    what = json.loads(line)
                    who[connection] = what["pid"], what["start"]
                    self._open.add(who[connection])
                    reply = b"1" if self._take(what) else b"0"
                    try:
                        connection.sendall(reply)
                    except OSError:
                        break
        for connection in [key.fileobj for key in selector.get_map().values()]:
            if connection is not self._listener:
                connection.close()  # type: ignore[union-attr]
        selector.close()

    def _take(self, what: dict[str, Any]) -> bool:
        if "act" not in what:
            self.said.append(what)
            return True
        resource, token, pid, start = what["act"], what["token"], what["pid"], what["start"]
        self.checked.setdefault((resource, token, pid, start), []).append(what["checked"])
        if self._fence is not None and not self._fence.admit(resource, token):
            self.refused += 1
            return False
        self.log.write(Event(kind="act", resource=resource, token=token, pid=pid, start=start, at=now()))
        self.accepted[resource] += 1
        self.owners[resource] = pid, start, token
        return True


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def rounds(job: Job, seconds: float, *faults: Callable[[random.Random], None]) -> Counter[str]:
    """One fault after the other: each of them twice, and then any for as long as there is time."""
    chosen, counts = random.Random(7), Counter[str]()
    due = [*faults, *faults]
    chosen.shuffle(due)
    end = time.monotonic() + seconds * LONGER
    while due or time.monotonic() < end:
        fault = due.pop() if due else chosen.choice(faults)
        job.until_all_act()
        fault(chosen)
        counts[fault.__name__] += 1
    job.until_all_act()
    return counts


def report(name: str, job: Job, **more: object) -> None:
    tokens = {each: len({key[1] for key in job.checked if key[0] == each}) for each in RESOURCES}
    acts = sum(job.accepted.values())
    lost = len(job.told("lost"))
    print(f"\n{name}: owners {tokens}, acts {acts} accepted and {job.refused} refused, lost {lost}, {more}")


def test_owners_killed_and_stopped_and_a_slow_and_a_stopped_store(tmp_path: Path) -> None:
    with Job(tmp_path) as job, Proxy(job.server["port"]) as proxy:
        for _ in range(RANKS):
            job.start(proxy.port)

        def some_owner(chosen: random.Random) -> int:
            return job.owners[chosen.choice(RESOURCES)][0]

        def kill(chosen: random.Random) -> None:
            job.kill(some_owner(chosen))
            job.start(proxy.port)

        def stop(chosen: random.Random) -> None:
            with stopped(some_owner(chosen)):
                time.sleep(LEASE * 1.5)

        def stop_and_kill(chosen: random.Random) -> None:
            pid = some_owner(chosen)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(LEASE * chosen.random() * 2)
            job.kill(pid)
            job.start(proxy.port)

        def slow(chosen: random.Random) -> None:
            proxy.delay = chosen.choice((0.01, 0.05, 0.2))
            time.sleep(LEASE)
            proxy.delay = 0.0

        def stop_store(chosen: random.Random) -> None:
            with stopped(job.server["pid"]):
                time.sleep(LEASE * chosen.choice((0.5, 0.9, 1.5)))

        counts = rounds(job, 6, kill, stop, stop_and_kill, slow, stop_store)
        assert set(job.end()) == {0}
        report("killed and stopped", job, faults=dict(counts))
        assert job.faults() == []
        assert job.strict_faults() == []
        assert {each["times"] for each in job.told("lost")} <= {1}


def test_a_store_that_is_stopped_and_then_killed_is_reported_in_time(tmp_path: Path) -> None:
    with Job(tmp_path) as job:
        for _ in range(RANKS):
            job.start()
        job.until_all_act()
        with stopped(job.server["pid"]):
            # Each of them waits for a resource that it cannot get, or has lost the one it had.
            job.until(lambda: len({each["pid"] for each in job.told("gone")}) == RANKS)
        late = [each["gone"] for each in job.told("gone")]
        assert max(late) < TIMEOUT + LATE
        assert job.told("lost")
        assert all("has not answered" in each["error"] for each in job.told("gone"))
        job.until_all_act()
        job.said.clear()
        os.kill(job.server["pid"], signal.SIGKILL)
        job.ask(do="reap", pid=job.server["pid"])
        asked = time.monotonic()
        # Nobody is told to end: they do because there is nothing left to claim in.
        statuses = [job.reap(pid) for pid in job.running]
        took = time.monotonic() - asked
        report("store gone", job, stopped_reported_after=f"{min(late):.2f} to {max(late):.2f} s", ended_after=took)
        assert statuses == [0] * RANKS
        assert took < TIMEOUT + LATE
        assert len({each["pid"] for each in job.told("gone") if "is gone" in each["error"]}) == RANKS
        assert job.faults() == []
        assert job.strict_faults() == []


@pytest.mark.skipif(unavailable() is not None, reason=f"no network namespaces here: {unavailable()}")
def test_two_hosts_whose_link_is_cut_and_restored(tmp_path: Path) -> None:
    with Job(tmp_path, hosts=2) as job:
        far = {job.start(host=rank % 2) for rank in range(RANKS) if rank % 2}
        for _ in range(RANKS // 2):
            job.start(host=0)
        moved = 0

        def cut(chosen: random.Random) -> None:
            nonlocal moved
            job.until(lambda: any(owner[0] in far for owner in job.owners.values()))
            cut_off = {each: owner for each, owner in job.owners.items() if owner[0] in far}
            job.ask(do="cut", host=1)
            # The consumer still hears them: only the way to the store is cut.
            job.until(lambda: all(job.owners[each] != owner for each, owner in cut_off.items()))
            job.until(lambda: all(job.owners[each][0] not in far for each in RESOURCES))
            moved += len(cut_off)
            time.sleep(LEASE * chosen.random())
            job.ask(do="restore", host=1)

        def kill(chosen: random.Random) -> None:
            pid = job.owners[chosen.choice(RESOURCES)][0]
            job.kill(pid)
            new = job.start(host=int(pid in far))
            if pid in far:
                far.add(new)

        counts = rounds(job, 4, cut, kill)
        job.until(lambda: any(owner[0] in far for owner in job.owners.values()))
        assert set(job.end()) == {0}
        report("link cut", job, faults=dict(counts), moved=moved)
        assert moved > 0
        assert max((each["gone"] for each in job.told("gone")), default=0.0) < TIMEOUT + LATE
        assert job.faults() == []
        assert job.strict_faults() == []


@pytest.mark.parametrize("wrong", ["no fence", "clock"])
def test_a_lease_without_its_other_half_is_caught(tmp_path: Path, wrong: str) -> None:
    """The positive controls: a consumer that takes no notice of the token; an owner that does not watch its lease."""
    with Job(tmp_path, fenced=wrong != "no fence", wrong=wrong) as job:
        for _ in range(RANKS):
            job.start()
        job.until_all_act()
        end = time.monotonic() + PATIENCE
        while not (found := job.faults() if wrong == "no fence" else job.strict_faults()):
            assert time.monotonic() < end, "the harness does not see the fault that it is there for"
            resource = random.choice(RESOURCES)
            with stopped(job.owners[resource][0]):
                time.sleep(LEASE * 1.5)
                job.until_all_act()
        job.end()
        report(wrong, job, caught=found[0])
        assert ("accepted after one with" if wrong == "no fence" else "both owned it") in found[0]
