"""Records: torn, missing, garbage, in the way of being written. None of it may raise, none may be believed."""

from __future__ import annotations

import copy
import json
import os
import pickle
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.runtime import atomic, record
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record

from ..support.child import WAIT, may

NUMBERS = st.integers(0, 2**62)
TEXTS = st.text(max_size=20)
PROCESSES = st.builds(Process, pid=st.integers(1, 2**22), start=NUMBERS, boot=TEXTS, pid_ns=NUMBERS, net_ns=NUMBERS)
RECORDS = st.builds(
    Record,
    deployment=TEXTS,
    resource=TEXTS,
    group=st.dictionaries(TEXTS, st.integers(0, 99), max_size=3),
    token=NUMBERS,
    since=st.floats(0, 2e11),
    process=PROCESSES,
    host=TEXTS,
    rank=st.none() | st.integers(0, 99),
    coordinates=st.dictionaries(TEXTS, st.integers(0, 99), max_size=3),
    endpoints=st.dictionaries(TEXTS, TEXTS, max_size=3),
    declared=TEXTS,
    program=TEXTS,
    version=TEXTS,
    takeovers=NUMBERS,
    state=st.sampled_from(["held", "released"]),
    notes=st.dictionaries(TEXTS, TEXTS, max_size=3),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def a_record(**changes: Any) -> Record:
    return replace(
        Record(
            deployment="default",
            resource="kv-events",
            group={"attn_dp": 1},
            token=17,
            since=1.5e9,
            process=Process.me(),
            host="node7",
            rank=2,
            coordinates={"pp": 0, "tp": 2},
            endpoints={"bind": "tcp://*:5558"},
            declared="topology.toml:14",
            program="python server.py",
            version="0.1.0",
        ),
        **changes,
    )


@given(RECORDS)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, found: Record) -> None:
    path = tmp_path_factory.getbasetemp() / "there-and-back.json"
    assert record.write(path, found)
    assert record.read(path) == found
    assert hash(record.read(path)) == hash(found)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(RECORDS)
def test_records_are_values(found: Record) -> None:
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert other == found
    with pytest.raises(TypeError):
        found.group["tp"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        found.token = 1  # type: ignore[misc]


@given(st.data())
def test_any_field_replaced_by_garbage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    plain = a_record().to_json()
    of = data.draw(st.sampled_from([plain, plain["process"], plain["group"], plain["endpoints"], plain["coordinates"]]))
    of[data.draw(st.sampled_from(sorted(of)))] = data.draw(JSON)
    path = tmp_path_factory.getbasetemp() / "garbage.json"
    path.write_text(json.dumps(plain))
    found = record.read(path)
    if found is not None:
        assert 1 <= found.process.pid <= 2**22
        assert found.token == found.token + 0 >= 0
        assert Record.from_json(json.loads(json.dumps(found.to_json()))) == found


@given(st.binary(max_size=300))
def test_bytes_that_are_no_record(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(garbage)
    assert record.read(path) is None


def test_a_record_that_is_torn_anywhere_is_none(tmp_path: Path) -> None:
    path = tmp_path / "torn.json"
    record.write(path, a_record())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert record.read(path) is None
        path.write_bytes(whole[:length] + bytes(len(whole) - length))
        assert record.read(path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "17",
        '"format"',
        '{"format": 1}',
        '{"format": 2}',
        "[" * 50_000,
        '{"format": 1, "process": []}',
        '{"format": 1, "token": 1' + "0" * 5000 + "}",
        "\ufeff{}",
    ],
)
def test_json_that_is_no_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "no.json"
    path.write_text(text)
    assert record.read(path) is None


@pytest.mark.parametrize(
    "change",
    [
        {"since": float("nan")},
        {"since": float("inf")},
        {"since": -1},
        {"since": 1e300},
        {"token": -1},
        {"token": 2**62 + 1},
        {"token": True},
        {"token": 1.0},
        {"takeovers": "1"},
        {"rank": "0"},
        {"rank": ""},
        {"rank": False},
        {"state": "broken"},
        {"group": {"tp": "0"}},
        {"endpoints": {"bind": 5557}},
        {"host": None},
    ],
)
def test_a_value_that_means_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({**a_record().to_json(), **change}))
    assert record.read(path) is None


@pytest.mark.parametrize("pid", [0, -1, -4711, 2**22 + 1, "1", True, None])
def test_a_pid_that_would_be_dangerous_advice(tmp_path: Path, pid: Any) -> None:
    """`kill -1` ends every process of the user."""
    plain = a_record().to_json()
    plain["process"]["pid"] = pid
    path = tmp_path / "pid.json"
    path.write_text(json.dumps(plain))
    assert record.read(path) is None


