"""The lock under every claim: who has it, who does not any more, and what happens to its file."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from rankbind.runtime import lock
from rankbind.runtime.lock import Lock, take

from ..support.child import WAIT, child, forked

TAKE = "from rankbind.runtime.lock import take; held = take({!r})"


def taken(path: Path, patience: float = 0.0) -> Lock:
    found = take(str(path), patience)
    assert found is not None
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.lock"


def test_one_at_a_time(path: Path) -> None:
    first = taken(path)
    assert (first.held, first.intact) == (True, True)
    assert take(str(path)) is None
    with child() as other:
        assert other.ask("held is None", TAKE.format(str(path)))
        first.release()
        first.release()
        assert not first.held
        assert other.ask("held.held", TAKE.format(str(path)))
        assert take(str(path)) is None
        other.kill()
    taken(path).release()


def test_filelock_and_it_respect_each_other(path: Path) -> None:
    """`rankbind release` and whoever looks into the directory with filelock."""
    theirs = FileLock(path)
    with theirs.acquire(timeout=0):
        assert take(str(path)) is None
    ours = taken(path)
    with pytest.raises(Timeout):
        theirs.acquire(timeout=0)
    ours.release()
    theirs.acquire(timeout=0)
    theirs.release()
    assert path.exists()


def test_patience_ends_when_the_holder_does_and_not_later(path: Path) -> None:
    with child() as holder:
        holder.run(TAKE.format(str(path)))
        threading.Timer(0.2, holder.process.kill).start()
        taken(path, WAIT).release()
    first = taken(path)
    began = time.monotonic()
    assert take(str(path), 0.05) is None
    assert 0.05 <= time.monotonic() - began < WAIT
    first.release()


def test_a_forked_child_neither_has_it_nor_keeps_it(path: Path) -> None:
    """flock belongs to the open file: a child that kept its copy would keep the lock of its dead parent."""
    with child() as parent:
        parent.run(TAKE.format(str(path)))
        offspring = parent.ask(
            "pid",
            """
import time
out, into = os.pipe()
pid = os.fork()
if not pid:
    os.write(into, f"{held.held}".encode())
    os.close(into)
    held.release()
    time.sleep(1000)
""",
        )
        try:
            assert parent.ask("os.read(out, 99).decode()") == "False"
            # What the child did to it is nothing.
            assert parent.ask("held.held and held.intact")
            assert take(str(path)) is None
            parent.kill()
            taken(path).release()
            os.kill(offspring, 0)
        finally:
            os.kill(offspring, signal.SIGKILL)


def test_threads_that_fork_and_threads_that_lock(path: Path) -> None:
    """No child comes between the opening of a descriptor and the note that there is one."""
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            found = take(str(path))
            if found is not None:
                found.release()

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            assert "kv.lock" not in forked(_open_files)
    finally:
        ended.set()
        for thread in threads:
            thread.join(WAIT)


def _open_files() -> list[str]:
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(each.readlink()))
    return sorted(found)


def test_an_executed_program_inherits_nothing(path: Path) -> None:
    first = taken(path)
    program = "import os; print([os.path.realpath(f'/proc/self/fd/{d}') for d in os.listdir('/proc/self/fd')])"
    for close in (True, False):
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, close_fds=close)
        assert str(path) not in found.stdout
        assert found.returncode == 0
    first.release()


def test_a_copy_that_a_library_forked_past_python_does_not_keep_it_after_release(path: Path) -> None:
    first = taken(path)
    copy = os.dup(first._descriptor)
    first.release()
    second = taken(path)
    os.close(copy)
    assert second.held
    assert take(str(path)) is None
    second.release()


def test_racing_threads_get_it_one_at_a_time(path: Path) -> None:
    inside, most, times = 0, 0, 0
    guard = threading.Lock()

    def race() -> None:
        nonlocal inside, most, times
        for _ in range(20):
            found = taken(path, WAIT)
            with guard:
                inside, times = inside + 1, times + 1
                most = max(most, inside)
            with guard:
                inside -= 1
            found.release()

    threads = [threading.Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert (most, times) == (1, 120)


# ---- its file


def test_the_file_stays(path: Path) -> None:
    first = taken(path)
    inode = path.stat().st_ino
    first.release()
    assert path.stat().st_ino == inode
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("anew", [False, True])
def test_a_file_that_was_unlinked_under_its_holder_is_noticed(path: Path, anew: bool) -> None:
    """Nothing keeps a second holder from the new file: that it happened is all that can be said."""
    first = taken(path)
    path.unlink()
    second = taken(path) if anew else None
    assert first.held
    assert not first.intact
    first.release()
    if second is not None:
        assert second.intact
        assert take(str(path)) is None
        second.release()


def test_a_file_that_was_unlinked_between_opening_and_locking(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    original, calls = filelock.lock_descriptor, 0

    def unlinked(descriptor: int, *, blocking: bool) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            path.unlink()
        return original(descriptor, blocking=blocking)

    monkeypatch.setattr(filelock, "lock_descriptor", unlinked)
    first = taken(path)
    assert (calls, first.intact) == (2, True)
    first.release()


@pytest.mark.parametrize("what", ["link", "pipe", "directory", "no folder"])
def test_something_else_in_its_place(path: Path, what: str) -> None:
    makers: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to("/etc/passwd"),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "no folder": path.parent.rmdir,
    }
    makers[what]()
    before = len(_open_files())
    with pytest.raises(OSError, match=r"links|regular|directory"):
        take(str(path))
    assert len(_open_files()) == before


def test_no_flock_is_an_error_and_no_file_that_merely_exists(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    before, others = len(_open_files()), set(lock._locks)
    for _ in range(2):
        with pytest.raises(OSError, match="Function not implemented"):
            take(str(path))
    assert len(_open_files()) == before
    assert set(lock._locks) == others


def test_its_time_of_change_is_what_was_stamped(path: Path) -> None:
    moment = 1_700_000_000_123_456_000
    first = taken(path)
    first.stamp(moment)
    first.release()
    second = taken(path)
    assert second.changed_ns == moment
    second.release()


def test_one_that_nobody_got_is_let_go(path: Path) -> None:
    """Ctrl-C may come between the return of `take` and whatever keeps what it returns."""
    assert taken(path).held
    taken(path).release()


def test_at_the_end_of_the_interpreter_it_is_kept(path: Path) -> None:
    """What it protects may still be being torn down: the kernel lets go when all is over."""
    script = f"""
        import builtins, fcntl, os
        from rankbind.runtime.lock import take
        held = take({str(path)!r})
        class Last:
            def __del__(self, other=os.open({str(path)!r}, os.O_RDWR), flock=fcntl.flock, write=os.write):
                try:
                    flock(other, {fcntl.LOCK_EX | fcntl.LOCK_NB})
                except BlockingIOError:
                    write(1, b"held")
        builtins.last = Last()  # torn down after the names of all modules
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=WAIT, check=True
    )
    assert (found.stdout, found.stderr) == ("held", "")
