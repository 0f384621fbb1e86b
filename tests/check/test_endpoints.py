"""RB201 to RB209 and RB212 to RB214: where the owners are, and whether they get in each other's way."""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankbind.finding import Finding, Level

from ..support.findings import JOB, codes, failing, finding, findings, plan, underlined

AXES = "[axes]\npp = 2\ntp = 4\n"
DEFAULTS = "[hosts]\nephemeral = [32768, 60999]\nunprivileged_port_start = 1024\n"


def kv(text: str) -> str:
    return JOB + text


def rows(found: Finding) -> list[tuple[str, Any, list[int]]]:
    return [(row["endpoint"], row["node_rank"], row["ranks"]) for row in found.facts["collisions"]]


# ---- RB201: the kernel refuses the second


def test_every_stage_binds_the_publishers_port() -> None:
    """SGLang PR 29044, case c01."""
    text = f"{AXES}[resources.kv-events]\nowner = {{ tp = 0 }}\nbind = 'tcp://*:5557'"
    found = finding(text, "RB201")
    assert codes(text) == ["RB201"]
    assert found.level is Level.ERROR
    assert found.message == (
        "kv-events: ranks 0, 4 bind tcp://*:5557 on host 0; neither the owner nor the address tells pp apart"
    )
    assert rows(found) == [("tcp://*:5557", 0, [0, 4])]
    assert {key: found.facts[key] for key in ("resources", "pairs", "axes", "silent")} == {
        "resources": ["kv-events"],
        "pairs": 1,
        "axes": ["pp"],
        "silent": False,
    }
    assert underlined(found, text) == ["'tcp://*:5557'", "{ tp = 0 }"]
    assert [label.text for label in found.labels] == ["bound here", "lets ranks 0, 4 through"]
    assert str(found.fix).startswith('singleton_per = { group = ["pp", "tp"], rank = 0 }')
    assert codes(text.replace("owner = { tp = 0 }", "owner = { pp = 0, tp = 0 }")) == []


def test_one_finding_for_all_that_meet_alike() -> None:
    text = "[axes]\ndp = 8\npp = 2\ntp = 2\n[resources.kv]\nowner = { tp = 0 }\nbind = 'tcp://*:{5557 + dp}'"
    found = finding(text, "RB201")
    assert found.facts["pairs"] == 8
    assert len(found.facts["collisions"]) == 8
    assert found.facts["axes"] == ["pp"]
    assert found.details == (
        "tcp://*:5557 on host 0: ranks 0, 2",
        "tcp://*:5558 on host 0: ranks 4, 6",
        "tcp://*:5559 on host 0: ranks 8, 10",
        "tcp://*:5560 on host 0: ranks 12, 14",
        "... 8 addresses and 8 pairs in all",
    )


def test_only_on_the_host_where_they_meet() -> None:
    text = kv("owner = { tp = 0 }\nbind = 'tcp://*:5557'\n[hosts.ranks]\nfirst = '0-3, 4'\nsecond = '5-7'")
    found = finding(text, "RB201")
    assert "on host first" in found.message
    assert rows(found) == [("tcp://*:5557", 0, [0, 4])]
    assert found.facts["collisions"][0]["host"] == "first"


@pytest.mark.parametrize(
    "said",
    [
        "singleton_per = { group = ['pp', 'attn_tp'] }\nbind = 'tcp://*:{5557 + attn_dp}'",
        "owner = {}\nbind = 'tcp://*:{5557 + rank}'",
        "owner = {}\nbind = 'tcp://*:{5557 + pp * tp_size + tp}'",
        "owner = { local_rank = 0 }\nbind = 'tcp://*:5557'\n[hosts]\ncount = 4",
        "owner = {}\nbind = 'tcp://*:{5557 + local_rank}'\n[hosts]\nblocks = [5, 3]",
        "owner = { tp = 0 }\nbind = 'tcp://*:5557'\n[hosts]\ncount = 2",
        "owner = {}\nbind = 'tcp://*:0'",
        "owner = {}\nbind = 'tcp://*:5557'\nshared = 'reuseport'",
        "owner = {}\nbind = 'tcp://*:5557'\nshared = 'inherited'",
        "singleton_per = { group = 'world', rank = 'any' }\nbind = 'tcp://*:5557'",
    ],
)
def test_clean(said: str) -> None:
    assert codes(kv(said)) == []


