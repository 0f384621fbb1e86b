"""RB101 to RB104: every resource has an owner, only one, and one that the topology has."""

from __future__ import annotations

import re
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.check.ownership import free_along, free_axes
from rankbind.errors import ScopeError
from rankbind.topology import Topology, View

from ..support.findings import JOB, codes, failing, finding, findings, underlined
from ..support.topologies import topologies


def kv(text: str) -> str:
    return JOB + text


def repaired(text: str, fix: str) -> str:
    """`text` with the owner that a fix suggests."""
    found = re.match(r"(singleton_per|owner) = \{.*?\}", fix)
    assert found
    return re.sub(r"^(owner|singleton_per) = .*$", found[0], text, count=1, flags=re.MULTILINE)


# ---- nobody


@pytest.mark.parametrize("owner", ["owner = {}", "owner = { tp = -1 }", "singleton_per = { group = 'pp', rank = -1 }"])
def test_silent_when_there_are_owners_and_nothing_more_is_promised(owner: str) -> None:
    assert codes(kv(owner)) == []


def test_two_terms_that_no_rank_meets_together() -> None:
    text = kv("owner = { tp = 0, attn_dp = 1 }")
    found = finding(text, "RB101")
    assert found.message == "nobody owns kv: no rank passes tp = 0, attn_dp = 1"
    assert found.facts == {"resource": "kv", "owners": 0}
    assert underlined(found, text) == ["{ tp = 0, attn_dp = 1 }"]


def test_a_value_that_nobody_owns() -> None:
    text = kv("owner = { pp = 0, tp = 0 }\nonce_per = ['attn_dp']")
    found = finding(text, "RB101")
    assert codes(text) == ["RB101"]
    assert found.message == "nobody owns kv for attn_dp 1"
    assert found.facts == {"resource": "kv", "once_per": ["attn_dp"], "missing": [{"attn_dp": 1}]}
    assert underlined(found, text) == ["{ pp = 0, tp = 0 }", "['attn_dp']"]
    assert codes(repaired(text, str(found.fix))) == []


def test_nobody_for_many_values_is_folded() -> None:
    found = finding(kv("owner = { rank = 0 }\nonce_per = ['pp', 'tp']"), "RB101")
    assert found.message == "nobody owns kv for pp 0 tp 1, pp 0 tp 2, pp 0 tp 3, pp 1 tp 0, ... (7 in all)"
    assert len(found.facts["missing"]) == 7


def test_a_job_that_promises_one_and_has_none() -> None:
    assert codes(kv("owner = { tp = 0, attn_dp = 1 }\nonce_per = []")) == ["RB101"]


# ---- several


@pytest.mark.parametrize(
    "said",
    [
        "singleton_per = { group = ['pp', 'attn_tp'] }\nonce_per = 'attn_dp'",
        "owner = { pp = 0, attn_tp = 1 }\nonce_per = 'attn_dp'",
        "owner = { rank = 0 }\nonce_per = []",
        "owner = {}\nonce_per = ['pp', 'tp']",
        "owner = {}\nonce_per = ['pp', 'attn_dp', 'attn_tp']",
        "owner = { tp = 0 }\nonce_per = ['pp']",
    ],
)
def test_silent_when_each_value_has_one_owner(said: str) -> None:
    assert codes(kv(said)) == []


def test_several_own_though_no_port_clashes() -> None:
    """field.md, hardest 1: two hosts publish one stream, and the port plan is clean."""
    text = kv("owner = { attn_tp = 0 }\nonce_per = ['attn_dp']\nbind = 'tcp://*:{5557 + attn_dp}'\n[hosts]\ncount = 2")
    found = finding(text, "RB102")
    assert codes(text) == ["RB102"]
    assert "ranks 0, 4 for attn_dp 0" in found.message
    assert found.message.endswith("the owner is free along pp")
    assert found.facts == {
        "resource": "kv",
        "once_per": ["attn_dp"],
        "several": [
            {"coordinates": {"attn_dp": 0}, "ranks": [0, 4]},
            {"coordinates": {"attn_dp": 1}, "ranks": [2, 6]},
        ],
        "axes": ["pp"],
    }
    assert found.details == ("attn_dp 0: ranks 0, 4 on hosts 0, 1", "attn_dp 1: ranks 2, 6 on hosts 0, 1")
    assert underlined(found, text) == ["{ attn_tp = 0 }", "['attn_dp']"]
    assert found.fix == 'singleton_per = { group = ["pp", "attn_tp"], rank = 0 }'
    assert codes(repaired(text, found.fix)) == []


