"""How a rehearsal looks, without one."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from rankbind.finding import Finding, Level
from rankbind.rehearse.outcome import Call, Prediction, Rehearsal, Surprise, Taken
from rankbind.rehearse.script import Bound, Claimed
from rankbind.report.rehearsal import to_json, to_text
from rankbind.report.style import cells

HELD, LOST = Claimed("held"), Claimed("refused", "rank 0", None, "default/kv is held by rank 0")


def taken(rank: int = 0, number: int | None = 0, **more: object) -> Taken:
    return Taken("kv", "bind", rank, 0, "a", number, "tcp://*:5557", more.pop("claim", HELD), **more)  # type: ignore[arg-type]


BOUND = taken(bound=Bound("tcp://0.0.0.0:9"), heard=True)
REFUSED = taken(4, 1, claim=LOST, bound=Bound(errno=98, error="Address already in use", holder="rank 0"))
DEAF = taken(1, 2, bound=Bound("ipc:///x"), hears="rank 2 gets it")
ELSEWHERE = taken(2, 3, bound=Bound("tcp://0.0.0.0:1"), port=1)
STANDING_BY = taken(3, 4, claim=Claimed("standing by", "rank 0"))
DIED = taken(5, 5, died="was killed by SIGABRT")
NAME = Taken("labels", "name", 0, 0, "a", 6, "x", HELD)


def rehearsal(*found: Taken, **more: object) -> Rehearsal:
    given: dict[str, object] = {
        "calls": (),
        "predictions": (),
        "surprises": (),
        "setting": "8 ranks as processes, on this host; the declared ports",
        "hosts": "here",
        "processes": 9,
        "ranks": 8,
        "moved": {},
        **more,
    }
    return Rehearsal("t.toml", found, **given)  # type: ignore[arg-type]


EVERYTHING = rehearsal(
    BOUND,
    REFUSED,
    DEAF,
    ELSEWHERE,
    STANDING_BY,
    DIED,
    NAME,
    calls=(
        Call(0, "kv", "bind", "rank 1", "tcp://a:5557", frozenset({0}), frozenset({0})),
        Call(1, "kv", "bind", "the consumer", "tcp://b:5557"),
        Call(2, "kv", "bind", "rank 2", "tcp://c:5557", played=False),
        Call(3, "kv", "bind", "rank 3", "tcp://*:1", unable="Invalid argument"),
    ),
    predictions=(
        Prediction(Finding("RB201", "ranks 0, 4 meet"), True, "rank 4 refused"),
        Prediction(Finding("RB205", "in the range of outgoing connections", Level.NOTE), None, "nobody was in the way"),
    ),
    surprises=(Surprise("rank 1 is deaf", "check"), Surprise("pid 1 has it", "machine")),
    notes=("only owners were started",),
)


@pytest.mark.parametrize(
    ("found", "state", "failed"),
    [
        (BOUND, "bound", False),
        (REFUSED, "refused", True),
        (DEAF, "deaf", True),
        (ELSEWHERE, "elsewhere", True),
        (STANDING_BY, "standing by", False),
        (DIED, "died", True),
        (NAME, "claimed", False),
        (taken(claim=LOST, bound=Bound("tcp://0.0.0.0:9"), heard=True), "bound", True),
        (taken(claim=LOST), "refused", True),
    ],
)
def test_the_state_of_an_address(found: Taken, state: str, failed: bool) -> None:
    assert (found.state, found.failed) == (state, failed)


def test_all_of_it() -> None:
    assert to_text(EVERYTHING) == (
        "8 ranks as processes, on this host; the declared ports\n"
        "\n"
        "resource  address  rank  host  endpoint      claim                 seen\n"
        "kv        bind     0     a     tcp://*:5557  held                  bound, heard\n"
        "kv        bind     4     a     tcp://*:5557  refused (rank 0)      Address already in use (rank 0)\n"
        "kv        bind     1     a     tcp://*:5557  held                  bound, deaf: rank 2 gets it\n"
        "kv        bind     2     a     tcp://*:5557  held                  listens on port 1 instead\n"
        "kv        bind     3     a     tcp://*:5557  standing by (rank 0)  -\n"
        "kv        bind     5     a     tcp://*:5557  held                  was killed by SIGABRT\n"
        "labels    name     0     a     x             held                  -\n"
        "\n"
        "resource  role  consumer      dials         gets\n"
        "kv        bind  rank 1        tcp://a:5557  rank 0\n"
        "kv        bind  the consumer  tcp://b:5557  nothing\n"
        "kv        bind  rank 2        tcp://c:5557  not dialled\n"
        "kv        bind  rank 3        tcp://*:1     Invalid argument\n"
        "\n"
        "error[RB201]: ranks 0, 4 meet\n"
        "  came true: rank 4 refused\n"
        "\n"
        "note[RB205]: in the range of outgoing connections\n"
        "  not to be seen: nobody was in the way\n"
        "\n"
        "not predicted: rank 1 is deaf (a defect of rankbind check, please report it)\n"
        "\n"
        "not predicted: pid 1 has it (the machine)\n"
        "\n"
        "note: only owners were started\n"
        "\n"
        "failed: 1 of 2 findings came true, 4 of 7 addresses failed, 2 not predicted\n"
    )


def test_a_clean_one() -> None:
    assert not rehearsal(BOUND, STANDING_BY, NAME).failed
    assert to_text(rehearsal(BOUND, STANDING_BY, NAME)).splitlines()[-1] == "as predicted: 3 addresses held"


@pytest.mark.parametrize("level", Level)
def test_a_finding_that_could_not_be_seen_fails_as_it_does_in_a_check(level: Level) -> None:
    found = rehearsal(BOUND, predictions=(Prediction(Finding("RB213", "x", level), None, "alone"),))

    assert found.failed is (level is not Level.NOTE)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_but_those_of_the_tables_is_wider_than_the_terminal(width: int) -> None:
    found = replace(EVERYTHING, taken=(), calls=())

    for line in to_text(found, width=width).splitlines():
        assert cells(line) <= width


def test_colours_change_nothing_but_colours() -> None:
    coloured = to_text(EVERYTHING, colour=True)
    bare = "".join(f"{line.rstrip()}\n" for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines())

    assert bare == to_text(EVERYTHING)
    assert "\x1b[1;31m" in coloured


def test_what_a_file_says_cannot_disturb_a_terminal() -> None:
    evil = Taken("k\x1b[2J", "bind", 0, 0, "a\x07", 0, "ipc:///\x9b", HELD)

    assert all(char == "\n" or char.isprintable() for char in to_text(rehearsal(evil)))


def test_json() -> None:
    told = json.loads(to_json(EVERYTHING))

    assert told["verdict"] == "failed"
    assert [each["state"] for each in told["addresses"]] == [each.state for each in EVERYTHING.taken]
    assert told["addresses"][1]["diagnosis"] == "default/kv is held by rank 0"
    assert told["calls"][0] == {
        "resource": "kv",
        "role": "bind",
        "consumer": "rank 1",
        "endpoint": "tcp://a:5557",
        "dialled": True,
        "meant": [0],
        "got": [0],
        "error": None,
    }
    assert told["predictions"][1]["came_true"] is None
    assert told["surprises"][1] == {"text": "pid 1 has it", "cause": "machine"}
