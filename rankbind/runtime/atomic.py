"""Files that are written whole or not at all, by one writer at a time, and read by anybody at any moment.

The old file is unlinked before the new one takes its name: ext4 flushes a file that replaces another, which costs more
than all the rest of a claim. In between, `get` finds the new one by its other name. There is one such name for each
file, so that a writer who is killed leaves nothing that the next one does not clear away.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

_LOOKS = 4


def get(path: str | Path, most: int) -> bytes:
    """What is in the file at `path`, of its first `most` bytes. Never waits. Raises OSError."""
    path = os.fspath(path)
    # More than once: between the two looks it may have taken its name, and been replaced again.
    for each in (path, _temporary(path)) * _LOOKS:
        with suppress(FileNotFoundError):
            return _read(each, most)
    return _read(path, most)


def put(path: str | Path, data: bytes) -> bool:
    """Have `data` at `path`; False if that failed. Only for one who is alone, by a lock."""
    path = os.fspath(path)
    temporary = _temporary(path)
    try:
        descriptor = _new(temporary)
        try:
            whole = os.write(descriptor, data) == len(data)
        finally:
            os.close(descriptor)
        if whole:
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108
            os.replace(temporary, path)  # noqa: PTH105  # as fast as it gets: twice for every claim
            return True
    except OSError:
        pass
    with suppress(OSError):
        os.unlink(temporary)  # noqa: PTH108
    return False


def remove(path: str | Path) -> None:
    """Have nothing at `path`, if that is possible. As `put`, for one who is alone."""
    for each in (os.fspath(path), _temporary(os.fspath(path))):
        with suppress(OSError):
            os.unlink(each)  # noqa: PTH108


def opened(path: str | Path, flags: int) -> int:
    """A descriptor of a regular file: not through a link, and without waiting for the other end of a pipe."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file")


def _read(path: str, most: int) -> bytes:
    descriptor = opened(path, os.O_RDONLY)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def _temporary(path: str) -> str:
    return path.removesuffix(".json") + ".tmp"


def _new(path: str) -> int:
    """A new file, whatever was there: what another writer left, or a link or pipe that would lead elsewhere."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108
        return os.open(path, flags, 0o600)
