"""RB301 and RB302: sockets that listen where anybody may come, and do not ask who it is."""

from __future__ import annotations

import pytest

from rankbind.finding import Level

from ..support.findings import codes, finding, underlined


def job(keys: str, *more: str, top: str = "") -> str:
    resources = "".join(f"[resources.r{n}]\nowner = {{}}\n{each}\n" for n, each in enumerate((keys, *more)))
    return f"[axes]\ntp = 2\n{top}{resources}"


OPEN = "bind = 'tcp://*:{5557 + tp}'\nauthenticated = false"


@pytest.mark.parametrize(
    "keys",
    [
        "bind = 'tcp://*:{5557 + tp}'",
        "bind = 'tcp://*:{5557 + tp}'\nauthenticated = true",
        "bind = 'tcp://127.0.0.1:{5557 + tp}'\nauthenticated = false",
        "bind = 'tcp://10.0.0.1:{5557 + tp}'\nauthenticated = false",
        "bind = 'tcp://[fd00::1]:{5557 + tp}'\nipv6 = true\nauthenticated = false",
        "bind = 'tcp://n0:{5557 + tp}'\nauthenticated = false",
        "bind = 'ipc:///run/{tp}'\nauthenticated = false",
        "path = '/run/{tp}'\nauthenticated = false",
        "probe = 'tcp://*:{5557 + tp}'\nauthenticated = false",
    ],
)
def test_silent(keys: str) -> None:
    assert codes(job(keys)) == []


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "0", "[::]"])
def test_a_wildcard_is_a_note(host: str) -> None:
    text = job(f"bind = 'tcp://{host}:{{5557 + tp}}'\nipv6 = true\nauthenticated = false")
    found = finding(text, "RB301")
    assert codes(text) == ["RB301"]
    assert found.level is Level.NOTE
    assert found.message == "r0 listens on every address of its host and asks nobody who it is"
    assert underlined(found, text) == [f"'tcp://{host}:{{5557 + tp}}'"]
    assert found.facts["sockets"] == [
        {"resource": "r0", "endpoints": [f"tcp://{host}:5557", f"tcp://{host}:5558"], "ranks": [0, 1]}
    ]


def test_a_port_that_the_kernel_picks_is_open_too() -> None:
    assert codes(job("bind = 'tcp://*:0'\nauthenticated = false")) == ["RB301"]


@pytest.mark.parametrize("host", ["8.8.8.8", "[2001:4860:4860::8888]", "[::ffff:8.8.8.8]"])
def test_a_public_address_is_a_warning(host: str) -> None:
    text = job(f"bind = 'tcp://{host}:{{5557 + tp}}'\nipv6 = true\nauthenticated = false")
    found = finding(text, "RB302")
    assert codes(text) == ["RB302"]
    assert found.level is Level.WARNING
    assert found.message == "r0 listens on a public address and asks nobody who it is"


def test_one_finding_for_all() -> None:
    text = job(OPEN, *(OPEN.replace("5557", str(6000 + 10 * n)).replace("bind", "replay") for n in range(5)))
    found = finding(text, "RB301")
    assert found.message == (
        "r0, r1, r2, r3, ... (6 in all) listen on every address of their hosts and ask nobody who it is"
    )
    assert found.facts["resources"] == ["r0", "r1", "r2", "r3", "r4", "r5"]
    assert len(found.labels) == 4
    assert found.details[0] == "r0: tcp://*:5557, tcp://*:5558 on ranks 0, 1"
    assert found.details[4] == "... 6 in all"
    assert "whoever reaches the host" in found.details[-1]


def test_who_takes_it_is_named() -> None:
    found = finding(job(f"{OPEN}\nprocess = 'HTTP server'"), "RB301")
    assert found.details[0].endswith(" on ranks 0, 1 (HTTP server)")


def test_loopback_where_all_who_dial_are_at_home() -> None:
    near = f"{OPEN}\nconnect = {{ to = 'tcp://localhost:{{5557 + tp}}', axes = {{ tp = 2 }} }}"
    found = finding(job(near, OPEN.replace("5557", "6000")), "RB301")
    assert str(found.fix).split("\n") == [
        "bind r0 to 127.0.0.1: all who dial it run on its host",
        "bind r1 to the host's address on a private network; to 127.0.0.1 where all who dial run on the host",
    ]


def test_the_private_address_that_the_file_knows() -> None:
    top = "[hosts]\naddresses = { 0 = ['8.8.4.4', 'n0', '127.0.0.1', '10.1.2.3'] }\n"
    assert "private network, such as 10.1.2.3;" in str(finding(job(OPEN, top=top), "RB301").fix)
