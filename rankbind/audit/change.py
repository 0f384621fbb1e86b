"""What the sources were at another revision, so that only what a change introduced is shown.

They are read out of git's objects: nothing is checked out, and nothing of the repository runs.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankbind import python
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Place, Source, excluded, named, resolve, undecodable
from rankbind.errors import RankbindError
from rankbind.finding import Finding

# A hook is run with these, for its own repository and its own index.
_FOREIGN: Final = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
)


_SUBMODULE: Final = "160000"
_LINK: Final = "120000"
_FILES: Final = ("100644", "100755")


class ChangeError(RankbindError):
    """There is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class _Entry:
    mode: str
    blob: str


def before(
    revision: str, paths: Sequence[Path], settings: Settings, now: Sequence[Source]
) -> tuple[list[Source], list[Finding]]:
    """What `collect` would have given for `paths` at `revision`; `now` are the sources of the work tree.

    Of a submodule only what it is now is known.

    Raises:
        ChangeError: there is no such revision, no repository, no git, or some path is not in the repository of the
            first.
    """
    roots = [(path, os.path.realpath(path)) for path in map(resolve, paths) if path is not None]
    if not roots:
        return [], []
    repository = _repository(roots[0][1])
    for path, real in roots:
        if real != repository and not real.startswith(f"{repository}/"):
            raise ChangeError(f"{path} is outside the repository at {repository}")
    entries = _tree(repository, revision)
    found = _found(repository, entries, roots, excluded(settings))
    data = _contents(repository, {blob for _, blob in found}, now)
    findings, read = [], []
    for place, blob in found:
        wrong = undecodable(place.name, data[blob])
        if wrong is None:
            read.append((place, data[blob]))
        else:
            findings.append(wrong)
    submodules = tuple(f"{repository}/{name}/" for name, entry in entries.items() if entry.mode == _SUBMODULE)
    for source in now if submodules else ():
        file = os.path.realpath(source.name)
        if file.startswith(submodules):
            read.append((Place(source.name, file, os.path.dirname(file)), source.data))  # noqa: PTH120
    read.sort(key=lambda each: each[0].name)
    folders = {posixpath.dirname(name) for name in entries}

    def exists(path: str) -> bool:
        if not path.startswith(f"{repository}/"):
            return os.path.lexists(path)
        name = path[len(repository) + 1 :]
        return name in entries or name in folders or name == ".git"

    return named(read, exists), sorted(findings, key=lambda finding: finding.labels[0].span)


def _found(
    repository: str,
    entries: Mapping[str, _Entry],
    roots: Sequence[tuple[Path, str]],
    left_out: Callable[[str], bool],
) -> list[tuple[Place, str]]:
    """The files that would be audited, and the object that each is in; those that links lead to under their names."""
    found: dict[str, tuple[Place, str]] = {}
    links: dict[str, Place] = {}
    for path, real in roots:
        prefix = real[len(repository) + 1 :]
        if prefix in entries and entries[prefix].mode in _FILES:
            found.setdefault(prefix, (Place(path.as_posix(), real, posixpath.dirname(real)), entries[prefix].blob))
            continue
        below = f"{prefix}/" if prefix else ""
        for name, entry in entries.items():
            if not (name.startswith(below) and name.endswith(".py")):
                continue
            inner = name[len(below) :]
            if _left_out(inner, real, left_out):
                continue
            place = Place((path / inner).as_posix(), f"{repository}/{name}", real)
            if entry.mode in _FILES:
                found.setdefault(name, (place, entry.blob))
            elif entry.mode == _LINK:
                links[name] = place
    targets = _contents(repository, {entries[name].blob for name in links}, ())
    for name, place in links.items():
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), os.fsdecode(targets[entries[name].blob])))
        if target in entries and entries[target].mode in _FILES:
            found.setdefault(target, (place, entries[target].blob))
    return [*found.values()]


def _left_out(inner: str, root: str, left_out: Callable[[str], bool]) -> bool:
    """Whether a walk from `root` would not have come to `inner`."""
    *folders, _ = inner.split("/")
    here = root
    for folder in folders:
        here = f"{here}/{folder}"
        if python.skips(folder) or left_out(here):
            return True
    return left_out(f"{root}/{inner}")


def _repository(path: str) -> str:
    folder = path if os.path.isdir(path) else os.path.dirname(path)  # noqa: PTH112, PTH120
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode or not done.stdout:
        told = _told(done)
        what = f"{folder} is in no git repository" if "not a git repository" in told else f"git: {told}"
        raise ChangeError(what)
    return os.path.realpath(os.fsdecode(done.stdout.rstrip(b"\n")))


def _tree(repository: str, revision: str) -> dict[str, _Entry]:
    """Every file of the revision, by its path."""
    done = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{tree}}")
    if done.returncode:
        if revision == "HEAD" and not _git(repository, "symbolic-ref", "--quiet", "HEAD").returncode:
            return {}  # before the first commit
        raise ChangeError(f"there is no revision {revision} in {repository}")
    done = _git(repository, "ls-tree", "-r", "-z", "--full-tree", done.stdout.decode().strip())
    if done.returncode:
        raise ChangeError(f"git: {_told(done)}")
    entries = {}
    for line in done.stdout.split(b"\0"):
        if line:
            about, _, name = line.partition(b"\t")
            mode, _, blob = about.decode().split(" ")
            entries[os.fsdecode(name)] = _Entry(mode, blob)
    return entries


def _contents(repository: str, blobs: set[str], now: Sequence[Source]) -> dict[str, bytes]:
    """What is in `blobs`: most of it is what the work tree has, and need not be unpacked."""
    found = {blob: source.data for source in now if (blob := _name(source.data)) in blobs}
    wanted = sorted(blobs - set(found))
    if not wanted:
        return found
    done = _git(repository, "cat-file", "--batch", text="".join(f"{blob}\n" for blob in wanted).encode())
    if done.returncode:
        raise ChangeError(f"git: {_told(done)}")
    at = 0
    for blob in wanted:
        end = done.stdout.find(b"\n", at)
        head = done.stdout[at:end].split(b" ")
        if end < 0 or len(head) != 3 or head[1] != b"blob" or not head[2].isdigit():
            raise ChangeError(f"git has not got {blob} (a shallow or partial clone?)")
        size = int(head[2])
        found[blob] = done.stdout[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return found


def _name(data: bytes) -> str:
    """What git calls these bytes, in a repository that uses SHA-1."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _git(folder: str, *arguments: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(
            ["git", "-C", folder, *arguments], input=text, capture_output=True, env=environment, check=False
        )
    except FileNotFoundError:
        raise ChangeError("git is not installed, or not on PATH") from None
    except (OSError, ValueError) as error:
        raise ChangeError(f"git cannot be run: {error}") from None


def _told(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else f"exit status {done.returncode}"
