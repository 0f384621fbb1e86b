"""RB208, RB210, RB211: what consumers dial and what owners bind must be one set."""

from __future__ import annotations

import time

import pytest

from rankbind.check.dialling import reaches
from rankbind.finding import Finding

from ..support.findings import JOB, codes, finding, plan, underlined


def kv(text: str) -> str:
    return JOB + text


def connect(bind: str, to: str) -> str:
    """Rank 0 of host a binds, rank 7 of host b dials."""
    return f"""
[axes]
tp = 8
[hosts]
blocks = [4, 4]
names = ["a", "b"]
addresses = {{ a = "192.0.2.1", b = "192.0.2.2" }}
[resources.kv]
owner = {{ tp = 0 }}
bind = "{bind}"
connect = {{ to = "{to}", owner = {{ tp = 7 }} }}
"""


# ---- who it is that dials


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("axes = { dp = 2 }", "kv: the consumer dials tcp://h:9, tcp://h:10, where nobody listens"),
        ("axes = { dp = 2 }, by = 'a router'", "kv: a router dials tcp://h:9, tcp://h:10, where nobody listens"),
        ("owner = { rank = [0, 4] }", "kv: ranks 0, 4 dial tcp://h:9, tcp://h:10, where nobody listens"),
        (
            "owner = { rank = [0, 4] }, by = 'scheduler'",
            "kv: ranks 0, 4 (scheduler) dial tcp://h:9, tcp://h:10, where nobody listens",
        ),
        ("owner = { rank = 0 }, by = 'scheduler'", "kv: rank 0 (scheduler) dials tcp://h:9, where nobody listens"),
    ],
)
def test_who_dials(said: str, message: str) -> None:
    to = "tcp://h:{9 + dp}" if "axes" in said else "tcp://h:{9 + pp}"
    text = kv(f"owner = {{ rank = 0 }}\nbind = 'tcp://*:5557'\nconnect = {{ to = '{to}', {said} }}")
    assert finding(text, "RB210").message == message


def test_two_that_are_not_the_same_are_the_consumer() -> None:
    dialled = ", ".join(f"{{ to = 'tcp://h:{port}', axes = {{}}, by = 'router {port}' }}" for port in (8, 9))
    text = kv(f"owner = {{ rank = 0 }}\nbind = 'tcp://*:5557'\nconnect = [{dialled}]")
    assert finding(text, "RB210").message == "kv: the consumer dials tcp://h:8, tcp://h:9, where nobody listens"


def test_who_dials_its_own_host() -> None:
    text = connect("tcp://*:5557", "tcp://localhost:5557").replace("{ tp = 0 }", "{ local_rank = 0 }")
    text = text.replace("owner = { tp = 7 }", "axes = {}, by = 'a router that reads /server_info'")
    assert finding(text, "RB211").message.startswith("kv: a router that reads /server_info dials tcp://localhost:5557 ")


def test_a_probe_is_not_dialled_and_hears_nobody() -> None:
    text = kv("owner = { rank = 0 }\nprobe = 'tcp://*:5557'\nconnect = { to = 'tcp://h:5557', axes = {} }")
    assert codes(text) == ["RB210"]


# ---- who gets through to whom, across hosts


@pytest.mark.parametrize(
    ("bind", "to"),
    [
        ("tcp://*:5557", "tcp://a:5557"),
        ("tcp://*:5557", "tcp://192.0.2.1:5557"),
        ("tcp://192.0.2.1:5557", "tcp://192.0.2.1:5557"),
        ("tcp://192.0.2.1:5557", "tcp://a:5557"),
        ("tcp://eth0:5557", "tcp://192.0.2.1:5557"),
        ("tcp://*:5557", "tcp://some-name:5557"),
        ("tcp://*:5550-5560", "tcp://a:5557"),
        ("tcp://*:5557", "tcp://203.0.113.9:5557"),
    ],
)
def test_across_hosts(bind: str, to: str) -> None:
    assert codes(connect(bind, to)) == []


