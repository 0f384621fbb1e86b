"""RB701 and the sums of RB705: what is said of two ranks that create at one address, how surely, and what helps."""

from __future__ import annotations

import textwrap

import pytest

from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Program
from rankbind.audit.rules.free_axis import Judged, findings, judge
from rankbind.audit.sites import ways
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import SGLANG, VLLM, Profile, Vocabulary
from rankbind.finding import Finding, Level


def judged(body: str, profile: Profile | None = None, *, name: str = "a.py", module: str = "a") -> list[Judged]:
    source = Source(name, module, textwrap.dedent(body).encode())
    meaning = Meaning(Program([source]), Vocabulary(profile))
    return [judge(meaning, one, way) for one, found in ways(meaning, {}) for way in found]


def audited(body: str, profile: Profile | None = None, *, name: str = "a.py", module: str = "a") -> list[Finding]:
    return list(findings(judged(body, profile, name=name, module=module)))


def worker(gate: str, address: str = "'tcp://*:1'", parameters: str = "tp_rank, pp_rank, sock, args") -> str:
    return f"def f({parameters}):\n    if {gate}:\n        sock.bind({address})\n"


def test_the_finding_shows_the_creation_the_gate_and_two_ranks() -> None:
    (one,) = audited("""
        def f(tp_rank, pp_rank, sock):
            if tp_rank == 0:
                sock.bind("tcp://*:5557")
    """)
    assert one.code == "RB701"
    assert one.level is Level.ERROR
    assert one.message == (
        "socket: ranks that differ only in pp bind tcp://*:5557; "
        "the gate pins tp, the address is the same on every rank"
    )
    assert [(str(label.span), label.text) for label in one.labels] == [
        ("a.py:4:9", "nothing tells pp apart"),
        ("a.py:3:8", "the gate: tp_rank == 0"),
    ]
    assert one.details == ("with pp=2: ranks 0 (pp 0) and 1 (pp 1) both bind tcp://*:5557",)
    assert one.fix == '@singleton_per(group=("pp", "tp"), rank=0)'
    assert one.facts == {
        "creation": "socket",
        "function": "f",
        "axes": ["pp"],
        "pinned": ["tp"],
        "varies": [],
        "address": "tcp://*:5557",
        "topology": {"pp": 2},
        "ranks": [0, 1],
        "gate": "tp_rank == 0",
    }


def test_the_finding_of_a_wrapper_shows_where_it_is_made_too() -> None:
    (one,) = audited("""
        def open_bus(sock, address):
            sock.bind(address)
        def f(tp_rank, pp_rank, sock, ps):
            if tp_rank == 0:
                open_bus(sock, f"tcp://*:{5000 + ps.tp_rank}")
    """)
    assert [(str(label.span), label.text) for label in one.labels] == [
        ("a.py:6:9", "nothing tells pp apart"),
        ("a.py:5:8", "the gate: tp_rank == 0"),
        ("a.py:6:42", "the address: tp_rank"),
        ("a.py:3:5", "made here"),
    ]
    assert one.facts["varies"] == ["tp"]
    assert "the gate pins tp, the address varies over tp" in one.message


def test_a_sum_of_two_axes_is_said_to_be_one() -> None:
    (one,) = audited(worker("True", "f'tcp://*:{5000 + pp_rank + tp_rank}'"))
    assert one.code == "RB705"
    assert one.level is Level.ERROR
    assert one.message == (
        "socket: pp and tp are added up in the address, and ranks that differ in both meet at tcp://*:5001"
    )
    assert one.details == ("with pp=2 x tp=2: ranks 1 (pp 0, tp 1) and 2 (pp 1, tp 0) both bind tcp://*:5001",)
    assert one.fix == "scale one by the size of the other: pp * tp_size + tp"
    assert one.labels[0].text == "not one address for each (pp, tp)"


