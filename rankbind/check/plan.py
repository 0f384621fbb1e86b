"""Everything a job binds and dials, expanded over every rank of every host: what the rules look at."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from rankbind.config import Declaration
from rankbind.endpoint import Endpoint
from rankbind.errors import EndpointError, ScopeError, TemplateError
from rankbind.finding import Label
from rankbind.resource import Address, Consumer, Job, Resource
from rankbind.scope import Gate, Scope


@dataclass(frozen=True, slots=True)
class Binding:
    """One address that one process takes.

    Attributes:
        node: index of the host it runs on; `host` is its name.
        text: the address with the rank's numbers in it.
        endpoint: the same, parsed; None for a name, a path or a device.
        election: which group of a ``rank="any"`` scope it stands for; of those with one election only one ever binds.
        deployment: which of several plans it belongs to, where they are looked at together.
    """

    resource: Resource
    address: Address
    rank: int
    node: int
    host: str
    text: str
    endpoint: Endpoint | None
    election: int | None = None
    deployment: int = 0

    @property
    def probe(self) -> bool:
        """Whether the address is only looked at when the job starts: it has to be free then, and nobody keeps it."""
        return self.address.role == "probe"


@dataclass(frozen=True, slots=True)
class Dialled:
    """One address that one consumer dials; `rank` and `node` are None for a consumer outside the job."""

    resource: Resource
    consumer: Consumer
    coordinates: Mapping[str, int]
    rank: int | None
    node: int | None
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An address that has no value on some rank, or none that is an endpoint."""

    resource: Resource
    at: Address | Consumer
    rank: int | None
    error: TemplateError | EndpointError


