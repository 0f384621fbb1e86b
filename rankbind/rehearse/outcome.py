"""What was seen of a rehearsal, in the words of the topology file, beside what `check` predicted."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rankbind.check.plan import Plan
from rankbind.finding import Finding, few, ranks_text, who
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
        heard: whether what is sent to it arrives; `hears`: who gets it instead, in words.
        port: the declared port that it hit instead of its own.
        drawn: whether chance decides: it takes part in an election, or looks for a port in a range.
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
    heard: bool = False
    hears: str = ""
    port: int | None = None
    drawn: bool = False
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

    @property
    def seen(self) -> str:
        """What became of it, in words; empty where nothing was to be bound."""
        if self.died:
            return self.died
        if self.bound is None:
            return ""
        if self.bound.at is None:
            return f"{self.bound.error}{f' ({self.bound.holder})' if self.bound.holder else ''}"
        if self.port is not None:
            return f"listens on port {self.port} instead"
        return "bound, heard" if self.heard else f"bound, deaf{f': {self.hears}' if self.hears else ''}"

    def met(self) -> bool:
        """Whether another rank was in its way, as the kernel shows it; as the claim does, where nothing is bound."""
        if self.bound is None:
            return self.claim.state == "refused"
        return (self.state == "deaf" and bool(self.hears)) or (
            self.bound.errno == errno.EADDRINUSE and not self.bound.foreign
        )

    def refused(self, *numbers: int) -> bool:
        """Whether it was with one of these numbers that the bind failed."""
        return self.bound is not None and self.bound.errno in numbers


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
    text: str
    meant: frozenset[int] = frozenset()
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
    cause: Literal["machine", "check"] = "check"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rehearsal, seen.

    Attributes:
        taken: every address of every rank, in the order of the plan.
        setting: where it was played, in words; `hosts`: in network namespaces, or one after the other here.
        processes, ranks: how many were started, and how many of them were ranks of the job.
        moved: what stood for each port, where that was another.
        notes: what has to be known to read it: what could not be seen.
    """

    file: str
    taken: tuple[Taken, ...]
    calls: tuple[Call, ...]
    predictions: tuple[Prediction, ...]
    surprises: tuple[Surprise, ...]
    setting: str
    hosts: Literal["namespaces", "here"]
    processes: int
    ranks: int
    moved: Mapping[int, int]
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether something failed, as was predicted or not, or is predicted to fail and could not be seen."""
        return (
            any(each.finding.fails for each in self.predictions)
            or bool(self.surprises)
            or any(each.failed for each in self.taken)
        )


_Seen = tuple[bool | None, str]

_ALONE = "it depends on what else runs: nobody else was in the way this time"
_PORTS = "this user may bind them here, or other ports were bound"
_ADDRESSES: Mapping[str, tuple[Callable[[Taken], bool], str]] = {
    "RB201": (Taken.met, ""),
    "RB202": (Taken.met, ""),
    "RB203": (lambda x: x.state == "elsewhere" or x.refused(errno.EINVAL, errno.EACCES), ""),
    "RB204": (lambda x: x.refused(errno.EACCES), _PORTS),
    "RB205": (lambda x: x.bound is not None and x.bound.foreign, _ALONE),
    "RB206": (lambda x: x.refused(errno.ENAMETOOLONG), ""),
    "RB207": (lambda _: False, "all processes of a rehearsal start in one folder"),
    "RB209": (lambda x: x.refused(errno.ENODEV), ""),
    "RB213": (lambda x: x.bound is not None and x.bound.foreign, _ALONE),
    "RB214": (lambda x: x.refused(errno.EACCES), _PORTS),
}  # fmt: skip
"""How each finding about addresses shows, and why it may not; empty: it has to."""
_MACHINE = (
    errno.EACCES,
    errno.EADDRNOTAVAIL,
    errno.EAFNOSUPPORT,
    errno.EMFILE,
    errno.ENODEV,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EROFS,
)
"""Refusals that have to do with the machine rather than with the file."""


class Verdict:
    """The findings and what was seen, told apart.

    Attributes:
        predictions: each finding, and what came of it.
        surprises: what failed and was not predicted.
    """

    def __init__(
        self, plan: Plan, findings: Iterable[Finding], taken: tuple[Taken, ...], calls: tuple[Call, ...]
    ) -> None:
        self.plan, self.taken, self.calls = plan, taken, calls
        self._explained = set[int]()
        self._claims = set[tuple[str, int, int]]()
        self._explained_calls = set[int]()
        rules: Mapping[str, Callable[[Finding], _Seen]] = {
            "RB101": self._nobody,
            "RB102": self._several,
            "RB104": self._nobody,
            "RB208": self._unbound,
            "RB210": self._unbound,
            "RB211": self._undialled,
            "RB212": self._several,
            "RB401": self._apart,
            "RB601": lambda each: (True, f"{ranks_text(each.facts['ranks'])} could be started nowhere"),
            "RB602": lambda each: (True, f"{ranks_text(each.facts['ranks'])}: a process on each of these hosts"),
        }
        self.predictions = tuple(Prediction(each, *rules.get(each.code, self._addresses)(each)) for each in findings)
        self.surprises = tuple({each.text: each for each in self._surprises()}.values())

    def _addresses(self, finding: Finding) -> _Seen:
        if finding.code not in _ADDRESSES:
            return None, "a rehearsal does not show it"
        shows, unless = _ADDRESSES[finding.code]
        involved = self._involved(finding)
        shown = [each for each in involved if shows(each)]
        # What was barred for another reason, or left to chance, did not get as far as what is predicted.
        barred = unless or not involved or any(each.state != "bound" or each.drawn for each in involved)
        if shown or barred:
            self._explain(shown, involved)
        if shown:
            return True, _told(each for each in involved if shows(each) or each.claim.state == "refused")
        return (None if barred else False), unless or _told(involved) or "its ranks were not played"

    def _involved(self, finding: Finding) -> list[Taken]:
        facts = finding.facts
        found: list[Taken] = []
        for row in facts.get("collisions", ()):
            found += self._in_row(facts, row)
        if "endpoints" in facts:
            # Of many only the first are listed.
            endpoints = facts["endpoints"] if len(facts["endpoints"]) < 64 else None
            found += [
                each
                for each in self.taken
                if each.resource == facts["resource"]
                and each.rank in facts["ranks"]
                and (endpoints is None or each.text in endpoints)
            ]
        return list({id(each): each for each in found}.values())

    def _in_row(self, facts: Mapping[str, Any], row: Mapping[str, Any]) -> list[Taken]:
        return [
            each
            for each in self.taken
            if each.number is not None
            and each.resource in facts["resources"]
            and each.rank in row["ranks"]
            and each.text in (row["endpoint"], row["other"])
            and (self.plan.bindings[each.number].address.scope == "shared" or each.node == row["node_rank"])
        ]

    def _several(self, finding: Finding) -> _Seen:
        facts, told = finding.facts, list[str]()
        for row in facts.get("several", ()):
            at = " ".join(f"{name} {index}" for name, index in row["coordinates"].items())
            involved = [x for x in self.taken if x.resource == facts["resource"] and x.rank in row["ranks"]]
            told += self._together(involved, f"it{f' for {at}' if at else ''}")
        for row in facts.get("collisions", ()):
            told += self._together(self._in_row(facts, row), row["endpoint"])
        return (True, _some(told)) if told else (None, "its ranks were not played together")

    def _together(self, involved: list[Taken], what: str) -> Iterator[str]:
        claimed = [each for each in involved if not each.died]
        if len({(each.rank, each.node) for each in claimed}) > 1:
            yield f"{who([each.rank for each in claimed], 'claim')} {what} at once"
        # The claim of an address that is bound is about the address.
        refused = [x for x in claimed if x.claim.state == "refused" and (x.bound is None or x.claim.address is None)]
        self._explain(refused, refused)
        if refused:
            yield _told(refused)

    def _nobody(self, finding: Finding) -> _Seen:
        facts, at = finding.facts, self.plan.job.topology.coordinates
        found = owners = self._owners(facts["resource"])
        if "missing" in facts:
            found = [r for r in owners if any(each.items() <= at(r).items() for each in facts["missing"])]
        elif facts.get("owners") != 0:
            return None, "it is about who dials"
        if found:
            return False, f"{ranks_text(found)} claimed it"
        return True, "nobody claimed it" + (f" there; {ranks_text(owners)} did elsewhere" if owners else "")

    def _apart(self, finding: Finding) -> _Seen:
        names = finding.facts["resource"], finding.facts["disagrees_with"]
        mine, theirs = map(self._owners, names)
        return mine != theirs, f"{names[0]} was claimed by {ranks_text(mine)}, {names[1]} by {ranks_text(theirs)}"

    def _owners(self, resource: str) -> list[int]:
        return sorted({each.rank for each in self.taken if each.resource == resource})

    def _unbound(self, finding: Finding) -> _Seen:
        endpoints = finding.facts.get("dialled") or [finding.facts["endpoint"]]
        involved = [c for c in self.calls if c.resource == finding.facts["resource"] and c.text in endpoints]
        played = [call for call in involved if call.played]
        vain = [call for call in played if not call.heard]
        self._explained_calls.update(call.number for call in vain)
        if not played:
            return None, "it was not dialled here"
        if not vain:
            return False, f"a message came from each of {few([call.text for call in played])}"
        return True, f"nothing came from {few([call.text for call in vain])} to {few([call.who for call in vain])}"

    def _undialled(self, finding: Finding) -> _Seen:
        facts = finding.facts
        calls = [call for call in self.calls if call.resource == facts["resource"]]
        about = {
            number
            for number, b in enumerate(self.plan.bindings)
            if b.resource.name == facts["resource"] and b.rank in facts["ranks"] and b.text in facts["endpoints"]
        }
        heard = {number for call in calls for number in call.heard}
        barred = {each.number for each in self.taken if each.number in about - heard and each.state != "bound"}
        silent = sorted({self.plan.bindings[number].rank for number in about - heard - barred})
        if barred and not silent:
            return None, _told(each for each in self.taken if each.number in barred)
        if not all(call.played for call in calls) and silent:
            return None, "not everything that is dialled was dialled here"
        if not silent:
            # Where consumers dial their own host it is a matter of how many there are.
            came = None if "hosts" in facts and not finding.fails else False
            return came, f"somebody got a message of each of {ranks_text(facts['ranks'])}"
        if "hosts" in facts:
            self._explained_calls.update(call.number for call in calls if call.meant & about)
        return True, f"nobody got a message of {ranks_text(silent)}"

    def _explain(self, shown: Iterable[Taken], involved: Iterable[Taken]) -> None:
        self._explained.update(map(id, shown))
        self._claims.update((each.resource, each.rank, each.node) for each in involved)

    def _surprises(self) -> Iterator[Surprise]:
        for prediction in self.predictions:
            if prediction.came is False:
                finding = prediction.finding
                yield Surprise(f"{finding.code} was predicted and did not come true: {finding.message}")
        for each in self.taken:
            where = f"rank {each.rank} on host {each.host}"
            if each.died:
                yield Surprise(f"{where} {each.died} while it was played")
            elif each.bound is not None and each.state != "bound" and id(each) not in self._explained:
                machine = each.bound.foreign or each.bound.errno in _MACHINE
                yield Surprise(f"{each.resource}: {where}, {each.text}: {each.seen}", "machine" if machine else "check")
            if each.claim.state == "refused" and (each.resource, each.rank, each.node) not in self._claims:
                yield Surprise(f"{each.resource}: {where}: {_refusal(each)}")
        for call in self.calls:
            if call.played and call.number not in self._explained_calls:
                yield from self._call(call)

    def _call(self, call: Call) -> Iterator[Surprise]:
        what = f"{call.who} dials {call.text} ({call.resource})"
        if call.unable:
            if call.meant:
                yield Surprise(f"{what}: {call.unable}")
            return
        missed = [each for each in self.taken if each.number in call.meant - call.heard and each.state == "bound"]
        if call.heard and any(self.plan.bindings[number].resource.shared for number in call.meant):
            missed = []
        if missed:
            yield Surprise(f"{what} and gets nothing from {ranks_text([each.rank for each in missed])}")
        strangers = [self.plan.bindings[number] for number in sorted(call.heard - call.meant)]
        if strangers:
            told = few([f"rank {b.rank} ({b.resource.name}, {b.text})" for b in strangers])
            yield Surprise(f"{what} and gets what it is not meant to, from {told}")


def _told(involved: Iterable[Taken]) -> str:
    """``rank 0 tcp://*:5557: bound, heard; rank 4 ...``: what became of each, those alike in one."""
    rows: dict[str, list[int]] = {}
    for each in involved:
        if each.seen:
            rows.setdefault(f"{each.text}: {each.seen}", []).append(each.rank)
        if each.claim.state == "refused":
            rows.setdefault(f": {_refusal(each)}", []).append(each.rank)
    return _some([f"{ranks_text(ranks)}{'' if text[0] == ':' else ' '}{text}" for text, ranks in rows.items()])


def _refusal(each: Taken) -> str:
    return f"claim refused, {each.claim.holder} holds {'it' if each.claim.address is None else 'the address'}"


def _some(texts: list[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    return "; ".join(distinct[:4]) + (f"; ... ({len(distinct)} in all)" if len(distinct) > 4 else "")
