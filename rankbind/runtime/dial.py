"""What others dial: an endpoint that is bound on every address, or on an interface, with a host that they can reach.

Where a socket is bound and where it is reached are two things (field.md, F5): 0.0.0.0 is dialled by nobody, port 0 is a
request and no number, and loopback is reached from this host alone.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from rankbind.endpoint import Endpoint
from rankbind.errors import EndpointError
from rankbind.runtime.interface import ipv4_of
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record
from rankbind.runtime.registry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """What to connect to for one claim.

    Attributes:
        endpoint: dialable; None if there is nothing that could be dialled.
        bound: what its holder bound; None if it has nothing in that role.
        remark: why there is no endpoint, or what to beware of; empty for the usual.
    """

    entry: Entry
    role: str
    endpoint: str | None = None
    bound: str | None = None
    remark: str = ""


def dialled(entries: Iterable[Entry], role: str, host: str | None = None) -> tuple[Dialled, ...]:
    """What to connect to for each of `entries` that anybody holds or held last; in their order.

    Args:
        host: what to dial where every address is bound; left out, this host's address (see `address`).
    """
    return tuple(_dialled(entry, role, host) for entry in entries if entry.state != "released")


@lru_cache(maxsize=1)
def address() -> str | None:
    """The address at which others reach this host: the one it would send from. None if it has only loopback.

    No name is asked for: resolving one can stall for seconds, and gives 127.0.1.1 on many hosts. Nothing is sent.
    """
    # Documentation addresses, RFC 5737 and 3849: they are nobody's, and so take the default route.
    for family, somewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((somewhere, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    found = (ipv4_of(name) for _, name in socket.if_nameindex())
    return next((each for each in found if each is not None and not IPv4Address(each).is_loopback), None)


def _dialled(entry: Entry, role: str, host: str | None) -> Dialled:
    found, read = Dialled(entry=entry, role=role), entry.record
    if not entry.live or read is None:
        return replace(found, remark=_NOT_LIVE.get(entry.state, entry.state))
    bound = read.endpoints.get(role)
    if bound is None:
        has = ", ".join(read.endpoints)
        return replace(found, remark=f"it has no {role}: it has {has}" if has else "no endpoint of it is known")
    found = replace(found, bound=bound)
    try:
        return _of(found, Endpoint.parse(bound, ipv6="[" in bound), read, host)
    except EndpointError as error:
        return replace(found, remark=f"{bound!r} cannot be read: {error}")


_NOT_LIVE = {
    "dead": "its holder is dead",
    "unknown": "its holder is in another pid namespace and cannot be seen: share that (shareProcessNamespace, --pid)",
    "unreadable": "its record cannot be read",
}


def _of(found: Dialled, endpoint: Endpoint, read: Record, host: str | None) -> Dialled:
    text, elsewhere = str(endpoint), read.process.net_ns != Process.me().net_ns
    if endpoint.kernel_picks or endpoint.first != endpoint.last:
        return replace(found, remark=f"{text} is what was asked for; what the kernel chose is not published (yet)")
    if endpoint.transport == "inproc":
        return replace(found, remark=f"{text} is reached from its own process alone")
    if endpoint.transport == "ipc":
        return _of_path(found, endpoint, read, elsewhere)
    if endpoint.is_wildcard:
        return _of_wildcard(found, endpoint, elsewhere, host)
    if not elsewhere and (isinstance(endpoint.address, str) or endpoint.host == "lo"):
        of_interface = ipv4_of(endpoint.host)
        if of_interface is not None:
            endpoint = replace(endpoint, host=of_interface)
    at = endpoint.address
    if isinstance(at, IPv4Address | IPv6Address) and at.is_loopback:
        if elsewhere:
            return replace(found, remark=f"{text} is loopback in another network namespace")
        return replace(found, endpoint=str(endpoint), remark="it is loopback: reached from this host alone")
    return replace(found, endpoint=str(endpoint))


def _of_path(found: Dialled, endpoint: Endpoint, read: Record, elsewhere: bool) -> Dialled:
    if endpoint.abstract:
        if elsewhere:
            return replace(found, remark=f"{endpoint} is a name in another network namespace")
    elif not endpoint.path.startswith("/"):
        told = f"{endpoint} is relative to the folder that its holder (pid {found.entry.pid}) was in"
        return replace(found, remark=told)
    return replace(found, endpoint=str(endpoint))


def _of_wildcard(found: Dialled, endpoint: Endpoint, elsewhere: bool, host: str | None) -> Dialled:
    if host is not None:
        return replace(found, endpoint=str(replace(endpoint, host=host.strip("[]"))))
    if elsewhere:
        return replace(found, remark="it is bound in another network namespace: say with --host how that is reached")
    chosen = address()
    if chosen is None:
        told = "this host has no address but loopback: reached from this host alone"
        return replace(found, endpoint=str(replace(endpoint, host="127.0.0.1")), remark=told)
    return replace(found, endpoint=str(replace(endpoint, host=chosen)))
