"""Findings for a person: what is wrong, where it is said, with the culprit underlined, and what to write instead.

The form is that of rustc: a headline with the code, the source line, marks (``^`` the culprit, ``-`` what else has to
do with it), remarks, help.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankbind.finding import Finding, Label, Level
from rankbind.report.result import Result, Sources
from rankbind.report.style import Piece, Row, cells, paint, safe, wrap

if TYPE_CHECKING:
    from rankbind.check.suggest import Suggestion

COLOURS = {Level.ERROR: "bold red", Level.WARNING: "bold yellow", Level.NOTE: "bold cyan"}
_GUTTER = "bold blue"
_SECONDARY = "bold blue"
_HELP = "bold green"
_BOLD = "bold"

_TAB = 4
_CUT = "..."
_LONGEST_LINE = 200
"""Columns of a source line that are shown where nothing else limits it."""
_NARROWEST = 24
"""Columns a label needs to stand under its span; where there are fewer it moves to the left."""
_WIDE = 60
"""Columns from which on the lines of a remark are set beside its title."""


def render(results: Sequence[Result], *, width: int | None = None, colour: bool = False) -> str:
    """Every finding of every file, and a last line that sums up.

    Args:
        width: columns to stay within; None for no limit, as suits a pipe.
        colour: with ANSI colours. Without them no control character is written, whatever the files hold.
    """
    sources = Sources({result.file: result.text for result in results if result.text is not None})
    rows: list[Row] = []
    for result in results:
        for finding in result.findings:
            rows += [*finding_rows(finding, sources, width, result.deployment), ()]
    return paint([*rows, *_summary(results, width)], colour=colour)


def suggested(suggestion: Suggestion, names: Sequence[str], *, width: int | None = None, colour: bool = False) -> str:
    """Which ports to move so that nothing collides, a line each, and what that leaves."""
    rows: list[Row] = [()]
    if suggestion.moves:
        how = "the smallest change" if suggestion.exact else "a change"
        rows.append(((_HELP, f"suggestion: {how} of ports after which nothing collides"),))
        rows += [(("", f"  {line}"),) for line in map(safe, suggestion.lines(names))]
    left = [finding for finding in suggestion.left if finding.fails]
    if left:
        what = "no change of ports helps" if not suggestion.moves else "this stays"
        rows.append(((_BOLD, f"{what}:"),))
        rows += [(("", f"  {piece}"),) for each in left for piece in wrap(safe(each.message), width)]
    if len(rows) == 1:
        rows.append(((_HELP, "suggestion: leave the ports as they are"),))
    return paint(rows, colour=colour)


def finding_rows(
    finding: Finding, sources: Sources, width: int | None = None, deployment: str | None = None
) -> Iterator[Row]:
    """One finding, in styled rows; `deployment` tells whose it is, of several in one file."""
    level = COLOURS[finding.level]
    title = f"{finding.level}[{finding.code}]"
    head, *rest = wrap(f"{title}: {safe(finding.message)}", width, None if width is None else width - 2)
    yield (level, title), (_BOLD, head[len(title) :])
    yield from (((_BOLD, f"  {line}"),) for line in rest)
    shown = [label for label in finding.labels if sources.line(label.span.file, label.span.line) is not None]
    gutter = max((len(str(label.span.line)) for label in shown), default=1)
    margin = " " * (gutter + 1)
    for index, file in enumerate(dict.fromkeys(label.span.file for label in finding.labels)):
        labels = [label for label in finding.labels if label.span.file == file]
        arrow = ":::" if index else "-->"
        if labels[0] in shown:
            whose = f" [{safe(deployment)}]" if deployment and not index else ""
            yield (_GUTTER, f"{' ' * gutter}{arrow} "), ("", safe(str(labels[0].span)) + whose)
            yield from _excerpt(file, labels, finding.labels[0], sources, level, gutter, width)
        else:
            span = labels[0].span
            place = file if (span.line, span.column) == (1, 1) else str(span)
            yield (_GUTTER, f"{' ' * gutter}{arrow} "), ("", safe(place))
            yield from (
                row
                for label in labels
                if label.text
                for row in _remark(margin, "", f"{label.span}: {label.text}", "", width)
            )
    if shown and (finding.details or finding.fix):
        yield ((_GUTTER, f"{margin}|"),)
    for detail in finding.details:
        yield from _remark(margin, "", detail, "", width)
    if finding.fix:
        yield from _remark(margin, "help: ", finding.fix, _HELP, width)


def _remark(margin: str, title: str, text: str, style: str, width: int | None) -> Iterator[Row]:
    """``= help: text``, wrapped beside its title; further lines of the text keep their own breaks."""
    hang = len(margin) + 2 + (len(title) if width is None or width >= _WIDE else 0)
    room = None if width is None else width - hang
    first, *more = (safe(line) for line in text.split("\n"))
    head, *rest = wrap(title + first, None if width is None else width - len(margin) - 2, room)
    yield (_GUTTER, f"{margin}= "), (style, title), ("", head[len(title) :])
    for line in [*rest, *(piece for text in more for piece in wrap(text, room))]:
        yield (("", f"{' ' * hang}{line}"),)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A label of one line, in columns of the line as it is shown."""

    start: int
    stop: int
    text: str
    primary: bool