def test_several_in_many_groups_are_folded() -> None:
    text = "[axes]\ndp = 64\ntp = 2\n[resources.kv]\nowner = {}\nonce_per = 'dp'"
    found = finding(text, "RB102")
    assert "ranks 0, 1 for dp 0, and so for 63 more" in found.message
    assert found.details[-1] == "... and 60 more like these"
    assert len(found.details) == 5


def test_missing_and_several_at_once() -> None:
    text = kv("owner = { attn_dp = 0 }\nonce_per = ['attn_dp']")
    assert codes(text) == ["RB101", "RB102"]
    assert finding(text, "RB102").facts["axes"] == ["pp", "attn_tp"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # Whoever wins in a tp group serves its stage.
        ("singleton_per = { group = 'tp', rank = 'any' }\nonce_per = 'pp'", []),
        ("singleton_per = { group = 'world', rank = 'any' }\nonce_per = []", []),
        # Two groups elect one each, for what is to exist once.
        ("singleton_per = { group = 'tp', rank = 'any' }\nonce_per = []", ["RB102"]),
        ("singleton_per = { group = 'tp', rank = 'any' }\nonce_per = 'attn_dp'", ["RB101"]),
        # One winner cannot serve both stages.
        ("singleton_per = { group = 'world', rank = 'any' }\nonce_per = 'pp'", ["RB101"]),
    ],
)
def test_elections(said: str, expected: list[str]) -> None:
    assert codes(kv(said)) == expected


# ---- undeclared


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("singleton_per = { group = 'ppp' }", "ppp"),
        ("singleton_per = { group = ['pp', 'attn_tpp'] }", "attn_tpp"),
        ("singleton_per = { group = 'rank' }", "rank"),
        ("singleton_per = { group = 'attention' }", "attention"),
        ("owner = { ppp = 0 }", "ppp"),
        ("owner = { tp = 0, world_size = 1 }", "world_size"),
        ("owner = {}\nonce_per = ['pp', 'dp']", "dp"),
        ("owner = {}\nonce_per = 'rank'", "rank"),
        ("owner = {}\nonce_per = 'local_rank'", "local_rank"),
        ("owner = {}\nconnect = { to = 'tcp://h:1', owner = { dp = 0 } }", "dp"),
    ],
)
def test_an_axis_that_is_not_declared(said: str, name: str) -> None:
    text = kv(said)
    found = finding(text, "RB103")
    assert codes(text) == ["RB103"]
    assert f"unknown axis {name!r}" in found.message
    assert [shown.strip("'") for shown in underlined(found, text)] == [name]
    assert found.facts == {"resource": "kv", "axis": name, "axes": ["pp", "tp", "attn_dp", "attn_tp"]}


def test_did_you_mean() -> None:
    assert finding(kv("owner = { attn_tpp = 0 }"), "RB103").message.endswith("did you mean attn_tp?")


def test_all_undeclared_axes_of_all_resources_are_told() -> None:
    text = kv(
        "singleton_per = { group = ['a', 'tp', 'b'] }\n[resources.x]\nowner = { c = 0, rank = 0, local_rank = 0 }"
    )
    assert [found.facts["axis"] for found in findings(text)] == ["a", "b", "c"]


@pytest.mark.parametrize("role", ["bind", "replay", "name", "path"])
def test_names_in_a_template_that_are_not_declared(role: str) -> None:
    text = kv(f"owner = {{}}\n{role} = 'tcp://h:{{5557 + dp + tp + dpp + dp}}'")
    found = findings(text, "RB103")
    assert [f.facts["axis"] for f in found] == ["dp", "dpp"]
    assert [underlined(f, text) for f in found] == [["dp"], ["dpp"]]
    assert failing(text) == ["RB103", "RB103"]


