"""Exactly one holder on a host: a lock that the kernel drops when its holder dies, and a record of who that is.

What is claimed is a `Key`, and with it the addresses that its holder binds: those for all deployments of a host, since
the kernel does not keep two processes from one ``ipc://`` path, one file, or a port that neither has bound yet.

    DIR/claims/KEY.lock, .json                          a claim
    DIR/addresses/NETNS/tcp-PORT/HOST.lock, .json       a port on a host of a network namespace; `mutex`, see `_alone`
    DIR/addresses/NETNS/abstract/NAME.lock, .json       a name in the abstract namespace
    DIR/addresses/paths/HASH.lock, .json                a file, by its real path

A lock file stays for ever, see `rankbind.runtime.lock`. Its modification time is the last token, which so outlives the
record. Whoever looks must not try a lock: a claim that came at that instant would be refused.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import operator
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import RLock
from types import MappingProxyType, TracebackType
from typing import Any
from urllib.parse import quote, unquote

from rankbind.endpoint import MAX_PORT, Endpoint, overlaps
from rankbind.errors import ClaimedError, ClaimError
from rankbind.identity import current
from rankbind.identity import deployment as own_deployment
from rankbind.runtime import diagnosis, lock, record
from rankbind.runtime.directory import VARIABLE, folder
from rankbind.runtime.lock import Lock
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record

CLAIMS = "claims"
ADDRESSES = "addresses"
_NAME_BYTES = 200
"""Of the 255 that a file name may have, leaving room for a suffix."""
_PATIENCE = 10.0
"""Seconds to wait for another process that is between looking at a port's claims and making its own."""
_SOON = 0.01
"""Seconds within which one who took a lock has written its record, and one who wrote that it releases has done so."""


@dataclass(frozen=True, slots=True)
class Key:
    """What is claimed: one resource, of one group, of one deployment.

    Attributes:
        group: index on each axis the resource exists once for; empty for one in all.
    """

    deployment: str
    resource: str
    group: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # True is 1, and numpy has integers of its own: one group must not have two names.
        group = {axis: operator.index(index) for axis, index in self.group.items()}
        object.__setattr__(self, "group", MappingProxyType(group))

    def __reduce__(self) -> tuple[Any, ...]:
        return Key, (self.deployment, self.resource, dict(self.group))

    def __hash__(self) -> int:
        return hash((self.deployment, self.resource, frozenset(self.group.items())))

    def __str__(self) -> str:
        at = ",".join(f"{axis}={index}" for axis, index in sorted(self.group.items()))
        return f"{self.deployment}/{self.resource}{f'[{at}]' if at else ''}"

    @property
    def file_name(self) -> str:
        """Its name in the runtime directory, without a suffix. Different keys have different ones."""
        # What separates the parts may also be in them.
        group = {axis.translate(_ESCAPED): index for axis, index in self.group.items()}
        return _file_name(str(Key(self.deployment.translate(_ESCAPED), self.resource.translate(_ESCAPED), group)))


_ESCAPED = str.maketrans({char: f"%{ord(char):02X}" for char in "%/[],="})


