"""What happened to claims, as every process wrote it down, and whether that may happen: the judge of every chaos run.

One file of JSON lines, one `Event` a line, appended by all processes. The order of writing makes it sound: `acquire` is
stamped and written after the claim is held, `release` before it is let go, so two owners in the log were two owners in
truth. The reverse does not hold (an owner killed before it could write is not in the log): the harness has a `Witness`
in shared memory for that.

Stamps are CLOCK_MONOTONIC, which all processes of a host share, network namespaces or not.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

Kind: TypeAlias = Literal["acquire", "release", "act", "death"]
Who: TypeAlias = tuple[int, int]
"""A pid, and the start time that makes it unique."""

FOREVER: Final = 2**63
SECOND: Final = 10**9
_ENDED: Final = {"death": "died", "release": "released it"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that one process did, or that happened to it.

    Attributes:
        kind: `acquire`, `release`; `act`: it used the resource; `death`: written by whoever killed or reaped it.
        resource: of a `death`: "" ends whatever it owned. A name says that it died having that resource (the lock)
            without having written so: before its `acquire`, or after its `release` and before it let go.
        token: of a `death`: 0.
        pid: the process that did it, not the one that writes.
        start: when that process started (any unit; one value for each process).
        at: nanoseconds of CLOCK_MONOTONIC. Of a `death`: just before the kill, so that it was an owner until then.
        began: of an `acquire`: just before it was asked for; 0 if not known. Only a fenced history needs it.
        seen: of a `death`: when it was known to be dead; 0: at once.
        note: for people.
    """

    kind: Kind
    resource: str
    token: int
    pid: int
    start: int
    at: int
    began: int = 0
    seen: int = 0
    note: str = ""

    @property
    def who(self) -> Who:
        """The process."""
        return self.pid, self.start

    @property
    def gone(self) -> int:
        """From when on the dead is dead for certain."""
        return max(self.at, self.seen)


def now() -> int:
    """Nanoseconds of the clock that all processes of this host share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Log:
    """The file, for appending: any number of processes at once, each of which may be killed in the middle of a line."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, event: Event) -> None:
        """Append `event`. The newline in front ends the half line that somebody killed may have left."""
        line = f"\n{json.dumps(asdict(event))}\n".encode()
        if os.write(self._descriptor, line) != len(line):
            raise OSError("the history could not be written whole")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read(path: Path) -> tuple[list[Event], int]:
    """The events of a file by time, and how many torn lines were left out (each from a process that was killed)."""
    events, torn = [], 0
    names = {field.name for field in fields(Event)}
    for line in path.read_bytes().splitlines():
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError:
            torn += 1
            continue
        if found.keys() != names or found["kind"] not in get_args(Kind):
            raise ValueError(f"{path}: no event: {line!r}")
        events.append(Event(**found))
    events.sort(key=lambda event: event.at)
    return events, torn


@dataclass(slots=True)
class Tenure:
    """One ownership: from its `acquire` to its `release` or the death of the process, if there was either."""

    acquire: Event
    release: Event | None = None
    death: Event | None = None

    @property
    def end(self) -> int:
        """Until when it was an owner for certain."""
        if self.release is not None:
            return self.release.at
        if self.death is not None:
            return max(self.death.at, self.acquire.at)  # killed, and wrote its acquire while the kill was on its way
        return FOREVER

    def __str__(self) -> str:
        return f"process {self.acquire.pid} (token {self.acquire.token})"


@dataclass(frozen=True, slots=True)
class Takeover:
    """An ownership ended, and there was a next one, or nobody ever.

    Attributes:
        end: the `death` of the owner, or its `release`.
        by: the `acquire` of the next one; or its `death`, if it was killed before it could write.
    """

    resource: str
    end: Event
    by: Event | None

    @property
    def after(self) -> int | None:
        """Nanoseconds from the end (the kill) to the next one; None: never."""
        return None if self.by is None else self.by.at - self.end.at


