"""RB501 to RB504: what several deployments take on one host."""

from __future__ import annotations

import json
import time

import pytest

from rankbind.check import Plan
from rankbind.check.deployments import between
from rankbind.config import parse
from rankbind.finding import Finding, Level

NAMES = [f"{letter}.toml" for letter in "abcdefgh"]


def job(keys: str, more: str = "", name: str = "x") -> str:
    return f"[axes]\ntp = 2\n{more}\n[resources.{name}]\nowner = {{}}\n{keys}\n"


def found(*texts: str) -> list[Finding]:
    plans = [Plan(parse(text, name)) for text, name in zip(texts, NAMES, strict=False)]
    return list(between(plans, NAMES[: len(texts)]))


def codes(*texts: str) -> list[str]:
    return [finding.code for finding in found(*texts)]


def only(*texts: str) -> Finding:
    (finding,) = found(*texts)
    return finding


HTTP = job("bind = 'tcp://*:{30000 + tp}'", name="http")


def test_one_port_bound_by_two() -> None:
    finding = only(HTTP, HTTP)
    assert (finding.code, finding.level) == ("RB501", Level.ERROR)
    assert finding.message == "http of a.toml and http of b.toml both bind tcp://*:30000 on host 0"
    assert [(label.span.file, label.span.line, label.text) for label in finding.labels] == [
        ("a.toml", 6, "bound here by a.toml"),
        ("b.toml", 6, "and bound here by b.toml"),
    ]
    assert finding.details == (
        "tcp://*:30000 on host 0: rank 0 of a.toml, rank 0 of b.toml",
        "tcp://*:30001 on host 0: rank 1 of a.toml, rank 1 of b.toml",
    )
    assert finding.facts == {
        "deployments": [0, 1],
        "names": ["a.toml", "b.toml"],
        "resources": ["http"],
        "collisions": [
            {"host": "0", "endpoints": {"0": "tcp://*:30000", "1": "tcp://*:30000"}, "ranks": {"0": [0], "1": [0]}},
            {"host": "0", "endpoints": {"0": "tcp://*:30001", "1": "tcp://*:30001"}, "ranks": {"0": [1], "1": [1]}},
        ],
        "pairs": 2,
        "silent": False,
    }
    assert json.loads(json.dumps(finding.facts)) == finding.facts


def test_different_resources_and_spellings() -> None:
    finding = only(HTTP, job("replay = 'tcp://127.0.0.1:{30001 - tp}'", name="kv"))
    assert finding.message == (
        "http of a.toml binds tcp://*:30000 and kv (replay) of b.toml tcp://127.0.0.1:30000 on host 0; the two overlap"
    )
    assert finding.facts["resources"] == ["http", "kv"]
    assert finding.facts["collisions"][0]["ranks"] == {"0": [0], "1": [1]}


