"""Claims: everything that two processes, or one and its children, can do to each other."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rankbind
from rankbind.errors import ClaimedError, ClaimError, DirectoryError, EndpointError
from rankbind.identity import reset
from rankbind.runtime import atomic, lock, record
from rankbind.runtime import claim as claims
from rankbind.runtime.addresses import Address
from rankbind.runtime.claim import Claim, claim, claim_as
from rankbind.runtime.hold import Hold
from rankbind.runtime.key import Key
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record

from ..support.child import WAIT, Child, RefusedError, child, forked, may

ENOUGH = 65_000
"""A port that nobody needs: the tests claim it, and bind nothing."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("RANKBIND_DEPLOYMENT", raising=False)
    reset()
    yield tmp_path / "run"
    for each in tuple(claims._held):
        each.release()
    reset()


def written(made: Claim) -> Record | None:
    return record.read(made._hold.record_path)


def refused(resource: str = "kv", **arguments: Any) -> ClaimedError:
    with pytest.raises(ClaimedError) as caught:
        claim(resource, **arguments)
    return caught.value


# ---- one holder


def test_a_claim_and_what_is_written_of_it(place: Path) -> None:
    began = time.time()
    made = claim("kv", group={"attn_dp": 1}, rank=2, coordinates={"pp": 0, "tp": 2}, declared="topology.toml:14")
    assert (made.held, made.key, str(made.key)) == (True, Key("default", "kv", {"attn_dp": 1}), "default/kv[attn_dp=1]")
    assert written(made) == made.record
    assert made.record == Record(
        deployment="default",
        resource="kv",
        group={"attn_dp": 1},
        token=made.token,
        since=made.record.since,
        process=Process.me(),
        host=os.uname().nodename,
        rank=2,
        coordinates={"pp": 0, "tp": 2},
        declared="topology.toml:14",
        program=made.record.program,
        version=rankbind.__version__,
    )
    assert began <= made.record.since <= time.time()
    assert [path.name for path in sorted((place / "claims").iterdir())] == [
        "default%2Fkv[attn_dp=1].json",
        "default%2Fkv[attn_dp=1].lock",
    ]
    made.release()
    assert not made.held
    assert written(made) == replace(made.record, state="released") == made.record
    assert repr(made) == f"<claim of default/kv[attn_dp=1], token {made.token}, not held>"


def test_two_processes_with_one_rank() -> None:
    with child() as other:
        other.run("held = claim('kv', group={'tp': 0}, rank=3)")
        error = refused(group={"tp": 0}, rank=3)
        assert error.key == Key("default", "kv", {"tp": 0})
        assert isinstance(error.holder, Record)
        assert error.holder.process.pid == other.pid
        assert error.address is None
        claim("kv", group={"tp": 1})
        claim("kv", group={"tp": 0}, deployment="another")
        claim("kv2", group={"tp": 0})
        assert other.ask("held.held")


def test_a_name_for_who_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with child() as other:
        other.run("held = claim('kv', deployment='engine-5557')")
        with pytest.raises(ClaimedError):
            claim_as("engine-5557", "kv")
        assert claim_as("engine-5558", "kv").record.key == Key("engine-5558", "kv", {})
        # In another network its ports are not ours.
        elsewhere = replace(Process.me(), net_ns=7)
        monkeypatch.setattr(claims.Process, "me", lambda: elsewhere)
        assert claim_as("engine-5557", "kv").record.key == Key("engine-5557-net7", "kv", {})
        monkeypatch.setenv("RANKBIND_DEPLOYMENT", "blue")
        assert claim_as("engine-5557", "kv").record.key == Key("blue", "kv", {})


def test_one_process_twice() -> None:
    made = claim("kv")
    assert "this very process holds it already" in str(refused())
    made.release()
    claim("kv").release()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_owner_is_followed_at_once_and_counted(number: int) -> None:
    tokens = []
    for takeovers in range(3):
        with child() as other:
            tokens.append(other.ask("held.token", "held = claim('kv')"))
            assert other.ask("held.record.takeovers") == takeovers
            other.kill(number)
    made = claim("kv")
    assert made.record.takeovers == 3
    assert tokens == sorted({*tokens})
    assert made.token > tokens[-1]
    made.release()
    assert claim("kv").record.takeovers == 3


def test_a_stopped_owner_keeps_it() -> None:
    with child() as other:
        other.run("held = claim('kv')")
        os.kill(other.pid, signal.SIGSTOP)
        found = Process.of(other.pid)
        assert found is not None
        deadline = time.monotonic() + WAIT
        while found.liveness() != "paused" and time.monotonic() < deadline:
            time.sleep(0.005)
        assert "the holder is stopped, not dead" in str(refused())
        os.kill(other.pid, signal.SIGCONT)
        assert other.ask("held.held")


