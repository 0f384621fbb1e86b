"""A process of this host or another, told apart from whoever gets its pid next.

Facts from proc_pid_stat(5), namespaces(7) and random(4), "boot_id".
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Liveness = Literal["alive", "paused", "dead", "unknown"]
"""``paused``: stopped by a signal or a debugger. ``unknown``: it is on another host, or in another pid namespace."""

_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_PID = 1 << 22
"""PID_MAX_LIMIT of a 64-bit kernel (proc_sys_kernel(5), "pid_max")."""


@dataclass(frozen=True, slots=True)
class Process:
    """Which process: a pid alone may be somebody else's by now.

    Attributes:
        start: when it started, in clock ticks since the boot; 0 if it could not be found out.
        boot: the boot id of its host.
        pid_ns, net_ns: inode numbers of its pid and network namespaces; 0 if they could not be found out.
    """

    pid: int
    start: int
    boot: str
    pid_ns: int
    net_ns: int

    @classmethod
    def me(cls) -> Process:
        """This process, in the network namespace of the calling thread."""
        found, net_ns = _self().process, _inode("/proc/thread-self/ns/net")
        return found if found.net_ns == net_ns else replace(found, net_ns=net_ns)

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has `pid` now, in this pid namespace; None if there is none."""
        found, here = _stat(pid), cls.me()
        return None if found is None else cls(pid, found[1], here.boot, here.pid_ns, here.net_ns)

    def to_json(self) -> dict[str, Any]:
        """As it is written in records."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, found: Any) -> Process:
        """The process that `to_json` made. Raises ValueError, TypeError or KeyError for anything else."""
        process = cls(*(found[name] for name in cls.__slots__))
        if not isinstance(process.boot, str):
            raise TypeError(f"{process.boot!r} is no boot id")
        # A pid below 1 is none: `kill -1` ends everything.
        check_number(process.pid, 1, _MOST_PID)
        for number in (process.start, process.pid_ns, process.net_ns):
            check_number(number)
        return process

    @property
    def visible(self) -> bool:
        """Whether this process can see it: the same boot of the same host, and the same pid namespace."""
        here = _self()
        return here.sees and self.start > 0 and (self.boot, self.pid_ns) == (here.process.boot, here.process.pid_ns)

    def same(self, other: Process) -> bool:
        """Whether they are one process, whatever network namespace it was in."""
        return replace(self, net_ns=0) == replace(other, net_ns=0)

    @property
    def may_live(self) -> bool:
        """Whether it is of this boot and not known to be dead: what it had, nobody else may have."""
        return self.boot == _self().process.boot and self.liveness() != "dead"

    def liveness(self) -> Liveness:
        """Whether it runs. Zombies are dead: their locks and sockets are gone."""
        if not self.visible:
            return "unknown"
        found = _stat(self.pid)
        if found is None or found[1] != self.start or found[0] in "Xx":
            return "dead"
        if found[0] == "Z":
            # Of one whose main thread has ended, the others go on, and keep what it holds.
            state = next((state for state in _thread_states(self.pid) if state not in "ZXx"), None)
            if state is None:
                return "dead"
            found = (state, *found[1:])
        return "paused" if found[0] in "Tt" else "alive"

    def paused_since(self) -> float | None:
        """When it ran for the last time, in seconds since 1970; None if it does not pause or the kernel does not say.

        To some milliseconds, on an idle host: the scheduler's own clock (``se.exec_start`` in /proc/PID/sched) is read
        for every thread of it, and for this thread, which runs now. Each CPU has such a clock, and leaves out the time
        that interrupts and a hypervisor took, hence this thread goes to that CPU for a moment.
        """
        if self.liveness() != "paused":
            return None
        allowed = os.sched_getaffinity(0)
        try:
            ages = [_since_last_run(task) for task in Path(f"/proc/{self.pid}/task").iterdir()]
            return time.time() - max(0.0, min(ages)) / 1000
        except (OSError, ValueError, IndexError):
            return None
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, allowed)

    def parent(self) -> int | None:
        """The pid of its parent; None if it is gone."""
        found = _stat(self.pid)
        return found[2] if found is not None and found[1] == self.start else None

    def age(self) -> float:
        """How many seconds ago it started, if it is of this boot."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start / _TICKS


