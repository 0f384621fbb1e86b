"""How claims look. The snapshots show one of each kind, at 80 columns, at 40, and in a pipe.

After a change that is meant: ``RANKBIND_UPDATE_SNAPSHOTS=1 python -m pytest tests/report -n 0``, and read the diff.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankbind.report import status
from rankbind.report.style import cells
from rankbind.runtime.dial import Dialled
from rankbind.runtime.key import Key
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record
from rankbind.runtime.registry import Entry, State

SNAPSHOTS = Path(__file__).parent / "snapshots" / "status"
NOW = 1796035960.0
PATH = Path("/run/user/1000/rankbind")


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: NOW)

    class Today(status.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Today:
            return cls.fromtimestamp(NOW, tz)

    monkeypatch.setattr("rankbind.runtime.diagnosis.datetime", Today)


def entry(index: int, state: State = "alive", /, *, notes: dict[str, str] | None = None, **told: Any) -> Entry:
    read = Record(
        deployment="prod",
        resource="kv-events",
        group={"attn_dp": index},
        token=1796035960123456 + index,
        since=NOW - 720 * (index + 1),
        process=Process(4700 + index, 1, "boot", 1, 1),
        host="node-a",
        rank=index * 4,
        coordinates={"pp": 0, "tp": index * 4},
        endpoints={"bind": f"tcp://*:{5557 + index}", "replay": f"tcp://*:{5657 + index}"},
        declared="server.py:12",
        takeovers=index % 3,
        state="released" if state == "released" else "held",
        notes=notes or {},
    )
    key = Key("prod", "kv-events", {"attn_dp": index})
    lock = PATH / "claims" / f"{key.file_name}.lock"
    return Entry(**{"key": key, "state": state, "lock": lock, "record": read, "locked": state == "alive", **told})


ALL = (
    entry(0, notes={"publisher": "restarted 2 times"}),
    entry(1, "paused", paused_since=NOW - 90, locked=True),
    entry(2, "dead"),
    entry(
        3,
        "dead",
        locked=True,
        pids=(4811, 4812),
        remark="its holder is dead, but its lock is kept by pid 4811, 4812, which it left behind: nobody can take over",
    ),
    entry(4, "released"),
    entry(
        5, "unknown", locked=None, remark="its holder is in another pid namespace: look from there, or from the host"
    ),
    entry(
        6,
        "unreadable",
        record=None,
        locked=True,
        pids=(4900,),
        remark="its record cannot be read; its lock is held by pid 4900",
    ),
    entry(7, pids=(4901,), remark="it is pid 4707 in its pid namespace, and 4901 here"),
)
STYLES = {
    "pipe": lambda found: status.to_text(found),
    "80": lambda found: status.to_terminal(found, 80, colour=False),
    "40": lambda found: status.to_terminal(found, 40, colour=False),
    "json": lambda found: json.dumps(json.loads(status.to_json(found, PATH)), indent=2) + "\n",
    "changes": lambda found: "".join(f"{line}\n" for line in status.changes(found[:2], (found[1], *found[2:]))),
}


@pytest.mark.parametrize("style", STYLES)
def test_the_snapshot(style: str) -> None:
    found = STYLES[style](ALL)
    file = SNAPSHOTS / f"{style}.txt"
    if os.environ.get("RANKBIND_UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")

    assert found == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for line in status.to_terminal(ALL, width, colour=False).splitlines():
        assert cells(line) <= width


def test_colours_change_nothing_but_colours() -> None:
    coloured = status.to_terminal(ALL, 60, colour=True)

    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == status.to_terminal(ALL, 60, colour=False)
    assert "\x1b[1;31m" in coloured


def test_in_a_pipe_every_line_has_the_same_words() -> None:
    """Whoever cuts it into words finds each value at its place; the notes alone have spaces."""
    odd = entry(0, notes={"a": "b c"})
    assert odd.record is not None
    spaced = replace(odd.record, host="two words", endpoints={"bind": "ipc:///a b.sock"}, coordinates={})
    first, *lines = status.to_text((*ALL, replace(odd, record=spaced))).splitlines()

    assert len(first.split()) == 11
    for line, each in zip(lines, (*ALL, odd), strict=True):
        words = line.split(maxsplit=10)
        assert words[:2] == [str(each.key), each.state]
        assert len(words) == 11
    assert r"ipc:///a\x20b.sock" in lines[-1].split()[9]


def test_nothing_in_a_record_disturbs_the_terminal() -> None:
    bad = "\x1b[31m\n\u202e"
    odd = entry(0, notes={bad: bad})
    assert odd.record is not None
    read = replace(odd.record, host=bad, deployment=bad, endpoints={bad: bad}, coordinates={bad: 1})
    found = (replace(odd, record=read, key=Key(bad, bad, {bad: 1}), remark=bad),)
    dialled = (Dialled(entry=found[0], role=bad, endpoint=bad, bound=bad, remark=bad),)

    for text in (
        status.to_text(found),
        status.to_terminal(found, 40, colour=False),
        status.to_json(found, PATH),
        status.summary(found, Path(bad), bad),
        status.release_line(found[0], bad),
        status.to_dial(dialled),
        *status.beware(dialled),
        *status.changes((), found),
    ):
        assert all(char == "\n" or char.isprintable() for char in text)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], 0),
        (["alive"], 0),
        (["alive", "released"], 0),
        (["alive", "paused"], 1),
        (["dead"], 1),
        (["unknown"], 1),
        (["unreadable", "alive"], 1),
    ],
)
def test_the_exit_status(states: list[State], code: int) -> None:
    assert status.exit_status([entry(index, state) for index, state in enumerate(states)]) == code


def test_the_summary() -> None:
    assert (
        status.summary(ALL, PATH, "from XDG_RUNTIME_DIR")
        == "8 claims in /run/user/1000/rankbind (from XDG_RUNTIME_DIR): "
        "2 alive, 1 paused, 2 dead, 1 released, 1 unknown, 1 unreadable"
    )
    assert status.summary(ALL[:1], PATH, "x") == "1 claim in /run/user/1000/rankbind (x): 1 alive"


def test_what_may_be_if_there_is_nothing() -> None:
    assert "another RANKBIND_DIR or XDG_RUNTIME_DIR" in status.nothing(PATH, "from XDG_RUNTIME_DIR", ())
    assert "RANKBIND_DIR=/tmp/rankbind-0 rankbind status" in status.nothing(PATH, "x", [Path("/tmp/rankbind-0")])


class TestChanges:
    def test_there_are_none_if_nothing_happened(self) -> None:
        assert list(status.changes(ALL, ALL)) == []

    def test_time_that_passes_is_none(self) -> None:
        assert list(status.changes(ALL, [replace(each, paused_since=1.0) for each in ALL])) == []

    def test_a_claim_that_is_gone(self) -> None:
        assert list(status.changes(ALL[:1], ())) == ["prod/kv-events[attn_dp=0]: alive -> gone"]

    def test_one_that_somebody_else_has(self) -> None:
        (old,) = ALL[:1]
        assert old.record is not None
        new = replace(old, record=replace(old.record, token=2, rank=9))

        (line,) = status.changes([old], [new])
        assert line.startswith("prod/kv-events[attn_dp=0]: alive -> alive, rank 9 ")

    def test_a_note(self) -> None:
        (line,) = status.changes([entry(0)], [entry(0, notes={"publisher": "restarted"})])

        assert line.endswith("; publisher: restarted")
