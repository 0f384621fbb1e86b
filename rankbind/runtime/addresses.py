"""The addresses that the holder of a claim binds: held for all deployments of a host.

The kernel keeps nobody from an ``ipc://`` path, a file, or a port that its owner has not bound yet.

    DIR/addresses/NETNS/tcp-PORT/HOST.lock, .json       a port on a host of a network namespace; `mutex`, see `hold`
    DIR/addresses/NETNS/abstract/NAME.lock, .json       a name in the abstract namespace
    DIR/addresses/paths/HASH.lock, .json                a file, by its real path
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from rankbind.endpoint import MAX_PORT, Endpoint, overlaps
from rankbind.errors import ClaimedError, ClaimError
from rankbind.runtime import diagnosis, record
from rankbind.runtime.directory import folder
from rankbind.runtime.hold import Hold, alone
from rankbind.runtime.key import Key, digest, file_name
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record

_ADDRESSES = "addresses"
_TCP = "tcp-"
_PATIENCE = 10.0
"""Seconds to wait for another process that is between looking at a port's claims and making its own."""


@dataclass(frozen=True)
class Address:
    """An endpoint or path on its way to be held.

    Attributes:
        name: equal for equal addresses, within this process.
        place: the folder of the claims of everything that it may get in the way of.
        endpoint: what is compared with the others there; None where one name is one address.
    """

    name: str
    shown: str
    place: tuple[str, ...]
    file: str
    endpoint: Endpoint | None = None

    def hold(self, key: Key, found: Record, own: Sequence[str], within: Path | None) -> Hold:
        """Hold it. `own`: lock files that are in nobody's way. Raises `ClaimedError`."""
        place = str(folder(_ADDRESSES, *self.place, within=within))
        hold = Hold(place, self.file)
        with contextlib.ExitStack() as stack:
            if self.endpoint is not None:
                stack.enter_context(alone(f"{place}/mutex", _PATIENCE, "claiming an address"))
                for name in os.listdir(place):  # noqa: PTH208
                    stem = name.removesuffix(".lock")
                    other = Hold(place, stem)
                    if stem in (name, self.file) or other.lock_path in own:
                        continue
                    if overlaps(self.endpoint, _endpoint(stem, self.endpoint.first)):
                        self._take(other, key, found)
                        other.let_go()
            self._take(hold, key, found)
            hold.begin(found)
        return hold

    def _take(self, hold: Hold, key: Key, found: Record) -> None:
        holder = hold.acquire()
        if not hold.locked:
            message = diagnosis.refusal(str(key), found, holder, hold.lock_path, address=self.shown)
            raise ClaimedError(message, key, holder, self.shown)


def addresses(endpoints: Iterable[Endpoint], paths: Iterable[str]) -> Iterator[Address]:
    """What is to be held for them; nothing for port 0, a range, and what stays in its process. Raises `ClaimError`."""
    for endpoint in endpoints:
        shown = str(endpoint)
        if endpoint.kernel_picks or endpoint.transport == "inproc":
            continue
        if endpoint.abstract:
            yield Address(shown, shown, (str(Process.me().net_ns), "abstract"), file_name(endpoint.path))
        elif endpoint.transport == "ipc":
            # The file itself is replaced when it is bound, also if it is a link.
            above, name = os.path.split(endpoint.path)
            yield _path(os.path.join(_real(above or "."), name), shown)  # noqa: PTH118  # no folder, no name: as it is
        elif endpoint.first == endpoint.last and 0 < endpoint.first <= MAX_PORT:
            place = (str(Process.me().net_ns), f"{_TCP}{endpoint.first}")
            name = endpoint.host + "+6" * endpoint.ipv6 + "+6only" * endpoint.v6only
            yield Address(f"{name}:{endpoint.first}", shown, place, file_name(name), endpoint)
    for path in paths:
        yield _path(_real(path), os.fspath(path))


def parsed(endpoints: Mapping[str, str | Endpoint]) -> dict[str, Endpoint]:
    """By role. Raises `EndpointError` for one that cannot be read, TypeError for what is none."""
    if not isinstance(endpoints, Mapping):
        raise TypeError(f"endpoints are given by role, as in {{'bind': 'tcp://*:5557'}}, not {endpoints!r}")
    for role, each in endpoints.items():
        if not isinstance(each, str | Endpoint):
            raise TypeError(f"the endpoint of {role} is text or an Endpoint, not {each!r}: decode() what pyzmq gives")
    return {role: Endpoint.parse(each) if isinstance(each, str) else each for role, each in endpoints.items()}


def refuse_twice(key: Key, endpoints: Mapping[str, Endpoint]) -> None:
    """Say no to a holder that would be in its own way. Of two binds of one ipc path the first is deaf, silently."""
    seen: list[tuple[str, Endpoint]] = []
    for role, endpoint in endpoints.items():
        for other, before in seen:
            if endpoint.first == endpoint.last and before.first == before.last and overlaps(endpoint, before):
                raise ClaimError(
                    f"{key} would bind one address twice: {other} {before} and {role} {endpoint}. Give {role} another"
                )
        seen.append((role, endpoint))


def claimed_ports(directory: Path, net_ns: int) -> set[int]:
    """The ports that live claims have in a network namespace, bound or not."""
    found = set()
    with contextlib.suppress(OSError):
        for place in (directory / _ADDRESSES / str(net_ns)).glob(f"{_TCP}*"):
            claims = (record.read(path) for path in place.glob("*.json"))
            if any(each is not None and each.state == "held" and each.process.may_live for each in claims):
                with contextlib.suppress(ValueError):
                    found.add(int(place.name.removeprefix(_TCP)))
    return found


def _path(real: str, shown: str) -> Address:
    return Address(f"path {real}", shown, ("paths",), digest(real))


def _real(path: str) -> str:
    """Two spellings, or a link to a folder of it, are one file."""
    try:
        return os.path.realpath(path)
    except OSError as error:
        raise ClaimError(f"cannot find out where {path} is: {error.strerror}. Give an absolute path") from None


def _endpoint(name: str, port: int) -> Endpoint:
    """What a file stands for in the folder of `port`. A name that was too long is a host that nobody else has."""
    host, *options = unquote(name).split("+")
    return Endpoint("tcp", host, port, port, ipv6="6" in options, v6only="6only" in options)
