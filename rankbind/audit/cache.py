"""The audit of what has been audited before, by its content.

A file of the cache belongs to exactly these sources, these settings, this rankbind and this Python. It is JSON and is
believed only in the shape that we write: what else is there, or a directory that others may write, counts as nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
import sys
import tempfile
import time
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from rankbind import audit
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source
from rankbind.source import Span
from rankbind.version import __version__

_KEPT: Final = 20
_LARGEST: Final = 256 << 20
_ABANDONED: Final = 3600.0
"""Seconds after which nobody is still writing a file that has not got its name."""

_T = TypeVar("_T")


def audited(sources: Sequence[Source], settings: Settings, *, listing: bool = False) -> audit.Audit:
    """`rankbind.audit.run`, or what it said last time. What is left out of sources and findings makes no difference."""
    settings = dataclasses.replace(settings, exclude=(), ignore=())
    folder = _folder()
    if folder is None:
        return audit.run(sources, settings, listing=listing)
    file = folder / f"{_key(sources, settings, listing)}.json"
    found = _read(file)
    if found is None:
        found = audit.run(sources, settings, listing=listing)
        _write(file, found)
    return found


def replace(file: Path, data: bytes, mode: int = 0o600) -> None:
    """Have `data` in `file`, all of it or, whatever happens, what was there before. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name[:40]}.", suffix=".tmp", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            os.fchmod(descriptor, mode)
        Path(name).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _folder() -> Path | None:
    """Where the cache is, made if need be; None where there cannot be one that is ours alone."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # A relative one is to be ignored, as the specification of it says.
        folder = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "rankbind" / "audit"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except (OSError, RuntimeError, ValueError):
        return None
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    return folder


def _key(sources: Sequence[Source], settings: Settings, listing: bool) -> str:
    told = {
        "rankbind": __version__,
        "code": _own_code(),
        "python": sys.hexversion,
        "settings": [_plain(value) for value in dataclasses.astuple(settings)],
        "listing": listing,
        "sources": [(source.name, source.module, len(source.data)) for source in sources],
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for source in sources:
        digest.update(source.data)
    return digest.hexdigest()


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def _own_code() -> str:
    """What this rankbind is, so that one who changes it does not get old findings."""
    package = Path(audit.__file__).parents[1]
    digest = hashlib.sha256()
    for file in [*sorted(package.glob("*.py")), *sorted((package / "audit").rglob("*.*"))]:
        if file.suffix == ".pyc":
            continue
        with suppress(OSError):
            digest.update(b"%s\0%s\0" % (os.fsencode(file.relative_to(package)), file.read_bytes()))
    return digest.hexdigest()


def _read(file: Path) -> audit.Audit | None:
    try:
        if file.stat().st_size > _LARGEST:
            return None
        found = _audit(json.loads(file.read_bytes()))
        os.utime(file)
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    return found


def _write(file: Path, found: audit.Audit) -> None:
    try:
        data = json.dumps(_dumped(found), separators=(",", ":")).encode()
        replace(file, data)
        _tidy(file.parent)
    except (OSError, ValueError, TypeError, RecursionError):
        pass  # a full disk, or facts that are no JSON: the next run does the work again


def _tidy(folder: Path) -> None:
    ages: list[tuple[float, Path]] = []
    for file in folder.iterdir():
        with suppress(OSError):
            ages.append((file.stat().st_mtime, file))
    whole = sorted((each for each in ages if each[1].suffix == ".json"), reverse=True)
    left = [each for each in ages if each[1].suffix == ".tmp" and each[0] < time.time() - _ABANDONED]
    for _, file in [*whole[_KEPT:], *left]:
        with suppress(OSError):
            file.unlink()


def _dumped(found: audit.Audit) -> dict[str, Any]:
    """`found` as JSON has it: what is made of fields, as a list of them in their order."""
    # A name stands in thousands of spans, and once here.
    names: dict[str, int] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, Span):
            return [names.setdefault(value.file, len(names)), value.line, value.column, value.length]
        if is_dataclass(value):
            return [plain(getattr(value, each.name)) for each in fields(value)]
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        return dict(value) if isinstance(value, Mapping) else value

    return {"audit": plain(found), "names": list(names)}


def _audit(data: Any) -> audit.Audit:
    """What `_dumped` made `data` of. Raises ValueError, TypeError or LookupError for anything else."""
    names = [_is(name, str) for name in _is(_is(data, dict)["names"], list)]

    def span(given: Any) -> Span:
        file, line, column, length = (_is(each, int) for each in _is(given, list))
        if file < 0 or min(line, column, length) < 1:
            raise ValueError(given)
        return Span(names[file], line, column, length)

    found: audit.Audit = _reader(audit.Audit, {Span: span})(data["audit"])
    return found


def _reader(hint: Any, known: dict[Any, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """What reads a value of a type back from its plain form, and raises for all else; `known` are those there are."""
    if hint not in known:
        known[hint] = _new_reader(hint, known)
    return known[hint]


def _new_reader(hint: Any, known: dict[Any, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    inner = get_args(hint)
    if get_origin(hint) is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        each = _reader(inner[0], known)
        return lambda value: tuple(map(each, _is(value, list)))
    if get_origin(hint) is abc.Mapping:
        return lambda value: _is(value, dict)
    if get_origin(hint) in (Union, UnionType) and len(inner) == 2 and inner[1] is type(None):
        there = _reader(inner[0], known)
        return lambda value: None if value is None else there(value)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        readers = [_reader(hints[each.name], known) for each in fields(hint)]
        return lambda value: hint(*(read(each) for read, each in zip(readers, _is(value, list), strict=True)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if hint in (str, int, bool):
        return lambda value: _is(value, hint)
    raise TypeError(f"an audit of {hint} cannot be kept")


def _is(value: Any, wanted: type[_T]) -> _T:
    if type(value) is not wanted:
        raise ValueError(value)
    return value
