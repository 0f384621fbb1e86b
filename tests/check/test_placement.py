"""RB601 and RB602: every rank runs on exactly one host."""

from __future__ import annotations

import pytest

from ..support.findings import codes, finding, findings, underlined

AXES = "[axes]\npp = 3\ntp = 2\n"


@pytest.mark.parametrize(
    "hosts", ["hosts = 1", "hosts = 3", "hosts.blocks = [4, 2]", "hosts.ranks = { a = '3-5', b = [0, 2, 1] }"]
)
def test_silent_when_every_rank_runs_once(hosts: str) -> None:
    assert codes(f"{hosts}\n{AXES}") == []


def test_a_rank_left_out() -> None:
    """SGLang rounds the stages of a node down: two nodes of three stages start two of them (case c18)."""
    text = f"{AXES}[hosts]\nblocks = [2, 2]"
    found = finding(text, "RB601")
    assert codes(text) == ["RB601"]
    assert found.message == "ranks 4, 5 run on no host: the hosts run 4 of 6 ranks"
    assert underlined(found, text) == ["[2, 2]"]
    assert found.facts == {
        "placement": "missing",
        "ranks": [4, 5],
        "coordinates": [{"pp": 2, "tp": 0}, {"pp": 2, "tp": 1}],
    }


def test_nobody_runs_at_all() -> None:
    assert (
        finding(f"{AXES}[hosts]\nblocks = []", "RB601").message
        == "ranks 0..5 run on no host: the hosts run 0 of 6 ranks"
    )


def test_a_rank_on_two_hosts() -> None:
    text = f"{AXES}[hosts.ranks]\na = '0-3'\nb = [3, 4, 5]"
    found = finding(text, "RB602")
    assert codes(text) == ["RB602"]
    assert found.message == "rank 3 runs more than once: on hosts a, b"
    assert found.facts == {"placement": "twice", "ranks": [3], "hosts": {"3": ["a", "b"]}}
    assert underlined(found, text) == ["'0-3'", "[3, 4, 5]"]


def test_a_rank_twice_on_one_host() -> None:
    found = finding(f"{AXES}[hosts.ranks]\na = '0-5, 5'", "RB602")
    assert found.message == "rank 5 runs more than once: on host a"
    assert found.facts["hosts"] == {"5": ["a", "a"]}


def test_both_at_once() -> None:
    assert [f.code for f in findings(f"{AXES}[hosts.ranks]\na = '0-3'\nb = '3-4'")] == ["RB601", "RB602"]
