"""Ranges of ports, shared by all deployments of a host, so that two servers never compute the same base + rank.

Who has which is in one table for each network namespace, beside a lock. The table decides nothing that the kernel
decides: every port is bound and listened on before it is given, so a table that is lost or garbage costs memory, not
correctness. What a dead process had is free; what a deployment had, it gets again if nobody has taken it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import os
import socket
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rankbind.endpoint import EPHEMERAL_PORTS, MAX_PORT, Endpoint
from rankbind.errors import PortError
from rankbind.identity import deployment as own_deployment
from rankbind.runtime import atomic, diagnosis, handover, listeners
from rankbind.runtime.addresses import claimed_ports
from rankbind.runtime.directory import VARIABLE, folder
from rankbind.runtime.hold import alone
from rankbind.runtime.ports import Reservation, reserve
from rankbind.runtime.process import Process, check_number, program

PORTS = "ports"
FIRST_PORT = 20000
"""Where the range begins unless it is given: above what well-known servers use, below what the kernel hands out."""

_FORMAT = 1
_MOST_BYTES = 1 << 20
_REMEMBERED = 512
"""Blocks that are nobody's any more, kept so that a restarted deployment gets its ports again."""
_PATIENCE = 30.0
_AT_EXIT = 1.0
"""Seconds that the end of the process may be held up, for all blocks together."""
_SHOWN = 12
_SYSCTL = Path("/proc/sys/net/ipv4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A block as the table has it.

    Attributes:
        since: when it was given, in seconds since 1970.
        state: ``held`` until its holder releases it. A holder that dies leaves ``held``.
        process: the holder.
        program: what the holder runs, see `rankbind.runtime.process.program`.
    """

    deployment: str
    name: str
    first: int
    count: int
    since: float
    process: Process
    program: str = ""
    state: Literal["held", "released"] = "held"

    @property
    def ports(self) -> range:
        """Its ports."""
        return range(self.first, self.first + self.count)

    @property
    def live(self) -> bool:
        """Whether it is somebody's: it was not released, and its holder is not known to be dead."""
        # A table of an earlier boot may lie in /tmp. Whoever had the ports then has them no longer.
        return self.state == "held" and self.process.may_live

    def __str__(self) -> str:
        known = {"unknown": ", in another pid namespace", "paused": ", stopped"}.get(self.process.liveness(), "")
        program = f" ({self.program})" if self.program else ""
        return (
            f"{_span(self.ports)}: {self.deployment}/{self.name}, pid {self.process.pid}{program}{known}, "
            f"since {diagnosis.when(self.since)}"
        )

    @classmethod
    def from_json(cls, found: Any) -> Lease:
        """A lease from an entry of the table. Raises ValueError, TypeError or KeyError for anything else."""
        process = Process.from_json(found["process"])
        lease = cls(**{**{each.name: found[each.name] for each in fields(cls)}, "process": process})
        check_number(lease.first, 1, MAX_PORT)
        check_number(lease.count, 1, MAX_PORT + 1 - lease.first)
        if not all(isinstance(text, str) for text in (lease.deployment, lease.name, lease.program)):
            raise TypeError(f"{found} is no lease")
        if lease.state not in ("held", "released"):
            raise ValueError(lease.state)
        if not math.isfinite(lease.since):
            raise ValueError(f"since {lease.since}")
        return lease


class Block:
    """Contiguous ports that are this process's, until `release` or its end. Made by `allocate`.

    Attributes:
        base: the first port.
        ports: all of them.
    """

    def __init__(self, lease: Lease, table: Table, reservations: tuple[Reservation, ...]) -> None:
        self.base, self.ports = lease.first, lease.ports
        self._lease, self._table, self._reservations = lease, table, reservations
        self._pid, self._released = os.getpid(), False

    @property
    def held(self) -> bool:
        """Whether it is this process's: False after `release`, and in a forked child."""
        return not self._released and self._pid == os.getpid()

    def reservation(self, index: int) -> Reservation:
        """The port ``base + index``, held by a listening socket, to be handed over.

        Raises:
            PortError: the block was allocated with ``hold=False``, and holds numbers only.
        """
        if not self._reservations:
            raise PortError(f"{self} holds numbers only: allocate it with hold=True to hand sockets over")
        return self._reservations[index]

    def release(self) -> None:
        """Give the ports up: what was not handed over is closed, and others may have them. May be repeated.

        Raises:
            PortError: the table cannot be had. Others keep off until this is called again, or this process ends.
        """
        self._give_up(_PATIENCE)

    def _give_up(self, patience: float) -> None:
        if self.held:
            for each in self._reservations:
                each.close()
            with self._table.alone(patience) as leases:
                gone = [replace(each, state="released") if each == self._lease else each for each in leases]
                self._table.write(gone)
            self._released = True
            _held.discard(self)

    def __enter__(self) -> Block:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __len__(self) -> int:
        return len(self.ports)

    def __repr__(self) -> str:
        name = f"{self._lease.deployment}/{self._lease.name}"
        return f"<ports {_span(self.ports)} of {name}{'' if self.held else ', not held'}>"


_held: set[Block] = set()
"""What is held lasts until it is released, not until nobody refers to it."""


def allocate(
    count: int,
    *,
    name: str,
    within: tuple[int, int] | None = None,
    deployment: str | None = None,
    hold: bool = True,
    host: str = "127.0.0.1",
    ipv6: bool = False,
    ephemeral: bool = False,
    directory: Path | None = None,
) -> Block:
    """`count` contiguous ports that nobody else on this host uses or was given, the same as last time if they are free.

    Args:
        name: what they are for. A deployment has one block of each name at a time.
        within: first and last port to choose from; left out, from 20000 up to the range from which the kernel draws
            ports for connections, then what is above it, without what ``ip_local_reserved_ports`` keeps for others.
        deployment: left out, that of this process's identity, of ``RANKBIND_DEPLOYMENT``, or ``default``.
        hold: hold each port by a listening socket, to be handed over with `Block.reservation`. False, for engines
            that take a base port and bind it themselves: then deployments that ask here keep off, and others may not.
        host, ipv6: where to listen, see `reserve`.
        ephemeral: choose from the kernel's range, too, where `within` reaches into it and the ports are not reserved
            (``ip_local_reserved_ports``). Any outgoing connection may then take a port that is not held.
        directory: instead of the runtime directory.

    Raises:
        PortError: there are not so many free; the message says who has what. Or the block of that name is held.
        DirectoryError: the runtime directory cannot be used.
    """
    allowed, said = _allowed(within, ephemeral)
    if count < 1:
        raise PortError(f"a block of {count} ports is none")
    if not any(len(run) >= count for run in allowed):
        raise PortError(f"{said} has no {count} contiguous ports to give{_why_not(within, ephemeral)}")
    here = Process.me()
    place = folder(PORTS, within=directory)
    table = Table(place, here.net_ns)
    wanted = Lease(
        deployment=deployment or own_deployment(),
        name=name,
        first=allowed[0][0],
        count=count,
        since=time.time(),
        process=here,
        program=program(),
    )
    with table.alone() as leases:
        same = [each for each in leases if (each.deployment, each.name) == (wanted.deployment, name)]
        for each in same:
            if each.live:
                raise PortError(
                    f"the ports {wanted.deployment}/{name} are held: {each}. Release them, ask for another name, or "
                    f"tell the two deployments apart: RANKBIND_DEPLOYMENT={wanted.deployment}-2"
                )
        live, claimed = [each for each in leases if each.live], claimed_ports(place.parent, here.net_ns)
        rest = [each for each in leases if not each.live and each not in same]
        search = _Search(allowed, count, _taken(live) | claimed, (host, ipv6) if hold else None)
        found = search.run([each.first for each in same], _taken(rest))
        if found is None:
            raise PortError(_exhausted(said, wanted, live, claimed, search.busy), errno.EADDRINUSE)
        first, reservations = found
        lease = replace(wanted, first=first)
        block = Block(lease, table, reservations)
        if not table.write([*live, lease, *(each for each in rest if not set(each.ports) & set(lease.ports))]):
            if not hold:
                raise PortError(
                    f"cannot write {table.path}: other deployments would be given {_span(lease.ports)} too. Set "
                    f"{VARIABLE} to a directory that can be written, or hold the ports (hold=True)"
                )
            warnings.warn(f"cannot write {table.path}: the sockets alone keep others off", RuntimeWarning, stacklevel=2)
    _held.add(block)
    return block


class Table:
    """What was given to whom in one network namespace."""

    def __init__(self, place: Path, net_ns: int) -> None:
        self.path = place / f"{net_ns}.json"

    @contextlib.contextmanager
    def alone(self, patience: float = _PATIENCE) -> Iterator[list[Lease]]:
        """What it holds; nobody else looks or writes inside the block. Raises `PortError`."""
        with alone(str(self.path.with_suffix(".lock")), patience, "allocating ports", PortError):
            yield self.read()

    def read(self) -> list[Lease]:
        """What can be read of it; whoever wants to write has to be `alone`. Never raises, never waits."""
        found: list[Lease] = []
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            table = json.loads(atomic.get(self.path, _MOST_BYTES))
            for entry in table["leases"] if table["format"] == _FORMAT else ():
                with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError, OSError):
                    found.append(Lease.from_json(entry))
        return found

    def write(self, leases: Iterable[Lease]) -> bool:
        """Put `leases` in its place, whole or not at all; False if that failed."""
        ordered = sorted(leases, key=lambda lease: -lease.since)
        old = [lease for lease in ordered if not lease.live][_REMEMBERED:]
        kept = [asdict(lease) for lease in ordered if lease not in old]
        return atomic.put(self.path, json.dumps({"format": _FORMAT, "leases": kept}, indent=1).encode())


