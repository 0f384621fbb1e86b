"""The plan of a job as a table: which rank takes which address of which resource, on which host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rankbind.check.plan import Plan
from rankbind.report import machine
from rankbind.report.style import Row, cells, paint, safe, wrap
from rankbind.topology import Topology

_HEADINGS = ("resource", "address", "rank", "process", "host", "coordinates", "endpoint")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the plan.

    Attributes:
        role: which address of the resource (``bind``, ``replay``, ``name``, ...); empty for one that has none.
        host: name of the host; None for a rank that runs nowhere.
        text: the address on that rank; None where there is none.
        candidate: whether it takes the address only if it is elected (``rank="any"``).
        process: which process takes it, where it is one beside the rank.
        idle: the axes that say nothing more: they have one index, or are another axis uncut.
    """

    resource: str
    role: str
    rank: int
    host: str | None
    coordinates: Mapping[str, int]
    text: str | None
    candidate: bool = False
    process: str | None = None
    idle: frozenset[str] = frozenset()


def entries(plan: Plan, resource: str | None = None, host: str | None = None) -> tuple[Entry, ...]:
    """Every address that is taken and every owner of a resource without one, in the order of the file.

    Args:
        resource, host: only those of the resource, of the host, with that name.
    """
    return tuple(entry for entry in _entries(plan) if resource in (None, entry.resource) and host in (None, entry.host))


def _entries(plan: Plan) -> Iterator[Entry]:
    topology = plan.job.topology
    idle = _idle(topology)
    for resource in plan.job.resources:
        bindings = [binding for binding in plan.bindings if binding.resource is resource]
        for binding in bindings:
            yield Entry(
                resource.name,
                binding.address.role,
                binding.rank,
                plan.host_name(binding.node),
                topology.coordinates(binding.rank),
                binding.text,
                binding.election is not None,
                resource.process,
                idle,
            )
        bound = {binding.rank for binding in bindings}
        for rank in plan.owners.get(resource.name, ()):
            if rank not in bound:
                for node in plan.nodes[rank] or (None,):
                    name = None if node is None else plan.host_name(node)
                    at = topology.coordinates(rank)
                    yield Entry(resource.name, "", rank, name, at, None, process=resource.process, idle=idle)


def _idle(topology: Topology) -> frozenset[str]:
    sizes = topology.sizes
    uncut = {
        name
        for view in topology.views.values()
        for name in view.axes
        if len(view.of) == 1 and sizes[name] == sizes[view.of[0]]
    }
    return frozenset(name for name, size in sizes.items() if size == 1) | uncut


def untold(plan: Plan) -> tuple[str, ...]:
    """The resources of which the plan does not show everything: whose owners or addresses cannot be told."""
    taken = {(id(binding.resource), id(binding.address), binding.rank, binding.node) for binding in plan.bindings}
    return tuple(
        resource.name
        for resource in plan.job.resources
        if resource.name not in plan.owners
        or any(
            (id(resource), id(address), rank, node) not in taken
            for address in resource.addresses
            for rank in plan.owners[resource.name]
            for node in plan.nodes[rank]
        )
    )


def to_json(found: tuple[Entry, ...], file: str) -> str:
    """The plan for a program; the shape is stable, as that of the findings."""
    return machine.dump(
        {
            "version": machine.VERSION,
            "file": file,
            "plan": [
                {
                    "resource": entry.resource,
                    "address": entry.role or None,
                    "rank": entry.rank,
                    "process": entry.process,
                    "host": entry.host,
                    "coordinates": dict(entry.coordinates),
                    "endpoint": entry.text,
                    "candidate": entry.candidate,
                }
                for entry in found
            ],
        }
    )


def to_text(found: tuple[Entry, ...]) -> str:
    """Aligned columns under a line of headings, nothing cut; no value but the last has a space in it.

    There is a column of processes only where some take what is not taken by the rank itself.
    """
    return paint(_table(_rows(found)), colour=False)


def to_terminal(found: tuple[Entry, ...], width: int, *, colour: bool) -> str:
    """The same for a person: as a table where that fits in `width` columns, one below the other where it does not."""
    rows = _rows(found)
    table = _table(rows)
    if max(sum(cells(text) for _, text in row) for row in table) > width:
        return paint(_stacked(found, width), colour=colour)
    shown: list[Row] = []
    before = None
    for row, cut in zip(table, rows, strict=True):
        if before is not None and cut[0] != before:
            shown.append(())
        shown.append(row)
        before = None if cut is rows[0] else cut[0]
    return paint(shown, colour=colour)


def _rows(found: tuple[Entry, ...]) -> list[tuple[str, ...]]:
    rows = [_HEADINGS, *map(_cells, found)]
    if any(entry.process for entry in found):
        return rows
    at = _HEADINGS.index("process")
    return [(*row[:at], *row[at + 1 :]) for row in rows]


def _table(rows: Sequence[tuple[str, ...]]) -> list[Row]:
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        [
            (
                "bold" if row is rows[0] or column == last else "",
                text + (" " * (width - cells(text) + 2) if column < last else ""),
            )
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def _stacked(found: tuple[Entry, ...], width: int) -> Iterator[Row]:
    before = None
    for entry in found:
        resource, role, rank, _, host, coordinates, text = _cells(entry)
        if resource != before:
            yield from ([()] if before is not None else [])
            yield ("bold", resource), ("", "")
            before = resource
        process = f" ({safe(entry.process)})" if entry.process else ""
        line = f"rank {rank}{process} on host {host}{'' if entry.text is None else f', {role}:'}"
        yield from ((("", f"  {piece}"),) for piece in wrap(line, width - 2))
        if entry.text is not None:
            yield from ((("bold", f"    {piece}"),) for piece in wrap(text, width - 4))
        yield from ((("", f"    {piece}"),) for piece in wrap(coordinates.replace(",", ", "), width - 4))


def _cells(entry: Entry) -> tuple[str, ...]:
    return (
        safe(entry.resource),
        entry.role or "-",
        str(entry.rank),
        safe("-".join((entry.process or "-").split())),
        "-" if entry.host is None else safe(entry.host),
        ",".join(f"{name}={index}" for name, index in entry.coordinates.items() if name not in entry.idle) or "-",
        ("-" if entry.text is None else safe(entry.text)) + (" (if elected)" if entry.candidate else ""),
    )
