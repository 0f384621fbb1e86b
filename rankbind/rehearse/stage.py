"""The process that starts the ranks of a rehearsal, keeps them together from phase to phase, and clears up after them.

It ends, and with it all ranks, when the command that started it does: its pipe is closed then, however that came about.
The ranks are forked from it, since all that they need is imported here already; each dies with it (prctl(2),
PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import filelock  # noqa: F401 - so that it is not imported again in every rank

from rankbind.endpoint import Endpoint
from rankbind.errors import NetworkError, RankbindError, RehearsalError
from rankbind.rehearse.network import Network
from rankbind.rehearse.rank import Rank, Whose, can_listen, listen
from rankbind.rehearse.script import Bind, Failure, Order, Part, Report
from rankbind.runtime import directory, listeners

_DOING = {"take": "claim and bind", "dial": "dial", "message": "exchange messages", "close": "close its sockets"}
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class _GoneError(Exception):
    """The command is gone."""


def main(descriptor: int) -> None:
    """Play the orders that come over a pipe until it is closed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    link = Connection(descriptor)
    order: Order | None = None
    try:
        while True:
            order = link.recv()
            try:
                answer: Report | Failure = _Play(order, link).run()
            except RankbindError as error:
                answer = Failure(str(error), isinstance(error, NetworkError))
            except OSError as error:  # as a fork that comes to `ulimit -u`
                answer = Failure(f"its processes cannot be started or told what to do: {error}")
            sweep(order)
            link.send(answer)
    except (EOFError, OSError, _GoneError):
        pass
    finally:
        if order is not None:
            sweep(order)
            shutil.rmtree(order.folder, ignore_errors=True)


def sweep(order: Order, patience: float = 0.0) -> None:
    """Take away what a rehearsal may have left: its claims, and its sockets that nobody listens on any more.

    Args:
        patience: seconds to wait for whoever listens on one of its sockets, and may be dying.
    """
    for each in Path(order.folder).glob("*"):
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)
    until = time.monotonic() + patience
    for path in order.paths:
        with contextlib.suppress(OSError):
            while stat.S_ISSOCK(Path(path).lstat().st_mode):
                if listeners.in_the_way(path) is None:
                    Path(path).unlink()
                elif time.monotonic() >= until:
                    break
                else:
                    time.sleep(0.02)