def test_a_pid_that_is_another_process_by_now_keeps_nothing() -> None:
    """The kernel decides, not the record: one that says that we hold it keeps nobody away."""
    made = claim("kv")
    made.release()
    record.write(made._hold.record_path, replace(made.record, state="held", process=replace(Process.me(), start=1)))
    assert claim("kv").record.takeovers == 1


def test_threads_race_and_one_gets_it() -> None:
    for _ in range(10):
        got, lost = race(8)
        assert (len(got), len(lost)) == (1, 7)
        assert all("this very process holds it already" in error for error in lost)
        got[0].release()


def race(threads: int) -> tuple[list[Claim], list[str]]:
    start, got, lost = threading.Barrier(threads), list[Claim](), list[str]()

    def run() -> None:
        start.wait(WAIT)
        try:
            got.append(claim("kv"))
        except ClaimedError as error:
            lost.append(str(error))

    racers = [threading.Thread(target=run) for _ in range(threads)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(WAIT)
    return got, lost


def test_processes_race_and_one_gets_it() -> None:
    racers = [Child() for _ in range(4)]
    try:
        for _ in range(5):
            at = time.time() + 0.05
            ask = f"""
import time
while time.time() < {at}: pass
try: held = claim('kv', endpoints={{'bind': 'tcp://*:{ENOUGH}'}})
except Exception as error: held = None
"""
            threads = [threading.Thread(target=racer.run, args=(ask,)) for racer in racers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT)
            assert sum(racer.ask("held is not None") for racer in racers) == 1
            for racer in racers:
                racer.run("held and held.release()")
    finally:
        for racer in racers:
            racer.close()


def test_a_claim_nobody_refers_to_stays_held() -> None:
    with child() as other:
        other.run("import gc; claim('kv'); gc.collect()")
        refused()
        assert other.leave() == 0
    claim("kv")


def test_a_with_block_gives_it_up_whatever_happens() -> None:
    made = claim("kv")
    with pytest.raises(ZeroDivisionError), made:
        raise ZeroDivisionError
    assert not made.held
    claim("kv")


# ---- the end of a process


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise RuntimeError", "thread()"])
def test_the_end_of_a_process_marks_it_released(place: Path, ending: str) -> None:
    script = f"""
from rankbind.runtime.claim import claim
held = claim('kv', endpoints={{'bind': 'tcp://*:{ENOUGH}'}})
def thread():
    import threading, time
    threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()
{ending}
"""
    subprocess.run([sys.executable, "-c", script], timeout=WAIT, stderr=subprocess.DEVNULL, check=False)
    found = record.read(place / "claims" / "default%2Fkv.json")
    assert found is not None
    assert found.state == "released"
    assert claim("kv").record.takeovers == 0
    assert not list((place / "addresses").rglob("*.json"))


def test_at_the_end_it_is_held_until_everything_is_torn_down(place: Path) -> None:
    """filelock lets go of its locks before that, and another process would bind what is still bound."""
    script = """
import atexit, subprocess, sys
import rankbind
def teardown():
    probe = "from rankbind import claim\\ntry: claim('kv'); print('free')\\nexcept Exception as e: print(e)"
    print(subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout)
atexit.register(teardown)
from rankbind.runtime.claim import claim
claim("kv")
"""
    found = subprocess.run([sys.executable, "-c", script], timeout=WAIT, capture_output=True, text=True, check=True)
    assert "free" not in found.stdout
    assert "default/kv is held by" in found.stdout


MULTIPROCESSING = """
import multiprocessing, os, signal, sys, time
from rankbind.runtime.claim import claim
from rankbind.errors import ClaimedError

def hold(pipe):
    try:
        held = claim("parent's")
        pipe.send("got it")
    except ClaimedError as error:
        pipe.send("refused")
    held = claim("child's")
    pipe.recv()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ours = claim("parent's")
    here, there = context.Pipe()
    child = context.Process(target=hold, args=(there,))
    child.start()
    answers = [here.recv(), ours.held]
    if sys.argv[2] == "parent dies":
        print(child.pid, *answers, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    here.send("end")
    child.join()
    print(child.exitcode, *answers, flush=True)
"""


@pytest.fixture
def family(tmp_path: Path) -> Path:
    path = tmp_path / "family.py"
    path.write_text(MULTIPROCESSING)
    return path


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(place: Path, family: Path, method: str) -> None:
    """They claim for themselves, and their end marks it; those that are forked run no atexit."""
    command = [sys.executable, str(family), method, "all end"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=True)
    assert found.stdout == "0 refused True\n", found.stderr
    for name in ("parent's", "child's"):
        assert claim(name).record.takeovers == 0, name


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_parent_that_dies_while_its_child_lives(family: Path, method: str) -> None:
    command = [sys.executable, str(family), method, "parent dies"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout
        offspring, *answers = parent.stdout.readline().split()
        try:
            assert answers == ["refused", "True"]
            parent.wait(WAIT)
            assert claim("parent's").record.takeovers == 1
        finally:
            os.kill(int(offspring), signal.SIGKILL)


# ---- fork, exec


def test_a_forked_child_neither_holds_nor_releases_nor_writes(place: Path) -> None:
    made = claim("kv", endpoints={"bind": f"tcp://*:{ENOUGH}"})
    before = made.record

    def ask() -> str:
        answers = [made.held, made._hold.locked]
        made.release()
        try:
            made.update(notes={"a": "b"})
        except ClaimError as error:
            answers.append("not held by this process" in str(error))
        claims._at_exit()
        return str(answers)

    assert forked(ask) == "[False, False, True]"
    assert made.held
    assert written(made) == before
    refused()


def test_a_child_forked_while_a_thread_updates_does_not_hang() -> None:
    made = claim("kv")
    with made._mutex:
        done = threading.Thread(target=lambda: None)
        done.start()
        answer: list[str] = []
        other = threading.Thread(target=lambda: answer.append(forked(lambda: (made.release(), made.held)[1])))
        other.start()
        other.join(WAIT)
    assert answer == ["False"]


def test_a_forked_child_that_leaves_like_a_script_changes_nothing(place: Path) -> None:
    script = """
import os, sys, time
from rankbind.runtime.claim import claim
held = claim("kv")
pid = os.fork()
if not pid:
    sys.exit(0)
os.waitpid(pid, 0)
print(held.held, held.record.state, flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"True held\n"
        found = record.read(place / "claims" / "default%2Fkv.json")
        assert found is not None
        assert found.state == "held"
        refused()


def test_a_forked_child_may_claim_once_its_parent_gave_it_up() -> None:
    made = claim("kv")
    made.release()

    def ask() -> str:
        ours = claim("kv")
        return f"{ours.held} {ours.token > made.token} {ours.record.process.pid == os.getpid()}"

    assert forked(ask) == "True True True"


def test_an_executed_program_inherits_nothing() -> None:
    with child() as other:
        other.run("held = claim('kv')")
        sleeper = other.ask(
            "sleeper.pid",
            "import subprocess; sleeper = subprocess.Popen(['sleep', '1000'], close_fds=False)",
        )
        try:
            refused()
            other.kill()
            claim("kv")
        finally:
            os.kill(sleeper, signal.SIGKILL)


# ---- keys


PARTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(
    ["a/b", "a", "b", "a%2Fb", "[x=1]", "kv[x=1]", "x=1,y", "~", ".", "..", "a" * 300, "\N{SNOWMAN}" * 90]
)
KEYS = st.builds(Key, PARTS, PARTS, st.dictionaries(PARTS, st.integers(0, 3), max_size=2))


@given(st.lists(KEYS, min_size=2, max_size=8))
def test_different_keys_have_different_files_that_fit(keys: list[Key]) -> None:
    names = {key: key.file_name for key in keys}
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert len(os.fsencode(f"{name}.json")) <= 255
        assert "/" not in name
        assert "\0" not in name


def test_what_separates_the_parts_of_a_key_is_part_of_a_name_too() -> None:
    held = [
        claim("kv", deployment="a/b"),
        claim("b/kv", deployment="a"),
        claim("kv[x=1]"),
        claim("kv", group={"x": 1}),
        claim("kv", group={"x": 1, "y": 2}),
        claim("kv", group={"x=1,y": 2}),
        claim("x" * 300),
        claim("x" * 301),
    ]
    assert all(each.held for each in held)


def test_one_group_has_one_name() -> None:
    claim("kv", group={"pp": 1, "tp": 0})
    for group in ({"tp": 0, "pp": 1}, {"pp": True, "tp": False}):
        assert refused(group=group).key == Key("default", "kv", {"tp": 0, "pp": 1})
    with pytest.raises(TypeError):
        claim("kv", group={"pp": 1.0, "tp": 0})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        claim("kv", rank="3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a name"):
        claim("")


def test_the_deployment_is_that_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert claim("a").key.deployment == "default"
    monkeypatch.setenv("RANKBIND_DEPLOYMENT", "blue")
    assert claim("b").key.deployment == "blue"
    rankbind.init(axes={"pp": 2, "tp": 2}, rank=3, deployment="green")
    made = claim("c")
    assert made.key.deployment == "green"
    assert (made.record.rank, dict(made.record.coordinates)) == (3, {"pp": 1, "tp": 1})
    assert claim("d", deployment="red").key.deployment == "red"
    assert (claim("e", rank=0).record.rank, dict(claim("f", rank=0).record.coordinates)) == (0, {})


# ---- tokens


CLOCK = st.lists(
    st.tuples(
        st.integers(0, 2**51),  # microseconds since 1970: up to 2041
        st.sampled_from(["keep", "lose the record", "garbage", "unwritable", "kill"]),
    ),
    min_size=2,
    max_size=12,
)


@given(CLOCK)
def test_tokens_rise_whatever_clock_and_records_do(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    tokens: list[int] = []
    where = tmp_path_factory.mktemp("tokens")
    with pytest.MonkeyPatch.context() as patch:
        for now, then in steps:
            patch.setattr(claims.time, "time_ns", lambda now=now: now * 1000)
            with pytest.MonkeyPatch.context() as broken:
                if then == "unwritable":
                    broken.setattr(record, "write", lambda *_: False)
                made = claim("kv", directory=where)
                tokens.append(made.token)
                path = Path(made._hold.record_path)
                if then == "kill":
                    made._hold.let_go()
                made.release()
            if then == "lose the record":
                path.unlink()
            elif then == "garbage":
                path.write_bytes(b"\x00garbage")
    assert all(one < other for one, other in pairwise(tokens))
    assert all(token >= now for token, (now, _) in zip(tokens, steps, strict=True))


def test_a_token_is_about_the_time(place: Path) -> None:
    before = time.time_ns() // 1000
    first = claim("kv")
    assert before <= first.token <= time.time_ns() // 1000
    first.release()
    shutil.rmtree(place)
    assert claim("kv").token > first.token


# ---- records


@pytest.mark.parametrize("what", ["missing", "torn", "garbage", "huge", "directory", "pipe", "link", "older"])
def test_a_record_that_is_no_record_breaks_no_claim(place: Path, what: str) -> None:
    made = claim("kv")
    path = Path(made._hold.record_path)
    whole = path.read_bytes()
    path.unlink()
    if what == "torn":
        path.write_bytes(whole[: len(whole) // 2])
    elif what == "garbage":
        path.write_bytes(os.urandom(500))
    elif what == "huge":
        path.write_bytes(b"[" * 10_000_000)
    elif what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to("/dev/zero")
    elif what == "older":
        path.write_text(json.dumps({**json.loads(whole), "process": {"pid": 1}}))
    error = refused()
    assert error.holder is None
    assert f"default/kv is held by pid {os.getpid()}, and no record says more" in str(error)
    made.update(notes={"still": "held"})
    made.release()
    again = claim("kv")
    assert again.token > made.token
    if what != "directory":
        assert written(again) == again.record
    else:
        assert written(again) is None


def test_a_record_that_cannot_be_written_is_none_and_not_that_of_another(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the diagnosis blames one who gave it up long ago."""
    with child() as other:
        other.run("first = claim('kv'); first.release()")
        monkeypatch.setattr(record, "write", lambda *_: False)
        made = claim("kv")
        assert made.held
        assert not Path(made._hold.record_path).exists()
        error = refused()
        assert error.holder is None
        assert f"held by pid {os.getpid()}" in str(error)


@pytest.mark.skipif(not may("unshare", "-rm"), reason="this user may mount nothing")
def test_a_full_disk(tmp_path: Path) -> None:
    """Claims go on where their lock files exist; where not, the error says so. An old record makes room for a new."""
    script = f"""
import os, sys
from pathlib import Path
from rankbind.runtime.claim import claim
from rankbind.runtime import record
from rankbind.errors import ClaimError, ClaimedError
where = Path({str(tmp_path)!r})
tokens = []
def again():
    with claim("kv", directory=where / "run") as held:
        tokens.append(held.token)
        try: claim("kv", directory=where / "run")
        except ClaimedError as error: print(type(error).__name__, error.holder is not None)
again()
with open(where / "ballast", "wb", buffering=0) as ballast:
    try:
        while ballast.write(b"x" * 4096): pass
    except OSError: pass
for number in range(1000):
    try: (where / f"inode-{{number}}").touch()
    except OSError: break
again()
again()
try: claim("other", directory=where / "run")
except ClaimError as error: print(error)
print(tokens == sorted(set(tokens)), [each.suffix for each in sorted((where / "run" / "claims").iterdir())])
"""
    mount = f'mount -t tmpfs -o size=64k,nr_inodes=40,mode=700 none "{tmp_path}" && exec "$0" -c "$1"'
    command = ["unshare", "-rm", "sh", "-c", mount, sys.executable, script]
    found = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    lines = found.stdout.splitlines()
    assert lines[:3] == ["ClaimedError True"] * 3, found.stderr
    assert re.fullmatch(
        r"cannot take the lock .*/default%2Fother.lock: No space left on device. Nothing is claimed. "
        r"Set RANKBIND_DIR to a directory on a local file system that can be written",
        lines[3],
    )
    assert lines[4] == "True ['.json', '.lock']"


@pytest.mark.skipif(not may("unshare", "-rm"), reason="this user may mount nothing")
def test_a_disk_that_turns_read_only_while_it_is_held(tmp_path: Path) -> None:
    script = f"""
import os, subprocess
from pathlib import Path
from rankbind.runtime.claim import claim
from rankbind.errors import ClaimError
where = Path({str(tmp_path)!r}) / "run"
held = claim("kv", directory=where)
# Over it, as the kernel keeps a file system writable while a lock file is open.
for options in (["--bind", {str(tmp_path)!r}], ["-o", "remount,ro,bind"]):
    subprocess.run(["mount", *options, {str(tmp_path)!r}], check=True)
held.update(notes={{"a": "b"}})
print(held.held)
try: claim("kv", directory=where)
except ClaimError as error: print(type(error).__name__)
held.release()
print(held.held)
"""
    mount = f'mount -t tmpfs -o mode=700 none "{tmp_path}" && exec "$0" -c "$1"'
    command = ["unshare", "-rm", "sh", "-c", mount, sys.executable, script]
    found = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    assert found.stdout.split() == ["True", "ClaimError", "False"], found.stderr


def test_no_locks_is_an_error_and_never_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    claim("kv").release()

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(ClaimError, match=r"cannot take the lock .*: Function not implemented. Nothing is claimed"):
        claim("kv")


def test_too_many_open_files_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with child() as other:
        other.run("claim('first').release()")
        with pytest.raises(
            RefusedError, match=r"Too many open files. Nothing .* raise the limit \(ulimit -n\)"
        ) as caught:
            other.run("""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
held = [claim(f'kv{number}') for number in range(50)]
""")
        assert caught.value.kind == "ClaimError"


def test_a_directory_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(DirectoryError, match="other users can write it"):
        claim("kv", directory=tmp_path / "open")


# ---- somebody deletes what is in use


def test_the_directory_is_removed_while_it_is_held(place: Path) -> None:
    made = claim("kv", endpoints={"bind": f"tcp://*:{ENOUGH}"})
    shutil.rmtree(place)
    assert not made.held
    made.update(notes={"a": "b"})
    with child() as other:
        assert other.ask("held.held", "held = claim('kv')")
        made.release()
        made.release()
        assert other.ask("held.held")
        refused()


def test_a_cleaner_that_deletes_a_held_lock_file_is_noticed(place: Path) -> None:
    made = claim("kv")
    assert made.held
    Path(made._hold.lock_path).unlink()
    assert not made.held
    assert repr(made).endswith("not held>")
    second = claim("kv")
    assert second.held
    assert not made.held
    made.release()
    assert second.held


# ---- addresses


def test_two_deployments_and_one_port() -> None:
    with child(env={"RANKBIND_DEPLOYMENT": "blue"}) as other:
        other.run(f"held = claim('kv', endpoints={{'bind': 'tcp://*:{ENOUGH}'}}, rank=0)")
        error = refused(endpoints={"bind": f"tcp://*:{ENOUGH}"})
        assert (error.key, error.address) == (Key("default", "kv"), f"tcp://*:{ENOUGH}")
        assert isinstance(error.holder, Record)
        assert error.holder.deployment == "blue"
        assert "two deployments want one address" in str(error)
        # Nothing is left of the attempt.
        made = claim("kv", endpoints={"bind": f"tcp://*:{ENOUGH + 1}"})
        assert made.record.takeovers == 0
        other.kill()
        made.update(endpoints={"bind": f"tcp://*:{ENOUGH}"})


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        ("tcp://*:{}", "tcp://127.0.0.1:{}", True),
        ("tcp://127.0.0.1:{}", "tcp://*:{}", True),
        ("tcp://0.0.0.0:{}", "tcp://*:{}", True),
        ("tcp://127.0.0.1:{}", "tcp://127.0.0.2:{}", False),
        ("tcp://127.0.0.1:{}", "tcp://localhost:{}", True),
        ("tcp://0.0.0.0:{}", "tcp://[::1]:{}", False),
        ("tcp://[::]:{}", "tcp://127.0.0.1:{}", True),
        ("tcp://[::]:{}", "tcp://[::1]:{}", True),
        ("tcp://[::ffff:127.0.0.1]:{}", "tcp://127.0.0.1:{}", True),
        ("tcp://eth0:{}", "tcp://*:{}", True),
        ("tcp://eth0:{}", "tcp://eth1:{}", False),
        ("tcp://" + "h" * 250 + ":{}", "tcp://*:{}", True),
        ("tcp://" + "h" * 250 + ":{}", "tcp://" + "h" * 251 + ":{}", False),
        ("tcp://" + "h" * 250 + ":{}", "tcp://" + "h" * 250 + ":{}", True),
        ("ipc://@rb-{}", "ipc://@rb-{}", True),
        ("ipc://@rb-{}", "ipc://rb-{}", False),
        ("inproc://rb-{}", "inproc://rb-{}", False),
        ("tcp://*:0", "tcp://*:0", False),
        ("tcp://*:70000", "tcp://*:70000", False),
    ],
)
def test_what_gets_in_the_way_of_what(first: str, second: str, clash: bool) -> None:
    claim("one", endpoints={"bind": first.format(ENOUGH)})
    if clash:
        error = refused("two", endpoints={"bind": second.format(ENOUGH)})
        assert error.address == second.format(ENOUGH)
        assert "this very process has it for default/one: give one of the two another address" in str(error)
    else:
        claim("two", endpoints={"bind": second.format(ENOUGH)})
    claim("three", endpoints={"bind": second.format(ENOUGH + 1)})


