"""The same claims across hosts, in a torch.distributed Store that all ranks of a job share. No server of our own.

The protocol. A claimed key has two keys in the store, which are never deleted::

    rankbind/claim/KEY   a text: the holder's record with its token and state, its lease if any, and a counter, `beat`
    rankbind/token/KEY   a number: the last token given out

1. The text changes only by a compare_set of all of it, and no two texts are equal: of those who read one, at most one
   replaces it, and whoever was replaced learns of it at the next attempt.
2. To claim: read the text; stop unless there is none, it is released, its holder is seen to be dead (a process of this
   host and pid namespace), or its lease is over (4). Then add 1 to the number, which is the token, then compare_set.
   The token in the text was added before the text was written, the new one after it was read: so tokens rise from each
   owner to the next, whatever others add in between. Gaps are left by those who lost.
3. The owner of a lease writes `beat` + 1 four times a lease. It is the owner until 95 % of a lease after it *sent* the
   last of its writes that was answered. Whoever was not the owner for a moment never is again with that token.
4. A stand-by that has seen one text for a whole lease, from when it *received* it, takes over. The owner had sent that
   text before, so it has stopped by then. A beat that is on its way comes first, and the stand-by's compare_set fails;
   or second, and fails itself. The rates of two clocks may differ by 5 %; their readings are never compared.
5. Between asking whether it owns and acting, an owner may be stopped for as long as you like. Nothing here prevents
   that it then acts late: its token is smaller than its successor's, and `Fence` refuses it where it arrives.
6. Without a lease nobody takes over from another host: its death cannot be told from silence. The claim stays until it
   is released (also by an orderly exit), and the refusal says so.
7. An answer that comes when nobody waits for it any more is undone. What is not known is said, as `StoreGoneError`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from threading import Event, Lock, RLock, Thread
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

from rankbind.endpoint import Endpoint
from rankbind.errors import ClaimedError, ClaimError, DeposedError, StoreGoneError
from rankbind.runtime import addresses, diagnosis
from rankbind.runtime.key import Key
from rankbind.runtime.line import Line, Store, lost_connection, open_line, read
from rankbind.runtime.process import see_to_exit
from rankbind.runtime.record import Record, wanted

TIMEOUT: Final = 10.0
"""Seconds that a store may take to answer, if nothing else is said."""
SHORTEST_LEASE: Final = 0.1
_KEPT: Final = 0.95
"""The part of its lease for which an owner believes in it."""
_BEATS: Final = 4
"""How often a lease is renewed while it lasts."""
_LOOK: Final = 0.25
"""Seconds from one look of a stand-by to the next; with a lease an eighth of it, if that is less."""
_AT_EXIT: Final = 2.0
"""Seconds that an orderly exit may take to release what is held."""

Lost = Callable[[DeposedError], object]


class StoreClaim:
    """What this process holds for the whole job. Made by `claim_in_store` and `stand_by_in_store`.

    Attributes:
        key: what is held.
        lease: seconds; None: held until `release`.
        before: the record of the owner before, where there was one.
    """

    def __init__(self, won: _Won, claimant: _Claimant, line: Line) -> None:
        self.key, self.lease, self.before = claimant.key, claimant.lease, won.before
        self._name, self._store, self._lost, self._line = claimant.name, claimant.store, claimant.lost, line
        self._timeout = claimant.timeout
        self._patience = min(claimant.timeout, self.lease or math.inf)
        self._text = won.text
        self._mutex = RLock()
        self._pid = os.getpid()
        self._phase = "held"
        self._reason: DeposedError | None = None
        self._beating = False
        self._renewed(won.sent)
        _held.add(self)
        see_to_exit(_at_exit)
        if self.lease is not None:
            _keeper.add(self)

    @property
    def record(self) -> Record:
        """What others read of it."""
        return self._text.record

    @property
    def token(self) -> int:
        """The fencing token, greater than that of every owner before. To be sent along with whatever is done."""
        return self._text.record.token

    @property
    def held(self) -> bool:
        """Whether this process is the owner: False after `release`, in a forked child, and once a lease ran out.

        Asks nobody.
        """
        if self._phase != "held" or self._pid != os.getpid():
            return False
        return _clock() < self._until or self._still_held()

    def check(self) -> None:
        """To be called before the resource is used, with a lease. While it is held, this asks nobody.

        Raises:
            DeposedError: the lease ran out. It names the new owner, for which the store is asked.
            ClaimError: it was released, or this is a forked child.
        """
        if self.held:
            return
        if self._phase != "lost" or self._pid != os.getpid():
            raise ClaimError(f"{self.key} is not held by this process (any more)")
        raise self._deposed()

    def update(
        self, endpoints: Mapping[str, str | Endpoint] | None = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """Tell the record more: what is really bound, by role, in place of what was said before; or notes, in addition.

        Raises:
            DeposedError: as `check`.
            StoreGoneError: the store does not answer. It is told when it does again.
        """
        self.check()

        def change(store: Store) -> None:
            record = self.record
            if endpoints is not None:
                record = replace(record, endpoints={role: str(endpoint) for role, endpoint in endpoints.items()})
            if notes is not None:
                record = replace(record, notes={**record.notes, **notes})
            self._replace(store, record)

        self._line.settle(self._line.post(change), self._timeout)
        self.check()

    def release(self) -> None:
        """Give it up. Nothing happens where it is not held.

        Raises:
            StoreGoneError: the store does not answer. The claim is given up, but others do not know it: until the
                store answers again they wait for the lease to end, or for ever if there is none.
        """
        told = self.give_up()
        if told is not None:
            self._line.settle(told, self._timeout)

    def give_up(self) -> Future[Any] | None:
        """As `release`, without waiting for the store. None where it is not held."""
        with self._mutex:
            if self._phase != "held" or self._pid != os.getpid():
                return None
            self._phase = "released"
        _keeper.discard(self)
        _held.discard(self)
        told = self._line.post(self._let_go)
        self._line.close()
        return told

    def __enter__(self) -> StoreClaim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except StoreGoneError:
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"<claim of {self.key} in {self._line.where}, token {self.token}{'' if self.held else ', not held'}>"

    def tend(self) -> float:
        """Have the lease renewed if it is time, and notice if it ran out. When to come again, by `_clock`."""
        if not self.held:
            return math.inf
        now = _clock()
        if now < self._next or self.lease is None:
            return self._next
        if not self._beating and self._line.broken is None:
            self._beating = True
            with contextlib.suppress(StoreGoneError):
                self._line.post(self._beat)
        return min(self._until, now + self.lease / _BEATS)

    def _renewed(self, sent: float) -> None:
        self._until = math.inf if self.lease is None else sent + _KEPT * self.lease
        self._next = math.inf if self.lease is None else sent + self.lease / _BEATS

    def _still_held(self) -> bool:
        """As `held`, for when the lease seems to be over: whoever was told so is right for good."""
        with self._mutex:
            if self._phase == "held" and _clock() < self._until:
                return True
            self._lose(None)
            return False

    def _lose(self, reason: DeposedError | None) -> None:
        """`reason`: None if all that is known is that the lease ran out."""
        with self._mutex:
            if self._phase != "held":
                return
            self._phase, self._reason = "lost", reason
        # In a thread, for the caller may hold locks, be the line's, or not want to wait.
        with contextlib.suppress(RuntimeError):  # the interpreter is ending
            Thread(target=self._after_loss, name="rankbind-lost", daemon=True).start()

    def _after_loss(self) -> None:
        _keeper.discard(self)
        _held.discard(self)
        try:
            if self._reason is None:
                with contextlib.suppress(StoreGoneError):
                    # It was perhaps the store that was away, and nobody has taken over.
                    self._line.post(self._let_go)
            if self._lost is not None:
                self._lost(self._deposed())
        finally:
            self._line.close()

    def _deposed(self) -> DeposedError:
        """Why this is not the owner any more. The store is asked, for no longer than the lease."""
        if self._reason is not None:
            return self._reason
        late = f"its lease of {self.lease:g} s ran out before it was renewed"
        line = open_line(self._store)
        try:
            owner = line.ask(lambda store: _Text.read(read(store, self._name)), self._patience)
        except ClaimError as error:
            unknown = self._deposed_by(None, f"{late}, and {error}")
            unknown.__cause__ = error
            return unknown
        finally:
            line.close()
        if owner is None or owner.record.token == self.token or owner.record.state == "released":
            return self._deposed_by(
                None, f"{late}: this process was stopped, or the store did not answer. Nobody owns it at the moment"
            )
        self._reason = self._deposed_by(owner.record)
        return self._reason

    def _deposed_by(self, owner: Record | None, why: str = "") -> DeposedError:
        if owner is not None:
            why = f"since {diagnosis.when(owner.since)} its owner is {diagnosis.who(owner)}, with token {owner.token}"
        return DeposedError(
            f"{self.key} is not owned here any more (token {self.token}): {why}. Stop using it",
            self.key,
            self.token,
            owner,
        )

    # In the line's thread, which alone changes the text:

    def _beat(self, store: Store) -> None:
        self._beating = False
        if self.held:
            self._replace(store, self.record)

    def _let_go(self, store: Store) -> None:
        self._replace(store, replace(self.record, state="released"))

    def _replace(self, store: Store, record: Record) -> None:
        for _ in range(2):
            sent, text = _clock(), self._text.after(record)
            found = _swap(store, self._name, self._text, text)
            if found is text:
                with self._mutex:
                    self._text = text
                    if self._phase == "held":
                        self._renewed(sent)
                return
            if found is None or found.record.token != self.token:
                break
            self._text = found  # what an error hid: it was written
        self._lose(self._deposed_by(None, "the store has lost it") if found is None else self._deposed_by(found.record))


def claim_in_store(
    resource: str,
    *,
    group: Mapping[str, int] | None = None,
    deployment: str | None = None,
    store: Any = None,
    lease: float | None = None,
    timeout: float = TIMEOUT,
    lost: Lost | None = None,
    endpoints: Mapping[str, str | Endpoint] | None = None,
    rank: int | None = None,
    coordinates: Mapping[str, int] | None = None,
    declared: str = "",
) -> StoreClaim:
    """Hold `resource` for the whole job, now or not at all.

    Args:
        group: index on each axis the resource exists once for; left out, there is one in the deployment.
        deployment: left out, that of this process's identity, of ``RANKBIND_DEPLOYMENT``, or ``default``.
        store: a ``torch.distributed`` Store that the claimants share; left out, the job's default store.
        lease: seconds without a sign of life from the owner after which a stand-by takes over. Several times what the
            store may take to answer, or the process may be busy without letting other threads run. None: never.
        timeout: seconds that the store may take to answer.
        lost: called once, in a thread of its own, with the error that `StoreClaim.check` raises, when the lease ran out
            or somebody else is the owner.
        endpoints: what the owner binds, by role, for others to read.
        rank, coordinates: for the record; left out, those of this process's identity, if it is known.
        declared: ``file:line`` of what says that it exists once; left out, that of the caller.

    Raises:
        ClaimedError: somebody else holds it. The message says who.
        StoreGoneError: the store does not answer: nothing is known. If the claim was made nevertheless, it is undone
            when the store answers again.
        ClaimError: there is no store, or it has no compare_set.
    """
    claimant = _claimant(
        resource, group, deployment, store, lease, timeout, lost, endpoints, rank, coordinates, declared
    )
    line = open_line(claimant.store)
    made = None
    try:
        while made is None:
            found = line.ask(claimant.attempt, timeout, undo=claimant.undo)
            if isinstance(found, _Won):
                made = StoreClaim(found, claimant, line)
            elif found is not None and found.record.state == "held":
                raise ClaimedError(claimant.refusal(found, line.where), claimant.key, found.record)
    finally:
        if made is None:
            line.close()
    return made


def stand_by_in_store(
    resource: str,
    *,
    group: Mapping[str, int] | None = None,
    deployment: str | None = None,
    store: Any = None,
    lease: float | None = None,
    timeout: float = TIMEOUT,
    lost: Lost | None = None,
    cancel: Event | None = None,
    endpoints: Mapping[str, str | Endpoint] | None = None,
    rank: int | None = None,
    coordinates: Mapping[str, int] | None = None,
    declared: str = "",
) -> StoreClaim | None:
    """Wait until this process is the owner of `resource`; None if `cancel` was set before.

    It looks four times a second, or eight times a lease if that is more: one operation of the store each time. What it
    waits for is a release, the death of an owner in the same pid namespace, or the end of the owner's lease.

    Args:
        cancel: looked at all the time, also while the store does not answer.

    The others as of `claim_in_store`, and so are the errors, but for ClaimedError.
    """
    claimant = _claimant(
        resource, group, deployment, store, lease, timeout, lost, endpoints, rank, coordinates, declared
    )
    line = open_line(claimant.store)
    made = None
    try:
        while made is None and not (cancel is not None and cancel.is_set()):
            found = line.ask(claimant.attempt, timeout, undo=claimant.undo, cancel=cancel)
            if isinstance(found, _Won):
                made = StoreClaim(found, claimant, line)
            elif found is not None:
                pause = claimant.pause(found)
                time.sleep(pause) if cancel is None else cancel.wait(pause)
    finally:
        if made is None:
            line.close()
    return made


@dataclass(frozen=True, slots=True)
class _Text:
    """What the store has for a claimed key. `text` is the whole of it."""

    record: Record
    lease: float | None
    beat: int
    text: str

    @classmethod
    def of(cls, record: Record, lease: float | None, beat: int) -> _Text:
        # ASCII only, as json writes it: no store does anything to it.
        plain = {"lease": lease, "beat": beat, "record": record.to_json()}
        return cls(record, lease, beat, json.dumps(plain, separators=(",", ":")))

    @classmethod
    def read(cls, text: str | None) -> _Text | None:
        """Raises ClaimError for a text that is not a claim's."""
        if text is None:
            return None
        try:
            found = json.loads(text)
            lease = None if found["lease"] is None else float(found["lease"])
            return cls(Record.from_json(found["record"]), lease, int(found["beat"]), text)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ClaimError(
                f"the store has something else where a claim of this version of rankbind should be: {text[:80]!r}"
            ) from None

    def after(self, record: Record) -> _Text:
        """The next one of the same owner."""
        return _Text.of(record, self.lease, self.beat + 1)


