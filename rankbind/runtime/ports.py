"""Ports that cannot be raced: bound and listening from the moment they are chosen, and handed to one taker.

Only a socket that listens holds a port; one that is merely bound does not (kernel.md). So nothing here is probed,
closed, and hoped for: `reserve` listens, and whoever serves in the end gets that very socket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rankbind.endpoint import IPC_PATH_BYTES, MAX_PORT, Endpoint
from rankbind.errors import HandoverError, PortError
from rankbind.runtime import handover, listeners, lock
from rankbind.site import call_site

if TYPE_CHECKING:
    import socketserver

    import zmq

BACKLOG = 1024
"""Connections that may wait for the taker; the kernel allows no more than net.core.somaxconn."""

_PATIENCE = 0.05
"""Seconds to wait for a port that is being closed: libzmq's close() takes up to 4 ms to let go of it (kernel.md)."""
_LOCK_PATIENCE = 5.0
_EPHEMERAL_TRIES = 100


class Reservation:
    """A listening socket that nobody serves on yet. Made by `reserve`, `adopt` and `inherited`.

    It is handed over once: two takers of one socket both bind happily, and a client hears one of them (kernel.md). If
    handing it over fails, it is still here. A with-block closes what was not handed over.

    A child that is forked does not have it; see `parcel`. A child that is spawned gets it like any other argument.

    Attributes:
        endpoint: where it really listens, as the kernel spells it: ``tcp://0.0.0.0:41234`` for ``*``.
        name: what it was called; systemd's name of a descriptor.
        keep: whether a copy stays here when it is handed over, so that nobody takes the port while the taker is dead.
        site: ``file:line`` where it was made.
    """

    def __init__(self, listener: socket.socket, name: str = "", keep: bool = False, path: str = "") -> None:
        self.endpoint = handover.inspect(listener.fileno())
        self.name, self.keep, self.site = name, keep, call_site()
        self._listener: socket.socket | None = listener
        self._path, self._inode = path, _inode(path)
        self._envelope: handover.Envelope | None = None
        self._given = ""
        self._pid, self._mutex = os.getpid(), RLock()
        _here.add(listener)

    @property
    def port(self) -> int:
        """The port; 0 for ipc."""
        return self.endpoint.first

    @property
    def held(self) -> bool:
        """Whether this process has the socket: False once it is given away (unless a copy is kept) and once closed."""
        return self._listener is not None and self._pid == os.getpid()

    @property
    def given(self) -> str:
        """To whom it was handed over, and where in the code; empty if it was not."""
        by = self._envelope.opened_by() if self._envelope is not None else ""
        return self._given + (f", opened{by}" if by else "")

    def __repr__(self) -> str:
        state = f"given away {self.given}" if self._given else "held" if self.held else "not held"
        return f"<Reservation {self.endpoint}{f' {self.name}' if self.name else ''}, {state}>"

    def bind_zmq(self, taker: zmq.Socket[Any]) -> None:
        """Have a pyzmq socket, asyncio's too, serve on it, in place of ``taker.bind(...)``. Other binds may follow.

        Raises:
            HandoverError: the socket is not what it should be, or pyzmq refused; nothing was given away.
        """
        with self._handing(f"to a pyzmq {getattr(getattr(taker, 'type', None), 'name', 'socket')}") as listener:
            handover.to_zmq(listener, taker, self.endpoint)
            listener.close()

    def bind_server(self, server: socketserver.BaseServer) -> None:
        """Have a server of ``http.server``, ``socketserver`` or ``wsgiref`` serve on it.

        It has to be made with ``bind_and_activate=False``.
        """
        with self._handing(f"to a {type(server).__name__}") as listener:
            handover.to_server(listener, server)

    def take(self) -> socket.socket:
        """The socket itself, blocking, which the taker closes: for asyncio's ``sock=`` and uvicorn's ``sockets=``."""
        with self._handing("by take()") as listener:
            return listener

    def take_fd(self) -> int:
        """Its descriptor, to be closed by the taker: for TCPStore's ``master_listen_fd=`` and uvicorn's ``fd=``.

        It is not inherited by programs that this process runs (FD_CLOEXEC).
        """
        with self._handing("by take_fd()") as listener:
            return listener.detach()

    def parcel(self) -> Parcel:
        """Something that a child can open, whether it is forked, spawned or sent it through a pipe. Counts as given."""
        with self._handing("as a parcel") as listener:
            envelope = handover.Envelope.seal(listener)
            listener.close()
            self._envelope = envelope
        return Parcel(envelope, self.endpoint, self.name)

    def take_back(self) -> None:
        """Say that whoever got it is gone, so that it may be handed over once more.

        That is for a supervisor who made it with ``keep=True``, and for a parcel that was never opened. Nothing checks
        that the taker of a kept socket is really gone: two who serve share its connections.

        Raises:
            HandoverError: no copy was kept, and a parcel is not to be had back.
        """
        self._check_owner()
        with self._mutex:
            if self._envelope is not None:
                with contextlib.suppress(HandoverError), self._envelope.open() as returned:
                    if self._listener is None:
                        self._listener = _ours(returned.dup)
            if self._listener is None:
                raise HandoverError(
                    f"{self._label} is gone: {self.given or 'closed'}, and no copy was kept (keep=True keeps one)"
                )
            self._given, self._envelope = "", None

    def close(self) -> None:
        """Let go of it: of the port, if it was not handed over, and of the copy that was kept. May be repeated."""
        if self._pid != os.getpid():
            return
        with self._mutex:
            listener, self._listener = self._listener, None
            if listener is not None:
                if self._path and not self._given and _inode(self._path) == self._inode:
                    with contextlib.suppress(OSError):
                        Path(self._path).unlink()
                listener.close()
            if self._envelope is not None:
                self._envelope.close()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_listener", None) is not None and self.held:
            state = f"given {self._given}, a copy kept" if self._given else "not handed over"
            warnings.warn(f"{self._label} was garbage-collected, {state} and not closed", ResourceWarning, 1, self)
            self.close()

    def __reduce__(self) -> Any:
        raise HandoverError(f"{self._label} can be given to a process of multiprocessing's, not copied or stored")

    @property
    def _label(self) -> str:
        return f"{self.endpoint}{f' ({self.name})' if self.name else ''}, reserved at {self.site},"

    def _check_owner(self) -> None:
        if self._pid != os.getpid():
            raise HandoverError(
                f"{self._label} belongs to process {self._pid}, from which this one was forked: let the parent make a "
                "parcel() before the fork, and the child open() it"
            )

    @contextlib.contextmanager
    def _handing(self, to: str) -> Iterator[socket.socket]:
        """A copy for the taker. If it is taken without an error, that was the one time; else all is as before."""
        given = f"{to} at {call_site()}"
        self._check_owner()
        with self._mutex:
            if self._given:
                again = "; take_back() says that it is gone" if self.keep else ""
                raise HandoverError(f"{self._label} is given away once only, and was: {self.given}{again}")
            if self._listener is None:
                raise HandoverError(f"{self._label} is closed")
            try:
                handover.check(self._listener.fileno(), self.endpoint)
                copy = _ours(self._listener.dup)
            except (HandoverError, OSError) as error:
                raise HandoverError(f"{self._label} cannot be handed over: {error}") from None
            copy.setblocking(True)
            self._given = given
        try:
            yield copy
        except BaseException:
            copy.close()
            self._given = ""
            raise
        _here.discard(copy)
        with self._mutex:
            if not self.keep and self._listener is not None:
                self._listener.close()
                self._listener = None


