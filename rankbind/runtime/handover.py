"""Listening sockets on their way to whoever serves on them, and the checks that the takers leave out.

libzmq takes whatever descriptor it is given and aborts the process over one that is closed, not a socket or not
listening, sometimes not before the first connection (kernel.md). So everything that is handed over is looked at first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import TYPE_CHECKING, Any

from rankbind.endpoint import Endpoint
from rankbind.errors import HandoverError, PortError
from rankbind.runtime.interface import ipv4_of, is_interface

if TYPE_CHECKING:
    import socketserver

    import zmq

LISTEN_FDS_START = 3
"""The first descriptor of those passed (sd_listen_fds(3))."""
_UNNAMED = "unknown"
"""What systemd calls a descriptor without a name."""


def inspect(descriptor: int) -> Endpoint:
    """What `descriptor` listens on.

    Raises:
        HandoverError: it is closed, not a socket, or none that accepts connections on TCP or a unix socket.
    """
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        raise HandoverError(f"descriptor {descriptor} is not open: did somebody close it?") from None
    if not stat.S_ISSOCK(mode):
        kinds = {stat.S_IFREG: "a file", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device"}
        raise HandoverError(f"descriptor {descriptor} is {kinds.get(stat.S_IFMT(mode), 'something')}, not a socket")
    with _borrowed(descriptor) as looked_at:
        if looked_at.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            raise HandoverError(f"descriptor {descriptor} is neither TCP nor a unix socket, but {_family(looked_at)}")
        if looked_at.type != socket.SOCK_STREAM:
            raise HandoverError(f"descriptor {descriptor} is a {_type(looked_at)} socket, not a stream")
        name = looked_at.getsockname()
        if not looked_at.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise HandoverError(
                f"descriptor {descriptor} ({name}) does not listen. A socket that is only bound holds no port, and "
                "libzmq would abort the process: call listen() on it, or reserve() a port"
            )
        if looked_at.family == socket.AF_UNIX:
            return Endpoint("ipc", path=name if isinstance(name, str) else "@" + os.fsdecode(name[1:]))
        six = looked_at.family == socket.AF_INET6
        only = six and bool(looked_at.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
        # A link-local address means something on its interface alone.
        host = f"{name[0]}%{socket.if_indextoname(name[3])}" if six and name[3] and "%" not in name[0] else name[0]
        return Endpoint("tcp", host, name[1], name[1], ipv6=six, v6only=only)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    looked_at = socket.socket(fileno=descriptor)
    try:
        yield looked_at
    finally:
        looked_at.detach()


def check(descriptor: int, declared: Endpoint) -> Endpoint:
    """What `descriptor` listens on, which has to be what was `declared`; port 0 there stands for any.

    Raises:
        HandoverError: as `inspect`, or it is another address.
    """
    found = inspect(descriptor)
    if found.transport != declared.transport:
        raise HandoverError(f"descriptor {descriptor} listens on {found}, not on {declared}")
    if found.transport == "ipc":
        same = declared.kernel_picks or found.path == declared.path
        same = same or (not found.abstract and os.path.realpath(found.path) == os.path.realpath(declared.path))
    else:
        _, address = resolve(declared.host, declared.ipv6)
        same = _plain(found.host) == _plain(address)
        same = same and (declared.kernel_picks or declared.first <= found.first <= declared.last)
        same = same and (not found.is_wildcard or found.v6only == declared.v6only)
    if not same:
        raise HandoverError(f"descriptor {descriptor} listens on {found}, not on {declared}")
    return found


def resolve(host: str, ipv6: bool = False) -> tuple[socket.AddressFamily, str]:
    """The family and address to bind for `host`, as libzmq takes it: ``*``, an address, an interface or a host name.

    Raises:
        PortError: nothing is known by that name.
    """
    if host == "*":
        return (socket.AF_INET6, "::") if ipv6 else (socket.AF_INET, "0.0.0.0")
    with contextlib.suppress(ValueError):
        return (socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET), host
    if is_interface(host):
        if ipv6:
            raise PortError(f"{host} is an interface, which may have several IPv6 addresses: write the one you mean")
        address = ipv4_of(host)
        if address is None:
            raise PortError(f"interface {host} has no IPv4 address", errno.EADDRNOTAVAIL)
        return socket.AF_INET, address
    try:
        found = socket.getaddrinfo(host, None, socket.AF_UNSPEC if ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise PortError(f"no address is known for host {host!r}: {getattr(error, 'strerror', error)}") from None
    return found[0][0], str(found[0][4][0])


def to_zmq(listener: socket.socket, taker: zmq.Socket[Any], endpoint: Endpoint) -> None:
    """Have `taker` serve on `listener`, of which it gets a descriptor of its own. Blocking or asyncio alike.

    Raises:
        HandoverError: pyzmq refused, and took nothing.
    """
    import zmq

    if not isinstance(taker, zmq.Socket):
        raise HandoverError(f"{taker!r} is no pyzmq socket")
    # libzmq's I/O thread must not be caught in accept() when a client has gone in the meantime.
    listener.setblocking(False)
    descriptor = os.dup(listener.fileno())
    try:
        check(descriptor, endpoint)
        taker.setsockopt(zmq.USE_FD, descriptor)
        taker.bind(str(endpoint))
    except BaseException as error:
        # A bind that fails has not got as far as the descriptor (libzmq 4.3.5, tcp_listener.cpp, ipc_listener.cpp).
        os.close(descriptor)
        if isinstance(error, zmq.ZMQError):
            raise HandoverError(f"pyzmq does not take {endpoint}: {error}") from error
        raise
    finally:
        with contextlib.suppress(zmq.ZMQError):
            taker.setsockopt(zmq.USE_FD, -1)
    last = taker.getsockopt(zmq.LAST_ENDPOINT)
    bound = os.fsdecode(last).rstrip("\0") if isinstance(last, bytes) else str(last)
    if bound != str(endpoint):
        taker.unbind(bound)
        raise HandoverError(f"pyzmq bound {bound}, not {endpoint}, and has unbound it again")


def to_server(listener: socket.socket, server: socketserver.BaseServer) -> None:
    """Have a server of ``socketserver``, ``http.server`` or ``wsgiref`` serve on `listener`.

    It has to be made with ``bind_and_activate=False``; its own socket is closed. Asks no resolver, as binding it would.
    """
    of_server: Any = server
    if not isinstance(getattr(server, "socket", None), socket.socket):
        raise HandoverError(f"{server!r} has no socket that could be replaced: is it a socketserver.TCPServer?")
    if of_server.socket.getsockname() not in (("0.0.0.0", 0), ("::", 0, 0, 0), "", b""):
        raise HandoverError(f"{type(server).__name__} is bound already: make it with bind_and_activate=False")
    of_server.socket.close()
    of_server.socket = listener
    of_server.address_family = listener.family
    of_server.server_address = listener.getsockname()
    if hasattr(server, "server_port") or _is_http(server):
        of_server.server_name, of_server.server_port = of_server.server_address[:2]
    if hasattr(server, "setup_environ"):
        server.setup_environ()


class Envelope:
    """A listening socket on its way to another process. Whoever opens it first has it; the kernel decides who that is.

    The descriptor itself is in flight (SCM_RIGHTS) between two unix sockets: nobody has it open, and yet it listens,
    keeps its port, and collects connections. If both processes die it is gone.
    """

    def __init__(self, opening: socket.socket, answer: socket.socket | None = None) -> None:
        self._opening, self._answer, self._by = opening, answer, ""

    @classmethod
    def seal(cls, listener: socket.socket) -> Envelope:
        """Put a copy of `listener` into a new one."""
        answer, opening = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(answer, [b"rankbind"], [listener.fileno()])
        return cls(opening, answer)

    def open(self) -> socket.socket:
        """Take the socket out.

        Raises:
            HandoverError: it is empty: somebody, perhaps another process, has opened it.
        """
        self._check_open()
        found: list[int] = []
        flags = 0
        with contextlib.suppress(OSError):
            _, ancillary, flags, _ = self._opening.recvmsg(
                16, socket.CMSG_SPACE(4), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
            found = [int.from_bytes(data[:4], sys.byteorder) for _, _, data in ancillary]
        if flags & socket.MSG_CTRUNC:
            raise HandoverError("this process has no descriptor left for the socket, which is lost: raise `ulimit -n`")
        if not found:
            raise HandoverError(f"the socket has been taken out already{self.opened_by()}: it is given away once only")
        with contextlib.suppress(OSError):
            self._opening.send(f"{os.getpid()}".encode())
        self._by = " by this process"
        self.close()
        return socket.socket(fileno=found[0])

    def descriptor(self) -> int:
        """What is given to other processes, which open it. Raises as `open`, if it is closed."""
        self._check_open()
        return self._opening.fileno()

    def opened_by(self) -> str:
        """By whom it was opened, as the end of a sentence; empty if that is not known here."""
        if self._answer is not None:
            with contextlib.suppress(OSError):
                pid = self._answer.recv(32, socket.MSG_DONTWAIT | socket.MSG_PEEK).decode()
                return f" by process {pid}" if pid else ""
        return ""

    def close(self) -> None:
        """Let go of it in this process; others who have it may still open it."""
        self._opening.close()
        if self._answer is not None:
            self._answer.close()

    def __del__(self) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._opening.fileno() < 0:
            raise HandoverError(
                f"the socket has been taken out already{self._by}: it is given away once only"
                if self._by
                else "the parcel is gone: this process has closed the reservation that it was made from"
            )


def _reduce(envelope: Envelope) -> tuple[Any, ...]:
    return _rebuild, (DupFd(envelope.descriptor()),)


def _rebuild(copy: Any) -> Envelope:
    descriptor = copy.detach()
    os.set_inheritable(descriptor, False)
    return Envelope(socket.socket(fileno=descriptor))


ForkingPickler.register(Envelope, _reduce)


_EXEC = f"""
import os, sys, fcntl, signal
numbers, names, *command = sys.argv[1:]
numbers = [int(number) for number in numbers.split(",")]
first = {LISTEN_FDS_START}
clear = max([*numbers, first + len(numbers)]) + 1
copies = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, clear) for number in numbers]
for number in numbers:
    os.close(number)