def test_options_of_a_socket_count() -> None:
    v6only = rankbind.Endpoint.parse(f"tcp://[::]:{ENOUGH}", ipv6=True, v6only=True)
    claim("one", endpoints={"bind": v6only})
    claim("two", endpoints={"bind": f"tcp://*:{ENOUGH}"})
    assert refused("three", endpoints={"bind": rankbind.Endpoint.parse(f"tcp://[::1]:{ENOUGH}", ipv6=True)})


def test_rubbish_in_the_folder_of_a_port_is_in_nobodys_way() -> None:
    made = claim("one", endpoints={"bind": f"tcp://127.0.0.1:{ENOUGH}"})
    folder = Path(made._addresses[f"127.0.0.1:{ENOUGH}"].lock_path).parent
    for name in ("%%%.lock", ".lock", "+6+6.lock", "[::.lock", "x.lock.bak", "note"):
        (folder / name).write_text("?")
    claim("two", endpoints={"bind": f"tcp://127.0.0.2:{ENOUGH}"})
    refused("three", endpoints={"bind": f"tcp://*:{ENOUGH}"})


def test_a_claim_that_would_be_in_its_own_way() -> None:
    """Of two binds of one ipc path the first is deaf, and nothing says so."""
    for one, other in (("ipc:///tmp/rb-x", "ipc:///tmp/./rb-x"), (f"tcp://*:{ENOUGH}", f"tcp://127.0.0.1:{ENOUGH}")):
        with pytest.raises(ClaimError) as caught:
            claim("kv", endpoints={"bind": one, "replay": other})
        assert str(caught.value) == (
            f"default/kv would bind one address twice: bind {one} and replay {other}. Give replay another"
        )
    claim("kv")


