"""Which addresses of a launch are taken on this host at this moment, and by whom: what only a running host can tell.

An address that is drawn when it is bound is not looked at, nor a host name, which might have to be asked for.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from rankbind.check.plan import Binding, Plan
from rankbind.endpoint import Endpoint, overlaps
from rankbind.errors import EndpointError, RankbindError
from rankbind.finding import Finding, Level
from rankbind.runtime import listeners
from rankbind.runtime.diagnosis import when, who
from rankbind.runtime.process import Process
from rankbind.runtime.registry import Entry, entries


@dataclass(frozen=True)
class _Holder:
    """Who has an address.

    Attributes:
        pid: 0 if it cannot be told.
        deployment: where it is a claim of rankbind's.
    """

    shown: str
    pid: int
    deployment: str | None = None


def findings(plan: Plan, node: int) -> Iterator[Finding]:
    """Every address that a process of host `node` would take, were that this host, and that somebody has.

    The codes are those of two deployments on one host: RB501, RB502 where the kernel lets the second take it over,
    RB503 where it is only to be free for a moment.
    """
    claims = _claims()
    seen: set[str] = set()
    for binding in plan.bindings:
        if binding.node != node or binding.endpoint is None or binding.text in seen:
            continue
        seen.add(binding.text)
        holder = _claimed(binding.endpoint, claims) or _held(binding.endpoint)
        if holder is not None:
            yield _finding(plan, binding, binding.endpoint, holder)


def _finding(plan: Plan, binding: Binding, endpoint: Endpoint, holder: _Holder) -> Finding:
    resource, probe = binding.resource, binding.address.role == "probe"
    code = "RB503" if probe else "RB502" if endpoint.file else "RB501"
    needs = "has to find" if probe else "binds"
    end = "free" if probe else ""
    process = resource.process or f"rank {binding.rank}"
    stop = f"`kill {holder.pid}` ends it" if holder.pid else "find out who that is (`ss -ltnp` as root)"
    return Finding(
        code,
        f"{resource.name}: {' '.join(filter(None, ('the', process) if resource.process else (process,)))} {needs} "
        f"{binding.text}{' ' + end if end else ''}, which is in use on this host by {holder.shown}",
        Level.WARNING if probe else Level.ERROR,
        labels=plan.address_label(resource, binding.address),
        facts={
            "resource": resource.name,
            "endpoint": binding.text,
            "rank": binding.rank,
            "pid": holder.pid or None,
            "deployment": holder.deployment,
        },
        fix=f"{stop}; or start this server on other ports",
    )


def _claims() -> list[tuple[Entry, Endpoint]]:
    """What holders that live have claimed on this host."""
    found = []
    here = Process.me().net_ns
    try:
        known = entries()
    except RankbindError:
        return []  # a runtime directory that is not ours: nobody whom we would get in the way of claims in it
    for entry in known:
        if not entry.live or entry.record is None:
            continue
        for text in entry.record.endpoints.values():
            try:
                endpoint = Endpoint.parse(text)
            except EndpointError:
                continue
            if endpoint.file or entry.record.process.net_ns == here:
                found.append((entry, endpoint))
    return found


def _claimed(endpoint: Endpoint, claims: list[tuple[Entry, Endpoint]]) -> _Holder | None:
    for entry, claimed in claims:
        if entry.record is not None and entry.pid != os.getpid() and overlaps(endpoint, claimed):
            shown = f"{who(entry.record, entry.pid)}, for {entry.key}, since {when(entry.record.since)}"
            return _Holder(shown, entry.pid or 0, entry.key.deployment)
    return None


def _held(endpoint: Endpoint) -> _Holder | None:
    if endpoint.file is not None:
        found = listeners.in_the_way(endpoint.file) if _is_socket(endpoint.file) else None
    elif _refused(endpoint):
        everybody = sorted(listeners.of_endpoint(endpoint), key=lambda each: not each.listens)
        found = next(iter(everybody), listeners.Listener(0, "a process that cannot be seen from here"))
    else:
        found = None
    # What this process has itself, it has for what it starts.
    return None if found is None or found.pid == os.getpid() else _Holder(str(found), found.pid)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _refused(endpoint: Endpoint) -> bool:
    """Whether the kernel says that the address is in use. It is bound for a moment, and not listened on.

    As the engine's own sockets are, with SO_REUSEADDR: what is left of connections is in nobody's way.
    """
    if endpoint.kernel_picks or endpoint.first != endpoint.last or endpoint.transport == "inproc":
        return False
    try:
        if endpoint.abstract:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(f"\0{endpoint.path[1:]}")
            return False
        address = ip_address(str(endpoint.address))
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if address.version == 6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, endpoint.v6only)
            probe.bind((str(address), endpoint.first))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    except (ValueError, OverflowError):
        return False  # a host name, or a port that there is not
    return False
