"""What is claimed on this host, by whom, and whether that is still so; and giving up what the dead left behind.

Looking disturbs nobody: no lock is tried, so no claimant who comes at that instant is refused. What a record says is
held against the process it names and against the kernel's list of locks; where they disagree, somebody may be between
taking a lock and writing its record, so it is looked at again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from rankbind.runtime import directory, lock, record
from rankbind.runtime.claim import CLAIMS
from rankbind.runtime.key import Key
from rankbind.runtime.locks import Locks, seen_as
from rankbind.runtime.process import Liveness, Process
from rankbind.runtime.record import Record

State = Literal["alive", "paused", "dead", "released", "unknown", "unreadable"]
"""``dead``: its holder is gone, and nobody took over. ``unknown``: its holder cannot be seen from here, as it is in
another pid namespace. ``unreadable``: there is no record of whoever holds it (or none that can be read)."""

_PATIENCE, _MOST_LOOKS = 6, 100
"""How often the same has to be seen that does not fit together, over 0.6 s: between taking a lock and writing its
record a claimant needs less than a millisecond, if it is let run. And after how many looks it is told as it is."""
_UNSEEN = ("never looked at",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One claim, as it is now.

    Attributes:
        key: what is claimed; read off the file's name where there is no record.
        paused_since: when its holder ran for the last time, in seconds since 1970, if it is paused.
        record: the last that was written; None if it cannot be read.
        locked: whether somebody holds the lock; None if that cannot be told from this pid namespace.
        pids: who holds the lock, as seen from here, where the record does not say it: children of a dead holder, one
            who could not write a record, or a holder that has another pid in its own pid namespace.
        remark: what is odd about it, for a person; empty for the usual.
        lock: the lock file. The record is the ``.json`` beside it.
    """

    key: Key
    state: State
    lock: Path
    record: Record | None = None
    paused_since: float | None = None
    locked: bool | None = None
    pids: tuple[int, ...] = ()
    remark: str = ""

    @property
    def live(self) -> bool:
        """Whether its holder is there, running or paused."""
        return self.state in ("alive", "paused")

    @property
    def pid(self) -> int | None:
        """The holder's pid, as it is seen from here where it lives; None if it is not known."""
        if self.pids and self.state != "dead":
            return self.pids[0]
        return self.record.process.pid if self.record is not None and self.state != "unreadable" else None

    def called(self, name: str | None, deployment: str | None = None) -> bool:
        """Whether it is meant by `name`: a resource, ``deployment/resource`` or that with its group; None: any."""
        key = self.key
        names = (None, key.resource, f"{key.deployment}/{key.resource}", str(key))
        return name in names and deployment in (None, key.deployment)


def elsewhere(path: Path) -> tuple[Path, ...]:
    """Other places where claims of this user may be, and are: those of a process with another environment."""
    user = os.geteuid()
    usual = (Path(f"/run/user/{user}/rankbind"), Path(f"/tmp/rankbind-{user}"))
    return tuple(each for each in usual if each != path and any(_files(each / CLAIMS)))


def entries(path: Path | None = None) -> tuple[Entry, ...]:
    """Everything that was ever claimed in the runtime directory `path` (left out: this process's), in order of key.

    Raises:
        DirectoryError: it cannot be used, as in `rankbind.runtime.directory`. One that does not exist has no entries.
    """
    path, said = directory.chosen() if path is None else (path, "as given")
    if not os.path.lexists(path):
        return ()
    directory.check(path, said)
    return _looked_at(_files(path / CLAIMS))


def release(entry: Entry, *, dry_run: bool = False) -> str | None:
    """Mark the claim of a dead holder as released; None if that was done, else why it was not.

    It is done under the lock, so nobody holds it. The lock file stays; a record that cannot be read goes.
    """
    refused = _refusal(entry)
    if refused is not None or dry_run:
        return refused
    try:
        held = lock.take(str(entry.lock))
    except (OSError, NotImplementedError) as error:
        return f"its lock cannot be taken: {getattr(error, 'strerror', None) or error}"
    if held is None:
        (now,) = _looked_at([entry.lock]) or (entry,)
        return _refusal(now) or f"its lock is held after all: `fuser {entry.lock}` shows by whom"
    try:
        return _mark(entry)
    finally:
        held.release()


def _mark(entry: Entry) -> str | None:
    path = _record_path(entry.lock)
    found = record.read(path)
    if _claimed(found) != _claimed(entry.record):
        return "somebody claimed it meanwhile"
    if found is None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            return f"its record cannot be removed: {error.strerror}"
        return None
    notes = {**found.notes, "released": f"by `rankbind release`, as its holder was dead (pid {found.process.pid})"}
    return None if record.write(path, replace(found, state="released", notes=notes)) else "its record cannot be written"