for wanted, copy in enumerate(copies, first):
    try:
        os.fstat(wanted)
    except OSError:
        os.dup2(copy, wanted)
    else:
        sys.exit("rankbind: LISTEN_FDS needs descriptor %d, which is passed to the child for something else" % wanted)
# This interpreter's own additions (LC_CTYPE, ignored signals) are no business of the child's.
with open("/proc/self/environ", "rb") as text:
    environment = dict(entry.split(b"=", 1) for entry in text.read().split(b"\\0") if b"=" in entry)
for number in {int(signal.SIGPIPE), int(signal.SIGXFSZ)}:
    signal.signal(number, signal.SIG_DFL)
environment[b"LISTEN_PID"] = b"%d" % os.getpid()
environment[b"LISTEN_FDS"] = b"%d" % len(numbers)
environment[b"LISTEN_FDNAMES"] = os.fsencode(names)
try:
    os.execvpe(command[0], command, environment)
except OSError as error:
    print("rankbind: cannot run %s: %s" % (command[0], error.strerror), file=sys.stderr)
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


def activation(command: Sequence[str | os.PathLike[str]], passed: Sequence[tuple[int, str]]) -> list[str]:
    """The command line that runs `command` with descriptors passed by systemd's convention.

    LISTEN_PID has to be the child's pid, which nobody knows before there is a child; so an interpreter without site
    packages (12 ms) renumbers the descriptors, sets the variables and becomes `command`. The pid stays the same.

    Args:
        passed: descriptors as they are numbered when the child starts, and their names.
    """
    if not command:
        raise HandoverError("there is no command to run")
    if not sys.executable:
        raise HandoverError("sys.executable does not say where Python is")
    import shutil

    wanted = os.fspath(command[0])
    if "/" not in wanted and shutil.which(wanted) is None:
        raise HandoverError(f"there is no program {wanted!r} on PATH")
    numbers = ",".join(str(descriptor) for descriptor, _ in passed)
    names = ":".join(name or _UNNAMED for _, name in passed)
    return [sys.executable, "-I", "-S", "-c", _EXEC, numbers, names, *[os.fspath(word) for word in command]]


