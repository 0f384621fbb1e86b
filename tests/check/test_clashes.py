"""Which owners meet at one address: every kind of address, what is meant, and the same as comparing all with all."""

from __future__ import annotations

import time
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankbind.check.clashes import Clash, clashes
from rankbind.check.deployments import together
from rankbind.check.plan import Binding
from rankbind.endpoint import normal_path, overlaps

from ..support.findings import JOB, findings, plan

TWO = "[axes]\ntp = 2\n[resources.a]\nowner = { tp = 0 }\n<a>\n[resources.b]\nowner = { tp = 1 }\n<b>\n"
"""Rank 0 owns a, rank 1 owns b, on one host."""


def met(text: str) -> list[tuple[int, int]]:
    return sorted((a.rank, b.rank) for clash in clashes(plan(text).bindings) for a, b in clash.pairs())


def two(a: str, b: str) -> list[tuple[int, int]]:
    return [(min(pair), max(pair)) for pair in met(TWO.replace("<a>", a).replace("<b>", b))]


# ---- two resources, one rank each


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("bind = 'tcp://*:9400'", "bind = 'tcp://*:9400'"),
        ("bind = 'tcp://*:9400'", "bind = 'tcp://127.0.0.1:9400'"),
        ("bind = 'tcp://*:9400'", "replay = 'tcp://eth0:9400'"),
        ("bind = 'tcp://localhost:9400'", "bind = 'tcp://127.0.0.1:9400'"),
        ("bind = 'tcp://*:9400-9402'", "bind = 'tcp://*:9402'"),
        ("bind = 'tcp://*:9400-9402'", "bind = 'tcp://*:9390-9410'"),
        # Dual-stack: [::] takes IPv4 too.
        ("bind = 'tcp://[::]:9400'\nipv6 = true", "bind = 'tcp://0.0.0.0:9400'"),
        ("bind = 'tcp://*:9400'\nipv6 = true", "bind = 'tcp://[::1]:9400'\nipv6 = true"),
        ("bind = 'ipc:///run/x'", "bind = 'ipc:///run/./x'"),
        ("bind = 'ipc:///run/x'", "path = '/run//x'"),
        ("path = '/run/x'", "path = '/run/y/../x'"),
        ("path = '/run/x'\nscope = 'shared'", "path = '/run/x'\nscope = 'host'"),
        ("bind = 'ipc://@x'", "bind = 'ipc://@x'"),
        # SO_REUSEPORT takes both sides, and does nothing for a path or an abstract name.
        ("bind = 'tcp://*:9400'\nshared = 'reuseport'", "bind = 'tcp://*:9400'"),
        ("bind = 'tcp://*:9400'\nshared = 'reuseport'", "bind = 'tcp://*:9400'\nshared = 'inherited'"),
        ("bind = 'tcp://*:9400'\nshared = 'inherited'", "bind = 'tcp://*:9400'\nshared = 'inherited'"),
        ("bind = 'ipc:///run/x'\nshared = 'reuseport'", "bind = 'ipc:///run/x'\nshared = 'reuseport'"),
        ("bind = 'ipc://@x'\nshared = 'reuseport'", "bind = 'ipc://@x'\nshared = 'reuseport'"),
        # A device is one thing, whatever is put on it.
        ("device = 'gpu 0'", "device = 'gpu 0'"),
        ("device = ['gpu 0', 'gpu 1']", "device = ['gpu 2', 'gpu 1']"),
    ],
)
def test_they_meet(a: str, b: str) -> None:
    assert two(a, b) == [(0, 1)]
    assert two(b, a) == [(0, 1)]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("bind = 'tcp://*:9400'", "bind = 'tcp://*:9401'"),
        ("bind = 'tcp://127.0.0.1:9400'", "bind = 'tcp://127.0.0.2:9400'"),
        ("bind = 'tcp://192.0.2.1:9400'", "bind = 'tcp://127.0.0.1:9400'"),
        ("bind = 'tcp://*:9400-9402'", "bind = 'tcp://*:9403-9405'"),
        ("bind = 'tcp://0.0.0.0:9400'", "bind = 'tcp://[::1]:9400'\nipv6 = true"),
        ("bind = 'tcp://[::]:9400'\nipv6 = true\nv6only = true", "bind = 'tcp://0.0.0.0:9400'"),
        ("bind = 'tcp://*:0'", "bind = 'tcp://*:0'"),
        ("bind = 'tcp://*:*'", "bind = 'tcp://127.0.0.1:0'"),
        ("bind = 'ipc://*'", "bind = 'ipc://*'"),
        ("bind = 'ipc:///run/x'", "bind = 'ipc:///run/y'"),
        ("bind = 'ipc://@x'", "bind = 'ipc://x'"),
        ("bind = 'ipc://@x'", "path = 'x'"),
        ("bind = 'ipc://@x'", "bind = 'ipc://@X'"),
        ("bind = 'inproc://x'", "bind = 'inproc://x'"),
        # What a name means belongs to its resource.
        ("name = 'x'", "name = 'x'"),
        ("name = 'x'", "path = 'x'"),
        ("bind = 'tcp://*:9400'\nshared = 'reuseport'", "bind = 'tcp://127.0.0.1:9400'\nshared = 'reuseport'"),
        # Within a job nobody is in the way of who only looks.
        ("probe = 'tcp://*:9400'", "bind = 'tcp://*:9400'"),
        ("probe = 'tcp://*:9400'", "probe = 'tcp://*:9400'"),
        ("device = 'gpu 0'", "device = 'gpu 1'"),
        ("device = 'x'", "name = 'x'"),
        ("device = 'x'", "path = 'x'"),
    ],
)
def test_they_do_not_meet(a: str, b: str) -> None:
    assert two(a, b) == []
    assert two(b, a) == []


