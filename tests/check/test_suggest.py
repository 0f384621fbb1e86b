"""`--suggest`: the fewest knobs, and the shortest way, after which nothing collides."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankbind.check import Plan
from rankbind.check.clashes import clashes
from rankbind.check.deployments import between, together
from rankbind.check.plan import Binding
from rankbind.check.suggest import Knob, Suggestion, knobs, suggest
from rankbind.config import parse
from rankbind.endpoint import overlaps


def plans(texts: Sequence[str]) -> list[Plan]:
    return [Plan(parse(text, f"{number}.toml")) for number, text in enumerate(texts)]


def suggested(*texts: str) -> Suggestion:
    found = plans(texts)
    return suggest(found, NAMES[: len(texts)], [knobs(plan) for plan in found])


NAMES = [f"{number}.toml" for number in range(64)]


def applied(texts: Sequence[str], suggestion: Suggestion) -> list[str]:
    """The files with the numbers changed."""
    lines = [text.split("\n") for text in texts]
    moves = [(move, move.knob.span) for move in suggestion.moves]
    for move, span in sorted(moves, key=lambda item: -(item[1].column if item[1] else 0)):
        assert span is not None
        line = lines[move.deployment][span.line - 1]
        start = span.column - 1
        assert line[start : start + span.length] == str(move.knob.value)
        lines[move.deployment][span.line - 1] = line[:start] + str(move.new) + line[start + span.length :]
    return ["\n".join(each) for each in lines]


def job(*resources: str, more: str = "") -> str:
    return (
        "[axes]\ndp = 2\n"
        + more
        + "".join(f"\n[resources.r{n}]\nowner = {{}}\n{keys}\n" for n, keys in enumerate(resources))
    )


ONE = "bind = 'tcp://*:{30000 + dp}'"


def test_nothing_to_move() -> None:
    assert suggested(job(ONE), job("bind = 'tcp://*:{30002 + dp}'")) == Suggestion(())


def test_the_second_moves_by_the_least() -> None:
    found = suggested(job(ONE), job(ONE))
    assert found.lines(NAMES) == ("1.toml: r0.bind 30000 -> 30002",)
    assert (found.left, found.exact) == ((), True)


def test_down_where_that_is_nearer() -> None:
    found = suggested(job("bind = 'tcp://*:{30001 + dp}'"), job(ONE))
    assert found.lines(NAMES) == ("1.toml: r0.bind 30000 -> 29999",)


def test_three_of_one_command() -> None:
    assert suggested(job(ONE), job(ONE), job(ONE)).lines(NAMES) == (
        "1.toml: r0.bind 30000 -> 30002",
        "2.toml: r0.bind 30000 -> 29998",
    )


def test_what_is_near_is_not_run_into() -> None:
    texts = job(ONE, "bind = 'tcp://*:{30002 + dp}'"), job(ONE, "bind = 'tcp://*:{29998 + dp}'")
    assert suggested(*texts).lines(NAMES) == ("1.toml: r0.bind 30000 -> 30004",)


def test_a_probe_is_kept_free() -> None:
    texts = job("bind = 'tcp://*:30000'\nprobe = 'tcp://*:30001-30009'", more="\n"), job("bind = 'tcp://*:30005'")
    # Nobody of the same job minds.
    assert {finding.code for finding in between(plans(texts), NAMES)} == {"RB503"}
    assert suggested(*texts).lines(NAMES) == ("1.toml: r0.bind 30005 -> 30010",)


def test_the_two_addresses_of_one_resource() -> None:
    found = suggested(job("bind = 'tcp://*:{5557 + dp}'\nreplay = 'tcp://*:{5558 + dp}'"))
    assert found.lines(NAMES) == ("0.toml: r0.replay 5558 -> 5559",)


def test_one_of_several_addresses() -> None:
    found = suggested(job("bind = ['tcp://*:{7 + 6000 + dp}', 'tcp://*:{6100 + dp}']"), job("bind = 'tcp://*:6101'"))
    assert found.lines(NAMES) == ("1.toml: r0.bind 6101 -> 6102",)


def test_the_first_stays_even_if_the_second_then_moves_more() -> None:
    one = job("bind = 'tcp://*:{9000 + dp}'")
    two = job("bind = 'tcp://127.0.0.1:{9000 + dp}'", "bind = 'tcp://127.0.0.2:{9001 + dp}'")
    assert [move.deployment for move in suggested(one, two).moves] == [1, 1]
    assert [move.deployment for move in suggested(two, one).moves] == [1]


def test_the_first_moves_where_nothing_else_can() -> None:
    stuck = job("bind = 'tcp://*:30000-30001'")
    assert knobs(plans([stuck])[0]) == ()
    assert suggested(job(ONE), stuck).lines(NAMES) == ("0.toml: r0.bind 30000 -> 30002",)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("", 9002),
        ("[hosts.reserved]\nagent = '9002-9010'\n", 8998),
        ("[hosts.reserved]\nagent = '9002-9010'\nother = '8000-8999'\n", 9011),
        ("[hosts]\nephemeral = '9002-9200'\n", 8998),
        # It is among them already: no reason to go far.
        ("[hosts.reserved]\nagent = '8990-9010'\n", 9002),
        # There is nothing else.
        ("[hosts.reserved]\na = '9002-65535'\nb = '1024-8999'\n", 9002),
    ],
)
def test_ports_that_are_to_be_left_alone(facts: str, expected: int) -> None:
    text = job("bind = 'tcp://*:{9000 + dp}'", more=facts)
    (move,) = suggested(text, text).moves
    assert (move.deployment, move.new) == (1, expected)


def test_ports_are_ports() -> None:
    assert suggested(*[job("bind = 'tcp://*:{65534 + dp}'")] * 2).lines(NAMES) == ("1.toml: r0.bind 65534 -> 65532",)
    low = job("bind = 'tcp://*:{1024 + dp}'")
    assert suggested(low, low).lines(NAMES) == ("1.toml: r0.bind 1024 -> 1026",)


def test_what_no_port_stands_for_is_left() -> None:
    text = job("bind = ['ipc:///run/{dp}', 'tcp://*:{9000 + dp}']")
    found = suggested(text, text)
    assert found.lines(NAMES) == ("1.toml: r0.bind[1] 9000 -> 9002",)
    assert [finding.code for finding in found.left] == ["RB502"]


def test_hosts_and_loopback_addresses_of_their_own() -> None:
    hosts = "[hosts.ranks]\n{} = [0]\n{} = [1]\n"
    a = job("bind = 'tcp://*:{9000 + dp}'", more=hosts.format("n0", "n1"))
    b = job("bind = 'tcp://*:{9000 + dp}'", more=hosts.format("n1", "n2"))
    # dp 1 of a and dp 0 of b share n1, with two ports; n2 is b's alone.
    assert suggested(a, b).moves == ()
    c = job("bind = 'tcp://*:{9001 + dp}'", more=hosts.format("n1", "n2"))
    assert suggested(a, c).lines(NAMES) == ("1.toml: r0.bind 9001 -> 9002",)
    assert suggested(job("bind = 'tcp://127.0.0.1:9'"), job("bind = 'tcp://127.0.0.2:9'")).moves == ()


def test_sharing_that_is_meant_is_no_reason_to_move() -> None:
    text = job("bind = 'tcp://*:9000'\nshared = 'reuseport'")
    assert suggested(text, text) == Suggestion(())


def test_one_knob_moves_all_that_hangs_on_it() -> None:
    text = job("bind = 'tcp://*:{30000 + dp}'", "bind = 'tcp://*:{40000 + dp}'", "probe = 'tcp://*:{30010 + dp}'")
    port = Knob("--port", 30000, frozenset({("r0", "bind"), ("r1", "bind 1"), ("r2", "probe")}))
    found = suggest(plans([text, text]), NAMES, [(port,), (port,)])
    assert found.lines(NAMES) == ("1.toml: --port 30000 (the default) -> 30002",)
    near = text.replace("30010", "30002")
    # The second's probe must not meet the first's ports either, nor the first's probe those of the second.
    found = suggest(plans([near, near]), NAMES, [(port,), (port,)])
    assert found.lines(NAMES) == ("1.toml: --port 30000 (the default) -> 30004",)


def test_a_range_that_a_knob_moves() -> None:
    text = job("probe = 'tcp://*:30001-30009'", more="")
    other = job("bind = 'tcp://*:30005'\nreplay = 'tcp://*:30012'").replace("owner = {}", "owner = { dp = 0 }")
    port = Knob("--port", 30000, frozenset({("r0", "probe")}))
    found = suggest(plans([other, text]), NAMES, [(), (port,)])
    assert found.lines(NAMES) == ("1.toml: --port 30000 (the default) -> 29995",)
    assert suggest(plans([text, other]), NAMES, [(port,), ()]).moves[0].new == 29995


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://*:5557", 5557),
        ("tcp://*:{5557 + dp}", 5557),
        ("tcp://*:{dp + 5557}", 5557),
        ("tcp://*:{5557 + 100 * dp}", 5557),
        ("tcp://*:{5557 + dp % 3}", 5557),
        ("tcp://10.0.0.1:{dp * 10 + 5557 - 1}", 5557),
        ("tcp://*:{2 * (5557 + dp)}", None),
        ("tcp://*:{5557 - dp}", 5557),
        ("tcp://*:{7 + 6000 + dp}", 6000),
        ("tcp://*:{10000 - 5557 - dp}", 10000),
        ("tcp://*:5557-5560", None),
        ("tcp://*:0", None),
        ("ipc:///run/5557", None),
    ],
)
def test_the_number_in_a_file_that_all_ports_move_with(address: str, expected: int | None) -> None:
    found = knobs(plans([job(f"bind = '{address}'")])[0])
    assert [knob.value for knob in found] == ([] if expected is None else [expected])


# ---- nothing smaller, by trying everything


@st.composite
def crowds(draw: st.DrawFn) -> list[str]:
    texts = []
    left = 4
    for _ in range(draw(st.integers(1, 3))):
        resources = []
        for _ in range(draw(st.integers(1, min(2, left)))):
            left -= 1
            side = draw(st.sampled_from(["*", "127.0.0.1", "127.0.0.2"]))
            port = draw(st.sampled_from(["{9000 + dp}", "9001", "{9001 + dp}", "{9000 + 2 * dp}", "9002", "9000-9002"]))
            role = draw(st.sampled_from(["bind", "bind", "bind", "probe"]))
            resources.append(f"{role} = 'tcp://{side}:{port}'")
        facts = draw(st.sampled_from(["", "", "[hosts]\ncount = 2\n", "[hosts.reserved]\na = '9003-9005'\n"]))
        texts.append(job(*resources, more=facts).replace("owner = {}", draw(st.sampled_from(GATES))))
        if left < 1:
            break
    return texts


GATES = ["owner = {}", "owner = { dp = 0 }"]
SIDE = 9


@settings(max_examples=100, deadline=None)
@given(crowds())
def test_nothing_smaller_will_do(texts: list[str]) -> None:
    found = plans(texts)
    mine = [knobs(plan) for plan in found]
    flat = [(number, knob) for number, each in enumerate(mine) for knob in each]
    answer = suggest(found, NAMES, mine)
    by = {(move.deployment, move.knob.flag): move.new - move.knob.value for move in answer.moves}
    given = tuple(by.get((number, knob.flag), 0) for number, knob in flat)
    pairs = list(_pairs(found, flat))
    if answer.exact:
        assert _apart(pairs, given)
    after = plans(applied(texts, answer))
    assert [finding.code for finding in between(after, NAMES)] == [finding.code for finding in answer.left]
    ways = [
        _cost(found, flat, shifts)
        for shifts in product(range(-SIDE, SIDE + 1), repeat=min(len(flat), 3))
        if len(flat) <= 3 and _apart(pairs, shifts)
    ]
    assert all(_cost(found, flat, given) <= way for way in ways)


def _cost(
    found: Sequence[Plan], flat: Sequence[tuple[int, Knob]], shifts: Sequence[int]
) -> tuple[bool, bool, int, int]:
    """Whether it ends where it should not, whether the first moves, how many do, how far."""
    careless = any(
        port + by in range(reserved.first, reserved.last + 1)
        for (number, knob), by in zip(flat, shifts, strict=True)
        for reserved in found[number].job.facts.reserved
        for b in _moved_by(found[number], knob)
        if b.endpoint is not None and b.endpoint.first not in range(reserved.first, reserved.last + 1)
        for port in [b.endpoint.first]
    )
    first = any(by and number == 0 for (number, _), by in zip(flat, shifts, strict=True))
    return careless, first, sum(by != 0 for by in shifts), sum(map(abs, shifts))


def _moved_by(plan: Plan, knob: Knob) -> list[Binding]:
    ((resource, role),) = knob.moves
    return [b for b in plan.bindings if (b.resource.name, f"{b.address.role} 1") == (resource, role)]


def _pairs(
    found: Sequence[Plan], flat: Sequence[tuple[int, Knob]]
) -> Iterator[tuple[int | None, int | None, set[int]]]:
    """For every two addresses that may meet, which of `flat` move them, and by how much more the second if they do."""
    mover = {
        (number, b.resource.name, b.address.role): at
        for at, (number, knob) in enumerate(flat)
        for b in _moved_by(found[number], knob)
    }
    every = [(number, b, b.endpoint) for number, plan in enumerate(found) for b in plan.bindings]
    for (m, a, x), (n, b, y) in combinations(every, 2):
        one, other = (mover.get((number, c.resource.name, c.address.role)) for number, c in ((m, a), (n, b)))
        if a.host != b.host or (one == other) or ("probe" in (a.address.role, b.address.role) and m == n):
            continue
        if a.address.role == b.address.role == "probe" or x is None or y is None:
            continue
        meeting = {
            by for by in range(-2 * SIDE, 2 * SIDE + 1) if overlaps(x, replace(y, first=y.first + by, last=y.last + by))
        }
        yield one, other, meeting


def _apart(pairs: Sequence[tuple[int | None, int | None, set[int]]], shifts: Sequence[int]) -> bool:
    def by(at: int | None) -> int:
        return 0 if at is None else shifts[at]

    return not any(by(other) - by(one) in meeting for one, other, meeting in pairs)


# ---- large


def test_many_deployments_are_moved_one_by_one() -> None:
    """63 copies of one command with 12 flags beside another: every flag of every copy but the first moves."""
    text = job(*[f"bind = 'tcp://*:{{{9000 + 20 * n} + dp}}'" for n in range(12)])
    texts = [job("bind = 'tcp://*:8000'").replace("owner = {}", "owner = { dp = 0 }"), *[text] * 63]
    found = plans(texts)
    mine = [knobs(plan) for plan in found]
    start = time.perf_counter()
    answer = suggest(found, NAMES, mine)
    assert time.perf_counter() - start < 30  # 3 s where nothing else runs
    assert not answer.exact
    assert len(answer.moves) == 62 * 12
    assert answer.left == ()
    after = plans(applied(texts, answer))
    assert not any(clashes(together(after)))
