"""RB4: sites that have to agree about who owns."""

from __future__ import annotations

from collections.abc import Iterator

from rankbind.check.ownership import free_axes, spelled
from rankbind.check.plan import Plan
from rankbind.finding import Finding, ranks_text, who


def findings(plan: Plan) -> Iterator[Finding]:
    """RB401 for each resource whose owners are not those of the one it goes ``with``."""
    for resource in plan.job.resources:
        other = resource.same_owner_as
        if other is None or resource.name not in plan.owners or other not in plan.owners:
            continue
        mine, theirs = set(plan.owners[resource.name]), set(plan.owners[other])
        if mine == theirs:
            continue
        extra, missing = sorted(mine - theirs), sorted(theirs - mine)
        parts = []
        if extra:
            parts.append(f"{who(extra, 'own')} {resource.name} without {other}")
        if missing:
            parts.append(f"{who(missing, 'own')} {other} without {resource.name}")
        partner = plan.job.resource(other)
        free = free_axes(plan.job.topology, [*plan.owners[other][:1], *extra], partner) if extra else ()
        yield Finding(
            "RB401",
            f"{resource.name} and {other} must have the same owners: {'; '.join(parts)}",
            labels=(
                *plan.owner_label(resource, f"owned by {ranks_text(sorted(mine))}"),
                *plan.owner_label(partner, f"owned by {ranks_text(sorted(theirs))}"),
            ),
            facts={
                "resource": resource.name,
                "disagrees_with": other,
                "ranks": sorted(mine ^ theirs),
                "extra": extra,
                "missing": missing,
                "axes": list(free),
            },
            fix=f"give {resource.name} the owner of {other}: {spelled(partner.owner)}",
        )