@pytest.mark.parametrize(
    ("bind", "to"),
    [
        ("tcp://*:5557", "tcp://a:5558"),
        ("tcp://*:5557", "tcp://b:5557"),
        ("tcp://*:5557", "tcp://192.0.2.2:5557"),
        ("tcp://192.0.2.1:5557", "tcp://203.0.113.9:5557"),
        # R29: loopback passes every bind check and fails across hosts, on either side.
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("tcp://*:5557", "tcp://localhost:5557"),
        ("tcp://127.0.0.1:5557", "tcp://a:5557"),
        ("tcp://*:5557", "tcp://[::1]:5557"),
        ("tcp://*:5557", "tcp://0.0.0.0:5557"),
        ("tcp://*:5557", "tcp://a:0"),
        # Nobody can dial a wildcard.
        ("tcp://*:5557", "tcp://*:5557"),
        # IPv4 only does not answer on IPv6.
        ("tcp://*:5557", "tcp://[2001:db8::1]:5557"),
        ("ipc:///run/x", "ipc:///run/x"),
        ("ipc://@x", "ipc://@x"),
        ("tcp://*:5557", "ipc:///run/x"),
    ],
)
def test_not_across_hosts(bind: str, to: str) -> None:
    assert codes(connect(bind, to)) == ["RB211", "RB210"] or codes(connect(bind, to)) == ["RB210", "RB211"]


def test_the_names_of_hosts_are_numbers_by_default() -> None:
    owner = "owner = { local_rank = 0 }\nbind = 'tcp://192.0.2.{node_rank}:5557'\n"
    text = kv(f"{owner}connect = 'tcp://{{@}}:5557'\n[hosts]\ncount = 2")
    assert codes(text.replace("@", "pp")) == []
    assert codes(text.replace("@", "0 * pp")) == ["RB211"]


# ---- on one host


@pytest.mark.parametrize(
    ("bind", "to"),
    [
        ("tcp://*:5557", "tcp://127.0.0.1:5557"),
        ("tcp://*:5557", "tcp://localhost:5557"),
        ("tcp://*:5557", "tcp://lo:5557"),
        ("tcp://*:5557", "tcp://0.0.0.0:5557"),
        ("tcp://127.0.0.1:5557", "tcp://localhost:5557"),
        ("tcp://localhost:5557", "tcp://127.0.0.1:5557"),
        ("tcp://*:5557", "tcp://any-name:5557"),
        ("ipc:///run/x", "ipc:///run/./x"),
        ("ipc://@x", "ipc://@x"),
    ],
)
def test_on_one_host(bind: str, to: str) -> None:
    assert codes(kv(f"owner = {{ rank = 0 }}\nbind = '{bind}'\nconnect = '{to}'")) == []


@pytest.mark.parametrize(
    ("bind", "to"),
    [
        ("tcp://*:5557", "tcp://[::1]:5557"),
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.2:5557"),
        ("tcp://127.0.0.1:5557", "tcp://host:5557"),
        ("tcp://127.0.0.1:5557", "tcp://192.0.2.1:5557"),
        ("ipc:///run/x", "ipc:///run/y"),
        ("ipc://@x", "ipc://x"),
    ],
)
def test_past_each_other_on_one_host(bind: str, to: str) -> None:
    found = codes(kv(f"owner = {{ rank = 0 }}\nbind = '{bind}'\nconnect = '{to}'"))
    assert {"RB210", "RB211"}.issubset(found)


def test_dual_stack_answers_on_both() -> None:
    text = kv("owner = { rank = 0 }\nbind = 'tcp://*:5557'\nipv6 = true\nconnect = 'tcp://@:5557'")
    assert codes(text.replace("@", "[::1]")) == []
    assert codes(text.replace("@", "127.0.0.1")) == []
    assert codes(text.replace("@", "127.0.0.1") + "\nv6only = true") == ["RB211", "RB210"]


# ---- one set


def test_every_rank_dials_its_replicas_publisher() -> None:
    text = kv(
        "singleton_per = { group = ['pp', 'attn_tp'] }\nbind = 'tcp://*:{5557 + attn_dp}'\n"
        "connect = 'tcp://127.0.0.1:{5557 + attn_dp}'"
    )
    assert codes(text) == []


def test_a_router_with_too_few_subscriptions() -> None:
    text = kv(
        "owner = { pp = 0, attn_tp = 0 }\nbind = 'tcp://*:{5557 + attn_dp}'\n"
        "connect = { to = 'tcp://h:{5557 + r}', axes = { r = 1 } }"
    )
    found = finding(text, "RB211")
    assert codes(text) == ["RB211"]
    assert "tcp://*:5558" in found.message
    assert found.facts["ranks"] == [2]
    assert found.facts["endpoints"] == ["tcp://*:5558"]
    assert underlined(found, text) == ["'tcp://*:{5557 + attn_dp}'", "'tcp://h:{5557 + r}'"]
    assert codes(text.replace("r = 1", "r = 2")) == []