def test_a_rank_that_runs_twice_on_one_host() -> None:
    text = kv("owner = { rank = 0 }\nbind = 'tcp://*:5557'\n[hosts.ranks]\na = '0-7, 0'")
    found = finding(text, "RB201")
    assert codes(text) == ["RB201", "RB602"]
    assert "rank 0 binds tcp://*:5557 twice" in found.message
    assert found.facts["axes"] == []


def test_two_resources() -> None:
    """Case c06: replica 1's publisher and replica 0's replay meet at 5558."""
    text = (
        "[axes]\ndp = 2\ntp = 4\n[resources.kv-events]\nowner = { tp = 0 }\nbind = 'tcp://*:{5557 + dp}'\n"
        "[resources.kv-replay]\nowner = { tp = 0 }\nbind = 'tcp://*:{5558 + dp}'"
    )
    found = finding(text, "RB201")
    assert codes(text) == ["RB201"]
    assert found.message == ("kv-events of rank 4 and kv-replay of rank 0 both bind tcp://*:5558 on host 0")
    assert found.facts["resources"] == ["kv-events", "kv-replay"]
    assert rows(found) == [("tcp://*:5558", 0, [0, 4])]
    assert underlined(found, text) == ["'tcp://*:{5557 + dp}'", "'tcp://*:{5558 + dp}'"]
    assert found.fix == "kv-events takes 5557..5558: move kv-replay to 5559..5560, for instance"
    assert codes(text.replace("5558 +", "5559 +")) == []


def test_a_wildcard_and_an_address_it_covers() -> None:
    """Case c07."""
    text = (
        "[axes]\ntp = 2\n[resources.metrics]\nowner = { tp = 0 }\nbind = 'tcp://*:9400'\n"
        "[resources.health]\nowner = { tp = 1 }\nbind = 'tcp://127.0.0.1:9400'"
    )
    found = finding(text, "RB201")
    assert "tcp://*:9400" in found.message
    assert "tcp://127.0.0.1:9400" in found.message
    assert found.facts["collisions"][0]["other"] == "tcp://127.0.0.1:9400"


def test_the_addresses_of_one_resource() -> None:
    text = kv("owner = { rank = 0 }\nbind = ['tcp://*:5557', 'tcp://127.0.0.1:5557']\nreplay = 'tcp://*:5557'")
    found = findings(text)
    assert [f.code for f in found] == ["RB201"] * len(found)
    assert {tuple(underlined(f, text)) for f in found} >= {("'tcp://*:5557'", "'tcp://127.0.0.1:5557'")}


def test_a_suggested_place_is_free() -> None:
    """The nearest ports after the first resource are those of a third."""
    text = (
        "[axes]\ntp = 2\n[resources.a]\nowner = {}\nbind = 'tcp://*:{5557 + tp}'\n"
        "[resources.b]\nowner = {}\nbind = 'tcp://*:{5558 + tp}'\n"
        "[resources.c]\nowner = {}\nbind = 'tcp://*:{5560 + tp}'\n"
    )
    found = finding(text, "RB201")
    assert found.fix == "a takes 5557..5558: move b to 5562..5563, for instance"
    assert codes(text.replace("5558 +", "5562 +")) == []


def test_ranges_that_meet_are_a_warning() -> None:
    """Two who look for a free port in one range may miss each other."""
    text = kv("owner = { tp = 0 }\nbind = 'tcp://*:9000-9100'")
    assert finding(text, "RB201").level is Level.WARNING
    assert failing(text) == ["RB201"]


# ---- RB202: a path is taken over in silence


