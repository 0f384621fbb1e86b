"""What is claimed on this host: as a table for a pipe, for a person, and for a program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rankbind.report.style import Row, cells, paint, safe, wrap
from rankbind.runtime import diagnosis
from rankbind.runtime.dial import Dialled
from rankbind.runtime.registry import Entry, State

_HEADINGS = (
    "resource", "state", "rank", "coordinates", "pid", "host", "since", "token", "takeovers", "endpoints", "notes",
)  # fmt: skip
_COLOURS: dict[State, str] = {
    "alive": "green",
    "paused": "yellow",
    "dead": "bold red",
    "released": "dim",
    "unknown": "yellow",
    "unreadable": "bold red",
}


def exit_status(found: Sequence[Entry]) -> int:
    """0 where every claim is alive or was released, else 1."""
    return int(any(entry.state not in ("alive", "released") for entry in found))


def summary(found: Sequence[Entry], path: Path, said: str) -> str:
    """How many there are of each state, and where that was looked up."""
    counts = {state: sum(entry.state == state for entry in found) for state in _COLOURS}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    claims = "1 claim" if len(found) == 1 else f"{len(found)} claims"
    return f"{claims} in {safe(str(path))} ({safe(said)}){f': {told}' if told else ''}"


def nothing(path: Path, said: str, elsewhere: Sequence[Path]) -> str:
    """What it may mean that there is nothing."""
    lines = [f"nothing is claimed in {safe(str(path))} ({safe(said)})"]
    if elsewhere:
        lines += [f"there are claims in {each}: RANKBIND_DIR={each} rankbind status" for each in elsewhere]
    else:
        lines.append(
            "a server that runs has another RANKBIND_DIR or XDG_RUNTIME_DIR, is another user's, or makes its claims "
            "in another container: `tr '\\0' '\\n' < /proc/PID/environ` shows its variables"
        )
    return "\n".join(lines)


def to_json(found: Sequence[Entry], path: Path) -> str:
    """The claims for a program, in one line; the shape is stable, as that of the findings."""
    from rankbind.report import machine

    data = {"version": machine.VERSION, "directory": str(path), "claims": [_data(entry) for entry in found]}
    # Not indented: json does that in Python, which takes longer than all the rest.
    return json.dumps(data) + "\n"


def _data(entry: Entry) -> dict[str, Any]:
    key = entry.key
    return {
        "claim": str(key),
        "deployment": key.deployment,
        "resource": key.resource,
        "group": dict(key.group),
        "state": entry.state,
        "paused_since": entry.paused_since,
        "pid": entry.pid,
        "lock": {"file": str(entry.lock), "held": entry.locked, "pids": list(entry.pids)},
        "remark": entry.remark or None,
        "record": None if entry.record is None else entry.record.to_json(),
    }


def to_text(found: Sequence[Entry]) -> str:
    """Aligned columns under a line of headings, nothing cut; no value but the last has a space in it."""
    rows = [_HEADINGS, *map(_cells, found)]
    widths = [max(cells(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    return paint(
        (
            [("", text + " " * (width - cells(text) + 2)) for text, width in zip(row, widths, strict=False)]
            + [("", row[-1])]
            for row in rows
        ),
        colour=False,
    )


def to_terminal(found: Sequence[Entry], width: int, *, colour: bool) -> str:
    """The same for a person: a few lines for each claim, wrapped to `width` columns."""
    return paint((row for entry in found for row in _stacked(entry, width)), colour=colour)


def heading(text: str, width: int) -> str:
    """A line above `to_terminal`, and an empty one."""
    return "".join(f"{line}\n" for line in (*wrap(text, width), ""))


def release_line(entry: Entry, refused: str | None, *, dry_run: bool = False) -> str:
    """What `rankbind release` did with one claim."""
    what = _word(str(entry.key))
    if refused is not None:
        return f"{what}: not released: {safe(refused)}\n"
    return f"{what}: {'would be released' if dry_run else 'released'} ({entry.state}: {who(entry)})\n"


def changes(before: Sequence[Entry], after: Sequence[Entry]) -> Iterator[str]:
    """A line for each claim that is not as it was: what it was, what it is, and whose."""
    old = {entry.lock: entry for entry in before}
    for entry in after:
        was = old.pop(entry.lock, None)
        if was is None or _identity(was) != _identity(entry):
            yield f"{_word(str(entry.key))}: {f'{was.state} -> ' if was is not None else ''}{_told(entry)}"
    for was in old.values():
        yield f"{_word(str(was.key))}: {was.state} -> gone"


def to_dial(found: Sequence[Dialled]) -> str:
    """One endpoint a line, as a router takes them."""
    return "".join(f"{safe(each.endpoint)}\n" for each in found if each.endpoint is not None)


def beware(found: Sequence[Dialled]) -> Iterator[str]:
    """What is left out of `to_dial` and why, and what is odd about the rest; one line each."""
    for each in found:
        left = "left out" if each.endpoint is None else each.endpoint
        if each.entry.state == "paused" and each.endpoint is not None:
            yield f"{_word(str(each.entry.key))}: {safe(left)}: its holder (pid {each.entry.pid}) is paused"
        if each.remark:
            yield f"{_word(str(each.entry.key))}: {safe(left)}: {safe(each.remark)}"


def dial_to_json(found: Sequence[Dialled], path: Path) -> str:
    """The endpoints for a program, with those that cannot be dialled and why."""
    from rankbind.report import machine

    return machine.dump(
        {
            "version": machine.VERSION,
            "directory": str(path),
            "endpoints": [
                {
                    "claim": str(each.entry.key),
                    "group": dict(each.entry.key.group),
                    "state": each.entry.state,
                    "role": each.role,
                    "endpoint": each.endpoint,
                    "bound": each.bound,
                    "rank": None if each.entry.record is None else each.entry.record.rank,
                    "token": None if each.entry.record is None else each.entry.record.token,
                    "remark": each.remark or None,
                }
                for each in found
            ],
        }
    )


def who(entry: Entry) -> str:
    """Who holds or held it: ``rank 3 (pp 0, tp 3), pid 4711 on node-a``; what is known of it."""
    read = entry.record
    if read is None or entry.state == "unreadable":
        pids = ", ".join(map(str, entry.pids))
        return f"pid {pids}" if pids else "nobody" if entry.locked is False else "an unknown process"
    return safe(diagnosis.who(read, entry.pid))


def _identity(entry: Entry) -> tuple[object, ...]:
    read = entry.record
    found = None if read is None else (read.token, dict(read.endpoints), dict(read.notes))
    return entry.state, found, entry.pids, entry.remark


def _told(entry: Entry) -> str:
    told = f"{entry.state}, {who(entry)}"
    if entry.record is not None and entry.record.endpoints and entry.live:
        told += f", {safe(_endpoints(entry.record.endpoints))}"
    return f"{told}; {notes}" if (notes := "; ".join(_notes(entry))) else told


def _stacked(entry: Entry, width: int) -> Iterator[Row]:
    read = entry.record
    title, state = safe(str(entry.key)), f"{entry.state}{_since(entry)}"
    if cells(title) + 2 + cells(state) <= width:
        yield ("bold", title), ("", "  "), (_COLOURS[entry.state], state)
    else:
        yield from ((("bold", piece),) for piece in wrap(title, width))
        yield from (((_COLOURS[entry.state], f"  {piece}"),) for piece in wrap(state, width - 2))
    lines = []
    if read is not None and entry.state != "unreadable":
        takeovers = "1 takeover" if read.takeovers == 1 else f"{read.takeovers} takeovers"
        lines += [who(entry), *([safe(_endpoints(read.endpoints))] if read.endpoints else [])]
        lines.append(f"token {read.token}" + (f", {takeovers}" if read.takeovers else ""))
    for line in (*lines, *_notes(entry)):
        yield from ((("", f"  {piece}"),) for piece in wrap(line, width - 2, width - 4))


def _since(entry: Entry) -> str:
    read = entry.record
    if read is None or entry.state == "unreadable":
        return ""
    if entry.state == "paused":
        paused = f" since {diagnosis.when(entry.paused_since)}" if entry.paused_since is not None else ""
        return f"{paused}, held since {diagnosis.when(read.since)}"
    return f"{' since' if entry.state == 'alive' else ', held since'} {diagnosis.when(read.since)}"


def _notes(entry: Entry) -> list[str]:
    found = [entry.remark] if entry.remark else []
    if entry.record is not None and entry.state != "unreadable":
        found += [f"{name}: {text}" for name, text in entry.record.notes.items()]
    return [safe(note) for note in found]


def _endpoints(endpoints: Mapping[str, str]) -> str:
    return ", ".join(f"{role} {endpoint}" for role, endpoint in endpoints.items())


def _cells(entry: Entry) -> tuple[str, ...]:
    read = entry.record
    paused = "" if entry.paused_since is None else f"paused since {diagnosis.when(entry.paused_since)}"
    notes = "; ".join(filter(None, (paused, *_notes(entry)))) or "-"
    resource = _word(str(entry.key))
    if read is None or entry.state == "unreadable":
        pids = ",".join(map(str, entry.pids)) or "-"
        return resource, entry.state, "-", "-", pids, "-", "-", "-", "-", "-", notes
    return (
        resource,
        entry.state,
        "-" if read.rank is None else str(read.rank),
        _word(",".join(f"{name}={index}" for name, index in read.coordinates.items())),
        str(entry.pid),
        _word(read.host),
        datetime.fromtimestamp(read.since).astimezone().isoformat(timespec="seconds"),
        str(read.token),
        str(read.takeovers),
        _word(",".join(f"{role}={endpoint}" for role, endpoint in read.endpoints.items())),
        notes,
    )


def _word(text: str) -> str:
    return safe(text).replace(" ", "\\x20") or "-"
