"""What was seen beside what `check` predicted: which findings came true, and what failed without one."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from rankbind.check.plan import Plan
from rankbind.finding import Finding, few, ranks_text, who
from rankbind.rehearse.outcome import Call, Prediction, Surprise, Taken

_ALONE = "it depends on what else runs: nobody else was in the way this time"
_KERNELS = {
    "RB203": (errno.EINVAL, errno.EACCES),
    "RB204": (errno.EACCES,),
    "RB206": (errno.ENAMETOOLONG,),
    "RB209": (errno.ENODEV,),
    "RB214": (errno.EACCES,),
}
"""With what the kernel, or libzmq, refuses what a finding is about."""
_MACHINE = (errno.EACCES, errno.EADDRNOTAVAIL, errno.ENOENT, errno.ENODEV, errno.EMFILE, errno.ENOTDIR, errno.EROFS)
"""Refusals that have to do with the machine rather than with the file."""

_Seen = tuple[bool | None, str]


class Verdict:
    """The findings and what was seen, told apart.

    Args:
        moved: whether other ports than the declared ones were bound.
        asked: of each rank, what it said of which resources it owns.
    """

    def __init__(
        self,
        plan: Plan,
        taken: tuple[Taken, ...],
        calls: tuple[Call, ...],
        *,
        moved: bool,
        asked: Mapping[int, Mapping[str, bool]],
    ) -> None:
        self.plan, self.taken, self.calls, self.moved, self.asked = plan, taken, calls, moved, asked
        self._explained: set[int] = set()
        self._explained_calls: set[int] = set()

    def predictions(self, findings: Iterable[Finding]) -> tuple[Prediction, ...]:
        """Each finding, and what came of it."""
        return tuple(Prediction(finding, *self._rule(finding)(finding)) for finding in findings)

    def surprises(self, predictions: Iterable[Prediction]) -> tuple[Surprise, ...]:
        """What failed and was not predicted. To be asked after `predictions`."""
        return (
            *(
                Surprise(f"{each.finding.code} was predicted and did not come true: {each.finding.message}", "check")
                for each in predictions
                if each.came is False
            ),
            *self._owners(),
            *(_surprise(each) for each in self.taken if each.failed and (each.died or id(each) not in self._explained)),
            *(each for call in self.calls if call.number not in self._explained_calls for each in self._call(call)),
        )

    def _rule(self, finding: Finding) -> Callable[[Finding], _Seen]:
        code = finding.code
        if code in ("RB201", "RB202"):
            return self._clash
        if code in ("RB208", "RB210"):
            return self._unbound
        rules: Mapping[str, Callable[[Finding], _Seen]] = {
            "RB101": self._nobody,
            "RB102": self._several,
            "RB104": self._nobody,
            "RB211": self._undialled,
            "RB212": self._same_name,
            "RB401": self._apart,
            "RB601": self._unplaced,
            "RB602": self._twice,
        }
        return rules.get(code, self._address)

    def _clash(self, finding: Finding) -> _Seen:
        involved = [each for row in finding.facts["collisions"] for each in self._in_row(finding, row)]
        involved = list({id(each): each for each in involved}.values())
        refused = [each for each in involved if _met(each)]
        deaf = [each for each in involved if each.state == "deaf"]
        claims = [each for each in involved if each.claim.state == "refused" and each.claim_holder]
        self._explain(*refused, *deaf, *(each for each in claims if not each.foreign))
        told = [*_refusals(refused), *_deafness(deaf), *_claim_refusals(claims)]
        if refused or deaf:
            return True, "; ".join(told)
        foreign = [each for each in involved if each.foreign]
        if foreign:
            return None, f"nobody could bind {foreign[0].text}: {foreign[0].holder} has it"
        barred = next((each for each in involved if each.bound is not None and each.bound.error), None)
        if barred is not None and barred.bound is not None:
            return None, f"{barred.text} could not be bound at all: {barred.bound.error}"
        if any(each.candidate for each in involved):
            return None, "who won the elections did not meet this time"
        endpoints = [b.endpoint for b in (self.plan.bindings[each.number or 0] for each in involved)]
        if any(each is not None and each.first != each.last for each in endpoints):
            return None, "each found another port of the range this time"
        if not involved or all(each.died for each in involved):
            return None, "its ranks were not played to the end"
        return False, f"{ranks_text([each.rank for each in involved])} all bound it, and were heard"

    def _in_row(self, finding: Finding, row: Mapping[str, Any]) -> Iterator[Taken]:
        for each in self.taken:
            binding = None if each.number is None else self.plan.bindings[each.number]
            if (
                binding is not None
                and each.resource in finding.facts["resources"]
                and each.rank in row["ranks"]
                and each.text in (row["endpoint"], row["other"])
                and (binding.address.scope == "shared" or each.node == row["node_rank"])
            ):
                yield each

    def _same_name(self, finding: Finding) -> _Seen:
        told: list[str] = []
        for row in finding.facts["collisions"]:
            involved = list(self._in_row(finding, row))
            refused = [each for each in involved if each.claim.state == "refused"]
            self._explain(*refused)
            if len(involved) > 1:
                told += [f"{who([each.rank for each in involved], 'use')} {row['endpoint']} at once"]
                told += _claim_refusals(refused)
        return (True, "; ".join(_distinct(told))) if told else (None, "its ranks were not played together")

    def _several(self, finding: Finding) -> _Seen:
        told: list[str] = []
        for row in finding.facts["several"]:
            involved = [x for x in self.taken if x.resource == finding.facts["resource"] and x.rank in row["ranks"]]
            refused = [x for x in involved if x.claim.state == "refused" and x.claim.address is None]
            self._explain(*refused)
            at = " ".join(f"{name} {index}" for name, index in row["coordinates"].items())
            owners = sorted({x.rank for x in involved if x.claim.state == "held"})
            if len(owners) > 1:
                told.append(f"{who(owners, 'own')} it at once{f' for {at}' if at else ''}")
            told += _claim_refusals(refused)
        return (True, _some(told)) if told else (None, "its ranks were not played together")

    def _nobody(self, finding: Finding) -> _Seen:
        facts = finding.facts
        owners = self._owners_of(facts["resource"])
        axes: list[dict[str, int]] = facts.get("missing", [])
        if axes:
            at = self.plan.job.topology.coordinates
            found = [r for r in owners if any(all(at(r)[n] == i for n, i in each.items()) for each in axes)]
        elif facts.get("owners") == 0:
            found = owners
        else:
            return None, "it is about who dials"
        if found:
            return False, f"{ranks_text(found)} claimed it"
        return True, "nobody claimed it" + (f" there; {ranks_text(owners)} did elsewhere" if owners else "")

    def _apart(self, finding: Finding) -> _Seen:
        mine, theirs = (self._owners_of(finding.facts[key]) for key in ("resource", "disagrees_with"))
        told = f"{finding.facts['resource']} was claimed by {ranks_text(mine)}, "
        return set(mine) != set(theirs), f"{told}{finding.facts['disagrees_with']} by {ranks_text(theirs)}"

    def _owners_of(self, resource: str) -> list[int]:
        return sorted({each.rank for each in self.taken if each.resource == resource})

    def _unplaced(self, finding: Finding) -> _Seen:
        return True, f"{ranks_text(finding.facts['ranks'])} could be started nowhere"

    def _twice(self, finding: Finding) -> _Seen:
        return True, f"{ranks_text(finding.facts['ranks'])}: a process on each of these hosts"

    def _address(self, finding: Finding) -> _Seen:
        """A finding about the addresses of one resource."""
        facts, code = finding.facts, finding.code
        ranks = facts.get("ranks", ())
        involved = [each for each in self.taken if each.resource == facts.get("resource") and each.rank in ranks]
        involved = [each for each in involved if each.text in facts.get("endpoints", ()) or len(ranks) > 64]
        if code in ("RB205", "RB213"):
            found = [each for each in involved if each.foreign]
            self._explain(*found)
            return (True, "; ".join(_refusals(found))) if found else (None, _ALONE)
        if code == "RB207":
            return None, "all processes of a rehearsal start in one folder"
        if code not in _KERNELS:
            return None, "a rehearsal does not show it"
        refused = [each for each in involved if each.bound and each.bound.errno in _KERNELS[code]]
        elsewhere = [each for each in involved if each.state == "elsewhere"]
        self._explain(*refused, *elsewhere)
        if refused or elsewhere:
            told = [
                f"{who([x.rank for x in elsewhere if x.port == port], 'listen')} on port {port} instead"
                for port in sorted({x.port for x in elsewhere if x.port is not None})
            ]
            return True, "; ".join([*_refusals(refused), *told])
        if self.moved and code in ("RB204", "RB214"):
            return None, "other ports than the declared ones were bound"
        if code == "RB204":
            return None, "this user may bind them here"
        if code == "RB214":
            bound = [each.text or "" for each in involved if each.state == "bound"]
            return bool(bound), f"bound: {few(bound) or 'nothing'}"
        return False, f"{who([each.rank for each in involved], 'bind')} it all the same"

    def _unbound(self, finding: Finding) -> _Seen:
        endpoints = finding.facts.get("dialled") or [finding.facts["endpoint"]]
        involved = [c for c in self.calls if c.resource == finding.facts["resource"] and c.text in endpoints]
        played = [call for call in involved if call.played]
        vain = [call for call in played if not call.heard]
        if not played:
            return None, "it would be dialled from one host to another, and these are played one after the other"
        self._explained_calls.update(call.number for call in vain)
        if not vain:
            return False, f"a message came from each of {few([call.text for call in played])}"
        return True, f"nothing came from {few([call.text for call in vain])} to {few([call.who for call in vain])}"

    def _undialled(self, finding: Finding) -> _Seen:
        facts = finding.facts
        calls = [call for call in self.calls if call.resource == facts["resource"]]
        bindings = {number: b for number, b in enumerate(self.plan.bindings) if b.resource.name == facts["resource"]}
        about = {n for n, b in bindings.items() if b.rank in facts["ranks"] and b.text in facts["endpoints"]}
        heard = {n for call in calls for n in call.heard}
        silent = sorted({bindings[n].rank for n in about - heard})
        if silent and not all(call.played for call in calls):
            return None, "hosts are played one after the other: what is dialled from one to another is not seen"
        if "hosts" in facts:
            if not silent:
                return (None if not finding.fails else False), "one consumer ran on each of these hosts"
            self._explained_calls.update(call.number for call in calls if call.meant & about)
        if not silent:
            return False, f"somebody got a message of each of {ranks_text(facts['ranks'])}"
        return True, f"nobody got a message of {ranks_text(silent)}"

    def _owners(self) -> Iterator[Surprise]:
        for rank, told in sorted(self.asked.items()):
            for name, owns in told.items():
                if name in self.plan.owners and owns != (rank in self.plan.owners[name]):
                    yield Surprise(
                        f"rank {rank} finds that it {'owns' if owns else 'does not own'} {name}, and the plan says "
                        "otherwise",
                        "check",
                    )

    def _call(self, call: Call) -> Iterator[Surprise]:
        if not call.played:
            return
        what = f"{call.who} dials {call.text} ({call.resource})"
        if call.unable and call.meant:
            yield Surprise(f"{what}: {call.unable}", "check")
            return
        by_number = {each.number: each for each in self.taken}
        missed = [by_number[n] for n in sorted(call.meant - call.heard) if n in by_number]
        shared = any(self.plan.bindings[n].resource.shared for n in call.meant)
        missed = [each for each in missed if not each.failed and each.state == "bound" and not (shared and call.heard)]
        if missed:
            yield Surprise(f"{what} and gets nothing from {ranks_text([each.rank for each in missed])}", "check")
        strangers = [self.plan.bindings[n] for n in sorted(call.heard - call.meant)]
        if strangers:
            told = few([f"rank {b.rank} ({b.resource.name}, {b.text})" for b in strangers])
            yield Surprise(f"{what} and gets what it is not meant to, from {told}", "check")

    def _explain(self, *found: Taken) -> None:
        self._explained.update(map(id, found))


def _surprise(each: Taken) -> Surprise:
    what = f"{each.resource}: rank {each.rank} on host {each.host}"
    cause: Literal["machine", "check"] = "check"
    if each.state == "died":
        return Surprise(f"{what} {each.died} while it was played", cause)
    if each.state == "refused" and each.bound is not None:
        after = f", {each.holder} has it" if each.holder else ""
        if each.foreign or each.bound.errno in _MACHINE:
            cause = "machine"
        if each.foreign:
            after += "; it is no part of the rehearsal"
        return Surprise(f"{what} could not bind {each.text}: {each.bound.error}{after}", cause)
    if each.state == "deaf":
        return Surprise(f"{what} bound {each.text} and is deaf{each.hears}", cause)
    if each.state == "elsewhere":
        return Surprise(f"{what} listens on port {each.port} instead of {each.text}", cause)
    return Surprise(f"{what}: its claim was refused: {_why(each)}", cause)


def _met(each: Taken) -> bool:
    """Whether the kernel kept it from an address that another rank has."""
    return each.bound is not None and each.bound.errno == errno.EADDRINUSE and not each.foreign


def _refusals(found: Iterable[Taken]) -> list[str]:
    """``rank 4 refused: Address already in use, rank 0 has it``, those alike in one."""
    rows: dict[str, list[int]] = {}
    for each in found:
        error = each.bound.error if each.bound else ""
        rows.setdefault(f"{error}{f', {each.holder} has it' if each.holder else ''}", []).append(each.rank)
    return [f"{ranks_text(ranks)} refused: {text}" for text, ranks in rows.items()][:4]


def _deafness(found: Iterable[Taken]) -> list[str]:
    rows: dict[str, list[int]] = {}
    for each in found:
        rows.setdefault(f"{each.text} and went deaf{each.hears}", []).append(each.rank)
    return [f"{ranks_text(ranks)} bound {text}" for text, ranks in rows.items()][:4]


def _claim_refusals(found: Iterable[Taken]) -> list[str]:
    rows: dict[str, list[int]] = {}
    for each in found:
        rows.setdefault(_why(each), []).append(each.rank)
    return [f"the claim of {ranks_text(ranks)} refused: {text}" for text, ranks in rows.items()][:4]


def _why(each: Taken) -> str:
    held = each.claim_holder or "another process"
    return f"{held} holds {'it' if each.claim.address is None else 'the address'}"


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _some(texts: list[str]) -> str:
    distinct = _distinct(texts)
    return "; ".join(distinct[:4]) + (f"; ... ({len(distinct)} in all)" if len(distinct) > 4 else "")