class Parcel:
    """A reservation that was given to another process, which opens it. The first to `open` it has it, and nobody else.

    It holds the port until then. Give it to a child as an argument (multiprocessing, whatever the start method), let a
    forked child inherit it, or send it through a pipe or a queue of multiprocessing's.
    """

    def __init__(self, envelope: handover.Envelope, endpoint: Endpoint, name: str = "") -> None:
        self.endpoint, self.name, self._envelope = endpoint, name, envelope

    def open(self) -> Reservation:
        """The reservation, which is this process's from now on.

        Raises:
            HandoverError: it has been opened.
        """
        try:
            listener = self._envelope.open()
        except HandoverError as error:
            raise HandoverError(f"{self.endpoint}: {error}") from None
        return adopt(listener, name=self.name)

    def __repr__(self) -> str:
        return f"<Parcel {self.endpoint}{f' {self.name}' if self.name else ''}>"


def _reduce(reservation: Reservation) -> tuple[Any, ...]:
    return _open, (reservation.parcel(),)


def _open(parcel: Parcel) -> Reservation:
    return parcel.open()


ForkingPickler.register(Reservation, _reduce)

_here: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""What a forked child lets go of: its copies would keep the ports when the parent is long dead."""


def _ours(make: Callable[[], socket.socket]) -> socket.socket:
    """A new socket, which no child that is forked at this moment keeps."""
    with lock.gate:
        made = make()
        _here.add(made)
        return made


def _after_fork() -> None:
    for each in tuple(_here):
        each.close()


os.register_at_fork(after_in_child=_after_fork)


def reserve(
    where: str | Endpoint = "127.0.0.1",
    port: int = 0,
    *,
    ports: tuple[int, int] | None = None,
    ipv6: bool = False,
    backlog: int = BACKLOG,
    keep: bool = False,
    name: str = "",
) -> Reservation:
    """Bind and listen now, and hold what was bound until it is handed over.

    Args:
        where: a host: ``*``, an address, an interface or a host name; or an endpoint as libzmq spells it:
            ``tcp://*:0``, ``tcp://127.0.0.1:5000-5010``, ``ipc:///run/app.sock``, ``ipc://@name``; ``ipc://*`` for an
            abstract name that the kernel picks.
        port: 0 for one that the kernel picks.
        ports: first and last; the first free one in it is taken.
        ipv6: ``*`` and names mean IPv6; ``*`` takes IPv4 too.
        backlog: how many connections may wait for the taker.
        keep: keep a copy when it is handed over, see `Reservation`.
        name: what it is called by errors and for LISTEN_FDNAMES.

    Raises:
        PortError: it is taken (the message says by whom), not ours to bind, or no address of this host.
        EndpointError: `where` is no endpoint.
    """
    if ":" in name or not name.isprintable() or len(name) > 255:
        raise PortError(f"a reservation cannot be called {name!r}: LISTEN_FDNAMES separates names by colons")
    wanted = _wanted(where, port, ports, ipv6)
    if wanted.transport == "ipc":
        listener, path = _listen_ipc(wanted, backlog)
        return Reservation(listener, name, keep, path)
    return Reservation(_listen_tcp(wanted, backlog), name, keep)


def adopt(listener: socket.socket | int, expected: str | Endpoint | None = None, *, name: str = "") -> Reservation:
    """A reservation of a socket, or a descriptor, that something else has bound. It is owned here from now on.

    Raises:
        HandoverError: it is closed, not a socket, not listening, or not on `expected`. It is left as it was.
    """
    descriptor = listener if isinstance(listener, int) else listener.fileno()
    if expected is None:
        handover.inspect(descriptor)
    else:
        handover.check(descriptor, Endpoint.parse(expected) if isinstance(expected, str) else expected)
    taken = socket.socket(fileno=listener if isinstance(listener, int) else listener.detach())
    taken.set_inheritable(False)
    return Reservation(taken, name)


def inherited() -> list[Reservation]:
    """What was passed to this process by systemd's convention (sd_listen_fds(3)), in order; empty if nothing was.

    A second call finds nothing, and so does a child: the variables are removed.

    Raises:
        HandoverError: one of the descriptors is no listening stream socket.
    """
    found = handover.received()
    for descriptor, _ in found:
        try:
            handover.inspect(descriptor)
        except HandoverError as error:
            raise HandoverError(f"LISTEN_FDS={len(found)} was passed to this process, but {error}") from None
    handover.forget_received()
    return [adopt(descriptor, name=name) for descriptor, name in found]


@contextlib.contextmanager
def passing(
    command: Sequence[str | os.PathLike[str]], *reservations: Reservation
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Run `command` with `reservations` as descriptors 3, 4, ... and LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES set for it.

        with passing(["server", "--flag"], reservation) as (arguments, options):
            child = subprocess.Popen(arguments, **options)

    They are given away when the block ends, and still here if it raises. `options` holds ``pass_fds``; add to it what
    else the child needs, but no descriptor below 3 + the number of reservations. The environment is up to the caller.

    Raises:
        HandoverError: a reservation cannot be handed over, or there is no such program.
    """
    with contextlib.ExitStack() as stack:
        program = os.fspath(command[0]) if command else ""
        copies = [stack.enter_context(each._handing(f"to {program}")) for each in reservations]
        for copy in copies:
            stack.callback(copy.close)
        passed = [(copy.fileno(), each.name) for copy, each in zip(copies, reservations, strict=True)]
        yield handover.activation(command, passed), {"pass_fds": tuple(descriptor for descriptor, _ in passed)}