# ---- one resource


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("bind = 'tcp://*:5557'", [(0, 4)]),
        ("bind = 'tcp://*:{5557 + pp}'", []),
        ("bind = 'ipc:///run/x'", [(0, 4)]),
        ("bind = 'ipc://@x'", [(0, 4)]),
        ("name = 'x'", [(0, 4)]),
        ("path = 'x'", [(0, 4)]),
        ("bind = 'inproc://x'", []),
        ("bind = 'tcp://*:5557'\nshared = 'inherited'", []),
        ("bind = 'tcp://*:5557'\nshared = 'reuseport'", []),
        ("bind = 'ipc:///run/x'\nshared = 'inherited'", []),
        ("bind = 'ipc:///run/x'\nshared = 'reuseport'", [(0, 4)]),
        ("path = 'x'\nshared = 'inherited'", []),
        ("bind = 'tcp://*:5557'\nreplay = 'tcp://*:5558'", [(0, 4), (0, 4)]),
        # Publish and replay are two sockets: sharing one port is never what is meant.
        ("bind = 'tcp://*:5557'\nreplay = 'tcp://*:5557'\nshared = 'reuseport'", [(0, 0), (0, 4), (4, 0), (4, 4)]),
        ("bind = 'inproc://x'\nreplay = 'inproc://x'", [(0, 0), (4, 4)]),
        ("device = 'gpu {tp}'", [(0, 4)]),
        ("device = ['gpu {tp}', 'gpu {rank}']", [(0, 4), (4, 0)]),
        ("device = 'gpu {rank}'", []),
        ("device = 'gpu 0'\nshared = 'inherited'", []),
        ("probe = 'tcp://*:5557'", []),
        # Publish of one replica against replay of another.
        ("bind = 'tcp://*:{5557 + pp}'\nreplay = 'tcp://*:{5558 + pp}'", [(4, 0)]),
    ],
)
def test_the_owners_of_one_resource(said: str, expected: list[tuple[int, int]]) -> None:
    assert met(f"{JOB}owner = {{ tp = 0 }}\n{said}") == expected


