"""What somebody reads at 3 a.m.: the likely cause for each way to be refused, and that it never fails to be told."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.errors import ClaimedError
from rankbind.identity import reset
from rankbind.runtime import claim as claims
from rankbind.runtime import record
from rankbind.runtime.claim import claim
from rankbind.runtime.diagnosis import place, refusal, span, when
from rankbind.runtime.hold import Hold
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record

from ..support.child import WAIT, child, end, may
from .test_record import RECORDS

PORT = "tcp://*:65000"
HERE = os.uname().nodename


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("RANKBIND_DEPLOYMENT", raising=False)
    # A name that does not depend on how the tests are run.
    monkeypatch.setattr(record, "program", lambda: "python serve.py")
    reset()
    yield
    for each in tuple(claims._held):
        each.release()
    reset()


def refused(**arguments: Any) -> str:
    """The message, with what differs from run to run replaced."""
    with pytest.raises(ClaimedError) as caught:
        claim(**{"resource": "kv-events", "declared": "topology.toml:14", **arguments})
    text = re.sub(r"\d\d:\d\d:\d\d \(\d+ s ago\)", "TIME", str(caught.value))
    text = re.sub(rf"pid {os.getpid()}\b", "pid ME", text).replace(f" on {HERE}", " on HOST")
    return text.replace(sys.executable, "python").replace(
        str(Path(__file__).parents[1] / "support/child.py"), "serve.py"
    )


def cause(text: str) -> str:
    return text.partition("\n  likely: ")[2]


RANK_2 = "rank=2, coordinates={'pp': 0, 'tp': 2}, declared='topology.toml:14'"


# ---- each cause


def test_two_processes_with_one_rank() -> None:
    with child() as other:
        other.run(f"claim('kv-events', group={{'attn_dp': 1}}, endpoints={{'bind': '{PORT}'}}, {RANK_2})")
        told = refused(group={"attn_dp": 1}, rank=2, coordinates={"pp": 0, "tp": 2})
        assert told == (
            f"default/kv-events[attn_dp=1] is held by rank 2 (pp 0, tp 2), pid {other.pid} on HOST, since TIME.\n"
            "  it has bind tcp://*:65000\n"
            "  it was declared at topology.toml:14\n"
            "  it runs python serve.py\n"
            "  asked for by rank 2 (pp 0, tp 2), pid ME on HOST, declared at topology.toml:14\n"
            "  likely: two processes say that they are rank 2: look at what tells them (RANK, RANKBIND_RANK, "
            "rankbind.init). If these are two deployments, give one of them another name: RANKBIND_DEPLOYMENT=default-2"
        )


def test_an_old_server_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes two minutes to be old, so the clock of its age is set forward."""
    with child() as other:
        other.run(f"claim('kv-events', {RANK_2})")
        age = Process.age
        monkeypatch.setattr(Process, "age", lambda self: age(self) + 7200 * (self.pid == other.pid))
        assert cause(refused(rank=2)) == (
            f"an old server still runs, started 2 h ago: `kill {other.pid}` ends it. If both are meant to run, give "
            "one of them another name (RANKBIND_DEPLOYMENT=default-2) and other ports"
        )
        monkeypatch.setattr(Process, "age", lambda self: age(self) + 60 * (self.pid == other.pid))
        assert cause(refused(rank=2)).startswith("two processes say that they are rank 2")


def test_two_ranks_of_one_group() -> None:
    with child() as other:
        other.run("claim('kv-events', rank=4, coordinates={'pp': 1, 'tp': 0})")
        assert cause(refused(rank=0)) == (
            "two ranks of one group both make it, so one of the gates lets too many through; or two deployments have "
            "one name, and RANKBIND_DEPLOYMENT=default-2 tells them apart"
        )


def test_the_same_thing_started_twice() -> None:
    with child() as other:
        other.run("claim('kv-events')")
        assert cause(refused()) == (
            "the same thing was started twice: end one of the two. If these are two deployments, give one of them "
            "another name: RANKBIND_DEPLOYMENT=default-2"
        )


def test_two_deployments_want_one_address() -> None:
    with child(env={"RANKBIND_DEPLOYMENT": "blue"}) as other:
        other.run(f"claim('kv-events', endpoints={{'bind': '{PORT}'}}, {RANK_2})")
        told = refused(rank=2, endpoints={"bind": "tcp://127.0.0.1:65000"})
        assert told == (
            "default/kv-events needs tcp://127.0.0.1:65000, which is held by rank 2 (pp 0, tp 2), "
            f"pid {other.pid} on HOST, for blue/kv-events, since TIME.\n"
            "  it has bind tcp://*:65000\n"
            "  it was declared at topology.toml:14\n"
            "  it runs python serve.py\n"
            "  asked for by rank 2, pid ME on HOST, declared at topology.toml:14\n"
            "  likely: two deployments want one address: give default or blue other ports, or end the other one: "
            f"`kill {other.pid}`"
        )