def test_an_endpoint_that_cannot_be_read_leaves_nothing(place: Path) -> None:
    with pytest.raises(EndpointError):
        claim("kv", endpoints={"bind": "tcp://nowhere"})
    made = claim("kv")
    with pytest.raises(EndpointError):
        made.update(endpoints={"bind": "5557"})
    assert (dict(made.record.endpoints), written(made)) == ({}, made.record)


@pytest.mark.skipif(not may("unshare", "-rn"), reason="this user may make no network namespace")
def test_two_network_namespaces_have_ports_of_their_own(tmp_path: Path) -> None:
    ends = {"bind": f"tcp://*:{ENOUGH}", "name": "ipc://@rb-ns"}
    claim("one", endpoints=ends, paths=[str(tmp_path / "file")])
    with child(["unshare", "-rn"]) as other:
        assert other.ask("held.held", f"held = claim('two', endpoints={ends})")
        with pytest.raises(RefusedError, match="which is held by"):
            other.run(f"claim('three', paths=[{str(tmp_path / 'file')!r}])")


def test_port_0_and_then_what_became_of_it() -> None:
    one, two = claim("one", endpoints={"bind": "tcp://*:0"}), claim("two", endpoints={"bind": "tcp://*:0"})
    one.update(endpoints={"bind": f"tcp://127.0.0.1:{ENOUGH}"})
    assert written(one) == one.record
    assert dict(one.record.endpoints) == {"bind": f"tcp://127.0.0.1:{ENOUGH}"}
    with pytest.raises(ClaimedError) as caught:
        two.update(endpoints={"bind": f"tcp://*:{ENOUGH}"})
    assert caught.value.address == f"tcp://*:{ENOUGH}"
    two.update(endpoints={"bind": f"tcp://*:{ENOUGH + 1}"})
    one.release()
    two.update(endpoints={"bind": f"tcp://*:{ENOUGH}"})
    claim("three", endpoints={"bind": f"tcp://*:{ENOUGH + 1}"})


