"""One process of a chaos run: it claims, uses what it got, lets go, again and again, until it is killed somewhere.

Forked by the harness. What it wants is a `Resource`, how it gets it a `Design`: rankbind's claims, or one of the wrong
ways that the harness has to catch. A `Points` stops it at one exact place (between the lock and the record, say) until
the harness kills it or lets it go on; the places inside rankbind are reached by wrapping its functions, in this process
only.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import json
import mmap
import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .history import Event, Log, now

MOST_CLAIMANTS = 1 << 17
_PF_EXITING = 0x4


@dataclass(frozen=True, kw_only=True)
class Resource:
    """What is claimed.

    Attributes:
        arguments: for `claim`, besides the name.
        alone: what its owner has for itself: other resources may share some of it.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    alone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Habits:
    """How a claimant behaves, all drawn at random.

    Attributes:
        dwell: seconds that it owns, at most.
        wait: seconds between two tries, at most.
        standby: share of claimants that stand by as `rankbind.runtime.election` does; the others try again and again.
        forks: share of ownerships in which a child is made.
        outlives: seconds that some of those children live.
        exits: share of ownerships after which the process ends in order, without a release of its own.
    """

    dwell: float = 0.006
    wait: float = 0.08
    standby: float = 0.7
    forks: float = 0.02
    outlives: float = 20.0
    exits: float = 0.01


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """State, flags and start of a process; None if there is none. proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[6]), int(fields[19])


def runs(pid: int, start: int) -> bool:
    """Whether that process may still execute something. On its way out it drops its locks before it is a zombie."""
    found = stat_of(pid)
    return found is not None and found[2] == start and found[0] not in "ZX" and not found[1] & _PF_EXITING


class Witness:
    """Who is inside, in shared memory: one number for each thing that is one owner's alone. It trusts no log.

    Owners write themselves in and out. A mark that is found is of somebody who was killed inside, or there are two.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        size = 8 * (1 + len(names) + 2 * MOST_CLAIMANTS)
        self._memory = mmap.mmap(-1, size)
        self._stop = ctypes.c_uint64.from_buffer(self._memory, 0)
        self._marks = {name: ctypes.c_uint64.from_buffer(self._memory, 8 * (1 + i)) for i, name in enumerate(names)}
        kind = ctypes.c_uint64 * (2 * MOST_CLAIMANTS)
        self._who = kind.from_buffer(self._memory, 8 * (1 + len(names)))

    @property
    def over(self) -> bool:
        """Whether everybody should end."""
        return bool(self._stop.value)

    def stop(self) -> None:
        """Let everybody end."""
        self._stop.value = 1

    def introduce(self, serial: int, pid: int, start: int) -> None:
        """Tell who claimant `serial` is."""
        self._who[2 * serial], self._who[2 * serial + 1] = pid, start

    def inside(self, name: str) -> int:
        """The serial of whoever is marked inside; 0 if nobody is."""
        return int(self._marks[name].value)

    def enter(self, name: str, serial: int) -> str:
        """Write oneself in. What is wrong, or an empty text."""
        mark = self._marks[name]
        other = int(mark.value)
        mark.value = serial
        pid, start = self._who[2 * other], self._who[2 * other + 1]
        if other and other != serial and runs(pid, start):
            return f"{name}: claimant {serial} entered while {other} (pid {pid}, {stat_of(pid)}) was inside"
        return ""

    def still(self, name: str, serial: int, last: bool = False) -> str:
        """Look, from inside, whether one is alone; `last`: and write oneself out. What is wrong, or an empty text."""
        mark = self._marks[name]
        found = int(mark.value)
        if last:
            mark.value = 0
        return (
            "" if found == serial else f"{name}: claimant {serial} was inside and found {found or 'nobody'} written in"
        )


