"""A rehearsal, from the file to the verdict."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from rankbind.check import run as check
from rankbind.check.plan import Plan
from rankbind.config import Declaration
from rankbind.endpoint import Endpoint
from rankbind.errors import RankbindError
from rankbind.finding import Finding, who
from rankbind.rehearse.cast import Cast, ports_of
from rankbind.rehearse.outcome import Call, Rehearsal, Taken
from rankbind.rehearse.ports import Ports
from rankbind.rehearse.script import Bind, Bound, Claimed, Failure, NetworkError, Order, Part, RehearsalError, Report
from rankbind.rehearse.traces import sweep
from rankbind.rehearse.verdict import Verdict

LIMIT = 60.0
"""Seconds that a rehearsal may take where nothing else is said."""

_LONGEST_FOLDER = 70
"""Bytes of the folder's path: that of a socket in it has to fit."""
_STAGE = "import sys; sys.path[:] = sys.argv[2:]; from rankbind.rehearse.stage import started; started(sys.argv[1])"
_PATIENCE = 5.0
"""Seconds for a stage to end its processes."""

Hosts = Literal["namespaces", "here"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """How it is to be rehearsed.

    Attributes:
        hosts: None: in namespaces if there are several hosts, or an address that this host does not have, and the user
            may make them.
        shift: how far the declared ports are moved; None: not at all.
        free: whether ports that nobody has stand for the declared ones.
        limit: seconds for all of it.
    """

    hosts: Hosts | None = None
    shift: int | None = None
    free: bool = False
    limit: float = LIMIT


def rehearse(declaration: Declaration, wishes: Wishes | None = None) -> Rehearsal:
    """Play the launch that a topology file declares, with real processes, claims and sockets.

    Nothing of it is left when this returns, or the process ends, whatever ends it.

    Raises:
        RehearsalError: it cannot be played here, or did not come to its end in time.
    """
    wishes = wishes or Wishes()
    plan = Plan(declaration)
    findings = check(declaration)
    wrong = [finding for finding in findings if finding.family == "RB9"]
    if wrong:
        raise RehearsalError(f"the file itself is wrong ({wrong[0].message}): `rankbind check` shows where")
    with contextlib.ExitStack() as stack:
        ports = _ports(plan, wishes)
        stack.callback(ports.close)
        hosts, why = wishes.hosts or ("namespaces" if _needs_namespaces(plan) else "here"), ""
        try:
            played = _play(plan, ports, hosts, wishes.limit)
        except NetworkError as error:
            if wishes.hosts == "namespaces":
                raise
            hosts, why = "here", str(error)
            played = _play(plan, ports, hosts, wishes.limit)
        return _judge(plan, findings, ports, hosts, why, played)


def _ports(plan: Plan, wishes: Wishes) -> Ports:
    if wishes.free:
        return Ports.free(ports_of(plan))
    return Ports("declared") if wishes.shift is None else Ports.shifted(ports_of(plan), wishes.shift)


def _needs_namespaces(plan: Plan) -> bool:
    if len(plan.job.topology.hosts) > 1:
        return True
    addresses = {binding.endpoint.address for binding in plan.bindings if binding.endpoint is not None}
    return not all(_is_ours(each) for each in addresses if isinstance(each, IPv4Address | IPv6Address))


def _is_ours(address: IPv4Address | IPv6Address) -> bool:
    """Whether this host has an address."""
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


@dataclass(slots=True)
class _Played:
    """What was seen, of all hosts."""

    cast: Cast
    orders: tuple[Order, ...]
    reports: list[Report] = field(default_factory=list)


def _play(plan: Plan, ports: Ports, hosts: Hosts, limit: float) -> _Played:
    folder = _folder()
    try:
        nonce = Path(folder).name
        cast = Cast(plan, ports, namespaces=hosts == "namespaces", folder=folder, nonce=nonce, limit=limit)
        played = _Played(cast, cast.orders())
        if any(order.parts for order in played.orders):
            with _stage(played.orders) as link:
                for order in played.orders:
                    played.reports.append(_report(link, order))
        return played
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> str:
    places = [tempfile.gettempdir(), "/tmp"]
    place = next((each for each in places if len(os.fsencode(each)) < _LONGEST_FOLDER), "/tmp")
    try:
        return tempfile.mkdtemp(prefix="rankbind-rehearsal-", dir=place)
    except OSError as error:
        raise RehearsalError(f"cannot make a folder in {place}: {error.strerror}") from None


@contextlib.contextmanager
def _stage(orders: Sequence[Order]) -> Iterator[Connection]:
    """A process that plays orders, at the other end of a pipe."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            # In a session of its own: what the terminal sends is for the command, which then closes the pipe.
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _STAGE, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            yield ours
        finally:
            ours.close()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            # Where it was killed its ranks die a moment later.
            patience = 0.0 if process.returncode == 0 else _PATIENCE
            for order in orders:
                sweep(order, patience=patience)


def _report(link: Connection, order: Order) -> Report:
    try:
        link.send(order)
        if not link.poll(order.limit + _PATIENCE):
            raise RehearsalError(f"the rehearsal did not end in the {order.limit:g} s that it may take (--timeout)")
        answer = link.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise RehearsalError("the process that starts the ranks was killed") from None
    if isinstance(answer, Failure):
        raise (NetworkError if answer.network else RehearsalError)(answer.reason)
    if not isinstance(answer, Report):
        raise RehearsalError(f"the process that starts the ranks answers {answer!r}")
    return answer


def _judge(plan: Plan, findings: Sequence[Finding], ports: Ports, hosts: Hosts, why: str, played: _Played) -> Rehearsal:
    taken, calls = tuple(_taken(plan, ports, played)), tuple(_calls(plan, played))
    asked = {
        part.rank: report.owned[part.number]
        for order, report in zip(played.orders, played.reports, strict=False)
        for part in order.parts
        if part.rank is not None and part.number in report.owned
    }
    verdict = Verdict(plan, taken, calls, moved=ports.kind != "declared", asked=asked)
    predictions = verdict.predictions(findings)
    topology = plan.job.topology
    parts = [part for order in played.orders for part in order.parts]
    return Rehearsal(
        plan.declaration.document.file,
        taken,
        calls,
        predictions,
        verdict.surprises(predictions),
        hosts,
        topology.size,
        len(topology.hosts),
        len(parts),
        sum(part.rank is not None for part in parts),
        ports.kind,
        dict(sorted(ports.moved.items())),
        tuple(_notes(plan, ports, hosts, why, played, calls)),
    )


def _notes(plan: Plan, ports: Ports, hosts: Hosts, why: str, played: _Played, calls: Sequence[Call]) -> Iterator[str]:
    if not played.cast.whole:
        yield "the job is large: only the ranks that own or dial something were started"
    if hosts == "here" and len(plan.job.topology.hosts) > 1:
        reason = f" ({why})" if why else ""
        yield (
            f"the hosts were played here, one after the other{reason}: what goes on between them, and claims across "
            "them, was not seen"
        )
    elif why:
        yield f"played here: {why}"
    missing = [call.text for call in calls if not call.played]
    if missing:
        yield f"not dialled: {', '.join(dict.fromkeys(missing))}"
    files = any(b.endpoint is not None and b.endpoint.file is not None for b in plan.bindings)
    if files and played.cast.moved_paths:
        yield "sockets of ipc paths were in a folder of the rehearsal, not where they are declared"
    untold = [resource.name for resource in plan.job.resources if resource.name not in plan.owners]
    if untold:
        yield f"not rehearsed, as its owners cannot be told: {', '.join(untold)}"


def _taken(plan: Plan, ports: Ports, played: _Played) -> Iterator[Taken]:
    found: dict[tuple[int, int], Taken] = {}
    for order, report in zip(played.orders, played.reports, strict=False):
        whose = {pid: part for part in order.parts for pid in [report.pids[part.number]]}
        for part in order.parts:
            found.update(_taken_by(plan, ports, part, order, report, whose))
    yield from (found[at] for at in sorted(found))


def _taken_by(
    plan: Plan, ports: Ports, part: Part, order: Order, report: Report, whose: Mapping[int, Part]
) -> Iterator[tuple[tuple[int, int], Taken]]:
    if part.rank is None or part.node is None:
        return
    binds = {bind.number: bind for bind in part.binds}
    died = report.died.get(part.number, "")
    for want in part.wants:
        claim = report.claims.get((part.number, want.number), Claimed("held"))
        claim_holder = _name(claim.holder, whose) if claim.holder else ""
        mine = [
            (number, binding)
            for number, binding in enumerate(plan.bindings)
            if (binding.rank, binding.node, binding.resource.name) == (part.rank, part.node, want.resource)
        ]
        host = plan.host_name(part.node)
        if not mine:
            yield (
                (want.number, len(plan.bindings) + part.rank),
                Taken(
                    want.resource,
                    "",
                    part.rank,
                    part.node,
                    host,
                    None,
                    None,
                    claim,
                    claim_holder=claim_holder,
                    died=died,
                ),
            )
        for number, binding in mine:
            bind = binds.get(number)
            bound = report.bound.get((part.number, number))
            heard = report.watched.get(number, set())
            holder = bound.holder if bound is not None else None
            yield (
                (want.number, number),
                Taken(
                    want.resource,
                    binding.address.role,
                    part.rank,
                    part.node,
                    host,
                    number,
                    binding.text,
                    claim,
                    bound,
                    bind.endpoints[0] if bind else "",
                    "" if holder is None else _holder(holder.pid, holder.program, whose),
                    claim_holder,
                    holder is not None and holder.pid not in whose,
                    _heard(number, bind, bound, heard),
                    _instead(plan, heard - {number}),
                    None if bind is None or bound is None else _elsewhere(bind, bound, ports, binding.endpoint),
                    binding.election is not None,
                    died,
                ),
            )


def _heard(number: int, bind: Bind | None, bound: Bound | None, heard: set[int]) -> bool:
    if bind is None or bound is None or bound.at is None:
        return False
    # What never leaves its process cannot be watched, and of those that share an address any may answer.
    return bound.at.startswith("inproc:") or number in heard or (bind.sharing is not None and bool(heard))


def _instead(plan: Plan, others: set[int]) -> str:
    return f": {who([plan.bindings[number].rank for number in others], 'get')} what is sent there" if others else ""


def _elsewhere(bind: Bind, bound: Bound, ports: Ports, declared: Endpoint | None) -> int | None:
    """The declared port that stands for what was bound, where that is not what was asked for."""
    if bound.at is None or declared is None or declared.transport != "tcp" or declared.kernel_picks:
        return None
    real = Endpoint.parse(bound.at).first
    if any(Endpoint.parse(each).first == real for each in bind.endpoints):
        return None
    return next((port for port, moved in ports.moved.items() if moved == real), real)


def _name(pid: int, whose: Mapping[int, Part]) -> str:
    return str(whose[pid]) if pid in whose else f"pid {pid}" if pid else "another process"


def _holder(pid: int, program: str, whose: Mapping[int, Part]) -> str:
    if pid in whose:
        return str(whose[pid])
    if not pid:
        return program
    told = [f"pid {pid}", *([f"({program})"] if program else []), *_registered(pid)]
    return " ".join(told)


def _registered(pid: int) -> Iterator[str]:
    """What the registry of this host knows of a process."""
    from rankbind.runtime import registry

    try:
        entries = registry.entries()
    except (RankbindError, OSError):
        return
    for entry in entries:
        if entry.live and entry.pid == pid and entry.record is not None:
            rank = "" if entry.record.rank is None else f" by its rank {entry.record.rank}"
            yield f"which holds {entry.key}{rank}"
            return


def _calls(plan: Plan, played: _Played) -> Iterator[Call]:
    dialled_by: set[int] = set()
    heard: dict[int, set[int]] = {}
    unable: dict[int, str] = {}
    meant: dict[int, frozenset[int]] = {}
    for order, report in zip(played.orders, played.reports, strict=False):
        for part in order.parts:
            dialled_by.update(each.number for each in part.dials)
        for number, found in report.heard.items():
            heard.setdefault(number, set()).update(found)
        unable.update({number: text for number, text in report.unable.items() if number in order.expected})
        for number, found_meant in order.expected.items():
            meant[number] = meant.get(number, frozenset()) | found_meant
    for number, dialled in enumerate(plan.dialled):
        at = " ".join(f"{name} {index}" for name, index in dialled.coordinates.items())
        yield Call(
            number,
            dialled.resource.name,
            dialled.consumer.role,
            f"rank {dialled.rank}" if dialled.rank is not None else f"the consumer{f' {at}' if at else ''}",
            dialled.rank,
            str(dialled.endpoint),
            meant.get(number, frozenset()),
            frozenset(heard.get(number, ())),
            unable.get(number, ""),
            number in dialled_by,
        )
