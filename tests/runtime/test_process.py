"""Who is alive: reused pids, zombies, stopped processes, other namespaces."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rankbind.runtime import process
from rankbind.runtime.process import Process, program

from ..support.child import WAIT, Child, child, forked, may


def eventually(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def process_of(one: Child) -> Process:
    return Process(*one.ask("[Process.me().pid, *(getattr(Process.me(), n) for n in Process.__slots__[1:])]"))


def test_this_process_knows_itself() -> None:
    me = Process.me()
    assert me.pid == os.getpid()
    assert me == Process.of(os.getpid()) == pickle.loads(pickle.dumps(me))
    assert me.visible
    assert me.liveness() == "alive"
    assert me.parent() == os.getppid()
    assert me.paused_since() is None
    started = time.time() - me.age()
    assert started <= time.time()
    assert 0 <= me.age() < time.clock_gettime(time.CLOCK_BOOTTIME)
    assert me.start > 0
    assert me.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_another_process_until_it_is_killed() -> None:
    with child() as other:
        process = process_of(other)
        assert process == Process.of(other.pid)
        assert (process.liveness(), process.parent()) == ("alive", os.getpid())
        assert process.age() < Process.me().age()
        other.kill()
        assert (process.liveness(), process.parent(), Process.of(other.pid)) == ("dead", None, None)


def test_a_pid_that_is_another_process_by_now_is_dead() -> None:
    with child() as other:
        reused = replace(process_of(other), start=1)
        assert reused.liveness() == "dead"
        assert reused.parent() is None
        assert reused.paused_since() is None


def test_a_zombie_is_dead() -> None:
    zombie = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process = Process.of(zombie.pid)
        assert process is not None
        assert process.liveness() == "alive"
        zombie.kill()
        eventually(lambda: Path(f"/proc/{zombie.pid}/stat").read_text().split()[2] == "Z")
        assert process.liveness() == "dead"
    finally:
        zombie.communicate()


def test_a_process_lives_on_when_its_main_thread_has_ended() -> None:
    """It shows as a zombie, and keeps its locks and sockets."""
    program = """