def test_hosts_have_ports_and_files_of_their_own_and_share_names() -> None:
    hosts = "\n[hosts]\ncount = 2"
    assert met(f"{JOB}owner = {{ tp = 0 }}\nbind = ['tcp://*:5557', 'ipc:///run/x', 'ipc://@x']{hosts}") == []
    assert met(f"{JOB}owner = {{ tp = 0 }}\nname = 'x'{hosts}") == [(0, 4)]
    assert met(f"{JOB}owner = {{ tp = 0 }}\nname = 'x'\nscope = 'host'{hosts}") == []
    assert met(f"{JOB}owner = {{ tp = 0 }}\npath = 'x'\nscope = 'shared'{hosts}") == [(0, 4)]
    assert met(f"{JOB}owner = {{ tp = 0 }}\npath = 'x'\nscope = 'host'{hosts}") == []


def test_a_shared_path_meets_a_socket_on_any_host() -> None:
    text = f"{JOB}owner = {{ rank = 0 }}\npath = '/run/x'\nscope = 'shared'\n[resources.s]\nowner = {{ rank = 7 }}\n"
    assert met(f"{text}bind = 'ipc:///run/x'\n[hosts]\ncount = 2") == [(0, 7)]


def test_a_rank_on_two_hosts_meets_itself_only_where_hosts_share() -> None:
    text = f"{JOB}owner = {{ rank = 0 }}\n@\n[hosts.ranks]\na = '0-7'\nb = '0'"
    assert met(text.replace("@", "bind = 'tcp://*:1'")) == []
    assert met(text.replace("@", "name = 'x'")) == [(0, 0)]
    assert met(text.replace("@", "bind = 'tcp://*:1'").replace("b = '0'", "b = '0, 0'")) == [(0, 0)]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # One winner in each group: no clash inside one.
        ("singleton_per = { group = 'world', rank = 'any' }\nbind = 'tcp://*:5557'", 0),
        ("singleton_per = { group = 'host', rank = 'any' }\nbind = 'tcp://*:5557'", 0),
        ("singleton_per = { group = 'tp', rank = 'any' }\nbind = 'tcp://*:{5557 + pp}'", 0),
        ("singleton_per = { group = 'tp', rank = 'any' }\nname = 'x-{pp}'", 0),
        # Between two groups, whoever wins: four times four.
        ("singleton_per = { group = 'tp', rank = 'any' }\nbind = 'tcp://*:5557'", 16),
        # One device: the winner of each group is another rank, but within a group there is one winner.
        ("singleton_per = { group = 'world', rank = 'any' }\ndevice = 'gpu 0'", 0),
        ("singleton_per = { group = 'tp', rank = 'any' }\ndevice = 'gpu 0'", 16),
        ("singleton_per = { group = 'world', rank = 'any' }\ndevice = ['gpu 0', 'gpu {rank % 2}']", 0),
        # The winner's own two sockets meet.
        ("singleton_per = { group = 'world', rank = 'any' }\nbind = 'tcp://*:5557'\nreplay = 'tcp://*:5557'", 8),
        ("singleton_per = { group = 'tp', rank = 'any' }\nbind = 'tcp://*:{1 + tp}'\nreplay = 'tcp://*:{9 + tp}'", 8),
    ],
)
def test_elections(said: str, expected: int) -> None:
    assert len(met(f"{JOB}{said}")) == expected


def test_a_rank_that_is_placed_twice_is_one_rank_to_its_device() -> None:
    text = f"{JOB}owner = {{ pp = 0, tp = [0, 1] }}\ndevice = 'gpu 0'\n[hosts.ranks]\na = '0-7, 0'\nb = '0'"
    assert met(text) == [(0, 1), (0, 1)]
    assert met(text.replace("[0, 1]", "0")) == []


def test_an_election_against_another_resource() -> None:
    text = f"{JOB}singleton_per = {{ group = 'world', rank = 'any' }}\nbind = 'tcp://*:5557'\n[resources.b]\n"
    assert len(met(f"{text}owner = {{ rank = 0 }}\nbind = 'tcp://*:5557'")) == 8


@pytest.mark.parametrize(
    ("said", "silent"),
    [
        ("bind = 'tcp://*:5557'", False),
        ("bind = 'ipc://@x'", False),
        ("bind = 'inproc://x'\nreplay = 'inproc://x'", False),
        ("bind = 'ipc:///run/x'", True),
        ("path = '/run/x'", True),
        ("name = 'x'", True),
    ],
)
def test_what_the_kernel_says_nothing_about(said: str, silent: bool) -> None:
    found = list(clashes(plan(f"{JOB}owner = {{ tp = 0 }}\n{said}").bindings))
    assert found
    assert {clash.silent for clash in found} == {silent}