def test_an_endpoint_that_was_declared_and_is_told_more_precisely() -> None:
    """LAST_ENDPOINT has 0.0.0.0 for a wildcard: its own claim is in nobody's way."""
    made = claim("kv", endpoints={"bind": f"tcp://*:{ENOUGH}"})
    made.update(endpoints={"bind": f"tcp://0.0.0.0:{ENOUGH}"})
    refused("other", endpoints={"bind": f"tcp://127.0.0.1:{ENOUGH}"})
    made.release()
    claim("other", endpoints={"bind": f"tcp://127.0.0.1:{ENOUGH}"})


def test_an_update_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    claim("other", endpoints={"bind": f"tcp://*:{ENOUGH + 1}"})
    before = {"bind": f"tcp://*:{ENOUGH}", "ipc": f"ipc://{tmp_path}/a"}
    made = claim("kv", endpoints=before, paths=[str(tmp_path / "b")])
    record_before = made.record
    with pytest.raises(ClaimedError):
        made.update(
            endpoints={"ipc": f"ipc://{tmp_path}/new", "bind": f"tcp://127.0.0.1:{ENOUGH + 1}"}, notes={"a": "b"}
        )
    assert made.record == record_before == written(made)
    for taken in (f"tcp://*:{ENOUGH}", f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/b"):
        refused("third", endpoints={"bind": taken})
    claim("third", endpoints={"bind": f"ipc://{tmp_path}/new"})


def test_an_update_gives_up_what_is_no_longer_said_but_no_path(tmp_path: Path) -> None:
    made = claim("kv", endpoints={"bind": f"ipc://{tmp_path}/a"}, paths=[str(tmp_path / "log")])
    made.update(endpoints={"bind": f"ipc://{tmp_path}/b"})
    claim("other", endpoints={"bind": f"ipc://{tmp_path}/a"})
    refused("third", paths=[str(tmp_path / "log")])
    refused("third", endpoints={"bind": f"ipc://{tmp_path}/b"})


def test_notes_are_added_to_others() -> None:
    made = claim("kv")
    made.update(notes={"publisher": "restarted"})
    made.update(notes={"times": 2})  # type: ignore[dict-item]
    assert made.record.notes == {"publisher": "restarted", "times": "2"}
    assert written(made) == made.record
    made.release()
    with pytest.raises(ClaimError, match=r"default/kv is not held by this process \(any more\)"):
        made.update(notes={"a": "b"})


def test_an_attempt_that_was_refused_leaves_no_record_of_an_address(place: Path) -> None:
    claim("one", endpoints={"bind": f"tcp://*:{ENOUGH}"})
    refused("two", endpoints={"first": f"tcp://*:{ENOUGH + 1}", "second": f"tcp://*:{ENOUGH}"})
    assert len(list((place / "addresses").rglob("*.json"))) == 1
    claim("three", endpoints={"bind": f"tcp://*:{ENOUGH + 1}"})


# ---- ipc paths and files


@pytest.fixture
def sockets() -> Iterator[Path]:
    # Short: an ipc path has 107 bytes.
    import tempfile

    found = Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))
    (found / "real").mkdir()
    (found / "link").symlink_to("real")
    yield found
    shutil.rmtree(found, ignore_errors=True)


