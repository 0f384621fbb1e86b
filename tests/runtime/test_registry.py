"""What the registry says of claims in real processes: alive, paused, killed, released, and what is odder than that."""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankbind.errors import ClaimedError, DirectoryError
from rankbind.runtime import record, registry
from rankbind.runtime.claim import claim
from rankbind.runtime.locks import Locks
from rankbind.runtime.process import Process
from rankbind.runtime.registry import Entry

from ..support.claimants import Claimant, claimant

KEY = "default/kv-events[attn_dp=0]"
GROUP = {"attn_dp": 0}
IN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def may_unshare() -> bool:
    return subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not may_unshare(), reason="this user may not create a pid namespace")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("RANKBIND_DEPLOYMENT", raising=False)
    return tmp_path / "run"


@pytest.fixture
def one(folder: Path) -> Iterator[Claimant]:
    with claimant(folder) as made:
        made.claim("kv-events", group=GROUP, rank=4, coordinates={"pp": 1})
        yield made


def only(path: Path | None = None) -> Entry:
    (entry,) = registry.entries(path)
    return entry


def record_file(folder: Path) -> Path:
    (file,) = (folder / "claims").glob("*.json")
    return file


def seen_from_a_namespace(folder: Path) -> list[dict[str, Any]]:
    """The claims, as ``status --json`` shows them in another pid namespace."""
    found = subprocess.run(
        [*IN_NAMESPACE, sys.executable, "-m", "rankbind", "status", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "RANKBIND_DIR": str(folder)},
        check=False,
    )
    claims: list[dict[str, Any]] = json.loads(found.stdout)["claims"]
    return claims


class TestWhatIsSo:
    def test_of_a_holder_that_runs(self, one: Claimant) -> None:
        found = only()

        assert (str(found.key), found.state, found.pid, found.locked, found.remark) == (KEY, "alive", one.pid, True, "")
        assert found.record is not None
        assert (found.record.rank, dict(found.record.coordinates)) == (4, {"pp": 1})

    def test_of_one_that_is_stopped_and_since_when(self, one: Claimant) -> None:
        before = only().record
        one.pause()
        found = only()

        assert (found.state, found.locked, found.live) == ("paused", True, True)
        assert before is not None
        assert found.paused_since is not None
        assert found.paused_since >= before.since - 1

    def test_of_one_that_was_killed(self, one: Claimant) -> None:
        one.kill()
        found = only()

        assert (found.state, found.locked, found.pids, found.live) == ("dead", False, (), False)
        assert found.pid == one.pid

    def test_of_one_that_was_killed_and_not_waited_for(self, one: Claimant) -> None:
        os.kill(one.pid, 9)
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)

        assert only().state == "dead"

    def test_of_one_that_released(self, one: Claimant) -> None:
        one.tell(release=KEY)

        assert only().state == "released"

    def test_of_one_that_took_over_from_the_dead(self, one: Claimant, folder: Path) -> None:
        one.kill()
        with claimant(folder) as next_one:
            next_one.claim("kv-events", group=GROUP)
            found = only()

            assert (found.state, found.pid) == ("alive", next_one.pid)
            assert found.record is not None
            assert found.record.takeovers == 1

    def test_a_pid_that_is_somebody_elses_by_now(self, one: Claimant, folder: Path) -> None:
        one.kill()
        read = record.read(record_file(folder))
        assert read is not None
        me = replace(Process.me(), start=Process.me().start - 1)
        record.write(record_file(folder), replace(read, process=me))

        assert only().state == "dead"

    def test_in_the_order_of_the_groups(self, folder: Path) -> None:
        with claimant(folder) as many:
            for index in (10, 2, 0):
                many.claim("kv-events", group={"attn_dp": index})
            many.claim("a")

            assert [dict(entry.key.group) for entry in registry.entries()] == [
                {},
                {"attn_dp": 0},
                {"attn_dp": 2},
                {"attn_dp": 10},
            ]

    def test_where_there_is_nothing(self, folder: Path) -> None:
        assert registry.entries() == ()
        assert not folder.exists()

    def test_where_it_would_not_be_safe_to_believe_it(self, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o777)

        with pytest.raises(DirectoryError, match="other users can write it"):
            registry.entries()


