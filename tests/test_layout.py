"""From groups back to axes: whatever topology made them, one is found that has exactly the same groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankbind import layout
from rankbind.errors import ScopeError, TopologyError
from rankbind.scope import Scope
from rankbind.topology import Topology, View

from .support.oracles import load
from .support.topologies import topologies

Groups = Mapping[str, Sequence[Sequence[int]]]


def groups_of(topology: Topology, names: Sequence[str]) -> dict[str, list[list[int]]]:
    return {name: [list(group.members) for group in Scope(name).groups(topology)] for name in names}


def explains(groups: Groups) -> Topology:
    """The topology that is found; it has exactly these groups, in their order."""
    found = Topology.from_groups(groups)
    for name, expected in groups.items():
        ours = [list(group.members) for group in Scope(name).groups(found)]
        assert sorted(ours) == sorted(map(list, expected)), (name, found)
    return found


def unexplained(groups: Groups) -> TopologyError | None:
    try:
        explains(groups)
    except TopologyError as error:
        return error
    return None


def refused(groups: Groups, error: TopologyError) -> bool:
    """Whether the two ranks that the error names are a reason."""
    found = re.search(r"ranks (\d+) and (\d+)", str(error))
    assert found is not None, error
    one, other = map(int, found.groups())
    if "at one place" in str(error):
        return all(
            next(group.index(one) for group in given if one in group)
            == next(group.index(other) for group in given if other in group)
            for given in groups.values()
        )
    # A view that cuts joined axes where none of them ends: its members are not equally far apart in every group, or in
    # no order that sizes and strides make.
    assert error.axis is not None
    given = groups[error.axis]
    apart = {tuple(rank - group[0] for rank in group) for group in given}
    return len(apart) > 1 or not is_layout(next(iter(apart)))


def is_layout(offsets: Sequence[int]) -> bool:
    """Whether some sizes and strides count so: tried, size by size."""
    if len(offsets) == 1:
        return True
    for size in range(2, len(offsets) + 1):
        inner = [at * offsets[1] for at in range(size)]
        outer = offsets[::size]
        if len(offsets) % size == 0 and list(offsets) == [a + b for a in outer for b in inner] and is_layout(outer):
            return offsets[1] > 0
    return False


def together(topology: Topology, names: Sequence[str]) -> list[list[int]] | None:
    try:
        return sorted(list(group.members) for group in Scope(names).groups(topology))
    except ScopeError:
        return None


# Any topology


@settings(deadline=None, max_examples=300)
@given(topologies(), st.data())
def test_any_groups_of_any_topology_are_found_again(topology: Topology, data: st.DataObject) -> None:
    groups = groups_of(topology, data.draw(st.permutations(sorted(topology.sizes))))
    error = unexplained(groups)
    assert error is None or ("at one place" not in str(error) and refused(groups, error))


@settings(deadline=None, max_examples=300)
@given(topologies(), st.data())
def test_some_of_the_groups_are_explained_or_two_ranks_are_named(topology: Topology, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(topology.sizes)), min_size=1, unique=True))
    groups = groups_of(topology, names)
    error = unexplained(groups)
    assert error is None or refused(groups, error)


@settings(deadline=None)
@given(topologies(views=False), st.data())
def test_axes_alone_are_the_topology_itself(topology: Topology, data: st.DataObject) -> None:
    large = {name: size for name, size in topology.axes.items() if size > 1}
    bare = Topology(large)
    names = data.draw(st.permutations(sorted(large)))
    if names:
        assert Topology.from_groups(groups_of(bare, names)) == bare
    assert Topology.from_groups(groups_of(topology, list(topology.axes)), topology.size).axes == topology.axes


@settings(deadline=None, max_examples=200)
@given(topologies(), st.data())
def test_a_wrong_rank_is_never_explained_away(topology: Topology, data: st.DataObject) -> None:
    """Two ranks that change places: the groups are those of a topology still, and exactly so, or it is an error."""
    groups = groups_of(topology, sorted(topology.sizes))
    name = data.draw(st.sampled_from(sorted(groups)))
    one, other = data.draw(st.integers(0, topology.size - 1)), data.draw(st.integers(0, topology.size - 1))
    swap = {one: other, other: one}
    groups[name] = [[swap.get(rank, rank) for rank in group] for group in groups[name]]
    error = unexplained(groups)
    assert error is None or refused(groups, error)


@settings(deadline=None)
@given(topologies(), st.data())
def test_the_groups_of_one_rank_say_the_same_as_all(topology: Topology, data: st.DataObject) -> None:
    groups = groups_of(topology, sorted(topology.sizes))
    if unexplained(groups) is None:
        rank = data.draw(st.integers(0, topology.size - 1))
        own = {name: [next(group for group in given if rank in group)] for name, given in groups.items()}
        assert layout.explain(own, topology.size) == layout.explain(groups, topology.size)


# What it is found to be


def test_what_is_given_first_becomes_axes() -> None:
    topology = Topology({"pp": 2, "tp": 4}, {"attention": View("tp", {"attn_dp": 2, "attn_tp": 2})})
    one = explains(groups_of(topology, ["tp", "pp", "attn_dp", "attn_tp"]))
    assert one == Topology({"pp": 2, "tp": 4}, {"attn_dp": View("tp", {"attn_dp": 2, "attn_tp": 2})})
    other = explains(groups_of(topology, ["attn_dp", "attn_tp", "pp", "tp"]))
    assert other == Topology({"pp": 2, "attn_dp": 2, "attn_tp": 2}, {"tp": View(("attn_dp", "attn_tp"), {"tp": 4})})


def test_what_has_no_groups_gets_a_name_from_its_neighbour() -> None:
    topology = Topology({"pp": 2, "tp": 8}, {"v": View("tp", {"a": 2, "b": 2, "c": 2})})
    assert explains(groups_of(topology, ["pp", "tp", "b"])).views == {
        "b": View("tp", {"b_outer": 2, "b": 2, "b_inner": 2})
    }
    assert explains({"a": [[0, 1, 2, 3], [4, 5, 6, 7]], "b": [[0, 2, 4, 6], [1, 3, 5, 7]]}) == Topology(
        {"rest": 2, "a": 4}, {"b": View(("rest", "a"), {"b": 4, "b_inner": 2})}
    )


def test_an_axis_in_two_places_has_parts() -> None:
    found = explains({"tp": [[0, 1, 4, 5], [2, 3, 6, 7]], "dp": [[0, 2], [1, 3], [4, 6], [5, 7]]})
    assert found == Topology({"tp_0": 2, "dp": 2, "tp_1": 2}, {"tp": View(("tp_0", "tp_1"), {"tp": 4})})
    taken = explains(
        {"tp": [[0, 1, 4, 5], [2, 3, 6, 7]], "tp_0": [[0, 2], [1, 3], [4, 6], [5, 7]], "world": [list(range(8))]}
    )
    assert list(taken.axes) == ["tp_0_2", "tp_0", "tp_1"]


def test_a_cut_where_no_axis_ends_is_of_all_that_it_runs_through() -> None:
    topology = Topology({"dp": 2, "cp": 3, "tp": 2}, {"v": View(("cp", "tp"), {"a": 2, "b": 3})})
    assert explains(groups_of(topology, ["dp", "cp", "tp", "a"])).views == {
        "a": View(("cp", "tp"), {"a": 2, "a_inner": 3})
    }
    assert explains(groups_of(topology, ["dp", "cp", "tp", "b"])).views == {
        "b": View(("cp", "tp"), {"b_outer": 2, "b": 3})
    }


def test_the_order_of_counting_is_kept() -> None:
    swapped = explains({"dp": [[0, 2], [1, 3]], "tp": [[0, 1], [2, 3]], "ep": [[0, 2, 1, 3]]})
    assert swapped.views == {"ep": View(("tp", "dp"), {"ep": 4})}


def test_size_one_stands_where_it_was_given() -> None:
    ones = [[0], [1], [2], [3]]
    found = explains({"a": ones, "dp": [[0, 2], [1, 3]], "b": ones, "tp": [[0, 1], [2, 3]], "c": ones})
    assert dict(found.axes) == {"a": 1, "dp": 2, "b": 1, "tp": 2, "c": 1}
    assert list(found.axes) == ["a", "dp", "b", "tp", "c"]
    assert Topology.from_groups({"tp": [[0]], "pp": [[0]]}) == Topology({"tp": 1, "pp": 1})


def test_families_that_cut_one_axis_differently_can_each_be_named_together() -> None:
    topology = Topology(
        {"pp": 2, "tp": 12},
        {
            "attention": View("tp", {"attn_dp": 2, "attn_cp": 3, "attn_tp": 2}),
            "experts": View("tp", {"moe_dp": 2, "moe_ep": 2, "moe_tp": 3}),
        },
    )
    attention, experts = list(topology.views["attention"].axes), list(topology.views["experts"].axes)
    for order in (["tp", "pp", *attention, *experts], ["tp", "pp", *experts, *attention], sorted(topology.sizes)):
        found = explains(groups_of(topology, order))
        for family in (attention, experts):
            for names in (pair for count in (2, 3) for pair in combinations(family, count)):
                assert together(found, names) == together(topology, names), (order, names, found)


# What cannot be


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({}, "the groups hold 0 ranks"),
        ({"tp": []}, "the groups hold 0 ranks"),
        ({"tp": [[0, 1], [3, 4]]}, "the groups hold 4 ranks, and rank 2 is not among them"),
        ({"tp": [[0, 1], [1, 2]]}, r"rank 1 is in two tp groups: \[0, 1\] and \[1, 2\]"),
        ({"tp": [[0, 0], [1, 2]]}, r"rank 0 is in two tp groups"),
        ({"tp": [[0, 1], [2, 3]], "pp": [[0, 2]]}, "rank 1 is in no pp group: give those of all 4 ranks"),
        ({"tp": [[0, 1], [2, 3], [4]]}, r"the tp groups \[0, 1\] and \[4\] are not of one size"),
        ({"tp": [[0, 1], [3, 2]], "pp": [[0, 2], [1, 3]]}, r"ranks 3 and 2 cannot be in it so, as in \[0, 1\] they"),
        (
            {"tp": [[1, 0], [3, 2]], "pp": [[0, 2], [1, 3]]},
            r"ranks 1 and 0 cannot be in it so, as no sizes and strides",
        ),
        ({"tp": [[0, 2, 1, 4], [3, 5, 6, 7]]}, "ranks 3 and 6 cannot be in it so, as in"),
        ({"tp": [[0, 1, 3, 2]]}, "ranks 0 and 2 cannot be in it so, as no sizes and strides"),
        (
            {"tp": [[0, 1], [2, 3]]},
            r"ranks 0 and 2 are at one place \(tp 0\): give the groups of the axis they differ on",
        ),
        ({"tp": [[0], [1]]}, r"ranks 0 and 1 are at one place \(tp 0\)"),
        ({"host": [[0, 1]]}, "axis name 'host' is reserved"),
        ({"world": [[0, 1]]}, r"ranks 0 and 1 are at one place \(no axis\)"),
        ({"world": [[0], [1]], "tp": [[0, 1]]}, "axis name 'world' is reserved"),
        ({"tp": [[0, 1], []]}, "axis tp has an empty group"),
    ],
)
def test_what_no_axes_explain_is_refused_with_the_ranks(groups: Groups, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Topology.from_groups(groups)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ([1, 2], "ranks 1 and 2 cannot be in it so, as the group would have to begin before rank 1"),
        ([0, 1, 2], "ranks 0 and 1 cannot be in it so, as 4 ranks cannot be cut in 3 with 1 inside"),
        ([0, 3], "ranks 0 and 3 cannot be in it so, as 4 ranks cannot be cut in 2 with 3 inside"),
    ],
)
def test_the_groups_of_one_rank_that_cannot_be(group: list[int], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        layout.explain({"tp": [group]}, 4)


def test_a_world_group_is_what_every_topology_has() -> None:
    found = Topology.from_groups({"world": [[0, 1, 2, 3]], "tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]]}, hosts=2)
    assert found == Topology({"pp": 2, "tp": 2}, hosts=2)


# The engines' own groups

SGLANG = [row for version in ("0.5.14", "0.5.23") for row in load(f"sglang-groups-{version}")]
VLLM = [row for version in ("0.11.0", "0.33.0") for row in load(f"vllm-{version}") if row.get("groups")]
MEGATRON = load("megatron-groups-0.16.1")


@pytest.mark.parametrize("row", SGLANG + VLLM + MEGATRON, ids=lambda row: row["id"])
def test_the_groups_that_engines_make_are_explained(row: dict[str, Any]) -> None:
    found = explains(row["groups"])
    assert found.size == row.get("world_size", row.get("torch_world_size"))


def test_there_are_rows() -> None:
    assert (len(SGLANG), len(VLLM), len(MEGATRON)) == (10, 30, 10)


@pytest.mark.parametrize("row", MEGATRON, ids=lambda row: row["id"])
def test_the_axes_of_megatron_are_what_its_sizes_say(row: dict[str, Any]) -> None:
    found, sizes = explains(row["groups"]), row["sizes"]
    assert {name: size for name, size in found.sizes.items() if name in sizes} == sizes
    assert [name for name in found.axes if sizes.get(name, 1) > 1] == [
        name for name in ("pp", "dp", "cp", "tp") if sizes[name] > 1
    ]
    assert together(found, ["dp", "cp"]) == together(found, ["dp_cp"])
    assert together(found, ["expert_tp", "ep"]) == together(found, ["tp_ep"])
    experts = together(found, ["expert_dp", "ep", "expert_tp"])
    assert experts == [list(range(first, first + found.size // sizes["pp"])) for first, *_ in experts]
