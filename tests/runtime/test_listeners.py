"""Who has a port or a socket's path."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from rankbind.endpoint import Endpoint
from rankbind.runtime import listeners
from rankbind.runtime.ports import reserve

IPV4, IPV6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("family", "bound", "asked", "held"),
    [
        (IPV4, "127.0.0.1", "*", True),
        (IPV4, "127.0.0.1", "127.0.0.1", True),
        (IPV4, "127.0.0.1", "127.0.0.2", False),
        (IPV4, "0.0.0.0", "127.0.0.2", True),
        (IPV6, "::1", "::1", True),
        (IPV6, "::1", "127.0.0.1", False),
        (IPV6, "::", "127.0.0.1", True),
    ],
)
def test_who_listens(family: int, bound: str, asked: str, held: bool) -> None:
    with socket.socket(family) as other:
        other.bind((bound, 0))
        other.listen()
        port = other.getsockname()[1]
        found = next(listeners.of_endpoint(Endpoint("tcp", asked, port, port, ipv6=":" in asked)), None)

    assert (found is not None) is held
    if found is not None:
        assert found.pid == os.getpid()
        assert found.program


def test_an_abstract_name_and_a_path(tmp_path: Path) -> None:
    for name, endpoint in ((f"\0{tmp_path}", f"ipc://@{tmp_path}"), (str(tmp_path / "s"), f"ipc://{tmp_path}/s")):
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(name)
            other.listen()
            found = next(listeners.of_endpoint(Endpoint.parse(endpoint)), None)
            assert found is not None
            assert found.pid == os.getpid()


def test_nobody() -> None:
    assert [*listeners.of_endpoint(Endpoint.parse("ipc:///no/such/socket"))] == []
    assert [*listeners.of_endpoint(Endpoint.parse("inproc://x"))] == []


def test_what_a_bind_would_destroy(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert listeners.in_the_way(str(path)) is None
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        assert listeners.in_the_way(str(path)) is None  # nobody listens
        other.listen()
        found = listeners.in_the_way(str(path))
        assert found is not None
        assert found.pid == os.getpid()
    assert listeners.in_the_way(str(path)) is None
    path.unlink()
    path.write_text("")
    assert listeners.in_the_way(str(path)) == listeners.Listener(0, "a file that is no socket")


def test_all_who_have_it_and_one_that_is_asked_for_first() -> None:
    with socket.socket() as shared:
        shared.bind(("127.0.0.1", 0))
        shared.listen()
        port = shared.getsockname()[1]
        with subprocess.Popen(["sleep", "60"], pass_fds=[shared.fileno()]) as other:
            endpoint = Endpoint("tcp", "127.0.0.1", port, port)
            assert {found.pid for found in listeners.of_endpoint(endpoint)} == {os.getpid(), other.pid}
            first = next(listeners.of_endpoint(endpoint, (other.pid,)))
            assert str(first) == f"pid {other.pid} (sleep)"
            other.kill()


def test_a_connection_without_a_process_is_nobodys() -> None:
    """In TIME_WAIT it has no inode, and is not what keeps a port: SO_REUSEADDR passes it by."""
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client.connect(("127.0.0.1", port))
        accepted = server.accept()[0]
        accepted.close()
        client.recv(1)
    assert [*listeners.of_endpoint(Endpoint("tcp", "127.0.0.1", port, port))] == []
    with reserve("127.0.0.1", port) as held:
        assert held.port == port


def test_a_socket_that_does_not_listen_is_told_apart() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        port = client.getsockname()[1]
        (found,) = listeners.of_endpoint(Endpoint("tcp", "127.0.0.1", port, port))
        assert not found.listens
        assert str(found).endswith("this process, not listening)")
