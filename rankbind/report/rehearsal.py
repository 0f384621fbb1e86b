"""A rehearsal beside what was predicted: for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rankbind.finding import ranks_text
from rankbind.rehearse.outcome import Call, Rehearsal, Taken
from rankbind.report import machine
from rankbind.report.style import Row, cells, paint, safe, wrap

_HEADINGS = ("resource", "address", "rank", "host", "endpoint", "claim", "seen")
_CALL_HEADINGS = ("resource", "role", "consumer", "dials", "gets")
_CAME = {True: "came true", False: "did not come true", None: "not to be seen"}
_CAUSES = {"machine": "the machine", "check": "a defect of rankbind check, please report it"}


def to_text(found: Rehearsal, *, width: int | None = None, colour: bool = False) -> str:
    """What was started, what became of each address and consumer, the findings beside it, and a last line.

    Args:
        width, colour: as for findings. Tables are not wrapped.
    """
    rows: list[Row] = [*_lines("", "", found.setting, width), ()]
    if found.taken:
        rows += [*_table([_HEADINGS, *map(_taken_cells, found.taken)]), ()]
    if found.calls:
        rows += [*_table([_CALL_HEADINGS, *(_call_cells(found, each) for each in found.calls)]), ()]
    for each in found.predictions:
        finding = each.finding
        rows += _lines("bold", f"{finding.level}[{finding.code}]", f": {finding.message}", width)
        rows += [
            *_lines("bold" if each.came is None else "bold red", f"  {_CAME[each.came]}", f": {each.seen}", width),
            (),
        ]
    for surprise in found.surprises:
        rows += [*_lines("bold red", "not predicted", f": {surprise.text} ({_CAUSES[surprise.cause]})", width), ()]
    for note in found.notes:
        rows += _lines("", "note", f": {note}", width)
    rows += [()] if found.notes else []
    return paint([*rows, *_lines("bold red" if found.failed else "bold green", *_summary(found), width)], colour=colour)


def to_json(found: Rehearsal) -> str:
    """The same for a program; the shape is stable, as that of the findings."""
    return machine.dump(
        {
            "version": machine.VERSION,
            "file": found.file,
            "verdict": _summary(found)[0],
            "hosts": found.hosts,
            "moved": {str(port): to for port, to in found.moved.items()},
            "ranks": found.ranks,
            "processes": found.processes,
            "addresses": [_taken_json(each) for each in found.taken],
            "calls": [
                {
                    "resource": call.resource,
                    "role": call.role,
                    "consumer": call.who,
                    "endpoint": call.text,
                    "dialled": call.played,
                    "meant": sorted({each.rank for each in found.taken if each.number in call.meant}),
                    "got": _got(found, call),
                    "error": call.unable or None,
                }
                for call in found.calls
            ],
            "predictions": [
                {
                    "code": each.finding.code,
                    "level": str(each.finding.level),
                    "message": each.finding.message,
                    "came_true": each.came,
                    "seen": each.seen,
                }
                for each in found.predictions
            ],
            "surprises": [{"text": each.text, "cause": each.cause} for each in found.surprises],
            "notes": list(found.notes),
        }
    )


def _taken_cells(each: Taken) -> tuple[str, ...]:
    claim = f"{each.claim.state}{f' ({each.claim.holder})' if each.claim.holder else ''}"
    return each.resource, each.role or "-", str(each.rank), each.host, each.text or "-", claim, each.seen or "-"


def _call_cells(found: Rehearsal, call: Call) -> tuple[str, ...]:
    ranks = _got(found, call)
    got = call.unable or (ranks_text(ranks) if ranks else "nothing") if call.played else "not dialled"
    return call.resource, call.role, call.who, call.text, got


def _got(found: Rehearsal, call: Call) -> list[int]:
    return sorted({each.rank for each in found.taken if each.number in call.heard})


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[Row]:
    rows = [tuple(map(safe, row)) for row in rows]
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    for index, row in enumerate(rows):
        style = "" if index else "bold"
        yield [(style, text + " " * (width - cells(text) + 2)) for text, width in zip(row, widths, strict=True)]


def _lines(style: str, title: str, text: str, width: int | None) -> Iterator[Row]:
    head, *rest = wrap(safe(title + text), width, None if width is None else width - 2)
    yield (style, head[: len(title)]), ("", head[len(title) :])
    yield from ((("", f"  {line}"),) for line in rest)


def _summary(found: Rehearsal) -> tuple[str, str]:
    """The verdict, and what it rests on."""
    failed = sum(each.failed for each in found.taken)
    parts = []
    if found.predictions:
        came = sum(each.came is True for each in found.predictions)
        parts.append(f"{came} of {_count(len(found.predictions), 'finding')} came true")
    addresses = _count(len(found.taken), "address", "addresses")
    parts.append(f"{failed} of {addresses} failed" if failed else f"{addresses} held")
    if found.surprises:
        parts.append(f"{len(found.surprises)} not predicted")
    return "failed" if found.failed else "as predicted", f": {', '.join(parts)}"


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun if number == 1 else nouns or f'{noun}s'}"


def _taken_json(each: Taken) -> dict[str, Any]:
    bound = each.bound
    return {
        "resource": each.resource,
        "address": each.role or None,
        "rank": each.rank,
        "host": each.host,
        "endpoint": each.text,
        "real": bound and bound.at,
        "state": each.state,
        "failed": each.failed,
        "claim": each.claim.state,
        "claim_holder": each.claim.holder or None,
        "diagnosis": each.claim.diagnosis or None,
        "errno": (bound and bound.errno) or None,
        "error": (bound and bound.error) or None,
        "holder": (bound and bound.holder) or None,
        "foreign": bool(bound and bound.foreign),
        "heard": each.heard,
    }
