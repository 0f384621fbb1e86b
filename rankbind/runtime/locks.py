"""Who holds which lock file, asked of the kernel without touching a lock: whoever claims meanwhile is not disturbed.

Facts from proc_locks(5), proc_pid_fdinfo(5) and the kernel's fs/locks.c.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from rankbind.runtime.process import Process

_FIRST_PID_NS = 0xEFFFFFFC
"""The inode number of the pid namespace that the host was booted with (PROC_PID_INIT_INO)."""


class Locks:
    """The flock(2) locks that this process can see, all read at one moment.

    A lock is known by who took it, and that process may be gone while a child of it keeps the lock. From the host's
    first pid namespace every lock is seen; from another one only those that a living process of it took.
    """

    def __init__(self) -> None:
        self.complete = Process.me().pid_ns == _FIRST_PID_NS and Path("/proc/locks").exists()
        self._open: dict[int, frozenset[tuple[int, int]] | None] = {}

    def taken_by(self, file: os.stat_result) -> int | None:
        """The pid of whoever took the lock on `file`; None if no lock on it is seen."""
        device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
        rows = self._table.get(file.st_ino, ())
        for shown, pid in rows:
            if shown == device:
                return pid
        # btrfs and overlayfs give stat(2) another device than the lock has: then only the descriptor itself proves it.
        for _, pid in rows:
            if (file.st_dev, file.st_ino) in (self._locked_in(pid) or ()):
                return pid
        return None

    def kept_by(self, file: os.stat_result | None, pid: int) -> bool | None:
        """Whether process `pid` has `file` open with a lock on it; None if this process may not look."""
        found = self._locked_in(pid)
        return None if found is None else file is not None and (file.st_dev, file.st_ino) in found

    def keepers(self, file: os.stat_result | None) -> tuple[int, ...]:
        """The processes that have `file` open with a lock on it: its taker, and children that keep it."""
        return () if file is None else self._kept.get((file.st_dev, file.st_ino), ())

    @cached_property
    def _table(self) -> dict[int, list[tuple[str, int]]]:
        found: dict[int, list[tuple[str, int]]] = {}
        with suppress(OSError):
            for line in Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines():
                # 1: FLOCK  ADVISORY  WRITE 29555 fe:00:2146673 0 EOF; with -> after the number for one who waits.
                words = line.split()
                if words[1:2] == ["FLOCK"] and len(words) > 5:
                    major, minor, inode = words[5].split(":")
                    found.setdefault(int(inode), []).append((f"{major}:{minor}", int(words[4])))
        return found

    @cached_property
    def _kept(self) -> dict[tuple[int, int], tuple[int, ...]]:
        found: dict[tuple[int, int], tuple[int, ...]] = {}
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                for file in self._locked_in(int(process.name)) or ():
                    found[file] = (*found.get(file, ()), int(process.name))
        return found

    def _locked_in(self, pid: int) -> frozenset[tuple[int, int]] | None:
        if pid not in self._open:
            try:
                self._open[pid] = frozenset(_locked_files(pid))
            except PermissionError:
                self._open[pid] = None
            except OSError:
                self._open[pid] = frozenset()
        return self._open[pid]


def _locked_files(pid: int) -> Iterator[tuple[int, int]]:
    """Device and inode of every file that the process has open with a lock on it. Raises OSError."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            named = descriptor.readlink().suffix == ".lock"
            if named and "lock:" in Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text():
                # Of what is open, whatever has that name now.
                found = descriptor.stat()
                yield found.st_dev, found.st_ino


def seen_as(pid: int) -> Process | None:
    """The process with `pid` here, as it sees itself in the pid namespace that it runs in; None if it is gone."""
    process = Process.of(pid)
    if process is None:
        return None
    with suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        inner = next(int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:"))
        spaces = [Path(f"/proc/{pid}/ns/{kind}").stat().st_ino for kind in ("pid", "net")]
        return Process(inner, process.start, process.boot, *spaces)
    return process
