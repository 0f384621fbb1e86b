"""Rehearsals for tests: never on a declared port, and what is left of them afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rankbind import config
from rankbind.rehearse.outcome import Rehearsal, Taken
from rankbind.rehearse.rehearsal import Hosts, Wishes, rehearse

CASES = Path(__file__).parents[1] / "cases"
PATIENCE = 60.0
"""Seconds to wait for what has to come."""


def case(name: str, hosts: Hosts | None = None) -> Rehearsal:
    return rehearse(config.read(CASES / f"{name}.toml"), Wishes(hosts, free=True))


def text(topology: str, hosts: Hosts | None = None, *, free: bool = True) -> Rehearsal:
    return rehearse(config.parse(topology), Wishes(hosts, free=free))


def states(found: Rehearsal) -> dict[tuple[str, int], str]:
    return {(each.resource, each.rank): each.state for each in found.taken}


def taken(found: Rehearsal, rank: int, resource: str | None = None) -> Taken:
    (one,) = [each for each in found.taken if each.rank == rank and resource in (None, each.resource)]
    return one


def wait_for(what: Callable[[], bool], told: str) -> None:
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, told
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pids: Sequence[int]) -> list[int]:
    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "X"

    return [pid for pid in pids if state(pid) not in "ZX"]


def started(command: subprocess.Popen[str], ranks: int) -> tuple[int, list[int]]:
    """The stage of a command that runs, and its ranks, as soon as there are so many, and each would die with it."""

    def found() -> bool:
        assert command.poll() is None, command.communicate()
        return any(
            [name.partition(" ")[0] for name in map(called, children(stage))] == ["rehearse"] * ranks
            for stage in children(command.pid)
        )

    wait_for(found, "no ranks were started")
    (stage,) = children(command.pid)
    return stage, children(stage)


def called(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def left(folder: Path) -> Iterator[Path]:
    return folder.glob("rankbind-rehearsal-*")