def test_what_is_alike_is_told_once() -> None:
    (clash,) = clashes(plan(f"{JOB}owner = {{}}\nbind = 'tcp://*:5557'").bindings)
    assert (clash.count, clash.a.rank, clash.b.rank) == (28, 0, 1)
    assert clash.swapped() is clash
    assert len(list(clash.pairs())) == 28


def test_told_from_the_other_side() -> None:
    (clash,) = clashes(plan(TWO.replace("<a>", "bind = 'tcp://*:1'").replace("<b>", "bind = 'tcp://*:1'")).bindings)
    assert (clash.swapped().a, clash.swapped().b, clash.swapped().count) == (clash.b, clash.a, 1)


# ---- the same as comparing every binding with every other


@st.composite
def jobs(draw: st.DrawFn) -> str:
    sizes = {"dp": draw(st.integers(1, 3)), "pp": draw(st.integers(1, 2)), "tp": draw(st.integers(1, 2))}
    world = sizes["dp"] * sizes["pp"] * sizes["tp"]
    lines = ["[axes]", *(f"{name} = {size}" for name, size in sizes.items()), "[hosts]"]
    if draw(st.booleans()):
        ranks = st.lists(st.integers(0, world - 1), max_size=4)
        lines.append(f"ranks = {{ a = {draw(ranks)}, b = {draw(ranks)}, c = {list(range(world))} }}")
    else:
        first = draw(st.integers(0, world))
        lines.append(f"blocks = [{first}, {world - first}]")
    sides = ["*", "127.0.0.1", "[::]", "[::1]", "localhost", "h{dp}", "192.0.2.{pp}"]
    endpoints = st.one_of(
        st.builds(
            "tcp://{}:{}".format,
            st.sampled_from(sides),
            st.sampled_from(
                ["5557", "{5557 + dp}", "{5557 + dp + pp}", "5556-5558", "{5556 + tp}-{5557 + tp}", "0", "{dp}"]
            ),
        ),
        st.sampled_from(["ipc:///run/x", "ipc:///run/./x", "ipc:///run/{dp}", "ipc://@x", "ipc://*", "inproc://x"]),
    )
    others = st.sampled_from(["/run/x", "/run/{dp}", "x", "{pp}"])
    devices = st.sampled_from(["0", "{dp}", "{tp}", "{dp + pp}"])
    for name in "abc"[: draw(st.integers(1, 3))]:
        lines.append(f"[resources.{name}]")
        if draw(st.booleans()):
            group = draw(st.sampled_from(['"dp"', '"tp"', '["dp", "pp"]', '"world"']))
            lines.append(
                f"singleton_per = {{ group = {group}, rank = {draw(st.sampled_from(['0', '-1', QUOTED_ANY]))} }}"
            )
        else:
            gate = draw(st.dictionaries(st.sampled_from(list(sizes)), st.just(0), max_size=2))
            lines.append(f"owner = {{ {', '.join(f'{axis} = {index}' for axis, index in gate.items())} }}")
        reaching = False
        roles = {"bind": endpoints, "replay": endpoints, "name": others, "path": others}
        for role, values in (roles | {"probe": endpoints, "device": devices}).items():
            found = draw(st.lists(values, max_size=2, unique=True))
            if found:
                lines.append(f"{role} = {found}")
                reaching = reaching or role in ("name", "path")
        if reaching:
            lines.append(f"scope = {draw(st.sampled_from(['host', 'shared']))!r}")
        lines += draw(st.sampled_from([[], [], ["shared = 'inherited'"], ["shared = 'reuseport'"]]))
        lines += draw(st.sampled_from([[], ["ipv6 = true"], ["ipv6 = true", "v6only = true"]]))
    return "\n".join(lines)


QUOTED_ANY = '"any"'


