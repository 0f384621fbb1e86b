"""Two servers of real SGLang on one host, before they have a model: who may have which address."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from rankbind.runtime import record
from rankbind.runtime.record import Record

from ...support.sglang import CLEARED, Lab, Subscriber, free_ports, kv_events

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(180)]

SITES = ("publisher", "port index", "cache builder", "metrics collector")
RELEASES = ("0.5.14", "0.5.23")

released = pytest.mark.parametrize("release", RELEASES)
one_release = pytest.mark.parametrize("release", RELEASES[-1:])


def records(claims: Path, **fields: Any) -> list[Record]:
    """The records of claims that are held and have these fields."""
    found = [record.read(path) for path in (claims / "claims").glob("*.json")]
    return [
        each
        for each in found
        if each is not None
        and each.state == "held"
        and all(getattr(each, name) == value for name, value in fields.items())
    ]


@released
def test_the_second_server_on_a_kv_port_ends_before_it_has_a_model(lab: Lab, other_lab: Lab, release: str) -> None:
    port = free_ports(2)
    events = kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}")
    with (
        other_lab.engine({"port": 30_000}, events, SITES) as (first,),
        lab.engine({"port": 31_000}, kv_events(f"tcp://0.0.0.0:{port}"), SITES) as (second,),
    ):
        assert first["error"] is None
        assert second["error"].startswith("ClaimedError: ")
        assert not second["had_a_model"]
        said = second["error"]
        assert f"sglang-31000-{port}/kv-events[attn_dp=0,dp=0]" in said
        assert f"tcp://0.0.0.0:{port}, which is held by rank 0 (" in said
        assert f"pid {first['pid']} on {socket.gethostname()}, for sglang-30000-{port}/kv-events" in said
        assert re.search(r", since \d\d:\d\d:\d\d \(\d+ s ago\)", said)
        assert f"bind tcp://0.0.0.0:{port}, replay tcp://0.0.0.0:{port + 1}" in said
        assert "declared at --kv-events-config" in said
        assert f"asked for by rank 0 (dp 0, pp 0, attn_dp 0, attn_cp 0, attn_tp 0), pid {second['pid']} on " in said
        assert "likely: two deployments want one address: give " in said
        assert "or give this one another port in --kv-events-config" in said.splitlines()[-1]


@one_release
def test_the_same_server_started_twice(lab: Lab, other_lab: Lab) -> None:
    port = free_ports()
    events = kv_events(f"tcp://*:{port}")
    with other_lab.engine({}, events, SITES), lab.engine({}, events, SITES) as (second,):
        assert f"ClaimedError: sglang-30000-{port}/kv-events[attn_dp=0,dp=0] is held by rank 0 (" in second["error"]


@one_release
def test_the_address_is_free_again_when_its_server_is_gone(lab: Lab, other_lab: Lab) -> None:
    events = kv_events(f"tcp://*:{free_ports()}")
    with other_lab.engine({}, events, SITES) as (first,):
        assert first["error"] is None
    with lab.engine({}, events, SITES) as (second,):
        assert second["error"] is None


@one_release
def test_one_path_is_not_taken_over_silently(lab: Lab, other_lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with (
        other_lab.engine({"port": 30_000}, kv_events(f"ipc://{tmp_path}/kv"), SITES),
        lab.engine({"port": 31_000}, kv_events(f"ipc://{tmp_path}/link/kv"), SITES) as (second,),
    ):
        assert f" ipc://{tmp_path}/link/kv, which is held by rank 0 (" in second["error"]


@one_release
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("tcp://*:{0}", "tcp://*:{1}", id="other ports"),
        pytest.param("tcp://127.0.0.1:{0}", "tcp://127.0.0.1:{0}", id="both connect to one router"),
        pytest.param("tcp://*:0", "tcp://*:0", id="both take any port"),
    ],
)
def test_servers_that_do_not_meet_do_not_hinder_each_other(lab: Lab, other_lab: Lab, one: str, other: str) -> None:
    port = free_ports(2)
    with (
        # The same --port, as engines without an HTTP server have it.
        other_lab.engine({}, kv_events(one.format(port, port + 1)), SITES) as (first,),
        lab.engine({}, kv_events(other.format(port, port + 1)), SITES) as (second,),
    ):
        assert (first["error"], second["error"]) == (None, None)


@one_release
def test_replicas_and_stages_of_one_server_do_not_hinder_each_other(lab: Lab, claims: Path) -> None:
    port = free_ports(2)
    with lab.engine({"dp_size": 2}, kv_events(f"tcp://*:{port}"), SITES) as reports:
        assert [report["error"] for report in reports] == [None, None]
        held = records(claims, deployment=f"sglang-30000-{port}")
        assert sorted(each.group["dp"] for each in held) == [0, 1]
        assert {each.endpoints["bind"] for each in held} == {f"tcp://0.0.0.0:{port}", f"tcp://0.0.0.0:{port + 1}"}
    with lab.engine({"pp_size": 2}, kv_events(f"tcp://*:{port}"), SITES) as reports:
        assert [report["error"] for report in reports] == [None, None]
        (held,) = records(claims, deployment=f"sglang-30000-{port}")
        assert (held.rank, held.coordinates["pp"]) == (0, 0)


@one_release
def test_a_name_that_was_given_is_one_deployment(lab: Lab, other_lab: Lab) -> None:
    port, name = free_ports(2), {"RANKBIND_DEPLOYMENT": "blue"}
    with (
        other_lab.engine({}, kv_events(f"tcp://*:{port}"), SITES, environment=name) as (first,),
        lab.engine({}, kv_events(f"tcp://*:{port + 1}"), SITES, environment=name) as (second,),
    ):
        assert first["error"] is None
        assert second["error"].startswith("ClaimedError: blue/kv-events[attn_dp=0,dp=0] is held by ")


@one_release
def test_they_can_be_switched_off(lab: Lab, other_lab: Lab, claims: Path) -> None:
    port = free_ports()
    events = kv_events(f"tcp://*:{port}")
    off = {"RANKBIND_SGLANG_CLAIMS": "off"}
    with (
        other_lab.engine({}, events, SITES) as (first,),
        lab.engine({}, events, SITES, environment=off) as (second,),
    ):
        assert first["error"] is None
        assert second["error"] == f"ZMQError: Address already in use (addr='tcp://*:{port}')"
        assert second["had_a_model"]


@one_release
def test_a_directory_that_cannot_be_used_does_not_keep_a_server_from_starting(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    elsewhere = {"RANKBIND_DIR": str(tmp_path / "open")}
    with lab.engine({}, kv_events(f"tcp://*:{free_ports()}"), SITES, environment=elsewhere) as (report,):
        assert report["error"] is None
        (line,) = [line for line in report["said"] if "without a claim" in line]
        assert line.startswith("rankbind-sglang starts this server without a claim on its KV events: DirectoryError: ")


@one_release
def test_the_record_says_what_is_bound_and_what_became_of_the_publisher(lab: Lab, claims: Path) -> None:
    with lab.engine({}, kv_events("tcp://*:0", "tcp://*:0"), SITES) as (report,):
        deployment = f"sglang-30000-pid{report['pid']}"
        (held,) = records(claims, deployment=deployment)
        assert held.process.pid == report["pid"] != os.getpid()
        bound = {role: int(endpoint.rpartition(":")[2]) for role, endpoint in held.endpoints.items()}
        assert set(bound) == {"bind", "replay"}
        assert 0 not in bound.values()
        with Subscriber(bound["bind"], replay=bound["replay"]) as subscriber:
            while not subscriber.take(1, seconds=0.2):
                lab.insert([1, 2, 3, 4])
                lab.flush()
            lab.hurt("both")
            lab.insert([5, 6, 7, 8])
            assert CLEARED in subscriber.until(CLEARED)[-1].events, "on the port that it had"
        end = time.monotonic() + 20
        while not held.notes:
            assert time.monotonic() < end
            (held,) = records(claims, deployment=deployment)
        assert held.notes["publisher"].startswith("restart 1 at 2")
        assert held.endpoints["bind"].endswith(f":{bound['bind']}")