def _claimed(found: Record | None) -> tuple[object, ...] | None:
    return None if found is None else (found.token, found.state, found.process)


def _refusal(entry: Entry) -> str | None:
    """Why `release` must leave it alone; None if its holder is provably dead."""
    if entry.state == "dead" or (entry.state == "unreadable" and entry.locked is not True):
        if not entry.locked:
            return None
        if entry.pids:
            end = f"end that first: kill {' '.join(map(str, entry.pids))}"
            return f"its holder is dead, but its lock is kept by {_pids(entry.pids)}: {end}"
        return f"its holder is dead, but its lock is kept: `fuser {entry.lock}` shows by whom"
    if entry.state == "released":
        return "it is released already"
    if entry.state == "unknown":
        return "whether its holder is dead cannot be told from this pid namespace: ask there, or from the host"
    held = f"pid {entry.pid}" if entry.pid is not None else "a process that cannot be seen"
    if entry.state == "paused":
        return f"it is held by {held}, which is paused and not dead: `kill -CONT {entry.pid}` wakes it"
    end = f": end it first: kill {entry.pid}" if entry.pid is not None else ""
    return f"it is held by {held}{end}"


def _files(claims: Path) -> list[Path]:
    """The lock files of a folder of claims, also those of which only the record is there."""
    try:
        names = [file.name for file in claims.iterdir()]
    except OSError:
        return []
    stems = {name.removesuffix(end) for name in names for end in (".lock", ".json") if name.endswith(end)}
    return [claims / f"{stem}.lock" for stem in sorted(stems)]


def _record_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".lock") + ".json")


def _looked_at(files: Iterable[Path]) -> tuple[Entry, ...]:
    found: dict[Path, Entry | None] = {}
    same: dict[Path, tuple[int, tuple[object, ...] | None]] = dict.fromkeys(files, (_PATIENCE, _UNSEEN))
    for _ in range(_MOST_LOOKS):
        # Records first: if one is released meanwhile, its lock is free, and that is true by then.
        records = {file: record.read(_record_path(file)) for file in same}
        sight = _Sight()
        doubted = {}
        for file, read in records.items():
            found[file], doubtful = sight.entry(file, read)
            left, before = same[file]
            # Where the record changes, people come and go; where it stays and does not fit, somebody is in between.
            left = left - 1 if before == _claimed(read) else _PATIENCE
            if doubtful and left:
                doubted[file] = left, _claimed(read)
        if not doubted:
            break
        same = doubted
        time.sleep(0.01 * 2 ** (_PATIENCE - max(left for left, _ in doubted.values())))
    return tuple(sorted((entry for entry in found.values() if entry is not None), key=_order))


def _order(entry: Entry) -> tuple[object, ...]:
    key = entry.key
    return key.deployment, key.resource, tuple(key.group), tuple(key.group.values()), str(entry.lock)


