"""Real failures and real clean launches, played: what is seen agrees with what is predicted."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rankbind import config
from rankbind.check.plan import Plan
from rankbind.errors import NetworkError, RehearsalError
from rankbind.rehearse.cast import Ports
from rankbind.rehearse.rehearsal import Wishes, rehearse

from ..support.namespaces import unavailable
from ..support.rehearsals import CASES, case, states, taken, text

KV = "kv-events"

CAME_TRUE = {
    "c06-replay-adjacent": ["RB201"],
    "c07-wildcard-and-loopback": ["RB201"],
    "c11-hoarding-cache": ["RB401"],
    "c12-nobody-owns": ["RB104"],
    "C01": ["RB102", "RB201"],
    "C16": ["RB210"],
    "C43-reverse": ["RB211"],
    "C53": ["RB206"],
    "C100": ["RB212"],
    "C116": ["RB101"],
}
ON_HOSTS = {
    "c05-dp-on-four-hosts": [],
    "C02": ["RB102"],
    "C15-advertised": ["RB210", "RB211"],
    "C87": ["RB210", "RB211"],
    "C67": ["RB212", "RB602"],
}
in_namespaces = pytest.mark.skipif(unavailable() is not None, reason=f"no namespaces: {unavailable()}")


@pytest.mark.parametrize("name", CAME_TRUE)
def test_what_is_predicted_comes_true_and_nothing_else_fails(name: str) -> None:
    found = case(name)

    assert sorted(each.finding.code for each in found.predictions) == CAME_TRUE[name]
    assert [each.came for each in found.predictions] == [True] * len(CAME_TRUE[name])
    assert found.surprises == ()
    assert found.failed


@pytest.mark.parametrize("name", ["c08-v6-loopback-and-v4-wildcard", "C131"])
def test_a_clean_launch_is_clean(name: str) -> None:
    found = case(name)

    assert not found.failed
    assert set(states(found).values()) == {"bound"}
    assert all(each.claim.state == "held" and each.heard for each in found.taken)


@in_namespaces
@pytest.mark.parametrize("name", ON_HOSTS)
def test_several_hosts_at_once(name: str) -> None:
    found = case(name)

    assert found.hosts == "namespaces"
    assert sorted(each.finding.code for each in found.predictions if each.came) == ON_HOSTS[name]
    assert len(found.predictions) == len(ON_HOSTS[name])
    assert found.surprises == ()


def test_the_second_stage_is_refused_by_the_claim_and_by_the_kernel() -> None:
    found = case("c01-pp-publisher")

    first, second = taken(found, 0), taken(found, 4)
    assert (first.state, first.claim.state) == ("bound", "held")
    assert (second.state, second.claim.state, second.claim.holder) == ("refused", "refused", "rank 0")
    assert second.seen == "Address already in use (rank 0)"
    assert "tcp://*" in second.claim.diagnosis
    assert found.ranks == 8
    assert found.predictions[0].seen.startswith(
        "rank 4 tcp://*:5557: Address already in use (rank 0); rank 4: claim ref"
    )
    assert (found.predictions[0].came, found.surprises) == (True, ())


def test_an_ipc_path_is_taken_over_and_its_first_owner_deaf() -> None:
    found = case("c09-ipc-per-rank")

    assert states(found) == {(KV, 0): "deaf", (KV, 2): "bound"}
    assert (found.predictions[0].came, found.surprises) == (True, ())
    assert "rank 0 ipc:///run/kv/events.sock: bound, deaf: rank 2 gets what" in found.predictions[0].seen


def test_a_port_past_the_end_is_another_port() -> None:
    found = case("c10-port-overflow")

    assert states(found) == {(KV, 0): "bound", (KV, 1): "bound", (KV, 2): "refused", (KV, 3): "elsewhere"}
    assert taken(found, 3).port == 1
    assert [(each.finding.code, each.came) for each in found.predictions] == [("RB203", True)]
    assert found.surprises == ()


MANY = """
[axes]
dp = 2
tp = 2

