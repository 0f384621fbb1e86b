"""Who gets there, at which address, and which two ranks meet: as whoever tries every rank one by one would find."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankbind.audit.expression import (
    EACH,
    FALSE,
    TRUE,
    Apply,
    Constant,
    Coordinate,
    Expression,
    Given,
    Parameter,
    Private,
    Size,
    Unclear,
    text,
    walk,
)
from rankbind.audit.ranks import (
    Layout,
    Point,
    Questions,
    added,
    free,
    meeting,
    pinned,
    points,
    shown,
    sums,
    table,
    value,
)
from rankbind.audit.vocabulary import SGLANG
from rankbind.topology import Topology, View

A, B, C = Coordinate("a"), Coordinate("b"), Coordinate("c")
ABC = Layout(("a", "b", "c"))
FACTS = ("f", "g", "h")
BASE = Given("port")


def equal(left: Expression, right: int | Expression) -> Expression:
    return Apply("==", (left, Constant(right) if isinstance(right, int) else right))


def add(*parts: Expression) -> Expression:
    found = parts[0]
    for part in parts[1:]:
        found = Apply("+", (found, part))
    return found


def times(left: Expression, right: Expression) -> Expression:
    return Apply("*", (left, right))


# ---- random gates and addresses, and what Python makes of them

FEWER = settings(max_examples=settings().max_examples // 3)
"""Each example is tried on several ranks, under every circumstance."""

NUMBERS: st.SearchStrategy[Expression] = st.recursive(
    st.sampled_from([A, B, C, Size("a"), Size("b"), Constant(0), Constant(1), Constant(2)]),
    lambda inner: st.builds(lambda sign, *sides: Apply(sign, sides), st.sampled_from("+-*"), inner, inner),
    max_leaves=3,
)
COMPARED: st.SearchStrategy[Expression] = st.builds(
    lambda sign, *sides: Apply(sign, sides), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), NUMBERS, NUMBERS
)


def gates(*leaves: Expression) -> st.SearchStrategy[Expression]:
    return st.recursive(
        st.one_of(COMPARED, st.sampled_from([*map(Given, FACTS), *leaves])),
        lambda inner: st.one_of(
            st.builds(lambda part: Apply("not", (part,)), inner),
            st.builds(lambda sign, *parts: Apply(sign, parts), st.sampled_from(["and", "or"]), inner, inner),
            st.builds(lambda *parts: Apply("if", parts), inner, inner, inner),
        ),
        max_leaves=6,
    )


GATES = gates(TRUE, FALSE, A)
ADDRESSES: st.SearchStrategy[Expression] = st.one_of(
    NUMBERS,
    st.builds(lambda part: add(BASE, part), NUMBERS),
    st.builds(lambda condition, *parts: Apply("if", (condition, *parts)), GATES, NUMBERS, NUMBERS),
    st.builds(lambda *parts: Apply("text", (Constant("tcp://"), *parts)), NUMBERS, st.just(Constant(":")), NUMBERS),
)


@lru_cache(None)
def code(expression: Expression) -> CodeType:
    return compile(text(expression), "<expression>", "eval")


def evaluated(expression: Expression, point: Point, facts: Mapping[str, bool]) -> Any:
    """What Python makes of the expression as `text` writes it."""
    if isinstance(expression, Apply) and expression.operator == "text":
        return "".join(str(evaluated(part, point, facts)) for part in expression.arguments)
    if isinstance(expression, Constant):
        return expression.value
    names: dict[str, object] = {f"{axis}_rank": index for axis, index in point.at.items()}
    names |= {f"{axis}_size": size for axis, size in point.sizes.items()}
    return eval(code(expression), {"__builtins__": {}}, {**names, "port": 10**9 + 7, **facts})


def answers() -> Iterator[dict[str, bool]]:
    for chosen in itertools.product([False, True], repeat=len(FACTS)):
        yield dict(zip(FACTS, chosen, strict=True))


def combination(questions: Questions, facts: Mapping[str, bool]) -> int:
    """The number of the combination in which those facts hold."""
    return sum(facts[name] << place for name, place in questions.known.items())


# ---- tables


@given(GATES)
def test_a_table_says_who_passes_under_which_answers(gate: Expression) -> None:
    questions = Questions()
    for point in points(ABC, (("a", 2), ("b", 3))):
        may, must = table(gate, point, questions)
        assert may == must
        for facts in answers():
            assert bool(may >> combination(questions, facts) & 1) == bool(evaluated(gate, point, facts))


@FEWER
@given(gates(Unclear("u"), Unclear("v")))
def test_what_is_unclear_leaves_room_and_never_more_than_it_has_to_allow(gate: Expression) -> None:
    """Surely passes: whatever `u` and `v` turn out to be. Surely does not: likewise."""
    questions = Questions()
    for point in points(ABC, (("a", 2),)):
        may, must = table(gate, point, questions)
        for facts in answers():
            place = combination(questions, facts)
            results = {
                bool(evaluated(gate, point, {**facts, "u": u, "v": v}))
                for u, v in itertools.product([False, True], repeat=2)
            }
            assert results == {True} or not must >> place & 1
            assert results == {False} or may >> place & 1


def test_one_fact_is_one_question_wherever_it_is_asked() -> None:
    questions = Questions()
    (point,) = points(Layout(("a",)), ())
    asked = Apply("and", (Given("f"), Apply("not", (Given("f"),))))
    assert table(asked, point, questions) == (0, 0)
    assert list(questions.known) == ["f"]


def test_a_comparison_of_facts_is_one_question() -> None:
    questions = Questions()
    first, second = points(Layout(("a",)), (("a", 2),))
    gate = Apply(">", (Given("workers"), Constant(1)))
    assert table(gate, first, questions) == table(gate, second, questions)
    assert list(questions.known) == [">(workers, 1)"]


def test_a_question_about_a_size_is_another_one_for_each_size() -> None:
    questions = Questions()
    gate = Apply(">", (Given("workers"), Size("a")))
    for count in (1, 2):
        table(gate, points(Layout(("a",)), (("a", count),))[0], questions)
    assert list(questions.known) == [">(workers, 1)", ">(workers, 2)"]


def test_beyond_ten_questions_nothing_is_sure() -> None:
    questions = Questions()
    (point,) = points(Layout(("a",)), ())
    told = [table(Given(f"f{number}"), point, questions) for number in range(12)]
    assert all(may == must for may, must in told[:10])
    assert all(may != 0 and must == 0 for may, must in told[10:])
    assert questions.answer("f11", 0)
    assert not questions.answer("f3", 0)
    assert questions.answer("f3", 1 << 3)


@pytest.mark.parametrize("leaf", [Unclear("is_leader"), Private("pid"), Apply("asked", (A,))], ids=text)
def test_nobody_surely_passes_what_cannot_be_told(leaf: Expression) -> None:
    (point,) = points(Layout(("a",)), ())
    may, must = table(leaf, point, Questions())
    assert may
    assert not must


def test_a_rank_that_is_configured_is_one_of_them() -> None:
    """``pp_rank == args.publisher_stage``: whichever it is, it is one."""
    assert pinned(equal(A, Given("args.stage")), ("a",)) == ("a",)
    assert pinned(Apply("!=", (A, Given("args.stage"))), ("a",)) == ()


def test_a_rank_that_each_turn_of_a_loop_names_is_no_one() -> None:
    gate = equal(A, Given(f"{EACH}stage"))
    assert pinned(gate, ("a",)) == ()
    assert meeting(gate, Constant(1), Layout(("a",)), {"a": 2}) is None


# ---- values


@FEWER
@given(NUMBERS)
def test_a_number_is_what_python_makes_of_it(number: Expression) -> None:
    for point in points(ABC, (("a", 2), ("c", 2))):
        assert value(number, point, None, 0) == evaluated(number, point, {})


def test_division_by_nothing_is_no_error() -> None:
    (point,) = points(Layout(("a",)), ())
    assert value(Apply("//", (Constant(1), A)), point, None, 0) == ("//", 1, 0)


def test_the_name_of_what_is_given_is_its_value() -> None:
    (point,) = points(Layout(("a",)), ())
    once, again, other = (value(add(Given(name), Constant(1)), point, None, 0) for name in ("port", "port", "base"))
    assert once == again
    assert once != other


def test_a_text_is_never_repeated_as_often_as_a_number_that_only_stands_for_one() -> None:
    (point,) = points(Layout(("a",)), ())
    assert isinstance(value(times(Constant("x"), Given("port")), point, None, 0), tuple)


# ---- topologies

REAL = Topology({"dp": 2, "pp": 2, "tp": 12}, {"attention": View("tp", {"attn_dp": 2, "attn_cp": 3, "attn_tp": 2})})


def test_points_are_those_of_the_topology_with_composite_axes() -> None:
    assert SGLANG.layout is not None
    sizes = (("attn_cp", 3), ("attn_dp", 2), ("attn_tp", 2), ("dp", 2), ("pp", 2))
    found = points(SGLANG.layout, sizes)
    assert [point.rank for point in found] == list(range(REAL.size))
    for point in found:
        at = REAL.coordinates(point.rank)
        assert {axis: point.at[axis] for axis in at} == dict(at)
        assert point.sizes["tp"] == 12
        assert point.at["cp"] == at["attn_cp"]
        # A replica is a world of its own.
        assert point.at["rank"] == point.rank % 24
        assert point.sizes["rank"] == 24


@FEWER
@given(st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_points_are_those_of_the_topology(counts: list[int]) -> None:
    sizes = dict(zip(("a", "b", "c"), counts, strict=True))
    topology = Topology(sizes)
    found = points(ABC, tuple(sizes.items()))
    assert [{axis: point.at[axis] for axis in ABC.order} for point in found] == [
        dict(topology.coordinates(rank)) for rank in range(topology.size)
    ]
    assert [point.at["rank"] for point in found] == list(range(topology.size))


def test_axes_that_are_not_named_have_one_index() -> None:
    (point,) = points(ABC, ())
    assert point.at == dict.fromkeys(("a", "b", "c", "rank", "local_rank"), 0)
    assert set(point.sizes.values()) == {1}


@pytest.mark.parametrize("name", ["0", "my-dim", "rank"])
def test_an_axis_may_have_a_name_that_a_topology_would_not_take(name: str) -> None:
    assert [point.at[name] for point in points(Layout((name,)), ((name, 2),))] == [0, 1]


def test_parts_of_an_axis() -> None:
    layout = Layout(("dp", "x", "y"), (("tp", ("x", "y")),), outside=("dp",))
    assert layout.parts("x") == ("x",)
    assert layout.parts("tp") == ("x", "y")
    assert layout.parts("rank") == layout.parts("local_rank") == ("x", "y")
    assert layout.parts("ep") == ()


# ---- meetings


def naive(gate: Expression, address: Expression, sizes: Mapping[str, int]) -> bool:
    found = points(ABC, tuple(sorted(sizes.items())))
    for one, other in itertools.combinations(found, 2):
        if {axis for axis in ABC.order if one.at[axis] != other.at[axis]} != set(sizes):
            continue
        for facts in answers():
            if (
                evaluated(gate, one, facts)
                and evaluated(gate, other, facts)
                and evaluated(address, one, facts) == evaluated(address, other, facts)
            ):
                return True
    return False


SIZES = st.sampled_from([{"a": 2}, {"b": 2}, {"a": 2, "b": 2}, {"a": 2, "b": 3}, {"a": 3, "c": 2}])


@given(GATES, ADDRESSES, SIZES)
def test_two_ranks_meet_if_and_only_if_trying_all_of_them_finds_two(
    gate: Expression, address: Expression, sizes: dict[str, int]
) -> None:
    met = meeting(gate, address, ABC, sizes)
    assert (met is not None) == naive(gate, address, sizes)
    if met is not None:
        one, other = met.points
        assert met.axes == tuple(axis for axis in ABC.order if one.at[axis] != other.at[axis])
        assert set(met.axes) == set(sizes)
        assert met.sizes == sizes


@FEWER
@given(GATES, ADDRESSES, SIZES)
def test_nobody_meets_where_each_process_has_its_own(
    gate: Expression, address: Expression, sizes: dict[str, int]
) -> None:
    assert meeting(gate, Apply("tuple", (address, Private("tmp"))), ABC, sizes) is None
    assert meeting(gate, Apply("text", (Private("tmp"), address)), ABC, sizes) is None


@FEWER
@given(GATES, ADDRESSES, SIZES)
def test_nobody_meets_behind_what_is_unclear(gate: Expression, address: Expression, sizes: dict[str, int]) -> None:
    assert meeting(Apply("and", (gate, Unclear("leader"))), address, ABC, sizes) is None
    assert meeting(gate, Apply("tuple", (address, Unclear("whose"))), ABC, sizes) is None


@pytest.mark.parametrize("missing", [Constant(None), Apply("text", (Constant("tcp://*:"), Constant(None)))], ids=text)
def test_nobody_meets_where_there_is_no_address_yet(missing: Expression) -> None:
    assert meeting(TRUE, missing, ABC, {"a": 2}) is None


def test_ranks_that_meet_differ_in_the_axes_that_are_asked_for_and_in_no_other() -> None:
    assert meeting(TRUE, add(A, B), ABC, {"a": 2, "b": 2}) is not None
    assert meeting(TRUE, add(A, B), ABC, {"a": 2, "b": 2}, ("a",)) is None


def test_two_ranks_meet_only_under_the_same_circumstances() -> None:
    gate = Apply("if", (Given("f"), equal(A, 0), equal(A, 1)))
    assert meeting(gate, Constant(1), ABC, {"a": 2}) is None


def test_ranks_meet_where_one_branch_of_an_address_is_the_same() -> None:
    address = Apply("if", (Given("f"), Constant(5557), add(Constant(5557), A)))
    met = meeting(TRUE, address, ABC, {"a": 2})
    assert met is not None
    assert met.address == "5557"


def test_a_meeting_shows_its_address_and_its_ranks() -> None:
    met = meeting(equal(B, 0), Apply("text", (Constant("tcp://*:"), add(BASE, B))), ABC, {"a": 2})
    assert met is not None
    assert met.address == "tcp://*:{port}"
    assert [point.rank for point in met.points] == [0, 1]
    assert met.axes == ("a",)


# ---- axes that are left out, and sums


def axes_of(found: list[Any]) -> list[tuple[str, ...]]:
    return [met.axes for met in found]


def test_the_axes_that_neither_gate_nor_address_tells_apart() -> None:
    address = add(BASE, C)
    assert axes_of(free(equal(B, 0), address, ABC, ABC.order)) == [("a",)]
    assert axes_of(free(TRUE, address, ABC, ABC.order)) == [("a",), ("b",)]
    assert axes_of(free(TRUE, address, ABC, ("b",))) == [("b",)]


def test_a_gate_on_a_later_index_needs_a_topology_that_has_it() -> None:
    (met,) = free(equal(B, 2), Constant(1), ABC, ABC.order[:2])
    assert met.axes == ("a",)
    assert met.sizes == {"a": 2, "b": 3}
    assert [point.at["b"] for point in met.points] == [2, 2]


def test_an_index_that_hardly_any_topology_has_is_not_looked_for() -> None:
    assert free(equal(B, 9), Constant(1), ABC, ("a",)) == []


def test_the_last_stage_is_one_stage() -> None:
    last = equal(A, Apply("-", (Size("a"), Constant(1))))
    assert axes_of(free(last, Constant(1), ABC, ABC.order)) == [("b",), ("c",)]
    assert pinned(last, ("a",)) == ("a",)


def test_a_whole_pinned_pins_its_parts() -> None:
    assert SGLANG.layout is not None
    gate = equal(Coordinate("tp"), 0)
    assert axes_of(free(gate, Constant(1), SGLANG.layout, SGLANG.layout.order)) == [("dp",), ("pp",)]


def test_the_rank_of_a_replica_says_nothing_about_which_replica() -> None:
    assert SGLANG.layout is not None
    assert axes_of(free(TRUE, add(BASE, Coordinate("rank")), SGLANG.layout, SGLANG.layout.order)) == [("dp",)]


def mixed_radix(*parts: str) -> Expression:
    found: Expression = Coordinate(parts[0])
    for part in parts[1:]:
        found = add(times(found, Size(part)), Coordinate(part))
    return found


MEET = {
    "two added up": (add(A, B), [("a", "b")]),
    "two added up, with a base": (add(BASE, A, B), [("a", "b")]),
    "three added up": (add(A, B, C), [("a", "b"), ("a", "c"), ("b", "c")]),
    "scaled by the wrong size": (add(times(A, Size("a")), B), [("a", "b")]),
    "scaled by a constant that some topologies exceed": (add(times(A, Constant(2)), B), [("a", "b")]),
    "a difference": (Apply("-", (A, B)), [("a", "b")]),
    "scaled": (mixed_radix("a", "b"), []),
    "scaled the other way round": (add(A, times(B, Size("a"))), []),
    "three scaled": (mixed_radix("a", "b", "c"), []),
    "side by side": (Apply("text", (A, Constant("-"), B)), []),
    "in a tuple": (Apply("tuple", (A, B)), []),
}


@pytest.mark.parametrize(("address", "pairs"), MEET.values(), ids=MEET)
def test_sums_that_meet(address: Expression, pairs: list[tuple[str, ...]]) -> None:
    among = tuple(axis for axis in ABC.order if meeting(TRUE, address, ABC, {axis: 2}) is None)
    assert axes_of(sums(TRUE, address, ABC, among)) == pairs


def test_axes_that_exclude_each_other_do_not_meet() -> None:
    layout = Layout(("a", "b"), exclusive=(frozenset("ab"),))
    assert sums(TRUE, add(A, B), layout, ("a", "b")) == []
    assert axes_of(sums(TRUE, add(A, B), Layout(("a", "b")), ("a", "b"))) == [("a", "b")]


def test_a_sum_behind_a_gate_on_one_of_its_axes_does_not_meet() -> None:
    assert sums(equal(A, 0), add(A, B), ABC, ("a", "b")) == []


def test_coordinates_added_up() -> None:
    assert added(add(BASE, A, B))
    assert added(Apply("text", (Constant("x"), Apply("-", (A, B)))))
    assert not added(add(BASE, A))
    assert not added(Apply("tuple", (A, B)))


# ---- pinned


@FEWER
@given(GATES)
def test_an_axis_is_pinned_if_no_two_of_its_indices_pass_with_all_else_equal(gate: Expression) -> None:
    found = points(ABC, (("a", 3), ("b", 3), ("c", 3)))
    for axis in ABC.order:
        both = any(
            evaluated(gate, one, facts) and evaluated(gate, other, facts)
            for one, other in itertools.combinations(found, 2)
            if {name for name in ABC.order if one.at[name] != other.at[name]} == {axis}
            for facts in answers()
        )
        assert (axis in pinned(gate, ABC.order)) == (not both)


@FEWER
@given(gates(TRUE, Unclear("u")))
def test_what_pins_an_axis_pins_it_still_with_more_conditions(gate: Expression) -> None:
    named = ("a", "b")
    more = Apply("and", (gate, Unclear("who")))
    assert set(pinned(gate, named)) <= set(pinned(more, named))


def test_pinned_in_one_of_two_alternatives_is_not_pinned() -> None:
    gate = Apply("or", (equal(A, 0), equal(B, 0)))
    assert pinned(gate, ("a", "b")) == ()
    assert pinned(Apply("and", (equal(A, 0), equal(B, 1))), ("a", "b")) == ("a", "b")


def test_pinned_whichever_way_a_flag_turns_out() -> None:
    assert pinned(Apply("if", (Given("f"), equal(A, 0), equal(A, 1))), ("a",)) == ("a",)


# ---- how an address is shown

SHOWN = {
    "a number": (add(BASE, Constant(1)), "port + 1"),
    "a coordinate": (add(Constant(5000), A), "5001"),
    "nothing added": (add(BASE, B), "port"),
    "a text": (Apply("text", (Constant("tcp://*:"), add(Constant(5000), A))), "tcp://*:5001"),
    "a host and a port": (Apply("tuple", (Given("args.host"), Constant(80))), "args.host:80"),
    "an address and a port": (Apply("tuple", (Constant("0.0.0.0"), BASE)), "0.0.0.0:port"),
    "a pair of something else": (Apply("tuple", (Given("name"), Constant(80))), "name, 80"),
    "the branch that is taken": (Apply("if", (equal(A, 1), Constant("x"), Constant("y"))), "x"),
    "what is there first": (Apply("or", (Constant(""), Constant("y"))), "y"),
    "a branch of which nothing is known": (
        Apply("if", (Unclear("u"), Constant("x"), Constant("y"))),
        "(x if u else y)",
    ),
}


@pytest.mark.parametrize(("address", "expected"), SHOWN.values(), ids=SHOWN)
def test_an_address_is_shown_with_what_is_given_by_its_name(address: Expression, expected: str) -> None:
    point = points(ABC, (("a", 2),))[1]
    assert shown(address, point, Questions(), 0) == expected


def test_a_parameter_stands_for_one_value() -> None:
    port = Parameter("f", "port")
    assert meeting(TRUE, port, ABC, {"a": 2}) is not None
    assert any(part is port for part in walk(add(port, A)))