SPELLINGS = ["{0}/real/kv", "{0}/real/./kv", "{0}//real/kv", "{0}/real/../real/kv", "{0}/link/kv"]
SPELLINGS += ["kv", "./kv", "../link/kv"]

LISTEN = """
import zmq
context = zmq.Context()
socket = context.socket(zmq.PULL)
socket.bind({!r})
"""


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_without_the_claim_the_first_binder_goes_deaf_and_with_it_the_second_is_refused(
    sockets: Path, spelling: str
) -> None:
    import zmq

    second = f"ipc://{spelling.format(sockets)}"
    path = f"{sockets}/real/kv"
    with (
        child(cwd=sockets / "real") as one,
        child(cwd=sockets / "real", env={"RANKBIND_DEPLOYMENT": "other"}) as two,
        zmq.Context() as context,
    ):
        one.run(f"held = claim('kv', endpoints={{'bind': 'ipc://{path}'}})")
        with pytest.raises(RefusedError, match=re.escape(f"other/kv needs {second}, which is held by")):
            two.run(f"claim('kv', endpoints={{'bind': {second!r}}})")
        one.run(LISTEN.format(f"ipc://{path}"))

        def heard_by() -> list[str]:
            with context.socket(zmq.PUSH) as push:
                push.connect(f"ipc://{path}")
                push.send(b"hello")
                ears = {"one": one, "two": two} if two.ask("'socket' in globals()") else {"one": one}
                deadline = time.monotonic() + WAIT
                while time.monotonic() < deadline:
                    heard = [name for name, ear in ears.items() if ear.ask("socket.poll(20) and socket.recv() and 1")]
                    if heard:
                        return heard
                return []

        assert heard_by() == ["one"]
        # What the claim prevents: no error, and the first never hears anything again.
        two.run(LISTEN.format(second))
        assert heard_by() == ["two"]
        for each in (one, two):
            each.run("context.destroy(linger=0)")