def check(
    events: Iterable[Event],
    *,
    within: float | None = None,
    releases: bool = False,
    until: int | None = None,
    unable: Sequence[tuple[int, int]] = (),
    fenced: bool = False,
    over: bool = True,
) -> list[str]:
    """What may not happen but did, in words; [] if the history is one of claims that work.

    Args:
        events: in any order.
        within: seconds from the death of an owner to the next owner; None where nobody may be waiting.
        releases: what was released is wanted by somebody, too, within the same time.
        until: nanoseconds. From then on nobody may be waiting any more: a death less than `within` before needs
            no successor. None: the last event.
        unable: spans in which nobody could take over (a directory that is read-only, a network that is cut). `within`
            counts anew from the end of each.
        fenced: leases with a token. Two may believe that they own, but no two with one token, a token asked for after
            another was had is greater, and `act` is what the *consumer* accepted and stamped: its tokens never go back.
            Else: one owner at any instant, and each `act` falls inside its ownership.
        over: every process has ended, so every ownership has, too.
    """
    history = _History(events)
    faults = history.faults
    for resource, tenures in sorted(history.tenures.items()):
        if fenced:
            faults += _fenced(resource, tenures)
            faults += _backwards(resource, history.acts[resource])
        else:
            faults += _overlaps(resource, tenures)
            faults += _not_increasing(resource, tenures)
        if over:
            faults += [f"{resource}: {each} never ended" for each in tenures if each.end == FOREVER]
    if within is not None:
        last = history.last if until is None else until
        for takeover in history.takeovers(releases):
            limit = takeover.end.at + int(within * SECOND)
            for first, end in sorted(unable):
                if first < limit and end > takeover.end.at:
                    limit = max(limit, end + int(within * SECOND))
            if (takeover.by is None or takeover.by.at > limit) and limit <= last:
                ended = f"process {takeover.end.pid} {_ENDED[takeover.end.kind]} {_when(takeover.end)}"
                how_long = "" if takeover.after is None else f" for {takeover.after / SECOND:.3f} s"
                faults.append(f"{takeover.resource}: {ended}, and nobody took over{how_long}")
    return faults


def takeovers(events: Iterable[Event]) -> list[Takeover]:
    """Every death of an owner, and how long it took until there was a new one."""
    return _History(events).takeovers()


