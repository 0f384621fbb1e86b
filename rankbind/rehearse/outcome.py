"""What was seen of a rehearsal, in the words of the topology file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rankbind.finding import Finding
from rankbind.rehearse.script import Bound, Claimed

State = Literal["bound", "refused", "deaf", "elsewhere", "standing by", "claimed", "died"]
"""What became of an address. ``deaf``: bound, and yet nothing that is sent to it arrives. ``elsewhere``: at another
port than was asked for. ``claimed``: there is nothing to bind."""


@dataclass(frozen=True, slots=True)
class Taken:
    """An address on one rank, or a resource that has none.

    Attributes:
        number: which of the plan's bindings; None for a resource without an address.
        role: ``bind``, ``replay``, ``name``, ``path``; empty for a resource without an address.
        text: as declared.
        claim: of the resource, with all its addresses.
        bound: None where nothing is bound: a name, a path, one that stands by.
        real: what was asked of libzmq.
        holder: who has what it was refused: ``rank 0``, or a process that is no part of the rehearsal.
        claim_holder: the same for the claim.
        foreign: whether `holder` is no part of the rehearsal.
        hears: in words, who gets what is sent to the address instead.
        died: how the process ended before its time.
    """

    resource: str
    role: str
    rank: int
    node: int
    host: str
    number: int | None
    text: str | None
    claim: Claimed
    bound: Bound | None = None
    real: str = ""
    holder: str = ""
    claim_holder: str = ""
    foreign: bool = False
    heard: bool = False
    hears: str = ""
    port: int | None = None
    candidate: bool = False
    died: str = ""

    @property
    def state(self) -> State:
        """What became of it."""
        if self.died:
            return "died"
        if self.claim.state == "standing by":
            return "standing by"
        if self.bound is None:
            return "refused" if self.claim.state == "refused" else "claimed"
        if self.bound.at is None:
            return "refused"
        if self.port is not None:
            return "elsewhere"
        return "bound" if self.heard else "deaf"

    @property
    def failed(self) -> bool:
        """Whether the launch would lack it."""
        return self.state not in ("bound", "claimed", "standing by") or self.claim.state == "refused"


@dataclass(frozen=True, slots=True)
class Call:
    """What one consumer dialled.

    Attributes:
        number: which of the plan's dialled.
        who: ``rank 3``, or the coordinates of a consumer outside the job.
        text: as declared.
        meant: the bindings it is meant to reach, as the check sees it; `heard`: those whose messages came.
        unable: why it could not be dialled.
        played: whether it was dialled at all.
    """

    number: int
    resource: str
    role: str
    who: str
    rank: int | None
    text: str
    meant: frozenset[int]
    heard: frozenset[int] = frozenset()
    unable: str = ""
    played: bool = True


@dataclass(frozen=True, slots=True)
class Prediction:
    """A finding of the check beside what was seen of it.

    Attributes:
        came: True: it came true. False: it did not, and had to. None: it could not be seen here.
        seen: what was seen, or why it could not be.
    """

    finding: Finding
    came: bool | None
    seen: str


@dataclass(frozen=True, slots=True)
class Surprise:
    """What failed although no finding says so.

    Attributes:
        cause: the ``machine`` on which it is rehearsed, or the ``check``, which does not know what it should.
    """

    text: str
    cause: Literal["machine", "check"]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rehearsal, seen.

    Attributes:
        taken: every address of every rank, in the order of the plan.
        hosts: whether hosts were network namespaces, or played one after the other here.
        processes, ranks: how many were started, and how many of them were ranks of the job.
        moved: what stood for each port, where that was another.
        notes: what has to be known to read it: what could not be seen.
    """

    file: str
    taken: tuple[Taken, ...]
    calls: tuple[Call, ...]
    predictions: tuple[Prediction, ...]
    surprises: tuple[Surprise, ...]
    hosts: Literal["namespaces", "here"]
    size: int
    host_count: int
    processes: int
    ranks: int
    ports: Literal["declared", "shifted", "free"]
    moved: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether something failed, as was predicted or not, or is predicted to fail and could not be seen."""
        return (
            any(each.finding.fails for each in self.predictions)
            or bool(self.surprises)
            or any(each.failed for each in self.taken)
        )
