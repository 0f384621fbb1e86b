"""Standing by on one host, in real processes: whoever waits owns when the owner is gone, and not before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from rankbind.errors import ClaimedError, DirectoryError
from rankbind.runtime.claim import Claim, claim
from rankbind.runtime.election import RETRY, wait_for_claim

PATIENCE = 30.0


def _hold(pipe: Connection) -> None:
    held = claim("collector")
    pipe.send(held.token)
    while pipe.recv() != "release":
        pass
    held.release()
    pipe.send("released")
    pipe.recv()


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[BaseProcess, Connection, int]]:
    """A process that holds the claim, a pipe to it, and its token."""
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "run"))
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(theirs,))
    process.start()
    theirs.close()
    yield process, ours, ours.recv()
    process.kill()
    process.join()
    ours.close()


class StandBy:
    """A thread that waits for the claim, as `Tenure` has one."""

    def __init__(self) -> None:
        self.cancelled, self.won = threading.Event(), threading.Event()
        self.claim: Claim | None = None
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        self.claim = wait_for_claim(lambda: claim("collector"), self.cancelled)
        self.won.set()

    def end(self) -> None:
        self.cancelled.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self.claim is not None:
            self.claim.release()


@pytest.fixture
def stand_by(holder: object) -> Iterator[StandBy]:
    waiting = StandBy()
    yield waiting
    waiting.end()


def test_a_killed_owner_is_followed(holder, stand_by: StandBy) -> None:
    process, _, token = holder
    assert not stand_by.won.is_set()
    process.kill()
    assert stand_by.won.wait(PATIENCE)
    assert stand_by.claim is not None
    assert stand_by.claim.token > token
    assert stand_by.claim.record.takeovers == 1


def test_an_owner_that_gives_up_is_followed(holder, stand_by: StandBy) -> None:
    process, pipe, token = holder
    pipe.send("release")
    assert pipe.recv() == "released"
    assert stand_by.won.wait(PATIENCE)
    assert stand_by.claim is not None
    assert stand_by.claim.token > token
    assert stand_by.claim.record.takeovers == 0
    assert process.is_alive()


def test_a_stopped_owner_is_not_followed(holder, stand_by: StandBy) -> None:
    process, pipe, _ = holder
    os.kill(process.pid, signal.SIGSTOP)
    # It has tried again at least once by then, and would own if it could.
    assert not stand_by.won.wait(2 * RETRY)
    os.kill(process.pid, signal.SIGCONT)
    assert not stand_by.won.is_set()
    pipe.send("release")
    assert stand_by.won.wait(PATIENCE)


def test_one_who_does_not_wait_any_longer_gets_nothing(holder, stand_by: StandBy) -> None:
    _, pipe, _ = holder
    stand_by.end()
    assert stand_by.claim is None
    pipe.send("release")
    assert pipe.recv() == "released"
    claim("collector").release()


def test_of_several_who_wait_one_follows(holder) -> None:
    process, _, _ = holder
    waiting = [StandBy() for _ in range(8)]
    process.kill()
    seen: list[Claim] = []
    while waiting:
        first = next((each for each in waiting if each.won.wait(0.05)), None)
        if first is None:
            continue
        assert first.claim is not None
        assert first.claim.held
        assert sum(each.claim is not None and each.claim.held for each in waiting) == 1
        seen.append(first.claim)
        waiting.remove(first)
        first.end()
    assert [each.token for each in seen] == sorted(each.token for each in seen)


@pytest.mark.parametrize("change", [{"start": 1}, {"pid_ns": 1}, {"pid": 4194303, "start": 1}])
def test_a_record_of_somebody_else_keeps_nobody_waiting(holder, change, tmp_path: Path) -> None:
    """A pid that was reused, a process of another container, one that is gone: the lock alone decides."""
    process, _, _ = holder
    with pytest.raises(ClaimedError) as refused:
        claim("collector")
    found = refused.value.holder
    asked = []

    def attempt() -> Claim:
        asked.append(1)
        if len(asked) == 1:
            raise ClaimedError("held", None, replace(found, process=replace(found.process, **change)))
        process.kill()
        process.join()
        return claim("collector")

    won = wait_for_claim(attempt, threading.Event())
    assert won is not None
    won.release()


def test_what_is_no_refusal_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "no" / "such"))
    with pytest.raises(DirectoryError):
        wait_for_claim(lambda: claim("collector"), threading.Event())
