"""A resource has an owner, addresses and an identity; a job holds them; none of it changes afterwards."""

from __future__ import annotations

import copy
import pickle
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.resource import Address, Consumer, HostFacts, Job, Kind, ReservedPorts, Resource
from rankbind.scope import Gate, Scope
from rankbind.template import Template
from rankbind.topology import Topology, View

from .support.topologies import ranks, topologies

KV_EVENTS = Resource(
    "kv-events",
    Scope(("pp", "attn_tp")),
    (
        Address("bind", Template("tcp://*:{5557 + attn_dp}")),
        Address("replay", Template("tcp://*:{5657 + attn_dp}")),
        Address("path", Template("/dev/shm/kv-{attn_dp}"), "path", "shared"),
    ),
    (
        Consumer(Template("tcp://10.0.0.1:{5557 + dp}"), axes={"dp": 2}, by="router"),
        Consumer(Template("x"), gate=Gate({"tp": 0})),
    ),
    once_per=("attn_dp",),
    process="scheduler",
    authenticated=False,
)
JOB = Job(
    Topology({"pp": 2, "tp": 4}, {"attention": View("tp", {"attn_dp": 2, "attn_tp": 2})}, hosts=2),
    (KV_EVENTS, Resource("cache", Gate({"attn_tp": 0}), same_owner_as="kv-events", shared="inherited")),
    HostFacts((32768, 60999), 1024, (ReservedPorts(22000, 29999, "nccl"),), {"0": ("10.0.0.1",)}),
)


def test_a_resource_is_found_by_its_name() -> None:
    assert JOB.resource("kv-events") is KV_EVENTS
    with pytest.raises(KeyError, match="kv"):
        JOB.resource("kv")


def test_the_addresses_of_the_owners() -> None:
    owners = KV_EVENTS.owner.owners(JOB.topology)
    found = [[address.template.render(JOB.variables(rank)) for address in KV_EVENTS.addresses] for rank in owners]
    assert found == [
        ["tcp://*:5557", "tcp://*:5657", "/dev/shm/kv-0"],
        ["tcp://*:5558", "tcp://*:5658", "/dev/shm/kv-1"],
    ]


def test_what_is_claimed_is_what_somebody_keeps() -> None:
    def address(role: str, text: str, kind: Kind = "endpoint", scope: Literal["host", "shared"] = "host") -> Address:
        return Address(role, Template(text), kind, scope)

    bind, more, replay = address("bind", "tcp://*:1"), address("bind", "tcp://*:2"), address("replay", "tcp://*:3")
    path, far = address("path", "/x", "path"), address("path", "/y", "path", "shared")
    name, device = address("name", "n", "name", "shared"), address("device", "gpu 0", "device")
    probes = address("probe", "tcp://*:4"), address("probe", "tcp://*:5")
    every = (bind, *probes, more, replay, name, far, path, device)
    expected = [("bind", bind), ("bind 2", more), ("replay", replay), ("path", path)]
    assert list(Resource("x", Gate({}), every).claimed()) == expected
    assert list(Resource("x", Gate({}), every, shared="inherited").claimed()) == []


def test_the_variables_of_a_template_are_torchruns_names_the_coordinates_and_the_sizes() -> None:
    assert JOB.variables(6) == {
        "pp": 1,
        "tp": 2,
        "attn_dp": 1,
        "attn_tp": 0,
        "pp_size": 2,
        "tp_size": 4,
        "attn_dp_size": 2,
        "attn_tp_size": 2,
        "rank": 6,
        "world_size": 8,
        "nnodes": 2,
        "node_rank": 1,
        "local_rank": 2,
        "local_world_size": 4,
    }


@given(st.data())
def test_the_local_rank_counts_through_the_host(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    rank = data.draw(ranks(topology))
    found = Job(topology).variables(rank)
    host = topology.hosts[found["node_rank"]]
    assert host is topology.host_of(rank)
    assert host.ranks[found["local_rank"]] == rank
    assert found["local_world_size"] == len(host.ranks)
    assert topology.rank({name: found[name] for name in topology.axes}) == rank


def test_a_rank_on_several_hosts_has_the_variables_of_the_one_that_is_asked_for() -> None:
    job = Job(Topology({"tp": 3}, hosts={"a": [0, 1], "b": [2, 1]}))
    assert [job.variables(1, node)["node_rank"] for node in (0, 1)] == [0, 1]
    assert job.variables(1)["node_rank"] == 0


def test_a_rank_on_no_host_has_no_local_names() -> None:
    found = Job(Topology({"tp": 4}, hosts={"a": [0, 1]})).variables(3)
    assert found == {"tp": 3, "tp_size": 4, "rank": 3, "world_size": 4, "nnodes": 1}


def test_a_job_is_a_value() -> None:
    for other in (pickle.loads(pickle.dumps(JOB)), copy.deepcopy(JOB)):
        assert other == JOB
        assert hash(other) == hash(JOB)
    assert hash(KV_EVENTS) == hash(copy.deepcopy(KV_EVENTS))
    assert Job(JOB.topology) != JOB
    assert JOB.facts != HostFacts()


def test_nothing_changes_afterwards_not_even_through_what_was_passed_in() -> None:
    axes, addresses = {"dp": 2}, {"0": ("10.0.0.1",)}
    consumer, facts = Consumer(Template("x"), axes=axes), HostFacts(addresses=addresses)
    axes["dp"], addresses["0"] = 3, ()
    assert (consumer.axes, facts.addresses) == ({"dp": 2}, {"0": ("10.0.0.1",)})
    for value, name in (
        (JOB, "topology"),
        (KV_EVENTS, "owner"),
        (KV_EVENTS.addresses[0], "role"),
        (consumer, "axes"),
        (facts, "ephemeral"),
        (ReservedPorts(1, 2, "x"), "holder"),
    ):
        with pytest.raises(AttributeError):
            setattr(value, name, None)
        with pytest.raises(AttributeError):
            delattr(value, name)
    with pytest.raises(TypeError):
        consumer.axes["dp"] = 3  # type: ignore[index]
    with pytest.raises(TypeError):
        facts.addresses["0"] = ()  # type: ignore[index]
