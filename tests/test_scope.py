"""Exactly one owner in each group, the same by every question, and the groups that torch and Megatron make."""

from __future__ import annotations

import copy
import pickle
import warnings
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.errors import ScopeError, TopologyError, UnknownAxisError
from rankbind.scope import Gate, Group, Scope
from rankbind.topology import Topology, View

from .support.outcome import outcome
from .support.topologies import ranks, topologies

PR29044 = Topology({"pp": 2, "tp": 4}, {"attention": View("tp", {"attn_dp": 2, "attn_tp": 2})})


@st.composite
def scopes(draw: st.DrawFn, topology: Topology) -> Scope:
    """A scope that `topology` has."""
    if topology.sizes and draw(st.integers(0, 4)):
        names = draw(st.sets(st.sampled_from(sorted(topology.sizes)), min_size=1, max_size=3))
        try:
            topology.factors(names)
        except ScopeError:
            names = {draw(st.sampled_from(sorted(topology.sizes)))}
        group: Any = draw(st.permutations(sorted(names)))
        size = prod(topology.sizes[name] for name in names)
    else:
        group = draw(st.sampled_from(["world", "host"]))
        size = topology.size if group == "world" else min(len(host.ranks) for host in topology.hosts)
    return Scope(group, draw(st.integers(-size, size - 1)))


@st.composite
def scoped(draw: st.DrawFn) -> tuple[Topology, Scope]:
    topology = draw(topologies())
    return topology, draw(scopes(topology))


# ---- what a scope promises


def test_the_forgotten_axis_of_pr_29044() -> None:
    """Without pp in the group, both stages own: two publishers bind one port."""
    assert Scope("attn_tp").owners(PR29044) == (0, 2, 4, 6)
    assert Scope(("pp", "attn_tp")).owners(PR29044) == (0, 2)
    assert Scope(("pp", "attn_tp")).identity(PR29044) == ("attn_dp",)
    assert Gate({"attn_tp": 0}).owners(PR29044) == (0, 2, 4, 6)


def test_the_last_member_the_world_and_each_host() -> None:
    topology = Topology({"pp": 2, "tp": 4}, hosts={"a": [5, 0, 1], "b": [2, 3, 4, 6, 7]})
    assert Scope("pp", -1).owners(topology) == (4, 5, 6, 7)
    assert Scope("world", -1).owners(topology) == (7,)
    assert Scope("host").owners(topology) == (2, 5)
    assert Scope("host", -1).owners(topology) == (1, 7)
    assert Scope("host").groups(topology)[0] == Group((5, 0, 1), {"node_rank": 0})
    assert Scope("host").identity(topology) == Scope("world").identity(topology) == ()


