"""Which files are audited, how they are read, and what those are called that cannot be.

A file is read as Python reads it: UTF-8, unless its first lines say otherwise. Nothing is imported.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import stat
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from rankbind import python
from rankbind.audit.settings import Settings
from rankbind.finding import Finding, Label
from rankbind.source import Span

_LARGEST: Final = 8 << 20
_SLOW: Final = frozenset({"punycode", "idna", "undefined"})
"""Codecs of other things than files, which take a time that grows with the square of the length."""
_PROJECT: Final = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_NEWLINES = re.compile("\r\n?")


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is audited.

    Attributes:
        name: as it is shown, and as spans call it: the path as it was given, with ``/``.
        module: its dotted name; empty where it has none.
        data: all that is in it. It can be decoded; whether it is Python is not known yet.
    """

    name: str
    module: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """A file before it is read.

    Attributes:
        name: as in `Source`.
        path: where it is, absolute.
        root: the folder that was named, absolute, or the file's own: from where it is called what it is called when
            no package has it.
    """

    name: str
    path: str
    root: str


def collect(paths: Sequence[Path], settings: Settings) -> tuple[list[Source], list[Finding]]:
    """The Python files at `paths`: files, folders, and names of packages, which are found and not imported.

    Sorted by name, and each file once, however often and through whichever link it is met. Also a finding RB901 for
    each of what cannot be read.
    """
    findings: list[Finding] = []
    read: list[tuple[Place, bytes]] = []
    for place in places(paths, settings, findings):
        try:
            data = _read(place.path)
        except OSError as error:
            findings.append(_unreadable(place.name, f"cannot read {place.name}: {_reason(error, place.path)}"))
            continue
        wrong = undecodable(place.name, data)
        if wrong is None:
            read.append((place, data))
        else:
            findings.append(wrong)
    read.sort(key=lambda each: each[0].name)
    return named(read, os.path.lexists), sorted(findings, key=lambda finding: finding.labels[0].span)