class Plan:
    """A declared job, expanded.

    Attributes:
        owners: ranks that own each resource; a resource whose owners cannot be told (an undeclared axis, a rank
            outside its group) is missing.
        bindings: every address taken, by every process: a rank placed on two hosts takes it twice.
        dialled: every address that a consumer dials.
        unreadable: addresses that could not be computed, those apart that use an undeclared name.
        incomplete: names of the resources of which not every owner, address and consumer could be told.
    """

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.job: Job = declaration.job
        self.owners: dict[str, tuple[int, ...]] = {}
        self.unreadable: list[Unreadable] = []
        self.incomplete: set[str] = set()
        self._variables: dict[tuple[int, int], Mapping[str, int]] = {}
        self._known: dict[Scope | Gate, tuple[int, ...] | None] = {}
        for resource in self.job.resources:
            owners = self._who(resource.owner)
            if owners is None:
                self.incomplete.add(resource.name)
            else:
                self.owners[resource.name] = owners
        self.bindings: tuple[Binding, ...] = tuple(self._bind())
        self.dialled: tuple[Dialled, ...] = tuple(self._dial())

    def value(self, *path: str | int, text: str = "") -> tuple[Label, ...]:
        """A label on the value at `path` of the file."""
        return (Label(self.declaration.document.value(*path), text),)

    def owner_label(self, resource: Resource, text: str = "") -> tuple[Label, ...]:
        """A label on what says who owns `resource`."""
        return self.value(
            "resources", resource.name, "owner" if isinstance(resource.owner, Gate) else "singleton_per", text=text
        )

    def address_label(self, resource: Resource, address: Address, text: str = "") -> tuple[Label, ...]:
        """A label on an address of `resource`."""
        return self.value(*self.declaration.address_path(resource, address), text=text)

    def host_name(self, node: int) -> str:
        """The name of the host with index `node`."""
        return self.job.topology.hosts[node].name

    @cached_property
    def addressed(self) -> Mapping[str, int]:
        """Index of the host that goes by each name or address."""
        found: dict[str, int] = {}
        for node, host in enumerate(self.job.topology.hosts):
            for name in (host.name, *self.job.facts.addresses.get(host.name, ())):
                found.setdefault(name, node)
        return found

    @cached_property
    def nodes(self) -> Mapping[int, tuple[int, ...]]:
        """Indices of the hosts that run each rank."""
        found: dict[int, list[int]] = {rank: [] for rank in range(self.job.topology.size)}
        for node, host in enumerate(self.job.topology.hosts):
            for rank in host.ranks:
                found[rank].append(node)
        return {rank: tuple(nodes) for rank, nodes in found.items()}

    def _who(self, owner: Scope | Gate) -> tuple[int, ...] | None:
        """The ranks that are let through; None where that cannot be told. Many resources have one owner."""
        if owner not in self._known:
            try:
                self._known[owner] = owner.owners(self.job.topology)
            except ScopeError:
                self._known[owner] = None
        return self._known[owner]

    def _bind(self) -> Iterator[Binding]:
        topology = self.job.topology
        for resource in self.job.resources:
            elections: dict[int, int] = {}
            if not isinstance(resource.owner, Gate) and resource.owner.rank == "any" and resource.name in self.owners:
                for number, group in enumerate(resource.owner.groups(topology)):
                    elections.update(dict.fromkeys(group.members, number))
            for address in resource.addresses:
                names = tuple(address.template.names)
                known: dict[Hashable, tuple[str, Endpoint | None]] = {}
                for rank in self.owners.get(resource.name, ()):
                    for node in self.nodes[rank]:
                        at = self._at(rank, node)
                        if not all(name in at for name in names):
                            self.incomplete.add(resource.name)
                            continue
                        key = tuple(at[name] for name in names)
                        try:
                            if key not in known:
                                known[key] = _read(resource, address, at)
                        except (TemplateError, EndpointError) as error:
                            self._give_up(resource, address, rank, error)
                            continue
                        host = topology.hosts[node].name
                        yield Binding(resource, address, rank, node, host, *known[key], elections.get(rank))

    def _give_up(
        self, resource: Resource, at: Address | Consumer, rank: int | None, error: TemplateError | EndpointError
    ) -> None:
        self.unreadable.append(Unreadable(resource, at, rank, error))
        self.incomplete.add(resource.name)

    def _at(self, rank: int, node: int) -> Mapping[str, int]:
        """What templates may use on `rank`."""
        if (rank, node) not in self._variables:
            self._variables[rank, node] = self.job.variables(rank, node)
        return self._variables[rank, node]

    def _dial(self) -> Iterator[Dialled]:
        for resource in self.job.resources:
            for consumer in resource.consumers:
                for coordinates, variables, rank, node in self._consumers(resource, consumer):
                    if not consumer.template.names.keys() <= variables.keys():
                        self.incomplete.add(resource.name)
                        continue
                    try:
                        endpoint = Endpoint.parse(consumer.template.render(variables))
                    except (TemplateError, EndpointError) as error:
                        self._give_up(resource, consumer, rank, error)
                    else:
                        yield Dialled(resource, consumer, coordinates, rank, node, endpoint)

    def _consumers(
        self, resource: Resource, consumer: Consumer
    ) -> Iterator[tuple[Mapping[str, int], Mapping[str, int], int | None, int | None]]:
        topology = self.job.topology
        if consumer.axes is None:
            ranks = self._who(consumer.gate)
            if ranks is None:
                self.incomplete.add(resource.name)
                return
            for rank in ranks:
                for node in self.nodes[rank]:
                    yield topology.coordinates(rank), self._at(rank, node), rank, node
            return
        # An outsider knows its own axes, and how large those of the job are.
        sizes = {f"{name}_size": size for name, size in (*topology.sizes.items(), *consumer.axes.items())}
        for indices in product(*(range(size) for size in consumer.axes.values())):
            coordinates = dict(zip(consumer.axes, indices, strict=True))
            yield (
                coordinates,
                {**sizes, "world_size": topology.size, "nnodes": len(topology.hosts), **coordinates},
                None,
                None,
            )


def _read(resource: Resource, address: Address, at: Mapping[str, int]) -> tuple[str, Endpoint | None]:
    """An address with numbers in it, and what it says."""
    text = address.template.render(at)
    if address.kind != "endpoint":
        return text, None
    return text, Endpoint.parse(text, ipv6=resource.ipv6, v6only=resource.v6only)
