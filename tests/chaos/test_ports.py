"""10,000 ports reserved at once by 32 processes while another one grabs all it can: nobody ever meets anybody.

In CI a tenth of it, a few seconds; RANKBIND_CHAOS=10 is all of it. Beside it the usual way, bind, read, close, bind
again, in the same storm: how often it fails is printed (pytest -s), and it has to fail, or the storm was none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCALE = float(os.environ.get("RANKBIND_CHAOS", "1"))
PROCESSES = 32
RESERVATIONS = round(1000 * SCALE)
RESERVER = Path(__file__).with_name("reserver.py")

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240 + 60 * SCALE)]


@pytest.fixture
def apart() -> Iterator[list[str]]:
    """What to put before a command so that it runs in a network namespace of its own, out of the way of other tests.

    Nothing where that is not allowed: then the storm is everybody's.
    """
    command = ["unshare", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && echo up && cat"]
    pipe = subprocess.PIPE
    try:
        keeper = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        yield []
        return
    with keeper:
        assert keeper.stdout
        entered = keeper.stdout.readline() == "up\n"
        enter = ["nsenter", f"--target={keeper.pid}", "--user", "--net", "--preserve-credentials"]
        yield enter if entered else []
        keeper.communicate()


@contextmanager
def storm(apart: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that takes ephemeral ports, keeps them for a moment and lets go, as fast as it can."""
    pipe = subprocess.PIPE
    command = [*apart, sys.executable, str(RESERVER), "grab"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as grabber:
        assert grabber.stdout
        assert grabber.stdout.readline() == "grabbing\n"
        yield grabber
        grabber.communicate()
        assert grabber.returncode == 0


def all_at_once(apart: list[str], how: str, count: int) -> list[dict[str, Any]]:
    """What `PROCESSES` processes tell, `count` ports in all. They begin together, and end when all have theirs."""
    pipe = subprocess.PIPE
    share = -(-count // PROCESSES)
    children = [
        subprocess.Popen(
            [*apart, sys.executable, str(RESERVER), how, str(share)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        for _ in range(PROCESSES)
    ]
    try:
        told: list[dict[str, Any]] = []
        for _ in range(3):  # ready, reserved, served
            lines = [child.stdout.readline() for child in children if child.stdout]
            assert all(lines), [
                child.stderr.read() for child, line in zip(children, lines, strict=True) if not line and child.stderr
            ]
            told = [json.loads(line) for line in lines]
            for child in children:
                assert child.stdin
                child.stdin.write("go\n")
                child.stdin.flush()
            if "ports" in told[0]:
                held = told
        for child in children:
            child.communicate()
            assert child.returncode == 0
        return [{**one, **other} for one, other in zip(held, told, strict=True)]
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_reserved_ports_meet_nobody_in_a_storm(apart: list[str]) -> None:
    with storm(apart):
        told = all_at_once(apart, "reserve", RESERVATIONS)

    ports = Counter(port for each in told for port in each["ports"])
    print(
        f"\n{ports.total()} ports reserved by {PROCESSES} processes at once; "
        f"slowest {max(each['seconds'] for each in told):.1f} s"
    )
    assert ports.total() >= RESERVATIONS
    assert not [port for port, times in ports.items() if times > 1]
    assert sum((Counter(each["errors"]) for each in told), Counter()) == Counter()
    assert sum(each["served"] for each in told) == ports.total()


def test_probing_and_hoping_fails_in_the_same_storm(apart: list[str]) -> None:
    """The positive control."""
    errors: Counter[str] = Counter()
    for _ in range(5):  # on a busy machine the grabber may hardly get to run
        with storm(apart):
            told = all_at_once(apart, "probe", RESERVATIONS)
        errors = sum((Counter(each["errors"]) for each in told), Counter())
        served = sum(each["served"] for each in told)
        print(f"\nof {RESERVATIONS} ports probed, closed and bound again: {dict(errors)}, {served} served")
        if errors["EADDRINUSE"]:
            break
    assert errors["EADDRINUSE"] > 0
