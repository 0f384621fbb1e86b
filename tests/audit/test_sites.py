"""Creations with the ways to them: under which condition, at which address, from where on it is known."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping

import pytest

from rankbind.audit.expression import text
from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Function, Program
from rankbind.audit.sites import Way, evident, making, ways
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import Profile, Vocabulary


def meaning_of(body: str, profile: Profile | None = None, modules: Mapping[str, str] | None = None) -> Meaning:
    named = {"a": body, **(modules or {})}
    sources = [Source(f"{name}.py", name, textwrap.dedent(source).encode()) for name, source in named.items()]
    return Meaning(Program(sources), Vocabulary(profile))


def reached(meaning: Meaning, more: Mapping[str, str] | None = None) -> list[Way]:
    return [way for _, found in ways(meaning, more or {}) for way in found]


def told(body: str, **modules: str) -> list[str]:
    """Each way as ``gate -> address``."""
    return [f"{text(way.gate)} -> {text(way.address)}" for way in reached(meaning_of(body, modules=modules))]


def anchors(body: str, **modules: str) -> list[str]:
    """What stands at the outermost call at which the address is known, and the function that it is in."""
    return [
        f"{way.function.qualified}: {ast.unparse(way.anchor.node)}"
        for way in reached(meaning_of(body, modules=modules))
    ]


OPEN = """
def open_bus(sock, address):
    sock.bind(address)
"""
BUS = """
class Bus:
    def __init__(self, address):
        self.address = address
    def start(self, sock):
        sock.bind(self.address)
