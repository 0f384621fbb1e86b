"""The runtime directory: where it is, and everything that makes it unsafe or useless."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankbind.errors import DirectoryError
from rankbind.runtime import directory
from rankbind.runtime.directory import VARIABLE, check, folder, mounted, runtime_directory

from ..support.child import WAIT, child, forked, may

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be somebody else")


@pytest.fixture
def safe() -> Iterator[Path]:
    """A directory whose way there nobody else can write. (pytest's own may be below a TMPDIR of whoever runs it.)"""
    found = Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def as_user(user: int, ask: Callable[[], object]) -> str:
    """What `ask` comes to for another user, in a forked process."""

    def ask_as_user() -> object:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        return ask()

    return forked(ask_as_user)


def refused(path: Path) -> str:
    with pytest.raises(DirectoryError) as caught:
        check(path, "as given")
    message = str(caught.value)
    assert message.startswith(f"the runtime directory {path} (as given) cannot be used: ")
    assert message.endswith(f". Set {VARIABLE} to a directory on a local file system that only this user can write")
    return message.removeprefix(f"the runtime directory {path} (as given) cannot be used: ").rpartition(". Set ")[0]


# ---- where it is


def test_the_variable_then_the_session_then_the_user(safe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(safe / "of a batch job"))
    assert directory.chosen() == (
        Path(f"/tmp/rankbind-{os.geteuid()}"),
        "as neither RANKBIND_DIR nor XDG_RUNTIME_DIR names one",
    )
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(safe))
    assert runtime_directory() == safe / "rankbind"
    monkeypatch.setenv(VARIABLE, str(safe / "ours"))
    assert runtime_directory() == safe / "ours"
    for made in (safe / "rankbind", safe / "ours"):
        assert made.stat().st_mode & 0o777 == 0o700


