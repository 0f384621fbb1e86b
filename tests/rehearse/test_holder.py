"""Who has a port or a socket's path."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rankbind.endpoint import Endpoint
from rankbind.rehearse import holder

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
        found = holder.of_endpoint(Endpoint("tcp", asked, port, port, ipv6=":" in asked))

    assert (found is not None) is held
    if found is not None:
        assert found.pid == os.getpid()
        assert found.program


def test_an_abstract_name_and_a_path(tmp_path: Path) -> None:
    for name, endpoint in ((f"\0{tmp_path}", f"ipc://@{tmp_path}"), (str(tmp_path / "s"), f"ipc://{tmp_path}/s")):
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(name)
            other.listen()
            found = holder.of_endpoint(Endpoint.parse(endpoint))
            assert found is not None
            assert found.pid == os.getpid()


def test_nobody() -> None:
    assert holder.of_endpoint(Endpoint.parse("ipc:///no/such/socket")) is None
    assert holder.of_endpoint(Endpoint.parse("inproc://x")) is None


def test_what_a_bind_would_destroy(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert holder.in_the_way(str(path)) is None
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        assert holder.in_the_way(str(path)) is None  # nobody listens
        other.listen()
        found = holder.in_the_way(str(path))
        assert found is not None
        assert found.pid == os.getpid()
    assert holder.in_the_way(str(path)) is None
    path.unlink()
    path.write_text("")
    assert holder.in_the_way(str(path)) == holder.Holder(0, "a file that is no socket")


def test_what_is_behind_the_first_option_is_not_shown() -> None:
    sleeping = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", sleeping, "serve", "--token", "secret"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert "serve" in holder.program(process.pid)
        assert "secret" not in holder.program(process.pid)
        process.communicate()
    assert holder.program(process.pid) == ""
