"""The judge itself: it lets correct histories pass, and no fault passes it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from .history import SECOND, Event, Log, Takeover, check, now, read, takeovers

WITHIN = 1.0
LIMIT = int(WITHIN * SECOND)


def event(kind: str, at: int, pid: int = 1, token: int = 1, **more: object) -> Event:
    fields = {"resource": "r", "start": 100, "token": 0 if kind == "death" else token} | more
    if kind == "death" and "resource" not in more:
        fields["resource"] = ""
    return Event(kind=kind, pid=pid, at=at, **fields)  # type: ignore[arg-type]


@st.composite
def histories(draw: st.DrawFn, least: int = 1) -> list[Event]:
    """What claims that work leave behind, in any order: several resources, owners that release or are killed."""
    events = []
    pid = 1
    for resource in draw(st.sampled_from([["a"], ["a", "b"]])):
        at, token = draw(st.integers(1, 50)), draw(st.integers(0, 10**6))
        count = draw(st.integers(least, 8))
        for turn in range(count):
            last = turn == count - 1  # nobody has to follow it
            pid += draw(st.integers(1, 3))
            token += draw(st.integers(1, 3))
            began, at = at, at + draw(st.integers(1, LIMIT))
            if not last and draw(st.integers(0, 4)) == 0:  # killed between the lock and its log
                events.append(event("death", at, pid, resource=resource, seen=at + 1))
                continue
            mine = {"pid": pid, "token": token, "resource": resource}
            events.append(event("acquire", at, **mine, began=began))
            for _ in range(draw(st.integers(0, 2))):
                at += draw(st.integers(0, 5))
                events.append(event("act", at, **mine))
            at += draw(st.integers(1, 5))
            end = draw(st.sampled_from(["release"] if last else ["release", "death", "died late", "releasing"]))
            if end in ("release", "releasing"):
                events.append(event("release", at, **mine))
            if end == "releasing":
                at += 1
                events.append(event("death", at, pid, resource=resource, seen=at + 3))
            if end in ("death", "died late"):
                seen = at + draw(st.integers(0, 20)) if end == "died late" else 0
                events.append(event("death", at, pid, seen=seen))
        pid += 1
    return draw(st.permutations(events))


def faults(events: list[Event], **more: bool) -> list[str]:
    return check(events, within=WITHIN, **more)


@given(histories())
def test_a_correct_history_passes(events: list[Event]) -> None:
    assert faults(events) == []
    assert faults(events, fenced=True) == []


# One fault each, put into a correct history. None: this one has no room for it.


def _tenures(events: list[Event]) -> list[tuple[Event, Event]]:
    """Each acquire with its end, by time."""
    found = []
    for acquire in sorted((e for e in events if e.kind == "acquire"), key=lambda e: (e.resource, e.at)):
        ends = [e for e in events if e.who == acquire.who and e.kind in ("release", "death")]
        found.append((acquire, min(ends, key=lambda e: e.at)))
    return found


def _pair(events: list[Event], randomly: random.Random) -> tuple[tuple[Event, Event], tuple[Event, Event]] | None:
    tenures = _tenures(events)
    pairs = [
        (one, other)
        for one, other in pairwise(tenures)
        if one[0].resource == other[0].resource and one[1].at > one[0].at
    ]
    return randomly.choice(pairs) if pairs else None


def two_owners(events: list[Event], randomly: random.Random) -> list[Event] | None:
    pair = _pair(events, randomly)
    if pair is None:
        return None
    (first, end), (second, _) = pair
    return _with(events, second, at=randomly.randrange(first.at, end.at))


def a_token_used_again(events: list[Event], randomly: random.Random) -> list[Event] | None:
    pair = _pair(events, randomly)
    if pair is None:
        return None
    (first, _), (second, _) = pair
    return _token(events, second, first.token)


def a_lower_token(events: list[Event], randomly: random.Random) -> list[Event] | None:
    pair = _pair(events, randomly)
    if pair is None:
        return None
    (first, _), (second, _) = pair
    return _token(events, second, first.token - 1)


def no_end(events: list[Event], randomly: random.Random) -> list[Event] | None:
    return _without(events, randomly, "release", "death", owners=True)


def no_acquire(events: list[Event], randomly: random.Random) -> list[Event] | None:
    released = [acquire for acquire, end in _tenures(events) if end.kind == "release"]
    gone = randomly.choice(released) if released else None
    return gone and [e for e in events if e is not gone]


def released_twice(events: list[Event], randomly: random.Random) -> list[Event] | None:
    release = _any(events, randomly, "release")
    return release and [*events, replace(release, at=release.at + 1)]


def released_by_another(events: list[Event], randomly: random.Random) -> list[Event] | None:
    release = _any(events, randomly, "release")
    return release and _with(events, release, pid=10**6)


def an_act_of_another(events: list[Event], randomly: random.Random) -> list[Event] | None:
    """The forked child that believes it owns, too."""
    acquire = _any(events, randomly, "acquire")
    return acquire and [*events, replace(acquire, kind="act", pid=10**6, began=0)]


def an_act_too_early(events: list[Event], randomly: random.Random) -> list[Event] | None:
    acquire = _any(events, randomly, "acquire")
    return acquire and [*events, replace(acquire, kind="act", at=acquire.at - 1, began=0)]


def an_act_too_late(events: list[Event], randomly: random.Random) -> list[Event] | None:
    release = _any(events, randomly, "release")
    return release and [*events, replace(release, kind="act", at=release.at + 1)]


def an_act_of_the_dead(events: list[Event], randomly: random.Random) -> list[Event] | None:
    dead = [(acquire, end) for acquire, end in _tenures(events) if end.kind == "death"]
    if not dead:
        return None
    acquire, death = randomly.choice(dead)
    return [*events, replace(acquire, kind="act", at=death.gone + 1, began=0)]


def acquired_by_the_dead(events: list[Event], randomly: random.Random) -> list[Event] | None:
    death = _any(events, randomly, "death")
    return death and [*events, event("acquire", death.gone + 1, death.pid, 10**9, resource="c")]


def released_by_the_dead(events: list[Event], randomly: random.Random) -> list[Event] | None:
    dead = [(acquire, end) for acquire, end in _tenures(events) if end.kind == "death"]
    if not dead:
        return None
    acquire, death = randomly.choice(dead)
    return [*events, replace(acquire, kind="release", at=death.gone + 1, began=0)]


def died_twice(events: list[Event], randomly: random.Random) -> list[Event] | None:
    death = _any(events, randomly, "death")
    return death and [*events, replace(death, at=death.at + 1)]


def nobody_took_over(events: list[Event], randomly: random.Random) -> list[Event] | None:
    """An owner died, and the run went on for long."""
    cut = _cut(events, randomly)
    return cut and [*cut[0], *_elsewhere(cut[1].at + LIMIT + 1)]


def took_over_too_late(events: list[Event], randomly: random.Random) -> list[Event] | None:
    cut = _cut(events, randomly)
    if cut is None:
        return None
    kept, death = cut
    at = death.at + LIMIT + randomly.randrange(1, LIMIT)
    more = {"pid": 10**6, "token": 10**9, "resource": death.resource}
    return [*kept, event("acquire", at, **more), event("release", at + 1, **more)]


def killed_before_it_wrote_and_no_successor(events: list[Event], randomly: random.Random) -> list[Event] | None:
    at = max(e.gone for e in events) + 1
    return [*events, event("death", at, 10**6, resource="a", seen=at), *_elsewhere(at + LIMIT + 1)]


EXCLUSIVE = [
    two_owners,
    a_lower_token,
    an_act_too_early,
]
ALWAYS = [
    a_token_used_again,
    no_end,
    no_acquire,
    released_twice,
    released_by_another,
    an_act_of_another,
    an_act_too_late,
    an_act_of_the_dead,
    acquired_by_the_dead,
    released_by_the_dead,
    died_twice,
    nobody_took_over,
    took_over_too_late,
    killed_before_it_wrote_and_no_successor,
]


@pytest.mark.parametrize("corrupt", [*EXCLUSIVE, *ALWAYS])
@given(events=histories(least=2), randomly=st.randoms(use_true_random=False))
def test_a_fault_is_found(
    corrupt: Callable[[list[Event], random.Random], list[Event] | None], events: list[Event], randomly: random.Random
) -> None:
    corrupted = corrupt(events, randomly)
    assume(corrupted)
    assert corrupted is not None
    assert faults(corrupted) != []
    if corrupt in ALWAYS:
        assert faults(corrupted, fenced=True) != []


def _any(events: list[Event], randomly: random.Random, kind: str) -> Event | None:
    found = [e for e in events if e.kind == kind]
    return randomly.choice(found) if found else None


def _with(events: list[Event], one: Event, **changes: int) -> list[Event]:
    return [replace(e, **changes) if e is one else e for e in events]


def _token(events: list[Event], of: Event, token: int) -> list[Event]:
    return [replace(e, token=token) if e.who == of.who and e.kind != "death" else e for e in events]


def _without(events: list[Event], randomly: random.Random, *kinds: str, owners: bool) -> list[Event] | None:
    of = {acquire.who for acquire, _ in _tenures(events)} if owners else {e.who for e in events}
    gone = randomly.choice(sorted(of)) if of else None
    kept = [e for e in events if e.who != gone or e.kind not in kinds]
    return kept if len(kept) < len(events) else None


def _cut(events: list[Event], randomly: random.Random) -> tuple[list[Event], Event] | None:
    """Without what came after the death of some owner, and that death, its resource filled in."""
    dead = [(acquire, end) for acquire, end in _tenures(events) if end.kind == "death"]
    if not dead:
        return None
    acquire, death = randomly.choice(dead)
    later = {e.who for e in events if e.at > death.at and e.resource == acquire.resource} - {acquire.who}
    return [e for e in events if e.who not in later], replace(death, resource=acquire.resource)


def _elsewhere(at: int) -> list[Event]:
    """The run went on until `at`."""
    return [event("acquire", at - 1, 10**7, resource="z"), event("release", at, 10**7, resource="z")]


# Against an oracle that looks at every instant

Span = tuple[int, int]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), min_size=1, max_size=6))
def test_two_owners_are_found_exactly_when_some_instant_has_two(spans: list[Span]) -> None:
    events = []
    for pid, (first, length) in enumerate(sorted(spans), 1):
        events += [event("acquire", first, pid, pid), event("release", first + length, pid, pid)]
    twice = any(sum(first <= at < first + length for first, length in spans) > 1 for at in range(50))
    assert any("both owned" in fault for fault in check(events)) == twice
    assert check(events, fenced=True) == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=6))
def test_fenced_tokens_keep_the_order_of_askings(spans: list[Span]) -> None:
    events = []
    for pid, (began, length) in enumerate(spans, 1):
        events.append(event("acquire", began + length, pid, pid, began=began))
        events.append(event("release", began + length, pid, pid))
    wrong = any(
        a > b and a_began + a_length < b_began
        for a, (a_began, a_length) in enumerate(spans, 1)
        for b, (b_began, _) in enumerate(spans, 1)
    )
    assert bool(check(events, fenced=True)) == wrong


# By hand


def test_a_fenced_history_may_have_a_deposed_owner_but_no_act_of_it() -> None:
    deposed = [
        event("acquire", 10, 1, 1),
        event("acquire", 20, 2, 2),
        event("act", 21, 2, 2),
        event("release", 30, 1, 1),
        event("release", 40, 2, 2),
    ]
    assert check(deposed, fenced=True) == []
    assert len(check(deposed)) == 1
    assert check([*deposed, event("act", 22, 1, 1)], fenced=True) != []


def test_who_was_deposed_before_it_died_needs_no_successor() -> None:
    events = [event("acquire", 10, 1, 1), event("acquire", 20, 2, 2), event("death", 30, 1, seen=31)]
    events += [event("release", 3 * LIMIT, 2, 2)]
    assert check(events, fenced=True, within=WITHIN) == []


def test_the_time_of_a_takeover_is_told() -> None:
    death = event("death", 20, 1, seen=25)
    taken = event("acquire", 27, 2, 2)
    silent = event("death", 40, 3, resource="r")
    events = [event("acquire", 10, 1, 1), death, taken, event("release", 30, 2, 2), silent]
    found = takeovers(events)
    assert found == [Takeover("r", death, taken), Takeover("r", silent, None)]
    assert [each.after for each in found] == [7, None]


def test_who_died_while_another_owned_had_not_owned() -> None:
    other = event("death", 20, 3, resource="r")
    events = [event("acquire", 10, 1, 1), other, event("release", 3 * LIMIT, 1, 1)]
    assert takeovers(events) == []
    assert check(events, within=WITHIN) == []


def test_killed_before_it_wrote_is_a_successor() -> None:
    first = event("death", 20, 1)
    silent = event("death", 30, 2, resource="r")
    third = event("acquire", 35, 3, 3)
    events = [event("acquire", 10, 1, 1), first, silent, third, event("release", 36, 3, 3)]
    assert takeovers(events) == [Takeover("r", first, silent), Takeover("r", silent, third)]


def test_a_release_is_followed_where_somebody_wants_it() -> None:
    events = [event("acquire", 10), event("release", 20), *_elsewhere(3 * LIMIT)]
    assert check(events, within=WITHIN) == []
    assert check(events, within=WITHIN, releases=True) != []
    again = [event("acquire", 30, token=2), event("release", 3 * LIMIT - 1, token=2)]
    assert check([*events, *again], within=WITHIN, releases=True) == []
    assert check([*events, event("death", 30, resource="r")], within=WITHIN, releases=True) != []


def test_at_the_end_of_a_run_nobody_has_to_take_over() -> None:
    events = [event("acquire", 10, 1, 1), event("death", 20, 1), *_elsewhere(10 * LIMIT)]
    assert check(events, within=WITHIN) != []
    assert check(events, within=WITHIN, until=LIMIT) == []


def test_where_nobody_could_take_over_the_time_counts_from_when_they_could() -> None:
    late = event("acquire", 3 * LIMIT, 2, 2)
    events = [event("acquire", 10, 1, 1), event("death", 20, 1), late, event("release", 9 * LIMIT, 2, 2)]
    assert check(events, within=WITHIN) != []
    assert check(events, within=WITHIN, unable=[(15, 2 * LIMIT + 1)]) == []
    assert check(events, within=WITHIN, unable=[(15, LIMIT), (2 * LIMIT - 1, 2 * LIMIT + 1)]) == []
    assert check(events, within=WITHIN, unable=[(15, 2 * LIMIT - 1)]) != []
    assert check(events, within=WITHIN, unable=[(5, 15)]) != []


def test_a_run_that_goes_on_may_have_an_owner() -> None:
    assert check([event("acquire", 10)], over=False) == []


# The file


def test_every_event_comes_back_by_time(tmp_path: Path) -> None:
    written = [event("acquire", 7, note="a \n b"), event("act", 8), event("release", 9), event("death", 5, 4, seen=6)]
    log = Log(tmp_path / "log")
    for each in written:
        log.write(each)
    log.close()
    assert read(tmp_path / "log") == (sorted(written, key=lambda e: e.at), 0)


@given(cut=st.integers(1, 200))
def test_a_torn_line_costs_no_other(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "log"
    log = Log(path)
    log.write(event("acquire", 1))
    whole = path.read_bytes()
    assume(cut < len(whole) - 1)
    path.write_bytes(whole + whole[:cut])
    log.write(event("release", 2))
    log.close()
    events, torn = read(path)
    assert [each.kind for each in events] == ["acquire", "release"]
    assert torn == (cut > 1)


def test_what_is_no_event_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"kind": "acquire"}\n')
    with pytest.raises(ValueError, match="no event"):
        read(tmp_path / "log")


def test_processes_that_are_killed_while_they_write_spoil_only_their_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path)
    children = []
    for child in range(1, 5):
        pid = os.fork()
        if not pid:
            token = 0
            while True:
                log.write(event("act", now(), child, token))
                token += 1
        children.append(pid)
    while path.stat().st_size < 1 << 20:
        os.sched_yield()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    log.close()
    events, torn = read(path)
    assert torn <= len(children)
    for child in range(1, 5):
        tokens = [each.token for each in events if each.pid == child]
        assert tokens == list(range(len(tokens)))
