"""Findings and the rules that make them, one module a family."""

from __future__ import annotations

from collections.abc import Iterator

from rankbind.check import dialling, endpoints, exposure, ownership, placement, sites
from rankbind.check.plan import Plan, Unreadable
from rankbind.config import Declaration
from rankbind.errors import TemplateError
from rankbind.finding import Finding, Label, ranks_text
from rankbind.resource import Address
from rankbind.source import KeyPath, Span


def run(declaration: Declaration, plan: Plan | None = None) -> tuple[Finding, ...]:
    """Everything that is wrong with a declared job, in the order of the file.

    Args:
        plan: of `declaration`, where it is made already.
    """
    plan = plan or Plan(declaration)
    found = [
        *ownership.findings(plan),
        *endpoints.findings(plan),
        *dialling.findings(plan),
        *exposure.findings(plan),
        *sites.findings(plan),
        *placement.findings(plan),
        *_unreadable(plan),
    ]
    return tuple(
        sorted(found, key=lambda finding: (finding.labels[0].span.line if finding.labels else 0, finding.code))
    )


def _unreadable(plan: Plan) -> Iterator[Finding]:
    """RB904 for addresses that have no value on some rank."""
    found: dict[int, list[Unreadable]] = {}
    for item in plan.unreadable:
        found.setdefault(id(item.at), []).append(item)
    for items in found.values():
        first, ranks = items[0], [item.rank for item in items if item.rank is not None]
        where = (
            plan.declaration.address_path(first.resource, first.at)
            if isinstance(first.at, Address)
            else plan.declaration.consumer_path(first.resource, first.at)
        )
        yield Finding(
            "RB904",
            f"resource {first.resource.name}: {first.error}" + (f" on {ranks_text(ranks)}" if ranks else ""),
            labels=(Label(_culprit(plan, first, where)),),
            facts={"resource": first.resource.name, "ranks": ranks},
        )


def _culprit(plan: Plan, item: Unreadable, where: KeyPath) -> Span:
    """The division by zero itself; all of an address that is none once the numbers are in it."""
    document = plan.declaration.document
    if isinstance(item.error, TemplateError):
        return document.inside(where, item.error.column, item.error.width)
    return document.value(*where)


__all__ = ["Plan", "run"]
