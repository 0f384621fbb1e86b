"""What is dialled for what is bound."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankbind.runtime import dial
from rankbind.runtime.key import Key
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record
from rankbind.runtime.registry import Entry

HERE = "10.1.2.3"


@pytest.fixture(autouse=True)
def _address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "address", lambda: HERE)


def of(
    endpoint: str, host: str | None = None, role: str = "bind", net_ns: int | None = None, **told: Any
) -> dial.Dialled:
    me = Process.me()
    read = Record(
        deployment="default",
        resource="kv-events",
        group={},
        token=1,
        since=1.0,
        process=me if net_ns is None else replace(me, net_ns=net_ns),
        host="a",
        endpoints={"bind": endpoint},
    )
    entry = Entry(
        **{"key": Key("default", "kv-events"), "state": "alive", "lock": Path("x.lock"), "record": read, **told}
    )
    (found,) = dial.dialled([entry], role, host)
    return found


@pytest.mark.parametrize(
    ("bound", "host", "endpoint"),
    [
        ("tcp://*:5557", None, f"tcp://{HERE}:5557"),
        ("tcp://0.0.0.0:5557", None, f"tcp://{HERE}:5557"),
        ("tcp://[::]:5557", None, f"tcp://{HERE}:5557"),
        ("tcp://*:5557", "node-a", "tcp://node-a:5557"),
        ("tcp://*:5557", "fd00::2", "tcp://[fd00::2]:5557"),
        ("tcp://*:5557", "[fd00::2]", "tcp://[fd00::2]:5557"),
        ("tcp://10.9.9.9:5557", None, "tcp://10.9.9.9:5557"),
        ("tcp://10.9.9.9:5557", "node-a", "tcp://10.9.9.9:5557"),
        ("tcp://node-a:5557", None, "tcp://node-a:5557"),
        ("ipc:///run/kv.sock", None, "ipc:///run/kv.sock"),
        ("ipc://@kv", None, "ipc://@kv"),
    ],
)
def test_it_can_be_dialled(bound: str, host: str | None, endpoint: str) -> None:
    found = of(bound, host)

    assert (found.endpoint, found.remark, found.bound) == (endpoint, "", bound)


@pytest.mark.parametrize(
    ("bound", "why"),
    [
        ("tcp://*:0", "what was asked for"),
        ("tcp://127.0.0.1:*", "what was asked for"),
        ("ipc://*", "what was asked for"),
        ("tcp://*:5000-5010", "what was asked for"),
        ("inproc://kv", "its own process"),
        ("ipc://kv.sock", "relative to the folder"),
        ("udp://*:5", "cannot be read"),
    ],
)
def test_it_cannot(bound: str, why: str) -> None:
    found = of(bound)

    assert found.endpoint is None
    assert why in found.remark


@pytest.mark.parametrize("bound", ["tcp://127.0.0.1:5557", "tcp://[::1]:5557", "tcp://localhost:5557"])
def test_loopback_is_told_apart(bound: str) -> None:
    found = of(bound)

    assert found.endpoint == bound
    assert "from this host alone" in found.remark


@pytest.mark.parametrize(
    ("bound", "why"),
    [
        ("tcp://*:5557", "say with --host"),
        ("tcp://127.0.0.1:5557", "another network namespace"),
        ("ipc://@kv", "another network namespace"),
    ],
)
def test_from_another_network_namespace(bound: str, why: str) -> None:
    found = of(bound, net_ns=1)

    assert found.endpoint is None
    assert why in found.remark
    assert of("tcp://*:5557", "pod-1", net_ns=1).endpoint == "tcp://pod-1:5557"
    assert of("ipc:///run/kv.sock", net_ns=1).endpoint == "ipc:///run/kv.sock"


def test_an_interface_is_dialled_by_its_address() -> None:
    found = of("tcp://lo:5557")

    assert found.endpoint == "tcp://127.0.0.1:5557"
    assert "from this host alone" in found.remark


def test_a_host_with_nothing_but_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "address", lambda: None)

    assert of("tcp://*:5557").endpoint == "tcp://127.0.0.1:5557"
    assert "no address but loopback" in of("tcp://*:5557").remark


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"state": "dead"}, "its holder is dead"),
        ({"state": "unknown"}, "another pid namespace"),
        ({"state": "unreadable", "record": None}, "cannot be read"),
    ],
)
def test_only_of_those_who_live(told: dict[str, Any], why: str) -> None:
    found = of("tcp://*:5557", **told)

    assert found.endpoint is None
    assert why in found.remark


def test_a_paused_holder_still_listens() -> None:
    assert of("tcp://*:5557", state="paused").endpoint == f"tcp://{HERE}:5557"


def test_another_role_is_named() -> None:
    assert of("tcp://*:5557", role="replay").remark == "it has no replay: it has bind"


def test_the_address_of_this_host_is_one_it_has_and_is_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    dial.address.cache_clear()
    found = dial.address()
    if found is not None:
        assert not found.startswith("127.")
        with socket.socket(socket.AF_INET6 if ":" in found else socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind((found, 0))
