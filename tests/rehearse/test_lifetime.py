"""Nothing of a rehearsal outlives it: no process, no port, no socket, no folder, whoever is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support.rehearsals import alive, called, kill, left, started, wait_for

RANKS = 4


class Command:
    """A rehearsal that cannot end: its third rank is stopped as soon as it is there, before it binds."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket, topology = folder / "s", folder / "topology.toml"
        topology.write_text(
            f'[axes]\ntp = {RANKS}\n[resources.x]\nowner = {{ tp = [0, 1] }}\nbind = "ipc://{self.socket}"\n'
            '[resources.y]\nowner = {}\nbind = "ipc://*"\n'
        )
        # In a long one there would be no room for the path of a socket, and another would be taken.
        self.own = Path(tempfile.mkdtemp(dir="/tmp"))
        self.start = [sys.executable, "-m", "rankbind", "rehearse", str(topology)]
        self.process = self.run(*options)
        self.stage, self.ranks = started(self.process, RANKS)
        kill(self.ranks[2], signal.SIGSTOP)
        wait_for(self.socket.exists, "nothing was bound")
        assert list(left(self.own))

    def run(self, *options: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "TMPDIR": str(self.own)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*self.start, *options], cwd=self.socket.parent, env=environment, text=True, **pipes)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def nothing_is_left(self) -> None:
        wait_for(lambda: not alive([self.stage, *self.ranks]), "processes are left")
        wait_for(lambda: not list(left(self.own)), "its folder is left")
        assert [each.name for each in self.socket.parent.iterdir()] == ["topology.toml"]


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


def test_a_rehearsal_that_ends_though_a_rank_was_killed(command: Command) -> None:
    names = [called(pid) for pid in command.ranks]
    kill(command.ranks[0])
    kill(command.ranks[2], signal.SIGCONT)

    status, out, err = command.end()
    assert names == [f"rehearse {rank}" for rank in range(RANKS)]
    assert (status, err) == (1, "")
    assert "rank 0 on host 0 was killed by SIGKILL while it was played" in out
    assert "bound, heard" in out
    command.nothing_is_left()


def test_an_interrupted_one(command: Command) -> None:
    kill(command.process.pid, signal.SIGINT)

    status, out, err = command.end()
    assert (status, out, err.strip()) == (130, "", "")
    command.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_command(command: Command, number: signal.Signals) -> None:
    kill(command.process.pid, number)
    command.end()

    command.nothing_is_left()


def test_a_killed_stage(command: Command) -> None:
    kill(command.stage)

    status, out, err = command.end()
    assert (status, out) == (2, "")
    assert "the process that starts the ranks is gone: it was killed" in err
    command.nothing_is_left()


def test_what_is_left_where_all_are_killed_at_once_is_removed_by_the_next(command: Command) -> None:
    other = tempfile.mkdtemp(prefix="rankbind-rehearsal-", dir=command.own)
    for pid in (command.stage, command.process.pid):
        kill(pid)
    command.end()
    wait_for(lambda: not alive([command.stage, *command.ranks]), "processes are left")
    assert len(list(left(command.own))) == 2

    command.process = command.run()
    status, _, err = command.end()
    assert (status, err) == (1, "")
    assert not Path(other).exists()
    command.nothing_is_left()


def test_one_that_runs_is_left_alone_by_the_next(command: Command) -> None:
    (folder,) = left(command.own)
    other = command.run("--ports", "free")
    other.communicate(timeout=60)

    assert list(left(command.own)) == [folder]
    assert (folder / "host0").exists()


def test_a_stopped_rank_does_not_stop_the_command(start: Callable[..., Command]) -> None:
    command = start("--timeout", "5")
    status, out, err = command.end()

    assert (status, out) == (2, "")
    assert "rank 2 did not claim and bind" in err
    command.nothing_is_left()