def _excerpt(
    file: str, labels: Sequence[Label], culprit: Label, sources: Sources, level: str, gutter: int, width: int | None
) -> Iterator[Row]:
    bar: Piece = (_GUTTER, f"{' ' * (gutter + 1)}| ")
    room = None if width is None else max(width - gutter - 3, 10)
    yield (bar,)
    before = 0
    for number in sorted({label.span.line for label in labels}):
        if before and number == before + 2:
            between, _ = _fit_line(sources.line(file, before + 1) or "", [], room)
            yield (_GUTTER, f"{before + 1:>{gutter}} | "), ("", between)
        elif before and number > before + 2:
            yield ((_GUTTER, _CUT),)
        before = number
        here = [label for label in labels if label.span.line == number]
        text, spans = _fit_line(
            sources.line(file, number) or "",
            [(label.span.column - 1, label.span.column - 1 + label.span.length) for label in here],
            room,
        )
        yield (_GUTTER, f"{number:>{gutter}} | "), ("", text)
        marks = [
            _Mark(start, stop, safe(label.text), label is culprit)
            for label, (start, stop) in zip(here, spans, strict=True)
        ]
        yield from ((bar, *row) for row in _underline(marks, level, room))


def _fit_line(line: str, spans: Sequence[tuple[int, int]], room: int | None) -> tuple[str, list[tuple[int, int]]]:
    """A source line as it is shown, and `spans` (in characters) in its columns.

    Tabs are spread, what would disturb a terminal is escaped, and a line that is too long is cut around the spans.
    """
    shown: list[str] = []
    at = [0]
    for char in line:
        text = " " * (_TAB - at[-1] % _TAB) if char == "\t" else safe(char)
        shown.append(text)
        at.append(at[-1] + cells(text))
    columns = []
    for start, stop in spans:
        first = at[min(start, len(line))]
        columns.append((first, max(at[min(stop, len(line))], first + 1)))
    limit = _LONGEST_LINE if room is None else room
    end = max([at[-1], *(stop for _, stop in columns)])
    if end <= limit:
        return "".join(shown), columns
    low = min((start for start, _ in columns), default=0)
    high = max((stop for _, stop in columns), default=0)
    if high <= limit - len(_CUT):
        left = 0
    else:
        # A span wider than the room keeps its beginning; otherwise what stands before it gets a third of what is left.
        spare = limit - 2 * len(_CUT) - (high - low)
        left = max(low - max(spare // 3, 0), 0)
        if end - left + len(_CUT) <= limit:
            left = max(end + len(_CUT) - limit, 0)
    lead = _CUT if left else ""
    right = left + limit - len(lead)
    tail = _CUT if end > right else ""
    right -= len(tail)
    body = ""
    for text, start, stop in zip(shown, at, at[1:], strict=False):
        if start >= left and stop <= right:
            body += text
        elif stop > left and start < right:
            body += " " * (min(stop, right) - max(start, left))
    moved = len(lead) - left
    inside = len(lead) + right - left
    return (
        lead + body + tail,
        [
            (
                min(max(start + moved, len(lead)), inside - 1),
                max(min(stop + moved, inside), min(max(start + moved, len(lead)), inside - 1) + 1),
            )
            for start, stop in columns
        ],
    )


def _underline(marks: Sequence[_Mark], level: str, room: int | None) -> Iterator[Row]:
    """The rows under a source line: marks, then the labels' texts, beside or below them."""
    style = {mark: level if mark.primary else _SECONDARY for mark in marks}
    line: list[Piece] = [("", " ")] * max(mark.stop for mark in marks)
    for mark in sorted(marks, key=lambda mark: mark.primary):
        line[mark.start : mark.stop] = [(style[mark], "^" if mark.primary else "-")] * (mark.stop - mark.start)
    told = sorted((mark for mark in marks if mark.text), key=lambda mark: (mark.start, mark.primary))
    if told:
        last = told[-1]
        beside = last.stop == len(line) and (room is None or len(line) + 1 + cells(last.text) <= room)
        if beside:
            yield (*_joined(line), (style[last], f" {last.text}"))
            told.pop()
        else:
            yield _joined(line)
    else:
        yield _joined(line)
    if not told:
        return
    if len(told) == 1 and room is not None and room - told[0].start < cells(told[0].text) <= room:
        yield ("", " " * (room - cells(told[0].text))), (style[told[0]], told[0].text)
        return
    if any(room is not None and room - mark.start < min(cells(mark.text), _NARROWEST) for mark in told):
        for mark in reversed(told):
            first, *rest = wrap(mark.text, None if room is None else room - 2)
            yield (style[mark], f"{'^' if mark.primary else '-'} {first}"), ("", "")
            yield from (((style[mark], f"  {text}"),) for text in rest)
        return
    if len(told) > 1 or len(marks) > 1:
        yield _bars(told, style)
    while told:
        mark = told.pop()
        left = [other for other in told if other.start < mark.start]
        for text in wrap(mark.text, None if room is None else room - mark.start):
            before = _bars(left, style)
            yield (*before, ("", " " * (mark.start - sum(len(piece) for _, piece in before))), (style[mark], text))


def _bars(marks: Sequence[_Mark], style: dict[_Mark, str]) -> list[Piece]:
    row: list[Piece] = []
    at = 0
    for start in sorted({mark.start for mark in marks}):
        mark = next(mark for mark in marks if mark.start == start)
        row += [("", " " * (start - at)), (style[mark], "|")]
        at = start + 1
    return row


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one style as one piece."""
    row: list[Piece] = []
    for style, text in pieces:
        if row and row[-1][0] == style:
            row[-1] = (style, row[-1][1] + text)
        else:
            row.append((style, text))
    return row


def _summary(results: Sequence[Result], width: int | None) -> Iterator[Row]:
    levels = Counter(finding.level for result in results for finding in result.findings)
    counted = [count(levels[level], str(level)) for level in Level if levels[level]]
    ignored = sum(result.ignored for result in results)
    by_verdict = Counter(result.verdict for result in results)
    if set(by_verdict) == {"clean"}:
        text = f"clean: {_size(results)}"
        if counted:
            text += f"; {counted[0]}"
        style = "bold green"
    else:
        troubled = sum(1 for result in results if result.findings)
        what = _what(results)
        text = f"{', '.join(counted)} in {count(troubled, what)}"
        if by_verdict["unchecked"] and len(results) == 1:
            text += ", which could not be checked"
        elif by_verdict["unchecked"]:
            text += f"; {count(by_verdict['unchecked'], what)} could not be checked"
        if by_verdict["clean"]:
            text += f"; {by_verdict['clean']} clean"
        style = COLOURS[next(level for level in Level if levels[level])] if counted else "bold red"
    if ignored:
        text += f"; {ignored} ignored"
    yield from (((style, line),) for line in wrap(text, width))


def _what(results: Sequence[Result]) -> str:
    return "deployment" if any(result.deployment is not None for result in results) else "file"


def _size(results: Sequence[Result]) -> str:
    parts = []
    if len(results) > 1:
        parts.append(count(len(results), _what(results)))
    # Deployments of one file may share hosts, and a sum would count those again.
    keys = ("resources", "ranks") if _what(results) == "deployment" else ("resources", "ranks", "hosts")
    parts += [count(sum(getattr(result, key) or 0 for result in results), key[:-1]) for key in keys]
    declarations = {result.declarations for result in results} - {None}
    if declarations:
        parts.append(f"{count(max(d or 0 for d in declarations), 'declaration')} in the code")
    return ", ".join(parts)


def count(number: int, noun: str) -> str:
    """``1 file`` or ``2 files``."""
    return f"{number} {noun}{'s' * (number != 1)}"
