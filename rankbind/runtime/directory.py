"""Where on a host the locks and records of claims are: one directory for each user, which nobody else can write.

``RANKBIND_DIR`` names it; else it is ``rankbind`` in ``XDG_RUNTIME_DIR``, else ``/tmp/rankbind-UID``. Not in
``TMPDIR``: batch systems give each process one of its own, and claims in two places see nothing of each other.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from rankbind.errors import DirectoryError

VARIABLE = "RANKBIND_DIR"

_NETWORK_FILESYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "lustre",
    "ceph",
    "glusterfs",
    "gpfs",
    "beegfs",
    "ncpfs",
    *(f"fuse.{kind}" for kind in ("glusterfs", "ceph", "sshfs", "s3fs", "gcsfuse", "rclone", "juicefs", "mount-s3")),
)
"""Beginnings of the names of those whose locks may hang, or lock nothing: flock(2), "NFS details"."""
_MOST_LINKS = 40
"""As many as the kernel follows in one path (path_resolution(7))."""

_checked: dict[Path, tuple[int, ...]] = {}
"""What each directory was when it was found safe."""
_kept: dict[Path, int] = {}
"""A descriptor of each, with a shared lock on it as long as this process lives: systemd-tmpfiles then cleans away
nothing that is in it (tmpfiles.d(5), "Age"). Without, it would take the records of a server that runs for ten days."""


def runtime_directory(given: Path | None = None) -> Path:
    """The directory, made where it did not exist, and found safe.

    Args:
        given: instead of what the environment says.

    Raises:
        DirectoryError: it cannot be made or written, another user could write it, it is a link, or its file system has
            no locks that work. The message names the variable that led there.
    """
    path, said = chosen() if given is None else (given, "as given")
    # Somebody may have removed it since, and put another in its place.
    if _checked.get(path) != _seen(path):
        check(path, said)
        _checked[path] = _seen(path)
    return path


def chosen() -> tuple[Path, str]:
    """The directory that the environment says, and what led there, for a person. It is neither made nor looked at.

    Raises:
        DirectoryError: ``RANKBIND_DIR`` is no absolute path.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        if not named.startswith("/"):
            raise DirectoryError(
                f"{VARIABLE}={named!r} is not an absolute path: every process has to find the same one"
            )
        return Path(named), f"from {VARIABLE}"
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    # It survives su and sudo, and then names the directory of another user, or none.
    if session.startswith("/") and _belongs_to_us(session):
        return Path(session, "rankbind"), "from XDG_RUNTIME_DIR"
    return Path(f"/tmp/rankbind-{os.geteuid()}"), f"as neither {VARIABLE} nor XDG_RUNTIME_DIR names one"


def folder(*names: str, within: Path | None = None) -> Path:
    """A folder of the runtime directory, or of `within`, made where it did not exist. Raises as `runtime_directory`."""
    path = runtime_directory(within)
    below = path.joinpath(*names)
    if not os.path.isdir(below):  # noqa: PTH112  # for every claim
        for name in names:
            path = path / name
            try:
                path.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise DirectoryError(f"cannot make {path}: {error.strerror}. {_INSTEAD}") from None
    return below


def check(path: Path, said: str) -> None:
    """Make `path` where it does not exist, and say no to one that is not safe.

    Args:
        said: what led there, for the error.
    """
    try:
        problem = _way_problem(path) or _problem(path)
    except OSError as error:
        problem = f"it cannot be looked at: {error.strerror}"
    if problem is not None:
        raise DirectoryError(f"the runtime directory {path} ({said}) cannot be used: {problem}. {_INSTEAD}")


_INSTEAD = f"Set {VARIABLE} to a directory on a local file system that only this user can write"


def _belongs_to_us(path: str) -> bool:
    try:
        found = Path(path).stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _seen(path: Path) -> tuple[int, ...]:
    try:
        found = os.lstat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mode, found.st_uid


