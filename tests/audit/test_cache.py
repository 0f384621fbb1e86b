"""The cache: what it is keyed by, what it gives back, and what it makes of directories and files that are not ours."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rankbind import audit
from rankbind.audit import cache
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source
from rankbind.finding import Finding, Label, Level
from rankbind.source import Span

from ..support import audits

RUN = audit.run
CODE = b"if rank == 0:\n    x.bind(y)\n    x.bind(pp)\n"
SOURCES = [Source("a.py", "a", CODE), Source("b.py", "b", b"x.bind(1)")]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each analysis was of."""
    seen: list[int] = []

    def run(sources: Sequence[Source], settings: Settings, *, listing: bool = False) -> audit.Audit:
        seen.append(len(sources))
        return audits.run(sources, settings, listing=listing)

    monkeypatch.setattr(audit, "run", run)
    # What somebody edits while these run is no matter of theirs.
    own = cache._own_code()
    monkeypatch.setattr(cache, "_own_code", lambda: own)
    return seen


def test_what_rankbind_is_changes_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (tmp_path / "rankbind" / "audit").mkdir(parents=True)
    monkeypatch.setattr(audit, "__file__", str(tmp_path / "rankbind" / "audit" / "__init__.py"))
    seen = [cache._own_code()]
    for name, text in (
        ("audit/__init__.py", "1"),
        ("audit/__init__.py", "2"),
        ("topology.py", "1"),
        ("audit/x.json", "1"),
    ):
        (tmp_path / "rankbind" / name).write_text(text, encoding="utf-8")
        seen.append(cache._own_code())

    assert len(set(seen)) == 5


def kept(home: Path) -> list[Path]:
    return sorted((home / "cache/rankbind/audit").iterdir())


def test_the_second_time_it_is_not_done_again(runs: list[int], home: Path) -> None:
    first = cache.audited(SOURCES, Settings(), listing=True)

    assert cache.audited(SOURCES, Settings(), listing=True) == first
    assert runs == [2]
    assert first.findings
    assert first.sites
    assert first.gates
    assert [file.suffix for file in kept(home)] == [".json"]


def test_one_that_lists_the_gates_is_another_audit(runs: list[int]) -> None:
    assert cache.audited(SOURCES, Settings()).gates == ()
    assert cache.audited(SOURCES, Settings(), listing=True).gates
    assert cache.audited(SOURCES, Settings()).gates == ()
    assert runs == [2, 2]


def test_everything_of_a_finding_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    span = Span("日本\udcff.py", 3, 4, 5)
    finding = Finding(
        "RB701",
        "a\n\ud800",
        Level.WARNING,
        (Label(span, "here"), Label(replace(span, file="b.py"))),
        {"axes": ["pp"], "pair": {"a": [0, 1], "b": None, "c": 1.5, "d": True}},
        ("one", "two"),
        "fix",
    )
    monkeypatch.setattr(
        audit, "run", lambda sources, settings, listing: replace(audits.run(SOURCES, settings), findings=(finding,))
    )
    first = cache.audited([], Settings())
    monkeypatch.setattr(audit, "run", None)

    assert cache.audited([], Settings()) == first


def test_what_the_analysis_gives_can_be_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "run", RUN)
    code = b"""
import zmq

class Publisher:
    def __init__(self, context, tp_rank, pp_rank):
        if tp_rank == 0:
            self.socket = context.socket(zmq.PUB)
            self.socket.bind("tcp://*:5557")
        self.pp_rank = pp_rank
"""
    sources = [Source("a.py", "a", code), Source("b.py", "b", b"def f(:")]
    first = cache.audited(sources, Settings())

    assert "RB701" in {each.code for each in first.findings}
    assert len(kept(home)) == 1
    assert cache._read(kept(home)[0]) == first


@pytest.mark.parametrize(
    "sources",
    [
        [Source("a.py", "a", CODE)],
        [Source("a.py", "a", CODE), Source("c.py", "b", b"x.bind(1)")],
        [Source("a.py", "a", CODE), Source("b.py", "c", b"x.bind(1)")],
        [Source("a.py", "a", CODE), Source("b.py", "b", b"x.bind(2)")],
        [Source("a.py", "a", CODE + b"x"), Source("b.py", "b", b".bind(1)")],
        [*SOURCES, Source("c.py", "c", b"")],
    ],
)
def test_other_sources_are_another_audit(sources: list[Source], runs: list[int]) -> None:
    cache.audited(SOURCES, Settings())
    cache.audited(sources, Settings())

    assert len(runs) == 2


CHANGED: dict[str, Any] = {
    "axes": {"a": "pp"},
    "order": ("pp",),
    "profile": "torch",
    "creations": {"a": "0"},
}


def test_what_is_left_out_makes_no_other_audit(runs: list[int]) -> None:
    cache.audited(SOURCES, Settings())
    cache.audited(SOURCES, Settings(exclude=("x",), ignore=("RB701",)))

    assert runs == [2]
    assert {*CHANGED, "exclude", "ignore"} == {each.name for each in fields(Settings)}


@pytest.mark.parametrize("name", CHANGED)
def test_other_settings_are_another_audit(name: str, runs: list[int]) -> None:
    cache.audited(SOURCES, Settings())
    cache.audited(SOURCES, replace(Settings(), **{name: CHANGED[name]}))

    assert len(runs) == 2


