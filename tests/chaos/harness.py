"""A chaos run: claimants are forked, stopped and killed, the disk and the records are spoiled, and all is written down.

A process of its own (``python -m tests.chaos.harness PLAN``), single-threaded so that it may fork, and in a mount
namespace of its own where the plan spoils the disk. It answers with one line of JSON, an `Outcome`; `history.check`
judges the log that it leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import json
import os
import random
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from . import claimant
from .claimant import Habits, Resource, Stage, Witness, stat_of
from .history import SECOND, Event, Log, Takeover, check, now, read, takeovers

_PLACES = [place for places in claimant.PLACES.values() for place in places]
ROOT = Path(__file__).parents[2]
_MS_RDONLY, _MS_BIND, _MNT_DETACH = 1, 4096, 2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MOST_FAILURES = 20
_PATIENCE = 60.0
"""Seconds for all to end, when they are told to."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run does.

    Attributes:
        design: of `claimant.DESIGNS`.
        kills: after so many the run is over.
        seconds: after so many it is over in any case.
        kill_every, pause_every, spoil_every, disk_every: mean seconds between two of them; 0: none.
        fates: share of claimants that stop at a point of their own, to be killed there.
        pause: seconds that a paused process stays so, at most.
        spoils: in which ways records are spoiled.
        disk: the runtime directory is a small file system of its own, which gets full and read-only.
    """

    design: str = "rankbind"
    resources: tuple[str, ...] = ()
    claimants: int = 32
    kills: int = 1000
    seconds: float = 300.0
    seed: int = 0
    kill_every: float = 0.1
    pause_every: float = 0.25
    spoil_every: float = 0.03
    disk_every: float = 0.0
    fates: float = 0.7
    pause: float = 0.3
    spoils: tuple[str, ...] = ()
    disk: bool = False
    habits: Habits = field(default_factory=Habits)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the harness itself saw; the rest is in the log.

    Attributes:
        seconds: that claimants were there.
        over: from when on (nanoseconds) nobody waited any more.
        faults: what the witness and the claimants found wrong.
        left: processes that did not end by themselves, though told to.
        ends: processes that ended without being killed, by exit status.
        done: how often each thing was done to them.
        unable: spans in which nobody could claim.
        paused: spans in which a process was stopped, with its pid.
    """

    seconds: float
    over: int
    faults: list[str]
    left: int
    ends: dict[str, int]
    done: dict[str, int]
    unable: list[tuple[int, int]]
    paused: list[tuple[int, int, int]]


@dataclass
class _Process:
    serial: int
    pid: int
    start: int
    fate: str
    killed: int = 0
    resource: str = ""
    note: str = ""
    waits: bool = False
    """At a point, for the harness."""
    paused: bool = False