def test_two_groups_of_one_deployment_come_to_one_address() -> None:
    with child() as other:
        other.run(f"claim('kv-events', group={{'attn_dp': 0}}, rank=0, endpoints={{'bind': '{PORT}'}})")
        told = refused(group={"attn_dp": 1}, rank=2, endpoints={"bind": PORT})
        assert f"pid {other.pid} on HOST, for default/kv-events of attn_dp 0, since" in told
        assert cause(told) == (
            "default/kv-events of attn_dp 1 and default/kv-events of attn_dp 0 come to one address: `rankbind check` "
            "shows which rule gives it twice"
        )


def test_one_process_holds_it_already() -> None:
    claim("kv-events", endpoints={"bind": PORT})
    assert cause(refused()) == "this very process holds it already: release() it before it is claimed again"
    assert cause(refused(resource="other", endpoints={"bind": PORT})) == (
        "this very process has it for default/kv-events: give one of the two another address"
    )


def test_the_holder_is_stopped() -> None:
    with child() as other:
        other.run(f"claim('kv-events', {RANK_2})")
        os.kill(other.pid, signal.SIGSTOP)
        process = Process.of(other.pid)
        assert process
        deadline = time.monotonic() + WAIT
        while process.liveness() != "paused" and time.monotonic() < deadline:
            time.sleep(0.005)
        told = refused(rank=2)
        assert ", since TIME; it is stopped, since TIME, and keeps what it holds.\n" in told
        assert cause(told) == (
            f"the holder is stopped, not dead: `kill -CONT {other.pid}` wakes it, `kill -KILL {other.pid}` ends it"
        )


def test_a_helper_of_the_holder_took_itself_for_it() -> None:
    with child() as parent:
        parent.run("claim('kv-events', rank=0)")
        program = """
from rankbind.runtime.claim import claim
try: claim("kv-events", rank=0)
except Exception as error: print(str(error).partition("likely: ")[2])
"""
        run = f"subprocess.run([sys.executable, '-c', {program!r}], capture_output=True, text=True)"
        ask = f"import subprocess; out = {run}"
        assert parent.ask("out.stdout", ask) == (
            "this process was started by the holder and took itself for the same rank (a data loader's worker, a "
            "helper): make such things in the holder alone, or tell the child who it is with rankbind.init\n"
        )


@pytest.mark.skipif(not may("unshare", "-rpf"), reason="this user may make no pid namespace")
def test_the_holder_is_in_another_container() -> None:
    with child(["unshare", "-rpf", "--mount-proc", "--kill-child"]) as inside:
        inside.run(f"claim('kv-events', {RANK_2})")
        told = refused(rank=2)
        assert "pid 1 on HOST" in told
        assert cause(told) == (
            "the holder runs in another container (pid namespace) that shares this directory: look there. If both are "
            "meant to run, give each a directory of its own (RANKBIND_DIR) or a name (RANKBIND_DEPLOYMENT=default-2)"
        )


def test_the_holder_is_about_to_end(tmp_path: Path) -> None:
    with child() as other:
        other.run("held = claim('kv-events'); held._say_released()")
        told = refused()
        assert ", since TIME; it is about to end, or to give it up.\n" in told
        assert cause(told) == f"the holder is ending: try again when pid {other.pid} is gone"


# ---- no record


def test_a_holder_that_could_write_no_record() -> None:
    with child() as other:
        path = other.ask("held._hold.record_path", "held = claim('kv-events')")
        Path(path).write_text("garbage")
        assert refused(rank=2) == (
            f"default/kv-events is held by pid {other.pid}, and no record says more: it began this very moment, or "
            f"could not write one (is the disk full?). `ps -fp {other.pid}` shows it\n"
            "  asked for by rank 2, pid ME on HOST, declared at topology.toml:14"
        )