def test_hosts_with_one_name_are_one_host() -> None:
    def on(*names: str) -> str:
        return job("bind = 'tcp://*:9000'", f"[hosts.ranks]\n{names[0]} = [0]\n{names[1]} = [1]")

    assert codes(on("n0", "n1"), on("n2", "n3")) == []
    finding = only(on("n0", "n1"), on("n2", "n0"))
    assert finding.message == "x of a.toml and x of b.toml both bind tcp://*:9000 on host n0"
    assert [row["ranks"] for row in finding.facts["collisions"]] == [{"0": [0], "1": [1]}]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("bind = 'tcp://*:9000'", "bind = 'tcp://*:9001'", []),
        ("bind = 'tcp://*:0'", "bind = 'tcp://*:0'", []),
        ("bind = 'ipc://*'", "bind = 'ipc://*'", []),
        ("bind = 'inproc://x'", "bind = 'inproc://x'", []),
        ("bind = 'ipc://@x'", "bind = 'ipc://@x'", ["RB501"]),
        ("bind = 'tcp://*:9000'\nshared = 'reuseport'", "bind = 'tcp://*:9000'\nshared = 'reuseport'", []),
        ("bind = 'tcp://*:9000'\nshared = 'inherited'", "bind = 'tcp://*:9000'\nshared = 'inherited'", ["RB501"]),
        ("bind = 'tcp://*:9000-9010'", "bind = 'tcp://*:9005-9020'", ["RB501"]),
        ("bind = 'ipc:///run/x'", "bind = 'ipc:///run/./x'", ["RB502"]),
        ("bind = 'ipc:///run/x'", "path = '/run/x'", ["RB502"]),
        ("path = '/run/x'", "path = '/run/x'", ["RB502"]),
        ("name = 'x'", "name = 'x'", ["RB502"]),
        ("name = 'x'", "name = 'y'", []),
        ("bind = 'tcp://*:9000'", "probe = 'tcp://*:9000'", ["RB503"]),
        ("probe = 'tcp://*:9000'", "bind = 'tcp://*:9000'", ["RB503"]),
        ("probe = 'tcp://*:9000'", "probe = 'tcp://*:9000'", []),
        ("device = 'gpu 0'", "device = 'gpu 0'", ["RB504"]),
        ("device = 'gpu 0'", "device = 'gpu 1'", []),
    ],
)
def test_what_meets(one: str, other: str, expected: list[str]) -> None:
    # Each owned by one rank: within a job nothing collides.
    texts = [job(keys).replace("owner = {}", "owner = { tp = 0 }") for keys in (one, other)]
    assert codes(*texts) == expected


def test_what_deployments_do_to_themselves_is_not_told_here() -> None:
    assert codes(job("bind = 'tcp://*:9000'"), job("bind = 'tcp://*:9001'")) == []


def test_ranges_may_miss_each_other() -> None:
    finding = only(job("bind = 'tcp://*:9000-9010'"), job("bind = 'tcp://*:9005-9020'"))
    assert finding.level is Level.WARNING
    assert finding.message.startswith("x of a.toml draws from tcp://*:9000-9010 and x of b.toml tcp://*:9005-9020 ")


def test_what_the_kernel_says_nothing_about() -> None:
    finding = only(job("bind = 'ipc:///tmp/kv-{tp}.sock'"), job("bind = 'ipc:///tmp/kv-{1 - tp}.sock'"))
    assert (finding.code, finding.level, finding.facts["silent"]) == ("RB502", Level.ERROR, True)
    assert "takes the path over" in finding.details[-1]
    finding = only(job("path = '/tmp/x'"), job("path = '/tmp/x'"))
    assert finding.message == "x of a.toml and x of b.toml both claim /tmp/x on host 0"
    assert "takes the path over" not in finding.details[-1]


def test_what_is_shared_by_all_has_no_host() -> None:
    hosts = ["[hosts.ranks]\nn0 = [0, 1]", "[hosts.ranks]\nn1 = [0, 1]"]
    names = [job("name = 'engine-{tp}'", more) for more in hosts]
    assert only(*names).message == "x of a.toml and x of b.toml both claim engine-0"
    assert only(*names).facts["collisions"][0]["host"] is None
    paths = [job("path = '/mnt/x'\nscope = 'shared'", more) for more in hosts]
    assert codes(*paths) == ["RB502"]
    assert codes(*[text.replace("shared", "host") for text in paths]) == []


def test_a_port_that_is_looked_at_and_held() -> None:
    a, b = job("bind = 'tcp://*:{9000 + tp}'"), job("probe = 'tcp://127.0.0.1:{9000 + tp}'", name="y")
    for texts, holder, prober in (((a, b), "a.toml", "b.toml"), ((b, a), "b.toml", "a.toml")):
        finding = only(*texts)
        assert finding.level is Level.WARNING
        assert finding.message == (
            f"{prober} wants tcp://127.0.0.1:9000 free on host 0 when it starts, and x of {holder} binds tcp://*:9000"
        )
        assert [label.text for label in finding.labels] == [f"bound here by {holder}", f"and probed here by {prober}"]
        assert finding.facts["deployments"] == [0, 1]


