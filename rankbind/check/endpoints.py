"""RB2: where the owners are, and whether they get in each other's way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from rankbind.check.clashes import Clash, clashes
from rankbind.check.ownership import free_along, hosts_text, singleton, spelled
from rankbind.check.plan import Binding, Plan
from rankbind.endpoint import EPHEMERAL_PORTS, IPC_PATH_BYTES, MAX_PORT, UNPRIVILEGED_PORT_START, Endpoint
from rankbind.errors import ScopeError
from rankbind.finding import Finding, Level, few, ranks_text
from rankbind.resource import Address, Resource
from rankbind.scope import Gate, Scope

SILENT = "the kernel does not refuse the second bind of an ipc path: it takes the path over, and the first goes deaf"
_SHOWN = 4


def findings(plan: Plan) -> Iterator[Finding]:
    """RB201 to RB209, RB212 to RB214; RB604, which is found with them."""
    yield from _clashes(plan)
    bound: dict[tuple[int, int], list[Binding]] = {}
    for b in plan.bindings:
        bound.setdefault((id(b.resource), id(b.address)), []).append(b)
    for resource in plan.job.resources:
        for address in resource.addresses:
            bindings = bound.get((id(resource), id(address)), [])
            for rule in _RULES:
                yield from rule(plan, resource, address, bindings)


def _clashes(plan: Plan) -> Iterator[Finding]:
    groups: dict[tuple[str, str, str, str, bool, bool], list[Clash]] = {}
    for clash in clashes(plan.bindings):
        a, b = clash.a, clash.b
        if _order(plan, b) < _order(plan, a):
            clash = clash.swapped()
            a, b = clash.a, clash.b
        key = a.resource.name, a.address.role, b.resource.name, b.address.role, _one_address(clash), clash.silent
        groups.setdefault(key, []).append(clash)
    for found in groups.values():
        yield _clash_finding(plan, sorted(found, key=lambda c: (c.a.node, *_order(plan, c.a), c.a.rank, c.b.rank)))


def _order(plan: Plan, binding: Binding) -> tuple[int, int]:
    return plan.job.resources.index(binding.resource), binding.resource.addresses.index(binding.address)


def _one_address(clash: Clash) -> bool:
    return clash.a.resource is clash.b.resource and clash.a.address is clash.b.address


def _clash_finding(plan: Plan, found: list[Clash]) -> Finding:
    first = found[0]
    a, b = first.a, first.b
    together = _together(plan, found)
    same = _one_address(first)
    pairs = sum(clash.count for clash in found)
    free = free_along(plan.job.topology, [row["ranks"] for row in together], a.resource)
    # Two who look for a free port in one range may miss each other.
    drawn = all(is_range(clash.a) and is_range(clash.b) for clash in found)
    details = [_row_text(plan, row, a, same) for row in together[: _SHOWN if len(together) > 1 else 0]]
    if len(together) > _SHOWN:
        details.append(f"... {len(together)} addresses and {pairs} pairs in all")
    if first.silent and a.endpoint is not None:
        details.append(SILENT)
    labels = (
        *plan.address_label(a.resource, a.address, f"{done(a)} here"),
        *(
            plan.owner_label(a.resource, f"lets {ranks_text(together[0]['ranks'])} through")
            if same
            else plan.address_label(b.resource, b.address, "and here")
        ),
    )
    facts: dict[str, Any] = {
        "resources": list(dict.fromkeys((a.resource.name, b.resource.name))),
        "collisions": together,
        "pairs": pairs,
        "axes": list(free),
        "silent": first.silent,
    }
    return Finding(
        _code(first),
        _same_text(plan, first, together[0], free) if same else _two_text(plan, a, b),
        Level.WARNING if drawn else Level.ERROR,
        labels=labels,
        facts=facts,
        details=tuple(details),
        fix=_clash_fix(plan, found, free) if same else _apart(plan, a, b),
    )


def _code(clash: Clash) -> str:
    if clash.a.address.kind == "device":
        return "RB604"
    if clash.a.endpoint is None and clash.b.endpoint is None:
        return "RB212"
    return "RB202" if clash.silent else "RB201"


def _together(plan: Plan, found: list[Clash]) -> list[dict[str, Any]]:
    """The clashes by host and address: who meets there."""
    rows: dict[tuple[int, str, str], dict[str, Any]] = {}
    for clash in found:
        key = (clash.a.node, clash.a.text, clash.b.text)
        # A shared address has no host of its own: it is one row, whichever hosts meet there.
        key = key if clash.a.address.scope == "host" else (-1, *key[1:])
        row = rows.setdefault(
            key,
            {
                "endpoint": clash.a.text,
                "other": clash.b.text,
                "host": plan.host_name(clash.a.node),
                "node_rank": clash.a.node,
                "ranks": [],
                "endpoint_ranks": [],
                "other_ranks": [],
            },
        )
        row["endpoint_ranks"] = sorted({*row["endpoint_ranks"], *(x.rank for x in clash.one)})
        row["other_ranks"] = sorted({*row["other_ranks"], *(x.rank for x in clash.other)})
        row["ranks"] = sorted({*row["endpoint_ranks"], *row["other_ranks"]})
    return list(rows.values())


def _same_text(plan: Plan, clash: Clash, row: Mapping[str, Any], free: tuple[str, ...]) -> str:
    """What is said when one address comes out the same for several owners."""
    a, b = clash.a, clash.b
    text = f"{a.resource.name}: {takers(a.resource, row['ranks'], verb(a))} {a.text}"
    if a.rank == b.rank:
        return f"{text} {'twice' if a.node == b.node else 'on ' + hosts_text(plan, [a.rank])}"
    text += f" on host {row['host']}" if a.address.scope == "host" else ""
    if _names_all(a.address, free):
        one, other = plan.job.topology.coordinates(a.rank), plan.job.topology.coordinates(b.rank)
        return f"{text}; it comes out the same for {_at(one, free)} and for {_at(other, free)}"
    return text + (f"; neither the owner nor the address tells {' and '.join(free)} apart" if free else "")


def _two_text(plan: Plan, a: Binding, b: Binding) -> str:
    """What is said when two different addresses meet."""
    host = f" on host {plan.host_name(a.node)}" if a.address.scope == "host" else ""
    if a.text == b.text:
        return f"{_owner(a)} and {_owner(b)} both {verb(a)} {a.text}{host}"
    one, other = (f"{_owner(x)} {verb(x, singular=True)} {x.text}" for x in (a, b))
    return f"{one} and {other}{host}; the two overlap"


def _row_text(plan: Plan, row: Mapping[str, Any], a: Binding, same: bool) -> str:
    host = f" on host {row['host']}" if a.address.scope == "host" else ""
    if not same:
        if row["endpoint"] == row["other"]:
            return f"{row['endpoint']}{host}: {ranks_text(row['endpoint_ranks'])} and {ranks_text(row['other_ranks'])}"
        return (
            f"{row['endpoint']} ({ranks_text(row['endpoint_ranks'])}) and "
            f"{row['other']} ({ranks_text(row['other_ranks'])}){host}"
        )
    where = "" if host else f" on {hosts_text(plan, row['ranks'])}"
    return f"{row['endpoint']}{host}: {ranks_text(row['ranks'])}{where}"


def _owner(binding: Binding) -> str:
    role = "" if binding.address.role in _PLAIN else f" ({binding.address.role})"
    return f"{binding.resource.name}{role} of {ranks_of(binding.resource, [binding.rank])}"


def verb(binding: Binding, *, singular: bool = False) -> str:
    """What is done to an address: ``bind``, ``draw from``."""
    word, after = _VERBS[_doing(binding)][:2]
    return f"{word}{'s' * singular}{after}"


def done(binding: Binding) -> str:
    """The same as a participle, for a label."""
    return _VERBS[_doing(binding)][2]


def _doing(binding: Binding) -> str:
    if binding.probe:
        return "probe"
    if binding.endpoint is None:
        return binding.address.kind
    return "range" if is_range(binding) else "bind"


_VERBS = {
    "bind": ("bind", "", "bound"),
    "range": ("draw", " from", "bound"),
    "probe": ("probe", "", "probed"),
    "name": ("claim", "", "claimed"),
    "path": ("claim", "", "claimed"),
    "device": ("take", "", "taken"),
}
_PLAIN = ("bind", "name", "path", "device")
"""Roles that go without saying."""


def takers(resource: Resource, ranks: Sequence[int], verb: str) -> str:
    """``rank 0 (tokenizer manager) binds``: as `who`, with the process that does it."""
    first, _, after = verb.partition(" ")
    return f"{ranks_of(resource, ranks)} {first}{'s' * (len(set(ranks)) == 1)}{' ' * bool(after)}{after}"


def ranks_of(resource: Resource, ranks: Sequence[int]) -> str:
    """``ranks 0, 4 (tokenizer manager)``."""
    return ranks_text(ranks) + (f" ({resource.process})" if resource.process else "")


def is_range(binding: Binding) -> bool:
    """Whether some port of several is taken."""
    return binding.endpoint is not None and binding.endpoint.first != binding.endpoint.last


def _names_all(address: Address, axes: tuple[str, ...]) -> bool:
    """Whether an address already varies over `axes`, so that only its arithmetic can be wrong."""
    names = address.template.names
    return bool(axes) and ("rank" in names or all(name in names for name in axes))


def _at(coordinates: Mapping[str, int], axes: tuple[str, ...]) -> str:
    return " ".join(f"{name} {coordinates[name]}" for name in axes)


def _clash_fix(plan: Plan, found: list[Clash], free: tuple[str, ...]) -> str | None:
    a, b = found[0].a, found[0].b
    if not free:
        if a.rank != b.rank:
            return None
        return "bind different addresses" if a.node == b.node else "give each rank to one host"
    if a.address.kind == "device":
        return "give each rank of a host a device of its own: {local_rank} tells them apart"
    promised = set(a.resource.once_per or ())
    if a.resource.once_per is not None and promised.isdisjoint(free):
        # The promise says who should own: RB102 proposes the same, and other addresses would not keep it.
        meant = singleton(plan, a.resource)
        if meant is not None and _keeps_apart(plan, a, meant):
            return spelled(meant)
    vary = _vary(plan, a, free)
    if _names_all(a.address, free) or not isinstance(a.resource.owner, Gate):
        return vary
    topology = plan.job.topology
    named = [name for name in a.resource.owner.terms if name in topology.sizes]
    try:
        leaves = topology.factors([*free, *(name for name in named if name not in free)])
    except ScopeError:
        return vary
    group = [name for name in leaves if (name in free or name in named) and name not in promised]
    if promised.isdisjoint(free) and group:
        index = Scope(group).group_rank(topology, topology.coordinates(a.rank))
        last = index == prod(topology.sizes[name] for name in group) - 1
        backwards = any(value < 0 for values in a.resource.owner.terms.values() for value in values)
        scope = Scope(group, -1 if last and backwards else index)
        if _keeps_apart(plan, a, scope):
            return f"{spelled(scope)}\nor, where each is meant, {vary}"
    return vary


def _keeps_apart(plan: Plan, binding: Binding, owner: Scope | Gate) -> bool:
    """Whether, with another owner, nobody meets at this address."""
    resource = replace(binding.resource, owner=owner)
    job = replace(plan.job, resources=(resource,))
    bindings = Plan(replace(plan.declaration, job=job)).bindings
    return not any(clashes(b for b in bindings if b.address is binding.address))


def _vary(plan: Plan, binding: Binding, free: tuple[str, ...]) -> str:
    """How the address can become different for each owner."""
    endpoint, sizes = binding.endpoint, plan.job.topology.sizes
    if endpoint is None or endpoint.transport != "tcp":
        return f"put {' and '.join(f'{{{name}}}' for name in free)} into it: one for each owner"
    named = [name for name in binding.address.template.names if name in sizes and name not in free]
    if _names_all(binding.address, free):
        try:
            leaves = plan.job.topology.factors([*free, *named])
        except ScopeError:
            leaves = ()  # it speaks of one axis in two ways
        axes = [name for name in leaves if name in free or name in named]
        offset = "rank" if "rank" in binding.address.template.names or not axes else _number(axes)
        return f"let it vary with {offset}: that is different for each owner"
    offset = _number(free)
    taken = [
        e for x, e in _tcp(plan.bindings) if x.resource is binding.resource and x.address.role == binding.address.role
    ]
    step = max(e.last for e in taken) - min(e.first for e in taken) + 1
    # The term has to step over what the address already varies by: in the sizes of its axes, where they give that.
    by = (
        " * ".join(f"{name}_size" for name in named)
        if named and prod(sizes[name] for name in named) == step
        else str(step)
    )
    term = offset if step == 1 and not named else f"{_factor(offset)} * {by}"
    if is_range(binding):
        return f"add {term} to both ends of the range"
    return f"add a term for {' and '.join(free)} to the address: {{... + {term}}}"


def _number(axes: Sequence[str]) -> str:
    """The index of a rank among those that differ along `axes`, as arithmetic."""
    number = axes[0]
    for name in axes[1:]:
        number = f"{_factor(number)} * {name}_size + {name}"
    return number


def _factor(expression: str) -> str:
    return f"({expression})" if " " in expression else expression


def _apart(plan: Plan, a: Binding, b: Binding) -> str | None:
    """Where the second resource could go: the nearest ports that nobody of the job binds."""
    if a.endpoint is None or b.endpoint is None or a.endpoint.transport != "tcp":
        # A path may meet a socket's.
        return f"give the two different {'addresses' if a.endpoint or b.endpoint else f'{a.address.kind}s'}"

    def ports(of: Binding) -> list[tuple[int, int]]:
        return [
            (e.first, e.last)
            for x, e in _tcp(plan.bindings)
            if x.resource is of.resource and x.address.role == of.address.role
        ]

    mine, theirs = ports(a), ports(b)
    low, high = min(first for first, _ in mine), max(last for _, last in mine)
    taken = f"{_role(a.resource, a.address)} takes {_port_text(low, high)}"
    if a.resource is b.resource and a.address.role == b.address.role:
        return f"give the addresses of {_role(a.resource, a.address)} ranges that do not meet"
    span = max(last for _, last in theirs) - min(first for first, _ in theirs)
    others = [(e.first, e.last) for x, e in _tcp(plan.bindings) if not e.kernel_picks]
    others = [pair for pair in others if pair not in theirs] + mine
    starts = [*sorted(last + 1 for _, last in others), *sorted((first - 1 - span for first, _ in others), reverse=True)]
    for start in [*(s for s in starts if s > high), *(s for s in starts if 0 < s < low)]:
        if start + span <= MAX_PORT and all(last < start or first > start + span for first, last in others):
            return f"{taken}: move {_role(b.resource, b.address)} to {_port_text(start, start + span)}, for instance"
    return taken


def _role(resource: Resource, address: Address) -> str:
    return resource.name if address.role in _PLAIN else f"{address.role} of {resource.name}"


def _port_text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"


_Rule = Callable[[Plan, Resource, Address, list[Binding]], Iterator[Finding]]


def _about(plan: Plan, resource: Resource, address: Address, found: list[Binding], **more: Any) -> dict[str, Any]:
    ranks = _ranks(found)
    return {
        "labels": plan.address_label(resource, address, f"on {ranks_text(ranks)}"),
        "facts": {
            "resource": resource.name,
            "ranks": ranks,
            "endpoints": list(dict.fromkeys(b.text for b in found))[:64],
            **more,
        },
    }


def _verb(found: list[Binding]) -> str:
    return "probe" if found[0].probe else "bind"


def _ranks(bindings: Iterable[Binding]) -> list[int]:
    return sorted({binding.rank for binding in bindings})


def _tcp(bindings: Iterable[Binding]) -> Iterator[tuple[Binding, Endpoint]]:
    return ((b, b.endpoint) for b in bindings if b.endpoint is not None and b.endpoint.transport == "tcp")


def _past_the_end(plan: Plan, resource: Resource, address: Address, bindings: list[Binding]) -> Iterator[Finding]:
    found = [b for b, e in _tcp(bindings) if e.last > MAX_PORT or e.first < 0]
    if found:
        ports = sorted({port for _, e in _tcp(found) for port in (e.first, e.last) if not 0 <= port <= MAX_PORT})
        yield Finding(
            "RB203",
            f"{resource.name}: {ranks_text(_ranks(found))} would need port{'s' * (len(ports) > 1)} "
            f"{few([str(port) for port in ports])}; ports are 0..{MAX_PORT}",
            details=()
            if found[0].probe
            else ("libzmq refuses 65536 and keeps the low 16 bits of anything beyond: 65537 listens on port 1",),
            fix=f"lower the base by at least {ports[-1] - MAX_PORT}" if ports[0] >= 0 else None,
            **_about(plan, resource, address, found, ports=ports),
        )


def _port_zero(plan: Plan, resource: Resource, address: Address, bindings: list[Binding]) -> Iterator[Finding]:
    zero = [b for b, e in _tcp(bindings) if e.kernel_picks]
    others = [b for b, e in _tcp(bindings) if not e.kernel_picks]
    if zero and others:
        yield Finding(
            "RB214",
            f"{resource.name}: port 0 asks the kernel for a port and cannot carry an offset: "
            f"{ranks_text(_ranks(others))} would {_verb(others)} {few([str(e.first) for _, e in _tcp(others)])}",
            fix=f"leave 0 alone on every rank ({zero[0].text}) and publish what was bound, or start from a real base",
            **_about(plan, resource, address, others),
        )


def _assumed(declared: object) -> tuple[Level, str]:
    return (Level.NOTE, " by default") if declared is None else (Level.WARNING, "")


def _privileged(plan: Plan, resource: Resource, address: Address, bindings: list[Binding]) -> Iterator[Finding]:
    declared = plan.job.facts.unprivileged_port_start
    start = UNPRIVILEGED_PORT_START if declared is None else declared
    found = [b for b, e in _tcp(bindings) if 0 < e.first < start]
    if found:
        level, how = _assumed(declared)
        yield Finding(
            "RB204",
            f"{resource.name}: {takers(resource, _ranks(found), _verb(found))} a port below {start}, "
            f"which needs CAP_NET_BIND_SERVICE{how}",
            level,
            fix=f"take a port from {start} on, or say hosts.unprivileged_port_start",
            **_about(plan, resource, address, found),
        )


def _ephemeral(plan: Plan, resource: Resource, address: Address, bindings: list[Binding]) -> Iterator[Finding]:
    declared = plan.job.facts.ephemeral
    low, high = declared or EPHEMERAL_PORTS
    found = [b for b, e in _tcp(bindings) if e.first <= high and e.last >= low and not e.kernel_picks]
    if found:
        level, how = _assumed(declared)
        yield Finding(
            "RB205",
            f"{resource.name}: {takers(resource, _ranks(found), _verb(found))} inside {low}..{high}, "
            f"the hosts' range for outgoing connections{how}: any of them may hold the port first",
            level,
            fix=f"take a port below {low}, or list it in net.ipv4.ip_local_reserved_ports and say hosts.ephemeral",
            **_about(plan, resource, address, found),
        )


def _long_path(plan: Plan, resource: Resource, address: Address, bindings: list[Binding]) -> Iterator[Finding]:
    found = [b for b in bindings if b.endpoint is not None and b.endpoint.path_bytes > IPC_PATH_BYTES]
    if found:
        longest = max(b.endpoint.path_bytes for b in found if b.endpoint is not None)
        yield Finding(
            "RB206",
            f"{resource.name}: the ipc path has {longest} bytes on {ranks_text(_ranks(found))}; "
            f"a unix socket path ends at {IPC_PATH_BYTES}",
            fix="take a shorter folder, or a digest of the long part",
            **_about(plan, resource, address, found, bytes=longest),
        )


def _relative_path(plan: Plan, resource: Resource, address: Address, bindings: list[Binding]) -> Iterator[Finding]:
    found = [b for b in bindings if b.endpoint is not None and (b.endpoint.file or "/")[0] != "/"]
    if found:
        yield Finding(
            "RB207",
            f"{resource.name}: {found[0].text} is relative: the socket depends on the folder a process starts in",
            Level.WARNING,
            fix="write the path from the root: ipc:///run/...",
            **_about(plan, resource, address, found),
        )


def _needs_ipv6(plan: Plan, resource: Resource, address: Address, bindings: list[Binding]) -> Iterator[Finding]:
    found = [b for b, e in _tcp(bindings) if e.needs_ipv6 and not e.ipv6 and not b.probe]
    if found:
        yield Finding(
            "RB209",
            f"{resource.name}: {found[0].text} is IPv6 on a socket without IPv6; libzmq refuses it with ENODEV",
            fix="set ZMQ_IPV6 on the socket and say ipv6 = true, or write an IPv4 address",
            **_about(plan, resource, address, found),
        )


def _reserved(plan: Plan, resource: Resource, address: Address, bindings: list[Binding]) -> Iterator[Finding]:
    for reserved in plan.job.facts.reserved:
        first, last = reserved.first, reserved.last
        found = [b for b, e in _tcp(bindings) if e.first <= last and e.last >= first and not e.kernel_picks]
        if found:
            about = _about(plan, resource, address, found, holder=reserved.holder)
            about["labels"] += plan.value("hosts", "reserved", reserved.holder, text="reserved here")
            ports = _port_text(first, last)
            yield Finding(
                "RB213",
                f"{resource.name}: {takers(resource, _ranks(found), _verb(found))} inside {ports}, "
                f"which {reserved.holder} draws from",
                fix=f"take ports outside {ports}",
                **about,
            )


_RULES: tuple[_Rule, ...] = (
    _past_the_end,
    _port_zero,
    _privileged,
    _ephemeral,
    _long_path,
    _relative_path,
    _needs_ipv6,
    _reserved,
)
