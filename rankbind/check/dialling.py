"""RB2, the dialling side: what consumers dial and what owners bind must be one set."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from rankbind.check.ownership import free_axes
from rankbind.check.plan import Binding, Dialled, Plan
from rankbind.endpoint import MAX_PORT, Endpoint, overlaps
from rankbind.finding import Finding, Label, Level, few, ranks_text, who
from rankbind.resource import Resource

_Either = TypeVar("_Either", Binding, Dialled)


def findings(plan: Plan) -> Iterator[Finding]:
    """RB208, RB210 and RB211 for every resource that somebody dials."""
    for resource in plan.job.resources:
        # Where something could not be told that is the finding; what would seem to be missing only follows from it.
        if resource.name in plan.incomplete:
            continue
        roles = dict.fromkeys(consumer.role for consumer in resource.consumers)
        for role in roles:
            dialled = [d for d in plan.dialled if d.resource is resource and d.consumer.role == role]
            bound = [
                b for b in plan.bindings if b.resource is resource and b.address.role == role and b.endpoint is not None
            ]
            # What the kernel picks cannot be told before launch, and a port that is none cannot be dialled.
            if any(b.endpoint and (b.endpoint.kernel_picks or b.endpoint.last > MAX_PORT) for b in bound):
                continue
            yield from _across_processes(plan, resource, dialled, bound)
            lost, deaf = _missed(plan, dialled, bound)
            yield from _unbound(plan, resource, lost, bound, deaf)
            yield from _undialled(plan, resource, deaf, bound, dialled)
            if not lost and not deaf:
                yield from _on_other_hosts(plan, resource, dialled, bound)


def _across_processes(
    plan: Plan, resource: Resource, dialled: list[Dialled], bound: list[Binding]
) -> Iterator[Finding]:
    owners = {b.rank for b in bound}
    found = [d for d in dialled if d.endpoint.transport == "inproc" and d.rank not in owners]
    if found:
        yield Finding(
            "RB208",
            f"{resource.name}: {found[0].endpoint} is dialled by {_dialler(found)}, "
            "but inproc never leaves its process",
            labels=_consumer_labels(plan, resource, found),
            facts={"resource": resource.name, "endpoint": str(found[0].endpoint), "ranks": [d.rank for d in found]},
            fix="use ipc:// between processes of one host, tcp:// between hosts",
        )


def _unbound(
    plan: Plan, resource: Resource, lost: list[Dialled], bound: list[Binding], deaf: list[Binding]
) -> Iterator[Finding]:
    found = [d for d in lost if d.endpoint.transport != "inproc"]
    if not found:
        return
    endpoints = list(dict.fromkeys(str(d.endpoint) for d in found))
    listening = list(dict.fromkeys(f"{b.text} on host {plan.host_name(b.node)}" for b in bound))
    yield Finding(
        "RB210",
        f"{resource.name}: {_who(found)} {few(endpoints)}, where nobody listens",
        labels=(
            *_consumer_labels(plan, resource, found),
            *(plan.address_label(resource, bound[0].address, "what is bound") if bound else plan.owner_label(resource)),
        ),
        facts={"resource": resource.name, "dialled": endpoints, "bound": [b.text for b in bound][:64]},
        details=(f"bound: {few(listening) or 'nothing'}",),
        fix=_dial_fix(plan, found[0].endpoint, bound, deaf),
    )


def _dial_fix(plan: Plan, to: Endpoint, bound: list[Binding], deaf: list[Binding]) -> str | None:
    if not bound:
        return "say what it binds, or take the consumer away"
    if to.host == "*":
        return "dial a host by its name or address: * is only for binding"
    for b in deaf:
        at, host = b.endpoint, plan.host_name(b.node)
        if at is None or not at.transport == to.transport == "tcp" or not at.first <= to.first <= at.last:
            continue
        if not _loopback(to):
            return f"port {to.first} is bound by rank {b.rank} on host {host}: dial it there"
        how = "bind and dial" if _loopback(at) else "dial"
        return f"{to.host} is the host of whoever dials: {how} an address of host {host}"
    return _each_owner(plan, bound)


def _each_owner(plan: Plan, bound: list[Binding]) -> str | None:
    topology = plan.job.topology
    each = " and ".join(
        f"{name} 0..{topology.sizes[name] - 1}"
        for name in free_axes(topology, [b.rank for b in bound], bound[0].resource)
    )
    where = ", each on its host" if len({b.node for b in bound}) > 1 else ""
    return f"dial what the owners bind: {bound[0].address.template} for {each}{where}" if each else None


def _missed(plan: Plan, dialled: list[Dialled], bound: list[Binding]) -> tuple[list[Dialled], list[Binding]]:
    """Who dials in vain, and who listens in vain."""
    lost: list[Dialled] = []
    reached: set[int] = set()
    for callers, found in _calls(plan, dialled, bound):
        reached.update(id(b) for b in found)
        if not found:
            lost.extend(callers)
    return lost, [b for b in bound if id(b) not in reached]


def _calls(
    plan: Plan, dialled: Iterable[Dialled], bound: Iterable[Binding]
) -> Iterator[tuple[list[Dialled], list[Binding]]]:
    """Those that dial alike, and all whom they reach."""
    listeners: dict[tuple[Hashable, int | None], list[list[Binding]]] = {}
    for heard in _alike(bound):
        for node in (heard[0].node, None):
            listeners.setdefault((_where(heard[0].endpoint), node), []).append(heard)
    for callers in _alike(dialled):
        node = _node(plan, callers[0])
        there = (
            heard for where in (_where(callers[0].endpoint), _RANGES) for heard in listeners.get((where, node), ())
        )
        yield callers, [b for heard in there if reaches(plan, callers[0], heard[0]) for b in heard]


_RANGES = "ranges"


def _where(endpoint: Endpoint | None) -> Hashable:
    """What a call and a listener have in common; ranges, which may take any call, stand apart."""
    if endpoint is None or endpoint.first != endpoint.last:
        return _RANGES
    return endpoint.first if endpoint.transport == "tcp" else endpoint.file or endpoint.path


def _alike(items: Iterable[_Either]) -> Iterable[list[_Either]]:
    """Those that dial, or listen on, one endpoint from one place: what is true of one is true of all."""
    found: dict[Hashable, list[_Either]] = {}
    for item in items:
        inproc = item.endpoint is not None and item.endpoint.transport == "inproc"
        found.setdefault((item.endpoint, item.node, item.rank if inproc else None), []).append(item)
    return found.values()


def _undialled(
    plan: Plan, resource: Resource, found: list[Binding], bound: list[Binding], dialled: list[Dialled]
) -> Iterator[Finding]:
    if not found or not dialled:
        return
    endpoints = list(dict.fromkeys(f"{b.text} on host {plan.host_name(b.node)}" for b in found))
    yield Finding(
        "RB211",
        f"{resource.name}: nobody dials {few(endpoints)}, bound by {ranks_text([b.rank for b in found])}",
        labels=(
            *plan.address_label(resource, found[0].address, "bound here"),
            *_consumer_labels(plan, resource, dialled),
        ),
        facts={
            "resource": resource.name,
            "ranks": sorted({b.rank for b in found}),
            "endpoints": [b.text for b in found][:64],
        },
        details=(
            f"dialled: {few(list(dict.fromkeys(str(d.endpoint) for d in dialled)))}",
            "nobody reaches these ranks, and nothing says so at run time",
        ),
        fix=_each_owner(plan, bound),
    )


def _on_other_hosts(plan: Plan, resource: Resource, dialled: list[Dialled], bound: list[Binding]) -> Iterator[Finding]:
    """A consumer outside the job that dials its own host, for owners on several: it runs on one of them at most."""
    near = [d for d in dialled if d.node is None and own_host(plan, d.endpoint) and d.endpoint.transport != "inproc"]
    if not near:
        return
    at_home = {id(d) for d in near}
    others = [d for d in dialled if id(d) not in at_home]
    # Who is dialled where he is as well is out of danger, and of an election one wins, wherever.
    safe = {id(b) for _, reached in _calls(plan, others, bound) for b in reached}
    calls = list(_calls(plan, near, [b for b in bound if b.election is None and id(b) not in safe]))
    listeners = sorted({id(b): b for _, reached in calls for b in reached}.values(), key=_by_rank)
    nodes = sorted({b.node for b in listeners})
    certain = [d for callers, reached in calls if len(callers) < len({b.node for b in reached}) for d in callers]
    # As many callers as hosts, for every address: one runs on each, which is what is meant.
    if len(nodes) < 2 or (not certain and all(len(callers) >= len(nodes) for callers, _ in calls)):
        return
    found = certain or near
    hosts = [plan.host_name(node) for node in nodes]
    endpoints = list(dict.fromkeys(str(d.endpoint) for d in found))
    yield Finding(
        "RB211",
        f"{resource.name}: {_outsider(found)} dials {few(endpoints)} on its own host, and hosts {few(hosts)} listen: "
        + ("it reaches one of them only" if certain else "one process reaches one of them only"),
        Level.ERROR if certain else Level.NOTE,
        labels=(
            *_consumer_labels(plan, resource, found),
            *plan.address_label(resource, listeners[0].address, f"bound on hosts {few(hosts)}"),
        ),
        facts={
            "resource": resource.name,
            "ranks": sorted({b.rank for b in listeners}),
            "endpoints": list(dict.fromkeys(b.text for b in listeners))[:64],
            "dialled": endpoints[:64],
            "hosts": hosts,
        },
        fix="dial each owner at an address of its host\n"
        f"or, where a consumer runs on every host, give it an axis for that: axes = {{ node = {len(nodes)}, ... }}",
    )


def _by_rank(binding: Binding) -> tuple[int, int]:
    return binding.rank, binding.node


def reaches(plan: Plan, dialled: Dialled, binding: Binding) -> bool:
    """Whether what is dialled gets to the process of a binding."""
    to, at = dialled.endpoint, binding.endpoint
    if at is None or to.transport != at.transport or to.host == "*":
        return False
    # To dial an address is to meet who would collide with it.
    if not (overlaps(at, to, same_process=dialled.rank == binding.rank) or _by_name(plan, at, to)):
        return False
    node = _node(plan, dialled)
    return node is None or node == binding.node


def _by_name(plan: Plan, at: Endpoint, to: Endpoint) -> bool:
    """A host's name may stand for any of its addresses, loopback apart; two different literal addresses are two."""
    if at.transport != "tcp" or not at.first <= to.first <= at.last or _loopback(at) or _loopback(to):
        return False
    return isinstance(at.address, str) or isinstance(to.address, str) or to.host in plan.addressed


