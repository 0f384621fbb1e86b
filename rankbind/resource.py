"""What must exist exactly once: a resource, its owner, its addresses, who dials it, and the job it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from rankbind.scope import Gate, Scope
from rankbind.template import Template
from rankbind.topology import Topology

Kind: TypeAlias = Literal["endpoint", "name", "path", "device"]


@dataclass(frozen=True, slots=True)
class Address:
    """One address of a resource, as a template over its owner's coordinates.

    Attributes:
        role: which of the resource's addresses: ``bind``, ``replay``, ``name``, ``path``, ``device``; a ``probe`` is
            only looked at when the job starts: it has to be free then, and nobody keeps it.
        kind: an endpoint is bound; a name (a label set, a shared-memory name, an engine id), a path (a file or
            directory) and a device (``gpu 3``) are claimed.
        scope: how far the address reaches: one ``host``, or ``shared`` by all (a shared file system, a label set).
    """

    role: str
    template: Template
    kind: Kind = "endpoint"
    scope: Literal["host", "shared"] = "host"


@dataclass(frozen=True, slots=True)
class Consumer:
    """Somebody who dials a resource.

    Attributes:
        template: what is dialled, over the consumer's own coordinates.
        role: which of the resource's addresses it is meant to reach.
        axes: the consumer's own axes, where it is outside the job (a router with one subscription a replica). Without
            them the ranks of the job dial, each with its own coordinates: those that pass `gate`.
        by: who that is, for people: ``a router that reads /server_info``.
    """

    template: Template
    role: str = "bind"
    axes: Mapping[str, int] | None = None
    gate: Gate = field(default_factory=lambda: Gate({}))
    by: str | None = None

    def __post_init__(self) -> None:
        if self.axes is not None:
            object.__setattr__(self, "axes", MappingProxyType(dict(self.axes)))

    def __reduce__(self) -> tuple[Any, ...]:
        axes = None if self.axes is None else dict(self.axes)
        return Consumer, (self.template, self.role, axes, self.gate, self.by)

    def __hash__(self) -> int:
        return hash((self.template, self.role))


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that must exist exactly once in each group.

    Attributes:
        owner: a `Scope` (one per group, by construction) or a hand-written `Gate`.
        once_per: the axes it exists once for, whatever its addresses say; None when nothing is promised beyond `owner`.
        same_owner_as: another resource, whose owners must be the same ranks.
        shared: sharing that is meant: ``inherited`` (one listener passed on by fork) or ``reuseport``.
        ipv6, v6only: socket options of its endpoints, see `Endpoint`.
        process: which process takes it, for people, where it is not the rank itself but one beside it.
        authenticated: whether its endpoints ask who is there before they believe what they are sent; None: not said.
    """

    name: str
    owner: Scope | Gate
    addresses: tuple[Address, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    once_per: tuple[str, ...] | None = None
    same_owner_as: str | None = None
    shared: Literal["inherited", "reuseport"] | None = None
    ipv6: bool = False
    v6only: bool = False
    process: str | None = None
    authenticated: bool | None = None

    def claimed(self) -> Iterator[tuple[str, Address]]:
        """What its owner claims on its host, each with its role, numbered from the second of a role on: ``bind 2``.

        None of what is shared on purpose, or reaches beyond the host. No probe, which nobody keeps; no device, whose
        number means something only to the process that sees it.
        """
        seen: dict[str, int] = {}
        for address in self.addresses if self.shared is None else ():
            held = address.kind == "endpoint" and address.role != "probe"
            if held or (address.kind == "path" and address.scope == "host"):
                seen[address.role] = count = seen.get(address.role, 0) + 1
                yield address.role if count == 1 else f"{address.role} {count}", address


@dataclass(frozen=True, slots=True)
class ReservedPorts:
    """Ports that somebody else on every host draws from: a library's random range, a node agent."""

    first: int
    last: int
    holder: str


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known of the hosts' kernels. None: not said, so the Linux default is assumed and only noted.

    Attributes:
        ephemeral: first and last port of net.ipv4.ip_local_port_range.
        unprivileged_port_start: net.ipv4.ip_unprivileged_port_start.
        reserved: ports that others take.
        addresses: addresses of each host by its name, to tell which host a consumer dials.
    """

    ephemeral: tuple[int, int] | None = None
    unprivileged_port_start: int | None = None
    reserved: tuple[ReservedPorts, ...] = ()
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "addresses", MappingProxyType(dict(self.addresses)))

    def __reduce__(self) -> tuple[Any, ...]:
        return HostFacts, (self.ephemeral, self.unprivileged_port_start, self.reserved, dict(self.addresses))

    def __hash__(self) -> int:
        return hash((self.ephemeral, self.unprivileged_port_start, self.reserved))


@dataclass(frozen=True, slots=True)
class Job:
    """A topology and the resources of the processes on it: what a topology file declares.

    Attributes:
        deployment: the name of the launch, where the file says it.
    """

    topology: Topology
    resources: tuple[Resource, ...] = ()
    facts: HostFacts = field(default_factory=HostFacts)
    deployment: str | None = None

    def resource(self, name: str) -> Resource:
        """The resource called `name`; KeyError when there is none."""
        for resource in self.resources:
            if resource.name == name:
                return resource
        raise KeyError(name)

    def address(self, name: str, rank: int, role: str = "bind") -> str:
        """The address in `role` that `rank` takes for the resource called `name`, with its numbers in it.

        Raises:
            KeyError: there is no such resource, or it has no address in that role.
            TemplateError: the address has no value on this rank.
        """
        for address in self.resource(name).addresses:
            if address.role == role:
                return address.template.render(self.variables(rank))
        raise KeyError(f"resource {name} has no {role}")

    def variables(self, rank: int, node: int | None = None) -> dict[str, int]:
        """What a template may use on `rank`: coordinates, sizes, and torchrun's names.

        Args:
            node: index of the host it runs on; needed only where a placement puts the rank on several. Without any
                host the local names are absent.
        """
        topology = self.topology
        found = topology.coordinates(rank) | {f"{name}_size": size for name, size in topology.sizes.items()}
        found |= {"rank": rank, "world_size": topology.size, "nnodes": len(topology.hosts)}
        if node is None:
            node = next((index for index, host in enumerate(topology.hosts) if rank in host.ranks), None)
        if node is not None:
            ranks = topology.hosts[node].ranks
            found |= {"node_rank": node, "local_rank": ranks.index(rank), "local_world_size": len(ranks)}
        return found
