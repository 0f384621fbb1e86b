"""Who has a port or a socket's path: /proc/net/tcp and /proc/net/unix, and the open files of processes (proc(5))."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rankbind.endpoint import Endpoint, overlaps
from rankbind.rehearse.script import Holder

_LISTEN = "0A"
_ACCEPTS = 0x10000


def of_endpoint(endpoint: Endpoint, first: Sequence[int] = ()) -> Holder | None:
    """Who keeps `endpoint` from being bound in this network namespace; None if nobody is seen to.

    Args:
        first: processes to look at before all others.
    """
    if endpoint.transport == "tcp":
        return _process(_tcp_sockets(endpoint), first)
    if endpoint.transport == "ipc":
        name = endpoint.path if endpoint.abstract else endpoint.file
        return _process([(inode, None) for inode in _unix_sockets(name or "")], first)
    return None


def in_the_way(path: str) -> Holder | None:
    """What would be destroyed if a socket were bound at `path`: libzmq deletes whatever is there.

    None if there is nothing, or only the socket of a process that is gone.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    if not stat.S_ISSOCK(mode):
        return Holder(0, "a file that is no socket")
    found = _process([(inode, None) for inode in _unix_sockets(path)], ())
    if found is not None or not _answers(path):
        return found
    # Its listener is in another network namespace, or another user's.
    return Holder(0, "a process that cannot be seen from here")


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            pass
    return True


def _tcp_sockets(endpoint: Endpoint) -> list[tuple[int, int | None]]:
    """Inode and user of the sockets that have the port, those that listen first."""
    found: list[tuple[bool, int, int]] = []
    for table, length in (("tcp", 4), ("tcp6", 16)):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            host, _, port = fields[1].partition(":")
            if int(port, 16) != endpoint.first or fields[9] == "0":
                continue
            words = struct.pack(f"={length // 4}I", *struct.unpack(f">{length // 4}I", bytes.fromhex(host)))
            text = socket.inet_ntop(socket.AF_INET if length == 4 else socket.AF_INET6, words)
            there = Endpoint("tcp", text, endpoint.first, endpoint.first, ipv6=length == 16)
            if overlaps(there, endpoint):
                found.append((fields[3] != _LISTEN, int(fields[9]), int(fields[7])))
    return [(inode, user) for _, inode, user in sorted(found)]


def _unix_sockets(name: str) -> Iterator[int]:
    try:
        lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7] == name and int(fields[3], 16) & _ACCEPTS:
            yield int(fields[6])


def _process(sockets: Iterable[tuple[int, int | None]], first: Sequence[int]) -> Holder | None:
    wanted = {f"socket:[{inode}]": user for inode, user in sockets}
    if not wanted:
        return None
    every = sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
    for pid in dict.fromkeys((*first, *every)):
        if _has(pid, wanted.keys()):
            return Holder(pid, program(pid))
    user = next(iter(wanted.values()))
    return Holder(0, "a process that cannot be seen from here" if user is None else f"a process of user {user}")


def _has(pid: int, links: Iterable[str]) -> bool:
    try:
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for each in files:
        try:
            if str(each.readlink()) in links:
                return True
        except OSError:
            continue
    return False


def program(pid: int) -> str:
    """The command line of a process up to its first option: behind that there may be secrets."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return ""
    end = next((index for index, word in enumerate(words) if word.startswith("--")), len(words))
    return " ".join(" ".join(words[:end]).split())[:160]