def received() -> list[tuple[int, str]]:
    """The descriptors that were passed to this process by systemd's convention, with their names; not to a child of it.

    Raises:
        HandoverError: the variables contradict each other.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    text = os.environ.get("LISTEN_FDS", "")
    if not (text.isascii() and text.isdigit()):
        raise HandoverError(f"LISTEN_FDS={text!r} is not a number of descriptors")
    names = os.environ.get("LISTEN_FDNAMES", "")
    listed = names.split(":") if names else [_UNNAMED] * int(text)
    if len(listed) != int(text):
        raise HandoverError(f"LISTEN_FDS={text}, but LISTEN_FDNAMES has {len(listed)} names: {names!r}")
    return [(at, "" if name == _UNNAMED else name) for at, name in enumerate(listed, LISTEN_FDS_START)]


def forget_received() -> None:
    """Remove the variables, so that no child of this process reads them."""
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(variable, None)


def in_use(error: OSError) -> bool:
    """Whether `error` says that somebody else has the address."""
    return error.errno == errno.EADDRINUSE


def _plain(address: str) -> str:
    found = ip_address(address)
    return str(getattr(found, "ipv4_mapped", None) or found)


def _is_http(server: socketserver.BaseServer) -> bool:
    from http.server import HTTPServer

    return isinstance(server, HTTPServer)


def _family(found: socket.socket) -> str:
    return found.family.name if isinstance(found.family, socket.AddressFamily) else f"of family {found.family}"


def _type(found: socket.socket) -> str:
    names = {socket.SOCK_DGRAM: "datagram (UDP)", socket.SOCK_SEQPACKET: "sequenced packet", socket.SOCK_RAW: "raw"}
    return names.get(found.type, f"type {found.type}")
