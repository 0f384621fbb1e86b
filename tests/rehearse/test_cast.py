"""Which port stands for a declared one, and who is told what."""

from __future__ import annotations

import socket

import pytest
import zmq

from rankbind import config
from rankbind.check.plan import Plan
from rankbind.endpoint import Endpoint
from rankbind.errors import RehearsalError
from rankbind.rehearse import rank
from rankbind.rehearse.cast import Cast, Ports


def plan(*ports: int, more: str = "") -> Plan:
    found = (f'[resources.x{at}]\nowner = {{}}\nbind = "tcp://*:{port}"\n' for at, port in enumerate(ports))
    return Plan(config.parse(f"{more}\n[axes]\ntp = 1\n{''.join(found)}"))


def test_declared_ports_stand_for_themselves() -> None:
    ports = Ports(plan(5557))
    assert [ports.of(port) for port in (0, 1, 5557, 65537, -3)] == [0, 1, 5557, 65537, -3]


def test_different_ports_stay_different_and_equal_ones_equal() -> None:
    ports = Ports(plan(5557, 5558, 5557, 65536 + 5558), free=True)
    ports.close()
    assert len({5557, ports.of(5557), ports.of(5558)}) == 3
    # libzmq keeps the low 16 bits, whatever stands above them.
    assert ports.of(65536 + 5558) == 65536 + ports.of(5558)
    assert ports.of(65536) == 65536


def test_free_ports_are_not_given_to_two_rehearsals() -> None:
    wanted = plan(*range(1, 400))
    one, other = Ports(wanted, free=True), Ports(wanted, free=True)
    one.close()
    other.close()
    assert not set(one.moved.values()) & set(other.moved.values())


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "[::]", "[::1]"])
def test_whoever_listens_can_bind_beside_what_keeps_them(host: str) -> None:
    ports = Ports(plan(1), free=True)
    with zmq.Context() as context, context.socket(zmq.PUB) as made:
        made.ipv6 = ":" in host
        made.bind(f"tcp://{host}:{ports.of(1)}")
        made.unbind(made.LAST_ENDPOINT)
    ports.close()


@pytest.mark.parametrize("reuse_port", [False, True])
def test_a_plain_listener_can_too_and_nobody_who_asks_for_any(reuse_port: bool) -> None:
    ports = Ports(plan(1), free=True)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", ports.of(1)))
    with rank.listen(Endpoint("tcp", "*", ports.of(1), ports.of(1)), reuse_port=reuse_port) as made:
        # Where several share it libzmq would be caught in accept(), and never end.
        assert not made.getblocking()
    ports.close()


def test_shifted_ports() -> None:
    ports = Ports(plan(5557, 65535 + 2), 100)
    assert (ports.of(5557), ports.of(65537), ports.of(7)) == (5657, 65536 + 101, 7)


@pytest.mark.parametrize("by", [60_000, -5557])
def test_a_shift_out_of_the_ports(by: int) -> None:
    with pytest.raises(RehearsalError, match=rf"port 5557 shifted by {by} would be"):
        Ports(plan(5557), by)


def orders(text: str, *, namespaces: bool = False) -> Cast:
    found = Plan(config.parse(text))
    return Cast(found, Ports(found), namespaces=namespaces, folder="/tmp/x", limit=1)


def test_a_large_job_is_played_by_its_owners() -> None:
    cast = orders('[axes]\ndp = 2\ntp = 256\n[resources.x]\nowner = { tp = 0 }\nbind = "tcp://*:{5557 + dp}"')

    assert not cast.whole
    assert [part.rank for order in cast.orders() for part in order.parts] == [0, 256]


def test_a_job_that_is_too_large() -> None:
    with pytest.raises(RehearsalError, match=r"1025 processes at once.*smaller job"):
        orders("[axes]\ndp = 1025\n[resources.x]\nowner = {}").orders()


def test_the_claims_are_those_of_the_launch() -> None:
    """A hand-written gate has no groups, whatever it promises; ports of a range are claimed when they are known."""
    cast = orders(
        """
        hosts = 2
        [axes]
        dp = 2
        tp = 2
        [resources.gate]
        owner = { tp = 0 }
        once_per = []
        bind = "tcp://*:5557-5560"
        path = "/tmp/own"
        scope = "host"
        [resources.host]
        singleton_per = { group = "host" }
        [resources.tp]
        singleton_per = { group = "tp", rank = "any" }
        bind = "tcp://*:{6000 + dp}"
        """
    )
    _, second = cast.orders()
    wants = {want.resource: want for want in second.parts[0].wants}

    assert {name: dict(want.group) for name, want in wants.items()} == {
        "gate": {"rank": 2},
        "host": {"node_rank": 1},
        "tp": {"dp": 1},
    }
    assert [want.election for want in wants.values()] == [False, False, True]
    assert (wants["gate"].endpoints, wants["gate"].paths) == ({}, ("/tmp/own",))
    assert wants["tp"].endpoints == {"bind": Endpoint.parse("tcp://*:6001")}


def test_what_goes_from_host_to_host_is_dialled_in_namespaces_alone() -> None:
    text = """
        [axes]
        role = 2
        [hosts]
        count = 2
        names = ["a", "b"]
        [resources.x]
        owner = { role = 0 }
        bind = "tcp://*:5557"
        connect = [{ to = "tcp://a:5557", owner = { role = 1 } }, { to = "tcp://a:5557", axes = { router = 1 } }]
        """
    here = [part for order in orders(text).orders() for part in order.parts]
    there = [part for order in orders(text, namespaces=True).orders() for part in order.parts]

    # The router may be on the host of the owner; the other rank is not.
    assert [(part.rank, [each.endpoints for each in part.dials]) for part in here] == [
        (0, []),
        (None, [("tcp://127.0.0.2:5557",)]),
        (1, []),
    ]
    assert [each.endpoints for part in there for each in part.dials] == [("tcp://198.18.0.1:5557",)] * 2


def test_nobody_plays_what_is_only_looked_at() -> None:
    text = (
        "[axes]\ntp = 2\n[resources.x]\nowner = {}\nbind = 'tcp://*:{5557 + tp}'\n"
        "probe = ['tcp://*:{6000 + tp}', 'ipc:///run/x', 'tcp://192.0.2.1:7000']\ndevice = 'gpu 0'\n"
    )
    found = Plan(config.parse(text))
    ports = Ports(found, shift=100)
    assert sorted(ports.moved) == [5557, 5558]
    (order,) = Cast(found, ports, namespaces=False, folder="/tmp/x", limit=1.0).orders()
    assert [[bind.endpoints for bind in part.binds] for part in order.parts] == [
        [("tcp://*:5657",)],
        [("tcp://*:5658",)],
    ]
    assert [want.paths for part in order.parts for want in part.wants] == [(), ()]
    assert Cast(found, Ports(found), namespaces=False, folder="/tmp/x", limit=1.0).hosts == ((),)
