"""Coordinates are mixed-radix arithmetic, views are other factorisations of it, and nothing about them can change."""

from __future__ import annotations

import copy
import itertools
import pickle
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.errors import (
    ConfigError,
    EndpointError,
    IdentityError,
    RankbindError,
    ScopeError,
    TemplateError,
    TopologyError,
    UnknownAxisError,
)
from rankbind.topology import MAX_RANKS, RESERVED_NAMES, Host, Topology, View, nearest

from .support.topologies import ranks, topologies

SGLANG = Topology(
    {"pp": 2, "tp": 8},
    {
        "attention": View("tp", {"attn_dp": 2, "attn_cp": 2, "attn_tp": 2}),
        "moe": View("tp", {"moe_dp": 1, "moe_ep": 4, "moe_tp": 2}),
    },
)


# ---- arithmetic


def test_the_first_axis_is_the_outermost() -> None:
    assert Topology({"pp": 2, "tp": 4}).coordinates(6) == {"pp": 1, "tp": 2}
    assert Topology({"tp": 4, "pp": 2}).coordinates(6) == {"tp": 3, "pp": 0}


def test_sglangs_views_of_one_tensor_parallel_group() -> None:
    assert SGLANG.coordinates(8 + 6) == {
        "pp": 1,
        "tp": 6,
        "attn_dp": 1,
        "attn_cp": 1,
        "attn_tp": 0,
        "moe_dp": 0,
        "moe_ep": 3,
        "moe_tp": 0,
    }


def test_expert_parallelism_over_axes_that_are_no_neighbours() -> None:
    """vLLM: one expert-parallel group for each pipeline stage, over dp x tp with pp between them."""
    topology = Topology({"dp": 2, "pp": 2, "tp": 2}, {"expert": View(("dp", "tp"), {"ep": 4})})
    assert [topology.coordinates(rank)["ep"] for rank in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]


def test_the_order_in_of_is_the_order_of_counting() -> None:
    topology = Topology({"dp": 2, "tp": 3}, {"turned": View(("tp", "dp"), {"t": 6})})
    for rank in range(6):
        at = topology.coordinates(rank)
        assert at["t"] == at["tp"] * 2 + at["dp"]


def test_a_view_may_cut_the_axes_of_an_earlier_view() -> None:
    topology = Topology(
        {"tp": 8}, {"attention": View("tp", {"attn_dp": 2, "attn_tp": 4}), "dcp": View("attn_tp", {"out": 2, "dcp": 2})}
    )
    assert [topology.coordinates(rank)["dcp"] for rank in range(8)] == [0, 1] * 4
    assert topology.rank({"attn_dp": 1, "out": 1, "dcp": 0}) == 6


def test_a_job_of_one_process_without_axes() -> None:
    topology = Topology({})
    assert (topology.size, topology.coordinates(0), topology.rank({}), topology.host_of(0)) == (
        1,
        {},
        0,
        Host("0", (0,)),
    )


@given(topologies())
def test_coordinates_and_rank_are_inverse(topology: Topology) -> None:
    seen = set()
    for rank in range(topology.size):
        at = topology.coordinates(rank)
        assert set(at) == set(topology.sizes)
        assert all(0 <= at[name] < size for name, size in topology.sizes.items())
        assert topology.rank(at) == topology.rank({name: at[name] for name in topology.axes}) == rank
        assert topology.rank({"rank": rank}) == topology.rank({"rank": rank, **at}) == rank
        seen.add(tuple(at[name] for name in topology.axes))
    assert seen == set(itertools.product(*(range(size) for size in topology.axes.values())))


@given(topologies())
def test_each_view_is_a_bijection_of_what_it_cuts(topology: Topology) -> None:
    for view in topology.views.values():
        pairs = {
            (tuple(at[name] for name in view.of), tuple(at[name] for name in view.axes))
            for at in map(topology.coordinates, range(topology.size))
        }
        assert len(pairs) == prod(view.axes.values()) == prod(topology.sizes[name] for name in view.of)
        assert len({whole for whole, _ in pairs}) == len({parts for _, parts in pairs}) == len(pairs)
        # In the order of both: counting through the parts counts through the whole.
        assert [parts for _, parts in sorted(pairs)] == sorted(parts for _, parts in pairs)


