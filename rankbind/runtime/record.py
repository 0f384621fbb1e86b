"""Who holds what. A record stands beside the lock and decides nothing: it may be torn, missing, or garbage."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from rankbind.runtime.process import Process

FORMAT = 1
_MOST_BYTES = 1 << 16
_LATEST = 253402300799
"""The last second of the year 9999, the last that a calendar shows."""
_MOST = 1 << 62
_MOST_PID = 1 << 22
"""PID_MAX_LIMIT of a 64-bit kernel (proc_sys_kernel(5), "pid_max")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A claim, for people and programs who ask who holds it.

    Attributes:
        group: index on each axis the resource exists once for.
        token: the fencing token; see `rankbind.runtime.claim.Claim.token`.
        since: when it was claimed, in seconds since 1970.
        state: ``held`` from then on, ``released`` when its holder gave it up. A holder that dies leaves ``held``.
        host: the name of the host.
        rank, coordinates: of the holder, where it knows them.
        endpoints: what is really bound, by role.
        declared: ``file:line`` of what says that it exists once.
        program: what the holder runs, without its arguments: there may be secrets among them.
        version: rankbind's.
        takeovers: how many owners before this one died without releasing.
        notes: anything else that `rankbind status` should tell.
    """

    deployment: str
    resource: str
    group: Mapping[str, int]
    token: int
    since: float
    process: Process
    host: str
    rank: int | None = None
    coordinates: Mapping[str, int] = field(default_factory=dict)
    endpoints: Mapping[str, str] = field(default_factory=dict)
    declared: str = ""
    program: str = ""
    version: str = ""
    takeovers: int = 0
    state: Literal["held", "released"] = "held"
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("group", "coordinates", "endpoints", "notes"):
            found = getattr(self, name)
            if not isinstance(found, MappingProxyType):
                object.__setattr__(self, name, MappingProxyType(dict(found)))

    def __hash__(self) -> int:
        return hash((self.deployment, self.resource, self.token))

    def __reduce__(self) -> tuple[Any, ...]:
        return Record.from_json, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        """As it is written, and as ``rankbind status --json`` shows it."""
        of = self.process
        plain = {name: getattr(self, name) for name in _FIELDS}
        plain.update({name: dict(plain[name]) for name in ("group", "coordinates", "endpoints", "notes")})
        process = {"pid": of.pid, "start": of.start, "boot": of.boot, "pid_ns": of.pid_ns, "net_ns": of.net_ns}
        return {"format": FORMAT, **plain, "process": process}

    @classmethod
    def from_json(cls, found: Any) -> Record:
        """The record that `to_json` made. Raises ValueError, TypeError or KeyError for anything else."""
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']}")
        of = found["process"]
        process = Process(of["pid"], of["start"], of["boot"], of["pid_ns"], of["net_ns"])
        record = cls(**{**{name: found[name] for name in _FIELDS if name in found}, "process": process})
        # A pid below 1 is none: `kill -1` ends everything.
        numbers = [(process.pid, 1, _MOST_PID), (record.token, 0, _MOST), (record.takeovers, 0, _MOST)]
        numbers += [(number, 0, _MOST) for number in (process.start, process.pid_ns, process.net_ns)]
        numbers += [(index, -_MOST, _MOST) for index in (*record.group.values(), *record.coordinates.values())]
        numbers += [] if record.rank is None else [(record.rank, -_MOST, _MOST)]
        for number, least, most in numbers:
            if type(number) is not int or not least <= number <= most:
                raise ValueError(f"{number!r} is no number from {least} to {most}")
        since = record.since
        if isinstance(since, bool) or not isinstance(since, int | float) or not isfinite(since):
            raise TypeError(f"{since!r} is no time")
        if not 0 <= since <= _LATEST:
            raise ValueError(f"{since!r} is in no year that a calendar shows")
        texts = [process.boot, record.deployment, record.resource, record.host, record.declared, record.program]
        texts += [record.version, *record.endpoints.values(), *record.notes.values()]
        for mapping in (record.group, record.coordinates, record.endpoints, record.notes):
            texts += mapping
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("what should be text is none")
        if record.state not in ("held", "released"):
            raise ValueError(record.state)
        return record


_FIELDS = tuple(each.name for each in fields(Record))


def read(path: str | Path) -> Record | None:
    """The record at `path`; None if there is none that can be read. Never raises, never waits."""
    path = os.fspath(path)
    # Between the two steps of `write` the whole record has the other name.
    for each in (path, _temporary(path), path):
        try:
            return _read(each)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
    return None


def _read(path: str) -> Record | None:
    # Not through a link, and without waiting for the writer of a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return Record.from_json(json.loads(os.read(descriptor, _MOST_BYTES)))
    finally:
        os.close(descriptor)


def write(path: str | Path, record: Record) -> bool:
    """Put `record` at `path`, whole or not at all; False if it could not be written.

    Only the holder of the lock beside it may call this: there is one temporary file for each record, so that a writer
    who is killed leaves nothing that the next one does not clear away.

    The old record is unlinked before the new one takes its name: ext4 flushes a file that replaces another, which costs
    more than all the rest of a claim. In between, `read` finds the new one by its other name.
    """
    path = os.fspath(path)
    temporary = _temporary(path)
    text = _text(record)
    if len(text) >= _MOST_BYTES:
        return False
    try:
        descriptor = _new(temporary)
        try:
            whole = os.write(descriptor, text) == len(text)
        finally:
            os.close(descriptor)
        if whole:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108
            os.replace(temporary, path)  # noqa: PTH105  # as fast as it gets: twice for every claim
            return True
    except OSError:
        pass
    with contextlib.suppress(OSError):
        os.unlink(temporary)  # noqa: PTH108
    return False


def mark_released(path: str | Path) -> bool:
    """Have the record at `path` say that it is released; False if there is none that says it is held.

    Its length stays, and so nothing has to be made room for: it works on a full disk, and costs a tenth of `write`.
    Only for the holder of the lock, as `write`.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            held = stat.S_ISREG(os.fstat(descriptor).st_mode) and os.pread(descriptor, len(_HELD), 0) == _HELD
            return held and os.pwrite(descriptor, _RELEASED, 0) == len(_RELEASED)
        finally:
            os.close(descriptor)
    except OSError:
        return False


def remove(path: str | Path) -> None:
    """Let there be no record at `path`, if that is possible. Only for the holder of the lock, as `write`."""
    for each in (os.fspath(path), _temporary(os.fspath(path))):
        with contextlib.suppress(OSError):
            os.unlink(each)  # noqa: PTH108


def _temporary(path: str) -> str:
    return path.removesuffix(".json") + ".tmp"


def _text(record: Record) -> bytes:
    # The state comes first and is as long either way, so that it can be changed where it stands.
    found = {name: value for name, value in record.to_json().items() if name != "state"}
    return (_RELEASED if record.state == "released" else _HELD) + _encode(found).encode()[1:]


_encode = json.JSONEncoder(separators=(",", ":")).encode
_RELEASED = b'{"state":"released",'
_HELD = b'{"state":"held",'.ljust(len(_RELEASED))


def _new(path: str) -> int:
    """A new file, whatever was there: what another writer left, or a link or pipe that would lead elsewhere."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108
        return os.open(path, flags, 0o600)