@dataclass(frozen=True, slots=True)
class _Won:
    text: _Text
    sent: float
    before: Record | None


@dataclass(slots=True)
class _Claimant:
    """Who wants to be the owner, and what it has seen of the one there is."""

    key: Key
    wanted: Record
    store: Any
    lease: float | None
    timeout: float
    lost: Lost | None
    seen: str = ""
    since: float = 0.0

    @property
    def name(self) -> str:
        return f"rankbind/claim/{quote(str(self.key), safe='/=,[]')}"

    def attempt(self, store: Store) -> _Won | _Text | None:
        """Become the owner, or what the store has. None: somebody was quicker and is gone already; try again."""
        found = _Text.read(read(store, self.name))
        if found is not None and not self._free(found, time.monotonic()):
            return found
        record = replace(
            self.wanted,
            token=self._next_token(store, found),
            since=time.time(),
            takeovers=0 if found is None else found.record.takeovers + (found.record.state == "held"),
        )
        text = _Text.of(record, self.lease, 0)
        won = _Won(text, _clock(), None if found is None else found.record)
        try:
            now = _swap(store, self.name, found, text)
        except Exception as error:
            if not lost_connection(error):
                with contextlib.suppress(Exception):
                    self.undo(store, won)
            raise
        return won if now is text else now

    def undo(self, store: Store, answer: object) -> None:
        if isinstance(answer, _Won):
            text = answer.text
            _swap(store, self.name, text, text.after(replace(text.record, state="released")))

    def pause(self, found: _Text) -> float:
        """Seconds until it is worth another look."""
        if found.lease is None:
            return _LOOK
        return max(0.0, min(_LOOK, found.lease / 8, self.since + found.lease - time.monotonic()))

    def refusal(self, found: _Text, where: str) -> str:
        holder = found.record
        return (
            f"{self.key} is held by {diagnosis.who(holder)}, since {diagnosis.when(holder.since)}, with token "
            f"{holder.token}, in {where}.{diagnosis.details(holder)}\n  asked for by {diagnosis.who(self.wanted)}, "
            f"declared at {self.wanted.declared}\n  likely: {self._cause(found)}"
        )

    def _cause(self, found: _Text) -> str:
        holder = found.record
        if holder.process == self.wanted.process:
            return "this very process holds it already: release() it before it is claimed again"
        if self.wanted.rank is not None and holder.rank == self.wanted.rank:
            return (
                f"two processes say that they are rank {holder.rank}: look at what tells them (RANK, RANKBIND_RANK, "
                "rankbind.init)"
            )
        if found.lease is not None:
            return (
                f"it is alive, or has been dead for less than its lease of {found.lease:g} s: stand_by_in_store() "
                "waits for that"
            )
        return (
            "two ranks of one group both make it; or its holder is dead, which cannot be seen from another host: "
            "without a lease it stays claimed as long as there is this store. Look for pid "
            f"{holder.process.pid} on {holder.host}; if it is dead, start the job anew, and claim with lease= to have "
            "a stand-by take over"
        )

    def _free(self, found: _Text, now: float) -> bool:
        if found.record.state == "released" or _seen_dead(found.record):
            return True
        if found.lease is None:
            return False
        if found.text != self.seen:
            self.seen, self.since = found.text, now
        return now - self.since >= found.lease

    def _next_token(self, store: Store, found: _Text | None) -> int:
        name = self.name.replace("/claim/", "/token/", 1)
        if found is None:
            # A store that was started anew goes on above the old one, for consumers that outlive it.
            store.compare_set(name, "", str(time.time_ns() // 1000))
        token = store.add(name, 1)
        last = 0 if found is None else found.record.token
        return token if token > last else store.add(name, last + 1 - token)  # somebody has deleted the number


def _claimant(
    resource: str,
    group: Mapping[str, int] | None,
    deployment: str | None,
    store: Any,
    lease: float | None,
    timeout: float,
    lost: Lost | None,
    endpoints: Mapping[str, str | Endpoint] | None,
    rank: int | None,
    coordinates: Mapping[str, int] | None,
    declared: str,
) -> _Claimant:
    if lease is not None and not SHORTEST_LEASE <= lease < math.inf:
        raise ClaimError(f"a lease of {lease:g} s for {resource}: it lasts {SHORTEST_LEASE:g} s at least, and ends")
    asking = wanted(resource, group, deployment, addresses.parsed(endpoints or {}), rank, coordinates, declared)
    return _Claimant(asking.key, asking, _default_store() if store is None else store, lease, timeout, lost)


def _default_store() -> Any:
    """The job's. torch is not imported: a process without it is in no job."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        raise ClaimError(
            "there is no store to claim in: torch.distributed is not initialised in this process. Call "
            "init_process_group() before, or pass store="
        )
    return c10d._get_default_store()


class _Keeper:
    """One thread that has every lease renewed in time, and notices when one was not. It never asks a store itself."""

    def __init__(self) -> None:
        self._claims: set[StoreClaim] = set()
        self._mutex = Lock()
        self._changed = Event()
        self._runs = False

    def add(self, claim: StoreClaim) -> None:
        with self._mutex:
            self._claims.add(claim)
            self._changed.set()
            if not self._runs:
                Thread(target=self._run, name="rankbind-leases", daemon=True).start()
                self._runs = True

    def discard(self, claim: StoreClaim) -> None:
        with self._mutex:
            self._claims.discard(claim)
            self._changed.set()

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._claims:
                    self._runs = False
                    return
                claims = tuple(self._claims)
                self._changed.clear()
            due = min(claim.tend() for claim in claims)
            # Leases that end at about one time are tended together.
            least = min(claim.lease or math.inf for claim in claims) / 40
            del claims
            if due < math.inf:
                self._changed.wait(max(due - _clock(), least))


def _clock() -> float:
    """Seconds, of a clock that goes on while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _swap(store: Store, name: str, old: _Text | None, new: _Text) -> _Text | None:
    """`new` itself if it is in place of `old` now; else what is there; None: nothing is (any more)."""
    expected = "" if old is None else old.text
    found = store.compare_set(name, expected, new.text).decode(errors="surrogateescape")
    if found == new.text:
        return new
    return None if found == expected else _Text.read(found)


def _seen_dead(holder: Record) -> bool:
    # Hosts that were started from one snapshot have one boot id.
    return holder.host == os.uname().nodename and holder.process.liveness() == "dead"


_held: set[StoreClaim] = set()
"""What is held lasts until it is released, not until nobody refers to it."""
_keeper = _Keeper()


@atexit.register
def _at_exit() -> None:
    told = []
    for each in tuple(_held):
        with contextlib.suppress(StoreGoneError):
            told.append(each.give_up())
    wait([each for each in told if each is not None], _AT_EXIT)


def _forked() -> None:
    global _keeper
    _keeper = _Keeper()
    _held.clear()


os.register_at_fork(after_in_child=_forked)