[resources.kv]
owner = { tp = 0 }
bind = "tcp://*:{5557 + dp}"
replay = "tcp://127.0.0.1:{5657 + dp}"
connect = [
    { to = "tcp://localhost:{5557 + r}", axes = { r = 2 } },
    { to = "tcp://127.0.0.1:{5657 + dp}", role = "replay", owner = { tp = 0 } },
]

[resources.elected]
singleton_per = { group = "world", rank = "any" }
bind = "ipc://@elected"
connect = { to = "ipc://@elected", axes = { r = 1 } }

[resources.one-listener]
owner = {}
bind = "tcp://127.0.0.1:5757"
shared = "inherited"

[resources.reuseport]
owner = {}
bind = "tcp://127.0.0.1:5758"
shared = "reuseport"
connect = { to = "tcp://127.0.0.1:5758", axes = { r = 1 } }

[resources.range]
owner = {}
bind = "tcp://127.0.0.1:6000-6003"

[resources.any]
owner = {}
bind = "tcp://127.0.0.1:0"

[resources.inside]
owner = {}
bind = "inproc://x"
"""


def test_all_that_is_meant_is_seen() -> None:
    found = text(MANY)
    by_name = {
        name: sorted(state for (of, _), state in states(found).items() if of == name) for name, _ in states(found)
    }

    assert found.surprises == ()
    assert {each.came for each in found.predictions} <= {None}  # ranges may meet
    assert by_name.pop("elected") == ["bound", "standing by", "standing by", "standing by"]
    assert {state for found in by_name.values() for state in found} == {"bound"}
    assert [call.who for call in found.calls][:4] == ["the consumer r 0", "the consumer r 1", "rank 0", "rank 2"]
    assert all(call.heard == call.meant and len(call.heard) == 1 for call in found.calls[:4])
    assert [bool(call.heard) for call in found.calls] == [True] * len(found.calls)


def test_two_owners_who_are_elected_apart_meet_at_one_port() -> None:
    """Each group elects one, and the address says nothing about the group."""
    found = text(
        '[axes]\ndp = 2\ntp = 2\n[resources.x]\nsingleton_per = { group = "tp", rank = "any" }\nbind = "tcp://*:5557"'
    )

    assert [(each.finding.code, each.came) for each in found.predictions] == [("RB201", True)]
    assert sum(state == "bound" for state in states(found).values()) == 1
    assert found.surprises == ()


def test_hosts_one_after_the_other_where_there_are_no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no ip
    found = text(
        """
        hosts = 2
        [axes]
        role = 2
        [resources.x]
        owner = { role = 0 }
        bind = "tcp://*:5557"
        connect = { to = "tcp://0:{5557 + 1}", owner = { role = 1 } }
        """
    )

    assert found.hosts == "here"
    assert states(found) == {("x", 0): "bound"}
    assert "there is no ip command" in found.notes[0]
    assert "what goes on between them" in found.notes[0]
    assert {each.finding.code: each.came for each in found.predictions} == {"RB210": None, "RB211": None}
    assert not found.calls[0].played
    with pytest.raises(NetworkError, match="iproute2"):
        rehearse(config.read(CASES / "c05-dp-on-four-hosts.toml"), Wishes("namespaces"))


@in_namespaces
def test_addresses_that_this_host_does_not_have() -> None:
    found = text(
        """
        [axes]
        tp = 2
        [hosts]
        count = 2
        names = ["a", "b"]
        addresses = { a = ["203.0.113.7", "2001:db8::7"], b = "203.0.113.8" }
        [resources.four]
        owner = { tp = 0 }
        bind = "tcp://203.0.113.7:5557"
        connect = { to = "tcp://203.0.113.7:5557", owner = { tp = 1 } }
        [resources.six]
        owner = { tp = 0 }
        bind = "tcp://[2001:db8::7]:5557"
        ipv6 = true
        """
    )

    assert found.surprises == ()
    assert set(states(found).values()) == {"bound"}
    assert found.calls[0].heard == {0}


def listening() -> socket.socket:
    """On a port that the kernel gives to nobody who asks for any."""
    ports = Ports(Plan(config.parse('[axes]\ntp = 1\n[resources.x]\nowner = {}\nbind = "tcp://*:1"')), free=True)
    made = socket.create_server(("127.0.0.1", ports.of(1)))
    ports.close()
    return made


def test_a_live_servers_port_and_socket_stay_its_own(tmp_path: Path) -> None:
    """And what is theirs is told: they are no part of the rehearsal."""
    (tmp_path / "file").write_text("precious")
    with listening() as other, socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "live"))
        server.listen()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "dead"))
        found = text(
            f"""
            [axes]
            tp = 2
            [resources.port]
            owner = {{}}
            bind = "tcp://*:{other.getsockname()[1]}"
            [resources.live]
            owner = {{ tp = 0 }}
            bind = "ipc://{tmp_path}/live"
            [resources.file]
            owner = {{ tp = 0 }}
            bind = "ipc://{tmp_path}/file"
            [resources.dead]
            owner = {{}}
            bind = "ipc://{tmp_path}/dead"
            [resources.nowhere]
            owner = {{ tp = 0 }}
            bind = "ipc:///no/such/folder/s"
            """,
            free=False,
        )
        client.connect(str(tmp_path / "live"))

    assert states(found) == {
        ("port", 0): "refused",
        ("port", 1): "refused",
        ("live", 0): "refused",
        ("file", 0): "refused",
        ("dead", 0): "deaf",
        ("dead", 1): "bound",
        ("nowhere", 0): "refused",
    }
    assert (tmp_path / "file").read_text() == "precious"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "live"]
    told = {each.text.partition(":")[0]: each for each in found.surprises}
    assert {each.cause for each in found.surprises} == {"machine"}
    assert set(told) == {"port", "live", "file", "nowhere"}
    assert f"pid {os.getpid()} " in told["port"].text
    assert f"pid {os.getpid()} " in told["live"].text
    assert "No such file or directory" in told["nowhere"].text
    # The port was never theirs to fight about; the path was.
    assert [(each.finding.code, each.came) for each in found.predictions if each.finding.fails] == [
        ("RB201", None),
        ("RB202", True),
    ]


def test_a_file_that_cannot_be_checked() -> None:
    with pytest.raises(RehearsalError, match=r"divides by zero.*rankbind check"):
        text('[axes]\ndp = 2\n[resources.x]\nowner = {}\nbind = "tcp://*:{5557 // dp}"')


def test_the_time_is_limited() -> None:
    with pytest.raises(RehearsalError, match=r"in the 0\.01 s that the rehearsal may take"):
        rehearse(config.parse('[axes]\ndp = 8\n[resources.x]\nowner = {}\nname = "x{dp}"'), Wishes(limit=0.01))


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/self")
    with pytest.raises(RehearsalError, match="cannot make a folder in /proc/self"):
        case("c01-pp-publisher")


def test_nothing_to_start() -> None:
    found = text("[axes]\ntp = 1\n[hosts]\nranks = { a = [] }")
    assert (found.processes, found.taken) == (0, ())
    assert [(each.finding.code, each.came) for each in found.predictions] == [("RB601", True)]

    found = text("[axes]\ntp = 1")
    assert (found.processes, found.taken, found.failed) == (1, (), False)


@pytest.mark.parametrize("name", ["C40-reserved", "C69"])
def test_what_depends_on_chance_is_not_said_to_have_come_true(name: str) -> None:
    found = case(name)

    assert {each.came for each in found.predictions} == {None}
    assert found.surprises == ()


@in_namespaces
@pytest.mark.parametrize("consumers", [2, 1])
def test_a_consumer_on_each_host_or_on_one_of_two(consumers: int) -> None:
    found = text(
        f"""
        hosts = 2
        [axes]
        dp = 2
        [resources.x]
        owner = {{}}
        bind = "tcp://*:5557"
        connect = {{ to = "tcp://localhost:5557", axes = {{ node = {consumers} }} }}
        """
    )

    assert [set(call.heard) for call in found.calls] == [{0}, {1}][:consumers]
    assert [(each.finding.code, each.came, each.seen) for each in found.predictions] == [
        ("RB211", True, "nobody got a message of rank 1")
    ][: 2 - consumers]
    assert found.surprises == ()