class Over(threading.Event):
    """Set when the run is over."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    def is_set(self) -> bool:
        """Whether it is."""
        return self._witness.over


class Points:
    """Places where a claimant can be stopped; it stops at one of them, the n-th time that it gets there."""

    def __init__(self, tell: Callable[[str, bool], None], fate: str, countdown: int) -> None:
        self._tell, self._fate, self._countdown = tell, fate, countdown
        self.phase = "claiming"
        self.locked = False

    @property
    def anew(self) -> bool:
        """Whether the place is one of those where a release writes its record anew: only when it finds none."""
        return self.phase == "releasing" and self._fate in REWRITTEN

    def due(self, place: str) -> bool:
        """Whether this is the place and the time."""
        if f"{self.phase}: {place}" != self._fate:
            return False
        self._countdown -= 1
        return self._countdown == 0

    def reach(self, place: str) -> None:
        """Stop here if it is due."""
        if self.due(place):
            self.stop(place)

    def stop(self, place: str) -> None:
        """Tell the harness, and wait for what it does."""
        self._tell(f"{self.phase}: {place}", self.locked)
        signal.sigwait([signal.SIGUSR1])


class Held(Protocol):
    """A claim of any design."""

    @property
    def token(self) -> int:
        """Rises with every claim."""

    @property
    def held(self) -> bool:
        """Whether this process holds it."""

    def release(self) -> None:
        """Let go."""


class Design(Protocol):
    """A way to be the only one."""

    def acquire(self, resource: Resource, over: Over) -> Held | None:
        """The claim, or None: try again later."""


# rankbind's own

PLACES = {
    "before the lock": ("claiming: before the lock",),
    "between lock and record": (
        "claiming: after the lock",
        "claiming: before an address",
        "claiming: after an address",
        "claiming: before the record",
        "claiming: half a record",
        "claiming: before the rename",
        "claiming: after the rename",
    ),
    "while creating": ("owning: creating", "owning: half a record", "owning: before the rename"),
    "while releasing": (
        "releasing: at once",
        "releasing: before letting go of an address",
        "releasing: after letting go of an address",
        "releasing: half a record",
        "releasing: before the rename",
        "releasing: after the rename",
        "releasing: before letting go of the lock",
        "releasing: after letting go of the lock",
    ),
}
"""Where a claimant can be stopped, and so killed exactly there."""

REWRITTEN = {f"releasing: {place}" for place in ("half a record", "before the rename", "after the rename")}


class Rankbind:
    """The claims of `rankbind.runtime.claim`."""

    def __init__(self, folder: Path, points: Points, standby: bool) -> None:
        os.environ["RANKBIND_DIR"] = str(folder)
        _wrap(points)
        self._points, self._standby = points, standby

    def acquire(self, resource: Resource, over: Over) -> Held | None:
        """At once or not at all, unless it stands by."""
        from rankbind.errors import ClaimError
        from rankbind.runtime.claim import Claim, claim
        from rankbind.runtime.election import wait_for_claim

        def attempt() -> Claim:
            self._points.locked = False
            return claim(resource.name, **resource.arguments)

        try:
            return wait_for_claim(attempt, over) if self._standby else attempt()
        except ClaimError:
            return None


def _wrap(points: Points) -> None:
    """Put the places into rankbind. Should what is wrapped not be called any more, a test misses the kills there."""
    from rankbind.runtime import atomic, record
    from rankbind.runtime import lock as locks
    from rankbind.runtime.lock import Lock

    def what(path: str) -> str:
        above, name = path.split("/")[-2:]
        return "the lock" if above == "claims" else "the mutex" if name == "mutex" else "an address"

    take, write, release = locks.take, record.write, Lock.release

    def taking(path: str, patience: float = 0.0) -> Lock | None:
        points.reach(f"before {what(path)}")
        lock = take(path, patience)
        if lock is not None:
            points.locked |= what(path) == "the lock"
            points.reach(f"after {what(path)}")
        return lock

    def writing(path: str | Path, record: record.Record) -> bool:
        points.reach("before the record")
        return write(path, record)

    def releasing(self: Lock) -> None:
        points.reach(f"before letting go of {what(self.path)}")
        release(self)
        points.locked &= what(self.path) != "the lock"
        points.reach(f"after letting go of {what(self.path)}")

    class Os:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, descriptor: int, data: bytes) -> int:
            if points.due("half a record"):
                half = os.write(descriptor, data[: len(data) // 2])
                points.stop("half a record")
                return half + os.write(descriptor, data[half:])
            return os.write(descriptor, data)

        def replace(self, source: str, target: str) -> None:
            points.reach("before the rename")
            Path(source).replace(target)
            points.reach("after the rename")

    for module, name, wrapped in (
        (locks, "take", taking),
        (record, "write", writing),
        (atomic, "os", Os()),
        (Lock, "release", releasing),
    ):
        setattr(module, name, wrapped)


# Others, right and wrong


class Flock:
    """flock(2) alone, as it should be used: never unlinked, closed in forked children."""

    closed_in_children = True

    def __init__(self, folder: Path, points: Points, standby: bool) -> None:
        self._folder, self._points = folder, points

    def acquire(self, resource: Resource, over: Over) -> Held | None:
        """Without waiting."""
        self._points.reach("before the lock")
        lock = self._folder / f"{resource.name}.lock"
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | self._waiting)
        except BlockingIOError:
            os.close(descriptor)
            return None
        self._points.locked = True
        self._points.reach("after the lock")
        held = HeldFlock(self, descriptor, lock, self._token(lock.with_suffix(".json")))
        if self.closed_in_children:
            os.register_at_fork(after_in_child=held.forget)
        return held

    _waiting = fcntl.LOCK_NB

    def _token(self, path: Path) -> int:
        token = max(self._last(path) + 1, time.time_ns() // 1000)
        path.write_text(str(token))
        return token

    def _last(self, path: Path) -> int:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            return 0

    def let_go(self, descriptor: int, lock: Path) -> None:
        """Release."""
        os.close(descriptor)


class HeldFlock:
    """A claim of `Flock`."""

    def __init__(self, design: Flock, descriptor: int, lock: Path, token: int) -> None:
        self._design, self._descriptor, self._lock, self.token = design, descriptor, lock, token
        self.held = True

    def release(self) -> None:
        """Let go."""
        if self.held:
            self.held = False
            self._design.let_go(self._descriptor, self._lock)

    def forget(self) -> None:
        """In a child: it is the parent's."""
        if self.held:
            self.held = False
            os.close(self._descriptor)


