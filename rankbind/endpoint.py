"""Where a resource is: addresses as libzmq spells them, and which of them the kernel refuses to bind together.

`overlaps` is the one place that knows when two endpoints collide. It answers as Linux 6.18 with libzmq 4.3.5 does
(bindv6only 0); a test holds it against the kernel it runs on.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal, TypeAlias

from rankbind.errors import EndpointError

MAX_PORT = 65535
IPC_PATH_BYTES = 107
"""The longest unix socket path on Linux: 108 bytes with the closing NUL (unix(7))."""

EPHEMERAL_PORTS = (32768, 60999)
"""Linux's default range for outgoing connections (ip(7), net.ipv4.ip_local_port_range)."""

UNPRIVILEGED_PORT_START = 1024
"""The first port that needs no CAP_NET_BIND_SERVICE, by default (ip(7), net.ipv4.ip_unprivileged_port_start)."""

_LOOPBACK4 = IPv4Address("127.0.0.1")
_LOOPBACK6 = IPv6Address("::1")
_ANY4 = IPv4Address("0.0.0.0")
_ANY6 = IPv6Address("::")

_Address: TypeAlias = IPv4Address | IPv6Address | str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address that a process binds or dials, on one host.

    Attributes:
        transport: tcp, ipc (a unix socket) or inproc (within one libzmq context).
        host: tcp only: as written, without brackets: ``*``, an address, a host or interface name.
        first, last: tcp only: the ports, inclusive; equal unless it is a range from which some port is drawn. 0: the
            kernel picks one. Not limited to 65535, so that a sum that runs past it can be shown.
        path: ipc and inproc only: the path, ``@name`` in the abstract namespace, or the name. ``*``: libzmq picks one.
        ipv6: whether ZMQ_IPV6 is set on the socket (libzmq is IPv4-only without it).
        v6only: whether IPV6_V6ONLY is set (libzmq never sets it).
    """

    transport: Literal["tcp", "ipc", "inproc"]
    host: str = ""
    first: int = 0
    last: int = 0
    path: str = ""
    ipv6: bool = False
    v6only: bool = False

    @classmethod
    def parse(cls, text: str, *, ipv6: bool = False, v6only: bool = False) -> Endpoint:
        """Read ``tcp://HOST:PORT``, ``tcp://HOST:FIRST-LAST``, ``ipc://PATH``, ``ipc://@NAME`` or ``inproc://NAME``.

        Raises:
            EndpointError: anything else; `column` (from 0) points at it.
        """
        scheme, separator, rest = text.partition("://")
        if not separator:
            raise EndpointError(
                f"{text!r} has no transport: write tcp://HOST:PORT, ipc://PATH or inproc://NAME",
                0,
                max(1, len(text)),
            )
        start = len(scheme) + len(separator)
        if scheme == "tcp":
            host, first, last = _parse_tcp(text, start)
            return cls("tcp", host, first, last, ipv6=ipv6, v6only=v6only)
        if scheme == "ipc":
            if not rest:
                raise EndpointError("an ipc endpoint needs a path: ipc:///run/app/name.sock", start)
            if rest == "@":
                raise EndpointError("an abstract ipc endpoint needs a name: ipc://@NAME", start + 1)
            if "\0" in rest:
                raise EndpointError("an ipc path cannot hold a NUL character", start + rest.index("\0"))
            return cls("ipc", path=rest)
        if scheme == "inproc":
            if not rest:
                raise EndpointError("an inproc endpoint needs a name: inproc://NAME", start)
            return cls("inproc", path=rest)
        raise EndpointError(f"unknown transport {scheme!r}: rankbind knows tcp, ipc and inproc", 0, max(1, len(scheme)))

    def __str__(self) -> str:
        if self.transport != "tcp":
            return f"{self.transport}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.first}" + (f"-{self.last}" if self.last != self.first else "")

    @property
    def kernel_picks(self) -> bool:
        """Whether the address is chosen when it is bound (port 0, ``ipc://*``), and so collides with nothing."""
        return (self.transport == "tcp" and self.first == self.last == 0) or (
            self.transport == "ipc" and self.path == "*"
        )

    @property
    def abstract(self) -> bool:
        """Whether it is an ipc name in the abstract namespace, which the kernel guards and no file stands for."""
        return self.transport == "ipc" and self.path.startswith("@")

    @property
    def needs_ipv6(self) -> bool:
        """Whether it is an IPv6 literal, which libzmq refuses with ENODEV unless ZMQ_IPV6 is set.

        Mapped IPv4 (``[::ffff:127.0.0.1]``) is not: libzmq binds the IPv4 address in it.
        """
        return self.transport == "tcp" and ":" in self.host and isinstance(self.address, IPv6Address)

    @property
    def address(self) -> IPv4Address | IPv6Address | str:
        """The address that is really bound: ``*`` resolved by the socket's family, mapped IPv4 unmapped, names kept.

        Of names only ``localhost`` (127.0.0.1, also with IPv6 on, unless the hosts file gives it ``::1``) and the
        interface ``lo`` (``::1`` with IPv6 on) are resolved.
        """
        return _resolve(self.host, self.ipv6)

    @property
    def is_wildcard(self) -> bool:
        """Whether it listens on every address of its family."""
        return self.transport == "tcp" and self.address in (_ANY4, _ANY6)

    @property
    def path_bytes(self) -> int:
        """Length of an ipc path or name as the kernel counts it, 0 for the others. At most `IPC_PATH_BYTES` fit."""
        return len(self.path.encode(errors="surrogatepass")) if self.transport == "ipc" else 0

    @property
    def file(self) -> str | None:
        """The normalised path of the socket file, for ipc outside the abstract namespace. Links are not followed."""
        if self.transport != "ipc" or self.abstract or self.kernel_picks:
            return None
        return normal_path(self.path)


def overlaps(a: Endpoint, b: Endpoint, *, same_process: bool = False) -> bool:
    """Whether two binds on one host get in each other's way.

    For tcp and abstract ipc the second gets EADDRINUSE. For an ipc path it does not: it silently takes the path over,
    which is counted as a collision all the same. inproc names collide only within one libzmq context, for which
    `same_process` stands. Of two ranges it says whether they share a port.

    Symmetric. A port past 65535 overlaps nothing: it is an error of its own.
    """
    if a.transport != b.transport or a.kernel_picks or b.kernel_picks:
        return False
    if a.transport == "inproc":
        return same_process and a.path == b.path
    if a.transport == "ipc":
        return a.path == b.path if a.abstract or b.abstract else a.file == b.file
    first, last = max(a.first, b.first, 1), min(a.last, b.last, MAX_PORT)
    return first <= last and _addresses_overlap(a, b)


def _addresses_overlap(a: Endpoint, b: Endpoint) -> bool:
    one, other = a.address, b.address
    return one == other or _takes(a, other) or _takes(b, one)


def _takes(wild: Endpoint, address: _Address) -> bool:
    if wild.address == _ANY6:
        return isinstance(address, IPv6Address) or not wild.v6only
    return wild.address == _ANY4 and not isinstance(address, IPv6Address)


@lru_cache(maxsize=4096)
def _resolve(host: str, ipv6: bool) -> _Address:
    if host == "*":
        return _ANY6 if ipv6 else _ANY4
    if host.lower() == "localhost":
        return _LOOPBACK4
    if host == "lo":
        return _LOOPBACK6 if ipv6 else _LOOPBACK4
    try:
        found = ip_address(host)
    except ValueError:
        return _short_ipv4(host)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _short_ipv4(host: str) -> _Address:
    # getaddrinfo, and so libzmq, also reads inet_aton's short spellings as addresses: 0, 127.1.
    *heads, last = host.split(".")
    if len(heads) > 2 or len(host) > 15 or not all(part.isascii() and part.isdigit() for part in (*heads, last)):
        return host
    value = int(last)
    if value >= 256 ** (4 - len(heads)) or any(int(head) > 255 for head in heads):
        return host
    return IPv4Address(value + sum(int(head) << 24 - 8 * at for at, head in enumerate(heads)))


def normal_path(path: str) -> str:
    """`path` without ``//``, ``.`` and ``..``, as two spellings of one file compare equal. Links are not followed."""
    found = posixpath.normpath(path)
    return found[1:] if found.startswith("//") else found


def _parse_tcp(text: str, start: int) -> tuple[str, int, int]:
    rest = text[start:]
    if ";" in rest:
        raise EndpointError("tcp://SOURCE;DESTINATION is not supported: name one address", start + rest.index(";"))
    host, colon, ports = rest.rpartition(":")
    if not colon:
        raise EndpointError(
            f"{text!r} has no port: write tcp://HOST:PORT, with port 0 for one that the kernel picks",
            start,
            max(1, len(rest)),
        )
    if rest.endswith("]") and rest.startswith("["):
        raise EndpointError(f"{text!r} has no port: write tcp://[ADDRESS]:PORT", start, len(rest))
    if host.startswith("[") != host.endswith("]"):
        raise EndpointError(f"unbalanced brackets in {host!r}", start, len(host))
    odd = next((index for index, char in enumerate(host) if char.isspace() or char in "/\0"), None)
    if odd is not None:
        raise EndpointError(f"a host cannot hold {host[odd]!r}", start + odd)
    host = host[1:-1] if host.startswith("[") else host
    if not host:
        raise EndpointError("tcp needs a host before the port: * for every interface", start)
    at = start + len(rest) - len(ports)
    if ports == "*":
        return host, 0, 0
    # A minus sign may also open a negative number, which an expression that went wrong can produce.
    low, dash, high = ports[1:].partition("-")
    low = ports[:1] + low
    first = _port(low, at)
    last = _port(high, at + len(low) + 1) if dash else first
    if last < first:
        raise EndpointError(f"port range {ports} ends before it begins", at, len(ports))
    return host, first, last


def _port(text: str, column: int) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise EndpointError(f"port {text!r} is not a number", column, max(1, len(text)))
    return int(text[:32])
