"""Who am I: the rank and the coordinates of this process, and who said so.

Sources, nearest first: `init`, the variables ``RANKBIND_*``, torchrun's, SLURM's, Open MPI's; a DeviceMesh or process
groups are part of an `init`. Two that speak about one world (the same number of ranks) have to agree. What nobody said
stays unknown: it never becomes rank 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import RLock
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from rankbind import launcher
from rankbind.errors import IdentityError, ScopeError, TopologyError
from rankbind.launcher import Statement
from rankbind.resource import Job
from rankbind.topology import Topology, View

Source: TypeAlias = str | os.PathLike[str] | Topology | Job
Hosts: TypeAlias = int | Sequence[int] | Mapping[str, Sequence[int]]

PROCESS = "process"
"""The one axis of a world whose axes nobody declared."""

DEPLOYMENT = "default"
"""The name of a deployment that nobody named."""

_SAY_IT = """this process does not know its rank. Say it in one of three ways:
  in code:       rankbind.init("topology.toml", rank=3), or rankbind.init(axes={"pp": 2, "tp": 4}, rank=3)
  by variables:  RANKBIND_TOPOLOGY=topology.toml (or RANKBIND_AXES=pp=2,tp=4) and RANKBIND_RANK=3
  by a launcher: torchrun (RANK, WORLD_SIZE), srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS) or
                 mpirun (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)"""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Identity:
    """Which process of which job this is. Equal only to itself: what a process made belongs to one `Identity`.

    Attributes:
        coordinates: index on every axis that is known; on all of them, the views' too, when `rank` is.
        rank: the world rank; None when only some coordinates were given.
        source: who said so, with the names and values of the variables.
        job: the topology file's resources, for ``singleton_per("name")``.
        declared: False when only the number of processes is known; the single axis is then `PROCESS`.
        deployment: the name that tells the claims of one launch from those of others on the same hosts. None: this is
            no process of a launch but one that `use` plays, and what it makes is not claimed.
    """

    topology: Topology
    coordinates: Mapping[str, int]
    rank: int | None
    source: str
    job: Job | None = None
    declared: bool = True
    deployment: str | None = None

    @classmethod
    def of(
        cls,
        job: Topology | Job,
        rank: int | None = None,
        coordinates: Mapping[str, int] | None = None,
        source: str = "given",
        deployment: str | None = None,
    ) -> Identity:
        """The process at `rank` or at `coordinates`, without a look at the environment.

        Raises:
            TopologyError, UnknownAxisError: there is no such process.
        """
        topology = _topology(job)
        known = topology.complete({**(coordinates or {}), **({} if rank is None else {"rank": rank})})
        found = topology.rank(known) if all(name in known for name in topology.axes) else None
        named = None if deployment is None else _named(deployment, source)
        return cls(
            topology, MappingProxyType(known), found, source, job if isinstance(job, Job) else None, deployment=named
        )

    def address(self, resource: str, role: str = "bind") -> str:
        """The address of `resource` on this process, as the topology file has it: ``tcp://*:5558``.

        Args:
            role: which of its addresses: ``bind``, ``replay``, ``name`` or ``path``.

        Raises:
            IdentityError: no topology file was given, or the rank is not known.
            ScopeError: the file has no such resource, or the resource no such address.
        """
        if self.job is None or self.rank is None:
            lacking = "no topology file was given" if self.job is None else "the rank is not known"
            raise IdentityError(f"the address of {resource!r} cannot be told: {lacking} ({self})")
        try:
            return self.job.address(resource, self.rank, role)
        except KeyError:
            raise ScopeError(self._no_address(resource, role)) from None

    def _no_address(self, name: str, role: str) -> str:
        for resource in self.job.resources if self.job else ():
            if resource.name == name:
                roles = list(dict.fromkeys(address.role for address in resource.addresses))
                has = f"it has {', '.join(roles)} (ask with role={roles[0]!r})" if roles else "it has no address"
                return f"resource {name!r} of the topology file has no {role}: {has}"
        known = ", ".join(resource.name for resource in self.job.resources) if self.job else ""
        return f"the topology file has no resource {name!r}: it has {known or 'none'}"

    def __str__(self) -> str:
        who = "unknown rank" if self.rank is None else f"rank {self.rank}"
        at = ", ".join(f"{name} {index}" for name, index in self.coordinates.items())
        return f"{who} ({at}) of {_sizes(self.topology)}, says {self.source}"


def init(
    source: Source | None = None,
    *,
    rank: int | None = None,
    axes: Mapping[str, int] | None = None,
    views: Mapping[str, View] | None = None,
    hosts: Hosts | None = None,
    coordinates: Mapping[str, int] | None = None,
    device_mesh: Any = None,
    process_groups: Mapping[str, Any] | None = None,
    deployment: str | None = None,
) -> Identity:
    """Say which process this is. What is left out comes from the environment; what is said twice has to agree.

    Calling it again replaces the identity until something has acted on it; afterwards it may only repeat it.

    Args:
        source: a topology file, a `Topology` or a `Job`; its resources serve ``singleton_per("name")``.
        rank: the world rank.
        axes, views: sizes of the axes, outermost first, instead of `source`.
        hosts: the placement, as `Topology` takes it. It overrules the file's and the launcher's. Left out with `axes`,
            it is the launcher's, or unknown.
        coordinates: indices on the axes; some are enough, if they decide what is asked later.
        device_mesh: a ``torch.distributed`` DeviceMesh, or a part of one, as `Topology.from_device_mesh` reads it.
        process_groups: a ``torch.distributed`` process group for each axis: those that this process is in. Those of the
            others are taken to be alike, as nothing is communicated here; `Topology.from_process_groups` looks.
        deployment: what to call this launch, to tell its claims from those of others on the same hosts. Left out, it is
            that of ``RANKBIND_DEPLOYMENT``, else of the topology file, else ``default``.

    Raises:
        IdentityError: two sources contradict each other, nobody says the rank, a variable is no number, or it is too
            late to change.
        ConfigError, TopologyError: the file or the axes cannot be used.
    """
    if (source is not None and axes is not None) or (views is not None and axes is None):
        raise TypeError("give init a topology file (a Topology, a Job), or axes with their views, and not both")
    for value in (rank, *(coordinates or {}).values()):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"a rank or coordinate is an int, not {value!r}; variables are text: convert them")
    said = [] if rank is None else [Statement(f"init(rank={rank})", {"rank": rank})]
    if coordinates is not None:
        said.append(Statement(f"init(coordinates={dict(coordinates)})", coordinates))
    torchs = [launcher.from_mesh(device_mesh)] if device_mesh is not None else []
    if process_groups is not None:
        torchs.append(launcher.from_groups(process_groups))
    said += [statement for _, statement in torchs]
    if not said:
        _state.refuse_inherited()
    job = _load(source) if source is not None else None
    if job is None and (axes is not None or torchs):
        job = Topology(axes, views, hosts={}) if axes is not None else torchs[0][0]
    for topology, statement in torchs:
        for axis in statement.at.keys() & topology.sizes.keys():
            if job is not None and _topology(job).sizes.get(axis) != topology.sizes[axis]:
                raise IdentityError(
                    f"{statement.said}: the topology has no axis {axis} of size {topology.sizes[axis]} "
                    f"({_sizes(_topology(job))})"
                )
    who = _resolve(job, said, hosts, placed=source is not None and job is not None and bool(_topology(job).hosts))
    return _state.install(who if deployment is None else replace(who, deployment=_named(deployment, "init")))


def identity() -> Identity:
    """Which process this is: as `use` or `init` said, else as the environment says.

    Raises:
        IdentityError: nobody says it, two sources contradict each other, a variable is no number, or this process was
            forked and has not said who it is since.
    """
    return current() or _state.from_environment()


def current() -> Identity | None:
    """As `identity`, but None where nobody has said or asked it yet."""
    scoped = _scoped.get()
    if scoped is not None and scoped[1] == _state.generation:
        return scoped[0]
    return _state.process


def deployment() -> str:
    """The name of the deployment that this process belongs to, also where nobody has said which rank it is.

    Raises:
        IdentityError: ``RANKBIND_DEPLOYMENT`` is no name.
    """
    who = current()
    return (None if who is None else who.deployment) or _deployment(None)


@contextmanager
def use(
    who: Identity | Topology | Job,
    rank: int | None = None,
    coordinates: Mapping[str, int] | None = None,
    deployment: str | None = None,
) -> Iterator[Identity]:
    """Be another process inside the block: for tests, and for several ranks in one process.

    It holds for this thread or task and what it starts in its context; the environment is not looked at. What is made
    inside belongs to that `Identity`, and is found again when the same one is used again. Without a `deployment`
    nothing that is made inside is claimed.
    """
    if isinstance(who, Identity) and (rank, coordinates, deployment) != (None, None, None):
        raise TypeError("an Identity says its rank already: give use a Topology with rank or coordinates")
    one = who if isinstance(who, Identity) else Identity.of(who, rank, coordinates, "use()", deployment)
    _state.stop_shortcuts()
    token = _scoped.set((one, _state.generation))
    try:
        yield one
    finally:
        _scoped.reset(token)


def reset() -> None:
    """Forget who this process is, as if it had just started. For tests of `init` and of the environment."""
    _state.forget()


class Watcher(Protocol):
    """Something that remembers a decision made for the identity of the process."""

    def cool(self) -> None:
        """Forget the shortcut. Called under the lock of the identity: take no other."""

    def forked(self) -> None:
        """This is a child now: let go of what the parent made, without running any of its code."""


class _State:
    """What this process knows of itself, and who relies on it."""

    def __init__(self) -> None:
        self.mutex = RLock()
        self.process: Identity | None = None
        self.acted: str | None = None
        self.shortcuts = True
        self.generation = 0
        self.inherited: Mapping[str, str] = {}
        self.watchers: WeakSet[Watcher] = WeakSet()

    def install(self, found: Identity) -> Identity:
        with self.mutex:
            before = self.process
            if before is not None and _facts(before) == _facts(found):
                return before
            if before is not None and self.acted is not None:
                raise IdentityError(
                    f"init comes too late: {self.acted} already acted on {before}; now it would be {found}. "
                    "Call init before anything is decided"
                )
            self._cool()
            self.process, self.inherited = found, {}
            return found

    def forget(self) -> None:
        with self.mutex:
            self._cool()
            self.process, self.acted, self.inherited, self.shortcuts = None, None, {}, True

    def refuse_inherited(self) -> None:
        if self.inherited and self.inherited == launcher.variables():
            raise IdentityError(
                f"this process ({os.getpid()}) was forked and only inherited its parent's variables: a child is not "
                "the rank that its parent is. Call rankbind.init(..., rank=...) in it, or change its variables"
            )

    def from_environment(self) -> Identity:
        self.refuse_inherited()
        found = _resolve(None, [], None, placed=False)
        with self.mutex:
            self.process = self.process or found
            return self.process

    def stop_shortcuts(self) -> None:
        if self.shortcuts:
            with self.mutex:
                self.shortcuts = False
                self._cool()

    def forked(self) -> None:
        self.mutex = RLock()
        self.process, self.acted = None, None
        self.generation += 1
        self.inherited = launcher.variables()
        for watcher in tuple(self.watchers):
            watcher.forked()

    def _cool(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.cool()


_scoped: ContextVar[tuple[Identity, int] | None] = ContextVar("rankbind.identity", default=None)
_state = _State()
os.register_at_fork(after_in_child=_state.forked)


def watch(watcher: Watcher) -> None:
    """Tell `watcher` when the identity of the process changes, and when the process forks."""
    with _state.mutex:
        _state.watchers.add(watcher)


def watchers() -> tuple[Watcher, ...]:
    """All that were given to `watch` and still exist."""
    with _state.mutex:
        return tuple(_state.watchers)


def acted_on(who: Identity, what: str) -> None:
    """From now on `init` may not change the identity of the process: `what` has decided something by it."""
    if who is _state.process and _state.acted is None:
        _state.acted = what


def settle(who: Identity, shortcut: Callable[[], None]) -> None:
    """Take a shortcut past the identity, if there is only one in this process and it is `who`."""
    with _state.mutex:
        if _state.shortcuts and who is _state.process:
            shortcut()


def _load(source: Source) -> Topology | Job:
    if isinstance(source, Topology | Job):
        return source
    from rankbind.config import load

    return load(os.fspath(source))


def _own_topology() -> Topology | Job | None:
    env = os.environ
    if "RANKBIND_TOPOLOGY" in env and "RANKBIND_AXES" in env:
        raise IdentityError("RANKBIND_TOPOLOGY and RANKBIND_AXES both say what the axes are: unset one of them")
    if "RANKBIND_TOPOLOGY" in env:
        return _load(env["RANKBIND_TOPOLOGY"])
    if "RANKBIND_AXES" in env:
        try:
            return Topology(launcher.pairs("RANKBIND_AXES"), hosts={})
        except TopologyError as error:
            raise IdentityError(f"RANKBIND_AXES={env['RANKBIND_AXES']!r}: {error}") from None
    return None


def _resolve(job: Topology | Job | None, said: list[Statement], hosts: Hosts | None, *, placed: bool) -> Identity:
    """Put together what `init` was given and what the environment says. `placed`: the topology knows its hosts."""
    own, launchers = _own_topology(), launcher.from_launchers()
    if job is None and own is not None:
        job, placed = own, "RANKBIND_TOPOLOGY" in os.environ
    declared = job is not None
    if job is None:
        if not launchers:
            raise _unknown()
        job = Topology({PROCESS: launchers[0].size or 1}, hosts={})
    topology = _topology(job)
    mine = launcher.from_own_variables(_topology(own).size if own is not None else None)
    said = said + [statement for statement in mine if statement.size in (None, topology.size)]
    if not said and not launchers:
        raise _unknown()
    if not said and launchers[0].size != topology.size:
        raise IdentityError(
            f"{launchers[0].said} is a world of {launchers[0].size} ranks, and the topology one of {topology.size} "
            f"({_sizes(topology)}): correct one of them, or say the rank with init or RANKBIND_RANK"
        )
    said = said + [statement for statement in launchers if statement.size == topology.size]
    known = _agreed(topology, said)
    job = _place(job, said, launcher.hosts() if hosts is None else hosts, placed)
    who = Identity.of(job, coordinates=known, source=said[0].said)
    return replace(who, declared=declared, deployment=_deployment(job))


def _agreed(topology: Topology, said: list[Statement]) -> dict[str, int]:
    """Everything that the statements say together."""
    known: dict[str, tuple[int, str]] = {}
    for statement in said:
        try:
            if statement.size not in (None, topology.size):
                raise TopologyError(f"it is a world of {statement.size} ranks, the topology one of {topology.size}")
            at = topology.complete(statement.at)
        except TopologyError as error:
            raise IdentityError(f"{statement.said}: {error}") from None
        for name, index in (*statement.at.items(), *at.items()):
            before, who = known.setdefault(name, (index, statement.said))
            if before != index:
                raise IdentityError(
                    f"two sources disagree about which process this is: {who} says {name} {before}, "
                    f"{statement.said} says {name} {index}. If one of them means another world, unset its variables"
                )
    return topology.complete({name: index for name, (index, _) in known.items()})


def _place(job: Topology | Job, said: list[Statement], hosts: Hosts | None, placed: bool) -> Topology | Job:
    """`job` on the hosts that `hosts` says, else its own, else the launcher's, else unknown ones."""
    topology = _topology(job)
    seen = next((statement for statement in said if statement.blocks is not None), None)
    blocks = seen.blocks or () if seen is not None else ()
    if hosts is None and placed:
        launched = Topology(topology.axes, hosts=blocks).hosts
        if seen is not None and {host.ranks for host in launched} != {host.ranks for host in topology.hosts}:
            raise IdentityError(
                f"the topology places its ranks on {len(topology.hosts)} hosts, and {seen.said} on {len(blocks)} (of "
                f"{', '.join(map(str, blocks))} ranks): correct the hosts of the file, or overrule both with "
                "init(hosts=...) or RANKBIND_HOSTS"
            )
        return job
    if hosts is None:
        hosts = 1 if topology.size == 1 else blocks
    topology = Topology(topology.axes, topology.views, hosts)
    return replace(job, topology=topology) if isinstance(job, Job) else topology


def _deployment(job: Topology | Job | None) -> str:
    named = os.environ.get("RANKBIND_DEPLOYMENT")
    if named is not None:
        return _named(named, "RANKBIND_DEPLOYMENT")
    return (job.deployment if isinstance(job, Job) else None) or DEPLOYMENT


def _named(deployment: str, source: str) -> str:
    if not deployment.strip() or not deployment.isprintable():
        raise IdentityError(f"{source} calls the deployment {deployment!r}, which is no name: use letters and digits")
    return deployment


def _topology(job: Topology | Job) -> Topology:
    return job.topology if isinstance(job, Job) else job


def _facts(who: Identity) -> tuple[object, ...]:
    return who.topology, dict(who.coordinates), who.rank, who.job, who.declared, who.deployment


def _sizes(topology: Topology) -> str:
    return " x ".join(f"{name} {size}" for name, size in topology.axes.items())


def _unknown() -> IdentityError:
    seen = launcher.not_enough()
    return IdentityError(_SAY_IT + (f"\nSeen, and not enough: {seen}" if seen else ""))