def test_a_router_with_too_many() -> None:
    text = kv(
        "owner = { pp = 0, attn_tp = 0 }\nbind = 'tcp://*:{5557 + attn_dp}'\n"
        "connect = { to = 'tcp://h:{5557 + r}', axes = { r = 3 } }"
    )
    found = finding(text, "RB210")
    assert codes(text) == ["RB210"]
    assert "tcp://h:5559" in found.message
    assert found.facts["dialled"] == ["tcp://h:5559"]
    assert underlined(found, text) == ["'tcp://h:{5557 + r}'", "'tcp://*:{5557 + attn_dp}'"]


def test_a_consumer_with_another_tp() -> None:
    """field.md, hardest 3: half of the peers are never called."""
    outsider = "connect = { to = 'tcp://h:{6000 + a * 2 + b}', axes = { a = 4, b = 2 } }"
    text = kv(f"owner = {{}}\nbind = 'tcp://*:{{6000 + rank}}'\n{outsider}")
    assert codes(text) == []
    assert finding(text.replace("a * 2", "a"), "RB211").facts["ranks"] == [5, 6, 7]


def test_many_are_folded() -> None:
    text = kv("owner = { rank = 0 }\nbind = 'tcp://*:6000'\nconnect = 'tcp://127.0.0.1:{6000 + rank}'")
    found = finding(text, "RB210")
    assert "ranks 1..7 dial" in found.message
    assert "(7 in all)" in found.message
    assert len(found.facts["dialled"]) == 7


def test_each_role_is_a_set_of_its_own() -> None:
    text = kv(
        "owner = { rank = 0 }\nbind = 'tcp://*:6000'\nreplay = 'tcp://*:6001'\n"
        "connect = [{ to = 'tcp://h:6000', axes = {} }, { to = 'tcp://h:6001', role = 'replay', axes = {} }]"
    )
    assert codes(text) == []
    # A replay socket that nobody dials is no fault, unless somebody dials replay.
    assert codes(text.replace(", { to = 'tcp://h:6001', role = 'replay', axes = {} }", "")) == []
    assert codes(text.replace("tcp://h:6001', role", "tcp://h:6000', role")) == ["RB211", "RB210"]


def test_nothing_is_bound_at_all() -> None:
    text = kv("owner = { rank = 0 }\nconnect = 'tcp://h:6000'")
    found = finding(text, "RB210")
    assert codes(text) == ["RB210"]
    assert found.facts["bound"] == []
    assert found.details == ("bound: nothing",)


def test_nobody_dials_at_all_is_no_fault() -> None:
    assert codes(kv("owner = { rank = 0 }\nbind = 'tcp://*:6000'")) == []


def test_what_the_kernel_picks_is_looked_up_at_run_time() -> None:
    assert codes(kv("owner = {}\nbind = 'tcp://*:0'\nconnect = 'tcp://h:{6000 + rank}'")) == []


def test_a_port_that_is_none_is_told_once() -> None:
    text = kv(
        "owner = { rank = 0 }\nbind = 'tcp://*:65536'\nconnect = 'tcp://h:65536'\n[hosts]\nephemeral = [32768, 60999]"
    )
    assert codes(text) == ["RB203"]


def test_any_candidate_may_be_the_one_that_is_dialled() -> None:
    text = kv("singleton_per = { group = 'world', rank = 'any' }\nbind = 'tcp://*:6000'\nconnect = 'tcp://h:6000'")
    assert codes(text) == []


HOSTS = "\n[hosts]\ncount = 2"


@pytest.mark.parametrize("to", ["tcp://127.0.0.1:6000", "tcp://localhost:6000", "tcp://0.0.0.0:6000"])
def test_loopback_of_an_outsider_may_be_any_host_but_is_one(to: str) -> None:
    text = kv(f"owner = {{ @ }}\nbind = 'tcp://*:6000'\nconnect = {{ to = '{to}', axes = {{}} }}{HOSTS}")
    assert codes(text.replace("@", "rank = 0")) == []
    assert codes(text.replace("@", "rank = 7")) == []
    found = finding(text.replace("@", "local_rank = 0"), "RB211")
    assert found.fails
    assert "on its own host, and hosts 0, 1 listen: it reaches one of them only" in found.message
    assert found.facts == {
        "resource": "kv",
        "ranks": [0, 4],
        "endpoints": ["tcp://*:6000"],
        "dialled": [to],
        "hosts": ["0", "1"],
    }


def test_one_consumer_on_each_host_reaches_them_all() -> None:
    text = kv(
        "owner = { local_rank = [0, 1] }\nbind = 'tcp://*:{6000 + local_rank}'\n"
        f"connect = {{ to = 'tcp://localhost:{{6000 + r}}', axes = {{ @r = 2 }} }}{HOSTS}"
    )
    assert codes(text.replace("@", "node = 2, ")) == []
    assert codes(text.replace("@", "")) == ["RB211"]


