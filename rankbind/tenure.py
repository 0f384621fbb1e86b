"""What this process has of a declared resource: nothing, its claim, or a place among those who stand by.

There is one `Tenure` for each declaration and identity, whatever number of things the declaration decorates: they are
made by one owner. Its claim lasts from the first of them to the teardown of the last.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Event, RLock
from typing import Protocol

from rankbind.court import Court
from rankbind.errors import ClaimedError, ClaimError
from rankbind.identity import Identity, current, use, watch, watchers
from rankbind.runtime.election import Held
from rankbind.runtime.record import Record

_log = logging.getLogger("rankbind")

_MOST_SECONDS_BETWEEN_FAILURES = 60.0


@dataclass(frozen=True, slots=True)
class Takeover:
    """What ``on_takeover=`` is told, once everything that stood by has been made.

    Attributes:
        resource: what this process owns from now on.
        claim: its claim; ``claim.token`` is the fencing token.
        before: the record of the owner before, where it is known.
    """

    resource: str
    claim: Held
    before: Record | None


class Candidate(Protocol):
    """Something that is made when this process comes to own."""

    @property
    def of(self) -> Hashable:
        """What it is; the same thing stands once."""

    def take_over(self) -> bool:
        """Make it, in the thread that stood by; False if nobody can have it any more."""

    def step_down(self) -> None:
        """Tear it down: the claim was lost."""


class Tenure:
    """One declared resource, as this process has it.

    Args:
        who: whose it is.
        elected: whoever claims first owns, and the others stand by; else another holder is an error.

    Attributes:
        of_this_process: False in a child that was forked.
    """

    def __init__(
        self,
        who: Identity,
        court: Court,
        elected: bool = False,
        on_takeover: Callable[[Takeover], object] | None = None,
    ) -> None:
        self.elected, self.of_this_process = elected, True
        self._who = weakref.ref(who)
        self._court, self._on_takeover = court, on_takeover
        self._mutex = RLock()
        self._claim: Held | None = None
        self._users: dict[Hashable, Candidate] = {}
        self._candidates: dict[Hashable, Candidate] = {}
        self._cancelled: Event | None = None
        self._taking_over = False
        watch(self)

    def cool(self) -> None:
        """Nothing is remembered here that a change of the identity makes wrong: a tenure belongs to one."""

    def forked(self) -> None:
        """In a child: it has nothing of its parent's."""
        self.of_this_process = False

    @property
    def claim(self) -> Held | None:
        """The claim, while it is held."""
        claim = self._claim
        return claim if claim is not None and claim.held else None

    def contest(self, *, stand_by: bool = True) -> bool:
        """Whether this process owns, of those who may: it does if nobody else did when it asked.

        Args:
            stand_by: if it does not, wait in the background until it does.

        Raises:
            ClaimedError: another deployment holds one of the addresses.
            ClaimError: it cannot be found out.
        """
        with self._mutex:
            if self.claim is not None:
                return True
            if self._cancelled is not None:
                return False
            try:
                self._claim = self._court.claim(self._lost)
            except ClaimedError as error:
                if error.address is not None:
                    raise
                if stand_by:
                    self._stand_by()
                return False
            return True

    def stand_for(self, candidate: Candidate) -> None:
        """Have `candidate` made when this process comes to own, until `withdraw`."""
        with self._mutex:
            self._candidates[candidate.of] = candidate

    def withdraw(self, of: Hashable) -> None:
        """Take a candidate away. With the last one this process stops standing by."""
        with self._mutex:
            if self._candidates.pop(of, None) is not None and not self._candidates and self._cancelled is not None:
                self._cancelled.set()
                self._cancelled = None

    def enter(self, key: Hashable, candidate: Candidate) -> Held:
        """The claim, for one more thing that is made under it, until ``leave(key)``.

        Raises:
            ClaimedError: somebody else holds it. The message is the diagnosis.
            ClaimError: it cannot be claimed.
        """
        with self._mutex:
            claim = self.claim
            if claim is None:
                claim = self._claim = self._court.claim(self._lost)
            self._users[key] = candidate
            self._candidates.pop(candidate.of, None)
            return claim

    def leave(self, key: Hashable) -> None:
        """One thing less; with the last one the claim is given up."""
        with self._mutex:
            if self._users.pop(key, None) is not None and not self._taking_over:
                self._release_unused()

    def _release_unused(self) -> None:
        if not self._users and self._claim is not None:
            claim, self._claim = self._claim, None
            claim.release()

    def end(self) -> None:
        """Stand by no longer, and give up a claim that nothing is made under."""
        with self._mutex:
            self._candidates.clear()
            if self._cancelled is not None:
                self._cancelled.set()
                self._cancelled = None
            if not self._taking_over:
                self._release_unused()

    def _stand_by(self) -> None:
        cancelled = self._cancelled = Event()
        name = f"rankbind stands by for {self._court.resource}"
        threading.Thread(target=self._stand, args=(cancelled,), daemon=True, name=name).start()

    def _stand(self, cancelled: Event) -> None:
        who = self._who()
        if who is not None:
            with contextlib.nullcontext() if current() is who else use(who):
                self._wait(cancelled)

    def _wait(self, cancelled: Event) -> None:
        pause = 1.0
        while not cancelled.is_set():
            try:
                claim = self._court.wait(cancelled, self._lost)
                if claim is not None:
                    self._take_over(claim, cancelled)
                return
            except Exception:
                _log.exception(
                    "%s could not be taken over; trying again in %.0f s, if nobody else has it by then",
                    self._court.resource,
                    pause,
                )
                cancelled.wait(pause)
                pause = min(2 * pause, _MOST_SECONDS_BETWEEN_FAILURES)

    def _take_over(self, claim: Held, cancelled: Event) -> None:
        with self._mutex:
            if cancelled.is_set():
                claim.release()
                return
            self._claim, self._cancelled, self._taking_over = claim, None, True
            candidates = dict(self._candidates)
        try:
            made = [candidate.take_over() for candidate in candidates.values()]
            if self._on_takeover is not None and (any(made) or not made):
                self._on_takeover(Takeover(self._court.resource, claim, claim.before))
        except BaseException as error:
            with contextlib.suppress(ClaimError):
                claim.update(notes={"takeover": f"failed: {type(error).__name__}: {error}"[:200]})
            self._undo(claim, candidates, cancelled)
            raise
        with self._mutex:
            self._taking_over = False
            if made:
                # Nobody can have it any more, or it was released while others were being made.
                self._release_unused()

    def _undo(self, claim: Held, candidates: dict[Hashable, Candidate], cancelled: Event) -> None:
        with self._mutex:
            # Still standing by, as far as anybody who asks meanwhile is concerned.
            self._cancelled = cancelled
            users = list(self._users.values())
            self._candidates = {**candidates, **self._candidates}
        _step_down(self._court.resource, users)
        with self._mutex:
            self._users.clear()
            self._claim, self._taking_over = None, False
        claim.release()

    def _lost(self) -> None:
        """The claim was lost, to another host: nothing that was made under it may stay."""
        with self._mutex:
            claim, users = self._claim, list(self._users.values())
            self._claim, self._users = None, {}
            self._candidates |= {user.of: user for user in users}
        _log.warning("%s: the claim is lost; what was made under it is torn down", self._court.resource)
        _step_down(self._court.resource, users)
        if claim is not None:
            claim.release()
        with self._mutex:
            if self.elected and self._cancelled is None and self._claim is None:
                self._stand_by()


def end_all(who: Identity | None) -> None:
    """`Tenure.end` for all that `who` has; None: for all of this process."""
    for tenure in watchers():
        if isinstance(tenure, Tenure) and tenure.of_this_process and who in (None, tenure._who()):
            tenure.end()


def _step_down(resource: str, users: list[Candidate]) -> None:
    for user in users:
        try:
            user.step_down()
        except Exception:
            _log.exception("%s: a teardown failed", resource)
