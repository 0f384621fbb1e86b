"""What to tell somebody whose claim was refused: what is held, by whom, since when, and why that is likely."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

from rankbind.runtime.locks import Locks
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record

_ONE_LAUNCH = 120.0
"""Processes that started further apart than so many seconds are of two launches."""
_AT_ONCE = 5.0
"""Those that started within so many are of one; in between they may be either."""


def refusal(what: str, wanted: Record, holder: Record | None, lock: str, address: str | None = None) -> str:
    """The message of a `ClaimedError`.

    Args:
        what: the key that was asked for.
        wanted: the record that would have been written.
        holder: the record of whoever holds it; None if it cannot be read.
        lock: the lock file.
        address: the endpoint or path that is held, where it is that and not the resource itself.
    """
    subject = _shown(f"{what} needs {address}, which" if address else what)
    asked = f"asked for by {who(wanted)}, declared at {_shown(wanted.declared) or 'an unknown place'}"
    if holder is None:
        return f"{subject} is held by {_unrecorded(lock)}\n  {asked}"
    return (
        f"{subject} is held by {who(holder)}{_of(holder, wanted, address)}, "
        f"since {when(holder.since)}{_state(holder)}."
        f"{details(holder)}\n  {asked}\n  likely: {_cause(wanted, holder, address)}"
    )


def when(since: float) -> str:
    """A moment and how long ago it was: ``10:31:02 (12 min ago)``."""
    try:
        moment, today = datetime.fromtimestamp(since), datetime.now().date()
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
    age = time.time() - since
    day = "" if moment.date() == today else f"{moment:%Y-%m-%d} "
    # The clock was set back: a duration would be wrong.
    return f"{day}{moment:%H:%M:%S}" + (f" ({span(max(0.0, age))} ago)" if age > -1 else "")


def span(seconds: float) -> str:
    """A duration in its largest unit: ``12 min``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.0f} s"


def place(coordinates: Mapping[str, int]) -> str:
    """Coordinates as they are told everywhere: ``pp 0, tp 2``."""
    return ", ".join(f"{_shown(axis)} {index}" for axis, index in coordinates.items())