def one_by_one(a: Binding, b: Binding) -> bool:
    """Whether two bindings clash, told as plainly as it can be."""
    job = a.deployment == b.deployment
    roles = [x.address.role for x in (a, b)]
    if "probe" in roles and (job or roles == ["probe", "probe"]):
        return False
    same, one_address = job and a.resource is b.resource, job and a.address is b.address
    if "device" in roles and ((job and a.rank == b.rank) or (one_address and a.resource.shared)):
        return False
    elected = same and a.election is not None and a.election == b.election
    if elected and (one_address or a.rank != b.rank or "device" in roles):
        return False
    tcp = all(x.endpoint is not None and x.endpoint.transport == "tcp" for x in (a, b))
    if one_address and a.resource.shared == "inherited":
        return False
    if one_address and a.resource.shared == "reuseport" and (tcp or a.endpoint is None):
        return False
    if not same and a.resource.shared == b.resource.shared == "reuseport" and tcp and "probe" not in roles:
        return False
    here = a.host == b.host or "shared" in (a.address.scope, b.address.scope)
    if a.endpoint is not None and b.endpoint is not None:
        in_process = a.endpoint.transport == "inproc"
        if in_process and (one_address or a.rank != b.rank or not job):
            return False
        return here and overlaps(a.endpoint, b.endpoint, same_process=a.rank == b.rank)
    if {"name", "device"} & {*roles}:
        return here and roles[0] == roles[1] and a.text == b.text and (roles[0] == "device" or names_of_one(a, b))
    files = [normal_path(x.text) if x.endpoint is None else x.endpoint.file for x in (a, b)]
    return here and files[0] is not None and files[0] == files[1]


def names_of_one(a: Binding, b: Binding) -> bool:
    return a.resource.name == b.resource.name


@settings(max_examples=150)
@given(jobs(), st.none() | jobs())
def test_the_same_as_comparing_every_pair(text: str, other: str | None) -> None:
    bindings = tuple(together([plan(text), *([plan(other)] if other else [])]))
    number = {id(binding): index for index, binding in enumerate(bindings)}
    found = Counter(frozenset((number[id(a)], number[id(b)])) for clash in clashes(bindings) for a, b in clash.pairs())
    expected = {frozenset((i, j)) for (i, a), (j, b) in combinations(enumerate(bindings), 2) if one_by_one(a, b)}
    assert set(found) == expected
    assert not found or max(found.values()) == 1
    assert sum(clash.count for clash in clashes(bindings)) == len(expected)
    apart = {pair for pair in expected if len({bindings[at].deployment for at in pair}) == 2}
    told = (pair for clash in clashes(bindings, between=True) for pair in clash.pairs())
    assert {frozenset((number[id(a)], number[id(b)])) for a, b in told} == apart


# ---- large


def huge(ranks_a_host: int, hosts: int) -> str:
    resources = "".join(
        f"[resources.r{n}]\nowner = {{}}\nbind = 'tcp://*:{5557 + 100 * n}'\nname = 'n'\nscope = 'host'\n"
        for n in range(6)
    )
    return f"[axes]\ndp = {hosts}\ntp = {ranks_a_host}\n[hosts]\ncount = {hosts}\n{resources}"


def test_it_does_not_compare_everything_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 ranks, 6 resources that nobody gates: 10,752 pairs, found with one question for each address of each host."""
    bindings = plan(huge(8, 64)).bindings
    asked = 0

    def counted(*args: Any, **options: Any) -> bool:
        nonlocal asked
        asked += 1
        return overlaps(*args, **options)

    monkeypatch.setattr("rankbind.check.clashes.overlaps", counted)
    found: list[Clash] = list(clashes(bindings))
    assert len(bindings) == 2 * 6 * 512
    assert sum(clash.count for clash in found) == 2 * 6 * 64 * 28
    assert len(found) == 2 * 6 * 64
    assert asked == 6 * 64


def test_a_large_job_is_checked_in_seconds() -> None:
    start = time.perf_counter()
    found = findings(huge(8, 64))
    assert {f.facts["pairs"] for f in found} == {64 * 28}
    assert time.perf_counter() - start < 20  # 0.3 s where nothing else runs
