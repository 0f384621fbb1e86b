"""Which port stands for a declared one."""

from __future__ import annotations

import socket

import pytest
import zmq

from rankbind.endpoint import Endpoint
from rankbind.rehearse import rank
from rankbind.rehearse.ports import Ports
from rankbind.rehearse.script import RehearsalError


def test_declared_ports_stand_for_themselves() -> None:
    ports = Ports("declared")
    assert [ports.of(port) for port in (0, 1, 5557, 65537, -3)] == [0, 1, 5557, 65537, -3]


def test_different_ports_stay_different_and_equal_ones_equal() -> None:
    ports = Ports.free([5557, 5558, 5557, 65536 + 5558])
    try:
        assert len({ports.of(5557), ports.of(5558)}) == 2
        # libzmq keeps the low 16 bits, whatever stands above them.
        assert ports.of(65536 + 5558) == 65536 + ports.of(5558)
        assert ports.of(65536) == 65536
    finally:
        ports.close()


def test_free_ports_are_not_given_to_two_rehearsals() -> None:
    wanted = range(1, 400)
    one, other = Ports.free(wanted), Ports.free(wanted)
    try:
        assert not set(one.moved.values()) & set(other.moved.values())
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "*", "[::]", "[::1]"])
def test_libzmq_can_bind_beside_what_keeps_them(host: str) -> None:
    ports = Ports.free([1])
    with zmq.Context() as context, context.socket(zmq.PUB) as made:
        made.ipv6 = ":" in host
        made.bind(f"tcp://{host}:{ports.of(1)}")
    ports.close()


@pytest.mark.parametrize("reuse_port", [False, True])
def test_a_plain_listener_can_too(reuse_port: bool) -> None:
    ports = Ports.free([1])
    rank.listen(Endpoint("tcp", "*", ports.of(1), ports.of(1)), reuse_port=reuse_port).close()
    ports.close()


def test_the_kernel_gives_them_to_nobody_else_who_asks() -> None:
    ports = Ports.free([1])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", ports.of(1)))
    ports.close()


def test_shifted_ports() -> None:
    ports = Ports.shifted([5557, 65535 + 2], 100)
    assert (ports.of(5557), ports.of(65537), ports.of(7)) == (5657, 65536 + 101, 7)


@pytest.mark.parametrize("by", [60_000, -5557])
def test_a_shift_out_of_the_ports(by: int) -> None:
    with pytest.raises(RehearsalError, match=rf"port 5557 shifted by {by} would be"):
        Ports.shifted([5557], by)
