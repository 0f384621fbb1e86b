"""Who plays what: the orders of a rehearsal, from a plan."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from itertools import islice

from rankbind.check.dialling import reaches
from rankbind.check.plan import Binding, Dialled, Plan
from rankbind.endpoint import IPC_PATH_BYTES, Endpoint
from rankbind.rehearse.network import address, free_network
from rankbind.rehearse.ports import Ports
from rankbind.rehearse.script import Bind, Dial, Order, Part, RehearsalError, Want
from rankbind.resource import Resource
from rankbind.scope import HOST, Gate

ALL_RANKS = 64
"""Up to so many processes the whole job is played, beyond it those that own or dial something."""
MOST_PROCESSES = 1024
_DRAWN = 256
"""Of a range of ports so many are tried at most."""
_SOCKETS = 256
"""Of one process that is no rank."""
_STAND_IN = "127.0.0.2"
"""An address of this host that is not where ``localhost`` leads: who binds the latter alone is not reached there."""


def ports_of(plan: Plan) -> set[int]:
    """Every port that is bound or dialled; of a range those that may be tried."""
    found: set[int] = set()
    for each in (*(b.endpoint for b in plan.bindings), *(d.endpoint for d in plan.dialled)):
        if each is not None and each.transport == "tcp":
            found.update(_ports(plan, each))
    return found


def _ports(plan: Plan, endpoint: Endpoint) -> Iterable[int]:
    # Each needs a port of its own at most, and so meets nobody any more after that many.
    return islice(range(endpoint.first, endpoint.last + 1), min(len(plan.bindings) + 1, _DRAWN))


class Cast:
    """The orders of a rehearsal.

    Args:
        namespaces: whether each host has a network of its own, so that all are played at once. Otherwise each host is
            played here, one after the other.
        folder: for claims, and for sockets that must not be where they are declared: as hosts share a file system here,
            and where the ports are not the declared ones either.
        limit: seconds for all of it.

    Attributes:
        whole: whether every rank of the job is played.

    Raises:
        RehearsalError: it would take too many processes.
    """

    def __init__(self, plan: Plan, ports: Ports, *, namespaces: bool, folder: str, nonce: str, limit: float) -> None:
        self.plan, self.ports, self.namespaces = plan, ports, namespaces
        self.folder, self.nonce, self.limit = folder, nonce, limit
        self.moved_paths = namespaces or ports.kind != "declared"
        self.whole = sum(len(host.ranks) for host in plan.job.topology.hosts) <= ALL_RANKS
        self.addresses = tuple(tuple(self._addresses(node)) for node in range(len(plan.job.topology.hosts)))
        taken = [each for host in self.addresses for each in host]
        self.network = free_network(taken, len(self.addresses)) if namespaces else ""
        self._homes = self._settle()
        self._files: dict[tuple[int | None, str], str] = {}

    def orders(self) -> tuple[Order, ...]:
        """One for all hosts, or for each, in their order."""
        nodes = range(len(self.addresses))
        return tuple(map(self._order, [tuple(nodes)] if self.namespaces else [(node,) for node in nodes]))

    def _order(self, nodes: tuple[int, ...]) -> Order:
        plan = self.plan
        parts = [*self._ranks(nodes), *self._outsiders(nodes), *self._watchers(nodes)]
        if len(parts) > MOST_PROCESSES:
            raise RehearsalError(
                f"it takes {len(parts)} processes at once, and at most {MOST_PROCESSES} are started: rehearse a "
                "smaller job of the same shape (fewer replicas, fewer hosts)"
            )
        played = {number for part in parts for each in part.dials for number in [each.number]}
        return Order(
            plan.job,
            tuple(replace(part, number=number) for number, part in enumerate(parts)),
            self.folder,
            self.nonce,
            {number: self.meant(number) & self._on(self._around(number, nodes)) for number in played},
            () if self.moved_paths else tuple(dict.fromkeys(self._own_files(nodes))),
            self.addresses if self.namespaces else None,
            self.network,
            self.limit,
        )

    def meant(self, number: int) -> frozenset[int]:
        """Which bindings somebody who dials is meant to reach, as the check sees it."""
        dialled = self.plan.dialled[number]
        return frozenset(
            at
            for at, b in enumerate(self.plan.bindings)
            if b.resource is dialled.resource and b.address.role == dialled.consumer.role
            # Most differ in their port: it is looked at first.
            if b.endpoint is not None and b.endpoint.first <= dialled.endpoint.first <= b.endpoint.last
            if reaches(self.plan, dialled, b)
        )

    def _around(self, number: int, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """The hosts that somebody who dials can reach."""
        return (self._homes[number],) if number in self._homes else nodes

    def _on(self, nodes: tuple[int, ...]) -> frozenset[int]:
        return frozenset(number for number, binding in enumerate(self.plan.bindings) if binding.node in nodes)

    def _ranks(self, nodes: tuple[int, ...]) -> Iterator[Part]:
        plan = self.plan
        for node in nodes:
            binds: dict[int, list[Bind]] = {}
            dials: dict[int, list[Dial]] = {}
            for number, binding in enumerate(plan.bindings):
                if binding.node == node and binding.endpoint is not None:
                    binds.setdefault(binding.rank, []).append(self._bind(number, binding))
            for number, dialled in enumerate(plan.dialled):
                if dialled.rank is not None and dialled.node == node and self._can_be_dialled(dialled, nodes):
                    dials.setdefault(dialled.rank, []).append(self._dial(number, dialled, nodes))
            for rank in plan.job.topology.hosts[node].ranks:
                wants = tuple(self._wants(rank, node))
                part = Part(
                    0,
                    rank,
                    node,
                    plan.job.topology.coordinates(rank),
                    wants,
                    tuple(binds.get(rank, ())),
                    tuple(dials.get(rank, ())),
                )
                if self.whole or part.wants or part.dials:
                    yield part

    def _outsiders(self, nodes: tuple[int, ...]) -> Iterator[Part]:
        found: dict[tuple[int, int | None], list[Dial]] = {}
        for number, dialled in enumerate(self.plan.dialled):
            home = self._homes.get(number)
            if dialled.rank is not None or (home is not None and home not in nodes):
                continue
            if self._can_be_dialled(dialled, nodes):
                found.setdefault((id(dialled.consumer), home), []).append(self._dial(number, dialled, nodes))
        for (_, home), dials in found.items():
            for start in range(0, len(dials), _SOCKETS):
                yield Part(0, None, home, dials=tuple(dials[start : start + _SOCKETS]))

    def _watchers(self, nodes: tuple[int, ...]) -> Iterator[Part]:
        for node in nodes:
            if any(binding.node == node and binding.endpoint is not None for binding in self.plan.bindings):
                yield Part(0, None, node, watches=True)

    def _wants(self, rank: int, node: int) -> Iterator[Want]:
        plan = self.plan
        for number, resource in enumerate(plan.job.resources):
            if rank not in plan.owners.get(resource.name, ()):
                continue
            endpoints: dict[str, Endpoint] = {}
            paths: list[str] = []
            for binding in plan.bindings:
                if binding.resource is not resource or (binding.rank, binding.node) != (rank, node):
                    continue
                if binding.address.kind == "path":
                    paths.append(binding.text)
                elif binding.endpoint is not None and resource.shared is None:
                    role, more = binding.address.role, len(endpoints)
                    if binding.endpoint.first == binding.endpoint.last:
                        endpoints[f"{role} {more}" if role in endpoints else role] = Endpoint.parse(
                            self._endpoints(binding)[0], ipv6=resource.ipv6, v6only=resource.v6only
                        )
            yield Want(
                number,
                resource.name,
                self._group(resource, rank, node),
                endpoints,
                tuple(paths) if resource.shared is None else (),
                str(plan.declaration.document.key("resources", resource.name)),
                not isinstance(resource.owner, Gate) and resource.owner.rank == "any",
            )

    def _group(self, resource: Resource, rank: int, node: int) -> Mapping[str, int]:
        """What tells the claims of a resource apart: the axes that it is to exist once for."""
        topology = self.plan.job.topology
        at = topology.coordinates(rank)
        if resource.shared is not None:
            return {"rank": rank}
        if not isinstance(resource.owner, Gate):
            if resource.owner.group == (HOST,):
                return {"node_rank": node}
            return {name: at[name] for name in resource.owner.identity(topology)}
        # A gate alone promises nothing: each that passes has its own.
        names = topology.axes if resource.once_per is None else resource.once_per
        return {name: at[name] for name in names if name in at}

    def _bind(self, number: int, binding: Binding) -> Bind:
        resource = binding.resource
        endpoints = self._endpoints(binding)
        return Bind(
            number, resource.name, binding.address.role, endpoints, resource.ipv6, resource.v6only, resource.shared
        )

    def _endpoints(self, binding: Binding) -> tuple[str, ...]:
        """What is really bound; several for a range."""
        endpoint = binding.endpoint
        if endpoint is None:
            return ()
        if endpoint.transport != "tcp":
            return (self._local(endpoint, binding.node),)
        host = endpoint.host
        if self.namespaces and isinstance(endpoint.address, str):
            host = address(self.network, binding.node)
        return tuple(_tcp(host, self.ports.of(port)) for port in _ports(self.plan, endpoint))

    def _local(self, endpoint: Endpoint, node: int | None) -> str:
        """An ipc or inproc endpoint, with its socket where it harms nobody."""
        if endpoint.transport != "ipc" or endpoint.kernel_picks or not self.moved_paths:
            return str(endpoint)
        if endpoint.path_bytes > IPC_PATH_BYTES or (endpoint.abstract and self.namespaces):
            return str(endpoint)
        name = endpoint.path if endpoint.abstract else os.path.realpath(endpoint.path)
        number = len(self._files)
        made = f"@{self.nonce}-{number}" if endpoint.abstract else f"{self.folder}/{number}"
        return f"ipc://{self._files.setdefault((node, name), made)}"

    def _own_files(self, nodes: tuple[int, ...]) -> Iterator[str]:
        for binding in self.plan.bindings:
            if binding.node in nodes and binding.endpoint is not None and binding.endpoint.file is not None:
                yield binding.endpoint.file

    def _dial(self, number: int, dialled: Dialled, nodes: tuple[int, ...]) -> Dial:
        to = dialled.endpoint
        if to.transport != "tcp":
            home = dialled.node if dialled.rank is not None else self._homes.get(number)
            return Dial(number, (self._local(to, home),), dialled.consumer.role)
        hosts = self._dialled_hosts(dialled, nodes)
        return Dial(number, tuple(_tcp(host, self.ports.of(to.first)) for host in hosts), dialled.consumer.role)

    def _dialled_hosts(self, dialled: Dialled, nodes: tuple[int, ...]) -> Iterator[str]:
        """The addresses that what is dialled stands for."""
        to = dialled.endpoint
        if stays_at_home(self.plan, to) or to.host == "*":
            yield to.host
            return
        known = self.plan.addressed.get(to.host)
        for node in nodes if known is None else (known,):
            first = address(self.network, node) if self.namespaces else _STAND_IN
            others = self.addresses[node]
            if isinstance(to.address, str):
                # A name may stand for any address of its host.
                yield from (first, *(each for each in others if self.namespaces or self._is_bound(each, node)))
            elif str(to.address) in others and (self.namespaces or self._is_bound(str(to.address), node)):
                yield str(to.address)
            elif isinstance(to.address, IPv6Address):
                yield next((each for each in others if ":" in each), "::1")
            else:
                yield first

    def _is_bound(self, text: str, node: int) -> bool:
        return any(
            b.node == node and b.endpoint is not None and str(b.endpoint.address) == text for b in self.plan.bindings
        )

    def _can_be_dialled(self, dialled: Dialled, nodes: tuple[int, ...]) -> bool:
        role = dialled.consumer.role
        same = [b for b in self.plan.bindings if b.resource is dialled.resource and b.address.role == role]
        if any(b.endpoint is not None and b.endpoint.kernel_picks for b in same):
            return False  # nobody can know the port before
        if self.namespaces or len(self.addresses) == 1 or stays_at_home(self.plan, dialled.endpoint):
            return True
        known = self.plan.addressed.get(dialled.endpoint.host)
        return known in nodes if dialled.rank is None else known is not None and known == dialled.node

    def _settle(self) -> dict[int, int]:
        """The host of each consumer outside the job that dials its own; one on each where there are so many."""
        found: dict[int, int] = {}
        before: Counter[tuple[int, Endpoint]] = Counter()
        for number, dialled in enumerate(self.plan.dialled):
            if dialled.rank is None and stays_at_home(self.plan, dialled.endpoint):
                nodes = sorted({self.plan.bindings[at].node for at in self.meant(number)}) or [0]
                key = id(dialled.consumer), dialled.endpoint
                found[number] = nodes[before[key] % len(nodes)]
                before[key] += 1
        return found

    def _addresses(self, node: int) -> Iterator[str]:
        """Addresses by which a host goes besides those that every host has."""
        plan = self.plan
        given = plan.job.facts.addresses.get(plan.host_name(node), ())
        named = [Endpoint("tcp", each).address for each in given]
        bound = [b.endpoint.address for b in plan.bindings if b.node == node and b.endpoint and b.endpoint.host]
        for each in dict.fromkeys((*named, *bound)):
            if isinstance(each, IPv4Address | IPv6Address) and not each.is_loopback and not each.is_unspecified:
                yield str(each)


def stays_at_home(plan: Plan, to: Endpoint) -> bool:
    """Whether what is dialled is the host of whoever dials."""
    if to.transport != "tcp":
        return True
    loopback = not isinstance(to.address, str) and to.address.is_loopback
    return to.host not in plan.addressed and to.host != "*" and (loopback or to.is_wildcard)


def _tcp(host: str, port: int) -> str:
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