def _wanted(where: str | Endpoint, port: int, ports: tuple[int, int] | None, ipv6: bool) -> Endpoint:
    if not isinstance(where, str | Endpoint) or isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"reserve takes a host, then a port as an int: reserve(port=5557), not {where!r}, {port!r}")
    if isinstance(where, Endpoint) or "://" in where:
        if port or ports is not None:
            raise PortError(f"{where} says all there is to say: leave out port= and ports=")
        wanted = Endpoint.parse(where, ipv6=ipv6) if isinstance(where, str) else where
        if wanted.transport == "inproc":
            raise PortError(f"{wanted} is no socket: inproc exists within one libzmq context only")
        return _in_range(wanted)
    first, last = (port, port) if ports is None else ports
    if port and ports is not None:
        raise PortError(f"port={port} and ports={ports}: say one of them")
    if ports is not None and (first < 1 or first > last):
        raise PortError(f"ports {first} to {last} are none: the first has to be 1 or more, and the last no less")
    host = where[1:-1] if where.startswith("[") and where.endswith("]") else where
    return _in_range(Endpoint("tcp", host, first, last, ipv6=ipv6))


def _in_range(wanted: Endpoint) -> Endpoint:
    if not 0 <= wanted.first <= wanted.last <= MAX_PORT:
        raise PortError(f"{wanted}: ports end at {MAX_PORT}")
    return wanted