RIGHT = {
    "both pinned": worker("tp_rank == 0 and pp_rank == 0"),
    "one pinned, one in the address": worker("tp_rank == 0", "f'tcp://*:{5000 + pp_rank}'"),
    "both in the address": worker("True", "f'tcp://*:{5000 + pp_rank * tp_size + tp_rank}'"),
    "side by side": worker("True", "f'ipc:///tmp/{pp_rank}-{tp_rank}'"),
    "its own port": worker("tp_rank == 0", "'tcp://*:0'"),
    "its own file": worker("tp_rank == 0", "f'ipc://{tempfile.mkdtemp()}'"),
    "the world": worker("dist.get_rank() == 0"),
    "who is asked cannot be told": worker("tp_rank == 0 and is_leader()"),
    "no rank is in sight": "def f(sock):\n    sock.bind('tcp://*:1')",
    "one of a node": "def f(node_rank, sock):\n    sock.bind(f'tcp://*:{5000 + node_rank}')",
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_nothing_is_said_where_no_two_ranks_meet(body: str) -> None:
    assert audited(body) == []


# ---- how sure it is


def levels(body: str, profile: Profile | None = None, *, module: str = "a") -> list[Level]:
    return [one.level for one in audited(body, profile, module=module)]


def test_it_is_an_error_where_the_code_knows_the_axis_that_it_leaves_out() -> None:
    assert levels(worker("tp_rank == 0")) == [Level.ERROR]


def test_it_is_a_warning_where_only_the_profile_knows_the_axis() -> None:
    body = "def f(tp_rank, sock):\n    if tp_rank == 0:\n        sock.bind('tcp://*:1')"
    assert levels(body, VLLM) == [Level.WARNING]
    assert levels(body) == []


def test_it_is_a_warning_where_nothing_tells_ranks_apart_at_a_fixed_address() -> None:
    assert levels("def f(tp_rank, sock):\n    sock.bind('tcp://*:1')") == [Level.WARNING]


def test_it_is_a_warning_where_the_code_around_knows_the_axis_and_the_address_is_configured() -> None:
    assert levels("def f(tp_rank, sock, args):\n    sock.bind(args.address)") == [Level.WARNING]


def test_it_is_a_note_where_only_the_place_says_that_there_are_several_ranks() -> None:
    profile = Profile("mine", layout=VLLM.layout, roles=(("a:*", ("dp", "tp")),))
    body = "def g(sock, args):\n    sock.bind(args.address)\ndef f(tp_rank, sock, args):\n    g(sock, args)"
    assert levels(body, profile) == [Level.NOTE]
    by_class = Profile("mine", layout=VLLM.layout, roles=(("a:g*", ("dp", "tp")),))
    assert levels(body, by_class) == [Level.WARNING]


def test_a_sum_of_an_axis_that_the_code_does_not_know_is_a_warning() -> None:
    body = "def f(sock, args):\n    x = args.pp_rank\n    sock.bind(f'tcp://*:{5000 + args.dp_rank + x}')"
    assert levels(body) == [Level.ERROR]


# ---- along which axes a process exists more than once


def test_a_process_that_exists_once_meets_nobody() -> None:
    body = worker("tp_rank == 0")
    assert audited(body, Profile("mine", roles=(("a:*", ()),), layout=VLLM.layout)) == []


def test_a_process_that_exists_once_for_some_axes_meets_along_those() -> None:
    profile = Profile("mine", roles=(("a:f", ("dp",)),), layout=VLLM.layout)
    (one,) = audited(worker("tp_rank == 0"), profile)
    assert one.facts["axes"] == ["dp"]


def test_a_test_is_no_rank_whatever_it_plays() -> None:
    body = worker("tp_rank == 0").replace("def f", "def test_f")
    assert audited(body, name="tests/test_bus.py") == []
    assert len(audited(body, name="bus.py")) == 1
    assert len(audited(worker("tp_rank == 0"), name="tests/test_bus.py")) == 1


def test_a_library_that_is_handed_the_address_and_the_rank_of_the_world_says_nothing() -> None:
    assert audited("def f(sock, address, rank):\n    sock.bind(address)") == []
    assert (
        len(audited("def f(sock, address, tp_rank, pp_rank):\n    if tp_rank == 0:\n        sock.bind(address)")) == 1
    )


def test_replicas_and_the_attentions_replicas_do_not_exist_together() -> None:
    body = "def f(dp_rank, sock, port):\n    sock.bind(f'tcp://*:{port + dp_rank}')"
    found = audited(body, SGLANG, module="sglang.srt.managers.scheduler")
    assert [one.code for one in found] == ["RB701"]
    assert found[0].facts["axes"] == ["pp", "attn_cp", "attn_tp"]


# ---- what would help

REMEDIES = {
    "an axis": (worker("tp_rank == 0"), '@singleton_per(group=("pp", "tp"), rank=0)'),
    "an axis alone": (
        "def f(pp_rank, sock):\n    sock.bind('tcp://*:1')",
        '@singleton_per(group="pp", rank=0)',
    ),
    "the last stage": (
        worker("get_pp_group().is_last_rank"),
        '@singleton_per(group=("tp", "pp"), rank={"tp": 0, "pp": -1})',
    ),
    "replicas": (
        "def f(dp_rank, tp_rank, sock):\n    if tp_rank == 0:\n        sock.bind('tcp://*:1')",
        "let the address vary over dp: one for each replica",
    ),
    "replicas and an axis": (
        "def f(dp_rank, tp_rank, pp_rank, sock):\n    if tp_rank == 0:\n        sock.bind('tcp://*:1')",
        '@singleton_per(group=("pp", "tp"), rank=0); and let the address vary over dp',
    ),
    "the world": (
        "def f(sock):\n    x = dist.get_rank()\n    print(get_world_rank())\n    sock.bind('tcp://*:1')",
        '@singleton_per(group="world", rank=0)',
    ),
}


@pytest.mark.parametrize(("body", "fix"), REMEDIES.values(), ids=REMEDIES)
def test_what_would_help(body: str, fix: str) -> None:
    assert [one.fix for one in audited(body)] == [fix]


def test_several_axes_are_named_outermost_first_with_an_example_of_each() -> None:
    (one,) = audited("def f(tp_rank, pp_rank, dp_rank, sock):\n    if tp_rank == 0:\n        sock.bind('tcp://*:1')")
    assert one.message.startswith("socket: ranks that differ only in pp or dp bind tcp://*:1")
    assert one.labels[0].text == "nothing tells pp and dp apart"
    assert [detail.partition(":")[0] for detail in one.details] == ["with pp=2", "with dp=2"]
    assert one.facts["topology"] == {"pp": 2}


def test_the_example_is_an_axis_that_the_code_itself_knows() -> None:
    body = "def f(tp_rank, pp_rank, sock):\n    if tp_rank == 0:\n        sock.bind('tcp://*:1')"
    (one,) = audited(body, VLLM)
    assert one.facts["axes"] == ["dp", "pp", "pcp"]
    assert one.facts["topology"] == {"pp": 2}


def test_a_place_that_is_reached_on_two_ways_has_one_finding() -> None:
    body = """
        def g(sock):
            sock.bind("tcp://*:1")
        def f(tp_rank, pp_rank, dp_rank, sock):
            if tp_rank == 0 and pp_rank == 0:
                g(sock)
        def h(tp_rank, pp_rank, dp_rank, sock):
            if tp_rank == 0 and dp_rank == 0:
                g(sock)
    """
    (one,) = audited(body)
    assert one.facts["axes"] == ["pp", "dp"]


# ---- what is found out on the way


def test_what_is_found_out_about_a_creation() -> None:
    (one,) = judged(worker("tp_rank == 0", "f'tcp://*:{args.port + pp_rank}'"))
    assert one.pinned == ("tp",)
    assert one.varies == ("pp",)
    assert one.free == one.summed == ()
    assert {"tp", "pp"} <= one.evident
    assert {"tp", "pp"} <= one.near
    assert not one.unclear
    assert not one.by_class


def test_what_could_not_be_followed_is_said_to_be_unclear() -> None:
    (one,) = judged(worker("tp_rank == 0 and is_leader()"))
    assert one.unclear
    assert one.free == ()