def _way_problem(path: Path) -> str | None:
    """What is wrong with the directories above `path`, and with the links on the way, one after the other."""
    at, rest, links = Path("/"), [*reversed(path.parent.parts[1:])], 0
    while True:
        found = at.lstat()
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return f"the links at {at} lead in a circle"
            if not _trusted(found.st_uid):
                return f"{at} is a link of user {found.st_uid}, who can turn it to another place"
            target = at.readlink()
            at = Path("/") if target.is_absolute() else at.parent
            rest += reversed(target.parts[target.is_absolute() :])
        elif not stat.S_ISDIR(found.st_mode):
            return f"{at} is not a directory"
        elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
            return (
                f"other users can write {at} (mode {stat.S_IMODE(found.st_mode):04o}), and so put another directory in "
                "its place"
            )
        elif not _trusted(found.st_uid):
            return f"{at} belongs to user {found.st_uid}, who can put another directory in its place"
        if not rest:
            return None
        part = rest.pop()
        above, at = at, at.parent if part == ".." else at / part
        if not os.path.lexists(at):
            return f"there is no {at}" if os.access(above, os.X_OK) else f"this process may not enter {above}"


def _trusted(user: int) -> bool:
    """Whether what `user` owns is safe from others: root's and our own; in a user namespace also what has no owner
    there, as the root directory of the host has not.
    """
    return user in (0, os.geteuid()) or (user == _nobody() and not _is_first_user_namespace())


def _nobody() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65534


def _is_first_user_namespace() -> bool:
    """Whether every user of the host has a number here (user_namespaces(7))."""
    try:
        return Path("/proc/self/uid_map").read_text(encoding="ascii").split() == ["0", "0", "4294967295"]
    except OSError:
        return True


def _problem(path: Path) -> str | None:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        return "it is not a directory" if not path.is_symlink() else "it is a link that leads nowhere"
    except OSError as error:
        return f"it cannot be made: {error.strerror}"
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return f"it is a link (to {path.readlink()}), which may be turned to another place"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, and this process is user {os.geteuid()}: run it as that one"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # One that is meant for all, such as /tmp, must not be closed to them.
        shared = found.st_mode & stat.S_ISVTX
        return f"other users can write it (mode {stat.S_IMODE(found.st_mode):04o}): " + (
            f"name a folder of its own, such as {path}/rankbind-{os.geteuid()}" if shared else f"chmod 700 {path}"
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        return "this process cannot write it (is it mounted read-only?)"
    return _lock_problem(path)


def _lock_problem(path: Path) -> str | None:
    """What is wrong with the locks of its file system. A shared one is kept where nothing is, see `_kept`."""
    first = second = -1
    try:
        first = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        second = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        kind = _filesystem(first) or "unknown"
        if kind.startswith(_NETWORK_FILESYSTEMS):
            return f"it is on a network file system ({kind}), where a lock may hang or lock nothing"
        try:
            # Shared first: others look at the same time, and none of them ever gets the exclusive one.
            fcntl.flock(first, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # As it should be; or a cleaner has the directory locked at this instant.
            _kept[path], first = first, _kept.get(path, -1)
            return None
        except OSError as error:
            return f"its file system ({kind}) has no locks that work: {error.strerror}"
        return f"its file system ({kind}) gives one lock to two"
    finally:
        for descriptor in (first, second):
            if descriptor >= 0:
                os.close(descriptor)


def _filesystem(descriptor: int) -> str:
    """The type of the file system that `descriptor` is on; empty if /proc does not tell."""
    try:
        mount = next(
            int(line.split()[1])
            for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
            if line.startswith("mnt_id:")
        )
        return mounted(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"), mount)
    except (OSError, ValueError, IndexError, StopIteration):
        return ""


def mounted(table: str, mount: int) -> str:
    """The type of the file system with the mount id `mount` in a /proc/PID/mountinfo (proc_pid_mountinfo(5))."""
    for line in table.splitlines():
        before, separator, after = line.partition(" - ")
        if separator and before.split()[:1] == [str(mount)]:
            return after.split()[0] if after.split() else ""
    return ""
