"""What the processes of a rehearsal are told to do, and what they tell of it: data alone, sent over pipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rankbind.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Want:
    """A claim that a process is to make.

    Attributes:
        group: index on each axis it exists once for.
        endpoints: by role, as they will be bound.
        election: whether to be refused the resource itself means to stand by.
    """

    resource: str
    group: Mapping[str, int]
    endpoints: Mapping[str, Endpoint]
    paths: tuple[str, ...]
    declared: str
    election: bool


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
class Dial:
    """What a consumer is to dial.

    Attributes:
        number: which of the plan's dialled it is.
        endpoints: as libzmq is to see it; several where a name may stand for each of them.
        role: what is spoken there: a replay answers who asks, anything else publishes.
        meant: the bindings to be reached, as `check` sees it.
    """

    number: int
    endpoints: tuple[str, ...]
    role: str
    meant: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Part:
    """One process.

    Attributes:
        rank: None for a consumer outside the job.
        node: the host it runs on; None: on none of them.
    """

    rank: int | None
    node: int | None
    coordinates: Mapping[str, int] = field(default_factory=dict)
    wants: tuple[Want, ...] = ()
    binds: tuple[Bind, ...] = ()
    dials: tuple[Dial, ...] = ()

    def __str__(self) -> str:
        return "a consumer" if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Order:
    """What a stage is to play, with all processes at once.

    Attributes:
        folder: a folder of the rehearsal's own; each host has its runtime directory there.
        paths: socket files that are not in it, and may therefore be somebody else's.
        hosts: the addresses of each host beside its first; None: no namespaces, everything happens here.
        network: the addresses that hosts get of themselves, as ``A.B.C.0/16``.
        limit: seconds for all of it.
    """

    parts: tuple[Part, ...]
    folder: str
    paths: tuple[str, ...]
    hosts: tuple[tuple[str, ...], ...] | None
    network: str
    limit: float

    @property
    def nonce(self) -> str:
        """What tells its messages, and its deployment, from those of others."""
        return Path(self.folder).name

    def runtime_directory(self, node: int | None) -> str:
        """Where the processes of a host keep their claims: hosts see nothing of each other's."""
        return f"{self.folder}/host{'' if node is None else node}"


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a claim.

    Attributes:
        state: ``standing by`` is who lost an election. ``failed``: no claim could be made at all.
        holder: who holds it: ``rank 0``.
        address: the endpoint or path that is held, where it is that and not the resource.
        diagnosis: the message of the error.
    """

    state: Literal["held", "refused", "standing by", "failed"]
    holder: str = ""
    address: str | None = None
    diagnosis: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """What became of a bind.

    Attributes:
        at: the real endpoint; None if nothing was bound.
        errno: the kernel's, or libzmq's; 0 where it was not tried.
        error: the same in words.
        holder: who has the address: ``rank 0``, or a process that is no part of the rehearsal (`foreign`).
    """

    at: str | None = None
    errno: int = 0
    error: str = ""
    holder: str = ""
    foreign: bool = False


@dataclass(slots=True)
class Report:
    """What was seen of an `Order`.

    Attributes:
        claims: by part and resource.
        bound: by the number of the binding.
        own: for each binding, those whose messages came to its own process, which dialled its real address.
        heard: for each that was dialled, the bindings whose messages came.
        unable: why something could not be dialled, by its number.
        died: parts that ended before they were told to, and how.
    """

    claims: dict[tuple[int, str], Claimed] = field(default_factory=dict)
    bound: dict[int, Bound] = field(default_factory=dict)
    own: dict[int, set[int]] = field(default_factory=dict)
    heard: dict[int, set[int]] = field(default_factory=dict)
    unable: dict[int, str] = field(default_factory=dict)
    died: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a stage could not go on. `network`: it is only that it has no namespaces."""

    reason: str
    network: bool = False
