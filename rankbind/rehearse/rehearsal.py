"""A rehearsal, from the file to the verdict."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from rankbind.check import run as check
from rankbind.check.plan import Plan
from rankbind.config import Declaration
from rankbind.endpoint import MAX_PORT, Endpoint
from rankbind.errors import NetworkError, RehearsalError
from rankbind.finding import who
from rankbind.rehearse.cast import Cast, Ports
from rankbind.rehearse.outcome import Call, Rehearsal, Taken, Verdict
from rankbind.rehearse.script import Bind, Bound, Claimed, Failure, Order, Part, Report
from rankbind.rehearse.stage import sweep

_PREFIX = "rankbind-rehearsal-"
_LONGEST_FOLDER = 70
"""Bytes of the folder's path: that of a socket in it has to fit."""
_STAGE = "import sys; sys.path[:] = sys.argv[2:]; from rankbind.rehearse.stage import main; main(int(sys.argv[1]))"
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
    limit: float = 60.0


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
    hosts, why = wishes.hosts or ("namespaces" if _needs_namespaces(plan) else "here"), ""
    with contextlib.closing(Ports(plan, wishes.shift, free=wishes.free)) as ports:
        try:
            played = _play(plan, ports, hosts, wishes.limit)
        except NetworkError as error:
            if wishes.hosts == "namespaces":
                raise
            hosts, why = "here", str(error)
            played = _play(plan, ports, hosts, wishes.limit)
    taken, calls = tuple(_taken(plan, played)), tuple(_calls(plan, played))
    verdict = Verdict(plan, findings, taken, calls)
    parts = [part for order in played.orders for part in order.parts]
    ranks = sum(part.rank is not None for part in parts)
    return Rehearsal(
        declaration.document.file,
        taken,
        calls,
        verdict.predictions,
        verdict.surprises,
        _setting(plan, wishes, hosts, ranks),
        hosts,
        len(parts),
        ranks,
        ports.moved,
        tuple(_notes(plan, played, hosts, why, calls)),
    )


def _needs_namespaces(plan: Plan) -> bool:
    """Whether there are several hosts, or this one lacks an address."""
    addresses = {binding.endpoint.address for binding in plan.bindings if binding.endpoint is not None}
    return len(plan.job.topology.hosts) > 1 or not all(
        _is_ours(each) for each in addresses if isinstance(each, IPv4Address | IPv6Address)
    )


def _is_ours(address: IPv4Address | IPv6Address) -> bool:
    try:
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


@dataclass(slots=True)
class _Played:
    cast: Cast
    orders: tuple[Order, ...]
    reports: list[Report] = field(default_factory=list)


def _play(plan: Plan, ports: Ports, hosts: Hosts, limit: float) -> _Played:
    with _folder() as (folder, lock):
        cast = Cast(plan, ports, namespaces=hosts == "namespaces", folder=folder, limit=limit)
        played = _Played(cast, cast.orders())
        if any(order.parts for order in played.orders):
            with _stage(played.orders, lock) as link:
                played.reports += [_report(link, order) for order in played.orders]
        return played


@contextlib.contextmanager
def _folder() -> Iterator[tuple[str, int]]:
    """A folder, and a lock on it that is held as long as any process of the rehearsal lives."""
    place = Path(tempfile.gettempdir())
    if len(os.fsencode(place)) > _LONGEST_FOLDER:
        place = Path("/tmp")
    _remove_forgotten(place)
    try:
        folder, lock = _locked_folder(place)
    except OSError as error:
        raise RehearsalError(f"cannot make a folder in {place}: {error.strerror}") from None
    try:
        yield str(folder), lock
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(place: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        with contextlib.suppress(FileNotFoundError):  # another rehearsal took it for forgotten
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_forgotten(place: Path) -> None:
    """Remove the folders of rehearsals of which every process was killed at one instant."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


@contextlib.contextmanager
def _stage(orders: Sequence[Order], lock: int) -> Iterator[Connection]:
    """A process that plays orders, at the other end of a pipe."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            try:
                # In a session of its own: what the terminal sends is for the command, which then closes the pipe.
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _STAGE, str(theirs.fileno()), *sys.path],
                    pass_fds=[theirs.fileno(), lock],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise RehearsalError(f"cannot start {sys.executable}: {error.strerror}") from None
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
            for order in orders:
                sweep(order, patience=0.0 if process.returncode == 0 else _PATIENCE)


def _report(link: Connection, order: Order) -> Report:
    try:
        link.send(order)
        if not link.poll(order.limit + _PATIENCE):
            raise RehearsalError(f"the rehearsal did not end in the {order.limit:g} s that it may take (--timeout)")
        answer = link.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise RehearsalError(
            "the process that starts the ranks is gone: it was killed, or it failed and says why above"
        ) from None
    if isinstance(answer, Failure):
        raise (NetworkError if answer.network else RehearsalError)(answer.reason)
    if not isinstance(answer, Report):
        raise RehearsalError(f"the process that starts the ranks answers {answer!r}")
    return answer


