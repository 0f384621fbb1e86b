"""What the processes of a rehearsal are told to do, and what they tell of it: data alone, sent over pipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rankbind.endpoint import Endpoint
from rankbind.errors import RankbindError
from rankbind.resource import Job


class RehearsalError(RankbindError, RuntimeError):
    """A rehearsal that could not be held, or not to its end."""


class NetworkError(RehearsalError):
    """Network namespaces that cannot be made here."""


@dataclass(frozen=True, slots=True)
class Bind:
    """An address that a process is to bind.

    Attributes:
        number: which of the plan's bindings it is.
        endpoints: as libzmq is to see it; several where some port of a range will do, to be tried in this order.
        sharing: how it is shared with other processes on purpose.
    """

    number: int
    resource: str
    role: str
    endpoints: tuple[str, ...]
    ipv6: bool = False
    v6only: bool = False
    sharing: Literal["inherited", "reuseport"] | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """A claim that a process is to make.

    Attributes:
        number: of the resource in the job.
        group: index on each axis it exists once for.
        endpoints: by role, as they will be bound.
        election: whether to be refused the resource itself means to stand by.
    """

    number: int
    resource: str
    group: Mapping[str, int]
    endpoints: Mapping[str, Endpoint]
    paths: tuple[str, ...]
    declared: str
    election: bool


@dataclass(frozen=True, slots=True)
class Dial:
    """What a consumer is to dial.

    Attributes:
        number: which of the plan's dialled it is; for a process that watches, which of its bindings.
        endpoints: as libzmq is to see it; several where a name may stand for each of them.
        role: what is spoken there: a replay answers who asks, anything else publishes.
    """

    number: int
    endpoints: tuple[str, ...]
    role: str


@dataclass(frozen=True, slots=True)
class Part:
    """One process.

    Attributes:
        rank: None for one that is no rank of the job: a consumer outside it, or (`watches`) one that dials everything
            that is bound on its host.
        node: the host it runs on; None: on none of them.
    """

    number: int
    rank: int | None
    node: int | None
    coordinates: Mapping[str, int] = field(default_factory=dict)
    wants: tuple[Want, ...] = ()
    binds: tuple[Bind, ...] = ()
    dials: tuple[Dial, ...] = ()
    watches: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else "the watcher" if self.watches else "a consumer"


@dataclass(frozen=True, slots=True)
class Order:
    """What a stage is to play, with all processes at once.

    Attributes:
        folder: a folder of the rehearsal's own; each host has its runtime directory there.
        nonce: what tells its messages, and its deployment, from those of others.
        hosts: the addresses of each host beside its first; None: no namespaces, everything happens here.
        network: the addresses that hosts get of themselves, as ``A.B.C.0/16``.
        expected: for each dialled, by number, the bindings that are meant to be reached.
        paths: socket files that are not the rehearsal's own, and may therefore be somebody else's.
        limit: seconds for all of it.
    """

    job: Job
    parts: tuple[Part, ...]
    folder: str
    nonce: str
    expected: Mapping[int, frozenset[int]]
    paths: tuple[str, ...] = ()
    hosts: tuple[tuple[str, ...], ...] | None = None
    network: str = ""
    limit: float = 60.0

    def runtime_directory(self, node: int | None) -> str:
        """Where the processes of a host keep their claims: hosts see nothing of each other's."""
        return f"{self.folder}/host{'' if node is None else node}"


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has what another wanted.

    Attributes:
        pid: 0 if it cannot be told.
        program: its command line, or what else is known of it.
    """

    pid: int
    program: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a claim.

    Attributes:
        state: ``standing by`` is who lost an election. ``failed``: no claim could be made at all.
        holder: the pid of who holds it, 0 if that is not known.
        address: the endpoint or path that is held, where it is that and not the resource.
        diagnosis: the message of the error.
    """

    state: Literal["held", "refused", "standing by", "failed"]
    holder: int = 0
    address: str | None = None
    diagnosis: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """What became of a bind.

    Attributes:
        at: the real endpoint; None if nothing was bound.
        errno: the kernel's, or libzmq's; 0 where it was not tried.
        error: the same in words.
        holder: who has the address.
    """

    at: str | None = None
    errno: int = 0
    error: str = ""
    holder: Holder | None = None


@dataclass(slots=True)
class Report:
    """What was seen of an `Order`.

    Attributes:
        pids: of each part, by number.
        owned: for each part whether it found itself the owner of each resource, where it can be told.
        claims: by part and resource.
        bound: by part and binding.
        heard: for each that was dialled, the bindings whose messages came.
        watched: for each binding, the bindings whose messages came to who dialled its real address.
        unable: why something could not be dialled, by its number.
        died: parts that ended before they were told to, and how.
    """

    pids: dict[int, int] = field(default_factory=dict)
    owned: dict[int, dict[str, bool]] = field(default_factory=dict)
    claims: dict[tuple[int, int], Claimed] = field(default_factory=dict)
    bound: dict[tuple[int, int], Bound] = field(default_factory=dict)
    heard: dict[int, set[int]] = field(default_factory=dict)
    watched: dict[int, set[int]] = field(default_factory=dict)
    unable: dict[int, str] = field(default_factory=dict)
    died: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a stage could not go on. `network`: it is only that it has no namespaces."""

    reason: str
    network: bool = False


Answer: TypeAlias = Report | Failure