def _listen_tcp(wanted: Endpoint, backlog: int) -> socket.socket:
    family, address = handover.resolve(wanted.host, wanted.ipv6)
    end = time.monotonic() + _PATIENCE
    tries = _EPHEMERAL_TRIES if wanted.kernel_picks else wanted.last - wanted.first + 1
    at = 0
    while True:
        port = 0 if wanted.kernel_picks else wanted.first + at
        try:
            return _listening(family, address, port, wanted.v6only, backlog)
        except OSError as error:
            if not handover.in_use(error):
                raise _refused(replace(wanted, first=port, last=port), error) from None
        at += 1
        if at >= tries:
            if wanted.kernel_picks or wanted.first != wanted.last or time.monotonic() > end:
                raise _taken(wanted) from None
            at = 0
            time.sleep(_PATIENCE / 10)


def _listening(family: int, address: str, port: int, v6only: bool, backlog: int) -> socket.socket:
    listener = _ours(lambda: socket.socket(family, socket.SOCK_STREAM))
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
        if port:
            # Else connections of a dead server in TIME_WAIT keep its port for a minute.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(backlog)
        # Only now for a port that the kernel picked: with the option it can be stolen between bind and listen. Its
        # next owner needs that this one had it (field.md R3).
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return listener
    except BaseException:
        listener.close()
        raise