class _Play:
    """One order, played."""

    def __init__(self, order: Order, link: Connection) -> None:
        self.order, self.link, self.parts = order, link, order.parts
        self.report = Report()
        self.pids: dict[int, int] = {}
        self.ranks: dict[int, Connection] = {}
        self.until = time.monotonic() + order.limit

    def run(self) -> Report:
        blocked = {path: found for path in self.order.paths if (found := listeners.in_the_way(path)) is not None}
        for node in {part.node for part in self.parts}:
            # The folders above it belong to nobody in a user namespace, and could not be found safe there.
            _use_directory(self.order, node)
        network = None if self.order.hosts is None else Network(self.order.hosts, self.order.network)
        try:
            self._start(network, blocked)
            # One after the other, in the order of ranks, so that it comes out alike every time.
            for number in tuple(self.ranks):
                for claims, bound in self._ask("take", number).values():
                    self.report.claims.update({(number, name): found for name, found in claims.items()})
                    self.report.bound.update(bound)
            for claimed in self.report.claims.values():
                if claimed.state == "failed":
                    raise RehearsalError(claimed.diagnosis)
            for failed in self._ask("dial", *self.ranks).values():
                self.report.unable.update(failed)
            self._message()
            self._ask("close", *self.ranks)
        finally:
            for number, each in self.ranks.items():
                each.close()
                os.kill(self.pids[number], signal.SIGKILL)
                os.waitpid(self.pids[number], 0)
        return self.report

    def _start(self, network: Network | None, blocked: Mapping[str, listeners.Listener]) -> None:
        inherited: dict[tuple[int | None, str], socket.socket | OSError] = {}
        for number, part in enumerate(self.parts):
            if network is not None:
                network.enter(part.node)
            for bind in part.binds:
                if bind.sharing == "inherited":
                    _listen(bind, part.node, inherited)
            self.ranks[number], theirs = Pipe()
            before = {pid: str(self.parts[each]) for each, pid in self.pids.items()}
            rank = partial(Rank, part, self.order, theirs, blocked, inherited, before)
            self.pids[number] = _fork(partial(self._be, part, rank))
            theirs.close()
        if network is not None:
            network.enter(None)
        for each in inherited.values():
            if isinstance(each, socket.socket):
                each.close()

    def _be(self, part: Part, rank: Callable[[], Rank]) -> None:
        """What a forked process is from then on."""
        # A copy of it would keep the command from seeing that the stage is gone.
        self.link.close()
        _prctl(_PR_SET_NAME, f"rehearse {'peer' if part.rank is None else part.rank}".encode())
        os.environ[directory.VARIABLE] = self.order.runtime_directory(part.node)
        rank().play()

    def _message(self) -> None:
        missing = self._expected()
        for number in self.ranks:
            self._send(number, "message", missing[number])
        waiting, quiet, stopping = set(self.ranks), set[int](), False
        for number, said in self._told(waiting, "message"):
            match said:
                case "quiet":
                    quiet.add(number)
                case "done":
                    waiting.discard(number)
                case whose, which, binding:
                    getattr(self.report, whose).setdefault(which, set()).add(binding)
            if not stopping and quiet >= waiting:
                stopping = True
                for each in waiting:
                    self._send(each, "stop")

    def _expected(self) -> dict[int, set[tuple[Whose, int, int]]]:
        """What each is to hear before it gives up: of those it is meant to reach, and of itself."""
        bound = {number for number, found in self.report.bound.items() if found.at is not None}
        # Of those that share an address any may answer.
        alone = bound - {bind.number for part in self.parts for bind in part.binds if bind.sharing is not None}
        return {
            number: {
                *(("heard", each.number, binding) for each in part.dials for binding in each.meant & alone),
                *(("own", bind.number, bind.number) for bind in part.binds if bind.number in bound),
            }
            for number, part in enumerate(self.parts)
        }

    def _ask(self, command: str, *numbers: int) -> dict[int, Any]:
        """What each answers who is told to do something; whoever dies over it is left out."""
        for number in numbers:
            self._send(number, command)
        waiting, found = set(numbers), {}
        for number, answer in self._told(waiting, command):
            if number in waiting:
                waiting.remove(number)
                found[number] = answer
        return found

    def _send(self, number: int, *command: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.ranks[number].send(command)

    def _told(self, numbers: set[int], command: str) -> Iterator[tuple[int, Any]]:
        """What these say, until there are none of them left; who dies is taken out, and says ``died``."""
        while numbers:
            links = {self.ranks[number]: number for number in numbers}
            left = self.until - time.monotonic()
            ready = wait([self.link, *links], max(0.0, left))
            if self.link in ready:
                raise _GoneError
            if not ready or left < 0:
                late = ", ".join(str(self.parts[number]) for number in sorted(numbers)[:4])
                raise RehearsalError(
                    f"{late} did not {_DOING[command]} in the {self.order.limit:g} s that the rehearsal may take "
                    "(--timeout)"
                )
            for each in ready:
                if isinstance(each, Connection) and (number := links[each]) in numbers:
                    try:
                        said = each.recv()
                    except (EOFError, ConnectionResetError):
                        numbers.remove(number)
                        self._bury(number)
                        said = "died"
                    yield number, said

    def _bury(self, number: int) -> None:
        self.ranks.pop(number).close()
        _, status = os.waitpid(self.pids[number], 0)
        code = os.waitstatus_to_exitcode(status)
        how = f"ended with status {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        self.report.died[number] = how


def _use_directory(order: Order, node: int | None) -> None:
    os.environ[directory.VARIABLE] = order.runtime_directory(node)
    directory.runtime_directory()


def _listen(bind: Bind, node: int | None, inherited: dict[tuple[int | None, str], socket.socket | OSError]) -> None:
    for text in bind.endpoints:
        endpoint = Endpoint.parse(text, ipv6=bind.ipv6, v6only=bind.v6only)
        key = node, str(endpoint)
        if can_listen(endpoint) and key not in inherited:
            try:
                inherited[key] = listen(endpoint)
            except OSError as error:
                inherited[key] = error


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value)


def _fork(be: Callable[[], None]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            be()
            status = 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # Nothing of the parent's is to be done again: no buffers, no atexit.
        os._exit(status)