def test_an_ipc_path_of_two_owners() -> None:
    """Case c09."""
    text = kv("owner = { tp = 0 }\nbind = 'ipc:///run/kv/events.sock'")
    found = finding(text, "RB202")
    assert codes(text) == ["RB202"]
    assert found.facts["silent"] is True
    assert any("takes the path over" in detail for detail in found.details)
    assert codes(text.replace("events", "events-{pp}")) == []


def test_an_abstract_name_is_refused_by_the_kernel() -> None:
    assert codes(kv("owner = { tp = 0 }\nbind = 'ipc://@events'")) == ["RB201"]


def test_a_file_where_a_socket_is_to_be() -> None:
    text = kv("owner = { rank = 0 }\npath = '/run/x'\n[resources.s]\nowner = { rank = 1 }\nbind = 'ipc:///run/x'")
    assert codes(text) == ["RB202"]
    assert finding(text, "RB202").facts["resources"] == ["kv", "s"]


def test_the_one_path_of_reuseport() -> None:
    assert codes(kv("owner = { tp = 0 }\nbind = 'ipc:///run/x'\nshared = 'reuseport'")) == ["RB202"]


# ---- RB212: names and paths


def test_a_label_set_of_every_rank() -> None:
    text = kv("owner = {}\nname = 'model'\n[hosts]\ncount = 2")
    found = finding(text, "RB212")
    assert codes(text) == ["RB212"]
    assert found.facts["pairs"] == 28
    assert len(found.facts["collisions"]) == 1
    assert found.facts["collisions"][0]["ranks"] == list(range(8))
    assert codes(text.replace("model'", "model-{rank}'")) == []


def test_a_path_by_how_far_it_reaches() -> None:
    text = kv("owner = { local_rank = 0 }\npath = '/scratch/x'\nscope = '@'\n[hosts]\ncount = 2")
    assert codes(text.replace("@", "host")) == []
    assert codes(text.replace("@", "shared")) == ["RB212"]
    assert codes(text.replace("@", "shared").replace("/x", "/x-{node_rank}")) == []


# ---- the suggested fix is right


def with_owner(text: str, fix: str) -> str:
    owner = re.search(r"singleton_per = \{.*?\}", fix)
    assert owner
    return re.sub(r"^(owner|singleton_per) = .*$", owner[0], text, count=1, flags=re.MULTILINE)


def with_term(text: str, fix: str) -> str:
    """The address with the term that a fix suggests, or with all its arithmetic replaced."""
    (port,) = re.findall(r"tcp://\*:(\{.*?\}|\d+)", text)
    inner = port.strip("{}")
    added = re.search(r"\{\.\.\. \+ (.*)\}", fix)
    instead = re.search(r"let it vary with (.*): that", fix)
    if added:
        return text.replace(port, f"{{{inner} + {added[1]}}}")
    assert instead
    return text.replace(port, f"{{5557 + {instead[1]}}}")


@pytest.mark.parametrize(
    "owner",
    ["owner = { attn_tp = 0 }", "owner = { pp = 0 }", "owner = {}", "singleton_per = { group = 'tp' }"],
)
@pytest.mark.parametrize("port", ["5557", "{5557 + dp}", "{5557 + rank // 16}"])
def test_where_one_owner_is_promised_both_findings_propose_the_same(owner: str, port: str) -> None:
    """On many hosts the clash is among the ranks of one host; the promise is about all of them."""
    text = f"""[axes]
dp = 2
pp = 2
tp = 8
[views.attention]
of = "tp"
axes = {{ attn_cp = 2, attn_tp = 4 }}
[hosts]
count = 2
[resources.kv]
{owner}
once_per = ["dp"]
bind = "tcp://*:{port}"
"""
    clash, several = finding(text, "RB201"), finding(text, "RB102")
    assert clash.fix == several.fix
    assert codes(text.replace(owner, str(clash.fix))) == []


