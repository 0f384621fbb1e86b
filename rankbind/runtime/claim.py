"""Exactly one holder on a host: a lock that the kernel drops when its holder dies, and a record of who that is.

What is claimed is a `Key`, and with it the addresses that its holder binds, see `rankbind.runtime.addresses`.

    DIR/claims/KEY.lock, .json                          a claim
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any

from rankbind.endpoint import Endpoint
from rankbind.errors import ClaimedError, ClaimError
from rankbind.runtime import atomic, diagnosis, record
from rankbind.runtime.addresses import addresses, parsed, refuse_twice
from rankbind.runtime.directory import folder
from rankbind.runtime.hold import Hold
from rankbind.runtime.key import Key
from rankbind.runtime.process import Process, see_to_exit
from rankbind.runtime.record import Record

CLAIMS = "claims"


class Claim:
    """What this process holds, until `release` or its end. Made by `claim`; a with-block releases it.

    Attributes:
        key: what is held.
        before: the record of the holder before, where it can be read.
    """

    before: Record | None = None

    def __init__(self, key: Key, hold: Hold, found: Record, within: Path | None = None) -> None:
        self.key, self._hold, self._record, self._within = key, hold, found, within
        self._addresses: dict[str, Hold] = {}
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
                binds = parsed(endpoints)
                found = replace(found, endpoints={role: str(endpoint) for role, endpoint in binds.items()})
                self._claim_addresses(binds, self._paths, found)
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

    def _begin(self, found: Record, endpoints: Mapping[str, Endpoint], paths: Sequence[str]) -> None:
        self._record = found
        self._claim_addresses(endpoints, paths, found)
        self._hold.begin(found)
        _held.add(self)
        see_to_exit(_at_exit)

    def _let_go(self) -> None:
        """Be as if it had never begun."""
        _held.discard(self)
        for hold in self._addresses.values():
            hold.release(None)
        self._hold.let_go()

    def _claim_addresses(self, endpoints: Mapping[str, Endpoint], paths: Sequence[str], found: Record) -> None:
        """Hold exactly these; all of them, or none that was not held before."""
        refuse_twice(self.key, endpoints)
        wanted = {address.name: address for address in addresses(endpoints.values(), paths)}
        new: dict[str, Hold] = {}
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
                atomic.remove(hold.record_path)


_held: set[Claim] = set()
"""What is held lasts until it is released, not until nobody refers to it."""


def claim(
    resource: str,
    *,
    group: Mapping[str, int] | None = None,
    deployment: str | None = None,
    endpoints: Mapping[str, str | Endpoint] | None = None,
    paths: str | Sequence[str] = (),
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
        paths: a file or folder, or several, that are its holder's alone, likewise.
        rank, coordinates: for the record; left out, those of this process's identity, if it is known.
        declared: ``file:line`` of what says that it exists once; left out, that of the caller.
        directory: instead of the runtime directory.

    Raises:
        ClaimedError: somebody else holds it or one of its addresses. The message is the diagnosis.
        ClaimError: its lock cannot be taken: the disk is full, or read-only. Or two of `endpoints` are one address.
        DirectoryError: the runtime directory cannot be used.
        EndpointError: an endpoint cannot be read.
    """
    binds = parsed(endpoints or {})
    wanted = record.wanted(resource, group, deployment, binds, rank, coordinates, declared)
    key = wanted.key
    hold = Hold(str(folder(CLAIMS, within=directory)), key.file_name)
    made = Claim(key, hold, wanted, directory)
    if isinstance(paths, str):
        paths = (paths,)
    try:
        holder = hold.acquire()
        if not hold.locked:
            raise ClaimedError(diagnosis.refusal(str(key), wanted, holder, hold.lock_path), key, holder)
        made.before = before = hold.last()
        made._begin(
            replace(
                wanted,
                token=max(before.token if before else 0, hold.stamp, time.time_ns() // 1000 - 1) + 1,
                since=time.time(),
                takeovers=0 if before is None else before.takeovers + (before.state == "held"),
            ),
            binds,
            paths,
        )
    except BaseException:
        made._let_go()
        raise
    return made


def claim_as(name: str, resource: str, **arguments: Any) -> Claim:
    """As `claim`, in a deployment that is called `name` unless ``RANKBIND_DEPLOYMENT`` says otherwise.

    For engine plugins, which work a name out from what a server was started with. Another network namespace has ports
    of its own, so a container that shares the runtime directory and was given the same flags is another deployment.
    """
    if os.environ.get("RANKBIND_DEPLOYMENT"):
        return claim(resource, **arguments)
    try:
        return claim(resource, deployment=name, **arguments)
    except ClaimedError as error:
        holder: Any = error.holder
        here = Process.me().net_ns
        if holder is None or holder.process.net_ns == here:
            raise
        return claim(resource, deployment=f"{name}-net{here}", **arguments)


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