class _History:
    """The events, put together to tenures. `faults` says which do not fit anywhere."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.faults: list[str] = []
        self.tenures: dict[str, list[Tenure]] = defaultdict(list)
        self.acts: dict[str, list[Event]] = defaultdict(list)
        self.deaths: dict[Who, Event] = {}
        of: dict[tuple[str, int, Who], Tenure] = {}
        # A stable order for equal stamps: what has to come first does.
        order = {"acquire": 0, "act": 1, "release": 2, "death": 3}
        by_kind: dict[Kind, list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: (event.at, order[event.kind])):
            by_kind[event.kind].append(event)
        self.last = max((each[-1].at for each in by_kind.values()), default=0)

        for death in by_kind["death"]:
            if self.deaths.setdefault(death.who, death) is not death:
                self.faults.append(f"process {death.pid} died twice")
        for acquire in by_kind["acquire"]:
            tenure = Tenure(acquire, death=self.deaths.get(acquire.who))
            if of.setdefault((acquire.resource, acquire.token, acquire.who), tenure) is not tenure:
                self._fault(acquire, "acquired the same token a second time")
            if tenure.death is not None and acquire.at > tenure.death.gone:
                self._fault(acquire, "acquired after its death")
            self.tenures[acquire.resource].append(tenure)
        for release in by_kind["release"]:
            found = of.get((release.resource, release.token, release.who))
            if found is None or release.at < found.acquire.at:
                self._fault(release, "released what it did not own")
            elif found.release is not None:
                self._fault(release, "released twice")
            elif found.death is not None and release.at > found.death.gone:
                self._fault(release, "released after its death")
            else:
                found.release = release
        for act in by_kind["act"]:
            self.acts[act.resource].append(act)
            found = of.get((act.resource, act.token, act.who))
            if found is None or act.at < found.acquire.at:
                self._fault(act, "acted without being the owner")
            elif found.release is not None and act.at > found.release.at:
                self._fault(act, "acted after its release")
            elif found.death is not None and act.at > found.death.gone:
                self._fault(act, "acted after its death")

    def _fault(self, event: Event, what: str) -> None:
        self.faults.append(f"{event.resource}: process {event.pid} (token {event.token}) {what}, {_when(event)}")

    def takeovers(self, releases: bool = False) -> list[Takeover]:
        """See the function of that name; `releases`: those after a release, too.

        Who was killed before it could write that it owns is a successor, too.
        """
        silent: dict[str, list[Event]] = defaultdict(list)
        for death in self.deaths.values():
            silent[death.resource].append(death)
        silent.pop("", None)
        found = []
        for resource in sorted(self.tenures.keys() | silent.keys()):
            found += _takeovers(resource, self.tenures.get(resource, []), silent.get(resource, []), releases)
        return found


def _takeovers(resource: str, tenures: Sequence[Tenure], silent: Sequence[Event], releases: bool) -> list[Takeover]:
    """`silent`: deaths that name the resource."""
    had = sorted(tenures, key=lambda tenure: tenure.acquire.at)
    entries = [each.acquire.at for each in had]
    newest = list(accumulate((each.acquire.token for each in had), max))
    dead = {each.death.who: each.death for each in had if each.death is not None and each.release is None}
    owned = {each.acquire.who: each.acquire for each in had if each.release is None}
    for death in silent:
        before = bisect_left(entries, death.at)
        if death.who not in dead and not (before and had[before - 1].end > death.at):
            dead[death.who] = death
    starts = [each.acquire for each in had] + [each for each in dead.values() if each.who not in owned]
    starts.sort(key=lambda event: event.at)
    times = [each.at for each in starts]
    found = []
    for death in sorted(dead.values(), key=lambda event: event.at):
        acquire = owned.get(death.who)
        before = bisect_left(entries, death.at)
        if acquire is not None and before and newest[before - 1] > acquire.token:
            continue  # deposed before it died
        others = (each for each in starts[bisect_left(times, death.at) :] if each.who != death.who)
        found.append(Takeover(resource, death, next(others, None)))
    for each in had if releases else ():
        if each.release is not None:
            after = bisect_right(times, each.release.at)
            found.append(Takeover(resource, each.release, starts[after] if after < len(starts) else None))
    return found


def _overlaps(resource: str, tenures: Sequence[Tenure]) -> list[str]:
    faults = []
    longest: Tenure | None = None
    for each in sorted(tenures, key=lambda tenure: (tenure.acquire.at, tenure.end)):
        if longest is not None and each.acquire.at < longest.end:
            until = min(each.end, longest.end)
            how_long = f"for {(until - each.acquire.at) / SECOND:.6f} s " if until != FOREVER else ""
            faults.append(f"{resource}: {longest} and {each} both owned it {how_long}{_when(each.acquire)}")
        if longest is None or each.end > longest.end:
            longest = each
    return faults


def _not_increasing(resource: str, tenures: Sequence[Tenure]) -> list[str]:
    faults = []
    last: Tenure | None = None
    for each in sorted(tenures, key=lambda tenure: tenure.acquire.at):
        if last is not None and each.acquire.token <= last.acquire.token:
            faults.append(f"{resource}: the token of {each} is not above that of {last}, {_when(each.acquire)}")
        if last is None or each.acquire.token > last.acquire.token:
            last = each
    return faults


def _fenced(resource: str, tenures: Sequence[Tenure]) -> list[str]:
    faults = []
    owners: dict[int, Tenure] = {}
    for each in tenures:
        first = owners.setdefault(each.acquire.token, each)
        if first is not each:
            faults.append(f"{resource}: {first} and {each} have one token, {_when(each.acquire)}")
    had = sorted(tenures, key=lambda tenure: tenure.acquire.at)
    greatest: Tenure | None = None
    index = 0
    for each in sorted(tenures, key=lambda tenure: tenure.acquire.began):
        while index < len(had) and had[index].acquire.at < each.acquire.began:
            if greatest is None or had[index].acquire.token > greatest.acquire.token:
                greatest = had[index]
            index += 1
        if greatest is not None and each.acquire.token < greatest.acquire.token:
            faults.append(
                f"{resource}: {each} asked after {greatest} was an owner, and its token is lower, {_when(each.acquire)}"
            )
    return faults


def _backwards(resource: str, acts: Sequence[Event]) -> list[str]:
    faults = []
    greatest = -1
    for act in acts:
        if act.token < greatest:
            faults.append(
                f"{resource}: an act of process {act.pid} with token {act.token} was accepted after one with "
                f"{greatest}, {_when(act)}"
            )
        greatest = max(greatest, act.token)
    return faults


def _when(event: Event) -> str:
    return f"at {event.at / SECOND:.6f}"
