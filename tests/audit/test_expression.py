"""Expressions are folded without becoming others, and read as a person would write them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankbind.audit.expression import (
    FALSE,
    LONG,
    TRUE,
    Apply,
    Constant,
    Coordinate,
    Expression,
    Given,
    Parameter,
    Place,
    Private,
    Size,
    Unclear,
    axes,
    both,
    chosen,
    compared,
    either,
    filled,
    folded,
    holes,
    kinds,
    large,
    mapped,
    negated,
    relevant,
    text,
    trimmed,
    walk,
)

TP, PP = Coordinate("tp"), Coordinate("pp")
F, G, U = Given("f"), Given("g"), Unclear("u")
P, Q = Parameter("a.py:1", "p"), Parameter("a.py:1", "q")
NAMES = ("tp_rank", "pp_rank", "f", "g", "u", "p", "q")

FEWER = settings(max_examples=settings().max_examples // 3)
"""Each example is tried in many worlds."""

LEAVES: st.SearchStrategy[Expression] = st.sampled_from(
    [TP, PP, F, G, U, P, Q, TRUE, FALSE, Constant(0), Constant(1), Constant(2)]
)
RAW: st.SearchStrategy[Expression] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda part: Apply("not", (part,)), inner),
        st.builds(
            lambda sign, *parts: Apply(sign, parts), st.sampled_from(["and", "or", "==", "!=", "<", "+"]), inner, inner
        ),
        st.builds(lambda *parts: Apply("if", parts), inner, inner, inner),
    ),
    max_leaves=6,
)
"""Nothing in them is folded."""


@lru_cache(None)
def code(expression: Expression) -> CodeType:
    return compile(text(expression), "<expression>", "eval")


def evaluated(expression: Expression, names: Mapping[str, object]) -> object:
    """What Python makes of the expression as it is written."""
    return eval(code(expression), {"__builtins__": {}}, names)


WORLDS = [
    dict(zip(NAMES, values, strict=True))
    for number, values in enumerate(itertools.product([0, 1], repeat=len(NAMES)))
    # A third of them, so that every pair of names takes every pair of values.
    if number % 3 == 0
]


def same_truth(found: Expression, expected: Callable[[dict[str, int]], object]) -> None:
    for names in WORLDS:
        assert bool(evaluated(found, names)) == bool(expected(names))


@FEWER
@given(st.lists(RAW, max_size=3))
def test_a_conjunction_holds_where_all_of_its_parts_do(parts: list[Expression]) -> None:
    same_truth(both(*parts), lambda names: all(evaluated(part, names) for part in parts))


@FEWER
@given(st.lists(RAW, max_size=3))
def test_a_disjunction_holds_where_one_of_its_parts_does(parts: list[Expression]) -> None:
    same_truth(either(*parts), lambda names: any(evaluated(part, names) for part in parts))


@FEWER
@given(RAW)
def test_a_negation_holds_where_what_it_negates_does_not(part: Expression) -> None:
    same_truth(negated(part), lambda names: not evaluated(part, names))
    same_truth(negated(negated(part)), lambda names: evaluated(part, names))


@FEWER
@given(RAW, RAW, RAW)
def test_a_choice_is_the_one_or_the_other(condition: Expression, then: Expression, otherwise: Expression) -> None:
    found = chosen(condition, then, otherwise)
    for names in WORLDS:
        taken = then if evaluated(condition, names) else otherwise
        assert evaluated(found, names) == evaluated(taken, names)


@FEWER
@given(st.sampled_from(["==", "!=", "<", "<="]), RAW, RAW)
def test_a_comparison_is_folded_to_the_same(sign: str, left: Expression, right: Expression) -> None:
    same_truth(compared(sign, left, right), lambda names: evaluated(Apply(sign, (left, right)), names))


@FEWER
@given(st.sampled_from(["in", "not in"]), LEAVES, st.lists(LEAVES, max_size=3))
def test_a_membership_is_one_comparison_for_each_member(sign: str, one: Expression, all_of: list[Expression]) -> None:
    def expected(names: dict[str, int]) -> bool:
        found = evaluated(one, names) in [evaluated(part, names) for part in all_of]
        return found == (sign == "in")

    same_truth(compared(sign, one, Apply("tuple", tuple(all_of))), expected)


@FEWER
@given(RAW, LEAVES, LEAVES)
def test_filling_a_parameter_is_giving_it_that_value(expression: Expression, p: Expression, q: Expression) -> None:
    found = filled(expression, {P: p, Q: q})
    for names in WORLDS:
        given_values = {**names, "p": evaluated(p, names), "q": evaluated(q, names)}
        assert bool(evaluated(found, names)) == bool(evaluated(expression, given_values))


@FEWER
@given(RAW)
def test_mapping_nothing_is_the_same_expression(expression: Expression) -> None:
    assert mapped(expression, lambda _: None) is expression
    assert filled(expression, {}) is expression


@FEWER
@given(RAW)
def test_what_an_expression_knows_of_itself(expression: Expression) -> None:
    parts = list(walk(expression))
    assert parts[0] is expression
    assert kinds(expression) == {type(part) for part in parts if not isinstance(part, Apply)}
    assert holes(expression) == {part for part in parts if isinstance(part, Parameter)}
    assert set(axes(expression)) == {part.axis for part in parts if isinstance(part, Coordinate)}
    if isinstance(expression, Apply):
        assert expression.weight == len(parts)
        twin = Apply(expression.operator, expression.arguments)
        assert twin == expression
        assert hash(twin) == hash(expression)
        assert Apply("other", expression.arguments) != expression


def test_where_an_expression_stands_makes_no_other_of_it() -> None:
    place = Place("a.py", ast.Constant(1))
    assert Coordinate("tp", at=place) == TP
    assert Apply("==", (TP, Constant(0)), place) == Apply("==", (TP, Constant(0)))
    assert Coordinate("tp", local=True) != TP


# ---- folding, one by one


def test_constants_decide() -> None:
    assert both() == TRUE
    assert either() == FALSE
    assert both(F, FALSE, TP) == FALSE
    assert both(TRUE, F) == F
    assert either(F, TRUE) == TRUE
    assert either(FALSE, F) == F
    assert negated(TRUE) == FALSE
    assert chosen(TRUE, F, G) == F
    assert chosen(U, F, F) == F


def test_parts_of_a_conjunction_come_once_in_one_row() -> None:
    assert both(F, both(G, F), U) == Apply("and", (F, G, U))
    assert either(F, either(G, F)) == Apply("or", (F, G))


def test_a_constant_that_is_no_truth_is_kept_as_what_stands_in_for_another() -> None:
    assert either(F, Constant("tcp://*:1")) == Apply("or", (F, Constant("tcp://*:1")))


COMPARED = {
    "equal constants": ("==", Constant(1), Constant(1), TRUE),
    "other constants": ("is", Constant(None), Constant(1), FALSE),
    "a coordinate is something": ("is", TP, Constant(None), FALSE),
    "a size is something": ("is not", Size("tp"), Constant(None), TRUE),
    "what is private is something": ("!=", Private("tmp"), Constant(None), TRUE),
    "a sum is something": ("is not", Apply("+", (F, TP)), Constant(None), TRUE),
    "an object is something": ("is not", Apply("pkg.Publisher", (F,)), Constant(None), TRUE),
    "what a function gives may be nothing": (
        "is not",
        Apply("find", (F,)),
        Constant(None),
        Apply("is not", (Apply("find", (F,)), Constant(None))),
    ),
    "what is given may be nothing": ("is", F, Constant(None), Apply("is", (F, Constant(None)))),
    "constants of a library": ("==", Given("zmq.PUB"), Given("zmq.SUB"), FALSE),
    "one constant of a library": ("==", Given("zmq.PUB"), Given("zmq.PUB"), TRUE),
    "facts may be equal": ("==", F, G, Apply("==", (F, G))),
    "something where a rank is first": (
        "is not",
        Apply("if", (Apply("==", (TP, Constant(0))), Apply("Publisher", (F,)), Constant(None))),
        Constant(None),
        Apply("==", (TP, Constant(0))),
    ),
    "nothing where a rank is first": (
        "is",
        Apply("if", (Apply("==", (TP, Constant(0))), Constant(1), Constant(None))),
        Constant(None),
        Apply("not", (Apply("==", (TP, Constant(0))),)),
    ),
}


@pytest.mark.parametrize(("sign", "left", "right", "expected"), COMPARED.values(), ids=COMPARED)
def test_comparisons(sign: str, left: Expression, right: Expression, expected: Expression) -> None:
    assert compared(sign, left, right) == expected


def test_filling_folds_what_becomes_known() -> None:
    gate = Apply("and", (P, Apply("is not", (Q, Constant(None)))))
    assert filled(gate, {P: TRUE, Q: TP}) == TRUE
    assert filled(gate, {P: FALSE}) == FALSE
    assert filled(gate, {Q: TP}) == P
    assert filled(Apply("if", (P, F, G)), {P: TRUE}) == F
    assert filled(Apply("not", (Apply("not", (P,)),)), {P: F}) == F


# ---- long ones


def chain(leaf: Expression, count: int) -> Expression:
    """A sum with `count` different terms."""
    found = leaf
    for number in range(count):
        found = Apply("+", (found, Given(f"g{number}")))
    return found


def test_a_long_fact_is_one_fact() -> None:
    found = folded(chain(F, 30), ast.parse("port + 1", mode="eval").body)
    assert isinstance(found, Given)
    assert text(found) == "port + 1"
    assert folded(chain(F, 30), "port + 1") == found
    # Called the same, and another one.
    assert folded(chain(F, 31), "port + 1") != found
    assert text(folded(chain(F, 30), "x" * 50)) == "..."


def test_a_short_fact_and_what_is_about_ranks_stay_as_they_are() -> None:
    assert folded(chain(F, 3)) == chain(F, 3)
    assert folded(chain(TP, 30)) == chain(TP, 30)
    assert folded(F) is F


def test_what_is_too_long_about_ranks_is_unclear() -> None:
    assert large(chain(TP, 300))
    assert not large(chain(TP, 100))
    assert folded(chain(TP, 300)) == Unclear(LONG)


def test_of_a_gate_that_is_too_long_the_long_parts_go() -> None:
    short = Apply("==", (PP, Constant(0)))
    gate = both(short, chain(TP, 210), chain(F, 210))
    assert trimmed(gate) == both(short, Unclear("a long condition"))
    assert trimmed(both(short, F)) == both(short, F)


# ---- what a reader need not see


CONDITIONS: st.SearchStrategy[Expression] = st.one_of(
    st.sampled_from([TP, PP, F, G, U, P, Size("tp")]),
    st.builds(lambda *sides: Apply("<", sides), LEAVES, LEAVES),
    st.builds(lambda *sides: Apply("or", sides), st.sampled_from([F, G, U]), st.sampled_from([TP, F, G])),
)


@FEWER
@given(st.lists(CONDITIONS, min_size=2, max_size=4, unique=True), CONDITIONS)
def test_only_conditions_that_say_nothing_of_the_rest_are_left_out(
    parts: list[Expression], address: Expression
) -> None:
    gate = both(*parts)
    found = relevant(gate, address)
    all_parts = gate.arguments if isinstance(gate, Apply) and gate.operator == "and" else (gate,)
    kept = found.arguments if isinstance(found, Apply) and found.operator == "and" else (found,)
    assert set(kept) <= {*all_parts, TRUE}
    dropped = [part for part in all_parts if part not in kept]
    told = [part for part in kept if kinds(part) - {Constant, Given}]
    facts = {part.text for one in (*told, address) for part in walk(one) if isinstance(part, Given)}
    for part in dropped:
        assert kinds(part) <= {Constant, Given}
        assert not facts & {one.text for one in walk(part) if isinstance(one, Given)}


def test_a_flag_that_the_address_asks_for_again_is_kept() -> None:
    first = Apply("==", (TP, Constant(0)))
    assert relevant(both(F, first), Constant(1)) == first
    assert relevant(both(F, first), chosen(F, Constant(1), TP)) == both(F, first)
    assert relevant(both(F, first, either(F, PP)), Constant(1)) == both(F, first, either(F, PP))
    assert relevant(F, Constant(1)) == TRUE
    assert relevant(FALSE, Constant(1)) == FALSE


# ---- text

TEXTS = {
    "tp_rank == 0": Apply("==", (TP, Constant(0))),
    "local_tp_rank": Coordinate("tp", local=True),
    "rank": Coordinate("rank"),
    "local_rank": Coordinate("local_rank"),
    "pp_size - 1": Apply("-", (Size("pp"), Constant(1))),
    "-tp_rank": Apply("-", (TP,)),
    "-(tp_rank + 1)": Apply("-", (Apply("+", (TP, Constant(1))),)),
    "not f": negated(F),
    "not (f or g)": negated(either(F, G)),
    "not (not f)": Apply("not", (Apply("not", (F,)),)),
    "(tp_rank == 0) and f": both(Apply("==", (TP, Constant(0))), F),
    "(1 if f else 2)": chosen(F, Constant(1), Constant(2)),
    "tcp://*:{tp_rank + 1}": Apply("text", (Constant("tcp://*:"), Apply("+", (TP, Constant(1))))),
    "tcp://*:{f}": Apply("+", (Constant("tcp://*:"), F)),
    "x{tp_rank}": Apply("text", (Constant("x"), Apply("str", (TP,)))),
    "f, 80": Apply("tuple", (F, Constant(80))),
    "f['a']": Apply("[]", (F, Constant("a"))),
    "f[tp_rank]": Apply("[]", (F, TP)),
    "max(f, tp_rank)": Apply("max", (F, TP)),
    "p": P,
}


@pytest.mark.parametrize(("written", "expression"), TEXTS.items(), ids=TEXTS)
def test_text(written: str, expression: Expression) -> None:
    assert text(expression) == written
