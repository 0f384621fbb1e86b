"""RB5: what several deployments take on one host."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankbind.check.clashes import Clash, clashes
from rankbind.check.endpoints import SILENT, done, is_range, verb
from rankbind.check.plan import Binding, Plan
from rankbind.finding import Finding, Label, Level, few, ranks_text

_SHOWN = 4

_DETAILS = {
    "RB502": "the kernel refuses neither: whoever comes second takes it over or writes into it",
    "RB503": "while the one runs, the other fails at its start, or waits for the port",
    "RB504": "it is not so where commands see other devices under one number (CUDA_VISIBLE_DEVICES, containers)",
}
_FIXES = {
    "RB501": "move one of them: `rankbind check --suggest` says by how little",
    "RB502": "give each deployment its own",
    "RB503": "move one of them: `rankbind check --suggest` says by how little",
}
_LEVELS = {"RB503": Level.WARNING, "RB504": Level.NOTE}


def between(
    plans: Sequence[Plan], names: Sequence[str], apart: Collection[tuple[int, int]] = ()
) -> tuple[Finding, ...]:
    """What deployments take from each other. Hosts with one name are one host.

    Args:
        names: what a person calls each of `plans`.
        apart: the numbers, smaller first, of those that never run at the same time.
    """
    found = [
        _ordered(clash)
        for clash in clashes(together(plans), between=True)
        if (min(pair := (clash.a.deployment, clash.b.deployment)), max(pair)) not in apart
    ]
    refused = {
        (id(b), other.deployment)
        for clash in found
        if _code(clash) == "RB501"
        for mine, other in ((clash.one, clash.b), (clash.other, clash.a))
        for b in mine
    }
    groups: dict[tuple[str, ...], list[Clash]] = {}
    for clash in found:
        code = _code(clash)
        # Who cannot bind a port need not be told that it cannot look at it either.
        if code == "RB503" and all((id(b), clash.b.deployment) in refused for b in clash.one):
            continue
        a, b = clash.a, clash.b
        key = code, a.resource.name, a.address.role, b.resource.name, b.address.role
        groups.setdefault(key if code != "RB504" else (code,), []).append(clash)
    return tuple(
        _finding(plans, names, key[0], part) for key, group in sorted(groups.items()) for part in _parts(group)
    )


def together(plans: Sequence[Plan]) -> Iterator[Binding]:
    """What all of them take, each with the number of its deployment."""
    for number, plan in enumerate(plans):
        for b in plan.bindings:
            yield replace(b, deployment=number) if number else b


def _ordered(clash: Clash) -> Clash:
    """From the earlier deployment to the later; from who holds a port to who looks at it."""
    a, b = clash.a, clash.b
    return clash.swapped() if (a.probe, a.deployment) > (b.probe, b.deployment) else clash


def _code(clash: Clash) -> str:
    if clash.b.probe:
        return "RB503"
    if clash.a.address.kind == "device":
        return "RB504"
    return "RB502" if clash.silent else "RB501"


def _parts(found: list[Clash]) -> Iterator[list[Clash]]:
    """Those that are about the same deployments, however many meet at one place."""
    first: dict[int, int] = {}

    def root(number: int) -> int:
        while first.setdefault(number, number) != number:
            number = first[number]
        return number

    for one, other in {(clash.a.deployment, clash.b.deployment) for clash in found}:
        low, high = sorted((root(one), root(other)))
        first[high] = low
    parts: dict[int, list[Clash]] = {}
    for clash in sorted(found, key=_order):
        parts.setdefault(root(clash.a.deployment), []).append(clash)
    return iter(parts.values())


def _order(clash: Clash) -> tuple[Any, ...]:
    a, b = clash.a, clash.b
    return a.deployment, b.deployment, a.node, a.endpoint.first if a.endpoint else 0, a.text, a.rank, b.rank


@dataclass(slots=True)
class _Row:
    """Who meets at one address of one host."""

    host: str | None
    texts: dict[int, str]
    ranks: dict[int, set[int]]


def _rows(found: list[Clash]) -> list[_Row]:
    rows: dict[tuple[str | None, str, str], _Row] = {}
    for clash in found:
        a, b = clash.a, clash.b
        shared = "shared" in (a.address.scope, b.address.scope)
        host = None if shared else a.host
        row = rows.setdefault((host, a.text, b.text), _Row(host, {}, {}))
        for side in (clash.one, clash.other):
            row.texts.setdefault(side[0].deployment, side[0].text)
            row.ranks.setdefault(side[0].deployment, set()).update(each.rank for each in side)
    return list(rows.values())


def _finding(plans: Sequence[Plan], names: Sequence[str], code: str, found: list[Clash]) -> Finding:
    first = found[0]
    rows = _rows(found)
    who = sorted({b.deployment for clash in found for b in (clash.a, clash.b)})
    drawn = all(is_range(clash.a) and is_range(clash.b) for clash in found)
    shown = [_row_text(row, names) for row in rows[: _SHOWN if len(rows) > 1 else 0]]
    if len(rows) > _SHOWN:
        shown.append(f"... {len(rows)} {'devices' if code == 'RB504' else 'addresses'} in all")
    detail = _DETAILS.get(code)
    if code == "RB502" and first.a.endpoint is not None and first.b.endpoint is not None:
        detail = SILENT
    return Finding(
        code,
        _message(names, who if code == "RB504" else sorted(rows[0].ranks), code, first),
        Level.WARNING if drawn else _LEVELS.get(code, Level.ERROR),
        labels=tuple(_labels(plans, names, found)),
        facts={
            "deployments": who,
            "names": [names[number] for number in who],
            "resources": list(dict.fromkeys(b.resource.name for clash in found for b in (clash.a, clash.b))),
            "collisions": [
                {
                    "host": row.host,
                    "endpoints": {str(number): text for number, text in row.texts.items()},
                    "ranks": {str(number): sorted(ranks) for number, ranks in row.ranks.items()},
                }
                for row in rows
            ],
            "pairs": sum(clash.count for clash in found),
            "silent": first.silent,
        },
        details=(*shown, *([detail] if detail else [])),
        fix=_FIXES.get(code),
    )


def _message(names: Sequence[str], who: Sequence[int], code: str, clash: Clash) -> str:
    a, b = clash.a, clash.b
    # A shared address has no host of its own.
    host = "" if "shared" in (a.address.scope, b.address.scope) else f" on host {a.host}"
    one, other = f"{_what(a)} of {names[a.deployment]}", f"{_what(b)} of {names[b.deployment]}"
    if code == "RB503":
        return (
            f"{names[b.deployment]} wants {b.text} free{host} when it starts, and {one} {verb(a, singular=True)} "
            + ("it" if a.text == b.text else a.text)
        )
    if code == "RB504":
        others = few([names[number] for number in who])
        return f"{others} use the same devices: {a.text}{host}"
    if a.text != b.text:
        return f"{one} {verb(a, singular=True)} {a.text} and {other} {b.text}{host}; the two overlap"
    if len(who) > 2 and _what(a) == _what(b):
        return f"{_what(a)} of {few([names[number] for number in who])} all {verb(a)} {a.text}{host}"
    return f"{one} and {other} both {verb(a)} {a.text}{host}"


def _what(binding: Binding) -> str:
    return binding.resource.name + (f" ({binding.address.role})" if binding.address.role in ("replay", "probe") else "")


def _row_text(row: _Row, names: Sequence[str]) -> str:
    numbers = sorted(row.ranks)
    host = "" if row.host is None else f" on host {row.host}"
    if len(set(row.texts.values())) == 1:
        sides = [f"{ranks_text(sorted(row.ranks[number]))} of {names[number]}" for number in numbers]
        return f"{row.texts[numbers[0]]}{host}: {few(sides)}"
    sides = [f"{row.texts[number]} ({ranks_text(sorted(row.ranks[number]))} of {names[number]})" for number in numbers]
    return few(sides) + host


def _labels(plans: Sequence[Plan], names: Sequence[str], found: list[Clash]) -> Iterator[Label]:
    """One for each deployment, up to some."""
    seen: set[int] = set()
    for clash in found:
        for b in (clash.a, clash.b):
            if b.deployment in seen or len(seen) == _SHOWN:
                continue
            text = f"{'and ' if seen else ''}{done(b)} here by {names[b.deployment]}"
            seen.add(b.deployment)
            yield from plans[b.deployment].address_label(b.resource, b.address, text)