class Unlinked(Flock):
    """WRONG: the lock file is removed at release, so who waits for it gets another lock than who comes later."""

    _waiting = 0

    def let_go(self, descriptor: int, lock: Path) -> None:
        """Release."""
        lock.unlink(missing_ok=True)
        os.close(descriptor)


class Inherited(Flock):
    """WRONG: children that are forked keep the lock (R17)."""

    closed_in_children = False


class Forgetful(Flock):
    """WRONG: the token is the last one plus one, and the record that has it can be lost."""

    def _token(self, path: Path) -> int:
        token = self._last(path) + 1
        with contextlib.suppress(OSError):
            path.write_text(str(token))
        return token


class Lease:
    """WRONG: it ends after a while, and a paused owner does not notice. Its token is asked for by no consumer."""

    seconds = 0.1

    def __init__(self, folder: Path, points: Points, standby: bool) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def lease(self, name: str) -> Iterator[dict[str, Any]]:
        """What is agreed on, to be read and changed by one process at a time."""
        with (self._folder / f"{name}.lock").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            found = json.loads(file.read() or "null") or {"token": 0, "until": 0.0}
            yield found
            file.truncate(0)
            file.write(json.dumps(found))

    def acquire(self, resource: Resource, over: Over) -> Held | None:
        """If nobody has a lease."""
        with self.lease(resource.name) as found:
            if found["until"] > time.monotonic():
                return None
            found["token"] += 1
            found["until"] = time.monotonic() + self.seconds
            return HeldLease(self, resource.name, found["token"])


class HeldLease:
    """A claim of `Lease`."""

    def __init__(self, design: Lease, name: str, token: int) -> None:
        self._design, self._name, self.token, self._pid, self._mine = design, name, token, os.getpid(), True

    @property
    def held(self) -> bool:
        """As far as it knows."""
        return self._mine and self._pid == os.getpid()

    def release(self) -> None:
        """Let go."""
        if self.held:
            self._mine = False
            with self._design.lease(self._name) as found:
                if found["token"] == self.token:
                    found["until"] = 0.0


DESIGNS: Mapping[str, Callable[[Path, Points, bool], Design]] = {
    "rankbind": Rankbind,
    "flock": Flock,
    "unlinked": Unlinked,
    "lease": Lease,
    "inherited": Inherited,
    "forgetful": Forgetful,
}


