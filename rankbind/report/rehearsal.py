"""A rehearsal beside what was predicted: for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rankbind.finding import ranks_text
from rankbind.rehearse.outcome import Call, Prediction, Rehearsal, Surprise, Taken
from rankbind.report import machine
from rankbind.report.style import Row, cells, paint, safe, wrap

_HEADINGS = ("resource", "address", "rank", "host", "endpoint", "claim", "seen")
_CALL_HEADINGS = ("resource", "role", "consumer", "dials", "gets")
_NARROWEST = 12
"""Columns that the last column needs."""
_CAME = {True: ("came true", "bold red"), False: ("did not come true", "bold red"), None: ("not to be seen", "bold")}
_CAUSES = {"machine": "the machine", "check": "a defect of rankbind check, please report it"}


def to_text(found: Rehearsal, *, width: int | None = None, colour: bool = False) -> str:
    """What was started, what became of each address and consumer, the findings beside it, and a last line.

    Args:
        width, colour: as for findings.
    """
    rows: list[Row] = [*_lines(_setting(found), width), ()]
    if found.taken:
        rows += [*_table([_HEADINGS, *map(_taken_cells, found.taken)], width), ()]
    if found.calls:
        rows += [*_table([_CALL_HEADINGS, *(_call_cells(found, each) for each in found.calls)], width), ()]
    for prediction in found.predictions:
        rows += [*_prediction(prediction, width), ()]
    for surprise in found.surprises:
        rows += [*_surprise(surprise, width), ()]
    for note in found.notes:
        rows += _lines(f"note: {note}", width)
    rows += [()] if found.notes else []
    return paint([*rows, *_lines(_summary(found), width, "bold red" if found.failed else "bold green")], colour=colour)


def to_json(found: Rehearsal) -> str:
    """The same for a program; the shape is stable, as that of the findings."""
    return machine.dump(
        {
            "version": machine.VERSION,
            "file": found.file,
            "verdict": "failed" if found.failed else "as predicted",
            "hosts": found.hosts,
            "ports": found.ports,
            "moved": {str(port): to for port, to in found.moved.items()},
            "ranks": found.ranks,
            "processes": found.processes,
            "addresses": [_taken_json(each) for each in found.taken],
            "calls": [_call_json(found, each) for each in found.calls],
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


def _setting(found: Rehearsal) -> str:
    who = f"{found.ranks} of {found.size} ranks" if found.ranks != found.size else f"{found.size} ranks"
    hosts = f"{found.host_count} host{'s' * (found.host_count != 1)}"
    if found.hosts == "namespaces":
        where = f"{hosts}, {'each ' if found.host_count > 1 else ''}in a network namespace of its own"
    elif found.host_count > 1:
        where = f"{hosts}, one after the other on this one"
    else:
        where = "this host"
    ports = {
        "declared": "the declared ports",
        "free": "free ports instead of the declared ones",
        "shifted": f"ports shifted by {next((to - port for port, to in found.moved.items()), 0)}",
    }[found.ports]
    return f"{who} as processes, on {where}; {ports}"


def _taken_cells(each: Taken) -> tuple[str, ...]:
    claim: str = each.claim.state
    if each.claim_holder:
        claim += f" ({each.claim_holder})"
    text = "-" if each.text is None else safe(each.text)
    return (safe(each.resource), each.role or "-", str(each.rank), safe(each.host), text, claim, safe(_seen(each)))


def _seen(each: Taken) -> str:
    error = each.bound.error if each.bound is not None else ""
    return {
        "bound": "bound, heard",
        "refused": f"{error}{f' ({each.holder})' if each.holder else ''}" if error else "-",
        "deaf": f"bound, deaf{each.hears}",
        "elsewhere": f"listens on port {each.port} instead",
        "standing by": "-",
        "claimed": "-",
        "died": each.died,
    }[each.state]


def _call_cells(found: Rehearsal, call: Call) -> tuple[str, ...]:
    return safe(call.resource), call.role, safe(call.who), safe(call.text), safe(_got(found, call))


def _got(found: Rehearsal, call: Call) -> str:
    if not call.played:
        return "not dialled"
    if call.unable:
        return call.unable
    ranks = _ranks(found, call)
    return ranks_text(ranks) if ranks else "nothing"


def _ranks(found: Rehearsal, call: Call) -> list[int]:
    return sorted({each.rank for each in found.taken if each.number in call.heard})


def _table(rows: Sequence[tuple[str, ...]], width: int | None) -> Iterator[Row]:
    """Aligned columns, the last one wrapped; one below the other where there is no room for that."""
    widths = [max(cells(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    start = sum(each + 2 for each in widths)
    room = None if width is None else width - start
    if room is not None and room < _NARROWEST:
        yield from _stacked(rows, width or 0)
        return
    for index, row in enumerate(rows):
        style = "" if index else "bold"
        head = [(style, f"{text}{' ' * (wide - cells(text) + 2)}") for text, wide in zip(row, widths, strict=False)]
        first, *rest = wrap(row[-1], room)
        yield (*head, (style, first))
        yield from ((("", f"{' ' * start}{line}"),) for line in rest)


def _stacked(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[Row]:
    headings, *others = rows
    for row in others:
        yield from ((("bold", line),) for line in wrap(f"{row[0]} {row[1]}", width))
        for heading, text in zip(headings[2:], row[2:], strict=True):
            yield from ((("", f"  {line}"),) for line in wrap(f"{heading} {text}", max(width - 2, 1)))


def _prediction(each: Prediction, width: int | None) -> Iterator[Row]:
    finding = each.finding
    title = f"{finding.level}[{finding.code}]"
    head, *rest = wrap(f"{title}: {safe(finding.message)}", width, None if width is None else width - 2)
    yield ("bold", title), ("", head[len(title) :])
    yield from ((("", f"  {line}"),) for line in rest)
    came, style = _CAME[each.came]
    yield from _hung(f"  {came}: ", style, safe(each.seen), width)


def _surprise(each: Surprise, width: int | None) -> Iterator[Row]:
    yield from _hung("not predicted: ", "bold red", f"{safe(each.text)} ({_CAUSES[each.cause]})", width)


def _hung(title: str, style: str, text: str, width: int | None) -> Iterator[Row]:
    first, *rest = wrap(text, None if width is None else max(width - len(title), _NARROWEST))
    yield (style, title), ("", first)
    yield from ((("", f"{' ' * len(title)}{line}"),) for line in rest)


def _lines(text: str, width: int | None, style: str = "") -> Iterator[Row]:
    yield from (((style, line),) for line in wrap(safe(text), width))


def _summary(found: Rehearsal) -> str:
    failed = [each for each in found.taken if each.failed]
    addresses = [each for each in found.taken if each.text is not None]
    parts = []
    if found.predictions:
        came = sum(each.came is True for each in found.predictions)
        parts.append(f"{came} of {_count(len(found.predictions), 'finding')} came true")
    if failed:
        parts.append(f"{len(failed)} of {_count(len(found.taken), 'address', 'addresses')} failed")
    else:
        parts.append(f"{_count(len(addresses), 'address', 'addresses')} held")
    if found.surprises:
        parts.append(f"{len(found.surprises)} not predicted")
    return f"{'failed' if found.failed else 'as predicted'}: {', '.join(parts)}"


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun if number == 1 else nouns or f'{noun}s'}"


def _taken_json(each: Taken) -> dict[str, Any]:
    return {
        "resource": each.resource,
        "address": each.role or None,
        "rank": each.rank,
        "host": each.host,
        "endpoint": each.text,
        "asked": each.real or None,
        "real": None if each.bound is None else each.bound.at,
        "state": each.state,
        "failed": each.failed,
        "claim": each.claim.state,
        "claim_holder": each.claim_holder or None,
        "diagnosis": each.claim.diagnosis or None,
        "errno": None if each.bound is None else each.bound.errno or None,
        "error": None if each.bound is None else each.bound.error or None,
        "holder": each.holder or None,
        "foreign": each.foreign,
        "heard": each.heard,
    }


def _call_json(found: Rehearsal, call: Call) -> dict[str, Any]:
    meant = sorted({each.rank for each in found.taken if each.number in call.meant})
    return {
        "resource": call.resource,
        "role": call.role,
        "consumer": call.who,
        "endpoint": call.text,
        "dialled": call.played,
        "meant": meant,
        "got": _ranks(found, call),
        "error": call.unable or None,
    }