def _shown(text: str) -> str:
    """Nothing that a terminal obeys, or that cannot be printed at all. Records come from files."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def who(record: Record, pid: int | None = None) -> str:
    """A holder as it is told everywhere: ``rank 3 (pp 0, tp 3), pid 4711 on node-a``.

    Args:
        pid: where it has another one here than its record says.
    """
    at = place(record.coordinates)
    rank = "a process of unknown rank" if record.rank is None else f"rank {record.rank}"
    return f"{rank}{f' ({at})' if at else ''}, pid {pid or record.process.pid} on {_shown(record.host)}"


def _of(holder: Record, wanted: Record, address: str | None) -> str:
    return f", for {_what(holder)}" if address and _what(holder) != _what(wanted) else ""


def _what(record: Record) -> str:
    group = place(record.group)
    return _shown(f"{record.deployment}/{record.resource}") + (f" of {group}" if group else "")


def _state(holder: Record) -> str:
    if holder.state == "released":
        return "; it is about to end, or to give it up"
    if holder.process.liveness() != "paused":
        return ""
    paused = holder.process.paused_since()
    return f"; it is stopped{f', since {when(paused)},' if paused else ''} and keeps what it holds"


def details(holder: Record) -> str:
    """What else is known of it, in lines of their own."""
    found = ", ".join(_shown(f"{role} {endpoint}") for role, endpoint in holder.endpoints.items())
    lines = [f"it has {found}"] if found else []
    lines += [f"it was declared at {_shown(holder.declared)}"] if holder.declared else []
    lines += [f"it runs {_shown(holder.program)}"] if holder.program else []
    return "".join(f"\n  {line}" for line in lines)


def _unrecorded(lock: str) -> str:
    """Who holds `lock`, as far as the kernel tells, where no record does."""
    with suppress(OSError, ValueError):
        file, locks = os.stat(lock), Locks()  # noqa: PTH116
        taker = locks.taken_by(file)
        if taker is not None and locks.kept_by(file, taker) is not False:
            return (
                f"pid {taker}, and no record says more: it began this very moment, or could not write one "
                f"(is the disk full?). `ps -fp {taker}` shows it"
            )
        keepers = " ".join(map(str, locks.keepers(file)))
        if keepers:
            return (
                f"pid {keepers.replace(' ', ', ')}, left behind by a holder that is dead: a library forked it past "
                f"Python, so it keeps the lock. `kill {keepers}` sets it free"
            )
    return (
        "a process that cannot be seen from here, and its record cannot be read: it may be in another container that "
        f"shares this directory. `fuser {_shown(lock)}`, on the host, shows its pid"
    )


def _cause(wanted: Record, holder: Record, address: str | None) -> str:
    me, other = wanted.process, holder.process
    liveness = other.liveness()
    if other.same(me):
        if address and _what(wanted) != _what(holder):
            return f"this very process has it for {_what(holder)}: give one of the two another address"
        return "this very process holds it already: release() it before it is claimed again"
    if liveness == "paused":
        return f"the holder is stopped, not dead: `kill -CONT {other.pid}` wakes it, `kill -KILL {other.pid}` ends it"
    if liveness == "unknown":
        return (
            "the holder runs in another container (pid namespace) that shares this directory: look there. If both are "
            f"meant to run, give each a directory of its own (RANKBIND_DIR) or a name ({_another(wanted)})"
        )
    if holder.state == "released":
        return f"the holder is ending: try again when pid {other.pid} is gone"
    if _is_ancestor(other):
        return (
            "this process was started by the holder and took itself for the same rank (a data loader's worker, a "
            "helper): make such things in the holder alone, or tell the child who it is with rankbind.init"
        )
    if address and wanted.deployment != holder.deployment:
        return (
            f"two deployments want one address: give {_shown(wanted.deployment)} or {_shown(holder.deployment)} other "
            f"ports, or end the other one: `kill {other.pid}`"
        )
    if other.age() - me.age() > _ONE_LAUNCH:
        return (
            f"an old server still runs, started {span(other.age())} ago: `kill {other.pid}` ends it. If both are meant "
            f"to run, give one of them another name ({_another(wanted)}) and other ports"
        )
    if address and _what(wanted) != _what(holder):
        return (
            f"{_what(wanted)} and {_what(holder)} come to one address: `rankbind check` shows which rule gives it twice"
        )
    if wanted.rank is not None and wanted.rank == holder.rank:
        earlier = other.age() - me.age()
        old = (
            f". Or an old server still runs: that one began {span(earlier)} before this one, and `kill {other.pid}` "
            "ends it"
        )
        return (
            f"two processes say that they are rank {wanted.rank}: look at what tells them (RANK, RANKBIND_RANK, "
            f"rankbind.init){old if earlier > _AT_ONCE else ''}. If these are two deployments, give one of them "
            f"another name: {_another(wanted)}"
        )
    if wanted.rank is None and holder.rank is None:
        return (
            "the same thing was started twice: end one of the two. If these are two deployments, give one of them "
            f"another name: {_another(wanted)}"
        )
    return (
        "two ranks of one group both make it, so one of the gates lets too many through; or two deployments have one "
        f"name, and {_another(wanted)} tells them apart"
    )


def _another(wanted: Record) -> str:
    return f"RANKBIND_DEPLOYMENT={_shown(wanted.deployment)}-2"


def _is_ancestor(other: Process) -> bool:
    pid, seen = os.getppid(), 0
    while pid > 1 and seen < 32:
        if pid == other.pid:
            return True
        above = Process.of(pid)
        pid, seen = (above.parent() or 0) if above else 0, seen + 1
    return False
