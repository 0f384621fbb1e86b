"""Standing by: waiting until nobody holds a claim any more, and then holding it.

On one host the kernel tells when a holder dies (pidfd_open(2)), and its lock is free at that instant. A holder that
gives its claim up and lives on is noticed by trying again, every `RETRY` seconds.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from threading import Event
from typing import Protocol, TypeVar

from rankbind.endpoint import Endpoint
from rankbind.errors import ClaimedError
from rankbind.runtime.record import Record

RETRY = 0.5
"""Seconds between two tries while the holder is alive, or cannot be seen."""

_SOON, _SOON_AT_MOST = 0.002, 0.1
"""Seconds of the first wait, and of the longest, each twice as long, while the record does not say who lives.

A new holder has not written it yet, or cannot: then nobody tells when that holder ends.
"""


class Held(Protocol):
    """A claim, on one host or across hosts.

    Attributes:
        before: the record of the owner before, where it can be read.
    """

    before: Record | None

    @property
    def token(self) -> int:
        """The fencing token."""

    @property
    def held(self) -> bool:
        """Whether it is still held."""

    def update(
        self, endpoints: Mapping[str, str | Endpoint] | None = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """Tell others more: where the thing really is, or anything else."""

    def release(self) -> None:
        """Give it up."""


H = TypeVar("H", bound=Held)


def wait_for_claim(attempt: Callable[[], H], cancelled: Event) -> H | None:
    """What `attempt` gives once it does not raise `ClaimedError` any more; None if `cancelled` is set before.

    Args:
        attempt: takes the claim, at once or not at all: ``lambda: claim("kv-events")``.

    Raises:
        ClaimError: whatever else `attempt` raises.
    """
    soon = _SOON
    while not cancelled.is_set():
        try:
            return attempt()
        except ClaimedError as error:
            holder = error.holder
        if not isinstance(holder, Record) or _await_end(holder, cancelled):
            cancelled.wait(soon)
            soon = min(2 * soon, _SOON_AT_MOST)
        else:
            soon = _SOON
    return None


def _await_end(holder: Record, cancelled: Event) -> bool:
    """Wait for the end of `holder`, for `RETRY` seconds at most; whether it was at its end already."""
    process = holder.process
    if holder.state == "released":
        return True
    if not process.visible:
        cancelled.wait(RETRY)
        return False
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return True
    try:
        # Asked after the pidfd was opened: from here on the pid cannot become another process's.
        if process.liveness() == "dead":
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(RETRY * 1000)
        return False
    finally:
        os.close(descriptor)