class TestWhatIsOdd:
    def test_a_record_that_is_garbage_and_a_lock_that_is_held(self, one: Claimant, folder: Path) -> None:
        record_file(folder).write_bytes(b'{"format": 1, "depl')
        found = only()

        assert (str(found.key), found.state, found.locked, found.pid) == (KEY, "unreadable", True, one.pid)

    def test_a_record_that_is_garbage_and_a_lock_that_is_free(self, one: Claimant, folder: Path) -> None:
        record_file(folder).write_bytes(b"\xff\xff")
        one.kill()
        found = only()

        assert (found.state, found.locked, found.pid) == ("unreadable", False, None)

    def test_a_record_that_is_missing(self, one: Claimant, folder: Path) -> None:
        record_file(folder).unlink()

        assert (only().state, only().pid) == ("unreadable", one.pid)

    def test_a_lock_file_that_somebody_left_behind_is_no_claim(self, one: Claimant, folder: Path) -> None:
        record_file(folder).unlink()
        one.kill()

        assert registry.entries() == ()

    def test_a_child_that_keeps_the_lock_of_a_dead_holder(self, one: Claimant) -> None:
        child = one.leave(KEY)
        one.kill()
        found = only()

        assert (found.state, found.locked, found.pids) == ("dead", True, (child,))
        assert f"pid {child}" in found.remark

    def test_a_child_that_keeps_it_while_the_holder_lives_changes_nothing(self, one: Claimant) -> None:
        one.leave(KEY)

        assert (only().state, only().pid) == ("alive", one.pid)

    def test_a_holder_that_let_go_without_a_word(self, one: Claimant) -> None:
        one.tell(forget=KEY)
        found = only()

        assert found.state == "released"
        assert "could not be written" in found.remark

    def test_a_claimant_that_could_not_write_its_record(self, one: Claimant, folder: Path) -> None:
        before = record_file(folder).read_bytes()
        one.kill()
        with claimant(folder) as next_one:
            next_one.claim("kv-events", group=GROUP)
            record_file(folder).write_bytes(before)
            found = only()

            assert (found.state, found.locked, found.pid) == ("unreadable", True, next_one.pid)
            assert "of which there is no record" in found.remark

    def test_a_lock_file_that_a_cleaner_took_away(self, one: Claimant, folder: Path) -> None:
        (file,) = (folder / "claims").glob("*.lock")
        file.unlink()
        found = only()

        assert (found.state, found.pid) == ("alive", one.pid)
        assert "was deleted" in found.remark

    def test_a_record_of_before_the_boot(self, one: Claimant, folder: Path) -> None:
        one.kill()
        read = record.read(record_file(folder))
        assert read is not None
        earlier = replace(read, process=replace(read.process, boot="another"))
        record.write(record_file(folder), earlier)
        assert (only().state, only().remark) == ("dead", "it was claimed before this host was booted")

        record.write(record_file(folder), replace(earlier, host=f"not-{platform.node()}"))
        assert only().state == "unknown"

    def test_a_device_number_that_is_not_that_of_the_lock(
        self, one: Claimant, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """btrfs and overlayfs: stat(2) has one, /proc/locks another."""
        real = Path.stat

        def stat(path: Path, **options: Any) -> os.stat_result:
            found = real(path, **options)
            lock = path.suffix == ".lock" or path.parent.name == "fd"
            return os.stat_result((*found[:2], 0xABCD, *found[3:])) if lock else found

        monkeypatch.setattr(Path, "stat", stat)
        assert (only().state, only().pid) == ("alive", one.pid)

        record_file(folder).write_text("{")
        assert (only().state, only().locked, only().pid) == ("unreadable", True, one.pid)

    def test_another_file_with_that_inode_number_elsewhere(self, one: Claimant, folder: Path) -> None:
        """On a file system whose device number is not to be had, the number of the inode alone proves nothing."""
        one.kill()
        (lock,) = (folder / "claims").glob("*.lock")
        table = {lock.stat().st_ino: [("99:99", os.getpid())]}
        locks = Locks()
        locks.__dict__["_table"] = table

        assert locks.taken_by(lock.stat()) is None


@needs_namespaces
class TestOtherPidNamespaces:
    def test_a_holder_in_one_is_seen_from_the_host(self, folder: Path) -> None:
        with claimant(folder, *IN_NAMESPACE) as inner:
            inner.claim("kv-events", group=GROUP)
            found = only()
            assert found.record is not None
            if not Locks().complete:
                assert found.state == "unknown"
                return
            assert found.state == "alive"
            assert found.record.process.pid == 1
            assert found.pid is not None
            assert found.pid not in (1, inner.pid)
            ended = os.pidfd_open(found.pid)
            try:
                inner.kill()
                assert select.select([ended], [], [], 30)[0]
            finally:
                os.close(ended)

            assert only().state == "dead"

    def test_a_holder_on_the_host_cannot_be_seen_from_one(self, one: Claimant, folder: Path) -> None:
        (found,) = seen_from_a_namespace(folder)

        assert (found["state"], found["lock"]["held"]) == ("unknown", None)

    def test_nor_who_holds_a_lock_without_a_record(self, one: Claimant, folder: Path) -> None:
        record_file(folder).write_text("{")
        (found,) = seen_from_a_namespace(folder)

        assert (found["state"], found["lock"]["held"]) == ("unreadable", None)

    def test_and_nothing_is_released_from_there(self, one: Claimant, folder: Path) -> None:
        found = subprocess.run(
            [*IN_NAMESPACE, sys.executable, "-m", "rankbind", "release", "kv-events"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert found.returncode == 1
        assert "cannot be told from this pid namespace" in found.stdout
        assert only().state == "alive"


class TestLooking:
    def test_it_disturbs_no_claimant(self, folder: Path) -> None:
        """Whoever looks all the time must not make a single claim fail, and never sees what is not so."""
        ended = threading.Event()
        seen: list[str] = []

        def look() -> None:
            while not ended.is_set():
                seen.extend(entry.state for entry in registry.entries())

        looker = threading.Thread(target=look)
        looker.start()
        try:
            for _ in range(300):
                claim("kv-events").release()
        finally:
            ended.set()
            looker.join()

        assert set(seen) <= {"alive", "released", "unreadable"}
        # One that a busy machine does not let run for half a second is told as one without a record, which it is.
        assert seen.count("unreadable") <= len(seen) // 20

    def test_it_changes_nothing(self, one: Claimant, folder: Path) -> None:
        def files() -> dict[str, tuple[int, int]]:
            return {str(file): (file.stat().st_ino, file.stat().st_mtime_ns) for file in folder.rglob("*")}

        before = files()
        registry.entries()

        assert files() == before

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
    @given(data=st.data())
    def test_no_record_makes_it_fail(self, folder: Path, data: st.DataObject) -> None:
        values = st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=6,
        )
        good = _good().to_json()
        changed = {name: data.draw(values) for name in data.draw(st.sets(st.sampled_from(sorted(good)), max_size=2))}
        process = {name: data.draw(values) for name in data.draw(st.sets(st.sampled_from(["pid", "start", "pid_ns"])))}
        text = json.dumps({**good, "process": {**good["process"], **process}, **changed})
        claims = folder / "claims"
        claims.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        cut = data.draw(st.integers(0, len(text)) | st.just(len(text)))
        (claims / "default%2Fkv-events.json").write_text(text[:cut])
        (claims / "default%2Fkv-events.lock").touch()

        from rankbind.report import status
        from rankbind.runtime.dial import dialled
        from rankbind.runtime.metrics import RankbindCollector

        found = registry.entries()
        assert len(found) == 1
        for style in (status.to_text(found), status.to_terminal(found, 40, colour=False), *status.changes((), found)):
            assert all(char == "\n" or char.isprintable() for char in style)
        json.loads(status.to_json(found, folder), parse_constant=pytest.fail)
        list(status.beware(dialled(found, "bind")))
        list(RankbindCollector().collect())
        registry.release(found[0], dry_run=True)


def _good() -> record.Record:
    return record.Record(
        deployment="default", resource="kv-events", group=GROUP, token=1, since=1.0, process=Process.me(), host="a"
    )


class TestRelease:
    def test_of_the_dead(self, one: Claimant, folder: Path) -> None:
        one.kill()
        (lock,) = (folder / "claims").glob("*.lock")
        inode = lock.stat().st_ino

        assert registry.release(only()) is None
        found = only()
        assert found.state == "released"
        assert found.record is not None
        assert f"pid {one.pid}" in found.record.notes["released"]
        assert lock.stat().st_ino == inode

    def test_the_next_token_is_larger(self, one: Claimant) -> None:
        one.kill()
        before = only().record
        registry.release(only())

        with claim("kv-events", group=GROUP) as held:
            assert before is not None
            assert held.token > before.token

    def test_a_dry_run_does_nothing(self, one: Claimant) -> None:
        one.kill()

        assert registry.release(only(), dry_run=True) is None
        assert only().state == "dead"

    def test_never_of_one_that_runs(self, one: Claimant) -> None:
        assert registry.release(only()) == f"it is held by pid {one.pid}: end it first: kill {one.pid}"
        assert only().state == "alive"

    def test_never_of_one_that_is_paused(self, one: Claimant) -> None:
        one.pause()

        assert "paused and not dead" in str(registry.release(only()))
        assert only().state == "paused"

    def test_nor_while_a_child_keeps_it(self, one: Claimant) -> None:
        child = one.leave(KEY)
        one.kill()

        assert f"end that first: kill {child}" in str(registry.release(only()))
        assert only().state == "dead"

    def test_nor_of_what_cannot_be_seen(self, one: Claimant, folder: Path) -> None:
        one.kill()
        read = record.read(record_file(folder))
        assert read is not None
        elsewhere = replace(read, host="elsewhere", process=replace(read.process, boot="another"))
        record.write(record_file(folder), elsewhere)

        assert "cannot be told" in str(registry.release(only()))

    def test_nor_what_somebody_claimed_since_it_was_looked_at(self, one: Claimant, folder: Path) -> None:
        one.kill()
        seen = only()
        with claimant(folder) as next_one:
            next_one.claim("kv-events", group=GROUP)
            assert f"held by pid {next_one.pid}" in str(registry.release(seen))
            assert only().state == "alive"
            next_one.tell(release=KEY)
            next_one.claim("kv-events", group=GROUP)
            next_one.kill()

            assert registry.release(seen) == "somebody claimed it meanwhile"
            assert only().state == "dead"

    def test_a_record_that_is_garbage_goes_where_nobody_holds_it(self, one: Claimant, folder: Path) -> None:
        file = record_file(folder)
        file.write_text("{")
        assert "held by pid" in str(registry.release(only()))
        assert file.exists()
        one.kill()

        assert registry.release(only()) is None
        assert registry.entries() == ()

    def test_afterwards_anybody_can_claim_it(self, one: Claimant) -> None:
        with pytest.raises(ClaimedError):
            claim("kv-events", group=GROUP)
        one.kill()
        registry.release(only())

        with claim("kv-events", group=GROUP) as held:
            assert held.record.takeovers == 0


class TestElsewhere:
    def test_claims_of_a_process_with_another_environment_are_found(
        self, one: Claimant, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usual = Path(f"/tmp/rankbind-{os.geteuid()}")
        monkeypatch.setattr(registry, "_files", lambda claims: [claims] if claims == usual / "claims" else [])

        assert registry.elsewhere(tmp_path) == (usual,)
        assert registry.elsewhere(usual) == ()


def test_many_at_once(folder: Path) -> None:
    with ExitStack() as stack:
        several = [stack.enter_context(claimant(folder)) for _ in range(3)]
        for number, each in enumerate(several):
            for index in range(5):
                each.claim("kv-events", group={"attn_dp": number * 5 + index})
        several[1].kill()
        states = [entry.state for entry in registry.entries()]

        assert states == ["alive"] * 5 + ["dead"] * 5 + ["alive"] * 5


def test_a_directory_is_looked_at_by_its_path(one: Claimant, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKBIND_DIR", str(folder.parent / "other"))

    assert registry.entries() == ()
    assert only(folder).state == "alive"
    shutil.rmtree(folder)
    assert registry.entries(folder) == ()