# The process


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What all claimants of a run share."""

    design: str
    folder: Path
    log: Log
    witness: Witness
    faults: int
    """Descriptor of the file that takes what is wrong, a line each."""
    reports: int
    """Descriptor of the pipe to the harness: a line for everybody who has stopped at a point."""
    habits: Habits


class Claimant:
    """One of many."""

    def __init__(self, stage: Stage, resource: Resource, serial: int, fate: str, countdown: int, seed: int) -> None:
        self._stage, self._resource, self._serial = stage, resource, serial
        self._random = random.Random(seed)
        self._points = Points(self._report, fate, countdown)
        standby = self._random.random() < stage.habits.standby
        self._design = DESIGNS[stage.design](stage.folder, self._points, standby)
        self._over = Over(stage.witness)
        self._pid = os.getpid()
        found = stat_of(self._pid)
        self._start = found[2] if found else 0
        stage.witness.introduce(serial, self._pid, self._start)

    def live(self) -> None:
        """Until the run is over, or something is."""
        habits, draw = self._stage.habits, self._random
        while not self._over.is_set():
            self._points.phase = "claiming"
            held = self._design.acquire(self._resource, self._over)
            if held is None:
                self._points.locked = False
                time.sleep(draw.uniform(habits.wait / 4, habits.wait))
                continue
            self._write("acquire", held)
            self._points.phase = "owning"
            for name in self._resource.alone:
                self._wrong(self._stage.witness.enter(name, self._serial))
            self._own(held)
            for name in self._resource.alone:
                self._wrong(self._stage.witness.still(name, self._serial, last=True))
            self._points.phase = "releasing"
            self._write("release", held)
            if draw.random() < habits.exits:
                return
            self._points.reach("at once")
            if self._points.anew:
                with contextlib.suppress(OSError):
                    Path(held._hold.record_path).unlink()  # type: ignore[attr-defined]
            held.release()
            if held.held:
                self._wrong(f"{self._resource.name}: held after release")
            time.sleep(draw.uniform(0, habits.wait))

    def _own(self, held: Held) -> None:
        draw, habits = self._random, self._stage.habits
        if not held.held:
            self._wrong(f"{self._resource.name}: not held after acquire")
        until = time.monotonic() + draw.uniform(0, habits.dwell)
        if draw.random() < habits.forks:
            self._fork(held)
        self._points.reach("creating")
        while True:
            self._write("act", held)
            for name in self._resource.alone:
                self._wrong(self._stage.witness.still(name, self._serial))
            if time.monotonic() >= until:
                break
            time.sleep(draw.uniform(0, habits.dwell / 2))
        if hasattr(held, "update") and draw.random() < 0.5:
            held.update(notes={"seen": str(self._serial)})

    def _fork(self, held: Held) -> None:
        """A child, of one of three kinds, that may live longer than this process."""
        seconds = self._stage.habits.outlives if self._random.random() < 0.3 else self._random.uniform(0, 0.3)
        kind = self._random.choice(["fork", "fork", "multiprocessing", "subprocess"])
        if kind == "subprocess":
            # Left to itself on purpose; the harness ends it.
            child = subprocess.Popen(["sleep", str(seconds)], close_fds=False)
            child.returncode = 0
        elif kind == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=self._child, args=(held, seconds))
            process.start()
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
        elif not os.fork():
            try:
                self._child(held, seconds)
                if self._random.random() < 0.5:
                    atexit._run_exitfuncs()
            except BaseException:
                self._wrong(traceback.format_exc())
            finally:
                os._exit(0)

    def _child(self, held: Held, seconds: float) -> None:
        """It has its parent's memory, and must have nothing of its claim."""
        until = time.monotonic() + seconds
        if held.held:
            self._write("act", held)
            self._wrong(f"{self._resource.name}: a forked child believes that it holds")
        if hasattr(held, "update"):
            from rankbind.errors import ClaimError

            with contextlib.suppress(ClaimError):
                held.update(notes={"child": "yes"})
                self._wrong(f"{self._resource.name}: a forked child could update the record")
        kept = [path for path in _open_files() if path.suffix == ".lock"]
        if kept:
            self._wrong(f"{self._resource.name}: a forked child has {kept[0]} open")
        if self._random.random() < 0.5:
            held.release()
        while time.monotonic() < until and not self._stage.witness.over:
            time.sleep(0.1)

    def _write(self, kind: Any, held: Held) -> None:
        # Of a child: its own pid, though not its own start. It is nobody that could own.
        self._stage.log.write(
            Event(
                kind=kind,
                resource=self._resource.name,
                token=held.token,
                pid=os.getpid(),
                start=self._start,
                at=now(),
            )
        )

    def _wrong(self, what: str) -> None:
        if what:
            os.write(self._stage.faults, f"{what.strip()}\n".encode())

    def _report(self, place: str, locked: bool) -> None:
        os.write(self._stage.reports, f"{self._serial}\t{place}\t{self._resource.name if locked else ''}\n".encode())


def _open_files() -> Iterator[Path]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            yield descriptor.readlink()


def run(stage: Stage, resource: Resource, serial: int, fate: str, countdown: int, seed: int) -> None:
    """The life of a process that was just forked for it. Does not return."""
    with _leaving(stage):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        Claimant(stage, resource, serial, fate, countdown, seed).live()
        atexit._run_exitfuncs()


def once(stage: Stage, resource: Resource) -> None:
    """Claim and release, in a process that was just forked for it. Does not return."""
    with _leaving(stage):
        points = Points(lambda place, locked: None, "", 0)
        held = DESIGNS[stage.design](stage.folder, points, False).acquire(resource, Over(stage.witness))
        if held is None:
            raise RuntimeError(f"{resource.name} is not free")
        held.release()


@contextlib.contextmanager
def _leaving(stage: Stage) -> Iterator[None]:
    """The process ends with it."""
    code = 1
    try:
        yield
        code = 0
    except BaseException:
        os.write(stage.faults, f"a claimant failed: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(code)
