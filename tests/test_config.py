"""The topology file: what each key means, the same in three formats, and every mistake at its line and column."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankbind import config
from rankbind.config import Declaration, load, parse, read
from rankbind.errors import ConfigError
from rankbind.finding import Finding
from rankbind.resource import Address, Consumer, HostFacts, Job, ReservedPorts, Resource
from rankbind.scope import Gate, Scope
from rankbind.template import Template
from rankbind.topology import Host, Topology, View

AXES = "[axes]\npp = 2\ntp = 4\n"
KV = f"{AXES}[resources.kv]\n"

EVERYTHING: dict[str, Any] = {
    "axes": {"pp": 2, "tp": 4},
    "views": {
        "attention": {"of": "tp", "axes": {"attn_dp": 2, "attn_tp": 2}},
        "joint": {"of": ["pp", "tp"], "axes": {"ep": 8}},
    },
    "hosts": {
        "blocks": [4, 4],
        "names": ["a", "b"],
        "addresses": {"a": "192.0.2.1", "b": ["192.0.2.2", "2001:db8::2"]},
        "ephemeral": [10000, 61000],
        "unprivileged_port_start": 0,
        "reserved": {"nccl": "20000-20100", "agent": 9100},
    },
    "resources": {
        "kv-events": {
            "singleton_per": {"group": ["pp", "attn_tp"], "rank": -1},
            "once_per": "attn_dp",
            "bind": ["tcp://*:{5557 + attn_dp}", "ipc:///run/kv-{attn_dp}.sock"],
            "replay": "tcp://*:{5657 + attn_dp}",
            "connect": [
                "tcp://a:{5557 + attn_dp}",
                {"to": "tcp://b:{5657 + replica}", "role": "replay", "axes": {"replica": 2}},
                {"to": "tcp://b:5557", "owner": {"pp": -1, "tp": [0, 1]}},
            ],
            "shared": "reuseport",
            "ipv6": True,
            "v6only": True,
        },
        "cache": {"owner": {"attn_tp": 0, "rank": [0, 1]}, "with": "kv-events"},
        "log": {"owner": {}, "path": "log-{rank}", "name": "n{rank}", "scope": "shared", "once_per": []},
        "any": {"singleton_per": {"group": "world", "rank": "any"}, "name": "x"},
        "http": {
            "owner": {"rank": 0},
            "bind": "tcp://*:30000",
            "probe": ["tcp://*:30001", "tcp://127.0.0.1:{30002 + rank}"],
            "process": "HTTP server",
            "authenticated": False,
            "connect": {"to": "tcp://a:30000", "by": "a router", "axes": {}},
        },
        "weights": {"owner": {}, "device": "gpu {local_rank}", "authenticated": True},
    },
}


def toml(found: Any, top: str = "") -> str:
    """`found` as TOML: tables as far as they go, everything else inline."""
    if isinstance(found, dict) and top != "inline":
        lines = [f"{json.dumps(name)} = {toml(x, 'inline')}" for name, x in found.items() if not isinstance(x, dict)]
        for name, inner in found.items():
            if isinstance(inner, dict):
                path = f"{top}.{json.dumps(name)}" if top else json.dumps(name)
                body = toml(inner, path)
                lines.append(f"[{path}]\n{body}")
        return "\n".join(lines)
    if isinstance(found, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {toml(x, 'inline')}" for name, x in found.items()) + " }"
    if isinstance(found, list):
        return f"[{', '.join(toml(x, 'inline') for x in found)}]"
    return json.dumps(found)


def written(data: Any, ending: str) -> str:
    if ending == "toml":
        return toml(data)
    return json.dumps(data, indent=2) if ending == "json" else yaml.safe_dump(data, sort_keys=False)


def job(text: str) -> Job:
    return parse(text).job


def resource(text: str) -> Resource:
    return job(KV + text).resources[0]


def refused(text: str, file: str = "t.toml") -> list[Finding]:
    with pytest.raises(ConfigError) as caught:
        parse(text, file)
    found = [finding for finding in caught.value.findings if isinstance(finding, Finding)]
    assert len(found) == len(caught.value.findings) > 0
    assert str(caught.value).count("\n") == len(found) - 1
    return found


def places(text: str, file: str = "t.toml") -> list[tuple[str, int, int]]:
    """Code, line and column of everything wrong."""
    return [
        (finding.code, finding.labels[0].span.line, finding.labels[0].span.column) for finding in refused(text, file)
    ]


def only(text: str, file: str = "t.toml") -> Finding:
    (found,) = refused(text, file)
    return found


def underlined(finding: Finding, text: str) -> str:
    span = finding.labels[0].span
    return text.split("\n")[span.line - 1][span.column - 1 : span.column - 1 + span.length]


# ---- what each key means


@pytest.mark.parametrize("ending", ["toml", "yaml", "json"])
def test_everything_that_can_be_said(ending: str) -> None:
    assert parse(written(EVERYTHING, ending), f"t.{ending}").job == Job(
        Topology(
            {"pp": 2, "tp": 4},
            {"attention": View("tp", {"attn_dp": 2, "attn_tp": 2}), "joint": View(("pp", "tp"), {"ep": 8})},
            {"a": range(4), "b": range(4, 8)},
        ),
        (
            Resource(
                "kv-events",
                Scope(("pp", "attn_tp"), -1),
                (
                    Address("bind", Template("tcp://*:{5557 + attn_dp}")),
                    Address("bind", Template("ipc:///run/kv-{attn_dp}.sock")),
                    Address("replay", Template("tcp://*:{5657 + attn_dp}")),
                ),
                (
                    Consumer(Template("tcp://a:{5557 + attn_dp}")),
                    Consumer(Template("tcp://b:{5657 + replica}"), "replay", {"replica": 2}),
                    Consumer(Template("tcp://b:5557"), gate=Gate({"pp": -1, "tp": [0, 1]})),
                ),
                once_per=("attn_dp",),
                shared="reuseport",
                ipv6=True,
                v6only=True,
            ),
            Resource("cache", Gate({"attn_tp": 0, "rank": [0, 1]}), same_owner_as="kv-events"),
            Resource(
                "log",
                Gate({}),
                (
                    Address("name", Template("n{rank}"), "name", "shared"),
                    Address("path", Template("log-{rank}"), "path", "shared"),
                ),
                once_per=(),
            ),
            Resource("any", Scope("world", "any"), (Address("name", Template("x"), "name", "shared"),)),
            Resource(
                "http",
                Gate({"rank": 0}),
                (
                    Address("bind", Template("tcp://*:30000")),
                    Address("probe", Template("tcp://*:30001")),
                    Address("probe", Template("tcp://127.0.0.1:{30002 + rank}")),
                ),
                (Consumer(Template("tcp://a:30000"), axes={}, by="a router"),),
                process="HTTP server",
                authenticated=False,
            ),
            Resource(
                "weights",
                Gate({}),
                (Address("device", Template("gpu {local_rank}"), "device", "host"),),
                authenticated=True,
            ),
        ),
        HostFacts(
            (10000, 61000),
            0,
            (ReservedPorts(20000, 20100, "nccl"), ReservedPorts(9100, 9100, "agent")),
            {"a": ("192.0.2.1",), "b": ("192.0.2.2", "2001:db8::2")},
        ),
    )


def test_the_example_of_the_design() -> None:
    declaration = parse(
        """
        [axes]                      # outermost first; rank = (pp * 4) + tp
        pp = 2
        tp = 4

        [views.attention]
        of = "tp"
        axes = { attn_dp = 2, attn_tp = 2 }

        [hosts]
        count = 1

        [resources.kv-events]
        singleton_per = { group = ["pp", "attn_tp"], rank = 0 }
        bind = "tcp://*:{5557 + attn_dp}"
        replay = "tcp://*:{5657 + attn_dp}"
        """
    )
    assert declaration.job.resources[0].owner.owners(declaration.job.topology) == (0, 2)


def test_the_deployment() -> None:
    assert job('deployment = "blue"\n[axes]\ntp = 2\n').deployment == "blue"
    assert job("[axes]\ntp = 2\n").deployment is None
    for odd in ('""', '" "', '"a\\nb"', "7", "true"):
        assert places(f"deployment = {odd}\n[axes]\ntp = 2\n") == [("RB903", 1, 14)]


def test_the_least_there_is() -> None:
    assert job("axes = {}") == Job(Topology({}))
    assert resource("owner = {}") == Resource("kv", Gate({}))
    assert job(AXES).topology.hosts == (Host("0", tuple(range(8))),)


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [
        ("hosts = 2", {"0": range(4), "1": range(4, 8)}),
        ("hosts = { count = 4 }", {str(node): range(2 * node, 2 * node + 2) for node in range(4)}),
        ("hosts = { count = 2, names = ['a', 'b'] }", {"a": range(4), "b": range(4, 8)}),
        ("hosts = { blocks = [5, 3] }", {"0": range(5), "1": range(5, 8)}),
        ("hosts = { blocks = [5, 0, 2], names = ['a', 'b', 'c'] }", {"a": range(5), "b": (), "c": (5, 6)}),
        ("hosts = { ranks = { a = '0-3, 6', b = [5, 4, 7] } }", {"a": (0, 1, 2, 3, 6), "b": (5, 4, 7)}),
        ("hosts.ranks = { a = '7', b = '0-6 ' , c = [] }", {"a": (7,), "b": range(7), "c": ()}),
        ("hosts = {}", {"0": range(8)}),
    ],
)
def test_hosts_in_every_form(hosts: str, ranks: dict[str, Any]) -> None:
    assert job(f"{hosts}\n{AXES}").topology.hosts == tuple(Host(name, tuple(on)) for name, on in ranks.items())


@pytest.mark.parametrize(
    ("written", "expected"),
    [("'9100-9200'", (9100, 9200)), ("[9100, 9200]", (9100, 9200)), ("9100", (9100, 9100)), ("'9100'", (9100, 9100))],
)
def test_ports_in_every_form(written: str, expected: tuple[int, int]) -> None:
    facts = job(f"{AXES}[hosts]\nephemeral = {written}\nreserved = {{ x = {written} }}").facts
    assert facts == HostFacts(expected, None, (ReservedPorts(*expected, "x"),))


def test_how_far_an_address_reaches() -> None:
    """A port belongs to its host, a label set to the job; for a path it has to be said."""
    found = resource("owner = {}\nbind = 'tcp://*:1'\nname = 'n'\npath = 'p'")
    assert [(at.kind, at.scope) for at in found.addresses] == [
        ("endpoint", "host"),
        ("name", "shared"),
        ("path", "host"),
    ]
    found = resource("owner = {}\nscope = 'host'\nname = 'n'\npath = 'p'\n[hosts]\ncount = 2")
    assert [at.scope for at in found.addresses] == ["host", "host"]


def test_what_is_said_of_processes_and_devices_is_text_and_of_authentication_yes_or_no() -> None:
    found = resource("owner = {}\ndevice = ['gpu 0', 'gpu 1']\nbind = 'tcp://*:1'")
    assert [(address.role, address.kind, address.scope) for address in found.addresses] == [
        ("bind", "endpoint", "host"),
        ("device", "device", "host"),
        ("device", "device", "host"),
    ]
    assert (found.process, found.authenticated) == (None, None)
    assert places(f"{KV}owner = {{}}\nprocess = 1\nauthenticated = 'no'") == [("RB903", 6, 11), ("RB903", 7, 17)]
    # A device belongs to its host, and a probe is an endpoint.
    assert places(f"{KV}owner = {{}}\ndevice = 'gpu 0'\nscope = 'shared'") == [("RB903", 7, 1)]
    assert places(f"{KV}owner = {{}}\nprobe = '30000'") == [("RB904", 6, 10)]


def test_null_is_as_if_it_were_not_there() -> None:
    text = "axes: {tp: 2}\nresources: {kv: {owner: {}, bind: null, with: ~, shared: null}}"
    assert parse(text, "t.yaml").job == job("axes = { tp = 2 }\nresources.kv.owner = {}")


def test_load_gives_the_job_and_read_the_positions(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(KV + "owner = {}\nbind = ['tcp://*:1', 'tcp://*:2']\nconnect = 'tcp://h:1'\n")
    declaration = read(file)
    assert load(file) == declaration.job
    kv = declaration.job.resources[0]
    assert declaration.address_path(kv, kv.addresses[1]) == ("resources", "kv", "bind", 1)
    assert declaration.consumer_path(kv, kv.consumers[0]) == ("resources", "kv", "connect")
    assert declaration.document.value(*declaration.address_path(kv, kv.addresses[1])).column == 22


def test_a_consumers_place() -> None:
    def where(connect: str) -> list[tuple[str | int, ...]]:
        declaration: Declaration = parse(f"{KV}owner = {{}}\nconnect = {connect}")
        kv = declaration.job.resources[0]
        return [declaration.consumer_path(kv, consumer)[2:] for consumer in kv.consumers]

    assert where("{ to = 'tcp://h:1' }") == [("connect", "to")]
    assert where("['tcp://h:1', { to = 'tcp://h:2' }]") == [("connect", 0), ("connect", 1, "to")]


# ---- what is wrong, and where


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"RB901: cannot read .*: No such file or directory"):
        read(tmp_path / "no.toml")
    with pytest.raises(ConfigError, match=r"RB901: cannot read .*: Is a directory"):
        read(tmp_path)
    with pytest.raises(ConfigError, match=r"RB901: cannot read .*null byte"):
        read("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.touch(mode=0)
    with pytest.raises(ConfigError, match=r"RB901: cannot read .*: Permission denied"):
        read(file)


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_bytes(b"[axes]\n# \xff\n")
    with pytest.raises(ConfigError, match=rf"{file}:2:3: RB901: not UTF-8 text"):
        load(file)


@pytest.mark.parametrize(
    ("text", "file", "line", "column"),
    [
        ("[axes\ntp = 1", "t.toml", 1, 6),
        ("axes: [", "t.yaml", 1, 8),
        ('{"axes": }', "t.json", 1, 10),
        ("a=1\na=2", "t.toml", 2, 1),
    ],
)
def test_a_file_that_cannot_be_parsed(text: str, file: str, line: int, column: int) -> None:
    assert places(text, file) == [("RB901", line, column)]


@pytest.mark.parametrize(
    ("text", "line", "column", "meant"),
    [
        ("[axis]\ntp = 1\n[axes]\n", 1, 2, "did you mean axes?"),
        (f"{AXES}[resource.kv]\nowner = {{}}", 4, 2, "did you mean resources?"),
        (f"host = 2\n{AXES}", 1, 1, "did you mean hosts?"),
        (f"{AXES}[views.a]\nof = 'tp'\naxis = {{}}\naxes = {{ x = 4 }}", 6, 1, "did you mean axes?"),
        (f"{AXES}[hosts]\ncuont = 2", 5, 1, "did you mean count?"),
        (f"{KV}owner = {{}}\nbnd = 'x'", 6, 1, "did you mean bind?"),
        (f"{KV}owner = {{}}\nonce-per = 'x'", 6, 1, "did you mean once_per?"),
        (f"{KV}owner = {{}}\nsame_owner_as = 'x'", 6, 1, "known are "),
        (f"{KV}singleton_per = {{ group = 'tp', rnak = 0 }}", 5, 33, "did you mean rank?"),
        (f"{KV}owner = {{}}\nconnect = {{ to = 'tcp://h:1', rolle = 'bind' }}", 6, 31, "did you mean role?"),
        (
            f"{KV}owner = {{}}\nconnect = ['tcp://h:1', {{ to = 'tcp://h:1', axis = {{}} }}]",
            6,
            45,
            "did you mean axes?",
        ),
        (f"zzz = 1\n{AXES}", 1, 1, "known are deployment, axes, views, hosts, resources"),
    ],
)
def test_an_unknown_key(text: str, line: int, column: int, meant: str) -> None:
    found = only(text)
    assert places(text) == [("RB902", line, column)]
    assert str(found.fix).startswith(meant)
    assert found.message == f"unknown key {underlined(found, text)!r}"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "the file needs 'axes'"),
        ("axes = 3", 1, 8, "axes should be keys and values, not 3"),
        ('[axes]\ntp = "2"', 2, 6, 'axes.tp should be an integer, not "2"'),
        ("[axes]\ntp = 2.0", 2, 6, "axes.tp should be an integer, not 2.0"),
        ("[axes]\ntp = true", 2, 6, "axes.tp should be an integer, not true"),
        ("[axes]\ntp = 2020-01-01", 2, 6, "axes.tp should be an integer, not 2020-01-01"),
        (f"hosts = '2'\n{AXES}", 1, 9, 'hosts should be keys and values, not "2"'),
        (f"hosts = true\n{AXES}", 1, 9, "hosts should be keys and values, not true"),
        (f"{AXES}[hosts]\ncount = 1.5", 5, 9, "hosts.count should be an integer, not 1.5"),
        (f"{AXES}[hosts]\nblocks = 4", 5, 10, "hosts.blocks should be a list, not 4"),
        (f"{AXES}[hosts]\nblocks = [4, 'x']", 5, 14, 'hosts.blocks.1 should be an integer, not "x"'),
        (f"{AXES}[hosts.ranks]\na = '0-3, x'", 5, 5, "hosts.ranks.a should be ranks like \"0-3, 8\"; 'x' is neither a"),
        (f"{AXES}[hosts.ranks]\na = '3-0'", 5, 5, "hosts.ranks.a should be ranks that rise and end below 1048576"),
        (f"{AXES}[hosts.ranks]\na = '0-9999999999'", 5, 5, "hosts.ranks.a should be ranks that rise and end below"),
        (f"{AXES}[hosts.ranks]\na = '-1'", 5, 5, "hosts.ranks.a should be ranks like"),
        (f"{AXES}[hosts]\nephemeral = '1-99999'", 5, 13, "hosts.ephemeral should be ports that rise from 0 to 65535"),
        (f"{AXES}[hosts]\nephemeral = [2, 1]", 5, 13, "hosts.ephemeral should be ports that rise"),
        (f"{AXES}[hosts]\nreserved = {{ x = [1] }}", 5, 18, "hosts.reserved.x should be ports, [32768, 60999] or"),
        (f"{AXES}[hosts]\nunprivileged_port_start = -1", 5, 27, "should be greater than or equal to 0, not -1"),
        (
            f"{AXES}[hosts]\naddresses = {{ b = '::1' }}",
            5,
            15,
            "addresses are given for host 'b', which does not exist",
        ),
        (f"{AXES}[views]\na = {{ of = [], axes = {{}} }}", 5, 12, "views.a.of should have at least one element"),
        (f"{AXES}[views.a]\nof = 'tp'", 4, 8, "views.a needs 'axes'"),
        (f"{KV}", 4, 12, "resource kv does not say who owns it"),
        (f"{KV}owner = {{}}\nsingleton_per = {{ group = 'tp' }}", 5, 1, "resource kv has both singleton_per and owner"),
        (f"{KV}owner = 3", 5, 9, "resources.kv.owner should be keys and values, not 3"),
        (f"{KV}owner = {{ tp = true }}", 5, 16, "resources.kv.owner.tp should be an integer, not true"),
        (f"{KV}owner = {{ tp = [0, '1'] }}", 5, 20, 'resources.kv.owner.tp.1 should be an integer, not "1"'),
        (f"{KV}singleton_per = 'tp'", 5, 17, 'resources.kv.singleton_per should be keys and values, not "tp"'),
        (f"{KV}singleton_per = {{ rank = 0 }}", 5, 1, "resources.kv.singleton_per needs 'group'"),
        (f"{KV}singleton_per = {{ group = 1 }}", 5, 27, "resources.kv.singleton_per.group should be text, not 1"),
        (f"{KV}singleton_per = {{ group = 'tp', rank = 'an' }}", 5, 40, 'should be an integer or "any", not "an"'),
        (f"{KV}singleton_per = {{ group = 'tp', rank = true }}", 5, 40, 'should be an integer or "any", not true'),
        (f"{KV}singleton_per = {{ group = [] }}", 5, 27, "group should have at least one element"),
        (f"{KV}singleton_per = {{ group = ['tp', 'tp'] }}", 5, 27, "group tp, tp names an axis twice"),
        (f"{KV}singleton_per = {{ group = ['world', 'tp'] }}", 5, 27, '"world" and "host" stand alone'),
        (f"{KV}owner = {{}}\nbind = 5557", 6, 8, "resources.kv.bind should be text, not 5557"),
        (f"{KV}owner = {{}}\nbind = ['tcp://*:1', 5]", 6, 22, "resources.kv.bind.1 should be text, not 5"),
        (f"{KV}owner = {{}}\nbind = []", 6, 8, "resources.kv.bind should have at least one element"),
        (f"{KV}owner = {{}}\nbind = ['tcp://*:1', 'tcp://*:1']", 6, 22, "bind says 'tcp://*:1' twice"),
        (f"{KV}owner = {{}}\nonce_per = 1", 6, 12, "resources.kv.once_per should be text, not 1"),
        (
            f"{KV}owner = {{}}\nshared = 'yes'",
            6,
            10,
            "resources.kv.shared should be 'inherited' or 'reuseport', not \"yes\"",
        ),
        (f"{KV}owner = {{}}\nipv6 = 1", 6, 8, "resources.kv.ipv6 should be true or false, not 1"),
        (f"{KV}owner = {{}}\nscope = 'world'", 6, 9, "resources.kv.scope should be 'host' or 'shared', not \"world\""),
        (
            f"{KV}owner = {{}}\nscope = 'host'",
            6,
            1,
            "resource kv says how far it reaches, and has neither a path nor a name",
        ),
        (f"{KV}owner = {{}}\npath = 'x'\n[hosts]\nblocks = [4, 4]", 6, 1, "say how far the path reaches"),
        (f"{KV}owner = {{}}\nconnect = 5", 6, 11, "resources.kv.connect should be keys and values, not 5"),
        (f"{KV}owner = {{}}\nconnect = [{{}}]", 6, 12, "resources.kv.connect.0 needs 'to'"),
        (
            f"{KV}owner = {{}}\nconnect = {{ to = 'tcp://h:1', role = 'x' }}",
            6,
            38,
            "should be 'bind' or 'replay', not \"x\"",
        ),
    ],
)
def test_a_wrong_or_missing_value(text: str, line: int, column: int, message: str) -> None:
    assert places(text) == [("RB903", line, column)]
    assert message in only(text).message


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        (f"{AXES}[resources.'']\nowner = {{}}", 4, 12),
        (f'{AXES}[resources."a\\nb"]\nowner = {{}}', 4, 12),
        (f'{AXES}[resources]\n"\\u202e" = {{ owner = {{}} }}', 5, 1),
        (f"{AXES}[views.' ']\nof = 'tp'\naxes = {{ x = 4 }}", 4, 8),
        (f"{AXES}[hosts]\nranks = {{ '' = '0-7' }}", 5, 11),
        (f'{AXES}[hosts]\ncount = 2\nnames = ["a", "b\\u0007"]', 6, 15),
        (f"{AXES}[hosts]\nreserved = {{ '' = 1 }}", 5, 14),
    ],
)
def test_a_name_that_cannot_be_seen(text: str, line: int, column: int) -> None:
    assert places(text) == [("RB903", line, column)]
    assert "is no name" in only(text).message


def test_an_address_that_cannot_be_seen() -> None:
    for role in ("bind", "replay", "name", "path"):
        text = f"{KV}owner = {{}}\n{role} = 'ipc:///run/\u202e{{tp}}'"
        assert places(text) == [("RB904", 6, len(role) + 5 + len("ipc:///run/"))]


def test_nothing_of_pydantic_is_shown() -> None:
    found = refused(
        "axes = 1\nviews = 1\nhosts = [1]\n[resources]\na = 1\nb = { singleton_per = 1, connect = [1], owner = 1 }"
    )
    shown = " ".join(finding.message for finding in found)
    assert not any(word in shown for word in ("instance", "dictionary", "Input", "valid", "_Scope", "type="))


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("[axes]\ntp = 0", 2, 1, "axis tp needs a size of at least 1, not 0"),
        ("[axes]\ntp = -2", 2, 1, "axis tp needs a size of at least 1, not -2"),
        ("[axes]\npp = 2\nrank = 2", 3, 1, "axis name 'rank' is reserved"),
        ("[axes]\ntp_size = 2", 2, 1, "axis name 'tp_size' is reserved"),
        ("[axes]\n'a b' = 2", 2, 1, "axis name 'a b' must be letters"),
        ("[axes]\n'' = 2", 2, 1, "axis name '' must be letters"),
        ("[axes]\npp = 2000\ntp = 2000", 3, 1, "make 4000000 ranks; rankbind handles up to 1048576"),
        ("[axes]\npp = 9223372036854775807", 2, 1, "ranks; rankbind handles up to 1048576"),
        (f"{AXES}[views.a]\nof = 'tpp'\naxes = {{ x = 4 }}", 5, 6, "view a is of unknown axis 'tpp'; did you mean tp?"),
        (f"{AXES}[views.a]\nof = ['pp', 'tq']\naxes = {{ x = 4 }}", 5, 13, "view a is of unknown axis 'tq'"),
        (f"{AXES}[views.a]\nof = 'tp'\naxes = {{ x = 3 }}", 5, 6, "view a does not divide tp 4: x 3 makes 3, not 4"),
        (f"{AXES}[views.a]\nof = 'tp'\naxes = {{ x = 4, pp = 1 }}", 6, 17, "axis pp is declared twice"),
        (f"{AXES}[views.a]\nof = 'tp'\naxes = {{ x = 0 }}", 6, 10, "axis x needs a size of at least 1, not 0"),
        (f"{AXES}[views.a]\nof = ['tp', 'tp']\naxes = {{ x = 16 }}", 5, 7, "view a names axis tp twice"),
        (
            f"{AXES}[views.a]\nof = 'tp'\naxes = {{ x = 4 }}\n[views.b]\nof = ['pp', 'x']\naxes = {{ y = 8 }}",
            8,
            7,
            "view b mixes axes of different views: pp, x",
        ),
        (
            f"{AXES}[views.a]\nof = 'x'\naxes = {{ y = 4 }}\n[views.b]\nof = 'tp'\naxes = {{ x = 4 }}",
            5,
            6,
            "unknown axis 'x'",
        ),
        (
            f"{KV}owner = {{}}\nconnect = {{ to = 'tcp://h:1', axes = {{ a = 0 }} }}",
            6,
            40,
            "axis a needs a size of at least 1",
        ),
        (
            f"{KV}owner = {{}}\nconnect = {{ to = 'tcp://h:1', axes = {{ a = 99999, b = 99999 }} }}",
            6,
            51,
            "ranks; rankbind handles",
        ),
        (f"{KV}owner = {{}}\nconnect = {{ to = 'tcp://h:1', axes = {{ rank = 2 }} }}", 6, 40, "reserved"),
    ],
)
def test_axes_and_views(text: str, line: int, column: int, message: str) -> None:
    assert places(text) == [("RB905", line, column)]
    assert message in only(text).message


@pytest.mark.parametrize(
    ("hosts", "line", "column", "message"),
    [
        ("count = 3", 5, 9, "8 ranks do not divide over 3 hosts"),
        ("count = 0", 5, 9, "a job needs at least 1 host, not 0"),
        ("count = -1", 5, 9, "a job needs at least 1 host, not -1"),
        ("blocks = [4, 5]", 5, 10, "the hosts run 9 ranks, but the topology has 8"),
        ("blocks = [9, -1]", 5, 10, "a negative number of ranks"),
        ("ranks = { a = '0-3', b = [4, 99] }", 5, 26, "host b runs rank 99, but there are only ranks 0..7"),
        ("ranks = { a = [-1] }", 5, 15, "host a runs rank -1"),
        ("count = 2\nblocks = [4, 4]", 4, 2, "hosts are given by count and by blocks: keep one"),
        ("count = 2\nnames = ['a']", 4, 2, "2 hosts need as many different names, not a"),
        ("count = 2\nnames = ['a', 'a']", 4, 2, "2 hosts need as many different names, not a, a"),
        ("names = ['a', 'b']", 5, 9, "1 hosts need as many different names, not a, b"),
        ("ranks = { a = '0-7' }\nnames = ['a']", 4, 2, "hosts.ranks names the hosts already"),
    ],
)
def test_hosts_that_cannot_hold_the_ranks(hosts: str, line: int, column: int, message: str) -> None:
    text = f"{AXES}[hosts]\n{hosts}"
    assert places(text) == [("RB603", line, column)]
    assert message in only(text).message


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ("tcp://*:{5557 + }", "}"),
        ("tcp://*:{5557 & dp}", "&"),
        ("tcp://*:{5557 + (dp}", "("),
        ("tcp://*:{5557 + dp", "{"),
        ("tcp://*:5557}", "}"),
        ("tcp://*:{}", "}"),
        ("tcp://*:{1234567890123456789}", "1234567890123456789"),
        ("tcp//*:5557", "tcp//*:5557"),
        ("udp://*:5557", "udp"),
        ("tcp://*", "*"),
        ("tcp://:5557", ":"),
        ("tcp://*:5557x", "5557x"),
        ("tcp://*:{tp}x", "{tp}x"),
        ("tcp://*:x{tp}", "x{tp}"),
        ("tcp://a b:{tp}", " "),
        ("tcp://a{tp}/b:1", "/"),
        ("tcp://*:5560-5557", "5560-5557"),
        ("tcp://[::1:5557", "[::1"),
    ],
)
@pytest.mark.parametrize("ending", ["toml", "yaml", "json"])
def test_a_template_or_an_endpoint_is_wrong_at_the_very_character(ending: str, written: str, wrong: str) -> None:
    before = {
        "toml": f"{KV}owner = {{}}\nbind = [ 'tcp://ü:1', ",
        "yaml": "axes: {pp: 2, tp: 4}\nresources:\n  kv:\n    owner: {}\n    bind: ['tcp://ü:1', ",
        "json": '{"axes": {"pp": 2, "tp": 4}, "resources": {"kv": {"owner": {},\n\t"bind": ["tcp://ü:1", ',
    }[ending]
    text = before + json.dumps(written) + {"toml": " ]", "yaml": "]", "json": "]}}}"}[ending]
    found = only(text, f"t.{ending}")
    assert found.code == "RB904"
    assert underlined(found, text) == wrong
    expected = before.rpartition("\n")[2] + '"' + written[: written.rindex(wrong) if wrong != ":" else 6]
    assert found.labels[0].span.column == len(expected) + 1


def test_a_template_in_a_plain_yaml_text() -> None:
    text = "axes: {tp: 2}\nresources:\n  kv:\n    owner: {}\n    connect: tcp://h:{5557 + }\n"
    assert places(text, "t.yaml") == [("RB904", 5, text.split("\n")[4].index("}") + 1)]


def test_a_range_that_depends_on_the_rank_is_left_to_the_checks() -> None:
    for written in ("{8000}-{7000 + 500 * tp_size}", "5600-{5500 + tp}", "{5557 + tp}-6000", "50{tp}0-5099"):
        assert resource(f"owner = {{}}\nbind = 'tcp://*:{written}'").addresses


def test_a_resource_it_is_to_go_with() -> None:
    text = f"{KV}owner = {{}}\nwith = 'kvv'"
    assert places(text) == [("RB906", 6, 8)]
    assert only(text).message == "resource kv is to go with 'kvv', which is not declared"
    assert only(text).fix == "did you mean kv?"


def test_everything_wrong_is_told_at_once_in_the_order_of_the_file() -> None:
    assert places(
        """
        hosts = "many"
        color = "red"
        [axes]
        tp = "4"
        [views.a]
        [resources.kv]
        owner = { tp = 0.5 }
        bnid = 1
        """
    ) == [
        ("RB903", 2, 17),
        ("RB902", 3, 9),
        ("RB903", 5, 14),
        ("RB903", 6, 16),
        ("RB903", 6, 16),
        ("RB903", 8, 24),
        ("RB902", 9, 9),
    ]
    assert places(
        """
        [axes]
        rank = 2
        tp = 4
        pp = 0
        [views.a]
        of = "tp"
        axes = { x = 3 }
        [views.b]
        of = "x"
        axes = { y = 3 }
        [views.c]
        of = "tp"
        axes = { tp = 4 }
        [hosts]
        count = 2
        addresses = { b = "192.0.2.1" }
        [resources.kv]
        owner = {}
        bind = ["tcp://*:{", "tcp://*:{5557 + tp}", "udp://*"]
        with = "other"
        """
    ) == [
        ("RB905", 3, 9),
        ("RB905", 5, 9),
        ("RB905", 7, 14),
        ("RB905", 14, 18),
        ("RB904", 20, 26),
        ("RB904", 20, 54),
        ("RB906", 21, 16),
    ]


def test_the_message_of_the_error_holds_every_position() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("[axes]\ntp = 0\npp = 0\n", "my.toml")
    assert str(caught.value).split("\n") == [
        "my.toml:2:1: RB905: axis tp needs a size of at least 1, not 0",
        "my.toml:3:1: RB905: axis pp needs a size of at least 1, not 0",
    ]


def test_public_names() -> None:
    assert all(hasattr(config, name) for name in ("Declaration", "load", "parse", "read"))