@st.composite
def drifting(draw: st.DrawFn) -> str:
    """A gate and an address, both of which may forget an axis."""
    sizes = draw(
        st.fixed_dictionaries({"dp": st.integers(1, 3), "pp": st.integers(1, 3), "tp": st.sampled_from([2, 4])})
    )
    names = ["dp", "pp", "tp", "attn_dp", "attn_tp"]
    view = "[views.attention]\nof = 'tp'\naxes = { attn_dp = 2, attn_tp = TP }\n".replace("TP", str(sizes["tp"] // 2))
    gate = draw(st.dictionaries(st.sampled_from([*names, "rank"]), st.sampled_from([0, [0, 1], -1]), max_size=3))
    owner = f"owner = {{ {', '.join(f'{name} = {index}' for name, index in gate.items())} }}"
    if draw(st.integers(0, 3)) == 0:
        owner = f"singleton_per = {{ group = {draw(st.sampled_from(['tp', 'pp', 'attn_tp', 'dp']))!r} }}"
    terms = draw(st.lists(st.sampled_from([*names, "dp * pp_size", "9 * pp", "rank // 2"]), max_size=3, unique=True))
    hosts = draw(st.sampled_from([n for n in range(1, 5) if prod(sizes.values()) % n == 0]))
    port = f"{{{' + '.join(['5557', *terms])}}}" if terms else "5557"
    axes = "".join(f"{name} = {size}\n" for name, size in sizes.items())
    return f"[axes]\n{axes}{view}[hosts]\ncount = {hosts}\n[resources.kv]\n{owner}\nbind = 'tcp://*:{port}'\n"


@settings(max_examples=200)
@given(drifting())
def test_a_fix_that_is_suggested_makes_the_file_clean(text: str) -> None:
    for found in findings(text, "RB201"):
        fix = str(found.fix)
        assert "add a term" in fix or "let it vary" in fix
        if "singleton_per" in fix:
            assert codes(with_owner(text, fix)) == []
        if "add a term" in fix or "let it vary" in fix:
            repaired = with_term(text, fix)
            assert set(codes(repaired)) <= {"RB104"}  # which the gate had before
            # Every owner of a host has an address of its own.
            ports = [(b.node, b.text) for b in plan(repaired).bindings]
            assert len(set(ports)) == len(ports)


# ---- RB203, RB204, RB205, RB213, RB214: ports


def test_past_the_last_port() -> None:
    """Case c10."""
    text = (
        "[axes]\ndp = 4\n[hosts]\nephemeral = [32768, 60999]\n[resources.kv]\nowner = {}\nbind = 'tcp://*:{65534 + dp}'"
    )
    found = finding(text, "RB203")
    assert codes(text) == ["RB203"]
    assert found.level is Level.ERROR
    assert found.facts == {
        "resource": "kv",
        "ranks": [2, 3],
        "endpoints": ["tcp://*:65536", "tcp://*:65537"],
        "ports": [65536, 65537],
    }
    assert found.fix == "lower the base by at least 2"
    assert codes(text.replace("65534", "65532")) == []


def test_below_the_first_port() -> None:
    found = finding(kv("owner = { tp = 0 }\nbind = 'tcp://*:{pp * 6000 - 1}'"), "RB203")
    assert (found.facts["ranks"], found.facts["ports"], found.fix) == ([0], [-1], None)


def test_a_range_past_the_last_port() -> None:
    found = finding(kv("owner = { rank = 0 }\nbind = 'tcp://*:65000-70000'"), "RB203")
    assert found.facts["ports"] == [70000]


@pytest.mark.parametrize(
    ("hosts", "level"),
    [
        ("", Level.NOTE),
        ("[hosts]\nunprivileged_port_start = 1024", Level.WARNING),
        ("[hosts]\nunprivileged_port_start = 0", None),
        ("[hosts]\nunprivileged_port_start = 443", None),
    ],
)
def test_a_privileged_port(hosts: str, level: Level | None) -> None:
    """A note by Linux's default, a warning by what is said of the hosts."""
    text = kv(f"owner = {{ rank = 0 }}\nbind = 'tcp://*:443'\n{hosts}")
    found = findings(text)
    assert [(f.code, f.level) for f in found] == ([("RB204", level)] if level else [])
    if found:
        assert underlined(found[0], text) == ["'tcp://*:443'"]
        assert found[0].facts["endpoints"] == ["tcp://*:443"]
    assert failing(text) == (["RB204"] if level is Level.WARNING else [])


@pytest.mark.parametrize(
    ("port", "hosts", "level"),
    [
        ("36000", "", Level.NOTE),
        ("32767", "", None),
        ("32768", "", Level.NOTE),
        ("60999", "", Level.NOTE),
        ("61000", "", None),
        ("32000-33000", "", Level.NOTE),
        ("36000", "[hosts]\nephemeral = [32768, 60999]", Level.WARNING),
        ("36000", "[hosts]\nephemeral = [40000, 60999]", None),
        ("12000", "[hosts]\nephemeral = [10000, 61000]", Level.WARNING),
        ("0", "[hosts]\nephemeral = [0, 65535]", None),
    ],
)
def test_a_port_that_an_outgoing_connection_may_hold(port: str, hosts: str, level: Level | None) -> None:
    text = kv(f"owner = {{ rank = 0 }}\nbind = 'tcp://*:{port}'\n{hosts}")
    assert [(f.code, f.level) for f in findings(text)] == ([("RB205", level)] if level else [])


@pytest.mark.parametrize(
    ("port", "fires"), [("20050", True), ("20100", True), ("20101", False), ("19000-20000", True), ("0", False)]
)
def test_ports_that_somebody_else_takes(port: str, fires: bool) -> None:
    text = kv(f"owner = {{ rank = 0 }}\nbind = 'tcp://*:{port}'\n[hosts]\nreserved = {{ nccl = [20000, 20100] }}")
    found = findings(text)
    assert [f.code for f in found] == (["RB213"] if fires else [])
    if fires:
        assert found[0].facts["holder"] == "nccl"
        assert underlined(found[0], text) == [f"'tcp://*:{port}'", "[20000, 20100]"]


def test_port_0_cannot_carry_an_offset() -> None:
    """vLLM issue 55679: with a rank added, port 0 became ports 1, 2, 3."""
    text = kv("owner = { pp = 0 }\nbind = 'tcp://*:{0 + tp}'\n[hosts]\nunprivileged_port_start = 0")
    found = finding(text, "RB214")
    assert codes(text) == ["RB214"]
    assert found.facts["ranks"] == [1, 2, 3]
    assert found.facts["endpoints"] == ["tcp://*:1", "tcp://*:2", "tcp://*:3"]
    assert codes(text.replace("{0 + tp}", "0")) == []
    assert codes(text.replace("{0 + tp}", "{5557 + tp}")) == []


# ---- RB206, RB207, RB209: paths and IPv6


@pytest.mark.parametrize(
    ("path", "fires"),
    [
        ("/" + "x" * 106, False),
        ("/" + "x" * 107, True),
        ("/" + "é" * 53, False),
        ("/" + "é" * 54, True),
        ("@" + "x" * 106, False),
        ("@" + "x" * 107, True),
    ],
)
def test_an_ipc_path_ends_at_107_bytes(path: str, fires: bool) -> None:
    text = kv(f"owner = {{ rank = 0 }}\nbind = 'ipc://{path}'")
    assert codes(text) == (["RB206"] if fires else [])
    if fires:
        assert finding(text, "RB206").facts["bytes"] == len(path.encode())


def test_a_path_that_is_too_long_on_some_ranks_only() -> None:
    text = kv(f"owner = {{ tp = 0 }}\nbind = 'ipc:///{'x' * 104}-{{9 + pp}}'")
    found = finding(text, "RB206")
    assert found.facts["ranks"] == [4]


@pytest.mark.parametrize(
    ("path", "fires"), [("run/x", True), ("./x", True), ("../x", True), ("/run/x", False), ("@x", False), ("*", False)]
)
def test_a_relative_ipc_path(path: str, fires: bool) -> None:
    text = kv(f"owner = {{ rank = 0 }}\nbind = 'ipc://{path}'")
    assert [(f.code, f.level) for f in findings(text)] == ([("RB207", Level.WARNING)] if fires else [])


@pytest.mark.parametrize(
    ("bind", "fires"),
    [
        ("tcp://[::]:5557", True),
        ("tcp://[::1]:5557", True),
        ("tcp://[2001:db8::1]:5557", True),
        ("tcp://[::ffff:127.0.0.1]:5557", False),
        ("tcp://*:5557", False),
        ("tcp://host:5557", False),
    ],
)
def test_an_ipv6_address_on_a_socket_without_it(bind: str, fires: bool) -> None:
    text = kv(f"owner = {{ rank = 0 }}\nbind = '{bind}'")
    assert codes(text) == (["RB209"] if fires else [])
    assert codes(text + "\nipv6 = true") == []


def test_facts_are_json() -> None:
    text = kv(
        "owner = {}\nbind = ['tcp://*:{65530 + rank}', 'tcp://*:{rank}', 'ipc://x']\nname = 'x'\npath = 'y'\n"
        "once_per = 'pp'\nconnect = 'tcp://h:1'\n[hosts.ranks]\na = '0-5'\nb = '5-6'"
    ).replace("path = 'y'", "path = 'y'\nscope = 'shared'")
    found = findings(text)
    assert len({f.code for f in found}) > 6
    for one in found:
        assert json.loads(json.dumps(dict(one.facts))) == dict(one.facts)


# ---- probes, and processes beside the ranks


@pytest.mark.parametrize(
    ("probe", "hosts", "code", "message"),
    [
        ("{65530 + rank}", "", "RB203", "kv: ranks 6, 7 would need ports 65536, 65537; ports are 0..65535"),
        ("{80 + rank}", "", "RB204", "kv: ranks 0..7 probe a port below 1024, which needs CAP_NET_BIND_SERVICE"),
        ("{40000 + rank}", "", "RB205", "kv: ranks 0..7 probe inside 32768..60999, the hosts' range for outgoing"),
        (
            "{rank}",
            "",
            "RB214",
            "kv: port 0 asks the kernel for a port and cannot carry an offset: ranks 1..7 would probe",
        ),
        ("9000", "reserved.agent = 9000", "RB213", "kv: ranks 0..7 probe inside 9000, which agent draws from"),
    ],
)
def test_a_port_that_is_only_looked_at_has_to_be_one(probe: str, hosts: str, code: str, message: str) -> None:
    text = f"{kv('owner = {}')}\nprobe = 'tcp://*:{probe}'\n[hosts]\nunprivileged_port_start = 1024\n{hosts}"
    found = finding(text, code)
    assert found.message.startswith(message)
    assert "libzmq" not in " ".join(found.details)


def test_a_probe_has_no_socket_of_libzmq() -> None:
    assert "RB209" in codes(kv("owner = { rank = 0 }\nbind = 'tcp://[::1]:9000'"))
    assert codes(kv("owner = { rank = 0 }\nprobe = 'tcp://[::1]:9000'")) == []


def test_an_address_is_not_moved_to_where_somebody_looks() -> None:
    text = kv(
        "owner = { rank = 0 }\nbind = 'tcp://*:9000'\nprobe = 'tcp://*:9001'\n[resources.b]\nowner = { rank = 0 }\n"
    )
    found = finding(f"{text}bind = 'tcp://*:9000'", "RB201")
    assert str(found.fix).endswith("move b to 9002, for instance")


def test_the_process_that_takes_it_is_named() -> None:
    text = kv("owner = { tp = 0 }\nbind = 'tcp://*:80'\nprocess = 'HTTP server'")
    assert finding(text, "RB201").message.startswith("kv: ranks 0, 4 (HTTP server) bind tcp://*:80 on host 0;")
    assert finding(text, "RB204").message.startswith("kv: ranks 0, 4 (HTTP server) bind a port below 1024")
    other = f"{text}\n[resources.b]\nowner = {{ rank = 1 }}\nreplay = 'tcp://*:80'\n"
    messages = [found.message for found in findings(other, "RB201")]
    assert "kv of rank 0 (HTTP server) and b (replay) of rank 1 both bind tcp://*:80 on host 0" in messages
