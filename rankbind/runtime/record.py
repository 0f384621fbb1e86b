"""Who holds what. A record stands beside the lock and decides nothing: it may be torn, missing, or garbage."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from rankbind.endpoint import Endpoint
from rankbind.errors import RankbindError
from rankbind.identity import current, identity
from rankbind.identity import deployment as own_deployment
from rankbind.runtime import atomic
from rankbind.runtime.key import Key
from rankbind.runtime.process import Process, check_number, program
from rankbind.site import call_site
from rankbind.version import __version__

FORMAT = 1
_MOST_BYTES = 1 << 16
_LATEST = 253402300799
"""The last second of the year 9999, the last that a calendar shows."""
_MOST = 1 << 62


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

    @property
    def key(self) -> Key:
        """What is held."""
        return Key(self.deployment, self.resource, self.group)

    def __reduce__(self) -> tuple[Any, ...]:
        return Record.from_json, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        """As it is written, and as ``rankbind status --json`` shows it."""
        plain = {name: getattr(self, name) for name in _FIELDS}
        plain.update({name: dict(plain[name]) for name in ("group", "coordinates", "endpoints", "notes")})
        return {"format": FORMAT, **plain, "process": self.process.to_json()}

    @classmethod
    def from_json(cls, found: Any) -> Record:
        """The record that `to_json` made. Raises ValueError, TypeError or KeyError for anything else."""
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']}")
        told = {name: found[name] for name in _FIELDS if name in found}
        record = cls(**{**told, "process": Process.from_json(found["process"])})
        for number in (record.token, record.takeovers):
            check_number(number)
        for number in (*record.group.values(), *record.coordinates.values(), 0 if record.rank is None else record.rank):
            check_number(number, -_MOST)
        since = record.since
        if isinstance(since, bool) or not isinstance(since, int | float) or not isfinite(since):
            raise TypeError(f"{since!r} is no time")
        if not 0 <= since <= _LATEST:
            raise ValueError(f"{since!r} is in no year that a calendar shows")
        texts = [record.deployment, record.resource, record.host, record.declared, record.program]
        texts += [record.version, *record.endpoints.values(), *record.notes.values()]
        for mapping in (record.group, record.coordinates, record.endpoints, record.notes):
            texts += mapping
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("what should be text is none")
        if record.state not in ("held", "released"):
            raise ValueError(record.state)
        return record


def wanted(
    resource: str,
    group: Mapping[str, int] | None = None,
    deployment: str | None = None,
    endpoints: Mapping[str, Endpoint] | None = None,
    rank: int | None = None,
    coordinates: Mapping[str, int] | None = None,
    declared: str = "",
) -> Record:
    """The record of this process, which is about to claim `resource`: it has no token yet.

    Args:
        deployment: left out, that of this process's identity, of ``RANKBIND_DEPLOYMENT``, or ``default``.
        rank, coordinates: left out, those of this process's identity, if it is known.
        declared: left out, where the code is that called into rankbind.
    """
    if not resource:
        raise ValueError("a resource to be claimed needs a name")
    who = current()
    if who is None:
        # Nobody has asked yet. It is for the record alone: not to know is no reason to refuse.
        with contextlib.suppress(RankbindError):
            who = identity()
    if rank is None and coordinates is None and who is not None:
        rank, coordinates = who.rank, who.coordinates
    return Record(
        deployment=deployment or own_deployment(),
        resource=resource,
        group=Key("", "", group or {}).group,
        token=0,
        since=time.time(),
        process=Process.me(),
        host=os.uname().nodename,
        rank=None if rank is None else operator.index(rank),
        coordinates={axis: operator.index(index) for axis, index in (coordinates or {}).items()},
        endpoints={role: str(endpoint) for role, endpoint in (endpoints or {}).items()},
        declared=declared or call_site(),
        program=program(),
        version=__version__,
    )


_FIELDS = tuple(each.name for each in fields(Record))


def read(path: str | Path) -> Record | None:
    """The record at `path`; None if there is none that can be read. Never raises, never waits."""
    for _ in range(2):  # what is garbage at the second look is not half of one that is being written
        try:
            return Record.from_json(json.loads(atomic.get(path, _MOST_BYTES)))
        except OSError:
            return None
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return None


def write(path: str | Path, record: Record) -> bool:
    """Put `record` at `path`, whole or not at all; False if it could not be written.

    Only the holder of the lock beside it may call this.
    """
    text = _text(record)
    return len(text) < _MOST_BYTES and atomic.put(path, text)


def mark_released(path: str | Path) -> bool:
    """Have the record at `path` say that it is released; False if there is none that says it is held.

    Its length stays, and so nothing has to be made room for: it works on a full disk, and costs a tenth of `write`.
    Only for the holder of the lock, as `write`.
    """
    try:
        descriptor = atomic.opened(path, os.O_RDWR)
        try:
            held = os.pread(descriptor, len(_HELD), 0) == _HELD
            return held and os.pwrite(descriptor, _RELEASED, 0) == len(_RELEASED)
        finally:
            os.close(descriptor)
    except OSError:
        return False


def _text(record: Record) -> bytes:
    # The state comes first and is as long either way, so that it can be changed where it stands.
    found = {name: value for name, value in record.to_json().items() if name != "state"}
    return (_RELEASED if record.state == "released" else _HELD) + _encode(found).encode()[1:]


_encode = json.JSONEncoder(separators=(",", ":")).encode
_RELEASED = b'{"state":"released",'
_HELD = b'{"state":"held",'.ljust(len(_RELEASED))