def _setting(plan: Plan, wishes: Wishes, hosts: Hosts, ranks: int) -> str:
    size, count = plan.job.topology.size, len(plan.job.topology.hosts)
    told = f"{ranks} of {size} ranks" if ranks != size else f"{size} rank{'s' * (size != 1)}"
    each = f"{count} host{'s' * (count != 1)}"
    if hosts == "namespaces":
        where = f"on {each}, {'each ' if count > 1 else ''}in a network namespace of its own"
    else:
        where = f"on {each}, one after the other on this one" if count > 1 else "on this host"
    shifted = "the declared ports" if wishes.shift is None else f"ports shifted by {wishes.shift}"
    return f"{told} as processes, {where}; {'free ports instead of the declared ones' if wishes.free else shifted}"


def _notes(plan: Plan, played: _Played, hosts: Hosts, why: str, calls: Sequence[Call]) -> Iterator[str]:
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
    if played.cast.moved_paths and any(b.endpoint is not None and b.endpoint.file is not None for b in plan.bindings):
        yield "sockets of ipc paths were in a folder of the rehearsal, not where they are declared"
    untold = [resource.name for resource in plan.job.resources if resource.name not in plan.owners]
    if untold:
        yield f"not rehearsed, as its owners cannot be told: {', '.join(untold)}"


def _taken(plan: Plan, played: _Played) -> Iterator[Taken]:
    order_of = {resource.name: at for at, resource in enumerate(plan.job.resources)}
    found = [
        taken
        for order, report in zip(played.orders, played.reports, strict=False)
        for at, part in enumerate(order.parts)
        for taken in _taken_by(plan, played.cast, at, part, report)
    ]
    yield from sorted(found, key=lambda x: (order_of[x.resource], x.rank if x.number is None else x.number))


def _taken_by(plan: Plan, cast: Cast, at: int, part: Part, report: Report) -> Iterator[Taken]:
    if part.rank is None or part.node is None:
        return
    binds = {bind.number: bind for bind in part.binds}
    died, host = report.died.get(at, ""), plan.host_name(part.node)
    mine = cast.bindings.get((part.node, part.rank), ())
    for want in part.wants:
        claim = report.claims.get((at, want.resource), Claimed("failed"))
        addresses = [(number, binding) for number, binding in mine if binding.resource.name == want.resource]
        if not addresses:
            yield Taken(want.resource, "", part.rank, part.node, host, None, None, claim, died=died)
        for number, binding in addresses:
            bind, bound = binds.get(number), report.bound.get(number)
            heard = report.own.get(number, set())
            others = [plan.bindings[each].rank for each in heard - {number}]
            endpoint = binding.endpoint
            yield Taken(
                want.resource,
                binding.address.role,
                part.rank,
                part.node,
                host,
                number,
                binding.text,
                claim,
                bound,
                # Of those that share an address on purpose any may answer.
                number in heard or (bind is not None and bind.sharing is not None and bool(heard)),
                f"{who(others, 'get')} what is sent there" if others else "",
                _elsewhere(bind, bound, endpoint) if bind and bound and endpoint else None,
                binding.election is not None or (endpoint is not None and endpoint.first != endpoint.last),
                died,
            )


def _elsewhere(bind: Bind, bound: Bound, declared: Endpoint) -> int | None:
    """The declared port that was hit, where it is not one that was declared."""
    if bound.at is None or declared.transport != "tcp" or declared.kernel_picks:
        return None
    real = Endpoint.parse(bound.at).first
    asked = [Endpoint.parse(each).first for each in bind.endpoints]
    if real in asked:
        return None
    return next((declared.first + at & MAX_PORT for at, port in enumerate(asked) if port & MAX_PORT == real), real)


def _calls(plan: Plan, played: _Played) -> Iterator[Call]:
    dials = {each.number: each for order in played.orders for part in order.parts for each in part.dials}
    meant: dict[int, set[int]] = {}
    heard: dict[int, set[int]] = {}
    unable: dict[int, str] = {}
    for order, report in zip(played.orders, played.reports, strict=False):
        unable.update(report.unable)
        for part in order.parts:
            for each in part.dials:
                meant.setdefault(each.number, set()).update(each.meant)
                heard.setdefault(each.number, set()).update(report.heard.get(each.number, ()))
    for number, dialled in enumerate(plan.dialled):
        at = " ".join(f"{name} {index}" for name, index in dialled.coordinates.items())
        yield Call(
            number,
            dialled.resource.name,
            dialled.consumer.role,
            f"rank {dialled.rank}" if dialled.rank is not None else f"the consumer{f' {at}' if at else ''}",
            str(dialled.endpoint),
            frozenset(meant.get(number, ())),
            frozenset(heard.get(number, ())),
            unable.get(number, ""),
            number in dials,
        )
