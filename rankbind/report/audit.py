"""What the audit of code found, for a person and for a program; and the listing of every gate and site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from rankbind.finding import Finding, Level
from rankbind.report import machine
from rankbind.report.result import EXIT, Sources, Verdict
from rankbind.report.style import Row, cells, paint, safe, wrap
from rankbind.report.text import COLOURS, count, finding_rows
from rankbind.source import Span

if TYPE_CHECKING:
    from rankbind.audit import Audit, Gate, Site

_SITE_HEADINGS = ("site", "function", "pinned", "varies", "free", "creation")
_GATE_HEADINGS = ("gate", "function", "kind", "target", "axes", "pinned", "condition")


@dataclass(frozen=True, slots=True)
class Outcome:
    """An audit, and which of its findings are shown.

    Attributes:
        findings: those that are.
        files, sites: how many were looked at.
        ignored: how many findings a comment or a code took away.
        known: how many the baseline, or the revision compared with, has too.
        stale: how many of the baseline are not found any more.
        gates: how many there are, where all were looked for.
        texts: the texts of the files that findings point into, by name.
    """

    findings: tuple[Finding, ...]
    files: int = 0
    sites: int = 0
    ignored: int = 0
    known: int = 0
    stale: int = 0
    gates: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Unchecked as soon as something could not be audited (family RB9), however much was found besides."""
        if any(finding.family == "RB9" for finding in self.findings):
            return "unchecked"
        return "findings" if any(finding.fails for finding in self.findings) else "clean"

    @property
    def status(self) -> int:
        """The exit status."""
        return EXIT[self.verdict]


def to_text(outcome: Outcome, *, width: int | None = None, colour: bool = False) -> str:
    """Every finding, and a last line that sums up; `width` and `colour` as for those of a check."""
    sources = Sources(outcome.texts)
    rows: list[Row] = []
    for finding in outcome.findings:
        rows += [*finding_rows(finding, sources, width), ()]
    return paint([*rows, *_summary(outcome, width)], colour=colour)


def to_json(outcome: Outcome) -> str:
    """The same for a program; the shape is stable, as that of a check."""
    return machine.dump(
        {
            "version": machine.VERSION,
            "verdict": outcome.verdict,
            "audited": {"files": outcome.files, "sites": outcome.sites, "gates": outcome.gates},
            "ignored": outcome.ignored,
            "known": outcome.known,
            "stale": outcome.stale,
            "findings": [machine.finding_data(finding) for finding in outcome.findings],
        }
    )


def _summary(outcome: Outcome, width: int | None) -> Iterator[Row]:
    levels = Counter(finding.level for finding in outcome.findings)
    counted = [count(levels[level], str(level)) for level in Level if levels[level]]
    # The culprit's file: other labels only explain it.
    troubled = {finding.labels[0].span.file for finding in outcome.findings if finding.labels}
    counts = {"file": outcome.files, "site": outcome.sites, "gate": outcome.gates}
    audited = ", ".join(count(number, what) for what, number in counts.items() if number is not None)
    if outcome.verdict == "clean":
        text, style = f"clean: {audited}", "bold green"
        text += f"; {counted[0]}" if counted else ""
    else:
        text = f"{', '.join(counted)} in {count(len(troubled), 'file')}; audited {audited}"
        style = COLOURS[next(level for level in Level if levels[level])]
    unread = {finding.labels[0].span.file for finding in outcome.findings if finding.family == "RB9" and finding.labels}
    if unread:
        text += f"; {len(unread)} could not be audited"
    if outcome.ignored:
        text += f"; {outcome.ignored} ignored"
    if outcome.known:
        text += f"; {outcome.known} known before"
    if outcome.stale:
        text += f"; {outcome.stale} of the baseline {'is' if outcome.stale == 1 else 'are'} gone (--write-baseline)"
    yield from (((style, line),) for line in wrap(text, width))


def diff_to_terminal(diff: str, *, colour: bool = False) -> str:
    """A unified diff, with what would disturb a terminal as escapes: for eyes, and no longer a patch."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    rows: list[Row] = []
    for line in diff.removesuffix("\n").split("\n"):
        style = "bold" if line.startswith(("+++ ", "--- ")) else styles.get(line[:1], "")
        rows.append(((style, safe(line.removesuffix("\r").expandtabs(4))),))
    return paint(rows, colour=colour)


def gates_to_text(audit: Audit, *, colour: bool = False) -> str:
    """Every site, then every gate, in aligned columns; nothing is cut, and no value but the last has a space in it."""
    sites = [
        (
            safe(_place(site.span)),
            safe(site.function) or "-",
            _axes(site.pinned),
            _axes(site.varies),
            _axes(site.free) + ("?" if site.unknown else ""),
            safe(" ".join(f"{site.creation} at {site.address}".split())),
        )
        for site in audit.sites
    ]
    gates = [
        (
            safe(_place(gate.span)),
            safe(gate.function) or "-",
            "-".join(safe(gate.kind).split()) or "-",
            "".join(safe(gate.target or "-").split()),
            _axes(gate.axes),
            _axes(gate.pinned),
            safe(" ".join(gate.text.split())),
        )
        for gate in audit.gates
    ]
    tables = [_table([headings, *rows]) for headings, rows in ((_SITE_HEADINGS, sites), (_GATE_HEADINGS, gates))]
    return paint([*tables[0], (), *tables[1]], colour=colour)


def gates_to_json(audit: Audit) -> str:
    """The same for a program; the shape is stable."""
    return machine.dump(
        {
            "version": machine.VERSION,
            "sites": [_fields(site) for site in audit.sites],
            "gates": [_fields(gate) for gate in audit.gates],
        }
    )


def _fields(found: Site | Gate) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for each in fields(found):
        value = getattr(found, each.name)
        if isinstance(value, Span):
            data |= {"file": value.file, "line": value.line, "column": value.column, "length": value.length}
        else:
            data[each.name] = list(value) if isinstance(value, tuple) else value
    return data


def _place(span: Span) -> str:
    return f"{span.file}:{span.line}"


def _axes(axes: Sequence[str]) -> str:
    return safe(",".join(axes)) or "-"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[Row]:
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    for number, row in enumerate(rows):
        line = "".join(text + " " * (width - cells(text) + 2) for text, width in zip(row, widths, strict=True))
        yield (("" if number else "bold", line.rstrip()),)