class _Search:
    """Looking for a block among `allowed` ports that are not `taken`. `busy`: what was found in use on the way."""

    def __init__(self, allowed: list[range], count: int, taken: set[int], listen: tuple[str, bool] | None) -> None:
        self.allowed, self.count, self.taken, self.listen = allowed, count, taken, listen
        self.busy: set[int] = set()

    def run(self, before: list[int], remembered: set[int]) -> tuple[int, tuple[Reservation, ...]] | None:
        """The first port and, if they are to be held, the reservations; None if there is no such block.

        First what was had `before`, then what nobody is remembered to have had, then anything.
        """
        for first in before:
            ports = range(first, first + self.count)
            if any(first in run and ports[-1] in run for run in self.allowed) and not self.taken & set(ports):
                held = self._hold(ports)
                if held is not None:
                    return first, held
        for avoided in (self.taken | remembered, self.taken) if remembered else (self.taken,):
            for run in self.allowed:
                first = run[0]
                while first + self.count - 1 <= run[-1]:
                    ports = range(first, first + self.count)
                    worst = max((port for port in ports if port in avoided or port in self.busy), default=None)
                    if worst is None:
                        held = self._hold(ports)
                        if held is not None:
                            return first, held
                        worst = max(port for port in ports if port in self.busy)
                    first = worst + 1
        return None

    def _hold(self, ports: range) -> tuple[Reservation, ...] | None:
        with contextlib.ExitStack() as stack:
            held = []
            for port in ports:
                try:
                    _probe(port)
                    if self.listen is not None:
                        host, ipv6 = self.listen
                        held.append(stack.enter_context(reserve(host, port, ipv6=ipv6)))
                except OSError as error:
                    if not handover.in_use(error):
                        raise
                    self.busy.add(port)
                    return None
            stack.pop_all()
            return tuple(held)


