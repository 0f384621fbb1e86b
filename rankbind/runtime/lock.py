"""A lock that one process of a host holds, and that the kernel drops when this process ends, however it ends.

It is flock(2), taken by filelock on a descriptor that is ours, so that filelock does not let go of it at the beginning
of the interpreter's exit, while what it protects is still being torn down. Three things make it exclusive:

- The file is never unlinked: a new file is another lock, which a second holder would get (kernel.md measured 114
  overlaps in ten seconds). Should a cleaner of temporary files unlink it, `Lock.intact` says so. systemd-tmpfiles does
  not: it leaves alone what somebody has locked (tmpfiles.d(5), "Age").
- A child that is forked closes its copies of the descriptors: a flock lasts until the last copy is closed. No fork
  comes between the opening of a descriptor and its entry in `_locks`.
- A program that is executed gets none of them: they are closed on exec.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import RLock

gate = RLock()
"""Held while the process forks, and while a descriptor is opened and entered among those that a child has to close. To
be asked for as ``lock.gate``: a child has another."""
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A lock that is held, until `release` or the end of the process, as long as it is referred to. Made by `take`.

    Attributes:
        path: the lock file.
        changed_ns: when it was changed last before it was locked, in nanoseconds since 1970.
    """

    __slots__ = ("__weakref__", "_descriptor", "_file", "changed_ns", "path")

    def __init__(self, path: str, descriptor: int, found: os.stat_result) -> None:
        self.path, self.changed_ns = path, found.st_mtime_ns
        self._descriptor, self._file = descriptor, (found.st_dev, found.st_ino)

    @property
    def held(self) -> bool:
        """Whether this process has it: False after `release`, and in a forked child."""
        return self._descriptor >= 0

    @property
    def intact(self) -> bool:
        """Whether its file is still the one at `path`. If not, somebody else may hold a lock on a new one."""
        try:
            found = os.stat(self.path, follow_symlinks=False)  # noqa: PTH116  # asked often
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file

    def stamp(self, changed_ns: int) -> None:
        """Set the time of change of its file, which needs no room on a full disk. Raises OSError."""
        os.utime(self._descriptor, ns=(changed_ns, changed_ns))

    def release(self) -> None:
        """Let go. Nothing happens where it is not held."""
        from filelock import unlock_descriptor

        with gate:
            if self._descriptor >= 0:
                descriptor, self._descriptor = self._descriptor, -1
                _locks.discard(self)
                try:
                    # Closing is not enough: a child that was forked past Python (by a C library) has a copy.
                    unlock_descriptor(descriptor)
                finally:
                    os.close(descriptor)

    def __del__(self, over: Callable[[], bool] = sys.is_finalizing) -> None:
        # An exception (Ctrl-C) may come before its taker has got it. Not at the end of the interpreter: see above.
        if not over():
            self.release()


def take(path: str, patience: float = 0.0) -> Lock | None:
    """The lock at `path`, held; None if somebody else holds it for all of `patience`, in seconds.

    Raises:
        OSError: it cannot be opened or locked.
    """
    deadline, pause = time.monotonic() + patience, 0.0005
    while True:
        lock, busy = _try(path)
        if lock is not None or (busy and time.monotonic() >= deadline):
            return lock
        if busy:
            time.sleep(pause)
            pause = min(2 * pause, 0.01)


def _try(path: str) -> tuple[Lock | None, bool]:
    """The lock, and whether it is somebody else's; neither, if its file was unlinked on the way."""
    from filelock import lock_descriptor

    with gate:
        # O_NONBLOCK: a pipe in its place must not make anybody wait.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            if not lock_descriptor(descriptor, blocking=False):
                return None, True
            # Between opening and locking, its holder may have unlinked it: then this is a lock that nobody shares.
            found = os.fstat(descriptor)
            if found.st_nlink == 0:
                return None, False
            lock = Lock(path, descriptor, found)
            _locks.add(lock)
            descriptor = -1
            return lock, False
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _in_child() -> None:
    global gate
    gate = RLock()
    for lock in tuple(_locks):
        with suppress(OSError):
            os.close(lock._descriptor)
        lock._descriptor = -1
    _locks.clear()


# A child that did not close its copies would keep the locks when its parent dies.
os.register_at_fork(
    before=lambda: gate.acquire() and None,
    after_in_parent=lambda: gate.release(),
    after_in_child=_in_child,
)
