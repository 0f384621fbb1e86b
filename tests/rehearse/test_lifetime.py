"""Nothing of a rehearsal outlives it: no process, no port, no socket, no folder, whoever is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support.rehearsals import alive, kill, left, started, wait_for

RANKS = 4


def topology(folder: Path) -> str:
    """Whose first rank is deaf, so that its rehearsal lasts for more than a second; on a real path."""
    return f'[axes]\ntp = {RANKS}\n[resources.x]\nowner = {{ tp = [0, 1] }}\nbind = "ipc://{folder}/s"\n'


class Command:
    def __init__(self, folder: Path, *options: str) -> None:
        (folder / "topology.toml").write_text(topology(folder))
        # In a long one there would be no room for the path of a socket, and another would be taken.
        self.own = Path(tempfile.mkdtemp(dir="/tmp"))
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rankbind", "rehearse", str(folder / "topology.toml"), *options],
            env={**os.environ, "TMPDIR": str(self.own)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Its ranks, and who watches.
        self.stage, self.ranks = started(self.process, RANKS + 1)

    def bound(self) -> None:
        wait_for((self.folder / "s").exists, "nothing was bound")
        assert list(left(self.own))

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def nothing_is_left(self) -> None:
        wait_for(lambda: not alive([self.stage, *self.ranks]), "processes are left")
        wait_for(lambda: not list(left(self.own)), "its folder is left")
        assert not (self.folder / "s").exists()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start a command; whatever a test that fails leaves of it is ended."""
    made: list[Command] = []

    def one(*options: str) -> Command:
        made.append(Command(tmp_path, *options))
        return made[-1]

    yield one
    for each in made:
        for pid in alive([each.stage, *each.ranks]):
            kill(pid)
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()
        shutil.rmtree(each.own)


@pytest.fixture
def command(start: Callable[..., Command]) -> Command:
    return start()


def test_a_rehearsal_that_ends(command: Command) -> None:
    status, out, err = command.end()

    assert (status, err) == (1, "")
    assert "deaf" in out
    command.nothing_is_left()


def test_an_interrupted_one(command: Command) -> None:
    command.bound()
    kill(command.process.pid, signal.SIGINT)

    status, out, err = command.end()
    assert (status, out, err.strip()) == (130, "", "")
    command.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_command(command: Command, number: signal.Signals) -> None:
    command.bound()
    kill(command.process.pid, number)
    command.end()

    command.nothing_is_left()


def test_a_killed_stage(command: Command) -> None:
    command.bound()
    kill(command.stage)

    status, out, err = command.end()
    assert (status, out) == (2, "")
    assert "the process that starts the ranks was killed" in err
    command.nothing_is_left()


def test_a_killed_rank_is_told_and_the_others_play_on(command: Command) -> None:
    command.bound()
    kill(command.ranks[1])

    status, out, _ = command.end()
    assert status == 1
    assert "rank 1 on host 0 was killed by SIGKILL while it was played" in out
    command.nothing_is_left()


def test_a_stopped_rank_does_not_stop_the_command(start: Callable[..., Command]) -> None:
    command = start("--timeout", "3")
    kill(command.ranks[2], signal.SIGSTOP)
    since = time.monotonic()
    status, out, err = command.end()

    assert (status, out) == (2, "")
    assert "rank 2 did not" in err
    assert time.monotonic() - since < 30
    command.nothing_is_left()


def test_the_ranks_can_be_told_apart_by_ps(command: Command) -> None:
    command.bound()
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in command.ranks]
    command.end()

    assert names == [*(f"rehearse {rank}" for rank in range(RANKS)), "rehearse peer"]


def test_whoever_kills_the_command_need_not_wait_for_a_stopped_rank(start: Callable[..., Command]) -> None:
    command = start("--timeout", "600")
    kill(command.ranks[2], signal.SIGSTOP)
    kill(command.process.pid)
    command.end()

    command.nothing_is_left()


def test_a_stopped_rank_dies_with_the_stage(start: Callable[..., Command]) -> None:
    command = start("--timeout", "600")
    kill(command.ranks[2], signal.SIGSTOP)
    kill(command.stage)
    status, _, _ = command.end()

    assert status == 2
    command.nothing_is_left()
