"""Who has a port or a socket's path: /proc/net/tcp, tcp6 and unix, and the open files of processes (proc(5))."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankbind.endpoint import Endpoint, overlaps
from rankbind.runtime.process import program

_LISTEN = "0A"
_ACCEPTS = 0x10000
"""__SO_ACCEPTCON of a unix socket."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that has an address.

    Attributes:
        pid: 0 if it cannot be told.
        program: what it runs, see `rankbind.runtime.process.program`; without a pid, what else is known of it.
        listens: False: it has a socket with that port which does not listen.
    """

    pid: int
    program: str = ""
    listens: bool = True

    def __str__(self) -> str:
        if not self.pid:
            return self.program
        mine = ", this process" if self.pid == os.getpid() else ""
        return f"pid {self.pid} ({self.program}{mine}{'' if self.listens else ', not listening'})"


def of_endpoint(endpoint: Endpoint, first: Iterable[int] = ()) -> Iterator[Listener]:
    """Who keeps `endpoint` from being bound in this network namespace, as they are found; nothing if nobody is seen.

    Args:
        first: processes to look at before all others.
    """
    if endpoint.transport == "tcp":
        yield from _processes(_tcp_sockets(endpoint), first)
    elif endpoint.transport == "ipc":
        yield from _processes(_unix_sockets(endpoint.path if endpoint.abstract else endpoint.file or ""), first)


def in_the_way(path: str) -> Listener | None:
    """What would be destroyed if a socket were bound at `path`: libzmq deletes whatever is there.

    None if there is nothing, or only the socket of a process that is gone.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    if not stat.S_ISSOCK(mode):
        return Listener(0, "a file that is no socket")
    if not _answers(path):
        return None
    # It is another's if its listener is in another network namespace, or was bound by another name.
    return next(_processes(_unix_sockets(path)), Listener(0, "a process that cannot be seen from here"))


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            pass  # its backlog is full, or it is no stream, or not for this user: it lives
    return True


def _tcp_sockets(endpoint: Endpoint) -> dict[str, tuple[bool, str]]:
    """The sockets that have the port, as links name them: whether they listen, and whose they are."""
    found: dict[str, tuple[bool, str]] = {}
    for table, length in (("tcp", 4), ("tcp6", 16)):
        for line in _lines(table):
            fields = line.split()
            host, _, port = fields[1].partition(":")
            # Without an inode it is a connection that no process has any more.
            if int(port, 16) != endpoint.first or fields[9] == "0":
                continue
            words = struct.pack(f"={length // 4}I", *struct.unpack(f">{length // 4}I", bytes.fromhex(host)))
            text = socket.inet_ntop(socket.AF_INET if length == 4 else socket.AF_INET6, words)
            if overlaps(Endpoint("tcp", text, endpoint.first, endpoint.first, ipv6=length == 16), endpoint):
                found[f"socket:[{fields[9]}]"] = fields[3] == _LISTEN, f"a process of user {fields[7]}"
    return found


def _unix_sockets(name: str) -> dict[str, tuple[bool, str]]:
    fields = (line.split(maxsplit=7) for line in _lines("unix"))
    return {
        f"socket:[{each[6]}]": (True, "a process that cannot be seen from here")
        for each in fields
        if len(each) == 8 and each[7] == name and int(each[3], 16) & _ACCEPTS
    }


def _lines(table: str) -> list[str]:
    try:
        return Path("/proc/self/net", table).read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return []


def _processes(sockets: Mapping[str, tuple[bool, str]], first: Iterable[int] = ()) -> Iterator[Listener]:
    if not sockets:
        return
    seen = False
    every = sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
    for pid in dict.fromkeys((*first, *every)):
        has = [sockets[link][0] for link in _open_files(pid) & sockets.keys()]
        if has:
            seen = True
            yield Listener(pid, program(pid), any(has))
    if not seen:
        # Another user's, or in another pid namespace.
        yield Listener(0, next(whose for _, whose in sockets.values()))


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(each.readlink()))
    return found
