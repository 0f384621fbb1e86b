"""RB6: every rank runs on exactly one host."""

from __future__ import annotations

from collections.abc import Iterator

from rankbind.check.plan import Plan
from rankbind.finding import Finding, Label, few, who


def findings(plan: Plan) -> Iterator[Finding]:
    """RB601 for ranks left out, RB602 for ranks placed twice."""
    topology = plan.job.topology
    unplaced = topology.unplaced
    if unplaced:
        placed = f"{topology.size - len(unplaced)} of {topology.size} ranks"
        yield Finding(
            "RB601",
            f"{who(unplaced, 'run')} on no host: the hosts run {placed}",
            labels=_given(plan, f"runs {placed}"),
            facts={
                "placement": "missing",
                "ranks": list(unplaced),
                "coordinates": [topology.coordinates(rank) for rank in unplaced[:16]],
            },
            details=("the job waits for the missing ranks until its rendezvous times out",),
        )
    twice = topology.placed_twice
    if twice:
        hosts = list(dict.fromkeys(host.name for where in twice.values() for host in where))
        yield Finding(
            "RB602",
            f"{who(tuple(twice), 'run')} more than once: on host{'s' * (len(hosts) > 1)} {few(hosts)}",
            labels=_where_twice(plan, min(twice)),
            facts={
                "placement": "twice",
                "ranks": list(twice),
                "hosts": {str(rank): [host.name for host in where] for rank, where in twice.items()},
            },
            fix="give each rank to one host",
        )


def _given(plan: Plan, text: str) -> tuple[Label, ...]:
    """A label on what of the hosts says which ranks they run."""
    for key in ("blocks", "ranks", "count"):
        if plan.declaration.document.at(("hosts", key)) is not None:
            return plan.value("hosts", key, text=text)
    return plan.value("hosts", text=text)


def _where_twice(plan: Plan, rank: int) -> tuple[Label, ...]:
    """A label on each host that runs `rank`."""
    names = dict.fromkeys(host.name for host in plan.job.topology.placed_twice[rank])
    return tuple(
        label
        for index, name in enumerate(names)
        for label in plan.value("hosts", "ranks", name, text=f"{'and' if index else f'rank {rank}'} here")
    )