def test_members_count_in_the_order_of_the_axes_whatever_the_order_in_the_group() -> None:
    topology = Topology({"tp": 8}, {"attention": View("tp", {"attn_dp": 2, "attn_cp": 2, "attn_tp": 2})})
    for group in (("attn_dp", "attn_cp"), ("attn_cp", "attn_dp")):
        assert [found.members for found in Scope(group).groups(topology)] == [(0, 2, 4, 6), (1, 3, 5, 7)]
        assert [Scope(group).group_rank(topology, {"tp": tp}) for tp in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
        assert Scope(group, 1).owners(topology) == (2, 3)


@given(scoped())
def test_groups_partition_the_world(case: tuple[Topology, Scope]) -> None:
    topology, scope = case
    members = [rank for group in scope.groups(topology) for rank in group.members]
    assert sorted(members) == list(range(topology.size))


@given(scoped())
def test_a_group_varies_along_its_own_axes_and_nothing_else(case: tuple[Topology, Scope]) -> None:
    topology, scope = case
    if scope.group in (("world",), ("host",)):
        return
    identity = scope.identity(topology)
    assert set(identity).isdisjoint(scope.group)
    groups = scope.groups(topology)
    assert len({tuple(group.fixed[name] for name in identity) for group in groups}) == len(groups)
    for group in groups:
        assert tuple(group.fixed) == identity
        assert len(group.members) == prod(topology.sizes[name] for name in scope.group)
        at = [topology.coordinates(rank) for rank in group.members]
        assert all(coordinates[name] == index for coordinates in at for name, index in group.fixed.items())
        order = [tuple(c[name] for name in topology.factors(scope.group) if name in scope.group) for c in at]
        assert order == sorted(set(order))


@given(scoped())
def test_exactly_one_owner_in_each_group_by_every_question(case: tuple[Topology, Scope]) -> None:
    topology, scope = case
    owners = set(scope.owners(topology))
    groups = scope.groups(topology)
    assert len(owners) == len(groups)
    for group in groups:
        assert len(owners & set(group.members)) == 1
        for position, rank in enumerate(group.members):
            at = topology.coordinates(rank)
            assert scope.owner_of(topology, at) in owners & set(group.members)
            assert scope.is_owner(topology, at) == (rank in owners)
            assert scope.group_rank(topology, at) == scope.group_rank(topology, {"rank": rank}) == position


@given(scoped())
def test_every_rank_knows_which_group_it_is_in(case: tuple[Topology, Scope]) -> None:
    topology, scope = case
    for group in scope.groups(topology):
        for rank in group.members:
            assert scope.group_of(topology, topology.coordinates(rank)) == group.fixed
            assert scope.group_of(topology, {"rank": rank}) == group.fixed


def test_which_group_it_is_in_takes_only_the_coordinates_that_tell() -> None:
    scope = Scope(("pp", "attn_tp"))
    assert scope.group_of(PR29044, {"attn_dp": 1}) == scope.group_of(PR29044, {"tp": 3}) == {"attn_dp": 1}
    assert Scope("world").group_of(PR29044, {}) == {}
    with pytest.raises(UnknownAxisError, match="axis attn_dp"):
        scope.group_of(PR29044, {"pp": 0})
    with pytest.raises(UnknownAxisError, match="did you mean tp"):
        scope.group_of(PR29044, {"ttp": 0})
    with pytest.raises(TopologyError, match="rank 3 is placed on no host"):
        Scope("host").group_of(Topology({"tp": 4}, hosts={"a": [0, 1]}), {"tp": 3})
    with pytest.raises(ScopeError, match="rank 4 is outside the group"):
        Scope("tp", 4).group_of(PR29044, {"rank": 0})


@given(st.data())
def test_part_of_the_coordinates_gives_the_same_answer_or_names_what_is_missing(data: st.DataObject) -> None:
    topology, scope = data.draw(scoped())
    at = topology.coordinates(data.draw(ranks(topology)))
    part = {name: at[name] for name in data.draw(st.sets(st.sampled_from(sorted(at))))}
    answer = outcome(lambda: scope.is_owner(topology, part), UnknownAxisError, TopologyError)
    if isinstance(answer, UnknownAxisError):
        assert answer.axis in scope.group
        assert answer.axis not in topology.complete(part)
        assert f"axis {answer.axis} decides who owns" in str(answer)
    elif isinstance(answer, TopologyError):
        assert scope.group in (("world",), ("host",))
        assert not set(topology.axes) <= set(topology.complete(part))
    else:
        assert answer == scope.is_owner(topology, at)


@given(st.data())
def test_only_the_groups_axes_are_needed(data: st.DataObject) -> None:
    topology, scope = data.draw(scoped())
    if scope.group in (("world",), ("host",)):
        return
    at = topology.coordinates(data.draw(ranks(topology)))
    assert scope.is_owner(topology, {name: at[name] for name in scope.group}) == scope.is_owner(topology, at)


def test_the_group_follows_from_the_axis_that_a_view_cuts_but_not_from_less() -> None:
    scope = Scope(("pp", "attn_tp"))
    assert scope.is_owner(PR29044, {"pp": 0, "tp": 2})
    assert not scope.is_owner(PR29044, {"pp": 0, "tp": 3})
    with pytest.raises(UnknownAxisError, match=r"axis pp decides who owns and is not known; given were \{'tp': 2\}"):
        scope.is_owner(PR29044, {"tp": 2})
    with pytest.raises(UnknownAxisError, match="given were none"):
        scope.is_owner(PR29044, {})


def test_whoever_claims_first_may_be_anybody() -> None:
    scope = Scope("tp", "any")
    assert scope.owners(PR29044) == tuple(range(8))
    assert scope.is_owner(PR29044, {})
    assert scope.group_rank(PR29044, {"tp": 2}) == 2
    with pytest.raises(ScopeError, match="no owner before one of them claims it"):
        scope.owner_of(PR29044, {"rank": 0})
    with pytest.raises(UnknownAxisError):
        scope.is_owner(PR29044, {"tpp": 0})


# ---- what the topology does not have


@pytest.mark.parametrize("rank", [4, -5])
def test_an_owner_outside_its_group_is_an_error_and_never_a_silent_no(rank: int) -> None:
    scope = Scope("tp", rank)
    for ask in (
        lambda: scope.validate(PR29044),
        lambda: scope.owners(PR29044),
        lambda: scope.is_owner(PR29044, {"rank": 0}),
        lambda: scope.owner_of(PR29044, {"rank": 0}),
        lambda: scope.group_rank(PR29044, {"rank": 0}),
    ):
        with pytest.raises(ScopeError, match=rf"rank {rank} is outside the group: a group of tp 4 has size 4, .* 3"):
            ask()


def test_an_owner_that_only_some_hosts_have() -> None:
    topology = Topology({"tp": 4}, hosts=[3, 1])
    with pytest.raises(ScopeError, match="rank 1 is outside the group: host 1 has size 1, its only rank is 0"):
        Scope("host", 1).owners(topology)
    with pytest.raises(ScopeError, match="host 1 has size 0, it is empty"):
        Scope("host").validate(Topology({"tp": 4}, hosts=[4, 0]))


def test_an_undeclared_axis_is_an_error_with_the_nearest_one() -> None:
    for scope in (Scope(("pp", "atn_tp")), Scope("atn_tp", "any")):
        with pytest.raises(UnknownAxisError, match="unknown axis 'atn_tp'; did you mean attn_tp"):
            scope.validate(PR29044)
    with pytest.raises(UnknownAxisError, match="unknown axis 'atn_tp'"):
        Scope("tp").is_owner(PR29044, {"tp": 0, "atn_tp": 0})


def test_coordinates_that_contradict_each_other_own_nothing() -> None:
    with pytest.raises(TopologyError, match="contradict"):
        Scope("attn_tp").is_owner(PR29044, {"tp": 1, "attn_tp": 0})


def test_a_rank_on_no_host_has_no_owner_of_its_host() -> None:
    topology = Topology({"tp": 4}, hosts={"a": [0, 1]})
    for ask in (Scope("host").owner_of, Scope("host").is_owner, Scope("host").group_rank):
        with pytest.raises(TopologyError, match="rank 3 is placed on no host"):
            ask(topology, {"tp": 3})
    assert Scope("host").owners(topology) == (0,)


@pytest.mark.parametrize(
    ("group", "rank", "message"),
    [
        ((), 0, "at least one axis"),
        (("tp", "tp"), 0, "names an axis twice"),
        (("world", "tp"), 0, "stand alone"),
        (("tp", "host"), 0, "stand alone"),
        ("tp", True, "an integer or"),
        ("tp", 1.0, "an integer or"),
        ("tp", "first", "an integer or"),
        ("tp", None, "an integer or"),
    ],
)
def test_a_scope_that_means_nothing(group: Any, rank: Any, message: str) -> None:
    with pytest.raises(ScopeError, match=message):
        Scope(group, rank)


# ---- hand-written gates


def test_a_gate_leaves_free_what_it_does_not_name() -> None:
    assert Gate({}).owners(PR29044) == tuple(range(8))
    assert Gate({"pp": -1, "attn_tp": 0}).owners(PR29044) == (4, 6)
    assert Gate({"tp": [0, -1]}).owners(PR29044) == (0, 3, 4, 7)
    assert Gate({"rank": [0, -1]}).owners(PR29044) == (0, 7)
    assert Gate({"local_rank": 0}).owners(Topology({"tp": 4}, hosts=[3, 1])) == (0, 3)
    assert Gate({"local_rank": 2}).owners(Topology({"tp": 4}, hosts=[3, 1])) == (2,)


@given(st.data())
def test_a_gate_answers_alike_for_all_and_for_one(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    sizes = {
        **topology.sizes,
        "rank": topology.size,
        "local_rank": max(len(host.ranks) for host in topology.hosts),
    }
    names = data.draw(st.sets(st.sampled_from(sorted(sizes))))
    gate = Gate({name: data.draw(st.lists(st.integers(-sizes[name], sizes[name] - 1), min_size=1)) for name in names})
    gate.validate(topology)
    owners = gate.owners(topology)
    assert owners == tuple(rank for rank in range(topology.size) if gate.is_owner(topology, {"rank": rank}))
    for rank in range(topology.size):
        at = {**topology.coordinates(rank), "rank": rank, "local_rank": topology.host_of(rank).ranks.index(rank)}
        size = {**sizes, "local_rank": len(topology.host_of(rank).ranks)}
        expected = all(
            any(at[name] in (value, value + size[name]) and value < size[name] for value in values)
            for name, values in gate.terms.items()
        )
        assert (rank in owners) == expected


@given(scoped())
def test_a_scope_is_the_gate_that_names_all_its_axes(case: tuple[Topology, Scope]) -> None:
    topology, scope = case
    if scope.group in (("world",), ("host",)):
        return
    first = Scope(scope.group, 0)
    assert first.owners(topology) == Gate(dict.fromkeys(scope.group, 0)).owners(topology)


def test_a_rank_placed_twice_passes_with_any_of_its_processes() -> None:
    topology = Topology({"tp": 4}, hosts={"a": [0, 1, 2], "b": [3, 0]})
    assert Gate({"local_rank": 0}).owners(topology) == (0, 3)
    assert Gate({"local_rank": 1}).owners(topology) == (0, 1)


def test_a_rank_on_no_host_passes_no_gate_on_its_local_rank() -> None:
    topology = Topology({"tp": 4}, hosts={"a": [0, 1]})
    assert Gate({"local_rank": [0, 1]}).owners(topology) == (0, 1)
    assert Gate({"tp": [0, 3]}).owners(topology) == (0, 3)


def test_a_gate_that_nobody_passes_says_so() -> None:
    for value in (4, -5, [0, 4]):
        with pytest.raises(ScopeError, match="lets nobody through: tp has size 4, its last rank is 3, or -1"):
            Gate({"tp": value}).validate(PR29044)
    with pytest.raises(ScopeError, match="its only rank is 0"):
        Gate({"x": 1}).validate(Topology({"x": 1}))
    with pytest.raises(ScopeError, match=r"tp = \[\] lets nobody through"):
        Gate({"tp": []}).validate(PR29044)
    assert Gate({"tp": 4}).owners(PR29044) == ()


def test_a_gate_on_an_axis_that_is_missing_or_not_declared() -> None:
    for ask in (Gate({"ttp": 0}).validate, Gate({"ttp": 0}).owners):
        with pytest.raises(UnknownAxisError, match="did you mean tp"):
            ask(PR29044)
    with pytest.raises(UnknownAxisError, match="did you mean tp"):
        Gate({"ttp": 0}).is_owner(PR29044, {"rank": 0})
    with pytest.raises(UnknownAxisError, match="axis pp decides who owns"):
        Gate({"tp": 0, "pp": 0}).is_owner(PR29044, {"tp": 1})
    with pytest.raises(TopologyError, match="do not say which pp"):
        Gate({"rank": 0}).is_owner(PR29044, {"tp": 1})


@pytest.mark.parametrize("value", [True, "0", 0.0, [0, None], [False]])
def test_a_gate_compares_integers(value: Any) -> None:
    with pytest.raises(ScopeError, match="compares tp with integers"):
        Gate({"tp": value})


# ---- values


def test_the_order_of_the_axes_in_a_group_does_not_matter() -> None:
    assert Scope(("pp", "tp")) == Scope(("tp", "pp"))
    assert hash(Scope(("pp", "tp"))) == hash(Scope(("tp", "pp")))
    assert Scope("tp") == Scope(["tp"])
    assert Scope("tp") != Scope("tp", 1)
    assert Scope("tp") != "tp"
    assert Gate({"tp": 0}) == Gate({"tp": [0]})
    assert hash(Gate({"tp": 0, "pp": 0})) == hash(Gate({"pp": 0, "tp": 0}))
    assert Gate({"tp": 0}) != {"tp": 0}


def test_scopes_gates_and_groups_are_values() -> None:
    for value, fields in (
        (Scope(("pp", "tp"), -1), ("group", "rank")),
        (Scope("tp", "any"), ("group", "rank", "anything")),
        (Gate({"tp": [0, 1]}), ("terms", "anything")),
        (Scope("tp").groups(PR29044)[1], ("members", "fixed")),
    ):
        for other in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), copy.copy(value)):
            assert other == value
            assert hash(other) == hash(value)
        for name in fields:
            with pytest.raises(AttributeError):
                setattr(value, name, 1)
            with pytest.raises(AttributeError):
                delattr(value, name)
    with pytest.raises(TypeError):
        Scope("tp").groups(PR29044)[0].fixed["pp"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        Gate({"tp": 0}).terms["tp"] = (1,)  # type: ignore[index]
    terms = {"tp": [0]}
    gate = Gate(terms)
    terms["tp"].append(1)
    assert gate.owners(PR29044) == (0, 4)


def test_they_say_what_they_are() -> None:
    assert repr(Scope("tp")) == "Scope(group='tp', rank=0)"
    assert repr(Scope(("pp", "tp"), "any")) == "Scope(group=('pp', 'tp'), rank='any')"
    assert str(Scope(("pp", "tp"), -1)) == "rank -1 of each (pp, tp) group"
    assert str(Scope("tp", "any")) == "any rank of each (tp) group"
    assert repr(Gate({"tp": 0, "pp": [0, 1]})) == "Gate({'tp': 0, 'pp': [0, 1]})"
    assert str(Gate({"tp": 0, "pp": [0, 1]})) == "tp = 0, pp = [0, 1]"
    assert str(Gate({})) == "every rank"


# ---- against others


def _torch() -> Any:
    # Its import alone warns about things that are not ours.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch", reason="torch is not installed: nothing to compare DeviceMesh with")


@pytest.mark.parametrize(
    ("axes", "joined"), [({"pp": 2, "dp": 3, "tp": 4}, ("dp", "tp")), ({"dp": 2, "cp": 2, "tp": 2}, ("dp", "cp"))]
)
def test_coordinates_and_groups_are_those_of_torchs_device_mesh(axes: dict[str, int], joined: tuple[str, ...]) -> None:
    _torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.testing._internal.distributed.fake_pg import FakeStore

        topology = Topology(axes)
        by_rank = {
            names: {rank: group.members for group in Scope(names).groups(topology) for rank in group.members}
            for names in (*((name,) for name in axes), joined)
        }
        for rank in range(topology.size):
            dist.init_process_group("fake", rank=rank, world_size=topology.size, store=FakeStore())
            try:
                mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
                at = topology.coordinates(rank)
                assert list(mesh.get_coordinate()) == [at[name] for name in axes]
                for name in axes:
                    assert mesh[name].mesh.tolist() == list(by_rank[name,][rank])
                    assert mesh.get_local_rank(name) == Scope(name).group_rank(topology, at)
                    assert dist.get_process_group_ranks(mesh.get_group(name)) == list(by_rank[name,][rank])
                flat = mesh[joined]._flatten("joined")
                assert flat.mesh.tolist() == list(by_rank[joined][rank])
                assert flat.get_local_rank() == Scope(joined).group_rank(topology, at)
            finally:
                dist.destroy_process_group()


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-pp-ep-dp", "tp-ep-dp-pp", "pp-dp-tp"])
def test_groups_are_those_of_megatrons_rank_generator(order: str) -> None:
    """Megatron's ``--use-tp-pp-dp-mapping`` and its default name the innermost axis first; a group is a set of axes."""
    torch = _torch()
    sizes = {"tp": 2, "cp": 2, "ep": 2, "dp": 3, "pp": 2}
    outermost_first = order.split("-")[::-1]
    topology = Topology({name: sizes[name] for name in outermost_first})
    grid = torch.arange(topology.size).view([sizes[name] for name in outermost_first])
    for token in ("tp", "pp", "dp", "tp-pp", "tp-dp", "ep-dp", "cp-dp", "tp-cp", "tp-ep-pp", "tp-cp-dp"):
        if not set(token.split("-")) <= set(outermost_first):
            continue
        inside = [at for at, name in enumerate(outermost_first) if name in token.split("-")]
        outside = [at for at in range(len(outermost_first)) if at not in inside]
        width = prod(grid.shape[at] for at in inside)
        expected = grid.permute(*outside, *inside).reshape(-1, width).tolist()
        assert [list(group.members) for group in Scope(token.split("-")).groups(topology)] == expected


def test_groups_are_those_of_arange_view_and_transpose_for_expert_parallelism() -> None:
    """vLLM's line for its EP group: ``all_ranks.transpose(1, 2).reshape(-1, dp * pcp * tp)``."""
    torch = _torch()
    dp, pp, pcp, tp = 3, 2, 2, 4
    topology = Topology(
        {"dp": dp, "pp": pp, "pcp": pcp, "tp": tp}, {"expert": View(("dp", "pcp", "tp"), {"ep": dp * pcp * tp})}
    )
    grid = torch.arange(topology.size).view(dp, pp, pcp, tp)
    expected = grid.transpose(0, 1).reshape(-1, dp * pcp * tp).tolist()
    assert [list(group.members) for group in Scope("ep").groups(topology)] == expected