def _loopback(endpoint: Endpoint) -> bool:
    return not isinstance(endpoint.address, str) and endpoint.address.is_loopback


def _node(plan: Plan, dialled: Dialled) -> int | None:
    """The host that is dialled, where that can be told."""
    to = dialled.endpoint
    if to.host in plan.addressed:
        return plan.addressed[to.host]
    return dialled.node if own_host(plan, to) else None


def own_host(plan: Plan, to: Endpoint) -> bool:
    """Whether to dial it is to stay at home: anything but tcp, loopback, and the address that is none."""
    return to.host not in plan.addressed and (to.transport != "tcp" or to.is_wildcard or _loopback(to))


def _who(found: list[Dialled]) -> str:
    ranks = [d.rank for d in found if d.rank is not None]
    if not ranks:
        return f"{_outsider(found)} dials"
    by = _by(found)
    return f"{ranks_text(ranks)} ({by}) dial{'s' * (len(set(ranks)) == 1)}" if by else who(ranks, "dial")


def _dialler(found: list[Dialled]) -> str:
    ranks = [d.rank for d in found if d.rank is not None]
    return ranks_text(ranks) if ranks else _by(found) or "a consumer outside the job"


def _outsider(found: list[Dialled]) -> str:
    return _by(found) or "the consumer"


def _by(found: list[Dialled]) -> str | None:
    """Who dials, in the words of the file, where they all are that."""
    said = {d.consumer.by for d in found}
    return said.pop() if len(said) == 1 else None


def _consumer_labels(plan: Plan, resource: Resource, found: list[Dialled]) -> tuple[Label, ...]:
    found_consumers = {id(d.consumer): d.consumer for d in found}.values()
    return tuple(
        Label(plan.declaration.document.value(*plan.declaration.consumer_path(resource, consumer)), "dialled here")
        for consumer in found_consumers
    )