def _probe(port: int) -> None:
    """Listen on `port` on all addresses of both families, for a moment. Raises OSError (EADDRINUSE)."""
    try:
        probe = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        address = "::"
    except OSError:  # no IPv6 on this host
        probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        address = "0.0.0.0"
    with probe:
        if address == "::":
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except PermissionError as error:
            raise PortError(f"cannot listen on port {port}: {error.strerror}", error.errno) from None


def _allowed(within: tuple[int, int] | None, ephemeral: bool) -> tuple[list[range], str]:
    """What to choose from, in runs of contiguous ports, and how to say it."""
    low, high = kernel_range()
    reserved = reserved_ports()
    if within is None:
        candidates = [*range(FIRST_PORT, low), *range(max(high + 1, FIRST_PORT), MAX_PORT + 1)]
        if not candidates:
            candidates = list(range(1024, low))
        ports = [port for port in candidates if port not in reserved]
        said = f"the range outside {low}-{high}" + (" and ip_local_reserved_ports" if reserved else "")
    else:
        first, last = within
        if not 1 <= first <= last <= MAX_PORT:
            raise PortError(f"within={within}: there are ports from 1 to {MAX_PORT}")
        ports = [port for port in range(first, last + 1) if ephemeral or not low <= port <= high or port in reserved]
        said = f"{first}-{last}"
    return _runs(ports), said


