"""The baseline: findings that there were when the audit was begun with, so that only new ones are shown.

A finding is known again by what it says and where that stands, not by its line: by its code, file, function, the text
of the line, and the axes it is about. So an edit elsewhere does not bring it back, and a gate that forgets one more
axis is a new finding. Where a file is gone, the same in another file counts as moved.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rankbind.audit import Audit
from rankbind.audit import cache as storing
from rankbind.audit.sources import Source, text
from rankbind.errors import ConfigError
from rankbind.finding import Finding, Label
from rankbind.source import Span

VERSION: Final = 1

_KEYS: Final = ("code", "file", "function", "line", "axes", "count")
_DEFINITION: Final = re.compile(r"(?:async\s+def|def|class)\s+(\w+)")
_BEFORE_COMMENT: Final = re.compile(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^#'"]|['"])*""")


@dataclass(frozen=True, slots=True, order=True)
class Fingerprint:
    """What a finding is known by. `line` is the text of its line, without comments and with single spaces."""

    code: str
    file: str
    function: str
    line: str
    axes: tuple[str, ...] = ()


class Places:
    """Where findings of an audit stand: in which function, in what line.

    Args:
        shown: what a file is called in a fingerprint, by its name in spans.
    """

    def __init__(
        self, sources: Iterable[Source], found: Audit, shown: Callable[[str], str] = lambda name: name
    ) -> None:
        self._sources = {source.name: source for source in sources}
        self._shown = shown
        self._lines: dict[str, list[str]] = {}
        self._functions = {
            (site.span.file, site.span.line, site.span.column): site.function for site in reversed(found.sites)
        }

    def fingerprint(self, finding: Finding) -> Fingerprint:
        """That of `finding`."""
        axes = finding.facts.get("axes")
        about = tuple(sorted(map(str, axes))) if isinstance(axes, list | tuple) else ()
        if not finding.labels:
            return Fingerprint(finding.code, "", "", finding.message, about)
        span = finding.labels[0].span
        if finding.code.startswith("RB9"):
            return Fingerprint(finding.code, self._shown(span.file), "", finding.message)
        told = finding.facts.get("function")
        function = told if isinstance(told, str) else self._function(span)
        return Fingerprint(finding.code, self._shown(span.file), function, self._line(span), about)

    def _function(self, span: Span) -> str:
        known = self._functions.get((span.file, span.line, span.column))
        return self._around(span) if known is None else known

    def _around(self, span: Span) -> str:
        """The function around a line, by indentation: as good for telling two findings apart, and much faster."""
        lines = self._of(span.file)
        names: list[str] = []
        depth = _indent(lines[span.line - 1]) if 0 < span.line <= len(lines) else 0
        for line in reversed(lines[: span.line - 1]):
            stripped = line.lstrip()
            # A closing bracket ends the head of a definition, not what is around it.
            if not stripped or stripped[0] in "#)]}" or _indent(line) >= depth:
                continue
            depth = _indent(line)
            if definition := _DEFINITION.match(stripped):
                names.insert(0, definition[1])
            if not depth:
                break
        return ".".join(names)

    def _line(self, span: Span) -> str:
        lines = self._of(span.file)
        line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
        code = _BEFORE_COMMENT.match(line)
        return " ".join((code[0] if code and code[0].strip() else line).split())

    def _of(self, file: str) -> list[str]:
        if file not in self._lines:
            source = self._sources.get(file)
            self._lines[file] = [] if source is None else text(source).split("\n")
        return self._lines[file]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def subtract(
    findings: Sequence[Finding],
    places: Places,
    known: Mapping[Fingerprint, int],
    gone: Callable[[str], bool],
) -> tuple[list[Finding], Counter[Fingerprint]]:
    """The findings that are not `known`, and what of `known` is not among them.

    Args:
        known: how often each is known.
        gone: whether there is no such file any more, so that what it had may have moved.
    """
    left = Counter(known)
    new: list[tuple[Finding, Fingerprint]] = []
    for finding in findings:
        fingerprint = places.fingerprint(finding)
        if left[fingerprint] > 0:
            left[fingerprint] -= 1
        else:
            new.append((finding, fingerprint))
    moved: dict[Fingerprint, list[Fingerprint]] = {}
    for fingerprint in sorted(left.elements()):
        if gone(fingerprint.file):
            moved.setdefault(replace(fingerprint, file=""), []).append(fingerprint)
    kept = []
    for finding, fingerprint in new:
        origins = moved.get(replace(fingerprint, file=""))
        if origins:
            left[origins.pop()] -= 1
        else:
            kept.append(finding)
    return kept, +left


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline file. Its entries name files as seen from its own folder."""

    file: Path
    known: Mapping[Fingerprint, int]

    def shown(self, name: str) -> str:
        """What the file that is called `name` is called in it."""
        return Path(os.path.relpath(name, self.file.parent)).as_posix()

    def places(self, sources: Iterable[Source], found: Audit) -> Places:
        """For `subtract`."""
        return Places(sources, found, self.shown)

    def gone(self, file: str) -> bool:
        """Whether a file that it names is not there any more."""
        return not os.path.lexists(self.file.parent / file)

    def stale(self, left: Mapping[Fingerprint, int], audited: Iterable[str]) -> Counter[Fingerprint]:
        """Of what `subtract` left over, what would have been found in the files that were audited, or is gone."""
        seen = {self.shown(name) for name in audited}
        return Counter({each: count for each, count in left.items() if each.file in seen or self.gone(each.file)})


def read(file: Path) -> Baseline:
    """The baseline in `file`.

    Raises:
        ConfigError: it cannot be read, or is no baseline.
    """
    name = str(file)
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise _refused(f"not JSON: {error.msg}", Span(name, error.lineno, error.colno)) from None
    except FileNotFoundError:
        raise _refused(f"there is no {name}: --write-baseline makes it", Span(name, 1, 1)) from None
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise _refused(f"cannot read {name}: {reason}", Span(name, 1, 1)) from None
    if not isinstance(data, dict) or type(data.get("version")) is not int or not isinstance(data.get("findings"), list):
        raise _refused(f"{name} is no baseline of `rankbind audit`", Span(name, 1, 1))
    if data["version"] != VERSION:
        message = f"{name} is of version {data['version']}, and this rankbind reads {VERSION}: write it again"
        raise _refused(message, Span(name, 1, 1))
    known: Counter[Fingerprint] = Counter()
    for number, entry in enumerate(data["findings"], start=1):
        found = _entry(entry)
        if found is None:
            raise _refused(f"{name}: entry {number} of its findings is not one that rankbind writes", Span(name, 1, 1))
        known[found[0]] += found[1]
    return Baseline(file, known)


def _entry(entry: Any) -> tuple[Fingerprint, int] | None:
    if not isinstance(entry, dict) or set(entry) != set(_KEYS):
        return None
    code, file, function, line, axes, count = (entry[key] for key in _KEYS)
    if not all(isinstance(text, str) for text in (code, file, function, line)) or type(count) is not int or count < 1:
        return None
    if not isinstance(axes, list) or not all(isinstance(axis, str) for axis in axes):
        return None
    return Fingerprint(code, file, function, line, tuple(axes)), count


def write(baseline: Baseline) -> None:
    """Write it: an entry a line, sorted, so that a diff of it can be read. Raises OSError."""
    entries = []
    for each, count in sorted(baseline.known.items()):
        values = (each.code, each.file, each.function, each.line, list(each.axes), count)
        entries.append(json.dumps(dict(zip(_KEYS, values, strict=True))))
    body = ",\n    ".join(entries)
    found = f"[\n    {body}\n  ]" if entries else "[]"
    data = f'{{\n  "version": {VERSION},\n  "findings": {found}\n}}\n'
    file = Path(os.path.realpath(baseline.file))
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o666 & ~_umask()
    storing.replace(file, data.encode("ascii"), mode)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _refused(message: str, span: Span) -> ConfigError:
    return ConfigError(f"{span}: RB901: {message}", (Finding("RB901", message, labels=(Label(span),)),))
