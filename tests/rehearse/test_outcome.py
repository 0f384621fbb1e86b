"""What is said of a finding, from what was seen: nothing is said to have come true that was not."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from rankbind import check, config
from rankbind.check.plan import Plan
from rankbind.rehearse.outcome import Call, Taken, Verdict
from rankbind.rehearse.script import Bound, Claimed

TWO = '[axes]\ntp = 2\n[resources.x]\nowner = {}\nbind = "tcp://*:5557"\n'
PATH = '[axes]\ntp = 2\n[resources.x]\nowner = {}\npath = "/tmp/x"\nbind = "ipc:///tmp/x{tp}"\n'
BOUND = Bound("tcp://0.0.0.0:5557")
HELD = Claimed("held")
LOST = Claimed("refused", "rank 0", "tcp://*:5557", "told")


def barred(number: int, holder: str = "", *, foreign: bool = False) -> Bound:
    return Bound(None, number, os.strerror(number), holder, foreign)


def taken(
    rank: int, bound: Bound | None = BOUND, claim: Claimed = HELD, text: str = "tcp://*:5557", **more: Any
) -> Taken:
    more = {"heard": bound is not None and bound.at is not None, "number": rank, **more}
    return Taken("x", "bind", rank, 0, "0", text=text, claim=claim, bound=bound, **more)


def judge(text: str, *found: Taken, calls: tuple[Call, ...] = ()) -> Verdict:
    declaration = config.parse(text)
    return Verdict(Plan(declaration), check.run(declaration), found, calls)


def came(verdict: Verdict) -> dict[str, bool | None]:
    return {each.finding.code: each.came for each in verdict.predictions}


@pytest.mark.parametrize(
    ("second", "true", "causes"),
    [
        (taken(1, barred(errno.EADDRINUSE, "rank 0"), LOST), True, []),
        (taken(1, Bound("ipc:///x"), heard=False, hears="rank 0 gets what is sent there"), True, []),
        # Somebody else's port, a bind that failed for another reason, one that died or was left to chance show nothing.
        (taken(1, barred(errno.EADDRINUSE, "pid 7 (nginx)", foreign=True)), None, ["machine"]),
        (taken(1, barred(errno.EADDRNOTAVAIL)), None, ["machine"]),
        (taken(1, died="was killed by SIGKILL"), None, ["check"]),
        (taken(1, drawn=True), None, []),
        # That nothing at all came is not that another got it.
        (taken(1, heard=False), None, ["check"]),
        # The claims know what the check knows, and prove nothing about the kernel.
        (taken(1, BOUND, LOST), False, ["check", "check"]),
        (taken(1), False, ["check"]),
    ],
)
def test_a_collision(second: Taken, true: bool | None, causes: list[str]) -> None:
    verdict = judge(TWO, taken(0), second)

    assert came(verdict) == {"RB201": true}
    assert [each.cause for each in verdict.surprises] == causes


def test_what_fails_beside_a_finding_is_told() -> None:
    verdict = judge(TWO, taken(0), taken(1, barred(errno.EADDRINUSE, "rank 0"), LOST), taken(9, barred(errno.ENOENT)))

    assert came(verdict) == {"RB201": True}
    assert [(each.text, each.cause) for each in verdict.surprises] == [
        ("x: rank 9 on host 0, tcp://*:5557: No such file or directory", "machine")
    ]


def test_one_claim_of_two_addresses_is_one_failure() -> None:
    text = TWO + 'replay = "tcp://*:{6000 + tp}"'
    refused = taken(1, barred(errno.EADDRINUSE, "rank 0"), LOST)
    other = taken(1, BOUND, LOST, "tcp://*:6001", number=3)

    assert other.failed
    assert judge(text, taken(0), refused, other).surprises == ()
    assert len(judge('[axes]\ntp = 2\n[resources.x]\nowner = {}\nname = "{tp}"', other, other).surprises) == 1


@pytest.mark.parametrize(
    ("address", "code", "shows", "unless"),
    [
        ("tcp://*:{65536 + tp}", "RB203", errno.EINVAL, None),
        ("tcp://*:{80 + tp}", "RB204", errno.EACCES, None),
        ("tcp://*:{40000 + tp}", "RB205", None, None),
        ("ipc:///" + "x" * 107 + "{tp}", "RB206", errno.ENAMETOOLONG, False),
        ("tcp://[::1]:{5557 + tp}", "RB209", errno.ENODEV, False),
    ],
)
def test_an_address(address: str, code: str, shows: int | None, unless: bool | None) -> None:
    text = f'[axes]\ntp = 1\n[resources.x]\nowner = {{}}\nbind = "{address}"'
    told = address.replace("{", "").replace(" + tp}", "").replace("tp}", "0")
    unseen = judge(text, taken(0, text=told)) if code != "RB203" else judge(text)

    assert came(unseen) == {code: unless}
    foreign = judge(text, taken(0, barred(errno.EADDRINUSE, "pid 7", foreign=True), text=told))
    assert came(foreign) == {code: True if code == "RB205" else None}
    if shows is not None:
        seen = judge(text, taken(0, barred(shows), text=told))
        assert (came(seen), seen.surprises) == ({code: True}, ())


def test_a_path_that_two_claim() -> None:
    lost = Claimed("refused", "rank 0", "/tmp/x", "told")
    verdict = judge(PATH, taken(0, None, text="/tmp/x"), taken(1, None, lost, "/tmp/x"))

    assert came(verdict) == {"RB212": True}
    assert (
        verdict.predictions[0].seen
        == "ranks 0, 1 claim /tmp/x at once; rank 1: claim refused, rank 0 holds the address"
    )
    assert verdict.surprises == ()


DIALLED = """
[axes]
tp = 1
[resources.x]
owner = {{}}
bind = "tcp://*:5557"
connect = {{ to = "tcp://{0}", axes = {{ r = 1 }} }}
"""


@pytest.mark.parametrize(
    ("call", "true", "surprises"),
    [({"heard": frozenset[int]()}, True, 0), ({"heard": frozenset({0})}, False, 3), ({"played": False}, None, 0)],
)
def test_a_call_in_vain(call: dict[str, Any], true: bool | None, surprises: int) -> None:
    said = Call(0, "x", "bind", "the consumer r 0", "tcp://localhost:5558", **call)
    verdict = judge(DIALLED.format("localhost:5558"), taken(0), calls=(said,))

    assert came(verdict) == {"RB210": true, "RB211": true}
    assert len(verdict.surprises) == surprises


def test_a_call_that_is_not_answered_though_it_should_be() -> None:
    said = Call(0, "x", "bind", "the consumer r 0", "tcp://localhost:5557", meant=frozenset({0}))
    (surprise,) = judge(DIALLED.format("localhost:5557"), taken(0), calls=(said,)).surprises

    assert surprise.text == "the consumer r 0 dials tcp://localhost:5557 (x) and gets nothing from rank 0"
    # Where nobody is there to answer, that is what is told.
    gone = taken(0, barred(errno.EADDRINUSE, "pid 7", foreign=True))
    assert [each.cause for each in judge(DIALLED.format("localhost:5557"), gone, calls=(said,)).surprises] == [
        "machine"
    ]


def test_who_could_not_bind_was_not_left_alone() -> None:
    text = DIALLED.format("localhost:5557").replace("tp = 1", "tp = 2").replace("*:5557", "*:{5557 + tp}")
    said = Call(0, "x", "bind", "the consumer r 0", "tcp://localhost:5557", frozenset({0}), frozenset({0}))
    alone = judge(text, taken(0), taken(1, text="tcp://*:5558"), calls=(said,))
    refused = judge(text, taken(0), taken(1, barred(errno.EACCES), text="tcp://*:5558"), calls=(said,))

    assert (came(alone), came(refused)) == ({"RB211": True}, {"RB211": None})