class Harness:
    """One run in `folder`, which gets the log and everything else."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self._folder = plan, folder
        self._random = random.Random(plan.seed)
        self._resources = resources(folder, plan.resources)
        self._witness = Witness(tuple(sorted({name for each in self._resources for name in each.alone})))
        self._log = Log(folder / "log")
        self._faults = os.open(folder / "faults", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._reports, reports = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(reports, True)
        self._unread = b""
        self._runtime = folder / "mount" / "runtime"
        if plan.disk:
            _mount(b"tmpfs", folder / "mount", b"tmpfs", 0, b"size=256k,mode=700")
        self._runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        if plan.disk:
            (folder / "read-only").mkdir()
            _mount(bytes(self._runtime), folder / "read-only", None, _MS_BIND)
            _mount(None, folder / "read-only", None, _MS_BIND | _MS_RDONLY | 32)
        self._stage = Stage(
            design=plan.design,
            folder=self._runtime,
            log=self._log,
            witness=self._witness,
            faults=self._faults,
            reports=reports,
            habits=plan.habits,
        )
        self._serials = itertools.count(1)
        self._living: dict[int, _Process] = {}
        self._by_serial: dict[int, _Process] = {}
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._turns = itertools.count()
        self._done: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()
        self._unable: list[tuple[int, int]] = []
        self._paused: list[tuple[int, int, int]] = []
        self._over = False
        self._disk_is_bad = False

    # The run

    def run(self) -> Outcome:
        """All of it."""
        began = now()
        for _ in range(self.plan.claimants):
            self._fork()
        for every, act in (
            (self.plan.kill_every, self._kill_somebody),
            (self.plan.pause_every, self._pause_somebody),
            (self.plan.spoil_every, self._spoil_a_record),
            (self.plan.disk_every, self._spoil_the_disk),
        ):
            if every:
                self._regularly(every, act)
        until = began + int(self.plan.seconds * SECOND)
        # Claimants that fail by themselves are a finding already, and would only be forked anew for ever.
        while self._done["kills"] < self.plan.kills and now() < until and self._ends["1"] < _MOST_FAILURES:
            self._turn(until)
        over = now()
        left = self._end()
        self._tidy()
        faults = (self._folder / "faults").read_text().splitlines()
        return Outcome(
            seconds=(over - began) / SECOND,
            over=over,
            faults=faults,
            left=left,
            ends=dict(self._ends),
            done=dict(self._done),
            unable=self._unable,
            paused=self._paused,
        )

    def _turn(self, until: int) -> None:
        wait = min([until, *(at for at, _, _ in self._agenda[:1])]) - now()
        select.select([self._reports], [], [], max(0.0, min(wait / SECOND, 0.005)))
        self._hear()
        self._reap()
        while self._agenda and self._agenda[0][0] <= now():
            heapq.heappop(self._agenda)[2]()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (now() + int(seconds * SECOND), next(self._turns), act))

    def _regularly(self, every: float, act: Callable[[], None]) -> None:
        def again() -> None:
            if not self._over:
                act()
                self._later(self._random.uniform(0, 2 * every), again)

        self._later(self._random.uniform(0, 2 * every), again)

    def _end(self) -> int:
        """Let all go home. How many had to be killed for it."""
        self._over = True
        self._witness.stop()
        for act in [act for _, _, act in sorted(self._agenda)]:
            act()  # whatever was stopped or full is so no longer
        self._agenda.clear()
        until = now() + int(_PATIENCE * SECOND)
        while self._living and now() < until:
            self._turn(until)
            for process in self._living.values():
                if process.waits and not process.killed:
                    self._let_go_on(process)
        left = len(self._living)
        for process in list(self._living.values()):
            self._kill(process, "left")
        # Children of the dead are ours now. Those that only sleep are not waited for.
        for pid in _children():
            if pid not in self._living and Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                os.kill(pid, signal.SIGKILL)
        while now() < until + int(_PATIENCE * SECOND):
            self._reap()
            if not _children():
                break
            time.sleep(0.01)
        return left + len(_children())

    def _tidy(self) -> None:
        """Take every claim once more, now that nobody spoils anything. What then is left is left for good."""
        for path in [*self._runtime.rglob("*.json"), *self._runtime.rglob("*.tmp")]:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()  # a folder in place of a record is not ours to remove, says rankbind: it is the harness's
        for resource in self._resources:
            pid = os.fork()
            if not pid:
                claimant.once(self._stage, resource)
            if os.waitpid(pid, 0)[1]:
                os.write(self._faults, f"{resource.name}: could not be claimed in the end\n".encode())
        if self.plan.disk:
            # Seen from outside the namespace, too.
            shutil.copytree(self._runtime, self._folder / "runtime", symlinks=True)

    # Claimants

    def _fork(self) -> None:
        serial = next(self._serials)
        fate, countdown = "", 0
        if self.plan.design == "rankbind" and self._random.random() < self.plan.fates:
            # Of a few the one where the fewest were killed so far: some places are reached rarely.
            some = self._random.sample(_PLACES, 4)
            fate = min(some, key=lambda place: self._done[f"killed {place}"])
            countdown = self._random.randint(1, 2)
        seed = self._random.randrange(2**32)
        resource = self._resources[serial % len(self._resources)]
        pid = os.fork()
        if not pid:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            claimant.run(self._stage, resource, serial, fate, countdown, seed)
        found = stat_of(pid)
        assert found
        process = _Process(serial, pid, found[2], fate)
        self._living[pid] = self._by_serial[serial] = process

    def _hear(self) -> None:
        """Who has stopped at its point?"""
        try:
            self._unread += os.read(self._reports, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            serial, note, resource = line.decode().split("\t")
            process = self._by_serial[int(serial)]
            if process.killed or process.pid not in self._living:
                continue
            process.waits = True
            process.resource, process.note = resource, note
            if self._random.random() < 0.8:
                self._later(self._random.uniform(0, 0.02), partial(self._kill, process, note))
            else:
                self._done["held up at a point"] += 1
                pause = self._random.uniform(0, self.plan.pause)
                self._paused.append((process.pid, now(), now() + int((pause + 0.1) * SECOND)))
                self._later(pause, partial(self._let_go_on, process))

    def _let_go_on(self, process: _Process) -> None:
        if process.pid in self._living and not process.killed and process.waits:
            process.waits, process.resource, process.note = False, "", ""
            os.kill(process.pid, signal.SIGUSR1)

    def _kill(self, process: _Process, note: str) -> None:
        if process.pid not in self._living or process.killed or (self._over and note != "left"):
            return
        process.note = note
        self._done["kills"] += 1
        self._done[f"killed {note}"] += 1
        process.killed = now()
        os.kill(process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            process = self._living.pop(pid, None)
            if process is None:
                self._done["outlived its parent"] += 1
                continue
            seen = now()
            if process.killed:
                self._log.write(
                    Event(
                        kind="death",
                        resource=process.resource if process.waits else "",
                        token=0,
                        pid=pid,
                        start=process.start,
                        at=process.killed,
                        seen=seen,
                        note=process.note,
                    )
                )
            else:
                self._ends[str(os.waitstatus_to_exitcode(status))] += 1
            if not self._over:
                self._fork()

    # What is done to them

    def _somebody(self) -> _Process | None:
        """An owner mostly, else anybody; nobody that is stopped already."""
        inside = [self._witness.inside(name) for each in self._resources for name in each.alone]
        owners = [self._by_serial[serial] for serial in inside if serial]
        # Who is to be killed at a place of its own is left to get there, mostly.
        free = [each for each in owners if self._is_free(each) and (not each.fate or self._random.random() < 0.2)]
        if free and self._random.random() < 0.8:
            return self._random.choice(free)
        free = [each for each in self._living.values() if self._is_free(each) and not each.fate]
        return self._random.choice(free) if free else None

    def _is_free(self, process: _Process) -> bool:
        return process.pid in self._living and not (process.killed or process.waits or process.paused)

    def _kill_somebody(self) -> None:
        process = self._somebody()
        if process is not None:
            self._kill(process, "anywhere")

    def _pause_somebody(self) -> None:
        process = self._somebody()
        if process is None:
            return
        process.paused = True
        self._done["pauses"] += 1
        os.kill(process.pid, signal.SIGSTOP)
        began = now()
        self._later(self._random.uniform(0.05, self.plan.pause), partial(self._continue, process, began))

    def _continue(self, process: _Process, began: int) -> None:
        process.paused = False
        self._paused.append((process.pid, began, now()))
        if process.pid not in self._living or process.killed:
            return
        inside = any(self._witness.inside(name) == process.serial for each in self._resources for name in each.alone)
        self._done["paused as owner"] += inside
        if self._random.random() < 0.25 and not self._over:
            self._kill(process, "while paused")
        else:
            os.kill(process.pid, signal.SIGCONT)

    def _spoil_a_record(self) -> None:
        found = [*self._runtime.glob("*.json"), *self._runtime.glob("claims/*.json")]
        if not found or self._disk_is_bad:
            return
        path = self._random.choice(found)
        if self._random.random() < 0.1:
            path = path.with_suffix(".tmp")
        what = self._random.choice(self.plan.spoils or SPOILS)
        self._done[f"record: {what}"] += 1
        try:
            spoil(path, what, self._random)
        except OSError:
            self._done["record: not spoiled"] += 1

    def _spoil_the_disk(self) -> None:
        if self._disk_is_bad:
            return
        self._disk_is_bad = True
        seconds = self._random.uniform(0.1, 0.5)
        ballast = self._folder / "mount" / "ballast"
        if self._random.random() < 0.5:
            self._done["full disk"] += 1
            descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
            for size in (4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(descriptor, b"x" * size)
            os.close(descriptor)

            def better() -> None:
                ballast.unlink()
                self._disk_is_bad = False
        else:
            self._done["read-only directory"] += 1
            began = now()
            _mount(bytes(self._folder / "read-only"), self._runtime, None, _MS_BIND)

            def better() -> None:
                if _libc.umount2(bytes(self._runtime), _MNT_DETACH):
                    raise OSError(ctypes.get_errno(), "umount2")
                self._unable.append((began, now()))
                self._disk_is_bad = False

        self._later(seconds, better)


def resources(folder: Path, names: tuple[str, ...] = ()) -> list[Resource]:
    """What is contended for: every kind of thing that a claim can be of. Two want one address."""
    port = "tcp://*:29123", "tcp://127.0.0.1:29123"  # claimed, never bound
    found = [
        Resource(name="plain", alone=("plain",)),
        Resource(name="of a group", arguments={"group": {"pp": 1, "tp": 3}}, alone=("of a group",)),
        Resource(name="odd/na me.%2e", arguments={"deployment": "two"}, alone=("odd",)),
        Resource(
            name="file",
            arguments={"paths": [str(folder / "file")], "endpoints": {"bind": f"ipc://{folder}/socket"}},
            alone=("file",),
        ),
        Resource(name="tcp", arguments={"endpoints": {"bind": port[0]}}, alone=("tcp", "port")),
        Resource(
            name="tcp of another",
            arguments={"endpoints": {"bind": port[1]}, "deployment": "two"},
            alone=("tcp of another", "port"),
        ),
    ]
    return [each for each in found if not names or each.name in names]


def _garbage(text: bytes, randomly: random.Random) -> bytes:
    return randomly.randbytes(randomly.randint(1, 2000))


def _torn(text: bytes, randomly: random.Random) -> bytes:
    return text[: randomly.randint(0, len(text))]


def _odd(text: bytes, randomly: random.Random) -> bytes:
    """JSON, and of a record nearly."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = {}
    if isinstance(found, dict) and found:
        odd: list[object] = [None, True, -1, [], {}, "", 1e300, float("nan"), "\ud800", {"pid": "x"}]
        found[randomly.choice(sorted(found.keys() - {"token"}))] = randomly.choice(odd)
    return json.dumps(found).encode()