class _Sight:
    """One look: locks and processes, each asked once. Of each claim it says, too, whether to look at it again."""

    def __init__(self) -> None:
        self._locks = Locks()
        self._liveness: dict[Process, Liveness] = {}

    def entry(self, path: Path, read: Record | None) -> tuple[Entry | None, bool]:
        """The claim behind a lock file; None where there is none that is worth a word."""
        try:
            file = path.stat()
        except OSError:
            file = None
        key = _key(path.name.removesuffix(".lock")) if read is None else read.key
        taker = None if file is None else self._locks.taken_by(file)
        blank = Entry(key=key, state="unreadable", record=read, lock=path, locked=taker is not None)
        if read is None:
            return self._without_record(blank, file, taker)
        if read.state == "released":
            return (replace(blank, state="released"), False) if taker is None else self._of_another(blank, file, taker)
        liveness = self._alive(read.process)
        if liveness == "unknown":
            return self._unseen(blank, read, file, taker)
        if liveness == "dead":
            # A pid in the list of locks may be somebody else's by now: only who has the file open holds it.
            if taker is not None and self._locks.kept_by(file, taker):
                return self._of_another(blank, file, taker)
            return self._dead(blank, file, taker), False
        return self._held(blank, read.process, liveness, file, taker)

    def _held(
        self, blank: Entry, holder: Process, liveness: Liveness, file: os.stat_result | None, taker: int | None
    ) -> tuple[Entry, bool]:
        if file is None:
            told = "its lock file was deleted (a cleaner of /tmp?), so a second one can claim it: restart the holder"
            return replace(_live(blank, holder, liveness), locked=None, remark=told), False
        if taker not in (None, holder.pid):
            return self._of_another(blank, file, taker)
        if taker is None and self._locks.kept_by(file, holder.pid) is False:
            told = f"its holder (pid {holder.pid}) let go of it and lives on; its record could not be written"
            return replace(blank, state="released", remark=told), True
        return _live(blank, holder, liveness), False

    def _unseen(self, blank: Entry, read: Record, file: os.stat_result | None, taker: int | None) -> tuple[Entry, bool]:
        """Of a holder in another pid namespace, or of another boot."""
        holder, here = read.process, Process.me()
        inside = None if taker is None else seen_as(taker)
        if taker is not None and inside is not None and inside.same(holder):
            outside = Process.of(taker)
            liveness = "dead" if outside is None else outside.liveness()
            if outside is not None and liveness != "dead":
                told = f"it is pid {holder.pid} in its pid namespace, and {taker} here"
                return replace(_live(blank, outside, liveness), pids=(taker,), remark=told), False
        if taker is not None and self._locks.kept_by(file, taker):
            return self._of_another(blank, file, taker)
        if holder.boot != here.boot:
            if read.host != os.uname().nodename:
                told = f"it was claimed on another host ({read.host}), or before this one was booted"
                return replace(blank, state="unknown", locked=None, remark=told), False
            booted = self._dead(blank, file, taker)
            return replace(booted, remark=booted.remark or "it was claimed before this host was booted"), False
        if self._locks.complete:
            return self._dead(blank, file, taker), taker is None
        keepers = () if file is None else self._locks.keepers(file)
        told = "its holder is in another pid namespace: look from there, or from the host"
        return replace(blank, state="unknown", locked=bool(keepers) or None, pids=keepers, remark=told), False

    def _dead(self, blank: Entry, file: os.stat_result | None, taker: int | None) -> Entry:
        seen = file is not None and (taker is not None or not self._locks.complete)
        keepers = self._locks.keepers(file) if seen else ()
        if not keepers and taker is None:
            return replace(blank, state="dead", locked=False)
        by = f"by {_pids(keepers)}, which it left behind" if keepers else f"still (`fuser {blank.lock}`)"
        told = f"its holder is dead, but its lock is kept {by}: nobody can take over"
        return replace(blank, state="dead", locked=True, pids=keepers, remark=told)

    def _of_another(self, blank: Entry, file: os.stat_result | None, taker: int) -> tuple[Entry, bool]:
        pids = (taker,) if self._locks.kept_by(file, taker) else self._locks.keepers(file)
        told = f"its lock is held by {_pids(pids)}, of which there is no record: what there is is older"
        return replace(blank, state="unreadable", locked=True, pids=pids, remark=told), True

    def _without_record(
        self, blank: Entry, file: os.stat_result | None, taker: int | None
    ) -> tuple[Entry | None, bool]:
        unreadable, untold = "its record cannot be read", "whether it is held cannot be told from this pid namespace"
        pids: tuple[int, ...] = ()
        if file is not None and taker is not None and self._locks.kept_by(file, taker):
            pids = (taker,)
        elif file is not None and (taker is not None or not self._locks.complete):
            pids = self._locks.keepers(file)
        if taker is not None or pids:
            return replace(
                blank, locked=True, pids=pids, remark=f"{unreadable}; its lock is held by {_pids(pids)}"
            ), True
        if not os.path.lexists(_record_path(blank.lock)):
            return None, False
        if self._locks.complete:
            return replace(blank, locked=False, remark=f"{unreadable}; nobody holds it"), False
        return replace(blank, locked=None, remark=f"{unreadable}; {untold}"), False

    def _alive(self, process: Process) -> Liveness:
        if process not in self._liveness:
            self._liveness[process] = process.liveness()
        return self._liveness[process]


def _live(blank: Entry, holder: Process, liveness: Liveness) -> Entry:
    if liveness == "paused":
        return replace(blank, state="paused", locked=True, paused_since=holder.paused_since())
    return replace(blank, state="alive", locked=True)


def _pids(pids: tuple[int, ...]) -> str:
    return f"pid {', '.join(map(str, pids))}" if pids else "a process that cannot be seen"


def _key(stem: str) -> Key:
    """What the file of a claim is about, as far as its name tells."""
    deployment, _, rest = unquote(stem).partition("/")
    resource, _, group = rest.removesuffix("]").partition("[")
    index: dict[str, int] = {}
    for each in group.split(","):
        axis, _, number = each.partition("=")
        if number.isascii() and number.isdigit():
            index[axis] = int(number[:18])
    return Key(deployment, resource, index)
