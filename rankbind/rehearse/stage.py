"""The process that starts the ranks of a rehearsal, keeps them together from phase to phase, and clears up after them.

It ends, and with it all ranks, when the command that started it does: its pipe is closed then, however that came about.
The ranks are forked from it, since all that they need is imported here already; each would die with it (prctl(2),
PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import filelock  # noqa: F401 - so that it is not imported again in every rank

from rankbind.endpoint import Endpoint
from rankbind.errors import RankbindError
from rankbind.rehearse import holder
from rankbind.rehearse.network import Network
from rankbind.rehearse.rank import Rank, listen
from rankbind.rehearse.script import Bind, Claimed, Dial, Failure, NetworkError, Order, Part, RehearsalError, Report
from rankbind.rehearse.traces import sweep
from rankbind.runtime import directory

_ENOUGH = 10
"""Ticks to go on for after the last message that was expected: whether any other comes."""
_QUIET = 60
"""Ticks without any new message after which those that did not come are given up. Ticks rather than seconds: on a busy
machine they are longer."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def main(descriptor: int) -> None:
    """Play the orders that come over a pipe until it is closed."""
    link = Connection(descriptor)
    order: Order | None = None
    network: Network | None = None
    try:
        while True:
            order = link.recv()
            try:
                network = network or _network(order)
                link.send(_Play(order, link, network).run())
            except RankbindError as error:
                link.send(Failure(str(error), isinstance(error, NetworkError)))
    except (EOFError, OSError, _GoneError):
        pass
    finally:
        if order is not None:
            sweep(order)


def _network(order: Order) -> Network | None:
    if order.hosts is None:
        return None
    # The folders above it belong to nobody there, and could not be found safe.
    for node in range(len(order.hosts)):
        _use_directory(order, node)
    return Network(order.hosts, order.network)


def _use_directory(order: Order, node: int | None) -> None:
    Path(order.folder).mkdir(0o700, exist_ok=True)
    os.environ[directory.VARIABLE] = order.runtime_directory(node)
    directory.runtime_directory()


class _GoneError(Exception):
    """The command is gone."""


