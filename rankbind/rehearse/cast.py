"""Who plays what: the orders of a rehearsal, from a plan."""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from itertools import islice
from pathlib import Path

from rankbind.check.dialling import own_host, reaches
from rankbind.check.plan import Binding, Dialled, Plan
from rankbind.endpoint import EPHEMERAL_PORTS, IPC_PATH_BYTES, MAX_PORT, Endpoint
from rankbind.errors import RehearsalError
from rankbind.rehearse.network import address, free_network
from rankbind.rehearse.script import Bind, Dial, Order, Part, Want
from rankbind.resource import Resource
from rankbind.scope import HOST, Gate

ALL_RANKS = 64
"""Up to so many ranks the whole job is played, beyond it those that own or dial something."""
MOST_PROCESSES = 1024
_DRAWN = 256
"""Of a range of ports so many are tried at most."""
_STAND_IN = "127.0.0.2"
"""An address of this host that is not where ``localhost`` leads: who binds the latter alone is not reached there."""
_LOWEST = 10_000


class Ports:
    """Which port stands for a declared one: the same, one at a distance, or one that nobody has.

    Equal ports stand for equal ones, and different for different, so that what collides is what would. Of a port beyond
    65535 libzmq keeps the lowest 16 bits: they stand for what they would hit.

    Args:
        shift: how far they are moved, up or down.
        free: take ports that nobody has, and keep them from other rehearsals until `close`.

    Attributes:
        moved: what stands for each declared port; empty where each stands for itself.

    Raises:
        RehearsalError: a shifted port would be none, or there are not so many free ones.
    """

    def __init__(self, plan: Plan, shift: int | None = None, *, free: bool = False) -> None:
        self.free, self.moved, self._kept = free, dict[int, int](), list[socket.socket]()
        wanted = sorted({port & MAX_PORT for each in _tcp(plan) for port in drawn(plan, each)} - {0})
        if free:
            self._take(wanted)
        elif shift is not None:
            self.moved = {port: port + shift for port in wanted}
            for port, to in self.moved.items():
                if not 0 < to <= MAX_PORT:
                    raise RehearsalError(f"port {port} shifted by {shift} would be {to}: there are ports 1..{MAX_PORT}")

    def of(self, port: int) -> int:
        """What stands for a declared port."""
        low = port & MAX_PORT
        return port - low + self.moved.get(low, low)

    def close(self) -> None:
        """Let others have them."""
        for each in self._kept:
            each.close()

    def _take(self, wanted: list[int]) -> None:
        candidates = list(range(_LOWEST, MAX_PORT + 1))
        random.shuffle(candidates)
        low, high = _ephemeral()
        candidates.sort(key=lambda port: not low <= port <= high)  # those are the last resort
        for port in wanted:
            while port not in self.moved:
                if not candidates:
                    self.close()
                    raise RehearsalError(f"this host has fewer free ports than the {len(wanted)} that are needed")
                candidate = candidates.pop()
                kept = _keep(candidate)
                if kept is not None:
                    self._kept.append(kept)
                    self.moved[port] = candidate


def _keep(port: int) -> socket.socket | None:
    """A socket that keeps a port from other rehearsals, but from nobody who listens; None if somebody has it."""
    six = socket.has_dualstack_ipv6()
    made = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if six:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(("::" if six else "0.0.0.0", port))
    except OSError:
        made.close()
        return None
    # Only now: whoever else keeps one meets a socket without the option and is refused; libzmq sets it as well, and so
    # may bind beside a socket that does not listen (kernel.md).
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _ephemeral() -> tuple[int, int]:
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        return EPHEMERAL_PORTS
    return low, high


def _tcp(plan: Plan) -> Iterator[Endpoint]:
    for each in (*(b.endpoint for b in plan.bindings if not b.probe), *(d.endpoint for d in plan.dialled)):
        if each is not None and each.transport == "tcp":
            yield each


def drawn(plan: Plan, endpoint: Endpoint) -> Iterable[int]:
    """The declared ports that may be tried: of a range each needs one at most, and meets nobody after that many."""
    return islice(range(endpoint.first, endpoint.last + 1), min(len(plan.bindings) + 1, _DRAWN))


