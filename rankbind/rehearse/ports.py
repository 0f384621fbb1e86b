"""Which port stands for a declared one: the same, one at a distance, or one that nobody has."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from rankbind.endpoint import EPHEMERAL_PORTS, MAX_PORT
from rankbind.rehearse.script import RehearsalError

Kind = Literal["declared", "shifted", "free"]

_LOWEST = 10_000
_TRIES = 20_000


class Ports:
    """The ports of a rehearsal.

    Equal ports stand for equal ones, and different for different, so that what collides is what would. A port beyond
    65535 keeps what libzmq makes of it: only the lowest 16 bits count, and stand for what they would hit.

    Attributes:
        kind: how they were chosen.
        moved: what stands for each declared port; empty where each stands for itself.
    """

    def __init__(self, kind: Kind, moved: Mapping[int, int] | None = None, kept: Iterable[socket.socket] = ()) -> None:
        self.kind = kind
        self.moved: Mapping[int, int] = MappingProxyType(dict(moved or {}))
        self._kept = list(kept)

    def of(self, port: int) -> int:
        """What stands for a declared port."""
        low = _low(port)
        return port - low + self.moved.get(low, low)

    def close(self) -> None:
        """Let others have them."""
        for each in self._kept:
            each.close()
        self._kept.clear()

    @classmethod
    def shifted(cls, ports: Iterable[int], by: int) -> Ports:
        """Each so many ports further up, or down.

        Raises:
            RehearsalError: one of them would be none.
        """
        moved = {low: low + by for port in ports if (low := _low(port))}
        for port, to in sorted(moved.items()):
            if not 0 < to <= MAX_PORT:
                raise RehearsalError(f"port {port} shifted by {by} would be {to}: there are ports 1..{MAX_PORT}")
        return cls("shifted", moved)

    @classmethod
    def free(cls, ports: Iterable[int]) -> Ports:
        """Ports that nobody has, below those that the kernel draws from; kept from other rehearsals until `close`.

        Raises:
            RehearsalError: there are not so many.
        """
        wanted = sorted({_low(port) for port in ports} - {0})
        candidates = list(range(_LOWEST, _ephemeral()))
        random.shuffle(candidates)
        moved: dict[int, int] = {}
        kept: list[socket.socket] = []
        for port in wanted:
            made = None
            while candidates and made is None:
                candidate = candidates.pop()
                made = _keep(candidate)
                moved[port] = candidate
            if made is None:
                raise RehearsalError(f"this host has fewer free ports than the {len(wanted)} that are needed")
            kept.append(made)
        return cls("free", moved, kept)


def _low(port: int) -> int:
    return port & 0xFFFF


def _ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_PORTS[0]


def _keep(port: int) -> socket.socket | None:
    """A socket that no other rehearsal can have and everybody who listens can bind beside; None if it is taken."""
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6
        try:
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            made.bind((host, port))
        except OSError:
            made.close()
            return None
        # Only now: whoever chooses meets a socket without it and is refused, and libzmq, which sets it as well, is not,
        # as long as nobody listens.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return made
    return None