def test_a_link_in_the_place_of_a_socket_is_replaced_and_not_followed(sockets: Path) -> None:
    """Binding it does nothing to what it leads to."""
    import zmq

    (sockets / "alias").symlink_to(sockets / "real" / "kv")
    claim("one", endpoints={"bind": f"ipc://{sockets}/real/kv"})
    claim("two", endpoints={"bind": f"ipc://{sockets}/alias"})
    with zmq.Context() as context, context.socket(zmq.PULL) as one, context.socket(zmq.PULL) as two:
        one.bind(f"ipc://{sockets}/real/kv")
        two.bind(f"ipc://{sockets}/alias")
        assert not (sockets / "alias").is_symlink()
        with context.socket(zmq.PUSH) as push:
            push.connect(f"ipc://{sockets}/real/kv")
            push.send(b"hello")
            assert one.poll(WAIT * 1000)


def test_two_writers_of_one_file(sockets: Path) -> None:
    (sockets / "log").write_text("")
    (sockets / "alias").symlink_to("log")
    claim("one", paths=[str(sockets / "log")])
    for spelling in (f"{sockets}/alias", f"{sockets}/link/../log", f"{sockets}/real/../log"):
        error = refused("two", paths=[spelling])
        assert error.address == spelling
    claim("two", paths=[str(sockets / "other"), str(sockets / "not" / "yet" / "there")])
    refused("three", paths=[f"{sockets}/not/./yet/there"])