class _Play:
    """One order, played."""

    def __init__(self, order: Order, link: Connection, network: Network | None) -> None:
        self.order, self.link, self.network = order, link, network
        self.report = Report()
        self.ranks: dict[int, Connection] = {}
        self.parts = {part.number: part for part in order.parts}
        self.listeners: dict[tuple[int | None, str], socket.socket | OSError] = {}
        self.until = time.monotonic() + order.limit
        self.doing = "start"

    def run(self) -> Report:
        try:
            self._spawn()
            self._claim()
            self._bind()
            self._dial()
            self._message()
            self.doing = "close"
            self._ask(self.ranks)
            self._reap(self.ranks)
        finally:
            for pid in self.report.pids.values():
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    # Not yet waited for, so it cannot be anybody else's.
                    if os.waitpid(pid, os.WNOHANG) == (0, 0):
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
            for each in (*self.ranks.values(), *self.listeners.values()):
                if not isinstance(each, OSError):
                    each.close()
            sweep(self.order, (found.at for found in self.report.bound.values()))
        return self.report

    def _spawn(self) -> None:
        for node in {part.node for part in self.order.parts}:
            _use_directory(self.order, node)
        for part in self.order.parts:
            with self._on(part.node):
                for bind in part.binds:
                    if bind.sharing == "inherited":
                        self._listen(part.node, bind)
                self.ranks[part.number], theirs = Pipe()
                self.report.pids[part.number] = _fork(partial(self._be, part, theirs))
            theirs.close()

    @contextlib.contextmanager
    def _on(self, node: int | None) -> Any:
        if self.network is None:
            yield
            return
        self.network.enter(node)
        try:
            yield
        finally:
            self.network.enter(None)

    def _listen(self, node: int | None, bind: Bind) -> None:
        for text in bind.endpoints:
            endpoint = Endpoint.parse(text, ipv6=bind.ipv6, v6only=bind.v6only)
            if endpoint.transport == "tcp" and endpoint.last <= 65535 and (node, str(endpoint)) not in self.listeners:
                try:
                    self.listeners[node, str(endpoint)] = listen(endpoint)
                except OSError as error:
                    self.listeners[node, str(endpoint)] = error

    def _be(self, part: Part, link: Connection) -> None:
        """What a forked process is from then on."""
        # Their copies would keep others from seeing that an end was closed.
        self.link.close()
        for each in self.ranks.values():
            each.close()
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_NAME, f"rehearse {part.rank if part.rank is not None else 'peer'}".encode())
        os.environ[directory.VARIABLE] = self.order.runtime_directory(part.node)
        if not self.order.paths:
            # Nothing depends on the working directory but what libzmq names itself (ipc://*).
            os.chdir(self.order.folder)
        Rank(part, self.order, link, self.listeners).play()

    def _claim(self) -> None:
        self.doing = "claim"
        for number, (claims, owned) in self._in_turn():
            self.report.claims.update({(number, which): found for which, found in claims.items()})
            self.report.owned[number] = owned
        failed = next((each for each in self.report.claims.values() if each.state == "failed"), None)
        if failed is not None:
            raise RehearsalError(failed.diagnosis)

    def _bind(self) -> None:
        self.doing = "bind"
        blocked = {path: found for path in self.order.paths if (found := holder.in_the_way(path)) is not None}
        pids = tuple(self.report.pids.values())
        asked = {number: (self._skipped(number), blocked, pids) for number in self.ranks}
        for number, bound in self._in_turn(asked):
            self.report.bound.update({(number, which): found for which, found in bound.items()})

    def _skipped(self, number: int) -> tuple[int, ...]:
        """What is not bound, as another was elected.

        Whose claim was refused otherwise still binds, to see what the kernel says.
        """
        part = self.parts[number]
        lost = {
            want.resource
            for want in part.wants
            if self.report.claims.get((number, want.number), Claimed("held")).state == "standing by"
        }
        return tuple(bind.number for bind in part.binds if bind.resource in lost)

    def _dial(self) -> None:
        self.doing = "dial"
        asked: dict[int, tuple[Any, ...]] = {}
        for number in self.ranks:
            part = self.parts[number]
            if part.watches:
                asked[number] = (self._watched(part.node),)
        for number, failed in self._ask(self.ranks, asked).items():
            if not self.parts[number].watches:
                self.report.unable.update(failed)

    def _watched(self, node: int | None) -> list[Dial]:
        found = []
        for part in self.parts.values():
            for bind in part.binds if part.node == node else ():
                bound = self.report.bound.get((part.number, bind.number))
                if bound is not None and bound.at is not None and not bound.at.startswith("inproc:"):
                    found.append(Dial(bind.number, (_within(bound.at, bind.v6only),), bind.role))
        return found

    def _message(self) -> None:
        self.doing = "exchange messages"
        missing = self._expected()
        ticks: dict[int, int] = {}
        since: dict[int, int] = {}
        for number in self.ranks:
            self._send(number, "message")
            ticks[number] = since[number] = 0

        def over() -> bool:
            needed = _QUIET if missing else _ENOUGH
            return all(done - since[number] >= needed for number, done in ticks.items())

        while not over():
            for number, (name, *told) in self._received(ticks):
                if name == "idle":
                    del ticks[number]
                elif name == "ticks":
                    ticks[number] = told[0]
                elif name == "heard":
                    kind, which, binding = told
                    getattr(self.report, kind).setdefault(which, set()).add(binding)
                    missing.discard((kind, which, binding))
                    since.update(ticks)
            for number in self.report.died:
                ticks.pop(number, None)
        for number in ticks:
            self._send(number, "stop")
        while ticks:
            for number, (name, *_) in self._received(ticks):
                if name == "done":
                    del ticks[number]
            for number in self.report.died:
                ticks.pop(number, None)

    def _expected(self) -> set[tuple[str, int, int]]:
        bound = {which for (_, which), found in self.report.bound.items() if found.at is not None}
        found = {
            ("heard", each.number, binding)
            for part in self.parts.values()
            for each in part.dials
            if each.number not in self.report.unable
            for binding in self.order.expected.get(each.number, frozenset()) & bound
        }
        return found | {
            ("watched", bind.number, bind.number)
            for part in self.parts.values()
            for bind in part.binds
            if bind.number in bound and bind.sharing is None and not bind.endpoints[0].startswith("inproc:")
        }

    def _in_turn(self, arguments: dict[int, tuple[Any, ...]] | None = None) -> list[tuple[int, Any]]:
        """Let each do something after the other, in the order of ranks, so that it comes out alike every time."""
        found: list[tuple[int, Any]] = []
        for number in tuple(self.ranks):
            found += self._ask([number], arguments).items()
        return found

    def _ask(self, numbers: Iterable[int], arguments: dict[int, tuple[Any, ...]] | None = None) -> dict[int, Any]:
        """What each answers who is told to do something; whoever dies over it is left out."""
        waiting = set(numbers)
        for number in tuple(waiting):
            self._send(number, self.doing, *(arguments or {}).get(number, ()))
        found: dict[int, Any] = {}
        while waiting := waiting - found.keys() - self.report.died.keys():
            found.update(self._received(waiting))
        return {number: found[number] for number in sorted(found)}

    def _send(self, number: int, *command: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.ranks[number].send(command)

    def _received(self, numbers: Iterable[int]) -> list[tuple[int, Any]]:
        """Some message of some of these; those that died instead are in the report."""
        links = {self.ranks[number]: number for number in numbers if number in self.ranks}
        ready = wait([self.link, *links], max(0.0, self.until - time.monotonic()))
        if self.link in ready:
            raise _GoneError
        if not ready:
            late = ", ".join(str(self.parts[number]) for number in sorted(links.values())[:4])
            raise RehearsalError(
                f"{late} did not {self.doing} in the {self.order.limit:g} s that the rehearsal may take (--timeout)"
            )
        found = []
        for each in ready:
            if isinstance(each, Connection) and each in links:
                try:
                    found.append((links[each], each.recv()))
                except (EOFError, ConnectionResetError):
                    self._bury(links[each])
        return found

    def _bury(self, number: int) -> None:
        self.ranks.pop(number).close()
        _, status = os.waitpid(self.report.pids[number], 0)
        code = os.waitstatus_to_exitcode(status)
        self.report.died[number] = (
            f"ended with status {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        )

    def _reap(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.report.pids[number], 0)


def _fork(be: Callable[[], None]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            be()
            status = 0
    except (EOFError, OSError):
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # Nothing of the parent's is to be done again: no buffers, no atexit.
        os._exit(status)


def _within(endpoint: str, v6only: bool) -> str:
    """Where, on its own host, a real endpoint is dialled."""
    loopback = "[::1]" if v6only else "127.0.0.1"
    return endpoint.replace("tcp://0.0.0.0:", "tcp://127.0.0.1:").replace("tcp://[::]:", f"tcp://{loopback}:")


def started(descriptor: str) -> None:
    """Be a stage, on a pipe with this descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    main(int(descriptor))