def test_what_a_later_rankbind_adds_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "later.json"
    path.write_text(json.dumps({**a_record().to_json(), "mood": "good"}))
    assert record.read(path) == a_record()


# ---- something else in its place


def test_a_missing_one_a_directory_a_link_a_pipe_and_a_device(tmp_path: Path) -> None:
    assert record.read(tmp_path / "missing.json") is None
    (tmp_path / "directory.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    record.write(tmp_path / "real.json", a_record())
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    (tmp_path / "null.json").symlink_to("/dev/zero")
    for name in ("directory", "pipe", "link", "null"):
        assert record.read(tmp_path / f"{name}.json") is None
    assert record.read(tmp_path / "real.json") == a_record()


def test_a_huge_one_is_neither_written_nor_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    assert not record.write(path, a_record(notes={"a": "x" * 100_000}))
    assert not path.exists()
    path.write_bytes(json.dumps(a_record(notes={"a": "x" * 100_000}).to_json()).encode())
    assert record.read(path) is None


@pytest.mark.parametrize("what", ["file", "link", "pipe", "hard link"])
def test_what_is_in_the_way_of_writing_is_cleared_away_and_nothing_else_is_harmed(tmp_path: Path, what: str) -> None:
    path, temporary, treasure = tmp_path / "a.b.json", tmp_path / "a.b.tmp", tmp_path / "treasure"
    treasure.write_text("precious")
    if what == "file":
        temporary.write_text("half a reco")
    elif what == "link":
        temporary.symlink_to(treasure)
    elif what == "pipe":
        os.mkfifo(temporary)
    else:
        temporary.hardlink_to(treasure)
    assert record.write(path, a_record())
    assert record.read(path) == a_record()
    assert treasure.read_text() == "precious"
    assert not os.path.lexists(temporary)


@pytest.mark.parametrize("suffix", ["json", "tmp"])
def test_a_directory_in_the_way_is_no_error(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"kv.{suffix}").mkdir()
    assert not record.write(tmp_path / "kv.json", a_record())
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"kv.{suffix}"]


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert not record.write(tmp_path / "gone" / "kv.json", a_record())
    atomic.remove(tmp_path / "gone" / "kv.json")


@pytest.mark.skipif(not may("unshare", "-rm"), reason="this user may mount nothing")
def test_a_full_disk_leaves_the_record_that_was_there(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {str(Path.cwd())!r})
from dataclasses import replace
from pathlib import Path
from tests.runtime.test_record import a_record
from rankbind.runtime import atomic, record
path = Path({str(tmp_path)!r}, "kv.json")
assert record.write(path, a_record())
with open(path.with_name("ballast"), "wb", buffering=0) as ballast:
    try:
        while ballast.write(b"x" * 4096): pass
    except OSError: pass
assert not record.write(path, a_record(token=18))
assert record.read(path) == a_record(), record.read(path)
assert sorted(each.name for each in path.parent.iterdir()) == ["ballast", "kv.json"]
print("done")
"""
    mount = f'mount -t tmpfs -o size=64k none "{tmp_path}" && exec "$0" -c "$1"'
    command = ["unshare", "-rm", "sh", "-c", mount, sys.executable, script]
    found = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert found.stdout == "done\n", found.stderr


def test_a_writer_killed_between_the_two_names_leaves_a_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    record.write(path, a_record())
    path.rename(tmp_path / "kv.tmp")
    assert record.read(path) == a_record()
    (tmp_path / "kv.tmp").write_text("half a reco")
    assert record.read(path) is None
    assert record.write(path, a_record(token=18))
    assert record.read(path) == a_record(token=18)
    atomic.remove(path)
    assert not list(tmp_path.iterdir())


def test_a_release_is_marked_where_the_record_stands(tmp_path: Path) -> None:
    path, found = tmp_path / "kv.json", a_record(notes={"a": "b"})
    assert not record.mark_released(path)
    record.write(path, found)
    before = path.stat()
    released = replace(found, state="released")
    assert record.mark_released(path)
    assert record.read(path) == released
    assert not record.mark_released(path)
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    # Garbage in its place is not taken for a record that only has to be marked.
    path.write_text("garbage")
    assert not record.mark_released(path)
    assert path.read_text() == "garbage"


def test_a_reader_never_sees_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "busy.json"
    versions = [a_record(token=token, notes={"pad": "x" * (token * 97 % 4000)}) for token in range(200)]
    record.write(path, versions[0])
    ended = threading.Event()

    def rewrite() -> None:
        for _ in range(5):
            for each in versions:
                record.write(path, each)
        ended.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    looks = 0
    while not ended.is_set():
        assert record.read(path) in versions
        looks += 1
    writer.join()
    assert looks > 10
