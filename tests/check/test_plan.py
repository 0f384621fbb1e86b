"""A job expanded over every rank of every host: who owns, who takes which address, who dials."""

from __future__ import annotations

import pytest

from rankbind.check.plan import Binding

from ..support.findings import JOB, codes, finding, findings, plan, underlined


def taken(text: str) -> list[tuple[str, int, int, str]]:
    return [(b.address.role, b.rank, b.node, b.text) for b in plan(text).bindings]


def test_every_owner_takes_every_address() -> None:
    text = f"{JOB}owner = {{ attn_tp = 0 }}\nbind = 'tcp://*:{{5557 + attn_dp}}'\nreplay = 'tcp://*:{{6000 + rank}}'"
    assert plan(text).owners == {"kv": (0, 2, 4, 6)}
    assert taken(text) == [
        ("bind", 0, 0, "tcp://*:5557"),
        ("bind", 2, 0, "tcp://*:5558"),
        ("bind", 4, 0, "tcp://*:5557"),
        ("bind", 6, 0, "tcp://*:5558"),
        ("replay", 0, 0, "tcp://*:6000"),
        ("replay", 2, 0, "tcp://*:6002"),
        ("replay", 4, 0, "tcp://*:6004"),
        ("replay", 6, 0, "tcp://*:6006"),
    ]


def test_what_a_template_may_say() -> None:
    names = "{rank}.{local_rank}.{node_rank}.{world_size}.{local_world_size}.{nnodes}.{tp_size}.{attn_dp_size}.{pp}"
    text = f"{JOB}owner = {{ rank = 6 }}\nname = '{names}'\n[hosts]\nblocks = [5, 3]"
    assert [row[3] for row in taken(text)] == ["6.1.1.8.3.2.4.2.1"]


def test_uneven_hosts() -> None:
    text = f"{JOB}owner = {{ local_rank = 0 }}\nbind = 'tcp://*:5557'\n[hosts]\nblocks = [5, 3]"
    assert taken(text) == [("bind", 0, 0, "tcp://*:5557"), ("bind", 5, 1, "tcp://*:5557")]
    assert codes(text) == []


def test_a_rank_placed_twice_takes_its_addresses_twice_and_one_placed_nowhere_never() -> None:
    text = f"{JOB}owner = {{ tp = 0 }}\nbind = 'tcp://*:{{6000 + node_rank}}'\n[hosts.ranks]\na = '0-3'\nb = '0-2'"
    assert taken(text) == [("bind", 0, 0, "tcp://*:6000"), ("bind", 0, 1, "tcp://*:6001")]
    assert plan(text).owners == {"kv": (0, 4)}
    assert plan(text).nodes[0] == (0, 1)
    assert plan(text).nodes[4] == ()


def test_an_election_is_known_by_its_group() -> None:
    text = f"{JOB}singleton_per = {{ group = 'tp', rank = 'any' }}\nbind = 'tcp://*:{{5557 + pp}}'"
    elections: dict[int | None, set[int]] = {}
    for binding in plan(text).bindings:
        elections.setdefault(binding.election, set()).add(binding.rank)
    assert list(elections.values()) == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert None not in elections


def test_the_sockets_options_reach_the_endpoint() -> None:
    (binding,) = plan(f"{JOB}owner = {{ rank = 0 }}\nbind = 'tcp://[::]:1'\nipv6 = true\nv6only = true").bindings
    assert isinstance(binding, Binding)
    assert binding.endpoint is not None
    assert (binding.endpoint.ipv6, binding.endpoint.v6only) == (True, True)


def test_who_dials() -> None:
    text = f"""{JOB}owner = {{ tp = 0 }}
bind = "tcp://*:{{5557 + pp}}"
connect = [
  {{ to = "tcp://h:{{5557 + pp}}", owner = {{ tp = -1 }} }},
  {{ to = "tcp://h:{{5557 + r + pp_size - 2}}", axes = {{ r = 2 }} }},
]
"""
    rows = [(dict(d.coordinates), d.rank, d.node, str(d.endpoint)) for d in plan(text).dialled]
    assert [(row[1:]) for row in rows[:2]] == [(3, 0, "tcp://h:5557"), (7, 0, "tcp://h:5558")]
    assert rows[2:] == [({"r": 0}, None, None, "tcp://h:5557"), ({"r": 1}, None, None, "tcp://h:5558")]


@pytest.mark.parametrize(
    "said",
    [
        "singleton_per = { group = 'tq' }",
        "singleton_per = { group = 'tp', rank = 4 }",
        "owner = { tq = 0 }",
        "owner = {}\nbind = 'tcp://*:{tq}'",
        "owner = {}\nbind = 'tcp://*:{5557 // tp}'",
        "owner = {}\nconnect = 'tcp://h:{tq}'",
        "owner = {}\nconnect = 'tcp://h:{5557 // tp}'",
        "owner = {}\nconnect = { to = 'tcp://h:1', owner = { tq = 0 } }",
    ],
)
def test_what_cannot_be_told_is_marked_and_nothing_is_concluded_from_it(said: str) -> None:
    """An undeclared axis must not also look like a consumer that dials nobody."""
    text = f"{JOB}{said}"
    assert plan(text).incomplete == {"kv"}
    assert not {"RB210", "RB211", "RB101"}.intersection(codes(text))
    assert codes(text)


def test_an_address_without_a_value_on_some_rank() -> None:
    text = f"{JOB}owner = {{ attn_tp = 0 }}\nbind = 'tcp://*:{{5557 // attn_dp}}'"
    found = finding(text, "RB904")
    assert found.message == "resource kv: 'tcp://*:{5557 // attn_dp}' divides by zero on ranks 0, 4"
    assert underlined(found, text) == ["//"]
    assert found.facts == {"resource": "kv", "ranks": [0, 4]}


def test_an_address_that_is_none_on_some_rank() -> None:
    text = f"{JOB}owner = {{ tp = 0 }}\nbind = 'tcp://*:{{5600 + pp * 100}}-5650'"
    found = finding(text, "RB904")
    assert found.message == "resource kv: port range 5700-5650 ends before it begins on rank 4"
    assert underlined(found, text) == ["'tcp://*:{5600 + pp * 100}-5650'"]


def test_a_consumer_outside_the_job_that_cannot_be_told() -> None:
    text = JOB + "owner = {}\nbind = 'tcp://*:0'\nconnect = { to = 'tcp://h:{5557 // r}', axes = { r = 2 } }"
    found = finding(text, "RB904")
    assert found.message == "resource kv: 'tcp://h:{5557 // r}' divides by zero"
    assert found.facts == {"resource": "kv", "ranks": []}


def test_findings_are_in_the_order_of_the_file() -> None:
    text = f"""{JOB}owner = {{ tp = 0 }}
bind = "tcp://*:5557"
[resources.b]
owner = {{ tq = 0 }}
[resources.c]
owner = {{}}
with = "kv"
[hosts.ranks]
a = "0-6"
"""
    found = findings(text)
    assert [f.code for f in found] == ["RB201", "RB103", "RB401", "RB601"]
    assert [f.labels[0].span.line for f in found] == sorted(f.labels[0].span.line for f in found)
