"""RB705: one axis where another is meant. (Axes that are added up: see `free_axis`, which sees the addresses.)

Two mistakes are told from code that means what it says:

- A gate asks for rank 0 of a whole (``tp_rank``) and of one of its parts (``attn_cp_rank``). The first implies the
  second, so whoever wrote the second did not mean the first; and other gates beside it, the same but for this, name
  the part that is left (``attn_tp_rank``).
- A file is written by the first rank of each host, to a path that is the same on all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rankbind.audit.expression import (
    Apply,
    Constant,
    Coordinate,
    Expression,
    Given,
    Parameter,
    Place,
    Private,
    Unclear,
    axes,
    kinds,
    text,
    walk,
)
from rankbind.audit.gates import Condition, told
from rankbind.audit.meaning import Meaning, Scope
from rankbind.audit.program import Function
from rankbind.audit.rules.common import gate_labels, labels, reached
from rankbind.audit.rules.free_axis import Judged
from rankbind.audit.spans import span
from rankbind.audit.walk import Visit
from rankbind.finding import Finding, Label, Level
from rankbind.source import Span

_FEWEST: Final = 2
"""Gates that have to name the part, where the gate itself shows that the whole is not meant."""
_FEWEST_ALONE: Final = 3
"""The same, where only they show it."""


def findings(meaning: Meaning, conditions: Sequence[Condition], judged: Sequence[Judged]) -> Iterator[Finding]:
    """RB705, one for each place.

    Args:
        conditions: every gate.
        judged: every creation; those that have an axis left free are told by RB701.
    """
    seen = set()
    for finding in (*_wholes(meaning, conditions, judged), *_local(meaning, judged)):
        at = finding.labels[0].span
        if at not in seen:
            seen.add(at)
            yield finding


# The whole for a part.


@dataclass(frozen=True, slots=True)
class _Pins:
    """Some coordinates that one gate wants to have certain values, all of them at once."""

    condition: Condition
    values: Mapping[str, str]
    places: Mapping[str, Place]


def _wholes(meaning: Meaning, conditions: Sequence[Condition], judged: Sequence[Judged]) -> Iterator[Finding]:
    wholes = {
        whole: parts
        for whole, parts in meaning.vocabulary.layout({axis for one in conditions for axis in one.gate.axes}).whole
        if len(parts) > 1
    }
    if not wholes:
        return
    by_file: dict[str, list[_Pins]] = {}
    for condition in conditions:
        for pins in _pins(condition):
            by_file.setdefault(condition.place.file, []).append(pins)
    for found in by_file.values():
        for pins in found:
            for whole in [axis for axis in pins.values if axis in wholes]:
                answer = _meant(pins, whole, wholes[whole], found)
                if answer is not None:
                    yield _whole(pins, whole, *answer, judged)


def _pins(condition: Condition) -> Iterator[_Pins]:
    for group in _groups(condition.value):
        places = {axis: at for axis, (_, at) in group.items() if at is not None}
        yield _Pins(condition, {axis: value for axis, (value, _) in group.items()}, places)


_Group = dict[str, "tuple[str, Place | None]"]


def _groups(value: Expression) -> Iterator[_Group]:
    """What stands together in a condition: what has to hold at once, or, in its negation, must not."""
    match value:
        case Apply("and" | "or" as operator, arguments):
            wanted = "==" if operator == "and" else "!="
            found: _Group = {}
            for argument in arguments:
                if (one := _pin(argument, wanted)) is not None:
                    found[one[0]] = one[1:]
                else:
                    yield from _groups(argument)
            if found:
                yield found
        case Apply("==" | "!=" as operator, _):
            if (one := _pin(value, operator)) is not None:
                yield {one[0]: one[1:]}
        case Apply(_, arguments):
            for argument in arguments:
                yield from _groups(argument)


def _pin(value: Expression, operator: str) -> tuple[str, str, Place | None] | None:
    match value:
        case Apply(
            found,
            (Coordinate(axis, False), Constant() as other) | (Constant() as other, Coordinate(axis, False)),
            at,
        ) if found == operator:
            return axis, text(other), at
        case Apply("not", (inner,)):
            return _pin(inner, "==" if operator == "!=" else "!=")
    return None


def _meant(
    pins: _Pins, whole: str, parts: Sequence[str], others: Sequence[_Pins]
) -> tuple[str, tuple[_Pins, ...], str | None] | None:
    """The part that is meant, the gates that say so, and a part that the whole implies; None where the whole is."""
    rest = {axis: value for axis, value in pins.values.items() if axis != whole}
    if not rest:
        return None
    implied = next((part for part in parts if part in rest and rest[part] == pins.values[whole] == "0"), None)
    best: tuple[str, tuple[_Pins, ...], str | None] | None = None
    for part in parts:
        if part in rest:
            continue
        wanted = {**rest, part: pins.values[whole]}
        # A gate that is kept in a flag is one gate, wherever the flag is asked.
        same = tuple(
            {_place(one, part): one for one in reversed(others) if _says(one.values, wanted, part, implied)}.values()
        )[::-1]
        if len(same) >= (_FEWEST if implied else _FEWEST_ALONE) and (best is None or len(same) > len(best[1])):
            best = part, same, implied
    return best


def _says(values: Mapping[str, str], wanted: Mapping[str, str], part: str, implied: str | None) -> bool:
    """Whether a gate is one of those that the gate should have been like: as a whole, or in what gives it away."""
    if implied is None:
        return values == wanted
    return part in values and implied in values and values.items() <= wanted.items()


def _place(pins: _Pins, axis: str) -> Span:
    return span(pins.places.get(axis, pins.condition.place))


def _whole(
    pins: _Pins, whole: str, part: str, siblings: Sequence[_Pins], implied: str | None, judged: Sequence[Judged]
) -> Finding:
    gate = pins.condition
    made = _made_behind(gate, judged)
    asked, meant = f"{whole}_rank", f"{part}_rank"
    first = Label(span(gate.place), f"{asked} here")
    if made is not None:
        first = Label(span(made.way.anchor), f"made where {asked} is {pins.values[whole]}")
    what = f"{made.made.row.kind}: the" if made is not None else "the"
    why = f"{asked} == 0 says {implied}_rank == 0 already" if implied else "the rest of them is the same"
    return Finding(
        "RB705",
        f"{what} gate asks for {asked} where {len(siblings)} gates like it ask for {meant}",
        Level.WARNING,
        labels=labels(
            first,
            [
                Label(_place(pins, whole), f"the gate: {asked}"),
                *(Label(_place(one, part), f"{meant} here") for one in siblings),
            ],
        ),
        facts={
            "function": gate.gate.function,
            "axes": [whole, part],
            "gate": gate.gate.text,
            "siblings": [f"{at.file}:{at.line}" for at in (_place(one, part) for one in siblings)],
        },
        details=(f"{why}, so {meant} is what is left to ask",),
        fix=f"{meant} == {pins.values[whole]} instead of {asked} == {pins.values[whole]}",
    )


def _made_behind(gate: Condition, judged: Sequence[Judged]) -> Judged | None:
    inside = {id(node) for node in ast.walk(gate.place.node)}
    for item in judged:
        for part in walk(item.way.gate):
            if part.at is not None and part.at.file == gate.place.file and id(part.at.node) in inside:
                return item
    return None


# The rank of a host for the rank in the world.

_LOCALLY: Final = (b"local_rank", b"LOCAL_RANK", b"is_local", b"SLURM_LOCALID", b"local_process")
_CALLS: Final = re.compile(rb"\b(?:open|save|save_file|write_text|write_bytes|savez|savez_compressed)\s*\(")
_OWN: Final = re.compile(
    r"^/(?:tmp|dev|proc|sys|var|run|etc)\b|tmp|temp|scratch|shm|cache|local|host|node|lock|pid|sock|home", re.IGNORECASE
)
"""Paths that are, or may well be, those of one host."""
_SHARED: Final = re.compile(
    r"checkpoint|ckpt|serializ|tracker|latest|iteration|epoch|save|output|out_dir|result|log_?dir|run_?dir|work_?dir|experiment|"
    r"export|artifact|model|weights|metrics|shared|nfs|s3:|gs:|hdfs:",
    re.IGNORECASE,
)
"""Paths that the ranks of a job have in common, or the job would have lost them with its hosts."""


def _local(meaning: Meaning, judged: Sequence[Judged]) -> Iterator[Finding]:
    told_already = set()
    for item in judged:
        if item.made.row.shared:
            at = (item.way.anchor.file, id(item.way.anchor.node))
            if not item.free and at not in told_already and _for_each_host(item.way.gate, item.way.address):
                yield _written(item.way.anchor, item.way.function, item.way.gate, item.way.address)
            told_already.add(at)
    for source in meaning.program.sources:
        if not (any(word in source.data for word in _LOCALLY) and _CALLS.search(source.data)):
            continue
        if (module := meaning.program.module(source)) is None:
            continue
        for function in module.functions:
            for visit in function.walk.calls:
                if (source.name, id(visit.node)) in told_already:
                    continue
                node = _path(visit)
                if node is None:
                    continue
                address = meaning.evaluate(node, Scope(function, visit.names))
                if not _in_common(address):
                    continue
                gate = reached(meaning, visit, function)
                if axes(gate) != ("local_rank",):
                    continue
                address = meaning.completed(address)
                if _for_each_host(gate, address):
                    yield _written(Place(source.name, visit.node), function, gate, address)


def _path(visit: Visit) -> ast.expr | None:
    """The file that a call writes."""
    node = visit.node
    assert isinstance(node, ast.Call)
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    match node.func:
        case ast.Name("open") | ast.Attribute(ast.Name("io" | "gzip"), "open"):
            mode = named.get("mode", node.args[1] if len(node.args) > 1 else None)
            writes = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) & set("wxa")
            return node.args[0] if node.args and writes else None
        case ast.Attribute(ast.Name("torch"), "save") | ast.Name("save_file") | ast.Attribute(_, "save_file"):
            return named.get("f", named.get("filename", node.args[1] if len(node.args) > 1 else None))
        case ast.Attribute(ast.Name("np" | "numpy"), "save" | "savez" | "savez_compressed"):
            return node.args[0] if node.args else None
        case ast.Attribute(whose, "write_text" | "write_bytes"):
            return whose
        case ast.Attribute(whose, "open"):
            mode = named.get("mode", node.args[0] if node.args else None)
            writes = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) & set("wxa")
            return whose if writes else None
    return None


def _for_each_host(gate: Expression, address: Expression) -> bool:
    """Whether one rank of each host writes, all of them to the same file."""
    if axes(gate) != ("local_rank",) or told(gate)[1] != ("local_rank",) or Unclear in kinds(gate):
        return False
    return _in_common(address)


def _in_common(address: Expression) -> bool:
    """Whether a path is the same on all ranks, and one that the hosts are likely to share."""
    if kinds(address) & {Coordinate, Private, Unclear}:
        return False
    leaves = (part for part in walk(address) if isinstance(part, (Given, Parameter)))
    names = " ".join([text(address), *map(text, leaves)])
    return _SHARED.search(names) is not None and _OWN.search(names) is None


def _written(anchor: Place, function: Function, gate: Expression, address: Expression) -> Finding:
    path = text(address)
    return Finding(
        "RB705",
        f"file: the gate asks for local_rank, so one rank of each host writes {path}; the rank in the world is meant",
        Level.WARNING,
        labels=labels(Label(span(anchor), "once for each host"), gate_labels(gate)),
        facts={
            "function": function.qualified,
            "axes": ["local_rank", "rank"],
            "gate": text(gate),
            "address": path,
        },
        details=(f"with 2 hosts of 2 ranks: ranks 0 and 2 are both local rank 0, and both write {path}",),
        fix="ask for rank 0 of the world, or keep what is written on the host that writes it\n"
        '@singleton_per(group="world", rank=0)',
    )
