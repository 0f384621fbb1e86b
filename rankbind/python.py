"""Python code on disk: where a package stands and which files a folder has. Nothing of it is imported or run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


def locate(package: str) -> Path | None:
    """Where a package or module stands on the import path: its folder, or its file. None where there is none."""
    parts = package.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    where: list[str] = [str(Path.cwd()), *sys.path]
    spec = None
    for index in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: index + 1]), where)
        if spec is None:
            return _editable(package) if index == 0 else None
        where = list(spec.submodule_search_locations or ())
    return _place(spec)


def _editable(package: str) -> Path | None:
    # Packages installed in place are found by finders of their own; asking for a top-level name imports nothing.
    if "." in package:
        return None
    from importlib.util import find_spec

    try:
        return _place(find_spec(package))
    except (ImportError, ValueError):
        return None


def _place(spec: Any) -> Path | None:
    if spec is None:
        return None
    for location in spec.submodule_search_locations or ():
        return Path(location)
    return Path(spec.origin) if spec.origin and spec.has_location else None


def files(
    folder: Path,
    *,
    excluded: Callable[[str], bool] = lambda path: False,
    failed: Callable[[OSError], object] = lambda error: None,
) -> Iterator[Path]:
    """The ``.py`` files below `folder`, whatever they are, in order: those of a folder before those of its folders.

    Folders that hold other people's code or none are left out (see `skips`), and links to folders are not followed.

    Args:
        excluded: files and folders to leave out, by their paths.
        failed: told of a folder that cannot be read.
    """
    waiting = [os.fspath(folder)]
    while waiting:
        here = waiting.pop()
        try:
            with os.scandir(here) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            failed(error)
            continue
        below = []
        for entry in entries:
            if _is_folder(entry):
                if not skips(entry.name) and not excluded(entry.path) and not _is_environment(entry.path):
                    below.append(entry.path)
            elif entry.name.endswith(".py") and not _leads_to_folder(entry) and not excluded(entry.path):
                yield Path(entry.path)
        waiting += reversed(below)


def skips(name: str) -> bool:
    """Whether a folder of this name is left out of a walk, unless it was named itself."""
    return name in _SKIPPED or name.startswith(".")


def shown(path: Path) -> str:
    """`path` as a user would write it: relative where it is below the working directory."""
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:
        return False


def _is_environment(folder: str) -> bool:
    return os.path.lexists(f"{folder}/pyvenv.cfg")