def test_a_consumer_outside_the_job_has_names_of_its_own() -> None:
    outsider = "owner = { rank = 0 }\nbind = 'tcp://*:5557'\nconnect = { to = 'tcp://h:{@}', axes = { r = 1 } }"
    for name in ("5557 + r", "5556 + r_size", "5555 + pp_size", "5549 + world_size", "5556 + nnodes"):
        assert codes(kv(outsider.replace("@", name))) == []
    for name in ("pp", "rank", "local_rank", "node_rank", "attn_dp"):
        text = kv(outsider.replace("@", name))
        assert codes(text) == ["RB103"]
        assert underlined(finding(text, "RB103"), text) == [name]


# ---- outside


@pytest.mark.parametrize(
    ("said", "message", "under"),
    [
        ("singleton_per = { group = 'pp', rank = 2 }", "rank 2 is outside the group", "{ group = 'pp', rank = 2 }"),
        ("singleton_per = { group = ['pp', 'attn_tp'], rank = -5 }", "has size 4, the last is 3, or -1", None),
        ("singleton_per = { group = ['tp', 'attn_tp'] }", "overlap", None),
        ("owner = { pp = 2 }", "pp = 2 lets nobody through: pp has size 2, its last rank is 1, or -1", "{ pp = 2 }"),
        ("owner = { rank = 8 }", "rank = 8 lets nobody through", None),
        ("owner = { local_rank = 8 }", "local_rank = 8 lets nobody through", None),
        ("owner = { tp = [] }", "tp = [] lets nobody through", None),
    ],
)
def test_a_rank_that_the_group_does_not_have(said: str, message: str, under: str | None) -> None:
    text = kv(said)
    found = finding(text, "RB104")
    assert failing(text) == ["RB104"]
    assert message in found.message
    assert found.fix is None  # the message says which ranks there are
    assert under is None or underlined(found, text) == [under]


def test_the_mirror_of_the_forgotten_axis() -> None:
    """Case c12: written for the last stage, while pp is 1."""
    text = "[axes]\npp = 1\ntp = 4\n[resources.log]\nowner = { pp = 1, tp = 0 }\npath = 'sampler.log'"
    assert codes(text) == ["RB104"]
    assert finding(text, "RB104").facts == {"resource": "log", "owners": 0}


def test_an_index_outside_beside_one_inside() -> None:
    text = kv("owner = { tp = [0, 4] }\nonce_per = 'pp'")
    assert codes(text) == ["RB104"]
    assert finding(text, "RB104").facts == {"resource": "kv", "owners": 2}


def test_hosts_of_different_sizes_have_different_last_ranks() -> None:
    text = kv("singleton_per = { group = 'host', rank = 3 }\n[hosts]\nblocks = [5, 3]")
    assert "host 1 has size 3" in finding(text, "RB104").message
    assert codes(text.replace("rank = 3", "rank = -3")) == []


def test_a_consumer_that_nobody_is() -> None:
    text = kv("owner = { rank = 0 }\nbind = 'tcp://*:1'\nconnect = { to = 'tcp://h:1', owner = { tp = 4 } }")
    found = finding(text, "RB104")
    assert underlined(found, text) == ["{ tp = 4 }"]
    assert found.facts == {"resource": "kv"}


# ---- which axes tell ranks apart

SGLANG = Topology(
    {"pp": 2, "tp": 8},
    {
        "attention": View("tp", {"attn_dp": 2, "attn_cp": 2, "attn_tp": 2}),
        "moe": View("tp", {"moe_dp": 1, "moe_ep": 4, "moe_tp": 2}),
        "inner": View("attn_tp", {"a": 1, "b": 2}),
        "all": View(("pp", "tp"), {"ep": 16}),
    },
)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([0, 8], ("pp",)),
        ([0, 4], ("attn_dp",)),
        ([0, 2], ("attn_cp",)),
        ([0, 1], ("attn_tp",)),
        ([0, 2, 4, 6], ("moe_ep",)),
        ([0, 3], ("attn_cp", "attn_tp")),
        ([0, 1, 2, 3, 4, 5, 6, 7], ("tp",)),
        ([0, 9], ("pp", "attn_tp")),
        (range(16), ("ep",)),
        ([3], ()),
        ([3, 3], ()),
        ([], ()),
    ],
)
def test_the_closest_way_to_tell_ranks_apart(ranks: list[int], expected: tuple[str, ...]) -> None:
    assert free_axes(SGLANG, ranks) == expected


