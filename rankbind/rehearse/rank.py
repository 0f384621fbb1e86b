"""One process of a rehearsal: it claims, binds, dials, sends and receives when it is told to."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import zmq

from rankbind.endpoint import Endpoint
from rankbind.errors import ClaimedError, ClaimError, ScopeError, TopologyError
from rankbind.rehearse import holder
from rankbind.rehearse.script import Bind, Bound, Claimed, Dial, Holder, Order, Part, Want
from rankbind.runtime.claim import Claim, claim
from rankbind.runtime.record import Record

TICK = 0.025
"""Seconds between two messages of one publisher."""
REPORTED = 4
"""Ticks from one report of them to the next."""
_ASKED = 8
"""Ticks from one question to a replay to the next."""
_MOST_SOCKETS = 2048


class Rank:
    """A part, played.

    Args:
        link: to the stage. Each command is a tuple that begins with its name, and so is each answer.
        listeners: sockets that the stage listens on for several ranks, or why it could not, by host and endpoint.
    """

    def __init__(
        self,
        part: Part,
        order: Order,
        link: Connection,
        listeners: Mapping[tuple[int | None, str], socket.socket | OSError],
    ) -> None:
        self.part, self.order, self.link, self.listeners = part, order, link, listeners
        self.context = zmq.Context()
        self.context.max_sockets = _MOST_SOCKETS
        self.nonce = order.nonce.encode()
        self.claims: list[Claim] = []
        self.served: dict[int, zmq.Socket[bytes]] = {}
        self.dialled: dict[tuple[str, int], zmq.Socket[bytes]] = {}

    def play(self) -> None:
        """Do as the stage says until it says that it is over."""
        while True:
            name, *arguments = self.link.recv()
            if name == "message":
                self.message()
            else:
                self.link.send(getattr(self, name)(*arguments))
            if name == "close":
                return

    def claim(self) -> tuple[dict[int, Claimed], dict[str, bool]]:
        """What became of the claims, and of which resources this rank finds itself the owner."""
        return {want.number: self._claim(want) for want in self.part.wants}, self._owned()

    def _claim(self, want: Want) -> Claimed:
        try:
            self.claims.append(
                claim(
                    want.resource,
                    group=want.group,
                    deployment=self.order.nonce,
                    endpoints=want.endpoints,
                    paths=want.paths,
                    rank=self.part.rank,
                    coordinates=self.part.coordinates,
                    declared=want.declared,
                )
            )
        except ClaimedError as error:
            found = error.holder.process.pid if isinstance(error.holder, Record) else 0
            state: Any = "standing by" if want.election and error.address is None else "refused"
            return Claimed(state, found, error.address, str(error))
        except ClaimError as error:
            return Claimed("failed", diagnosis=str(error))
        return Claimed("held")

    def _owned(self) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for resource in self.order.job.resources if self.part.rank is not None else ():
            # Of a rank that is placed several times neither its host nor what follows from it can be told.
            with contextlib.suppress(ScopeError, TopologyError):
                found[resource.name] = resource.owner.is_owner(self.order.job.topology, {"rank": self.part.rank or 0})
        return found

    def bind(self, skipped: Sequence[int], blocked: Mapping[str, Holder], pids: Sequence[int]) -> dict[int, Bound]:
        """What became of the binds, but for `skipped`.

        Args:
            blocked: socket files that are somebody else's, and must not be bound.
            pids: the other processes of the rehearsal.
        """
        found: dict[int, Bound] = {}
        for bind in self.part.binds:
            if bind.number not in skipped:
                for endpoint in bind.endpoints:
                    found[bind.number] = self._bind(bind, endpoint, blocked, pids)
                    if found[bind.number].at is not None:
                        break
        return found

    def _bind(self, bind: Bind, endpoint: str, blocked: Mapping[str, Holder], pids: Sequence[int]) -> Bound:
        parsed = Endpoint.parse(endpoint, ipv6=bind.ipv6, v6only=bind.v6only)
        if parsed.file in blocked:
            return Bound(error="not bound: that would take it from its owner", holder=blocked[parsed.file or ""])
        made = self.context.socket(zmq.ROUTER if bind.role == "replay" else zmq.PUB)
        made.linger = 0
        made.ipv6 = bind.ipv6
        try:
            listener = self._listener(bind, parsed)
            if listener is not None:
                made.setsockopt(zmq.USE_FD, listener.detach())
            made.bind(endpoint)
        except (zmq.ZMQError, OSError) as error:
            made.close()
            number = error.errno or 0
            known = holder.of_endpoint(parsed, (os.getpid(), *pids)) if number == zmq.EADDRINUSE else None
            return Bound(errno=number, error=zmq.strerror(number), holder=known)
        self.served[bind.number] = made
        return Bound(made.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))

    def _listener(self, bind: Bind, endpoint: Endpoint) -> socket.socket | None:
        """A socket to hand to libzmq, where it cannot make what is declared."""
        if endpoint.transport != "tcp" or endpoint.last > 65535:
            return None
        if bind.sharing == "inherited":
            found = self.listeners[self.part.node, str(endpoint)]
            if isinstance(found, OSError):
                raise found
            return found.dup()
        if bind.sharing == "reuseport" or endpoint.v6only:
            return listen(endpoint, reuse_port=bind.sharing == "reuseport")
        return None

    def dial(self, watched: Sequence[Dial] = ()) -> dict[int, str]:
        """Connect to everything there is to dial; why not, by number, where that fails.

        Args:
            watched: what was really bound on this host, for the part that watches.
        """
        failed: dict[int, str] = {}
        for kind, each in (*(("heard", each) for each in self.part.dials), *(("watched", each) for each in watched)):
            made = self.context.socket(zmq.DEALER if each.role == "replay" else zmq.SUB)
            made.linger = 0
            made.ipv6 = any("[" in endpoint for endpoint in each.endpoints)
            if each.role != "replay":
                made.setsockopt(zmq.SUBSCRIBE, self.nonce)
            try:
                for endpoint in each.endpoints:
                    made.connect(endpoint)
            except zmq.ZMQError as error:
                made.close()
                failed[each.number] = zmq.strerror(error.errno or 0)
            else:
                self.dialled[kind, each.number] = made
        return failed

    def message(self) -> None:
        """Publish, answer and listen until the stage says that it is enough; tell it of every first message."""
        if not self.served and not self.dialled:
            self.link.send(("idle",))
            return
        poller = zmq.Poller()
        poller.register(self.link.fileno(), zmq.POLLIN)
        answering = [number for number, each in self.served.items() if each.type == zmq.ROUTER]
        for made in (*self.dialled.values(), *(self.served[number] for number in answering)):
            poller.register(made, zmq.POLLIN)
        heard: set[tuple[str, int, int]] = set()
        ticks, due = 0, time.monotonic()
        while True:
            ready = dict(poller.poll(max(0, int((due - time.monotonic()) * 1000))))
            if self.link.fileno() in ready:
                self.link.recv()
                self.link.send(("done",))
                return
            for number in answering:
                if self.served[number] in ready:
                    self._answer(number)
            for (kind, number), made in self.dialled.items():
                if made in ready:
                    for binding in self._received(made):
                        if (kind, number, binding) not in heard:
                            heard.add((kind, number, binding))
                            self.link.send(("heard", kind, number, binding))
            if time.monotonic() >= due:
                self._tick(ticks)
                ticks, due = ticks + 1, time.monotonic() + TICK
                if ticks % REPORTED == 0:
                    self.link.send(("ticks", ticks))

    def _tick(self, ticks: int) -> None:
        for number, made in self.served.items():
            if made.type == zmq.PUB:
                made.send(self._text(number))
        if ticks % _ASKED == 0:
            for made in self.dialled.values():
                if made.type == zmq.DEALER:
                    with contextlib.suppress(zmq.Again):
                        made.send(self.nonce, zmq.NOBLOCK)

    def _text(self, number: int) -> bytes:
        return b"%s %d" % (self.nonce, number)

    def _answer(self, number: int) -> None:
        made = self.served[number]
        with contextlib.suppress(zmq.Again):
            while True:
                who, *asked = made.recv_multipart(zmq.NOBLOCK)
                if asked == [self.nonce]:
                    made.send_multipart([who, self._text(number)], zmq.NOBLOCK)

    def _received(self, made: zmq.Socket[bytes]) -> set[int]:
        found: set[int] = set()
        with contextlib.suppress(zmq.Again):
            while True:
                first, *more = made.recv_multipart(zmq.NOBLOCK)
                nonce, _, number = first.partition(b" ")
                # Whatever else is said at this address is somebody else's.
                if nonce == self.nonce and not more and number.isdigit():
                    found.add(int(number))
        return found

    def close(self) -> bool:
        """Give everything up."""
        for made in (*self.dialled.values(), *self.served.values()):
            made.close()
        self.context.term()
        for held in self.claims:
            held.release()
        return True


def listen(endpoint: Endpoint, *, reuse_port: bool = False) -> socket.socket:
    """A plain socket that listens on a tcp endpoint, with the options that are declared. Raises OSError."""
    family = socket.AF_INET6 if endpoint.ipv6 else socket.AF_INET
    host = {"*": "::" if endpoint.ipv6 else "0.0.0.0", "lo": "::1" if endpoint.ipv6 else "127.0.0.1"}.get(endpoint.host)
    # flags: an IPv4 address on an IPv6 socket is mapped into it.
    found = socket.getaddrinfo(
        host or endpoint.host, endpoint.first, family, socket.SOCK_STREAM, 0, socket.AI_V4MAPPED | socket.AI_PASSIVE
    )
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, endpoint.v6only)
        made.bind(found[0][4])
        made.listen()
    except BaseException:
        made.close()
        raise
    return made