def _why_not(within: tuple[int, int] | None, ephemeral: bool) -> str:
    low, high = kernel_range()
    if within is None:
        return f": the kernel draws ports for connections from {low}-{high}. Say within=..., and ephemeral=True"
    if ephemeral or within[1] < low or within[0] > high:
        return ""
    return (
        f": the kernel draws ports for connections from {low}-{high}. Choose others, set them aside "
        f"(sysctl net.ipv4.ip_local_reserved_ports={within[0]}-{within[1]}), or say ephemeral=True"
    )


def kernel_range() -> tuple[int, int]:
    """First and last port of those from which the kernel draws for connections and for port 0 (ip(7))."""
    try:
        low, high = (int(port) for port in (_SYSCTL / "ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        return EPHEMERAL_PORTS
    return low, high


def reserved_ports() -> set[int]:
    """Ports that the kernel leaves out when it draws (net.ipv4.ip_local_reserved_ports)."""
    found: set[int] = set()
    with contextlib.suppress(OSError, ValueError):
        for part in (_SYSCTL / "ip_local_reserved_ports").read_text().strip().split(","):
            first, _, last = part.partition("-")
            if first:
                found.update(range(int(first), int(last or first) + 1))
    return found


def _exhausted(said: str, wanted: Lease, live: list[Lease], claimed: set[int], busy: set[int]) -> str:
    lines = [str(each) for each in sorted(live, key=lambda each: each.first)]
    lines += [f"{_span(run)}: claimed (`rankbind status` shows by whom)" for run in _runs(claimed)]
    runs = _runs(busy)
    for run in runs[: max(0, _SHOWN - len(lines))]:
        at = Endpoint("tcp", "*", run[0], run[0], ipv6=True)
        by = ", ".join(map(str, listeners.of_endpoint(at))) or "a process that has gone meanwhile"
        lines.append(f"{_span(run)}: in use, {run[0]} by {by}")
    total = len(live) + len(_runs(claimed)) + len(runs)
    lines = lines[:_SHOWN]
    more = [f"and {total - len(lines)} more"] if total > len(lines) else []
    text = "".join(f"\n  {line}" for line in (*lines, *more))
    return f"{said} has no {wanted.count} contiguous free ports for {wanted.deployment}/{wanted.name}:{text}"


def _taken(leases: Iterable[Lease]) -> set[int]:
    return {port for lease in leases for port in lease.ports}


def _runs(ports: Iterable[int]) -> list[range]:
    runs: list[range] = []
    for port in sorted(ports):
        if runs and runs[-1].stop == port:
            runs[-1] = range(runs[-1].start, port + 1)
        else:
            runs.append(range(port, port + 1))
    return runs


def _span(ports: range) -> str:
    return f"{ports[0]}" if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def _forked() -> None:
    _held.clear()


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _at_exit() -> None:
    until = time.monotonic() + _AT_EXIT
    for each in tuple(_held):
        with contextlib.suppress(Exception):
            each._give_up(max(0.0, until - time.monotonic()))