def places(paths: Iterable[Path], settings: Settings, findings: list[Finding]) -> list[Place]:
    """What `collect` reads; what there is not goes to `findings`."""
    found: dict[str, Place] = {}
    links: dict[str, Place] = {}
    for given in paths:
        path = resolve(given)
        if path is None:
            what = "no such file or folder" if _is_path(given) else "no such file, folder or package"
            findings.append(_unreadable(_posix(given), f"cannot audit {_posix(given)}: {what}"))
            continue
        if not path.is_dir():
            place = Place(_posix(path), os.path.abspath(path), os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120
            found.setdefault(_real(place.path), place)
            continue
        root, real = os.path.abspath(path), _real(path)  # noqa: PTH100

        def failed(error: OSError) -> None:
            name = _posix(Path(error.filename))
            findings.append(_unreadable(name, f"cannot read {name}: {_reason(error, error.filename)}"))

        before = len(findings)
        empty = True
        for file in python.files(path, excluded=excluded(settings), failed=failed):
            empty = False
            name = _posix(file)
            place = Place(name, os.path.abspath(file), root)  # noqa: PTH100
            if file.is_symlink():
                links.setdefault(_real(file), place)
            else:
                # No link is followed below `path`, so this is its real path, without asking for each.
                found.setdefault(f"{real}{place.path[len(root) :]}", place)
        if empty and len(findings) == before:
            findings.append(_unreadable(_posix(path), f"there is no Python file in {_posix(path)}"))
    return [*(links | found).values()]


def resolve(given: Path) -> Path | None:
    """The file or folder that `given` is or, as the name of a package, means; None where there is neither."""
    if os.path.lexists(given):
        return given
    located = None if _is_path(given) else python.locate(str(given))
    return None if located is None else Path(python.shown(located))


def excluded(settings: Settings) -> Callable[[str], bool]:
    """Tells by its path whether a file or folder that is met in a walk is to be left out.

    A pattern is about the end of a path: ``test``, ``engine/test``, ``*_pb2.py``; ``**`` stands for any folders.
    """
    patterns = [_translated(pattern) for pattern in settings.exclude]
    if not patterns:
        return lambda path: False
    either = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    return lambda path: either.search(os.path.abspath(path).replace(os.sep, "/")) is not None  # noqa: PTH100


def undecodable(name: str, data: bytes) -> Finding | None:
    """The finding about a file that is too large or no text; None for one that is fine."""
    if len(data) > _LARGEST:
        return _unreadable(name, f"cannot read {name}: it is larger than {_LARGEST >> 20} MiB")
    if data.isascii() and not _may_declare(data):
        return None
    try:
        _decode(data)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        start = data.rfind(b"\n", 0, error.start) + 1
        column = len(data[start : error.start].decode(error.encoding, "replace")) + 1
        encoding = error.encoding.upper()
        return _unreadable(name, f"cannot read {name}: not {encoding} text in line {line}", line, column)
    except (SyntaxError, LookupError, ValueError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        return _unreadable(name, f"cannot read {name}: {' '.join(str(why).split())}")
    return None


def text(source: Source) -> str:
    """The text of `source`, its lines ended by ``\\n`` alone."""
    return _NEWLINES.sub("\n", _decode(source.data))


def named(read: Sequence[tuple[Place, bytes]], exists: Callable[[str], bool]) -> list[Source]:
    """The sources, each with its module.

    Above what has an ``__init__.py`` there may be folders that belong to the name and have none (namespaces): they do
    where the files name themselves so, or a package further up in the same project holds them.

    Args:
        exists: whether there is something at a path; of the disk, or of a commit.
    """
    folders: dict[tuple[str, str], list[bytes]] = {}
    for place, data in read:
        folders.setdefault((os.path.dirname(place.path), place.root), []).append(data)  # noqa: PTH120
    naming = _Naming(exists)
    tops = {folder: naming.top(*folder) for folder in folders}
    # What a file calls itself tells only about its own tree.
    trees: dict[str, list[bytes]] = {}
    for folder, top in tops.items():
        trees.setdefault(top, []).extend(folders[folder])
    bases = {top: naming.base(top, tree) for top, tree in trees.items()}
    return [
        Source(place.name, _module(place.path, bases[tops[os.path.dirname(place.path), place.root]]), data)  # noqa: PTH120
        for place, data in read
    ]


class _Naming:
    def __init__(self, exists: Callable[[str], bool]) -> None:
        self.is_package = cache(lambda folder: exists(f"{folder}/__init__.py"))
        self.is_project = cache(lambda folder: any(exists(f"{folder}/{name}") for name in _PROJECT))

    def top(self, folder: str, root: str) -> str:
        """The folder that the names of the files in `folder` begin in, as far as ``__init__.py`` tells."""
        highest = None
        for above in _upwards(folder):
            if self.is_package(above):
                highest = above
            if self.is_project(above) or not os.path.basename(above).isidentifier():  # noqa: PTH119
                break
        return root if highest is None else os.path.dirname(highest)  # noqa: PTH120

    def base(self, top: str, tree: Sequence[bytes]) -> str:
        """`top`, or a folder above it that the files of `tree` begin their own name in."""
        names: list[str] = []
        best = top
        for folder in _upwards(top):
            name = os.path.basename(folder)  # noqa: PTH119
            if not name.isidentifier() or self.is_project(folder):
                break
            names.insert(0, name)
            if _mentions(tree, ".".join(names).encode()):
                best = os.path.dirname(folder)  # noqa: PTH120
            elif len(names) > 2:
                break
        return best


def _mentions(tree: Sequence[bytes], name: bytes) -> bool:
    wanted = (b"from " + name + b".", b"from " + name + b" import", b"import " + name + b".")
    return any(text in data for text in wanted for data in tree)


def _upwards(folder: str) -> Iterator[str]:
    while folder != (above := os.path.dirname(folder)):  # noqa: PTH120
        yield folder
        folder = above


def _module(path: str, base: str) -> str:
    parts = os.path.relpath(path, base).removesuffix(".py").split(os.sep)  # noqa: PTH206
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts) if all(part.isidentifier() for part in parts) else ""


def _decode(data: bytes) -> str:
    """As Python would: by the byte-order mark, or by what the first two lines say. Raises what it would, or else."""
    if not _may_declare(data):
        return data.decode("utf-8-sig")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    known = codecs.lookup(encoding)
    if not known._is_text_encoding or known.name in _SLOW:
        raise LookupError(f"{encoding} is no encoding of source text")
    return data.decode(encoding)


def _may_declare(data: bytes) -> bool:
    """Whether the first two lines may say what the encoding is."""
    first = data.find(b"\n") + 1
    second = data.find(b"\n", first) if first else -1
    return data.find(b"coding", 0, len(data) if second < 0 else second) >= 0


def _read(path: str) -> bytes:
    # Without waiting for who writes into a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        if status.st_size > _LARGEST:
            raise OSError(f"it is larger than {_LARGEST >> 20} MiB")
        data = os.read(descriptor, status.st_size + 1)
        while len(data) <= _LARGEST and (more := os.read(descriptor, 1 << 20)):
            data += more
        return data
    finally:
        os.close(descriptor)


def _reason(error: OSError, path: str) -> str:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except FileNotFoundError:
        return "a link to what is not there" if os.path.islink(path) else "no such file"  # noqa: PTH114
    except OSError:
        pass
    else:
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return "it is not a regular file"
    return error.strerror or str(error)


def _translated(pattern: str) -> str:
    """A pattern of `excluded` as a regular expression."""
    pattern = pattern.removeprefix("./").strip("/")
    parts = []
    for piece in re.findall(r"\*\*/?|\*|\?|\[[^\]]+\]|.", pattern, re.DOTALL):
        if piece.startswith("**"):
            parts.append("(?:.*/)?" if piece.endswith("/") else ".*")
        elif piece in ("*", "?"):
            parts.append(f"[^/]{'*' if piece == '*' else ''}")
        elif len(piece) > 2:
            inner = piece[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner.replace('^', chr(92) + '^', 1)}]")
        else:
            parts.append(re.escape(piece))
    return f"(?:^|/){''.join(parts)}$"


def _unreadable(name: str, message: str, line: int = 1, column: int = 1) -> Finding:
    return Finding("RB901", message, labels=(Label(Span(name, line, column)),))


def _is_path(given: Path) -> bool:
    return os.sep in str(given) or given.suffix == ".py"


def _posix(path: Path) -> str:
    return path.as_posix()


def _real(path: str | Path) -> str:
    return os.path.realpath(path)