def test_a_session_directory_that_is_no_longer_there_is_passed_over(
    safe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for odd in (str(safe / "gone"), "relative", "", "/dev/null"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", odd)
        assert directory.chosen()[0] == Path(f"/tmp/rankbind-{os.geteuid()}")


@as_root
def test_a_session_directory_of_another_user_is_passed_over(safe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As su leaves it."""
    os.chown(safe, NOBODY, NOBODY)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(safe))
    assert directory.chosen()[0] == Path("/tmp/rankbind-0")
    assert as_user(NOBODY, runtime_directory) == f"{safe}/rankbind"


@pytest.mark.parametrize("named", ["", "run", "./run", "~/run"])
def test_a_path_that_each_process_would_find_elsewhere(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, named)
    with pytest.raises(DirectoryError, match="is not an absolute path: every process has to find the same one"):
        runtime_directory()


def test_the_message_names_what_led_there(safe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(safe / "a" / "b"))
    with pytest.raises(DirectoryError) as caught:
        runtime_directory()
    assert str(caught.value) == (
        f"the runtime directory {safe}/a/b (from RANKBIND_DIR) cannot be used: there is no {safe}/a. "
        "Set RANKBIND_DIR to a directory on a local file system that only this user can write"
    )


def test_a_umask_that_gives_everything_away(safe: Path) -> None:
    before = os.umask(0)
    try:
        made = folder("addresses", "7", "tcp-1", within=safe / "new")
    finally:
        os.umask(before)
    for each in (made, made.parent, made.parent.parent, safe / "new"):
        assert each.stat().st_mode & 0o777 == 0o700


def test_many_begin_at_once(safe: Path) -> None:
    failures: list[Exception] = []
    start = threading.Barrier(8)

    def begin() -> None:
        start.wait(WAIT)
        try:
            folder("a", "b", within=safe / "at once")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failures
    with child(env={VARIABLE: str(safe / "at once")}) as other:
        other.run("claim('kv')")


# ---- what is refused


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_others_can_write_it(safe: Path, mode: int) -> None:
    safe.chmod(mode)
    told = f"name a folder of its own, such as {safe}/rankbind-{os.geteuid()}" if mode & 0o1000 else f"chmod 700 {safe}"
    assert refused(safe) == f"other users can write it (mode {mode:04o}): {told}"
    safe.chmod(0o755)
    check(safe, "as given")


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_others_can_write_what_is_above_it(safe: Path, mode: int) -> None:
    (safe / "open").mkdir()
    (safe / "open").chmod(mode)
    told = f"other users can write {safe}/open (mode {mode:04o}), and so put another directory in its place"
    assert refused(safe / "open" / "ours") == told
    assert not (safe / "open" / "ours").exists()
    (safe / "open").chmod(0o1777)
    check(safe / "open" / "ours", "as given")


def test_a_link(safe: Path) -> None:
    (safe / "real").mkdir(mode=0o700)
    (safe / "link").symlink_to(safe / "real")
    (safe / "broken").symlink_to(safe / "nowhere")
    assert refused(safe / "link") == f"it is a link (to {safe}/real), which may be turned to another place"
    assert refused(safe / "broken") == "it is a link that leads nowhere"


def test_links_above_it_are_followed_to_where_they_lead(safe: Path) -> None:
    (safe / "open").mkdir()
    (safe / "open").chmod(0o777)
    (safe / "real").mkdir(mode=0o700)
    (safe / "to-open").symlink_to("open")
    (safe / "round").symlink_to("../" + safe.name + "/./to-real")
    (safe / "to-real").symlink_to(safe / "real")
    check(safe / "round" / "ours", "as given")
    check(safe / "round" / ".." / "real", "as given")
    assert f"other users can write {safe}/open" in refused(safe / "to-open" / "ours")
    (safe / "one").symlink_to("two")
    (safe / "two").symlink_to("one")
    assert "lead in a circle" in refused(safe / "one" / "ours")


@as_root
def test_a_link_that_another_user_can_turn(safe: Path) -> None:
    (safe / "real").mkdir()
    (safe / "sticky").mkdir()
    (safe / "sticky").chmod(0o1777)
    (safe / "sticky" / "link").symlink_to(safe / "real")
    check(safe / "sticky" / "link" / "ours", "as given")
    os.chown(safe / "sticky" / "link", NOBODY, NOBODY, follow_symlinks=False)
    told = refused(safe / "sticky" / "link" / "ours")
    assert told == f"{safe}/sticky/link is a link of user {NOBODY}, who can turn it to another place"


@as_root
def test_another_owner(safe: Path) -> None:
    (safe / "theirs").mkdir(mode=0o700)
    os.chown(safe / "theirs", NOBODY, NOBODY)
    assert refused(safe / "theirs") == f"it belongs to user {NOBODY}, and this process is user 0: run it as that one"
    told = f"{safe}/theirs belongs to user {NOBODY}, who can put another directory in its place"
    assert refused(safe / "theirs" / "ours") == told
    safe.chmod(0o755)
    told = as_user(NOBODY, lambda: check(safe, "as given"))
    assert f"it belongs to user 0, and this process is user {NOBODY}" in told


@as_root
def test_a_directory_that_may_not_be_entered_or_made(safe: Path) -> None:
    (safe / "in").mkdir()
    told = as_user(NOBODY, lambda: check(safe / "in" / "ours", "as given"))
    assert told.startswith(f"DirectoryError: the runtime directory {safe}/in/ours (as given) cannot be used: ")
    assert f"this process may not enter {safe}" in told
    safe.chmod(0o755)
    told = as_user(NOBODY, lambda: check(safe / "in" / "ours", "as given"))
    assert "it cannot be made: Permission denied" in told


def test_a_file_in_its_place_and_a_name_that_is_too_long(safe: Path) -> None:
    (safe / "file").write_text("")
    assert refused(safe / "file") == "it is not a directory"
    assert refused(safe / "file" / "ours") == f"{safe}/file is not a directory"
    assert refused(safe / ("x" * 300)) == "it cannot be made: File name too long"


@pytest.mark.skipif(not may("unshare", "-rm"), reason="this user may mount nothing")
def test_a_read_only_file_system(safe: Path) -> None:
    script = f"""
from pathlib import Path
from rankbind.runtime import directory
for path in ("{safe}", "{safe}/new"):
    try: directory.check(Path(path), "as given")
    except directory.DirectoryError as error: print(str(error).split("be used: ")[1].split(". Set")[0])
"""
    mount = f'mount -t tmpfs -o mode=700 none "{safe}" && mount -o remount,ro "{safe}" && exec "$0" -c "$1"'
    command = ["unshare", "-rm", "sh", "-c", mount, sys.executable, script]
    found = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=True).stdout
    assert found.splitlines() == [
        "this process cannot write it (is it mounted read-only?)",
        "it cannot be made: Read-only file system",
    ]


@as_root
@pytest.mark.skipif(not may("unshare", "-U"), reason="this user may make no user namespace")
def test_a_user_namespace_in_which_the_host_belongs_to_nobody(safe: Path) -> None:
    """As for a rehearsal in network namespaces by a user who is not root: / and /tmp have no owner there."""
    user, libc = 4242, ctypes.CDLL(None)
    os.chown(safe, user, user)

    def ask() -> str:
        libc.prctl(4, 1)  # PR_SET_DUMPABLE: its own uid_map belongs to it again
        assert libc.unshare(0x10000000) == 0
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        return f"{os.geteuid()} {Path('/').stat().st_uid} {runtime_directory(safe / 'ours')}"

    assert as_user(user, ask) == f"0 {NOBODY} {safe}/ours"


# ---- locks


@pytest.mark.parametrize(
    ("number", "told"), [(errno.ENOSYS, "Function not implemented"), (errno.ENOLCK, "No locks available")]
)
def test_a_file_system_without_locks(safe: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: str) -> None:
    def missing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", missing)
    monkeypatch.setattr(directory, "_filesystem", lambda _: "oddfs")
    assert refused(safe) == f"its file system (oddfs) has no locks that work: {told}"


def test_a_file_system_that_gives_one_lock_to_two(safe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert "gives one lock to two" in refused(safe)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "fuse.sshfs", "fuse.glusterfs"])
def test_a_network_file_system(safe: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(directory, "_filesystem", lambda _: kind)
    assert refused(safe) == f"it is on a network file system ({kind}), where a lock may hang or lock nothing"


@pytest.mark.parametrize("kind", ["", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuse.lxcfs", "9p", "virtiofs"])
def test_a_local_file_system(safe: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(directory, "_filesystem", lambda _: kind)
    check(safe, "as given")


def test_the_type_of_a_mount_is_read_by_its_id() -> None:
    table = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
91 27 0:99 / /home/a\\040b rw,relatime shared:9 - nfs4 server:/a\\040-\\040b rw,vers=4.2
92 27 0:98 / /x rw -
927 27 0:97 / /y
"""
    found = [mounted(table, mount) for mount in (22, 27, 91, 92, 927, 2, 1)]
    assert found == ["proc", "ext4", "nfs4", "", "", "", ""]
    assert mounted("", 1) == ""


def test_the_type_of_a_real_mount() -> None:
    descriptor = os.open("/proc", os.O_RDONLY)
    try:
        assert directory._filesystem(descriptor) == "proc"
    finally:
        os.close(descriptor)
    assert directory._filesystem(-1) == ""


def test_a_cleaner_that_has_it_locked_at_this_instant(safe: Path) -> None:
    descriptor = os.open(safe, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        check(safe, "as given")
    finally:
        os.close(descriptor)


CLEANER = shutil.which("systemd-tmpfiles")


@as_root
@pytest.mark.skipif(CLEANER is None, reason="there is no systemd-tmpfiles")
def test_systemd_tmpfiles_leaves_everything_alone_while_a_process_uses_it(safe: Path) -> None:
    """It skips what somebody has locked (tmpfiles.d(5)); the records of a server are older than ten days at last."""
    place = safe / "cleaned" / "rankbind"
    place.parent.mkdir(mode=0o755)
    rules = safe / "rules.conf"
    rules.write_text(f"d {place.parent} 0755 root root 0\n")

    def clean() -> None:
        subprocess.run([str(CLEANER), "--clean", str(rules)], check=False, capture_output=True, timeout=WAIT)

    with child(env={VARIABLE: str(place)}) as holder:
        holder.run("held = claim('kv', paths=['/x'])")
        before = sorted(place.rglob("*"))
        clean()
        assert sorted(place.rglob("*")) == before
        assert holder.ask("held.held")
        holder.kill()
    clean()
    assert not [each for each in place.rglob("*") if each.is_file()], "the cleaner cleans, once nobody uses it"


# ---- it changes while the process runs


def test_one_that_was_removed_is_made_and_looked_at_anew(safe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(safe / "ours"))
    assert folder("claims").is_dir()
    shutil.rmtree(safe / "ours")
    assert folder("claims").is_dir()
    assert (safe / "ours").stat().st_mode & 0o777 == 0o700
    shutil.rmtree(safe / "ours")
    (safe / "ours").mkdir()
    (safe / "ours").chmod(0o777)
    with pytest.raises(DirectoryError, match="other users can write it"):
        folder("claims")


def test_one_that_was_opened_to_others_since(safe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(safe))
    runtime_directory()
    safe.chmod(0o777)
    with pytest.raises(DirectoryError, match="other users can write it"):
        runtime_directory()


def test_a_folder_in_it_that_cannot_be_made(safe: Path) -> None:
    (safe / "claims").write_text("")
    with pytest.raises(DirectoryError, match=r"cannot make .*claims: File exists"):
        folder("claims", within=safe)


def test_where_no_file_can_be_opened_nothing_is_left_open(safe: Path) -> None:
    script = f"""
import os, resource
from pathlib import Path
from rankbind.runtime.directory import check
check(Path({str(safe)!r}), "warm")
before = len(os.listdir("/proc/self/fd"))
told = set()
for limit in range(before - 1, before + 2):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 4096))
    try:
        check(Path({str(safe)!r}), "as given")
    except Exception as error:
        told.add(str(error))
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
print(len(os.listdir("/proc/self/fd")) - before, *told)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT, check=True)
    left, told = found.stdout.split(maxsplit=1)
    assert int(left) == 0
    assert "cannot be used: it cannot be looked at: Too many open files" in told
    assert "locks" not in told