def test_a_relative_path_in_a_directory_that_is_gone(sockets: Path) -> None:
    with child(cwd=sockets / "real") as other:
        (sockets / "real").rmdir()
        with pytest.raises(RefusedError, match=r"cannot find out where x is: .* Give an absolute path") as caught:
            other.run("claim('kv', paths=['x'])")
        assert caught.value.kind == "ClaimError"
        other.run("claim('kv')")


# ---- what is told of the holder


def test_a_real_command_line(tmp_path: Path, place: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text("from rankbind.runtime.claim import claim\nprint(claim('kv').record.to_json())\n")
    command = [sys.executable, "-u", str(script), "--api-key", "hunter2", "hunter2"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=True)
    assert f"{sys.executable} {script}" in found.stdout
    assert f"{script}:2" in found.stdout
    assert not [path for path in place.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


def test_the_caller_is_where_it_was_declared() -> None:
    line = sys._getframe().f_lineno + 1
    assert claim("kv").record.declared == f"{__file__}:{line}"
    assert exec("made = claim('kv2')", found := {"claim": claim, "__name__": None}) is None
    assert found["made"].record.declared == "<string>:1"


# ---- a full disk


def test_what_is_no_longer_bound_is_not_left_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new record finds no room beside the old one: the old one goes, and makes some."""
    made, write, full = claim("kv", endpoints={"bind": "tcp://127.0.0.1:0"}), record.write, [True]
    with monkeypatch.context() as patched:
        patched.setattr(record, "write", lambda *told: False if full and full.pop() else write(*told))
        made.update(endpoints={"bind": "tcp://*:0"})
    assert not full
    assert written(made) == made.record


# ---- Ctrl-C


@pytest.mark.parametrize("at", range(1, 20))
def test_interrupted_anywhere_it_holds_nothing(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each call that a claim makes of what it is built of."""
    calls, made = 0, None

    def interrupting(function: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            found = function(*arguments, **named)
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return found

        return wrapped

    binds = {"bind": f"tcp://127.0.0.1:{ENOUGH}", "replay": f"tcp://127.0.0.1:{ENOUGH + 1}"}
    claim("kv", endpoints=binds).release()
    with monkeypatch.context() as patched:
        for owner, name in (
            (lock, "take"), (record, "read"), (record, "write"), (atomic, "remove"), (Hold, "begin"),
            (Address, "hold"), (Claim, "_claim_addresses"), (claims, "see_to_exit"),
        ):  # fmt: skip
            patched.setattr(owner, name, interrupting(getattr(owner, name)))
        with suppress(KeyboardInterrupt):
            made = claim("kv", endpoints=binds)
    if made is not None:
        made.release()
    assert (made is None) is (calls >= at)
    claim("kv")
    claim("other", endpoints=binds)


# What is asked wrongly


def test_one_path_is_a_path_and_not_its_letters(tmp_path: Path) -> None:
    with claim("log-a", paths=str(tmp_path / "log")), pytest.raises(ClaimedError):
        claim("log-b", paths=[str(tmp_path / "log")])
    with claim("log-b", paths=[str(tmp_path / "log")]):
        pass


@pytest.mark.parametrize(
    ("endpoints", "message"),
    [("tcp://*:5557", "by role"), ({"bind": b"tcp://*:5557"}, "decode"), ({"bind": 5557}, "text or an Endpoint")],
)
def test_endpoints_that_are_none_are_named(endpoints, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        claim("kv", endpoints=endpoints)


def test_the_rank_is_known_to_the_record_also_if_nobody_has_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    reset()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with claim("kv") as held:
        assert held.record.rank == 1