def test_a_dead_holder_whose_child_keeps_the_lock() -> None:
    """One that a library forked past Python, so that nobody closed its copy."""
    with child() as parent:
        offspring = parent.ask(
            "pid",
            """
import ctypes
held = claim('kv-events')
libc = ctypes.PyDLL(None)
pid = libc.fork()
if not pid: libc.pause()
""",
        )
        try:
            parent.kill()
            assert refused() == (
                f"default/kv-events is held by pid {offspring}, left behind by a holder that is dead: a library forked "
                f"it past Python, so it keeps the lock. `kill {offspring}` sets it free\n"
                "  asked for by a process of unknown rank, pid ME on HOST, declared at topology.toml:14"
            )
        finally:
            end(offspring)
        claim("kv-events")


@pytest.mark.skipif(not may("unshare", "-rpf"), reason="this user may make no pid namespace")
def test_a_holder_that_can_be_seen_neither_by_record_nor_by_pid(tmp_path: Path) -> None:
    made = claim("kv-events")
    Path(made._hold.record_path).unlink()
    with child(["unshare", "-rpf", "--mount-proc", "--kill-child"]) as inside:
        inside.run("error = None\ntry: claim('kv-events')\nexcept Exception as found: error = found")
        assert inside.ask("str(error)").startswith(
            "default/kv-events is held by a process that cannot be seen from here, and its record cannot be read: it "
            f"may be in another container that shares this directory. `fuser {made._hold.lock_path}`, on the host, "
            "shows its pid\n"
        )


def test_somebody_who_comes_between_lock_and_record_waits_for_it() -> None:
    """The record of the one before would blame the wrong one."""
    first = claim("kv-events", rank=1)
    first.release()
    begun = Hold(str(Path(first._hold.lock_path).parent), Path(first._hold.lock_path).name[:-5])
    assert begun.acquire() is None
    later = replace(first.record, state="held", rank=7)
    threading.Timer(0.004, lambda: record.write(begun.record_path, later)).start()
    assert "is held by rank 7" in refused(rank=2)
    begun.let_go()


# ---- whatever a record holds


NASTY = st.text(max_size=30) | st.sampled_from(["\x1b[2J\x1b]0;owned\x07", "\ud800", "a\nlikely: b", "\u202e", "%s{}"])
NASTY_RECORDS = st.builds(
    lambda one, texts, **more: replace(one, **more, declared=texts[0], program=texts[1], host=texts[2]),
    RECORDS,
    st.tuples(NASTY, NASTY, NASTY),
    since=st.floats() | st.integers(0, 2**40),
    endpoints=st.dictionaries(NASTY, NASTY, max_size=2),
    coordinates=st.dictionaries(NASTY, st.integers(), max_size=2),
    process=st.builds(
        Process,
        pid=st.integers(1, 2**22) | st.just(os.getpid()) | st.just(os.getppid()),
        start=st.integers(0, 2**62) | st.just(Process.me().start),
        boot=st.just(Process.me().boot) | NASTY,
        pid_ns=st.just(Process.me().pid_ns) | st.integers(0, 9),
        net_ns=st.integers(0, 9),
    ),
)


@given(NASTY, NASTY_RECORDS, st.none() | NASTY_RECORDS, NASTY, st.none() | NASTY)
def test_it_never_fails_and_nothing_in_it_is_obeyed_by_a_terminal(
    what: str, wanted: Record, holder: Record | None, lock: str, address: str | None
) -> None:
    told = refusal(what, wanted, holder, lock, address)
    assert told.replace("\n", "").isprintable()
    told.encode()
    assert 1 <= told.count("\n  likely: ") + (holder is None) <= 1
    assert not re.search(r"kill (-\w+ )?(0|-\d+)\b", told)


@given(st.floats())
def test_any_moment_can_be_told(since: float) -> None:
    assert when(since)


def test_moments_and_durations() -> None:
    now = datetime.now()
    assert when(time.time() - 1) == f"{datetime.fromtimestamp(time.time() - 1):%H:%M:%S} (1 s ago)"
    long_ago = (now - timedelta(days=3)).timestamp()
    assert when(long_ago) == f"{now - timedelta(days=3):%Y-%m-%d %H:%M:%S} (3 d ago)"
    # The clock was set back since: no duration is better than a wrong one.
    assert re.fullmatch(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", when(time.time() + 3600))
    assert [span(each) for each in (0, 0.6, 59, 60, 3599, 3600, 86399, 86400, 1e9)] == [
        "0 s",
        "1 s",
        "59 s",
        "1 min",
        "59 min",
        "1 h",
        "23 h",
        "1 d",
        "11574 d",
    ]
    assert place({"pp": 0, "tp": 2}) == "pp 0, tp 2"
    assert place({}) == ""