def test_what_differs_between_groups_only_is_not_free() -> None:
    """Ranks 0 and 8 share one port, ranks 4 and 12 another: the port tells 0 from 4."""
    assert free_along(SGLANG, [[0, 8], [4, 12]]) == ("pp",)
    assert free_along(SGLANG, [[0, 8], [0, 1]]) == ("pp", "attn_tp")


@given(st.data())
def test_free_axes_are_one_way_of_telling_and_tell_every_rank_apart(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    rank = st.integers(0, topology.size - 1)
    groups = data.draw(st.lists(st.lists(rank, min_size=1, max_size=6), min_size=1, max_size=4))
    free = free_along(topology, groups)
    leaves = topology.factors(free)
    assert list(free) == [name for name in leaves if name in free]
    for group in groups:
        rows = {other: topology.coordinates(other) for other in group}
        # The other axes of that way of telling are the same all over the group, so the free ones tell it apart.
        for name in set(leaves) - set(free):
            assert len({row[name] for row in rows.values()}) == 1
        assert len({tuple(row[name] for name in free) for row in rows.values()}) == len(rows)


@given(topologies(), st.data())
def test_no_single_view_tells_it_more_closely(topology: Topology, data: st.DataObject) -> None:
    group = data.draw(st.lists(st.integers(0, topology.size - 1), min_size=2, max_size=4))
    rows = [topology.coordinates(rank) for rank in group]

    def cost(leaves: tuple[str, ...]) -> int:
        return prod(topology.sizes[name] for name in leaves if len({row[name] for row in rows}) > 1)

    ours = prod(topology.sizes[name] for name in free_axes(topology, group))
    assert ours <= cost(tuple(topology.axes))
    assert all(ours <= cost(topology.factors(view.axes)) for view in topology.views.values())


# ---- the suggested owner is right


@given(st.data())
def test_the_suggested_scope_keeps_the_promise(data: st.DataObject) -> None:
    """Whatever the gate and the promise: with the suggested singleton_per both findings are gone."""
    sizes = data.draw(
        st.fixed_dictionaries({"dp": st.integers(1, 3), "pp": st.integers(1, 3), "cp": st.integers(1, 3)})
    )
    names = list(sizes)
    gate = data.draw(st.dictionaries(st.sampled_from(names), st.just(0), max_size=3))
    promise = data.draw(st.lists(st.sampled_from(names), unique=True))
    text = (
        "[axes]\n"
        + "".join(f"{name} = {size}\n" for name, size in sizes.items())
        + "[resources.kv]\nowner = {"
        + ", ".join(f"{name} = {value}" for name, value in gate.items())
        + f"}}\nonce_per = {promise!r}\n"
    )
    for found in findings(text, "RB101", "RB102"):
        if found.fix is not None:
            assert codes(repaired(text, found.fix)) == []
    owners = list(product(*(range(sizes[name]) for name in names if name not in gate)))
    values = prod(sizes[name] for name in promise)
    assert bool(codes(text)) == (len(owners) != values or any(sizes[name] > 1 for name in promise if name in gate))


def test_promises_that_no_scope_keeps_have_no_suggestion() -> None:
    with pytest.raises(ScopeError):
        SGLANG.factors(("attn_dp", "moe_ep"))
    views = (
        "[axes]\ntp = 4\n[views.a]\nof = 'tp'\naxes = { a = 2, b = 2 }\n[views.c]\nof = 'tp'\naxes = { c = 2, d = 2 }\n"
    )
    found = finding(f"{views}[resources.kv]\nowner = {{ a = 0 }}\nonce_per = ['a', 'c']", "RB101")
    assert found.fix is None