def _listen_ipc(wanted: Endpoint, backlog: int) -> tuple[socket.socket, str]:
    path = "" if wanted.kernel_picks or wanted.abstract else os.path.abspath(wanted.path)  # noqa: PTH100  # .. as text
    if len(os.fsencode(path)) > IPC_PATH_BYTES:
        raise PortError(f"ipc://{path}: {len(os.fsencode(path))} bytes, and unix sockets take {IPC_PATH_BYTES}")
    listener = None
    try:
        with _locked(os.path.dirname(path)) if path else contextlib.nullcontext():  # noqa: PTH120
            listener = _ours(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            if path:
                _clear(path)
                listener.bind(path)
            else:
                # An empty name asks for an abstract one that is free (unix(7), "Autobind feature").
                listener.bind("" if wanted.kernel_picks else b"\0" + os.fsencode(wanted.path[1:]))
            listener.listen(backlog)
        return listener, path
    except BaseException as error:
        if listener is not None:
            listener.close()
        if not isinstance(error, OSError) or isinstance(error, PortError):
            raise
        if handover.in_use(error):
            by = ", ".join(map(str, listeners.of_endpoint(wanted))) or "another process"
            raise PortError(f"{wanted} is in use by {by}", error.errno) from None
        raise _refused(wanted, error) from None


def _clear(path: str) -> None:
    """Remove the socket file that a dead process left. libzmq would remove anything, a live server's too."""
    found = listeners.in_the_way(path)
    if found is not None:
        raise PortError(f"ipc://{path} is in use by {found}: end that, or choose another path", errno.EADDRINUSE)
    Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Alone among those who reserve paths in `directory`: two must not both find a dead socket there and replace it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise PortError(f"another process has locked {directory} for {_LOCK_PATIENCE:.0f} s") from None
                time.sleep(0.002)
        yield
    finally:
        # A child that was forked meanwhile has a copy, and would keep the lock.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _refused(wanted: Endpoint, error: OSError) -> PortError:
    hint = ""
    if error.errno in (errno.EACCES, errno.EPERM) and wanted.transport == "tcp":
        hint = ": ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE"
    elif error.errno == errno.EADDRNOTAVAIL:
        hint = f": {wanted.host} is no address of this host"
    elif error.errno == errno.EAFNOSUPPORT:
        hint = ": this host has no IPv6"
    elif error.errno == errno.EMFILE:
        hint = ": raise `ulimit -n`"
    return PortError(f"cannot listen on {wanted}: {error.strerror}{hint}", error.errno)


def _taken(wanted: Endpoint) -> PortError:
    if wanted.kernel_picks:
        return PortError(
            f"{wanted}: the kernel has no port left to give (net.ipv4.ip_local_port_range); connections in TIME_WAIT "
            "count too",
            errno.EADDRINUSE,
        )
    if wanted.first == wanted.last:
        by = _holders(wanted, wanted.first) or "a process that has gone meanwhile, or old connections"
        return PortError(f"{wanted} is in use by {by}", errno.EADDRINUSE)
    first = _holders(wanted, wanted.first) or "unknown"
    return PortError(
        f"{wanted}: all {wanted.last - wanted.first + 1} ports are in use, {wanted.first} by {first}", errno.EADDRINUSE
    )


def _holders(wanted: Endpoint, port: int) -> str:
    family, address = handover.resolve(wanted.host, wanted.ipv6)
    at = Endpoint("tcp", address, port, port, ipv6=family == socket.AF_INET6, v6only=wanted.v6only)
    return ", ".join(map(str, listeners.of_endpoint(at)))


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
