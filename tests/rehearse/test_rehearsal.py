"""Real failures and real clean launches, played: what is seen agrees with what is predicted."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from rankbind import config
from rankbind.rehearse.ports import Ports
from rankbind.rehearse.rehearsal import Wishes, rehearse
from rankbind.rehearse.script import NetworkError, RehearsalError
from rankbind.runtime.claim import claim

from ..support.rehearsals import case, namespaces, states, taken, text

KV = "kv-events"

CAME_TRUE = {
    "c01-pp-publisher": ["RB201"],
    "c03-cp-publisher": ["RB201"],
    "c04-pure-dp-offset": ["RB201"],
    "c06-replay-adjacent": ["RB201"],
    "c07-wildcard-and-loopback": ["RB201"],
    "c09-ipc-per-rank": ["RB202"],
    "c10-port-overflow": ["RB203"],
    "c11-hoarding-cache": ["RB401"],
    "c12-nobody-owns": ["RB104"],
    "C01": ["RB102", "RB201"],
    "C16": ["RB210"],
    "C43-reverse": ["RB211"],
    "C53": ["RB206"],
    "C100": ["RB212"],
    "C116": ["RB101"],
}
CLEAN = ["c02-pp-publisher-fixed", "c08-v6-loopback-and-v4-wildcard", "C08", "C131"]
ON_HOSTS = {
    "c05-dp-on-four-hosts": [],
    "C02": ["RB102"],
    "C15-advertised": ["RB210", "RB211"],
    "C87": ["RB210", "RB211"],
    "C67": ["RB212", "RB602"],
}
in_namespaces = pytest.mark.skipif(not namespaces(), reason="this user may not make network namespaces")


@pytest.mark.parametrize("name", CAME_TRUE)
def test_what_is_predicted_comes_true_and_nothing_else_fails(name: str) -> None:
    found = case(name)

    assert sorted(each.finding.code for each in found.predictions) == CAME_TRUE[name]
    assert [each.came for each in found.predictions] == [True] * len(CAME_TRUE[name])
    assert found.surprises == ()
    assert found.failed


@pytest.mark.parametrize("name", CLEAN)
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
    assert (second.state, second.claim.state, second.holder, second.claim_holder) == (
        "refused",
        "refused",
        "rank 0",
        "rank 0",
    )
    assert second.bound is not None
    assert second.bound.error == "Address already in use"
    assert "tcp://*" in second.claim.diagnosis
    assert found.ranks == 8
    assert found.predictions[0].seen.startswith("rank 4 refused: Address already in use, rank 0 has it")


def test_an_ipc_path_is_taken_over_and_its_first_owner_deaf() -> None:
    found = case("c09-ipc-per-rank")

    assert states(found) == {(KV, 0): "deaf", (KV, 2): "bound"}
    assert "rank 0 bound ipc:///run/kv/events.sock and went deaf: rank 2 gets" in found.predictions[0].seen


def test_a_port_past_the_end_is_another_port() -> None:
    found = case("c10-port-overflow")

    assert states(found) == {(KV, 0): "bound", (KV, 1): "bound", (KV, 2): "refused", (KV, 3): "elsewhere"}
    assert taken(found, 3).port == 1


REPLAY = """
[axes]
dp = 2

