"""Two and more hosts on one machine, and the links between them: `rankbind.rehearse.network`, with links to cut."""

from __future__ import annotations

import functools
import subprocess
import sys

from rankbind.rehearse.network import Network, address

NETWORK = "198.18.0.0/15"


class Hosts:
    """Hosts of which each has an address, and reaches the others as long as its link is up.

    Only a process of one thread can make them. It is then on none of them: whoever is to be forks and calls `enter`.
    They are gone with the last process in them.
    """

    def __init__(self, count: int) -> None:
        self._network = Network([()] * count, NETWORK)
        # Of name servers it is known at once that they are out of reach: a TCPStore asks for the name of its peer.
        for host in range(count):
            self.enter(host)
            _ip("route", "replace", "unreachable", "default")
        self._network.enter(None)

    def address(self, host: int) -> str:
        return address(NETWORK, host)

    def enter(self, host: int) -> None:
        self._network.enter(host)

    def cut(self, host: int) -> None:
        """From now on nothing goes to the host or comes from it; who sends is not told."""
        _ip("link", "set", f"host{host}", "down")

    def restore(self, host: int) -> None:
        _ip("link", "set", f"host{host}", "up")


@functools.cache
def unavailable() -> str | None:
    """Why there can be none here; None if there can."""
    code = f"from rankbind.rehearse.network import Network; Network([(), ()], {NETWORK!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
