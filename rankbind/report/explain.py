"""Who owns a resource, and why a rank does or does not, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rankbind.check.dialling import reaches
from rankbind.check.ownership import free_axes
from rankbind.check.plan import Binding, Dialled, Plan
from rankbind.errors import ScopeError
from rankbind.finding import ranges, ranks_text
from rankbind.report.style import Row, paint, safe, wrap
from rankbind.resource import Resource
from rankbind.scope import HOST, LOCAL_RANK, WORLD, Gate, Group, Scope

_SHOWN = 8


def rank_text(plan: Plan, resource: Resource, rank: int, *, width: int | None = None, colour: bool = False) -> str:
    """What `rank` has to do with `resource`: where it stands, whether it owns and why, what is bound, who dials.

    Args:
        rank: of the topology, 0 to size - 1.
        width, colour: as for findings.
    """
    return _show([*_place(plan, rank), "", *_about_rank(plan, resource, rank)], width, colour)


def resource_text(plan: Plan, resource: Resource, *, width: int | None = None, colour: bool = False) -> str:
    """Who owns `resource` in the whole job, group by group."""
    return _show([*_declared(plan, resource), "", *_all_owners(plan, resource)], width, colour)


def _show(lines: Sequence[str], width: int | None, colour: bool) -> str:
    rows: list[Row] = []
    for index, line in enumerate(lines):
        indent = " " * (len(line) - len(line.lstrip()))
        pieces = wrap(safe(line.strip()), None if width is None else width - len(indent))
        rows += [(("bold" if index == 0 else "", f"{indent}{piece}"),) for piece in pieces]
    return paint(rows, colour=colour)


def _place(plan: Plan, rank: int) -> Iterator[str]:
    topology = plan.job.topology
    at = ", ".join(f"{name} {index}" for name, index in topology.coordinates(rank).items())
    hosts = topology.hosts_of(rank)
    if len(hosts) == 1:
        ranks = hosts[0].ranks
        where = f"local rank {ranks.index(rank)} of {len(ranks)} on host {hosts[0].name}"
    else:
        where = f"placed on hosts {', '.join(host.name for host in hosts)}" if hosts else "placed on no host"
    yield f"rank {rank} of {topology.size}: {at + '; ' if at else ''}{where}"


def _declared(plan: Plan, resource: Resource) -> Iterator[str]:
    how = "owned by" if isinstance(resource.owner, Scope) else "gated by hand,"
    yield f"{resource.name} ({plan.declaration.document.key('resources', resource.name)}): {how} {resource.owner}"


def _about_rank(plan: Plan, resource: Resource, rank: int) -> Iterator[str]:
    yield from _declared(plan, resource)
    yield from _verdict(plan, resource, rank)
    owners = plan.owners.get(resource.name)
    if owners is None:
        return
    if resource.once_per is not None and isinstance(resource.owner, Gate):
        yield from _promise(plan, resource, rank, owners)
    if resource.same_owner_as is not None:
        others = plan.owners.get(resource.same_owner_as)
        if others is not None:
            agree = "as it does" if set(others) == set(owners) else f"but is owned by {_owned(owners)}"
            yield f"it must have the owners of {resource.same_owner_as}, {_owned(others)}, {agree}"
    shown = _whose(plan, resource, rank, owners)
    bindings = [binding for binding in plan.bindings if binding.resource is resource and binding.rank == shown]
    yield from _addresses(plan, resource, rank, shown, bindings)
    yield from _dialling(plan, resource, rank, shown, bindings)


def _verdict(plan: Plan, resource: Resource, rank: int) -> Iterator[str]:
    if resource.name not in plan.owners:
        try:
            resource.owner.owners(plan.job.topology)
        except ScopeError as error:
            yield f"who owns it cannot be told: {error}"
        return
    owner = resource.owner
    if isinstance(owner, Gate):
        yield _gate_verdict(plan, resource.name, owner, rank)
        return
    groups = [group for group in owner.groups(plan.job.topology) if rank in group.members]
    if not groups:
        yield f"rank {rank} does not own {resource.name}: it runs on no host, and the groups are those of the hosts"
    for group in groups:
        described = _group(plan, owner, group)
        if owner.rank == "any":
            yield f"rank {rank} may own {resource.name}: whoever claims it first in its group, {described}"
            continue
        chosen = group.members[owner.rank]
        last = {-1: " (the last)"}.get(owner.rank, "" if owner.rank >= 0 else " (counted from the end)")
        if chosen == rank:
            yield f"rank {rank} owns {resource.name}: it is rank {owner.rank}{last} of its group, {described}"
        else:
            yield (
                f"rank {rank} does not own {resource.name}: its group is {described} "
                f"and rank {owner.rank}{last} of it is world rank {chosen}"
            )


def _group(plan: Plan, owner: Scope, group: Group) -> str:
    members = ranks_text(group.members)
    if owner.group == (WORLD,):
        return f"{members} (the world)"
    if owner.group == (HOST,):
        return f"{members} (host {plan.host_name(group.fixed['node_rank'])})"
    varies = f"{_and(owner.group)} var{'ies' if len(owner.group) == 1 else 'y'}"
    fixed = ", ".join(f"{name} = {index}" for name, index in group.fixed.items())
    return f"{members} ({varies}{'; ' + fixed if fixed else ''})"


def _gate_verdict(plan: Plan, name: str, gate: Gate, rank: int) -> str:
    topology = plan.job.topology
    owners = plan.owners[name]
    if not gate.terms:
        return f"rank {rank} owns {name}, as every rank does: its gate has no terms"
    at = topology.coordinates(rank) | {"rank": rank}
    hosts = topology.hosts_of(rank)
    if hosts:
        at[LOCAL_RANK] = hosts[0].ranks.index(rank)
    failing = [term for term in gate.terms if rank not in Gate({term: gate.terms[term]}).owners(topology)]
    told = ", ".join(f"its {term} is {at[term]}" if term in at else f"it has no {term}" for term in failing)
    free = [axis for axis in free_axes(topology, owners) if axis not in gate.terms]
    if failing:
        does = f"{_owned(owners)} do{'es' * (len(owners) == 1)}"
        return f"rank {rank} does not own {name}: it does not pass {gate} ({told}); {does}"
    others = [owner for owner in owners if owner != rank]
    also = f"; so {'do' if len(others) > 1 else 'does'} {ranks_text(others)}" if others else "; no other rank does"
    return f"rank {rank} owns {name}: it passes {gate}{also}" + (
        f" (the gate says nothing about {_and(free)})" if others and free else ""
    )


def _promise(plan: Plan, resource: Resource, rank: int, owners: Sequence[int]) -> Iterator[str]:
    topology = plan.job.topology
    axes = [name for name in resource.once_per or () if name in topology.sizes]
    mine = topology.coordinates(rank)
    found = [owner for owner in owners if all(topology.coordinates(owner)[name] == mine[name] for name in axes)]
    value = ", ".join(f"{name} = {mine[name]}" for name in axes) or "the whole job"
    have = "nobody owns it" if not found else f"{ranks_text(found)} own{'s' * (len(found) == 1)} it"
    yield f"exactly one owner is promised for {value}: {have}"


def _whose(plan: Plan, resource: Resource, rank: int, owners: Sequence[int]) -> int | None:
    """The owner whose addresses concern `rank`: itself, or that of its group."""
    if rank in owners:
        return rank
    if isinstance(resource.owner, Scope) and resource.owner.rank != "any":
        for group in resource.owner.groups(plan.job.topology):
            if rank in group.members:
                return group.members[resource.owner.rank]
    return None


def _addresses(
    plan: Plan, resource: Resource, rank: int, owner: int | None, bindings: Sequence[Binding]
) -> Iterator[str]:
    if owner is None or not resource.addresses:
        return
    subject = "it" if owner == rank else f"rank {owner}"
    elected = isinstance(resource.owner, Scope) and resource.owner.rank == "any"
    yield f"{subject} {'would take' if elected else 'takes'}:"
    hosts = {binding.node for binding in bindings}
    for binding in bindings:
        where = f" on host {plan.host_name(binding.node)}" if len(hosts) > 1 or owner != rank else ""
        yield f"  {binding.address.role}: {binding.text}{where}"
    bound = {id(binding.address) for binding in bindings}
    for item in plan.unreadable:
        if item.resource is resource and item.rank == owner and id(item.at) not in bound:
            yield f"  no address: {item.error}"
    if not bindings and not plan.nodes[owner]:
        yield f"  nothing: rank {owner} runs on no host"


def _dialling(
    plan: Plan, resource: Resource, rank: int, owner: int | None, bindings: Sequence[Binding]
) -> Iterator[str]:
    own = [f"{d.endpoint} ({d.consumer.role})" for d in plan.dialled if d.resource is resource and d.rank == rank]
    if own:
        yield f"rank {rank} dials {', '.join(own)}"
    if owner is None or not resource.consumers:
        return
    callers: dict[str, list[Dialled]] = {}
    for dialled in plan.dialled:
        if dialled.resource is resource and any(
            binding.address.role == dialled.consumer.role and reaches(plan, dialled, binding) for binding in bindings
        ):
            callers.setdefault(f"{dialled.endpoint} ({dialled.consumer.role})", []).append(dialled)
    if not callers:
        yield f"nobody dials {'it' if owner == rank else f'rank {owner}'}"
    for endpoint, found in callers.items():
        yield f"{_callers(found)} dial{'s' * (len(found) == 1)} {endpoint}"


def _callers(found: Sequence[Dialled]) -> str:
    ranks = [dialled.rank for dialled in found if dialled.rank is not None]
    if ranks:
        return ranks_text(ranks)
    outside = [_at(dialled.coordinates) for dialled in found]
    more = f" and {len(outside) - _SHOWN} more" if len(outside) > _SHOWN else ""
    return f"outside the job, {', '.join(outside[:_SHOWN])}{more}"


def _at(coordinates: Mapping[str, int]) -> str:
    return " ".join(f"{name} {index}" for name, index in coordinates.items()) or "one consumer"


def _all_owners(plan: Plan, resource: Resource) -> Iterator[str]:
    owners = plan.owners.get(resource.name)
    if owners is None:
        yield from _verdict(plan, resource, 0)
        return
    if isinstance(resource.owner, Gate):
        yield f"{_owned(owners)} pass{'es' * (len(owners) == 1)}"
        if resource.once_per is not None:
            yield f"exactly one owner is promised for each {', '.join(resource.once_per) or 'job'}"
    else:
        groups = resource.owner.groups(plan.job.topology)
        for group in groups[:_SHOWN]:
            owner = "any of them" if resource.owner.rank == "any" else f"rank {group.members[resource.owner.rank]}"
            yield f"{owner} owns it for {_group(plan, resource.owner, group)}"
        if len(groups) > _SHOWN:
            yield f"... {len(groups)} groups in all, owned by ranks {ranges(owners)}"
    yield f"`rankbind explain {resource.name} --rank N` tells why a rank does or does not"


def _owned(owners: Sequence[int]) -> str:
    return ranks_text(owners) if owners else "no rank"


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