@given(st.data())
def test_whatever_follows_from_some_coordinates_is_true_and_enough_of_them_give_the_rank(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    rank = data.draw(ranks(topology))
    at = topology.coordinates(rank)
    some = data.draw(st.sets(st.sampled_from(sorted(at))))
    known = topology.complete({name: at[name] for name in some})
    assert some <= set(known)
    assert known == {name: at[name] for name in known}
    if set(topology.axes) <= set(known):
        assert topology.rank({name: at[name] for name in some}) == rank
    else:
        with pytest.raises(TopologyError, match="do not say which") as caught:
            topology.rank({name: at[name] for name in some})
        assert caught.value.axis in topology.axes
        assert caught.value.axis not in known


@given(st.data())
def test_a_factorisation_with_given_axes_names_every_rank_once(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    wanted = data.draw(st.sets(st.sampled_from(sorted(topology.sizes)), min_size=1))
    try:
        leaves = topology.factors(sorted(wanted))
    except ScopeError:
        return
    assert wanted <= set(leaves)
    for axes in (topology.axes, *(view.axes for view in topology.views.values())):
        kept = [name for name in axes if name in leaves]
        assert [name for name in leaves if name in axes] == kept
    assert prod(topology.sizes[name] for name in leaves) == topology.size
    keys = {tuple(topology.coordinates(rank)[name] for name in leaves) for rank in range(topology.size)}
    assert len(keys) == topology.size


# ---- what contradicts, what is missing


def test_coordinates_that_contradict_each_other_name_the_axis() -> None:
    with pytest.raises(TopologyError, match="contradict each other: attn_dp is both 1 and 0"):
        SGLANG.rank({"pp": 0, "tp": 3, "attn_dp": 1})
    with pytest.raises(TopologyError, match="contradict each other: pp is both 0 and 1"):
        SGLANG.rank({"rank": 3, "pp": 1})


def test_an_index_outside_its_axis_names_the_axis() -> None:
    for index in (-1, 2):
        with pytest.raises(TopologyError, match=r"outside axis attn_cp, which has indices 0\.\.1") as caught:
            SGLANG.complete({"attn_cp": index})
        assert caught.value.axis == "attn_cp"


def test_a_misspelt_axis_is_named_with_the_nearest_one() -> None:
    with pytest.raises(UnknownAxisError, match="unknown axis 'atn_tp'; did you mean attn_tp") as caught:
        SGLANG.complete({"atn_tp": 0})
    assert (caught.value.axis, caught.value.known) == ("atn_tp", tuple(SGLANG.sizes))
    with pytest.raises(UnknownAxisError, match="'zzz'; the axes are pp, tp, attn_dp"):
        SGLANG.check_names(["zzz"])
    with pytest.raises(UnknownAxisError, match="the axes are none"):
        Topology({}).check_names(["zzz"])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("tp_rank", "tp"),
        ("attn_dp_rank", "attn_dp"),
        ("TP", "tp"),
        ("pp_index", "pp"),
        ("atn_tp", "attn_tp"),
        ("q", None),
    ],
)
def test_engines_call_the_coordinate_on_an_axis_its_rank(written: str, meant: str | None) -> None:
    assert nearest(written, ["rank", "local_rank", "node_rank", *SGLANG.sizes]) == meant


def test_a_view_of_an_unknown_axis_names_those_there_are() -> None:
    with pytest.raises(TopologyError, match="view moe is of unknown axis 'dp'; the axes are pp, q"):
        Topology({"pp": 2, "q": 2}, {"moe": View("dp", {"ep": 2})})


def test_a_rank_that_does_not_exist() -> None:
    for rank in (-1, 16):
        with pytest.raises(TopologyError, match=rf"rank {rank} does not exist: .* 0\.\.15 \(pp 2 x tp 8\)"):
            SGLANG.coordinates(rank)
        with pytest.raises(TopologyError, match="does not exist"):
            SGLANG.rank({"rank": rank})


def test_axes_that_cut_one_axis_in_two_ways_span_no_group() -> None:
    for names in (("attn_tp", "moe_ep"), ("moe_ep", "attn_tp")):
        with pytest.raises(ScopeError, match="cut axis tp in two ways"):
            SGLANG.factors(names)
    for names in (("tp", "attn_tp"), ("attn_tp", "tp")):
        with pytest.raises(ScopeError, match="overlap: tp is already cut"):
            SGLANG.factors(names)