[resources.kv]
owner = {}
bind = "tcp://*:{5557 + dp}"
replay = "tcp://127.0.0.1:{5657 + dp}"
connect = [
    { to = "tcp://localhost:{5557 + r}", axes = { r = 2 } },
    { to = "tcp://127.0.0.1:{5657 + dp}", role = "replay" },
]
"""


def test_consumers_get_a_message_of_each_owner_they_are_meant_to_reach() -> None:
    found = text(REPLAY)

    assert not found.failed
    assert len(found.calls) == 4
    assert all(call.heard == call.meant and len(call.heard) == 1 for call in found.calls)
    assert [call.who for call in found.calls] == ["the consumer r 0", "the consumer r 1", "rank 0", "rank 1"]


def test_of_an_election_one_binds_and_the_others_stand_by() -> None:
    found = text(
        '[axes]\ntp = 3\n[resources.x]\nsingleton_per = { group = "world", rank = "any" }\nbind = "tcp://*:5557"'
    )

    assert sorted(states(found).values()) == ["bound", "standing by", "standing by"]
    assert not found.failed


@pytest.mark.parametrize("how", ["inherited", "reuseport"])
def test_sharing_that_is_meant_is_no_failure(how: str) -> None:
    found = text(f'[axes]\ntp = 3\n[resources.x]\nowner = {{}}\nbind = "tcp://127.0.0.1:5557"\nshared = "{how}"')

    assert not found.failed
    assert set(states(found).values()) == {"bound"}


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
    found = case("c05-dp-on-four-hosts")

    assert found.hosts == "here"
    assert not found.failed
    assert len(found.taken) == 4
    assert "there is no ip command" in found.notes[0]
    assert "what goes on between them" in found.notes[0]


def test_namespaces_that_are_asked_for_and_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NetworkError, match="iproute2"):
        case("c05-dp-on-four-hosts", "namespaces")


def test_what_goes_from_host_to_host_is_not_claimed_to_be_seen() -> None:
    found = text(
        """
        hosts = 2
        [axes]
        role = 2
        [resources.x]
        owner = { role = 0 }
        bind = "tcp://*:5557"
        connect = { to = "tcp://0:{5557 + 1}", owner = { role = 1 } }
        """,
        "here",
    )

    assert {each.finding.code: each.came for each in found.predictions} == {"RB210": None, "RB211": None}
    assert not found.calls[0].played


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
    while True:
        ports = Ports.free([1])
        ports.close()
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", ports.of(1)))


def test_a_port_that_somebody_else_holds_is_a_finding_of_the_rehearsal() -> None:
    with listening() as other:
        found = text(
            f'[axes]\ntp = 2\n[resources.x]\nowner = {{}}\nbind = "tcp://*:{other.getsockname()[1]}"', free=False
        )

    assert found.failed
    assert all(each.foreign and each.state == "refused" for each in found.taken)
    first, _ = found.surprises
    assert first.cause == "machine"
    assert f"pid {os.getpid()}" in first.text
    assert [(each.finding.code, each.came) for each in found.predictions] == [("RB201", None)]


def test_who_holds_a_port_is_looked_up_in_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "live"))
    with listening() as other, claim("kv", deployment="prod", rank=3, coordinates={}):
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        found = text(f'[axes]\ntp = 1\n[resources.x]\nowner = {{}}\nbind = "{endpoint}"', free=False)

    assert "which holds prod/kv by its rank 3" in found.surprises[0].text
    assert [each.name for each in (tmp_path / "live" / "claims").glob("*.lock")] == ["prod%2Fkv.lock"]


def test_a_live_servers_socket_is_not_taken_from_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(path))
        server.listen()
        found = text(f'[axes]\ntp = 1\n[resources.x]\nowner = {{}}\nbind = "ipc://{path}"', free=False)
        client.connect(str(path))

    assert states(found) == {("x", 0): "refused"}
    assert taken(found, 0).foreign
    assert [each.cause for each in found.surprises] == ["machine"]


def test_a_file_is_not_destroyed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    found = text(f'[axes]\ntp = 1\n[resources.x]\nowner = {{}}\nbind = "ipc://{path}"', free=False)

    assert path.read_text() == "precious"
    assert states(found) == {("x", 0): "refused"}


def test_real_ipc_paths_are_bound_and_gone_afterwards(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    found = text(f'[axes]\ntp = 2\n[resources.x]\nowner = {{}}\nbind = "ipc://{tmp_path}/s"', free=False)

    assert states(found) == {("x", 0): "deaf", ("x", 1): "bound"}
    assert list(tmp_path.iterdir()) == []


def test_what_the_machine_lacks_is_told_apart_from_what_the_file_gets_wrong() -> None:
    found = text('[axes]\ntp = 1\n[resources.x]\nowner = {}\nbind = "ipc:///no/such/folder/s"', free=False)

    assert [each.cause for each in found.surprises] == ["machine"]
    assert "No such file or directory" in found.surprises[0].text


def test_a_large_job_is_played_by_its_owners() -> None:
    found = text(
        '[axes]\ndp = 2\ntp = 256\n[resources.x]\nsingleton_per = { group = "tp" }\nbind = "tcp://*:{5557 + dp}"'
    )

    assert (found.size, found.ranks) == (512, 2)
    assert "only the ranks that own or dial something" in found.notes[0]


def test_a_job_that_is_too_large() -> None:
    with pytest.raises(RehearsalError, match=r"4097 processes at once.*smaller job"):
        text('[axes]\ndp = 4096\n[resources.x]\nowner = {}\nbind = "tcp://*:{5557 + dp}"')


def test_a_file_that_cannot_be_checked() -> None:
    with pytest.raises(RehearsalError, match=r"divides by zero.*rankbind check"):
        text('[axes]\ndp = 2\n[resources.x]\nowner = {}\nbind = "tcp://*:{5557 // dp}"')


def test_the_time_is_limited() -> None:
    with pytest.raises(RehearsalError, match=r"in the 0\.01 s that the rehearsal may take"):
        rehearse(config.parse('[axes]\ndp = 8\n[resources.x]\nowner = {}\nname = "x{dp}"'), Wishes(limit=0.01))


def test_a_job_without_ranks_to_start() -> None:
    found = text("[axes]\ntp = 1\n[hosts]\nranks = { a = [] }")

    assert (found.processes, found.taken) == (0, ())
    assert [(each.finding.code, each.came) for each in found.predictions] == [("RB601", True)]


@pytest.mark.parametrize("name", ["C130-ephemeral", "C40-reserved", "C69", "C40"])
def test_what_depends_on_chance_is_not_said_to_have_come_true(name: str) -> None:
    found = case(name)

    assert {each.came for each in found.predictions} == {None}
    assert found.surprises == ()


ON_EACH_HOST = """
hosts = 2

[axes]
dp = 2

[resources.x]
owner = {{}}
bind = "tcp://*:5557"
connect = {{ to = "tcp://localhost:5557", axes = {{ node = {consumers} }} }}
"""


@in_namespaces
def test_a_consumer_on_each_host() -> None:
    found = text(ON_EACH_HOST.format(consumers=2))

    assert not found.failed
    assert [set(call.heard) for call in found.calls] == [{0}, {1}]


@in_namespaces
def test_one_consumer_reaches_one_of_two_hosts() -> None:
    found = text(ON_EACH_HOST.format(consumers=1))

    assert [(each.finding.code, each.came, each.seen) for each in found.predictions] == [
        ("RB211", True, "nobody got a message of rank 1")
    ]
    assert found.surprises == ()