"""

ANCHORS = {
    "the creation itself": ("def f(tp_rank, sock):\n    sock.bind('tcp://*:1')", ["f: sock.bind('tcp://*:1')"]),
    "the call of a wrapper": (
        OPEN + "def f(s):\n    open_bus(s, 'tcp://*:1')",
        ["f: open_bus(s, 'tcp://*:1')"],
    ),
    "the call of a wrapper of a wrapper": (
        OPEN + "def g(s, at):\n    open_bus(s, at)\ndef f(s):\n    g(s, 'tcp://*:1')",
        ["f: g(s, 'tcp://*:1')"],
    ),
    "each call of a wrapper": (
        OPEN + "def f(s):\n    open_bus(s, 'tcp://*:1')\ndef g(s):\n    open_bus(s, 'tcp://*:2')",
        ["f: open_bus(s, 'tcp://*:1')", "g: open_bus(s, 'tcp://*:2')"],
    ),
    "where the object is made": (
        BUS + "def f(s):\n    bus = Bus('tcp://*:1')\n    bus.start(s)",
        ["f: Bus('tcp://*:1')"],
    ),
    "where a thread is given it": (
        OPEN + "def f(s):\n    Thread(target=open_bus, args=(s, 'tcp://*:1'))",
        ["f: Thread(target=open_bus, args=(s, 'tcp://*:1'))"],
    ),
    "a constructor that binds": (
        (
            "class Bus:\n    def __init__(self, sock, address):\n        sock.bind(address)\n"
            "def f(s):\n    Bus(s, 'tcp://*:1')"
        ),
        ["f: Bus(s, 'tcp://*:1')"],
    ),
    "a process of its own is another program": (
        OPEN + "def f(s):\n    mp.Process(target=open_bus, args=(s, 'tcp://*:1'))",
        ["open_bus: sock.bind(address)"],
    ),
    "an address that is known inside": (
        "def g(sock, tp_rank):\n    sock.bind(f'tcp://*:{tp_rank}')\ndef f(s, tp_rank):\n    g(s, tp_rank)",
        ["g: sock.bind(f'tcp://*:{tp_rank}')"],
    ),
}


@pytest.mark.parametrize(("body", "expected"), ANCHORS.values(), ids=ANCHORS)
def test_a_finding_stands_at_the_outermost_call_at_which_the_address_is_known(body: str, expected: list[str]) -> None:
    assert anchors(body) == expected


def test_a_wrapper_in_another_module() -> None:
    found = anchors("def nothing(): pass", w=OPEN, u="from w import open_bus\ndef f(s):\n    open_bus(s, 'tcp://*:1')")
    assert found == ["f: open_bus(s, 'tcp://*:1')"]


GATES = {
    "of the function": (
        "def f(tp_rank, sock):\n    if tp_rank == 0:\n        sock.bind('tcp://*:1')",
        ["tp_rank == 0 -> tcp://*:1"],
    ),
    "of the caller": (
        "def g(sock):\n    sock.bind('tcp://*:1')\ndef f(tp_rank, sock):\n    if tp_rank == 0:\n        g(sock)",
        ["tp_rank == 0 -> tcp://*:1"],
    ),
    "of both": (
        (
            "def g(sock, pp_rank):\n    if pp_rank == 0:\n        sock.bind('tcp://*:1')\n"
            "def f(tp_rank, pp_rank, sock):\n    if tp_rank == 0:\n        g(sock, pp_rank)"
        ),
        ["(tp_rank == 0) and (pp_rank == 0) -> tcp://*:1"],
    ),
    "a flag that the caller gives": (
        (
            "def g(sock, on):\n    if on:\n        sock.bind('tcp://*:1')\n"
            "def f(tp_rank, sock):\n    g(sock, on=tp_rank == 0)"
        ),
        ["tp_rank == 0 -> tcp://*:1"],
    ),
    "a flag that the caller leaves out": (
        "def g(sock, on=False):\n    if on:\n        sock.bind('tcp://*:1')\ndef f(tp_rank, sock):\n    g(sock)",
        [],
    ),
    "for the object to be there": (
        (
            "class Bus:\n    def __init__(self, sock):\n        self.sock = sock\n"
            "    def start(self):\n        self.sock.bind('tcp://*:1')\n"
            "class A:\n    def __init__(self, tp_rank, sock):\n"
            "        if tp_rank == 0:\n            self.bus = Bus(sock)\n"
            "    def run(self):\n        self.bus.start()"
        ),
        ["tp_rank == 0 -> tcp://*:1"],
    ),
    "for the object to be made": (
        (
            "class Bus:\n    def __init__(self, sock):\n        sock.bind('tcp://*:1')\n"
            "def f(sock, pp_rank):\n    return Bus(sock) if pp_rank == 0 else None"
        ),
        ["pp_rank == 0 -> tcp://*:1"],
    ),
    "a decorator of a library": (
        "@rank_zero_only\ndef f(sock):\n    sock.bind('tcp://*:1')",
        ["rank == 0 -> tcp://*:1"],
    ),
    "a decorator of accelerate": (
        "@accelerator.on_local_main_process\ndef f(sock):\n    sock.bind('tcp://*:1')",
        ["local_rank == 0 -> tcp://*:1"],
    ),
    "a decorator of ones own": (
        (
            "def first_only(fn):\n    def inner(*args):\n"
            "        if dist.get_rank() == 0:\n            return fn(*args)\n"
            "    return inner\n@first_only\ndef f(sock):\n    sock.bind('tcp://*:1')"
        ),
        ["rank == 0 -> tcp://*:1"],
    ),
    "a decorator that says nothing of ranks": (
        (
            "def logged(fn):\n    def inner(*args):\n        return fn(*args)\n    return inner\n"
            "@logged\ndef f(sock, tp_rank):\n    if tp_rank == 0:\n        sock.bind('tcp://*:1')"
        ),
        ["tp_rank == 0 -> tcp://*:1"],
    ),
    "declared": (
        (
            "from rankbind import singleton_per\n@singleton_per(group='tp', rank=0)\n"
            "def f(sock):\n    sock.bind('tcp://*:1')"
        ),
        ["tp_rank == 0 -> tcp://*:1"],
    ),
    "never": ("def f(sock):\n    if False:\n        sock.bind('tcp://*:1')", []),
    "a class that may be made from anywhere": (
        "class Bus:\n    def start(self, sock):\n        sock.bind('tcp://*:1')\nREGISTRY = {'bus': Bus}",
        ["whoever calls -> tcp://*:1"],
    ),
    "a rank that the caller gives as a number": (
        "def g(sock, rank):\n    if rank == 0:\n        sock.bind('tcp://*:1')\ndef f(sock):\n    g(sock, 0)",
        ["the rank that the caller says it is -> tcp://*:1"],
    ),
    "a default of a rank is no statement": (
        "def g(sock, rank=0):\n    if rank == 0:\n        sock.bind('tcp://*:1')\ndef f(sock):\n    g(sock)",
        ["True -> tcp://*:1"],
    ),
    "what is the same on every rank is left out": (
        "def f(tp_rank, sock, on):\n    if on and tp_rank == 0:\n        sock.bind('tcp://*:1')",
        ["tp_rank == 0 -> tcp://*:1"],
    ),
    "who calls does not matter where the address is private": (
        "def g(sock):\n    sock.bind('tcp://*:0')\ndef f(tp_rank, sock):\n    if tp_rank == 0:\n        g(sock)",
        ["True -> a port that the kernel chooses"],
    ),
    "a port of which the caller says that the kernel chooses it": (
        "def g(sock, port):\n    sock.bind(('', port))\ndef f(sock):\n    g(sock, 0)",
        ["True -> a port that the kernel chooses"],
    ),
}


@pytest.mark.parametrize(("body", "expected"), GATES.values(), ids=GATES)
def test_the_gate_of_a_creation_is_that_of_every_step_to_it(body: str, expected: list[str]) -> None:
    assert told(body) == expected


def test_functions_that_call_each_other_end() -> None:
    body = "def f(sock):\n    sock.bind('tcp://*:1')\n    g(sock)\ndef g(sock):\n    f(sock)"
    found = reached(meaning_of(body))
    assert [[function.name for function in way.chain] for way in found] == [["f", "g"]]


def test_only_some_of_very_many_ways_are_followed() -> None:
    levels = "".join(
        f"def f{n}(sock):\n    f{n + 1}(sock)\ndef g{n}(sock):\n    f{n + 1}(sock)\n    g{n + 1}(sock)\n"
        for n in range(9)
    )
    body = levels + "def f9(sock):\n    sock.bind('tcp://*:1')\ndef g9(sock):\n    f9(sock)\n"
    assert 0 < len(reached(meaning_of(body))) < 100


def test_nobody_is_asked_who_calls_a_process_that_exists_once() -> None:
    profile = Profile("mine", roles=(("a:*", ()),))
    body = "def g(sock):\n    sock.bind('tcp://*:1')\ndef f(tp_rank, sock):\n    if tp_rank == 0:\n        g(sock)"
    (way,) = reached(meaning_of(body, profile))
    assert text(way.gate) == "True"
    assert [function.name for function in way.chain] == ["g"]


def test_a_way_is_whole_where_nobody_calls_its_end() -> None:
    (way,) = reached(meaning_of("def g(sock):\n    sock.bind('tcp://*:1')\ndef f(sock):\n    g(sock)"))
    assert way.whole
    assert [function.name for function in way.chain] == ["g", "f"]


def test_creations_of_ones_own_have_ways_too() -> None:
    meaning = meaning_of("def f(tp_rank):\n    if tp_rank == 0:\n        MyBus(endpoint='tcp://*:1')")
    (way,) = reached(meaning, {"MyBus": "endpoint"})
    assert text(way.gate) == "tp_rank == 0"
    assert reached(meaning_of("def f(tp_rank):\n    MyBus(endpoint='tcp://*:1')")) == []


# ---- which files are looked at

MAKING = {
    "sock.bind(address)": True,
    "# bind everything": False,
    "bind_all(address)": False,
    "import uvicorn": True,
    "open('server.pid', 'w')": True,
    "open('notes.txt')": False,
    "open(path, 'x')": True,
    "PublisherFactory.create(a)": True,
    "factory.create(a)": False,
    "MyBus(a)": True,
}


@pytest.mark.parametrize(("body", "expected"), MAKING.items(), ids=MAKING)
def test_files_in_which_something_may_be_made(body: str, expected: bool) -> None:
    found = [module.source.name for module in making(Program([Source("a.py", "a", body.encode())]), {"x.MyBus": "0"})]
    assert found == (["a.py"] if expected else [])


# ---- the axes that code knows

EVIDENT: dict[str, tuple[str, set[str]]] = {
    "a parameter": ("def go(tp_rank, x): pass", {"tp"}),
    "a group": ("def go(pp_group): pass", {"pp"}),
    "a world": ("def go(rank): pass", {"rank"}),
    "an attribute": ("def go(self):\n    return self.dp_rank", {"dp"}),
    "what a function gives": ("def go():\n    return get_tensor_model_parallel_rank()", {"tp"}),
    "a mesh": ("def go(mesh):\n    return mesh.get_local_rank('dp')", {"dp"}),
    "the axes of a mesh": (
        "def go():\n    init_device_mesh('cuda', (2, 2), mesh_dim_names=('pp', 'tp'))",
        {"pp", "tp"},
    ),
    "somebody else's rank": ("def go(req):\n    return req.dp_rank", set()),
    "a size": ("def go(tp_size):\n    return tp_size", set()),
    "another method of the object": (
        "class A:\n    def __init__(self, x):\n        self.tp_rank = x\n    def go(self): pass",
        {"tp"},
    ),
    "a base of its class": (
        "class B:\n    def m(self):\n        return self.pp_rank\nclass A(B):\n    def go(self): pass",
        {"pp"},
    ),
    "the type of a parameter": (
        "class State:\n    tp_rank: int\n    pp_rank: int\ndef go(state: State): pass",
        {"tp", "pp"},
    ),
    "the type of a field": (
        "class State:\n    tp_rank: int\nclass A:\n    state: State\n    def go(self): pass",
        {"tp"},
    ),
    "the function around it": ("def f(tp_rank):\n    def go(): pass", {"tp"}),
    "nothing": ("def go(x):\n    return x", set()),
}


@pytest.mark.parametrize(("body", "expected"), EVIDENT.values(), ids=EVIDENT)
def test_the_axes_of_which_code_knows_its_coordinate(body: str, expected: set[str]) -> None:
    meaning = meaning_of(body)
    module = meaning.program.module(meaning.program.sources[0])
    assert module is not None
    (go,) = [function for function in module.functions if function.name == "go"]
    assert isinstance(go, Function)
    assert evident(meaning, go) == expected
    assert evident(meaning, go) is evident(meaning, go)
