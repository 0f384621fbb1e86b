"""A lock and the record beside it: who has it, or who had it last.

A lock file stays for ever, see `rankbind.runtime.lock`. Its modification time is the last token, which so outlives the
record. Whoever looks must not try a lock: a claim that came at that instant would be refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator

from rankbind.errors import ClaimError, RankbindError
from rankbind.runtime import atomic, lock, record
from rankbind.runtime.directory import VARIABLE
from rankbind.runtime.lock import Lock
from rankbind.runtime.locks import Locks
from rankbind.runtime.process import program
from rankbind.runtime.record import Record

_SOON = 0.01
"""Seconds within which one who took a lock has written its record, and one who wrote that it releases has done so."""


class Hold:
    """What is held, or is to be: a name in a folder. The lock decides, and the record says who that is."""

    def __init__(self, place: str, name: str) -> None:
        self.lock_path, self.record_path = f"{place}/{name}.lock", f"{place}/{name}.json"
        self._lock: Lock | None = None

    @property
    def locked(self) -> bool:
        """Whether this process has the lock."""
        return self._lock is not None and self._lock.held

    @property
    def intact(self) -> bool:
        """Whether nobody else can get a lock of that name, see `Lock.intact`."""
        return self._lock is not None and self._lock.intact

    @property
    def stamp(self) -> int:
        """The last token, as the lock file has it."""
        return 0 if self._lock is None else self._lock.changed_ns // 1000

    def acquire(self) -> Record | None:
        """Take the lock if it is free; the record of who has it where it is not. Raises `ClaimError`.

        It is looked at again while the record is that of another holder than the lock's: one is being written.
        """
        pause = 0.0005
        while True:
            self._lock = take(self.lock_path)
            if self._lock is not None:
                return None
            found = self.last()
            dead = found is None or found.process.liveness() == "dead"
            if pause > _SOON or not (found is None or dead or found.state == "released"):
                return None if dead else found
            time.sleep(pause)
            pause *= 2

    def last(self) -> Record | None:
        """The record of the one who took the lock last, if it was written."""
        return record.read(self.record_path)

    def begin(self, found: Record) -> None:
        """Be the holder that `found` says."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.stamp(found.token * 1000)
        self.tell(found)

    def tell(self, found: Record) -> None:
        """Write the record, if that is possible."""
        if not record.write(self.record_path, found):
            # Better none than one that says what is no longer so; and on a full disk that makes room.
            atomic.remove(self.record_path)
            record.write(self.record_path, found)

    def release(self, found: Record | None) -> None:
        """Let go, having told the record so; None: having removed it."""
        if self.locked:
            if found is None:
                atomic.remove(self.record_path)
            elif not record.mark_released(self.record_path):
                self.tell(found)
            self.let_go()

    def let_go(self) -> None:
        """Let go without a word."""
        if self._lock is not None:
            self._lock.release()


def take(path: str, patience: float = 0.0, error: type[RankbindError] = ClaimError) -> Lock | None:
    """As `rankbind.runtime.lock.take`, but what the system refuses is an `error` that says what to do."""
    try:
        return lock.take(path, patience)
    except OSError as refused:
        reason = refused.strerror or str(refused)
        if refused.errno in (errno.EMFILE, errno.ENFILE):
            what = "Each claim and each address keeps one file open: raise the limit (ulimit -n)"
        else:
            what = f"Set {VARIABLE} to a directory on a local file system that can be written"
        raise error(f"cannot take the lock {path}: {reason}. Nothing is claimed. {what}") from None


@contextlib.contextmanager
def alone(path: str, patience: float, doing: str, error: type[RankbindError] = ClaimError) -> Iterator[None]:
    """Nobody else is in such a block of `path`.

    Args:
        patience: seconds to wait for whoever is.
        doing: what is done in it, for the error.

    Raises:
        error: it was waited for in vain, or the lock cannot be taken.
    """
    mutex = take(path, patience, error)
    if mutex is None:
        raise error(f"{_taker(path)} has been {doing} for {patience:g} s and does not end; it may be stopped")
    try:
        yield
    finally:
        mutex.release()


def _taker(path: str) -> str:
    with contextlib.suppress(OSError, ValueError):
        pid = Locks().taken_by(os.stat(path))  # noqa: PTH116
        if pid is not None:
            return f"pid {pid} ({program(pid)}; `kill -CONT {pid}` wakes it)"
    return f"a process that cannot be seen from here (`fuser {path}`, on the host, shows it)"