class _Self:
    """What this process is, found out once, and again in a forked child.

    Attributes:
        sees: whether /proc shows this pid namespace. A new namespace keeps the old /proc until it mounts its own, and
            that has other processes under the same pids.
    """

    def __init__(self) -> None:
        found = _stat("self")
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            boot = ""
        try:
            self.sees = os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115
        except OSError:
            self.sees = False
        self.process = Process(
            os.getpid(),
            found[1] if found else 0,
            boot,
            _inode("/proc/self/ns/pid"),
            _inode("/proc/self/ns/net"),
        )


def check_number(found: Any, least: int = 0, most: int = 1 << 62) -> None:
    """Raise ValueError for what is no number in a record."""
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{found!r} is no number from {least} to {most}")


def see_to_exit(callback: Callable[[], None]) -> None:
    """Have `callback` run at the end of this process, if it is a child that runs no ``atexit``. It runs once."""
    _finalize(os.getpid(), callback)


@lru_cache(maxsize=4)
def _finalize(_pid: int, callback: Callable[[], None]) -> None:
    # Only a child of multiprocessing has its parent there; those that are forked leave by os._exit.
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        # After everything else: a negative priority is run last.
        Finalize(None, callback, exitpriority=-1000)


def program(pid: int | str = "self") -> str:
    """What a process runs: an interpreter with its script or module, or the title that it gave itself.

    Never an argument: there may be secrets among them. Empty if it is gone.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123  # for every claim: a title may change
            told = _told(file.read())
    except OSError:
        return ""
    if pid == "self" and told.endswith(" -c"):
        # A child that multiprocessing has spawned knows its parent's script by this name.
        main = getattr(sys.modules.get("__mp_main__"), "__file__", None)
        return f"{told}, spawned by {main}" if main else told
    return told


@lru_cache(maxsize=1)
def _told(command_line: bytes) -> str:
    words = command_line.decode(errors="replace").rstrip("\0").split("\0")
    # A title is one word, of which the program's whole command line may be a part.
    told = [words[0].partition(" -")[0]]
    if Path(words[0]).name.startswith(("python", "pypy")):
        told += _script(words[1:])
    return " ".join(" ".join(told).split())[:160]


def _script(words: Sequence[str]) -> list[str]:
    for at, word in enumerate(words):
        if word == "-m":
            return ["-m", *words[at + 1 : at + 2]]
        if word == "-c":
            return ["-c"]
        if not word.startswith("-") and (at == 0 or words[at - 1] not in ("-X", "-W")):
            return [word]
    return []


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116  # for every claim
    except OSError:
        return 0


def _stat(pid: int | str) -> tuple[str, int, int] | None:
    """State, start and parent of a process; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # for every record
            # The name, in parentheses, may hold anything.
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19]), int(fields[1])
    except (OSError, IndexError, ValueError):
        return None


def _thread_states(pid: int) -> list[str]:
    try:
        found = [_stat(f"{pid}/task/{task}") for task in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return []
    return [each[0] for each in found if each is not None]


def _since_last_run(task: Path) -> float:
    """Milliseconds since a thread ran last. Leaves this thread on the CPU where that was."""
    cpu = int((task / "stat").read_bytes().rpartition(b")")[2].split()[36])
    last = _last_run(task)
    os.sched_setaffinity(0, {cpu})
    return _last_run(Path("/proc/thread-self")) - last


def _last_run(task: Path) -> float:
    for line in (task / "sched").read_text().splitlines():
        if line.startswith("se.exec_start"):
            return float(line.partition(":")[2])
    raise ValueError("the kernel keeps no se.exec_start")


@lru_cache(maxsize=1)
def _self() -> _Self:
    return _Self()


os.register_at_fork(after_in_child=_self.cache_clear)