# ---- declarations that describe no set of ranks


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), "tp_size", "_size", "2tp", "t-p", "", "tp\n", "t\u0440"])
def test_a_name_that_no_axis_can_have(name: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology({name: 2})
    assert caught.value.axis == name
    with pytest.raises(TopologyError) as caught:
        Topology({"tp": 2}, {"v": View("tp", {name: 2})})
    assert caught.value.axis == name


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2", None])
def test_a_size_that_is_no_count_names_its_axis(size: object) -> None:
    with pytest.raises(TopologyError, match="axis pp needs a size of at least 1") as caught:
        Topology({"tp": 2, "pp": size})  # type: ignore[dict-item]
    assert caught.value.axis == "pp"


def test_a_view_that_does_not_divide_names_the_axis_and_both_products() -> None:
    with pytest.raises(
        TopologyError, match="view attention does not divide tp 8: attn_dp 3 x attn_tp 2 makes 6, not 8"
    ) as caught:
        Topology({"tp": 8}, {"attention": View("tp", {"attn_dp": 3, "attn_tp": 2})})
    assert caught.value.axis == "tp"


@pytest.mark.parametrize("parts", [{"a": 2, "b": 2}, {"a": 4, "b": 4}, {"a": 1}, {}])
def test_a_view_leaves_no_rank_out_and_makes_none_up(parts: dict[str, int]) -> None:
    with pytest.raises(TopologyError, match=r"view v does not divide dp 2 x tp 4: .* makes [0-9]+, not 8"):
        Topology({"dp": 2, "tp": 4}, {"v": View(("dp", "tp"), parts)})


@pytest.mark.parametrize(
    ("view", "message", "axis"),
    [
        (View("frist_a", {"a": 8}), "of unknown axis 'frist_a'; did you mean first_a", "frist_a"),
        (View("zzz", {"a": 8}), "of unknown axis 'zzz'; the axes are dp, tp, first_a, first_b$", "zzz"),
        (View((), {"a": 1}), "cuts no axis", None),
        (View(("dp", "tp", "tp"), {"a": 8}), "names axis tp twice", "tp"),
        (View("tp", {"dp": 8}), "axis dp is declared twice", "dp"),
        (View("tp", {"tp": 8}), "axis tp is declared twice", "tp"),
        (View("tp", {"first_a": 8}), "axis first_a is declared twice", "first_a"),
        (View(("dp", "first_a"), {"a": 8}), "mixes axes of different views", "dp"),
    ],
)
def test_a_view_that_cannot_be_names_the_culprit(view: View, message: str, axis: str | None) -> None:
    first = View("tp", {"first_a": 4, "first_b": 2})
    with pytest.raises(TopologyError, match=message) as caught:
        Topology({"dp": 2, "tp": 8}, {"first": first, "second": view})
    assert caught.value.axis == axis


def test_more_ranks_than_can_be_proved_one_by_one() -> None:
    Topology({"dp": MAX_RANKS})
    with pytest.raises(TopologyError, match=f"make {MAX_RANKS * 2} ranks"):
        Topology({"dp": MAX_RANKS, "tp": 2})


# ---- placement


def test_blocks_uneven_blocks_and_lists_of_ranks() -> None:
    assert [host.ranks for host in Topology({"tp": 4}, hosts=2).hosts] == [(0, 1), (2, 3)]
    assert [host.ranks for host in Topology({"tp": 4}, hosts=[3, 1]).hosts] == [(0, 1, 2), (3,)]
    listed = Topology({"tp": 4}, hosts={"b": [3, 0], "a": [1, 2]})
    assert listed.hosts == (Host("b", (3, 0)), Host("a", (1, 2)))
    assert listed.host_of(0).name == "b"


@given(topologies())
def test_a_sound_placement_runs_every_rank_once(topology: Topology) -> None:
    assert topology.unplaced == ()
    assert topology.placed_twice == {}
    for rank in range(topology.size):
        assert rank in topology.host_of(rank).ranks
        assert topology.hosts_of(rank) == (topology.host_of(rank),)


@given(topologies(sound=False))
def test_ranks_that_are_left_out_are_kept_to_be_shown(topology: Topology) -> None:
    placed = {rank for host in topology.hosts for rank in host.ranks}
    assert set(topology.unplaced) == set(range(topology.size)) - placed
    for rank in topology.unplaced:
        assert topology.hosts_of(rank) == ()
        with pytest.raises(TopologyError, match=f"rank {rank} is placed on no host"):
            topology.host_of(rank)


def test_a_rank_placed_twice_is_kept_to_be_shown() -> None:
    topology = Topology({"tp": 3}, hosts={"a": [0, 1, 1], "b": [1, 2]})
    a, b = topology.hosts
    assert topology.placed_twice == {1: (a, a, b)}
    with pytest.raises(TopologyError, match=r"rank 1 is placed on several hosts \(a, b\)"):
        topology.host_of(1)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (3, "8 ranks do not divide over 3 hosts"),
        (0, "at least 1 host"),
        ([8, 1], "the hosts run 9 ranks, but the topology has 8"),
        ([9, -1], "negative number"),
        ({"a": [0, 8]}, r"host a runs rank 8, but there are only ranks 0\.\.7"),
        ({"a": [-1]}, "host a runs rank -1"),
    ],
)
def test_a_placement_that_no_host_can_hold(hosts: object, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Topology({"tp": 8}, hosts=hosts)  # type: ignore[arg-type]


# ---- values


@given(topologies(sound=False))
def test_copies_are_equal_and_hash_alike(topology: Topology) -> None:
    for other in (pickle.loads(pickle.dumps(topology)), copy.deepcopy(topology), copy.copy(topology)):
        assert other == topology
        assert hash(other) == hash(topology)
        assert other.coordinates(topology.size - 1) == topology.coordinates(topology.size - 1)


def test_the_order_of_axes_and_the_placement_are_part_of_the_value() -> None:
    assert Topology({"pp": 2, "tp": 4}) != Topology({"tp": 4, "pp": 2})
    assert Topology({"tp": 4}, hosts=2) != Topology({"tp": 4})
    assert Topology({"tp": 4}, hosts=2) == Topology({"tp": 4}, hosts=[2, 2])
    assert View("tp", {"a": 2, "b": 1}) != View("tp", {"b": 1, "a": 2})
    assert Topology({"tp": 4}) != {"tp": 4}
    assert View("tp", {"a": 2}) != ("tp", {"a": 2})


def test_nothing_changes_afterwards_not_even_through_what_was_passed_in() -> None:
    axes, parts, of, placed = {"dp": 2, "tp": 4}, {"a": 4}, ["tp"], {"h": [0, 1]}
    views = {"v": View(of, parts)}
    topology = Topology(axes, views, placed)
    before = topology.coordinates(5), topology.hosts
    axes["tp"], parts["a"] = 9, 9
    of.append("dp")
    placed["h"].append(2)
    views.clear()
    assert (topology.coordinates(5), topology.hosts) == before
    for value in (topology, View("tp", {"a": 2})):
        for name in ("axes", "_axes", "anything"):
            with pytest.raises(AttributeError):
                setattr(value, name, {})
            with pytest.raises(AttributeError):
                delattr(value, name)
    with pytest.raises(TypeError):
        topology.axes["tp"] = 9  # type: ignore[index]
    with pytest.raises(AttributeError):
        topology.hosts[0].name = "x"  # type: ignore[misc]


def test_a_repr_shows_what_it_is() -> None:
    assert repr(Topology({"tp": 4})) == "Topology({'tp': 4})"
    assert repr(Topology({"tp": 4}, {"v": View("tp", {"a": 4})}, hosts=2)) == (
        "Topology({'tp': 4}, views={'v': View(of=('tp',), axes={'a': 4})}, hosts={'0': 2 ranks, '1': 2 ranks})"
    )


@pytest.mark.parametrize(
    "error",
    [
        TopologyError("m", "tp"),
        UnknownAxisError("m", "tp", ("pp",)),
        ScopeError("m"),
        TemplateError("m", 3, 2),
        EndpointError("m", 3, 2),
        ConfigError("m", ("f",)),
        IdentityError("m"),
    ],
)
def test_errors_survive_the_way_out_of_a_child_process(error: RankbindError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))
    assert isinstance(error, RankbindError)