import ctypes, os, threading, time
threading.Thread(target=lambda: (print(os.getpid(), flush=True), time.sleep(1000))).start()
ctypes.CDLL(None).syscall(60, 0)
"""
    headless = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert headless.stdout
        headless.stdout.readline()
        process = Process.of(headless.pid)
        assert process is not None
        eventually(lambda: Path(f"/proc/{headless.pid}/stat").read_text().split()[2] == "Z")
        assert process.liveness() == "alive"
        headless.send_signal(signal.SIGSTOP)
        eventually(lambda: process.liveness() == "paused")
    finally:
        headless.kill()
        headless.communicate()


def test_a_stopped_process_and_since_when() -> None:
    with child() as other:
        process = process_of(other)
        # It has threads, one of which ran later than the main one.
        other.run("import threading; threading.Thread(target=lambda: [None for _ in range(10**6)]).start()")
        before = time.time()
        os.kill(other.pid, signal.SIGSTOP)
        eventually(lambda: process.liveness() == "paused")
        stopped = time.time()
        time.sleep(1.5)
        since = process.paused_since()
        assert since is not None
        assert before - 1 < since < stopped + 1
        os.kill(other.pid, signal.SIGCONT)
        eventually(lambda: process.liveness() == "alive")
        assert process.paused_since() is None


def test_a_kernel_that_does_not_say_since_when() -> None:
    with child() as other:
        process = process_of(other)
        os.kill(other.pid, signal.SIGSTOP)
        eventually(lambda: process.liveness() == "paused")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "read_text", lambda *_: "no such line\n")
            assert process.paused_since() is None


def test_another_boot_or_pid_namespace_is_unknown() -> None:
    me = Process.me()
    for other in (replace(me, boot="another"), replace(me, pid_ns=1), replace(me, start=0)):
        assert not other.visible
        assert other.liveness() == "unknown"
        assert other.paused_since() is None
    assert replace(me, net_ns=1).liveness() == "alive"


def test_another_network_namespace_is_the_same_process() -> None:
    me = Process.me()
    assert me.same(replace(me, net_ns=1))
    assert not me.same(replace(me, start=1))
    assert not me.same(replace(me, pid=1))


@pytest.mark.skipif(not may("unshare", "-rpf"), reason="this user may make no pid namespace")
@pytest.mark.parametrize("options", ["-rpf", "-rpfm"])
def test_a_real_pid_namespace_sees_nothing_of_this_one(options: str) -> None:
    """Also where /proc is still the outer one, which has other processes under the same pids."""
    mount = ("--mount-proc",) if "m" in options else ()
    me = Process.me()
    with child(["unshare", options.replace("m", ""), *mount]) as inside:
        assert inside.pid == 1
        process = process_of(inside)
        assert process.pid_ns != me.pid_ns
        assert process.liveness() == "unknown"
        assert (
            inside.ask(f"Process({me.pid}, {me.start}, {me.boot!r}, {me.pid_ns}, {me.net_ns}).liveness()") == "unknown"
        )
        # Itself it sees if /proc is its own; the outer one has somebody else under pid 1.
        assert inside.ask("Process.me().liveness()") == ("alive" if mount else "unknown")


def test_a_forked_child_is_another_process() -> None:
    Process.me()
    found, start, liveness = forked(
        lambda: f"{Process.me().pid} {Process.me().start} {Process.me().liveness()}"
    ).split()
    assert int(found) != os.getpid()
    assert int(start) >= Process.me().start
    assert liveness == "alive"


@pytest.mark.skipif(not may("unshare", "-rn"), reason="this user may make no network namespace")
def test_a_thread_that_moved_to_another_network_is_told_by_its_own() -> None:
    found: list[int] = []

    def move() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0:
            found.append(Process.me().net_ns)

    before = Process.me().net_ns
    thread = threading.Thread(target=move)
    thread.start()
    thread.join(WAIT)
    if not found:
        pytest.skip("it takes CAP_SYS_ADMIN for a single thread")
    assert found != [before]
    assert Process.me().net_ns == before


def test_without_proc_nothing_is_known_and_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankbind.runtime import process

    me = Process.me()
    monkeypatch.setattr(process, "_stat", lambda _: None)
    monkeypatch.setattr(process, "_inode", lambda _: 0)
    process._self.cache_clear()
    try:
        blind = Process.me()
        assert (blind.pid, blind.start, blind.pid_ns, blind.net_ns) == (os.getpid(), 0, 0, 0)
        assert blind.liveness() == me.liveness() == "unknown"
    finally:
        process._self.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-c", "CODE", "--password", "hunter2"], "{python} -c"),
        (["-u", "-X", "dev", "-W", "ignore", "SCRIPT", "hunter2", "--api-key=hunter2"], "{python} SCRIPT"),
        (["-m", "a.module", "hunter2", "--token", "hunter2"], "{python} -m a.module"),
        (["SCRIPT", "--kv", "hunter2"], "{python} SCRIPT"),
        (["SCRIPT"], "{python} SCRIPT"),
    ],
)
def test_no_argument_is_told(arguments: list[str], told: str) -> None:
    words = [sys.executable, *arguments]
    found = process._told.__wrapped__("\0".join(words).encode() + b"\0")
    assert found == told.format(python=sys.executable)
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("command_line", "told"),
    [
        (b"sglang::scheduler_TP0" + b"\0" * 30, "sglang::scheduler_TP0"),
        (b"python serve.py --password hunter2\0", "python serve.py"),
        (b"/usr/bin/router\0hunter2\0", "/usr/bin/router"),
        (b"", ""),
        (b"\xff\xfe\n\tx\0", "\ufffd\ufffd x"),
        (b"x" * 500, "x" * 160),
    ],
)
def test_titles_and_programs_that_are_not_python(command_line: bytes, told: str) -> None:
    assert process._told.__wrapped__(command_line) == told


def test_one_that_is_gone_runs_nothing() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        eventually(lambda: program(other.pid) == "sleep")  # the command line appears a little after the program does
        other.kill()
    assert program(other.pid) == ""