class Cast:
    """The orders of a rehearsal.

    Args:
        namespaces: whether each host has a network of its own, so that all are played at once. Otherwise each host is
            played here, one after the other.
        folder: for claims, and for sockets that must not be where they are declared: as hosts share a file system here,
            and where the ports are not the declared ones either.

    Attributes:
        whole: whether every rank of the job is played.
        moved_paths: whether sockets are in the folder.
    """

    def __init__(self, plan: Plan, ports: Ports, *, namespaces: bool, folder: str, limit: float) -> None:
        self.plan, self.ports, self.namespaces, self.folder, self.limit = plan, ports, namespaces, folder, limit
        self.moved_paths = namespaces or bool(ports.moved) or ports.free
        self.whole = sum(len(host.ranks) for host in plan.job.topology.hosts) <= ALL_RANKS
        self.bindings: dict[tuple[int, int], list[tuple[int, Binding]]] = {}
        for number, binding in enumerate(plan.bindings):
            if not binding.probe:  # nobody keeps what is only looked at
                self.bindings.setdefault((binding.node, binding.rank), []).append((number, binding))
        self.hosts = tuple(tuple(self._addresses(node)) for node in range(len(plan.job.topology.hosts)))
        taken = [each for host in self.hosts for each in host]
        self.network = free_network(taken, len(self.hosts)) if namespaces else ""
        self._sockets: dict[tuple[int | None, str], str] = {}

    def orders(self) -> tuple[Order, ...]:
        """One for all hosts, or for each, in their order.

        Raises:
            RehearsalError: it would take too many processes.
        """
        nodes = range(len(self.hosts))
        return tuple(map(self._order, [tuple(nodes)] if self.namespaces else [(node,) for node in nodes]))

    def _order(self, nodes: tuple[int, ...]) -> Order:
        parts = (*self._ranks(nodes), *self._outsiders(nodes))
        if len(parts) > MOST_PROCESSES:
            raise RehearsalError(
                f"it takes {len(parts)} processes at once, and at most {MOST_PROCESSES} are started: rehearse a "
                "smaller job of the same shape (fewer replicas, fewer hosts)"
            )
        files = (b.endpoint.file for b in self.plan.bindings if b.node in nodes and b.endpoint and not b.probe)
        return Order(
            parts,
            self.folder,
            () if self.moved_paths else tuple(dict.fromkeys(each for each in files if each is not None)),
            self.hosts if self.namespaces else None,
            self.network,
            self.limit,
        )

    def _ranks(self, nodes: tuple[int, ...]) -> Iterator[Part]:
        topology = self.plan.job.topology
        dials: dict[tuple[int | None, int | None], list[Dial]] = {}
        for number, dialled in enumerate(self.plan.dialled):
            if dialled.rank is not None:
                dials.setdefault((dialled.node, dialled.rank), []).extend(self._dial(number, dialled.node, nodes))
        for node in nodes:
            for rank in topology.hosts[node].ranks:
                wants = tuple(self._wants(rank, node))
                mine = tuple(dials.get((node, rank), ()))
                if self.whole or wants or mine:
                    binds = tuple(
                        self._bind(number, binding)
                        for number, binding in self.bindings.get((node, rank), ())
                        if binding.endpoint is not None
                    )
                    yield Part(rank, node, topology.coordinates(rank), wants, binds, mine)

    def _outsiders(self, nodes: tuple[int, ...]) -> Iterator[Part]:
        found: dict[tuple[int, int | None], list[Dial]] = {}
        for number, dialled in enumerate(self.plan.dialled):
            home = self._homes.get(number)
            if dialled.rank is None and (home is None or home in nodes):
                found.setdefault((id(dialled.consumer), home), []).extend(self._dial(number, home, nodes))
        yield from (Part(None, home, dials=tuple(dials)) for (_, home), dials in found.items() if dials)

    def _wants(self, rank: int, node: int) -> Iterator[Want]:
        """The claims of a rank, as `rankbind.court` makes them."""
        plan = self.plan
        for resource in plan.job.resources:
            if rank not in plan.owners.get(resource.name, ()):
                continue
            endpoints: dict[str, Endpoint] = {}
            paths: list[str] = []
            roles = {address: role for role, address in resource.claimed()}
            for _, binding in self.bindings.get((node, rank), ()):
                if binding.resource is not resource or binding.address not in roles:
                    continue
                at = binding.endpoint
                if binding.address.kind == "path":
                    paths.append(binding.text)
                elif at is not None and at.first == at.last and not at.kernel_picks:
                    endpoints[roles[binding.address]] = Endpoint.parse(
                        self._endpoints(binding)[0], ipv6=resource.ipv6, v6only=resource.v6only
                    )
            yield Want(
                resource.name,
                self._group(resource, rank, node),
                endpoints,
                tuple(paths),
                str(plan.declaration.document.key("resources", resource.name)),
                not isinstance(resource.owner, Gate) and resource.owner.rank == "any",
            )

    def _group(self, resource: Resource, rank: int, node: int) -> Mapping[str, int]:
        topology = self.plan.job.topology
        if isinstance(resource.owner, Gate):
            return {"rank": rank}
        # A rank may be placed on several hosts by mistake, and the topology then does not tell on which it is.
        host = resource.owner.group == (HOST,)
        return {"node_rank": node} if host else resource.owner.group_of(topology, topology.coordinates(rank))

    def _bind(self, number: int, binding: Binding) -> Bind:
        of = binding.resource
        return Bind(number, of.name, binding.address.role, self._endpoints(binding), of.ipv6, of.v6only, of.shared)

    def _endpoints(self, binding: Binding) -> tuple[str, ...]:
        """What is really bound; several for a range."""
        endpoint = binding.endpoint
        if endpoint is None:
            return ()
        if endpoint.transport != "tcp":
            return (self._local(endpoint, binding.node),)
        named = self.namespaces and isinstance(endpoint.address, str)
        host = address(self.network, binding.node) if named else endpoint.host
        return tuple(_spelled(host, self.ports.of(port)) for port in drawn(self.plan, endpoint))

    def _local(self, endpoint: Endpoint, node: int | None) -> str:
        """An ipc or inproc endpoint, with its socket where it harms nobody."""
        number = len(self._sockets)
        if endpoint.kernel_picks:
            # libzmq would make it in the working directory, and leave it there when it is killed.
            return f"ipc://{self._sockets.setdefault((node, f'*{number}'), f'{self.folder}/{number}')}"
        if endpoint.transport != "ipc" or not self.moved_paths:
            return str(endpoint)
        if endpoint.path_bytes > IPC_PATH_BYTES or (endpoint.abstract and self.namespaces):
            return str(endpoint)
        name = endpoint.path if endpoint.abstract else os.path.realpath(endpoint.path)
        made = f"@{Path(self.folder).name}-{number}" if endpoint.abstract else f"{self.folder}/{number}"
        return f"ipc://{self._sockets.setdefault((node, name), made)}"

    def _dial(self, number: int, home: int | None, nodes: tuple[int, ...]) -> Iterator[Dial]:
        """What is to be dialled, if it can be played."""
        dialled = self.plan.dialled[number]
        to = dialled.endpoint
        role = dialled.consumer.role
        bound = (b for b in self.plan.bindings if b.resource is dialled.resource and b.address.role == role)
        if any(b.endpoint is not None and b.endpoint.kernel_picks for b in bound):
            return  # nobody can know the port before
        hosts = tuple(self._targets(dialled, home, nodes))
        if to.transport != "tcp":
            endpoints: tuple[str, ...] = (self._local(to, home),)
        else:
            endpoints = tuple(_spelled(host, self.ports.of(to.first)) for host in hosts)
        if hosts:
            reachable = nodes if home is None or not own_host(self.plan, to) else (home,)
            meant = frozenset(at for at in self.meant(number) if self.plan.bindings[at].node in reachable)
            yield Dial(number, endpoints, role, meant)

    def _targets(self, dialled: Dialled, home: int | None, nodes: tuple[int, ...]) -> Iterator[str]:
        """The addresses that what is dialled stands for; none where it cannot be played."""
        to = dialled.endpoint
        if own_host(self.plan, to) or to.host == "*":
            yield to.host
            return
        known = self.plan.addressed.get(to.host)
        if not self.namespaces and len(self.hosts) > 1 and (known not in nodes or home not in (None, known)):
            return
        for node in nodes if known is None else (known,):
            first = address(self.network, node) if self.namespaces else _STAND_IN
            if isinstance(to.address, str):
                # A name may stand for any address of its host.
                yield from (first, *self.hosts[node])
            elif str(to.address) in self.hosts[node]:
                yield str(to.address)
            elif isinstance(to.address, IPv4Address):
                yield first
            else:
                six = next((each for each in self.hosts[node] if ":" in each), "" if self.namespaces else "::1")
                yield from (six,) if six else ()

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

    @cached_property
    def _homes(self) -> Mapping[int, int]:
        """The host of each consumer outside the job that dials its own; one on each where there are so many."""
        found: dict[int, int] = {}
        before: Counter[tuple[int, Endpoint]] = Counter()
        for number, dialled in enumerate(self.plan.dialled):
            if dialled.rank is None and own_host(self.plan, dialled.endpoint):
                nodes = sorted({self.plan.bindings[at].node for at in self.meant(number)}) or [0]
                key = id(dialled.consumer), dialled.endpoint
                found[number] = nodes[before[key] % len(nodes)]
                before[key] += 1
        return found

    def _addresses(self, node: int) -> Iterator[str]:
        """Addresses by which a host goes besides those that every host has; played here, those that are bound."""
        plan = self.plan
        given = plan.job.facts.addresses.get(plan.host_name(node), ()) if self.namespaces else ()
        mine = (b.endpoint for b in plan.bindings if b.node == node and not b.probe)
        bound = [each.address for each in mine if each and each.host]
        for each in dict.fromkeys((*(Endpoint("tcp", name).address for name in given), *bound)):
            if isinstance(each, IPv4Address | IPv6Address) and not each.is_loopback and not each.is_unspecified:
                yield str(each)


def _spelled(host: str, port: int) -> str:
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