class Claim:
    """What this process holds, until `release` or its end. Made by `claim`; a with-block releases it.

    Attributes:
        key: what is held.
    """

    def __init__(self, key: Key, hold: _Hold, found: Record, within: Path | None = None) -> None:
        self.key, self._hold, self._record, self._within = key, hold, found, within
        self._addresses: dict[str, _Hold] = {}
        self._paths: tuple[str, ...] = ()
        self._mutex = RLock()
        self._pid = os.getpid()

    @property
    def record(self) -> Record:
        """What others read of it."""
        return self._record

    @property
    def token(self) -> int:
        """The fencing token: it rises with every claim of this key, so a consumer can refuse a deposed owner.

        The larger of the last one plus one and the microseconds since 1970: it goes on rising when the record is lost,
        the disk is full, or the host was booted anew.
        """
        return self._record.token

    @property
    def held(self) -> bool:
        """Whether this process holds it, alone: False after `release`, in a forked child, and when somebody deleted the
        lock file (a cleaner of temporary files), so that another process can claim it as well.
        """
        return self._ours and self._hold.intact

    def update(
        self, endpoints: Mapping[str, str | Endpoint] | None = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """Tell the record more: what is really bound, by role, in place of what was claimed; or notes, added to others.

        Raises:
            ClaimedError: somebody else holds one of the endpoints; the claim stays as it was.
            ClaimError: it is not held (any more).
            EndpointError: an endpoint cannot be read.
        """
        self._must_be_ours()
        with self._mutex:
            self._must_be_ours()
            found = self._record
            if notes is not None:
                found = replace(found, notes={**found.notes, **{name: str(note) for name, note in notes.items()}})
            if endpoints is not None:
                parsed = _parsed(endpoints)
                found = replace(found, endpoints={role: str(endpoint) for role, endpoint in parsed.items()})
                self._claim_addresses(parsed, self._paths, found)
            self._record = found
            self._hold.tell(found)
            if endpoints is not None:
                for hold in self._addresses.values():
                    hold.tell(found)

    def release(self) -> None:
        """Give it up. Nothing happens where it is not held."""
        if not self._ours:
            _held.discard(self)
            return
        with self._mutex:
            if self._ours:
                self._record = replace(self._record, state="released")
                for hold in self._addresses.values():
                    hold.release(None)
                self._hold.release(self._record)
            _held.discard(self)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<claim of {self.key}, token {self.token}{'' if self.held else ', not held'}>"

    @property
    def _ours(self) -> bool:
        return self._pid == os.getpid() and self._hold.locked

    def _must_be_ours(self) -> None:
        # Before the mutex, too: in a forked child a thread may have it that does not exist there.
        if not self._ours:
            raise ClaimError(f"{self.key} is not held by this process (any more): there is nothing to update")

    def _claim_addresses(self, endpoints: Mapping[str, Endpoint], paths: Sequence[str], found: Record) -> None:
        """Hold exactly these; all of them, or none that was not held before."""
        _refuse_twice(self.key, endpoints)
        wanted = {address.name: address for address in _addresses(endpoints.values(), paths)}
        new: dict[str, _Hold] = {}
        try:
            for name, address in wanted.items():
                if name not in self._addresses:
                    own = [hold.lock_path for hold in (*self._addresses.values(), *new.values())]
                    new[name] = address.hold(self.key, found, own, self._within)
        except BaseException:
            for hold in new.values():
                hold.release(None)
            raise
        for name in [name for name in self._addresses if name not in wanted]:
            self._addresses.pop(name).release(None)
        self._addresses.update(new)
        self._paths = tuple(paths)

    def _say_released(self) -> None:
        """In the records alone: the kernel takes the locks when this process has really ended."""
        if self._ours and self._record.state == "held":
            self._record = replace(self._record, state="released")
            record.mark_released(self._hold.record_path)
            for hold in self._addresses.values():
                record.remove(hold.record_path)


_held: set[Claim] = set()
"""What is held lasts until it is released, not until nobody refers to it."""


def claim(
    resource: str,
    *,
    group: Mapping[str, int] | None = None,
    deployment: str | None = None,
    endpoints: Mapping[str, str | Endpoint] | None = None,
    paths: Sequence[str] = (),
    rank: int | None = None,
    coordinates: Mapping[str, int] | None = None,
    declared: str = "",
    directory: Path | None = None,
) -> Claim:
    """Hold `resource` on this host, at once or not at all.

    Args:
        group: index on each axis the resource exists once for; left out, there is one in the deployment.
        deployment: left out, that of this process's identity, of ``RANKBIND_DEPLOYMENT``, or ``default``.
        endpoints: what its holder binds, by role (``bind``, ``replay``). They are held, too, over all deployments; port
            0 and a range of ports are not, until `Claim.update` says what became of them.
        paths: files and folders that are its holder's alone, likewise.
        rank, coordinates: for the record; left out, those of this process's identity, if it is known.
        declared: ``file:line`` of what says that it exists once; left out, that of the caller.
        directory: instead of the runtime directory.

    Raises:
        ClaimedError: somebody else holds it or one of its addresses. The message is the diagnosis.
        ClaimError: its lock cannot be taken: the disk is full, or read-only. Or two of `endpoints` are one address.
        DirectoryError: the runtime directory cannot be used.
        EndpointError: an endpoint cannot be read.
    """
    if not resource:
        raise ValueError("a resource to be claimed needs a name")
    who = current()
    if rank is None and coordinates is None and who is not None:
        rank, coordinates = who.rank, who.coordinates
    parsed = _parsed(endpoints or {})
    key = Key(deployment or own_deployment(), resource, group or {})
    hold = _Hold(str(folder(CLAIMS, within=directory)), key.file_name)
    rank = None if rank is None else operator.index(rank)
    coordinates = {axis: operator.index(index) for axis, index in (coordinates or {}).items()}
    holder = hold.acquire()
    try:
        before = hold.last() if hold.locked else None
        found = Record(
            deployment=key.deployment,
            resource=resource,
            group=key.group,
            token=max(before.token if before else 0, hold.stamp, time.time_ns() // 1000 - 1) + 1,
            since=time.time(),
            process=Process.me(),
            host=os.uname().nodename,
            rank=rank,
            coordinates=coordinates,
            endpoints={role: str(endpoint) for role, endpoint in parsed.items()},
            declared=declared or _caller(),
            program=_program(),
            version=_version(),
            takeovers=0 if before is None else before.takeovers + (before.state == "held"),
        )
        if not hold.locked:
            raise ClaimedError(diagnosis.refusal(str(key), found, holder, hold.lock_path), key, holder)
        made = Claim(key, hold, found, directory)
        made._claim_addresses(parsed, paths, found)
        hold.begin(found)
    except BaseException:
        hold.let_go()
        raise
    _held.add(made)
    _see_to_exit(os.getpid())
    return made


class _Hold:
    """A lock and the record beside it."""

    def __init__(self, place: str, name: str) -> None:
        self.lock_path, self.record_path = f"{place}/{name}.lock", f"{place}/{name}.json"
        self._lock: Lock | None = None

    @property
    def locked(self) -> bool:
        return self._lock is not None and self._lock.held

    @property
    def intact(self) -> bool:
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
            self._lock = _take(self.lock_path, 0.0)
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
        self._put(found)

    def tell(self, found: Record) -> None:
        """Write a newer record of the same holder, if that is possible."""
        record.write(self.record_path, found)

    def release(self, found: Record | None) -> None:
        """Let go, having told the record so; None: having removed it."""
        if self.locked:
            if found is None:
                record.remove(self.record_path)
            elif not record.mark_released(self.record_path):
                self._put(found)
            self.let_go()

    def let_go(self) -> None:
        """Let go without a word."""
        if self._lock is not None:
            self._lock.release()

    def _put(self, found: Record) -> None:
        if not record.write(self.record_path, found):
            # Better none than one that says what is no longer so; and on a full disk that makes room.
            record.remove(self.record_path)
            record.write(self.record_path, found)


@dataclass(frozen=True)
class _Address:
    """An endpoint or path on its way to be held.

    Attributes:
        name: equal for equal addresses, within this process.
        place: the folder of the claims of everything that it may get in the way of.
        endpoint: what is compared with the others there; None where one name is one address.
    """

    name: str
    shown: str
    place: tuple[str, ...]
    file: str
    endpoint: Endpoint | None = None

    def hold(self, key: Key, found: Record, own: Sequence[str], within: Path | None) -> _Hold:
        """Hold it. `own`: lock files that are in nobody's way. Raises `ClaimedError`."""
        place = str(folder(ADDRESSES, *self.place, within=within))
        hold = _Hold(place, self.file)
        with contextlib.ExitStack() as stack:
            if self.endpoint is not None:
                stack.enter_context(_alone(place))
                for name in os.listdir(place):  # noqa: PTH208
                    stem = name.removesuffix(".lock")
                    other = _Hold(place, stem)
                    if stem in (name, self.file) or other.lock_path in own:
                        continue
                    if overlaps(self.endpoint, _endpoint(stem, self.endpoint.first)):
                        self._take(other, key, found)
                        other.let_go()
            self._take(hold, key, found)
            hold.begin(found)
        return hold

    def _take(self, hold: _Hold, key: Key, found: Record) -> None:
        holder = hold.acquire()
        if not hold.locked:
            message = diagnosis.refusal(str(key), found, holder, hold.lock_path, address=self.shown)
            raise ClaimedError(message, key, holder, self.shown)


def _parsed(endpoints: Mapping[str, str | Endpoint]) -> dict[str, Endpoint]:
    return {role: Endpoint.parse(each) if isinstance(each, str) else each for role, each in endpoints.items()}


def _refuse_twice(key: Key, endpoints: Mapping[str, Endpoint]) -> None:
    """Say no to a holder that would be in its own way. Of two binds of one ipc path the first is deaf, silently."""
    seen: list[tuple[str, Endpoint]] = []
    for role, endpoint in endpoints.items():
        for other, before in seen:
            if endpoint.first == endpoint.last and before.first == before.last and overlaps(endpoint, before):
                raise ClaimError(
                    f"{key} would bind one address twice: {other} {before} and {role} {endpoint}. Give {role} another"
                )
        seen.append((role, endpoint))


def _addresses(endpoints: Sequence[Endpoint] | Any, paths: Sequence[str]) -> Iterator[_Address]:
    for endpoint in endpoints:
        shown = str(endpoint)
        if endpoint.kernel_picks or endpoint.transport == "inproc":
            continue
        if endpoint.abstract:
            yield _Address(shown, shown, (str(Process.me().net_ns), "abstract"), _file_name(endpoint.path))
        elif endpoint.transport == "ipc":
            # The file itself is replaced when it is bound, also if it is a link.
            above, name = os.path.split(endpoint.path)
            yield _path(os.path.join(_real(above or "."), name), shown)  # noqa: PTH118  # no folder, no name: as it is
        elif endpoint.first == endpoint.last and 0 < endpoint.first <= MAX_PORT:
            place = (str(Process.me().net_ns), f"tcp-{endpoint.first}")
            name = endpoint.host + "+6" * endpoint.ipv6 + "+6only" * endpoint.v6only
            yield _Address(f"{name}:{endpoint.first}", shown, place, _file_name(name), endpoint)
    for path in paths:
        yield _path(_real(path), os.fspath(path))


def _path(real: str, shown: str) -> _Address:
    return _Address(f"path {real}", shown, ("paths",), hashlib.sha256(os.fsencode(real)).hexdigest()[:40])


def _real(path: str) -> str:
    """Two spellings, or a link to a folder of it, are one file."""
    try:
        return os.path.realpath(path)
    except OSError as error:
        raise ClaimError(f"cannot find out where {path} is: {error.strerror}. Give an absolute path") from None


def _endpoint(name: str, port: int) -> Endpoint:
    """What a file stands for in the folder of `port`. A name that was too long is a host that nobody else has."""
    host, *options = unquote(name).split("+")
    return Endpoint("tcp", host, port, port, ipv6="6" in options, v6only="6only" in options)


def _file_name(text: str) -> str:
    name = quote(text, safe="=,[]+", errors="surrogatepass")
    if len(name) <= _NAME_BYTES:
        return name
    # Longer than any that is not cut short, and so equal to none.
    return f"{name[: _NAME_BYTES - 40]}~{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:40]}"


@contextlib.contextmanager
def _alone(place: str) -> Iterator[None]:
    """Nobody else looks at the claims of `place` and then makes one."""
    mutex = _take(f"{place}/mutex", _PATIENCE)
    if mutex is None:
        raise ClaimError(
            f"another process has been claiming an address for {_PATIENCE:.0f} s and does not end; it may be stopped: "
            f"`fuser {place}/mutex` shows it"
        )
    try:
        yield
    finally:
        mutex.release()


def _take(path: str, patience: float) -> Lock | None:
    """The lock at `path`, held; None if somebody else holds it for all of `patience`, in seconds."""
    try:
        return lock.take(path, patience)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            what = "Each claim and each address keeps one file open: raise the limit (ulimit -n)"
        else:
            what = f"Set {VARIABLE} to a directory on a local file system that can be written"
        raise ClaimError(f"cannot take the lock {path}: {reason}. Nothing is claimed. {what}") from None


def _caller() -> str:
    frame = sys._getframe(1)
    while (frame.f_globals.get("__name__") or "").startswith("rankbind.") and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _program() -> str:
    """What this process runs: an interpreter with its script or module, or the title that it gave itself.

    Never an argument: there may be secrets among them.
    """
    try:
        with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123  # for every claim: a title may change
            return _told(file.read())
    except OSError:
        return ""


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


def _version() -> str:
    from rankbind.version import __version__

    return __version__


@lru_cache(maxsize=1)
def _see_to_exit(_pid: int) -> None:
    """Have the records told at the end of this process, if it is a child that runs no ``atexit``."""
    # Only a child of multiprocessing has its parent there; those that are forked leave by os._exit.
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        # After everything else: a negative priority is run last.
        Finalize(None, _at_exit, exitpriority=-1000)


def _forked() -> None:
    # What the parent holds is not ours to release at exit.
    _held.clear()


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _at_exit() -> None:
    # Registered before anybody's teardown is, and so run after it.
    for each in tuple(_held):
        with contextlib.suppress(Exception):
            each._say_released()
