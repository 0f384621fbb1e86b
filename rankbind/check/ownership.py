"""RB1: every resource has an owner, and only one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from rankbind.check.plan import Plan
from rankbind.errors import ScopeError, UnknownAxisError
from rankbind.finding import Finding, Label, few, ranks_text
from rankbind.resource import Consumer, Resource
from rankbind.scope import HOST, LOCAL_RANK, WORLD, Gate, Scope
from rankbind.source import KeyPath
from rankbind.topology import Topology

# What a gate may compare besides axes.
_RANKS = ("rank", LOCAL_RANK)


def findings(plan: Plan) -> Iterator[Finding]:
    """RB101 to RB104 for every resource."""
    for resource in plan.job.resources:
        undeclared = [*_undeclared_axes(plan, resource)]
        yield from undeclared
        yield from _undeclared_names(plan, resource)
        outside = [*_outside(plan, resource, resource.owner, plan.owner_label(resource))]
        yield from outside
        for consumer in resource.consumers:
            yield from _outside(plan, resource, consumer.gate, plan.value(*_gate_path(plan, resource, consumer)))
        owners = plan.owners.get(resource.name)
        # Where an index outside its axis lets nobody through, that is the finding, and not also that nobody owns.
        if owners is not None and not undeclared and (owners or not outside):
            yield from _count(plan, resource)


def free_axes(topology: Topology, ranks: Iterable[int], resource: Resource | None = None) -> tuple[str, ...]:
    """The axes on which `ranks` differ, told as closely as they can be: see `free_along`."""
    return free_along(topology, [ranks], resource)


def free_along(
    topology: Topology, groups: Iterable[Iterable[int]], resource: Resource | None = None
) -> tuple[str, ...]:
    """The axes on which the ranks of some group differ among themselves, outermost first.

    Of the ways to cut the ranks into axes it takes the one that says it most closely: ranks 0 and 2 of tp 4, cut into
    attn_dp 2 x attn_tp 2, differ in tp, but in attn_dp alone. Where two say it alike it keeps to the words of
    `resource`.
    """
    each = [[topology.coordinates(rank) for rank in ranks] for ranks in groups]
    free = {name for name in topology.sizes if any(len({at[name] for at in group}) > 1 for group in each)}

    def told(leaves: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in leaves if name in free)

    words = _words(resource) if resource else set()

    def cost(leaves: Iterable[str]) -> tuple[int, int, int]:
        axes = told(leaves)
        return prod(topology.sizes[name] for name in axes), -len(words.intersection(leaves)), len(axes)

    best, chosen = tuple(topology.axes), tuple[str, ...]()
    for view in sorted(topology.views.values(), key=lambda view: cost(topology.factors(view.axes))):
        try:
            leaves = topology.factors([*chosen, *view.axes])
        except ScopeError:
            continue  # it cuts what a better view has cut already
        if cost(leaves) < cost(best):
            best, chosen = leaves, (*chosen, *view.axes)
    return told(best)


def _words(resource: Resource) -> set[str]:
    """The names by which a resource tells ranks apart."""
    owner = resource.owner.terms if isinstance(resource.owner, Gate) else resource.owner.group
    return {*owner, *(resource.once_per or ()), *(name for at in resource.addresses for name in at.template.names)}


def _named_axes(plan: Plan, resource: Resource) -> Iterator[tuple[str, KeyPath]]:
    """Every axis that has to be one for who-owns-what to be told, and where in the file."""
    at: KeyPath = ("resources", resource.name)
    document = plan.declaration.document
    lists: list[tuple[tuple[str, ...], KeyPath]] = [(resource.once_per or (), (*at, "once_per"))]
    if isinstance(resource.owner, Gate):
        yield from ((name, (*at, "owner", name)) for name in resource.owner.terms if name not in _RANKS)
    elif resource.owner.group not in ((WORLD,), (HOST,)):
        lists.append((resource.owner.group, (*at, "singleton_per", "group")))
    for names, place in lists:
        for index, name in enumerate(names):
            yield name, (*place, index) if isinstance(document.at(place), list) else place
    for consumer in resource.consumers:
        gate = _gate_path(plan, resource, consumer)
        yield from ((name, (*gate, name)) for name in consumer.gate.terms if name not in _RANKS)


def _undeclared_axes(plan: Plan, resource: Resource) -> Iterator[Finding]:
    document = plan.declaration.document
    for name, place in _named_axes(plan, resource):
        try:
            plan.job.topology.check_names([name])
        except UnknownAxisError as error:
            known = ", ".join(plan.job.topology.sizes) or "none"
            where = document.key(*place) if place[-1] == name else document.value(*place)
            yield Finding(
                "RB103",
                f"resource {resource.name}: {error}",
                labels=(Label(where, "not an axis"),),
                facts={"resource": resource.name, "axis": name, "axes": list(plan.job.topology.sizes)},
                fix=f"declare it under [axes] or in a view, or write one of {known}",
            )


def _undeclared_names(plan: Plan, resource: Resource) -> Iterator[Finding]:
    job = plan.job
    names: set[str] = set(job.variables(0)) | {"local_rank", "node_rank", "local_world_size"}
    sizes = {f"{name}_size" for name in job.topology.sizes}
    declaration = plan.declaration
    templates = [
        (address.template, names, declaration.address_path(resource, address)) for address in resource.addresses
    ]
    for consumer in resource.consumers:
        own = names
        if consumer.axes is not None:
            own = {*consumer.axes, *(f"{axis}_size" for axis in consumer.axes), *sizes, "world_size", "nnodes"}
        templates.append((consumer.template, own, declaration.consumer_path(resource, consumer)))
    for template, known, place in templates:
        for error in template.unknown_names(known):
            where = declaration.document.inside(place, error.column, error.width)
            yield Finding(
                "RB103",
                f"resource {resource.name}: {error}",
                labels=(Label(where, "not a coordinate or a size"),),
                facts={"resource": resource.name, "axis": template.text[error.column :][: error.width]},
            )


def _outside(plan: Plan, resource: Resource, owner: Scope | Gate, labels: tuple[Label, ...]) -> Iterator[Finding]:
    try:
        owner.validate(plan.job.topology)
    except UnknownAxisError:
        return
    except ScopeError as error:
        facts: dict[str, Any] = {"resource": resource.name}
        if owner is resource.owner and resource.name in plan.owners:
            facts["owners"] = len(plan.owners[resource.name])
        yield Finding("RB104", f"resource {resource.name}: {error}", labels=labels, facts=facts)


def _gate_path(plan: Plan, resource: Resource, consumer: Consumer) -> KeyPath:
    return (*plan.declaration.consumer_path(resource, consumer)[:-1], "owner")


def _count(plan: Plan, resource: Resource) -> Iterator[Finding]:
    owners = plan.owners[resource.name]
    if not owners and not resource.once_per:
        yield Finding(
            "RB101",
            f"nobody owns {resource.name}: no rank passes {resource.owner}",
            labels=plan.owner_label(resource, "lets nobody through"),
            facts={"resource": resource.name, "owners": 0},
            fix=None if resource.once_per is None else singleton_text(plan, resource),
        )
        return
    if resource.once_per is None:
        return
    topology = plan.job.topology
    by_value: dict[tuple[int, ...], list[int]] = {}
    for rank in range(topology.size):
        at = topology.coordinates(rank)
        by_value.setdefault(tuple(at[name] for name in resource.once_per), [])
    for owner in _certain_owners(topology, resource, owners):
        at = topology.coordinates(owner)
        by_value[tuple(at[name] for name in resource.once_per)].append(owner)
    missing = [value for value, found in by_value.items() if not found]
    several = {value: found for value, found in by_value.items() if len(found) > 1}
    if missing:
        yield _nobody(plan, resource, missing)
    if several:
        yield _several(plan, resource, several)


def _certain_owners(topology: Topology, resource: Resource, owners: tuple[int, ...]) -> tuple[int, ...]:
    """The owners; of an election one member a group, where whoever wins serves the same values."""
    if isinstance(resource.owner, Gate) or resource.owner.rank != "any":
        return owners
    certain = []
    for group in resource.owner.groups(topology):
        values = {tuple(topology.coordinates(rank)[name] for name in resource.once_per or ()) for rank in group.members}
        if len(values) == 1:
            certain.append(group.members[0])
    return tuple(certain)


def _nobody(plan: Plan, resource: Resource, missing: list[tuple[int, ...]]) -> Finding:
    axes = resource.once_per or ()
    values = [dict(zip(axes, value, strict=True)) for value in missing]
    return Finding(
        "RB101",
        f"nobody owns {resource.name} for {_values(plan.job.topology, values)}",
        labels=(
            *plan.owner_label(resource, "lets nobody through there"),
            *plan.value("resources", resource.name, "once_per", text="one owner for each of these is promised"),
        ),
        facts={"resource": resource.name, "once_per": list(axes), "missing": values},
        fix=singleton_text(plan, resource),
    )


def _several(plan: Plan, resource: Resource, several: Mapping[tuple[int, ...], list[int]]) -> Finding:
    axes = resource.once_per or ()
    found = [(dict(zip(axes, value, strict=True)), ranks) for value, ranks in several.items()]
    free = free_along(plan.job.topology, several.values(), resource)
    details = [
        f"{_values(plan.job.topology, [at])}: {ranks_text(ranks)} on {hosts_text(plan, ranks)}"
        for at, ranks in found[:4]
    ]
    if len(several) > 4:
        details.append(f"... and {len(several) - 4} more like these")
    at, first = found[0]
    return Finding(
        "RB102",
        f"{resource.name} has several owners: {ranks_text(first)} for {_values(plan.job.topology, [at])}"
        + (f", and so for {len(several) - 1} more" if len(several) > 1 else "")
        + (f"; the owner is free along {', '.join(free)}" if free else ""),
        labels=(
            *plan.owner_label(resource, f"lets {ranks_text(first)} through"),
            *plan.value("resources", resource.name, "once_per", text="exactly one for each of these is promised"),
        ),
        facts={
            "resource": resource.name,
            "once_per": list(axes),
            "several": [{"coordinates": at, "ranks": ranks} for at, ranks in found],
            "axes": list(free),
        },
        details=tuple(details),
        fix=singleton_text(plan, resource),
    )


def singleton_text(plan: Plan, resource: Resource) -> str | None:
    """`singleton` as the file spells it."""
    owner = singleton(plan, resource)
    return None if owner is None else spelled(owner)


def singleton(plan: Plan, resource: Resource) -> Scope | Gate | None:
    """The owner that there is once for each value of `once_per`, where one can be told."""
    topology = plan.job.topology
    try:
        leaves = topology.factors(resource.once_per or ())
    except ScopeError:
        return None
    # Axes of size 1 too: the declaration is to hold when they grow.
    group = [name for name in leaves if name not in (resource.once_per or ())]
    return Scope(group) if group else Gate({})


def spelled(owner: Scope | Gate) -> str:
    """An owner as the topology file spells it."""
    if isinstance(owner, Scope):
        group = ", ".join(f'"{name}"' for name in owner.group)
        rank = f'"{owner.rank}"' if owner.rank == "any" else owner.rank
        return f"singleton_per = {{ group = [{group}], rank = {rank} }}"
    terms = [f"{name} = {values[0] if len(values) == 1 else list(values)}" for name, values in owner.terms.items()]
    return f"owner = {{ {', '.join(terms)} }}" if terms else "owner = {}"


def hosts_text(plan: Plan, ranks: Iterable[int]) -> str:
    """``host 0`` or ``hosts a, b``: where `ranks` run."""
    names = list(dict.fromkeys(plan.host_name(node) for rank in ranks for node in plan.nodes[rank]))
    return f"host{'s' * (len(names) != 1)} {few(names)}" if names else "no host"


def _values(topology: Topology, values: list[dict[str, int]]) -> str:
    """``dp 0, dp 1``; axes with one index tell nothing apart."""
    told = [{name: index for name, index in value.items() if topology.sizes[name] > 1} for value in values]
    if told == [{}]:
        return "the whole job"
    return few([" ".join(f"{name} {index}" for name, index in value.items()) for value in told])