def test_another_rankbind_is_another_audit(runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    cache.audited(SOURCES, Settings())
    monkeypatch.setattr(cache, "_own_code", lambda: "other")
    cache.audited(SOURCES, Settings())

    assert len(runs) == 2


def damaged(data: Any) -> list[Any]:
    """Every way to replace one value somewhere in `data` by what may not stand there."""
    found: list[Any] = [None, [], {}, 1, "x", [data]]
    if isinstance(data, dict):
        found += [{**data, key: other} for key in data for other in damaged(data[key])]
        found += [{key: data[key] for key in data if key != gone} for gone in data]
    elif isinstance(data, list) and data:
        found += [
            [*data[:at], other, *data[at + 1 :]] for at in range(min(len(data), 9)) for other in damaged(data[at])
        ]
        found += [data[1:], [*data, 1]]
    return found


def test_a_file_that_is_not_as_we_write_it_is_written_again_or_read_as_some_audit(runs: list[int], home: Path) -> None:
    first = cache.audited(SOURCES[:1], Settings())
    (file,) = kept(home)
    whole = json.loads(file.read_bytes())
    seen = 0
    for data in damaged(whole):
        file.write_text(json.dumps(data), encoding="utf-8")
        found = cache._read(file)
        # A list that is shorter than it was is an audit all the same, and text in place of other text.
        assert found is None or isinstance(found, audit.Audit)
        seen += found is None
    assert seen > 100

    file.write_bytes(b'{"audit": [')
    assert cache.audited(SOURCES[:1], Settings()) == first
    assert cache.audited(SOURCES[:1], Settings()) == first
    assert runs == [1, 1]


@pytest.mark.parametrize("data", [b"", b"\xff\0", b"[" * 100_000, b"null", b'{"audit": 1, "names": [1]}'])
def test_a_corrupt_file_is_no_audit(data: bytes, home: Path) -> None:
    cache.audited(SOURCES, Settings())
    (file,) = kept(home)
    file.write_bytes(data)

    assert cache._read(file) is None


def test_the_newest_are_kept(home: Path) -> None:
    cache.audited(SOURCES, Settings())
    (first,) = kept(home)
    for number in range(30):
        cache.audited([Source("x.py", "x", b"%d" % number)], Settings())
        for age, file in enumerate(kept(home)):
            if file == first:
                os.utime(file, (time.time() + 1, time.time() + 1))
            else:
                os.utime(file, (time.time() - age - 1, time.time() - age - 1))

    assert len(kept(home)) == 20
    assert first in kept(home)


def test_what_a_killed_writer_left_is_cleared_away_and_not_what_is_being_written(home: Path) -> None:
    cache.audited(SOURCES, Settings())
    folder = home / "cache/rankbind/audit"
    for name, age in (("old.tmp", 7200), ("new.tmp", 10), ("other", 7200)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    cache.audited([], Settings())

    assert sorted(file.name for file in kept(home) if file.suffix != ".json") == ["new.tmp", "other"]


class TestDirectory:
    def test_it_is_ours_alone(self, home: Path) -> None:
        cache.audited(SOURCES, Settings())

        assert stat.S_IMODE((home / "cache/rankbind/audit").stat().st_mode) == 0o700
        assert [stat.S_IMODE(file.stat().st_mode) for file in kept(home)] == [0o600]

    @pytest.mark.parametrize("value", ["", "relative/cache"])
    def test_without_the_variable_it_is_below_home(
        self, value: str, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        cache.audited(SOURCES, Settings())

        assert len([*(home / "home/.cache/rankbind/audit").iterdir()]) == 1

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
    def test_one_that_others_may_write_is_not_believed(self, mode: int, home: Path, runs: list[int]) -> None:
        cache.audited(SOURCES, Settings())
        (home / "cache/rankbind/audit").chmod(mode)
        cache.audited(SOURCES, Settings())

        assert len(runs) == 2

    @pytest.mark.parametrize("path", ["/proc/nothing", "/dev/null", "/dev/null/x", "/\0"])
    def test_where_there_can_be_none_there_is_none(
        self, path: str, runs: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if "\0" in path:
            monkeypatch.setattr(os, "environ", {**os.environ, "XDG_CACHE_HOME": path})
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", path)
        cache.audited(SOURCES, Settings())
        cache.audited(SOURCES, Settings())

        assert len(runs) == 2

    def test_no_home_at_all(self, runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        def home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", home)
        cache.audited(SOURCES, Settings())

        assert len(runs) == 1

    def test_a_full_disk(self, runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(cache, "replace", full)
        cache.audited(SOURCES, Settings())

        assert len(runs) == 1

    def test_facts_that_are_no_json_are_not_kept(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        odd = Finding("RB701", "", facts={"axes": {1, 2}})
        monkeypatch.setattr(audit, "run", lambda sources, settings, listing: audit.Audit((odd,), (), (), 0))

        assert cache.audited([], Settings()).findings == (odd,)
        assert kept(home) == []


def test_several_at_once(home: Path) -> None:
    found: list[audit.Audit] = []

    def work() -> None:
        found.extend(cache.audited(SOURCES, Settings()) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(found) == 160
    assert len(set(map(repr, found))) == 1
    assert len(kept(home)) == 1


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fchmod", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.replace(file, b"new")

    assert file.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".tmp"] == []
