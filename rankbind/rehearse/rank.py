"""One process of a rehearsal: it claims, binds, dials, sends and receives when it is told to."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Literal

import zmq

from rankbind.endpoint import MAX_PORT, Endpoint
from rankbind.errors import ClaimedError, ClaimError, PortError
from rankbind.rehearse.script import Bind, Bound, Claimed, Dial, Order, Part, Want
from rankbind.runtime import handover, listeners
from rankbind.runtime.claim import Claim, claim
from rankbind.runtime.record import Record

_TICK = 0.025
"""Seconds between two messages of one publisher; in a large job it is longer."""
_ENOUGH, _SILENT, _QUIET = 10, 40, 200
"""Ticks without any new message after which a rank is content: where all came that are meant to (whether any other
does), where nothing came from somebody dialled, and where one that is meant to come did not. Ticks rather than seconds:
on a busy machine they are longer."""
_ASKED = 8
"""Ticks from one question to a replay to the next."""
_MOST_SOCKETS = 4096

Whose = Literal["own", "heard"]


class Rank:
    """A part, played.

    Args:
        link: to the stage. A command is a name of a method here, and is answered by what that returns.
        blocked: socket files that are somebody else's, and must not be bound.
        inherited: sockets that the stage listens on for several ranks, or why it could not, by host and endpoint.
        pids: who claims and binds before this one.
    """

    def __init__(
        self,
        part: Part,
        order: Order,
        link: Connection,
        blocked: Mapping[str, listeners.Listener],
        inherited: Mapping[tuple[int | None, str], socket.socket | OSError],
        pids: Mapping[int, str],
    ) -> None:
        self.part, self.order, self.link, self.blocked, self.inherited = part, order, link, blocked, inherited
        self.pids = {os.getpid(): str(part), **pids}
        self.context = zmq.Context()
        self.context.max_sockets = _MOST_SOCKETS
        self.nonce = order.nonce.encode()
        self.claims: list[Claim] = []
        self.served: dict[int, zmq.Socket[bytes]] = {}
        self.dialled: dict[tuple[Whose, int], zmq.Socket[bytes]] = {}

    def play(self) -> None:
        """Do as the stage says until it says that it is over."""
        command = ""
        while command != "close":
            command, *arguments = self.link.recv()
            self.link.send(getattr(self, command)(*arguments))

    def take(self) -> tuple[dict[str, Claimed], dict[int, Bound]]:
        """What became of the claims, and of the binds.

        Whose claim is refused still binds, to see what the kernel says; who lost an election does not.
        """
        claims = {want.resource: self._claim(want) for want in self.part.wants}
        return claims, {
            bind.number: self._bind(bind)
            for bind in self.part.binds
            if bind.resource not in claims or claims[bind.resource].state != "standing by"
        }

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
            pid = error.holder.process.pid if isinstance(error.holder, Record) else 0
            standing_by = want.election and error.address is None
            state: Literal["standing by", "refused"] = "standing by" if standing_by else "refused"
            return Claimed(state, self.pids.get(pid, "another process"), error.address, str(error))
        except ClaimError as error:
            return Claimed("failed", diagnosis=str(error))
        return Claimed("held")

    def _bind(self, bind: Bind) -> Bound:
        found = Bound()
        for endpoint in bind.endpoints:
            found = self._try(bind, Endpoint.parse(endpoint, ipv6=bind.ipv6, v6only=bind.v6only))
            if found.at is not None:
                break
        return found

    def _try(self, bind: Bind, endpoint: Endpoint) -> Bound:
        if endpoint.file in self.blocked:
            return Bound(
                error="not bound: that would take it from its owner",
                holder=str(self.blocked[endpoint.file or ""]),
                foreign=True,
            )
        made = self.context.socket(zmq.ROUTER if bind.role == "replay" else zmq.PUB)
        made.linger = 0
        made.ipv6 = bind.ipv6
        try:
            listener = self._listener(bind, endpoint)
            if listener is not None:
                made.setsockopt(zmq.USE_FD, listener.detach())
            made.bind(str(endpoint))
        except (zmq.ZMQError, OSError) as error:
            made.close()
            return self._refused(endpoint, error.errno or 0)
        self.served[bind.number] = made
        return Bound(made.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))

    def _refused(self, endpoint: Endpoint, number: int) -> Bound:
        error = zmq.strerror(number)
        if number != errno.EADDRINUSE:
            return Bound(None, number, error)
        found = next(listeners.of_endpoint(endpoint, self.pids), None)
        if found is None:
            return Bound(None, number, error)
        return Bound(None, number, error, self.pids.get(found.pid, str(found)), found.pid not in self.pids)

    def _listener(self, bind: Bind, endpoint: Endpoint) -> socket.socket | None:
        """A socket to hand to libzmq, where it cannot make what is declared."""
        if not can_listen(endpoint):
            return None
        if bind.sharing == "inherited":
            found = self.inherited[self.part.node, str(endpoint)]
            if isinstance(found, OSError):
                raise found
            return found.dup()
        if bind.sharing == "reuseport" or endpoint.v6only:
            return listen(endpoint, reuse_port=bind.sharing == "reuseport")
        return None

    def dial(self) -> dict[int, str]:
        """Connect to everything there is to dial, and to what this process itself bound; why not, where that fails."""
        failed: dict[int, str] = {}
        for each in self.part.dials:
            try:
                self.dialled["heard", each.number] = self._dial(each)
            except zmq.ZMQError as error:
                failed[each.number] = zmq.strerror(error.errno or 0)
        for bind in self.part.binds:
            if bind.number in self.served:
                at = _within(self.served[bind.number].get_string(zmq.LAST_ENDPOINT).rstrip("\0"), bind.v6only)
                self.dialled["own", bind.number] = self._dial(Dial(bind.number, (at,), bind.role))
        return failed

    def _dial(self, to: Dial) -> zmq.Socket[bytes]:
        made = self.context.socket(zmq.DEALER if to.role == "replay" else zmq.SUB)
        made.linger = 0
        made.ipv6 = any("[" in endpoint for endpoint in to.endpoints)
        if to.role != "replay":
            made.setsockopt(zmq.SUBSCRIBE, self.nonce)
        try:
            for endpoint in to.endpoints:
                made.connect(endpoint)
        except zmq.ZMQError:
            made.close()
            raise
        return made

    def message(self, missing: set[tuple[Whose, int, int]]) -> str:
        """Publish, answer and listen until the stage says that it is enough; tell it of every first message.

        Args:
            missing: what is meant to come.
        """
        poller = zmq.Poller()
        poller.register(self.link.fileno(), zmq.POLLIN)
        routers = {number: each for number, each in self.served.items() if each.type == zmq.ROUTER}
        for made in (*self.dialled.values(), *routers.values()):
            poller.register(made, zmq.POLLIN)
        heard: set[tuple[Whose, int, int]] = set()
        ticks, since, due, quiet = 0, 0, time.monotonic(), False
        tick = max(_TICK, len(self.order.parts) * _TICK / 100)
        while True:
            ready = dict(poller.poll(max(0, int((due - time.monotonic()) * 1000))))
            if self.link.fileno() in ready:
                self.link.recv()
                return "done"
            for number, made in routers.items():
                for who, *asked in _received(made) if made in ready else ():
                    if asked == [self.nonce]:
                        _send(made, who, self._text(number))
            for (whose, number), made in self.dialled.items():
                for text, *more in _received(made) if made in ready else ():
                    nonce, _, binding = text.partition(b" ")
                    # Whatever else is said at this address is somebody else's.
                    if nonce == self.nonce and not more and (told := (whose, number, int(binding))) not in heard:
                        heard.add(told)
                        # Who gets another's message at his own address will not get his own there.
                        missing -= {told, (whose, number, number) if whose == "own" else told}
                        since = ticks
                        self.link.send(told)
            if time.monotonic() >= due:
                self._tick(ticks)
                ticks, due = ticks + 1, time.monotonic() + tick
                silent = {(whose, number) for whose, number, _ in heard} != self.dialled.keys()
                if not quiet and ticks - since > (_QUIET if missing else _SILENT if silent else _ENOUGH):
                    quiet = True
                    self.link.send("quiet")

    def _tick(self, ticks: int) -> None:
        for number, made in self.served.items():
            if made.type == zmq.PUB:
                made.send(self._text(number))
        for made in self.dialled.values():
            if made.type == zmq.DEALER and ticks % _ASKED == 0:
                _send(made, self.nonce)

    def _text(self, number: int) -> bytes:
        return b"%s %d" % (self.nonce, number)

    def close(self) -> None:
        """Give everything up."""
        for made in (*self.dialled.values(), *self.served.values()):
            made.close()
        self.context.term()
        for held in self.claims:
            held.release()


def _received(made: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    with contextlib.suppress(zmq.Again):
        while True:
            yield made.recv_multipart(zmq.NOBLOCK)


def _send(made: zmq.Socket[bytes], *parts: bytes) -> None:
    with contextlib.suppress(zmq.Again):
        made.send_multipart(parts, zmq.NOBLOCK)


def _within(endpoint: str, v6only: bool) -> str:
    """Where, on its own host, a real endpoint is dialled."""
    loopback = "[::1]" if v6only else "127.0.0.1"
    return endpoint.replace("tcp://0.0.0.0:", "tcp://127.0.0.1:").replace("tcp://[::]:", f"tcp://{loopback}:")


def can_listen(endpoint: Endpoint) -> bool:
    """Whether a plain socket can; libzmq is left to say what it thinks of ports that are none."""
    return endpoint.transport == "tcp" and 0 <= endpoint.first <= MAX_PORT


def listen(endpoint: Endpoint, *, reuse_port: bool = False) -> socket.socket:
    """A plain socket that listens on a tcp endpoint, with the options that are declared. Raises OSError."""
    try:
        family, host = handover.resolve(endpoint.host, endpoint.ipv6)
    except PortError as error:
        raise OSError(error.errno or errno.EADDRNOTAVAIL, str(error)) from None
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, endpoint.v6only)
        made.bind((host, endpoint.first))
        made.listen()
        # Of those who share it one gets the connection; libzmq must not be caught in accept() in the others.
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
