"""Which addresses a publisher binds: vLLM is asked, for its rule (whether, bind or connect, which port) differs by
release."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankbind_vllm.releases import KV_EVENTS_MODULE, PUBLISHER


@dataclass(frozen=True)
class Sockets:
    """What the sockets of a publisher would do.

    Attributes:
        binds: the addresses that are bound, by role (``bind``, ``replay``).
        dials: the address that is connected, likewise.
    """

    binds: Mapping[str, str] = field(default_factory=dict)
    dials: Mapping[str, str] = field(default_factory=dict)

    def unfit(self, index: int) -> str | None:
        """What is wrong with these addresses for replica `index`, if anything, in words."""
        for role, address in self.binds.items():
            port = address.rpartition(":")[2]
            # To 0.30 of "any port" it makes the port `index`.
            if address.startswith("tcp://") and port.isdigit() and int(port) and not index < int(port) <= 65535:
                return f"the {role} endpoint of replica {index} comes to {address}"
        if "0.0.0.0" in self.dials.get("bind", ""):
            address = self.dials["bind"]
            return f"vLLM connects to {address}, where nobody listens: it binds tcp://* and no other tcp:// address"
        return None


def rehearse(config: Any, index: int, create: Any) -> Sockets | None:
    """What the publisher of replica `index` will do; None where the configuration makes no publisher with sockets.

    vLLM's own code makes it, up to where it would use a socket.

    Args:
        create: the engine's ``EventPublisherFactory.create``, as a function.

    Raises:
        ValueError, TypeError: vLLM cannot make this publisher. (0.11.0 can make none that is called "null".)
        AttributeError: a release whose publishers are made otherwise.
    """
    module: Any = sys.modules[KV_EVENTS_MODULE]
    factory: Any = getattr(module, PUBLISHER.owner)

    class Rehearsal(module.ZmqEventPublisher):  # type: ignore[misc]
        def _socket_setup(self) -> None:
            self._ctx = _Paper()
            super()._socket_setup()
            raise _EndError(self._pub, self._replay)

    rehearsing = type(PUBLISHER.owner, (factory,), {"_registry": {**factory._registry, "zmq": Rehearsal}})
    try:
        create(rehearsing, config, index)
    except _EndError as end:
        made = {"bind": end.publishes, "replay": end.repeats}
        papers = {role: paper for role, paper in made.items() if paper is not None}
        return Sockets(
            binds={role: paper.bound for role, paper in papers.items() if paper.bound is not None},
            dials={role: paper.connected for role, paper in papers.items() if paper.connected is not None},
        )
    return None


def bound(publisher: Any, roles: Iterable[str]) -> dict[str, str]:
    """The addresses that a publisher has really bound, for those `roles` that it binds: for port 0, the one it got."""
    import zmq

    live = {"bind": publisher._pub, "replay": publisher._replay}
    # Another thread uses the socket, but this text is never changed after bind, and libzmq only copies it.
    return {
        role: live[role].getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        for role in roles
        if live[role] is not None and not live[role].closed
    }


class _EndError(Exception):
    """The end of a rehearsal, and its two sockets."""

    def __init__(self, publishes: _Paper | None, repeats: _Paper | None) -> None:
        super().__init__("this is only a rehearsal")
        self.publishes, self.repeats = publishes, repeats


class _Paper:
    """A context and socket of ZeroMQ on paper."""

    def __init__(self) -> None:
        self.bound: str | None = None
        self.connected: str | None = None

    def socket(self, *_: Any) -> _Paper:
        return _Paper()

    def bind(self, address: str) -> None:
        self.bound = address

    def connect(self, address: str) -> None:
        self.connected = address

    def getsockopt_string(self, *_: Any) -> str:
        return self.bound or ""

    def __getattr__(self, _: str) -> Any:
        return lambda *args, **kwargs: None