def test_who_cannot_bind_a_port_need_not_be_told_that_it_cannot_look_at_it() -> None:
    text = job("bind = 'tcp://*:{9000 + tp}'\nprobe = 'tcp://*:{9000 + tp}'")
    assert codes(text, text) == ["RB501"]
    # What it looks at besides is another matter.
    assert codes(text, text.replace("probe = 'tcp://*:{9000", "probe = 'tcp://*:{9001")) == ["RB501"]
    assert codes(
        job("bind = ['tcp://*:{9000 + tp}', 'tcp://*:{9010 + tp}']"), text.replace("9000 + tp}'\np", "9010 + tp}'\np")
    ) == [
        "RB501",
        "RB503",
    ]


def test_devices_are_a_note_of_all_that_meet() -> None:
    weights = job("device = 'gpu {local_rank}'") + "[resources.draft]\nowner = { tp = 0 }\ndevice = 'gpu 1'\n"
    finding = only(weights, weights)
    assert (finding.code, finding.level) == ("RB504", Level.NOTE)
    assert finding.message == "a.toml, b.toml use the same devices: gpu 0 on host 0"
    assert "CUDA_VISIBLE_DEVICES" in finding.details[-1]
    assert finding.facts["resources"] == ["x", "draft"]


def test_three_of_one_command_are_one_finding() -> None:
    finding = only(HTTP, HTTP, HTTP)
    assert finding.message == "http of a.toml, b.toml, c.toml all bind tcp://*:30000 on host 0"
    assert finding.facts["deployments"] == [0, 1, 2]
    assert finding.facts["pairs"] == 6
    assert [label.span.file for label in finding.labels] == ["a.toml", "b.toml", "c.toml"]


def test_two_pairs_that_have_nothing_to_do_with_each_other_are_two_findings() -> None:
    other = HTTP.replace("30000", "40000")
    assert [finding.facts["deployments"] for finding in found(HTTP, other, HTTP, other)] == [[0, 2], [1, 3]]


def test_one_plan_given_twice_is_two_deployments() -> None:
    plan = Plan(parse(HTTP))
    assert [finding.code for finding in between([plan, plan], ["a", "b"])] == ["RB501"]
    # One listener, or one winner, of each.
    for text in (
        "[resources.x]\nowner = {}\nbind = 'tcp://*:9000'\nshared = 'inherited'",
        "[resources.x]\nsingleton_per = { group = 'world', rank = 'any' }\nbind = 'tcp://*:9000'",
    ):
        plan = Plan(parse(f"[axes]\ntp = 2\n{text}"))
        assert [finding.code for finding in between([plan, plan], ["a", "b"])] == ["RB501"]


def test_many_deployments_take_no_time() -> None:
    def large(base: int) -> str:
        resources = "".join(
            f"[resources.r{n}]\nowner = {{}}\nbind = 'tcp://*:{{{base + 10 * n} + tp}}'\n" for n in range(50)
        )
        return f"[axes]\ntp = 2\n{resources}"

    plans = [Plan(parse(large(1100 + 500 * n))) for n in range(64)]
    start = time.perf_counter()
    assert between(plans, [str(n) for n in range(64)]) == ()
    assert time.perf_counter() - start < 5  # 0.1 s where nothing else runs


def test_what_meets_by_way_of_a_third_is_not_said_to_be_at_one_place() -> None:
    def on(hosts: str) -> str:
        return job("bind = 'tcp://*:9000'", f"[hosts.ranks]\n{hosts}")

    finding = only(on("n0 = [0]\nn1 = [1]"), on("n1 = [0]\nn2 = [1]"), on("n2 = [0]\nn3 = [1]"))

    assert finding.message == "x of a.toml and x of b.toml both bind tcp://*:9000 on host n1"
    assert finding.facts["deployments"] == [0, 1, 2]
    assert finding.details == (
        "tcp://*:9000 on host n1: rank 1 of a.toml, rank 0 of b.toml",
        "tcp://*:9000 on host n2: rank 1 of b.toml, rank 0 of c.toml",
    )