def _deep(text: bytes, randomly: random.Random) -> bytes:
    return b"[" * 50_000


_TEXTS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "garbage": _garbage,
    "torn": _torn,
    "odd": _odd,
    "deep": _deep,
}
SPOILS = ("missing", "a folder", "a link", "a pipe", *_TEXTS)


def spoil(path: Path, what: str, randomly: random.Random) -> None:
    """Put something else at `path`. Raises OSError where rankbind was faster.

    What is there may be a link or a pipe from the last time: nothing is ever opened that is not a file of its own, nor
    without O_NOFOLLOW, and links lead only to where nothing is and into the folder of the record itself.
    """
    text = b""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        if what in _TEXTS:
            text = _TEXTS[what](_text(path), randomly)
        path.unlink(missing_ok=what != "missing")
    if what == "a folder":
        path.mkdir()
    elif what == "a link":
        path.symlink_to(randomly.choice(["/nowhere/at/all", "decoy", path.name]))
    elif what == "a pipe":
        os.mkfifo(path)
    elif what in _TEXTS:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, text)
        finally:
            os.close(descriptor)


def _text(path: Path) -> bytes:
    """Of a file; of anything else none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 16) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: bytes | None, target: Path, kind: bytes | None, flags: int, options: bytes | None = None) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if _libc.mount(source, bytes(target), kind, ctypes.c_ulong(flags), options):
        raise OSError(ctypes.get_errno(), f"mount {target}")


# From outside


@dataclass(frozen=True)
class Report:
    """A run as the tests see it."""

    plan: Plan
    folder: Path
    outcome: Outcome
    events: list[Event]
    torn: int

    @property
    def runtime(self) -> Path:
        """The runtime directory, as it was in the end."""
        return self.folder / ("runtime" if self.plan.disk else "mount/runtime")

    def faults(self, within: float) -> list[str]:
        """Everything that may not happen and did."""
        judged = check(self.events, within=within, releases=True, until=self.outcome.over, unable=self.outcome.unable)
        return judged + self.outcome.faults

    def takeovers(self) -> list[Takeover]:
        """Those while the disk was good, by a successor that nobody stopped or killed meanwhile."""
        return [each for each in takeovers(self.events) if self._is_fair(each)]

    def _is_fair(self, takeover: Takeover) -> bool:
        by = takeover.by
        if by is None or by.kind != "acquire":
            return False
        spans = [*self.outcome.unable, *((a, b) for pid, a, b in self.outcome.paused if pid == by.pid)]
        return not any(a < by.at and b > takeover.end.at for a, b in spans)

    def summary(self) -> str:
        """For people."""
        kinds = Counter(each.kind for each in self.events)
        done = self.outcome.done
        lines = [
            f"{self.plan.design}: {self.plan.claimants} claimants, {self.outcome.seconds:.1f} s, seed {self.plan.seed}",
            f"  {kinds['acquire']:6} entries",
            f"  {done.get('kills', 0):6} kills",
            *(f"  {count:6} {what}" for what, count in sorted(done.items()) if what != "kills"),
        ]
        times = sorted(each.after / 1e6 for each in self.takeovers() if each.after is not None)
        if times:
            at = {share: times[min(len(times) - 1, int(share * len(times)))] for share in (0.5, 0.9, 0.99)}
            shares = ", ".join(f"p{100 * share:.0f} {value:.1f}" for share, value in at.items())
            lines.append(f"  {len(times)} takeovers, ms: {shares}, max {times[-1]:.1f}")
        everything = [each.after for each in takeovers(self.events) if each.after is not None]
        if everything:
            lines.append(f"  {len(everything)} with those that were held up: max {max(everything) / 1e6:.1f} ms")
        return "\n".join(lines)


def rehearse(plan: Plan, folder: Path) -> Report:
    """Run `plan` in a process of its own."""
    command = [sys.executable, "-m", "tests.chaos.harness", json.dumps(asdict(plan)), str(folder)]
    if plan.disk:
        command = [*namespace(), *command]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKBIND_")}
    with (folder / "answer").open("w+") as answer:  # not a pipe: who outlives the harness would keep it open
        process = subprocess.Popen(command, cwd=ROOT, stdout=answer, stderr=answer, env=environment)
        try:
            process.wait()
        finally:
            process.kill()
            process.wait()
        answer.seek(0)
        *said, last = answer.read().splitlines() or [""]
    if process.returncode or said:
        raise AssertionError(f"the harness failed ({process.returncode}):\n" + "\n".join([*said, last]))
    found = json.loads(last)
    spans = {name: [tuple(span) for span in found[name]] for name in ("unable", "paused")}
    events, torn = read(folder / "log")
    return Report(plan, folder, Outcome(**found | spans), events, torn)


def namespace() -> list[str]:
    """The command that gives what follows a mount namespace of its own; [] where that is not allowed."""
    if shutil.which("unshare"):
        for options in (["-m"], ["-rm"]):
            command = ["unshare", *options, "--propagation", "private"]
            if not subprocess.run([*command, "mount", "-t", "tmpfs", "x", "/tmp"], capture_output=True).returncode:
                return command
    return []


def _main() -> None:
    given = json.loads(sys.argv[1])
    habits = Habits(**given.pop("habits"))
    plan = Plan(**given | {"habits": habits})
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Imported before the forks, so that each costs little.
    import multiprocessing.process

    import filelock

    import rankbind.runtime.claim
    import rankbind.runtime.election

    assert all([filelock, rankbind.runtime.claim, rankbind.runtime.election, multiprocessing.process])
    print(json.dumps(asdict(Harness(plan, Path(sys.argv[2])).run())))


if __name__ == "__main__":
    _main()
