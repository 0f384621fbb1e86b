"""What a check of one deployment gave, before it is shown: verdict, findings, and the texts they point into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from rankbind.finding import Finding

Verdict: TypeAlias = Literal["clean", "findings", "unchecked"]

EXIT: Mapping[Verdict, int] = {"clean": 0, "findings": 1, "unchecked": 2}
"""The exit status that says so."""
_LARGEST_SOURCE = 8 << 20


@dataclass(frozen=True, slots=True)
class Result:
    """A checked deployment: a topology file, or what launch commands start.

    Attributes:
        file: as the user named it.
        findings: all that are to be shown.
        resources, ranks, hosts: how many the file declares; None when it cannot be used, 0 for a launch that its
            engine refuses.
        declarations: how many ``singleton_per`` of the code were compared; None when no code was given.
        ignored: how many findings were left out because their code is ignored.
        text: the file's own text; None when it cannot be read.
        deployment: tells it from the others of the same file; None where it is alone.
    """

    file: str
    findings: tuple[Finding, ...] = ()
    resources: int | None = None
    ranks: int | None = None
    hosts: int | None = None
    declarations: int | None = None
    ignored: int = 0
    text: str | None = None
    deployment: str | None = None

    @property
    def verdict(self) -> Verdict:
        """Unchecked as soon as the file itself is wrong (family RB9), however much was found besides."""
        if self.ranks is None or any(finding.family == "RB9" for finding in self.findings):
            return "unchecked"
        return "findings" if any(finding.fails for finding in self.findings) else "clean"


def exit_status(results: Sequence[Result]) -> int:
    """0 clean, 1 findings, 2 could not check; of several files the worst."""
    return max((EXIT[result.verdict] for result in results), default=0)


@dataclass(slots=True)
class Sources:
    """The lines of the files that findings point into, read when they are wanted.

    Args:
        texts: texts already at hand, by the name that spans use. Any other file is read from disk if it is a regular
            file of a sensible size; where that fails a finding is shown without its source line.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    _lines: dict[str, list[str] | None] = field(default_factory=dict)

    def line(self, file: str, number: int) -> str | None:
        """A line of `file`, counted from 1; empty past the end, None when the file cannot be read."""
        if file not in self._lines:
            text = self.texts.get(file)
            self._lines[file] = _read_lines(file) if text is None else text.split("\n")
        lines = self._lines[file]
        if lines is None:
            return None
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""


def _read_lines(file: str) -> list[str] | None:
    path = Path(file)
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
            return None
        with path.open(encoding="utf-8-sig", errors="replace") as stream:
            return stream.read().split("\n")
    except (OSError, ValueError):
        return None