def test_a_router_that_dials_loopback_for_owners_on_two_hosts_is_noted() -> None:
    text = kv(
        "singleton_per = { group = 'tp' }\nbind = '@{6000 + pp}'\n"
        f"connect = {{ to = '@@{{6000 + r}}', axes = {{ r = 2 }} }}{HOSTS}"
    )
    loopback = text.replace("@@", "tcp://127.0.0.1:").replace("@", "tcp://*:")
    found = finding(loopback, "RB211")
    assert not found.fails
    assert "one process reaches one of them only" in found.message
    assert codes(loopback.replace("{ r = 2 }", "{ node = 2, r = 2 }")) == []  # what the help says
    assert codes(loopback.replace("{ r = 2 }", "{ r = 1 }")) == ["RB211"]  # nobody dials 6001: that is enough
    assert underlined(found, loopback) == ["'tcp://127.0.0.1:{6000 + r}'", "'tcp://*:{6000 + pp}'"]
    assert codes(text.replace("@@", "ipc:///run/x").replace("@", "ipc:///run/x")) == ["RB211"]
    assert codes(loopback.replace("127.0.0.1", "h")) == []
    assert codes(loopback.replace(HOSTS, "")) == []


def test_of_an_election_one_listens() -> None:
    scope = "singleton_per = { group = 'world', rank = 'any' }"
    text = kv(f"{scope}\nbind = 'tcp://*:6000'\nconnect = {{ to = 'tcp://127.0.0.1:6000', axes = {{}} }}{HOSTS}")
    assert codes(text) == []


def test_who_is_dialled_by_the_name_of_his_host_too_is_reached() -> None:
    text = kv(
        "singleton_per = { group = 'tp' }\nbind = 'tcp://*:{6000 + pp}'\nconnect = [\n"
        "  { to = 'tcp://127.0.0.1:6000', axes = {} }, { to = 'tcp://b:6001', axes = {} }]\n"
        "[hosts]\ncount = 2\nnames = ['a', 'b']"
    )
    assert codes(text) == []


# ---- RB208


def test_inproc_across_processes() -> None:
    text = kv("owner = { rank = 0 }\nbind = 'inproc://x'\nconnect = 'inproc://x'")
    found: Finding = finding(text, "RB208")
    assert codes(text) == ["RB208"]
    assert found.facts["ranks"] == [1, 2, 3, 4, 5, 6, 7]
    assert underlined(found, text) == ["'inproc://x'"]
    assert codes(kv("owner = {}\nbind = 'inproc://x'\nconnect = 'inproc://x'")) == []
    assert codes(kv("owner = { rank = 0 }\nbind = 'inproc://x'\nconnect = { to = 'inproc://x', axes = {} }")) == [
        "RB211",
        "RB208",
    ]


# ---- the same by one question


@pytest.mark.parametrize("bind", ["ipc:///run/x", "ipc://@x", "inproc://x"])
def test_a_name_never_stands_for_another_path(bind: str) -> None:
    found = plan(kv(f"owner = {{ rank = 0 }}\nbind = '{bind}'\nconnect = '{bind}y'"))
    assert not any(reaches(found, dialled, found.bindings[0]) for dialled in found.dialled)


def test_a_call_reaches_what_it_reaches() -> None:
    found = plan(connect("tcp://*:5557", "tcp://a:5557"))
    assert reaches(found, found.dialled[0], found.bindings[0])
    found = plan(connect("tcp://*:5557", "tcp://b:5557"))
    assert not reaches(found, found.dialled[0], found.bindings[0])


def test_large_jobs() -> None:
    """512 ranks bind and dial: every address of every host is asked about once."""
    text = (
        "[axes]\ndp = 64\ntp = 8\n[hosts]\ncount = 64\n[resources.kv]\nowner = {}\nbind = 'tcp://*:{6000 + rank}'\n"
        "connect = ['tcp://{dp}:{6000 + rank}', 'tcp://{dp}:{6000 + dp * 8}']"
    )
    start = time.perf_counter()
    assert codes(text) == []
    assert time.perf_counter() - start < 20


def test_large_jobs_with_a_router_on_loopback() -> None:
    text = (
        "[axes]\ndp = 1024\n[hosts]\ncount = 1024\n[resources.kv]\nowner = {}\nbind = 'tcp://*:{6000 + dp}'\n"
        "connect = { to = 'tcp://127.0.0.1:{6000 + r}', axes = { r = 1024 } }"
    )
    start = time.perf_counter()
    assert codes(text) == ["RB211"]
    assert time.perf_counter() - start < 5
