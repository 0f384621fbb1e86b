"""Engine cores of real vLLM on one host, before and after they have a model: who publishes what where."""

from __future__ import annotations

import re
import socket
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rankbind.runtime import record
from rankbind.runtime.record import Record

from ...support.sglang import Batch, Subscriber, free_ports
from ...support.vllm import PLAIN, kv_events
from .conftest import Labs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

RELEASES = ("0.11.0", "0.33.0")
LAST = RELEASES[-1]

released = pytest.mark.parametrize("release", RELEASES)

BLOCK = 16
OFF = {"RANKBIND_VLLM_CLAIMS": "off"}
_prompts = count(10)


def prompt(blocks: int = 2) -> list[int]:
    """Tokens that fill some blocks, the first of which no other prompt has."""
    return [next(_prompts)] * (BLOCK * blocks)


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


def hear(labs: Labs, release: str, *subscribers: Subscriber) -> list[list[Batch]]:
    """Have requests answered until every subscriber has heard of one."""
    heard: list[list[Batch]] = [[] for _ in subscribers]
    for _ in range(50):
        labs(release).generate(prompt())
        for batches, subscriber in zip(heard, subscribers, strict=True):
            batches += subscriber.take(1, seconds=0.2)
        if all(heard):
            return heard
    raise AssertionError("nothing is received")


@released
def test_replicas_publish_on_ports_of_their_own_and_claim_them(labs: Labs, release: str, claims: Path) -> None:
    port = free_ports(2)
    with (
        labs(release).engine(kv_events(f"tcp://*:{port}"), data_parallel_size=2) as reports,
        Subscriber(port) as one,
        Subscriber(port + 1) as other,
    ):
        assert [report["error"] for report in reports] == [None, None]
        assert [report["endpoint"] for report in reports] == [f"tcp://*:{port}", f"tcp://*:{port + 1}"]
        for index, report in enumerate(reports):
            (said,) = report["said"]
            assert said == (
                f"rankbind-vllm on vLLM {release}: this engine core (dp {index}, pp 0, pcp 0, tp 0) owns the KV events "
                f"of replica {index}; they belong to rank 0 of each (pp, pcp, tp) group"
            )
        held = records(claims, deployment=f"vllm-{port}")
        assert sorted((each.group["dp"], each.rank, each.process.pid, each.endpoints["bind"]) for each in held) == [
            (index, index, report["pid"], f"tcp://0.0.0.0:{port + index}") for index, report in enumerate(reports)
        ]
        heard = hear(labs, release, one, other)
        for index, batches in enumerate(heard):
            assert {batch.cache for batch in batches} == {index}
            assert len(batches[0].stored) == 2, "the blocks of one prompt"


@released
def test_the_second_process_with_one_index_ends_before_it_has_a_model(labs: Labs, release: str) -> None:
    port = free_ports(2)
    launch: dict[str, Any] = {"events": kv_events(f"tcp://*:{port}"), "data_parallel_size": 2}
    with labs(LAST, 1).engine(**launch, replica=1) as (first,):
        assert first["error"] is None
        with labs(release).engine(**launch, replica=1) as (second,):
            said = second["error"]
        assert said.startswith(f"ClaimedError: vllm-{port}/kv-events[dp=1] is held by rank 1 (dp 1, pp 0, pcp 0, tp 0)")
        assert not second["had_a_model"]
        assert f"pid {first['pid']} on {socket.gethostname()}" in said
        assert re.search(r", since \d\d:\d\d:\d\d \(\d+ s ago\)", said)
        assert f"bind tcp://0.0.0.0:{port + 1}" in said
        assert f"asked for by rank 1 (dp 1, pp 0, pcp 0, tp 0), pid {second['pid']} on " in said
        assert "declared at --kv-events-config" in said
        assert "or give this one another port in --kv-events-config" in said.splitlines()[-1]
        with labs(release).engine(**launch, replica=0) as (beside,):
            assert beside["error"] is None, "another replica of the same launch"


def test_two_launches_whose_ports_meet(labs: Labs) -> None:
    port = free_ports(2)
    with (
        labs(LAST, 1).engine(kv_events(f"tcp://*:{port + 1}")),
        labs(LAST).engine(kv_events(f"tcp://*:{port}"), data_parallel_size=2) as (first, second),
    ):
        assert first["error"] is None
        assert f"vllm-{port}/kv-events[dp=1] needs tcp://*:{port + 1}, which is held by rank 0 (" in second["error"]
        assert f"for vllm-{port + 1}/kv-events of dp 0" in second["error"]
        assert "likely: two deployments want one address" in second["error"]


def test_a_replay_endpoint_is_claimed(labs: Labs) -> None:
    port = free_ports(3)
    with (
        labs(LAST, 1).engine(kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}")) as (first,),
        labs(LAST).engine(kv_events(f"tcp://*:{port + 2}", f"tcp://*:{port + 1}")) as (second,),
    ):
        assert first["error"] is None
        assert f"needs tcp://*:{port + 1}, which is held by rank 0 (" in second["error"]


@released
def test_one_path_is_not_taken_over_silently(labs: Labs, release: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with (
        labs(LAST, 1).engine(kv_events(f"ipc://{tmp_path}/kv"), plugins=PLAIN),
        labs(release).engine(kv_events(f"ipc://{tmp_path}/kv"), plugins=PLAIN) as (second,),
    ):
        assert second["error"] is None, "without the plugin nobody says anything"
    with (
        labs(LAST, 1).engine(kv_events(f"ipc://{tmp_path}/kv")),
        labs(release).engine(kv_events(f"ipc://{tmp_path}/link/kv")) as (second,),
    ):
        assert f" ipc://{tmp_path}/link/kv, which is held by rank 0 (" in second["error"]
        assert not second["had_a_model"]


@released
def test_a_claim_lasts_as_long_as_its_publisher(labs: Labs, release: str, claims: Path) -> None:
    port = free_ports()
    events = kv_events(f"tcp://*:{port}")
    with labs(LAST, 1).engine(events) as (first,):
        assert [each.process.pid for each in records(claims, deployment=f"vllm-{port}")] == [first["pid"]]
        labs(LAST, 1).shut_down()
        assert records(claims, deployment=f"vllm-{port}") == [], "its process lives"
        with labs(release).engine(events) as (second,):
            assert second["error"] is None


@released
def test_claims_can_be_switched_off(labs: Labs, release: str) -> None:
    port = free_ports()
    events = kv_events(f"tcp://*:{port}")
    with labs(LAST, 1).engine(events), labs(release).engine(events, environment=OFF) as (second,):
        assert second["error"] == f"ZMQError: Address already in use (addr='tcp://*:{port}')"
        assert second["had_a_model"]


def test_the_plugin_can_be_switched_off(labs: Labs, claims: Path) -> None:
    port = free_ports()
    with labs(LAST).engine(kv_events(f"tcp://*:{port}"), environment={"RANKBIND_VLLM": "off"}) as (report,):
        assert not any("owns" in line for line in report["said"])
        assert report["publisher"] == "ZmqEventPublisher"
        assert records(claims, deployment=f"vllm-{port}") == []


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:{0}", "tcp://*:0"], ids=["both connect", "both take any port"])
def test_launches_that_do_not_meet_do_not_hinder_each_other(labs: Labs, address: str, claims: Path) -> None:
    events = kv_events(address.format(free_ports()))
    with labs(LAST, 1).engine(events) as (first,), labs(LAST).engine(events) as (second,):
        assert (first["error"], second["error"]) == (None, None)
        found = [records(claims, deployment=f"vllm-pid{report['pid']}")[0] for report in (first, second)]
        assert [each.endpoints.get("bind") for each in found] == (
            [None, None] if "127" in address else [report["endpoint"] for report in (first, second)]
        )


def test_a_directory_that_cannot_be_used_does_not_keep_a_server_from_starting(labs: Labs, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    elsewhere = {"RANKBIND_DIR": str(tmp_path / "open")}
    with labs(LAST).engine(kv_events(f"tcp://*:{free_ports()}"), environment=elsewhere) as (report,):
        assert report["error"] is None
        (line,) = [line for line in report["said"] if "without a claim" in line]
        assert line.startswith("rankbind-vllm starts this engine core without a claim on its KV events: DirectoryError")


@released
@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        pytest.param("ipc:///tmp/rankbind-nobody", "must contain 'inproc' or 'tcp'", id="ipc"),
        pytest.param("tcp://*:65535", "the bind endpoint of replica 1 comes to tcp://*:65536", id="no room"),
    ],
)
def test_an_endpoint_that_no_second_replica_can_have_is_named_before_the_model(
    labs: Labs, release: str, endpoint: str, why: str
) -> None:
    with labs(release).engine(kv_events(endpoint), data_parallel_size=2, replica=1) as (report,):
        assert report["error"] is not None, "vLLM ends by itself"
        assert report["had_a_model"]
        assert why in report["said"][0]
        assert report["said"][0].startswith(
            "rankbind-vllm: this engine core (dp 1, pp 0, pcp 0, tp 0) will not publish its KV events as it is "
        )


def test_an_address_that_vllm_takes_for_somebody_elses_is_named(labs: Labs) -> None:
    with labs(LAST).engine(kv_events(f"tcp://0.0.0.0:{free_ports()}")) as (report,):
        assert "where nobody listens: it binds tcp://* and no other" in report["said"][0]


@pytest.mark.parametrize(
    ("release", "enabled", "kind", "lines"),
    [
        ("0.11.0", False, "zmq", ["opens the endpoint of KV events and will never publish any there"]),
        ("0.33.0", False, "zmq", []),
        ("0.33.0", True, "null", ["vLLM 0.33.0 publishes none"]),
    ],
)
def test_a_configuration_by_halves_is_named(
    labs: Labs, release: str, enabled: bool, kind: str, lines: list[str]
) -> None:
    events = kv_events(f"tcp://*:{free_ports()}", enable_kv_cache_events=enabled, publisher=kind)
    with labs(release).engine(events) as (report,):
        assert report["error"] is None
        found = [line for line in report["said"] if "owns the KV events" not in line]
        assert len(found) == len(lines)
        assert all(wanted in line for wanted, line in zip(lines, found, strict=True))


def test_the_configuration_that_0_11_0_ends_with_is_named_before_the_model(labs: Labs) -> None:
    with labs("0.11.0").engine({"enable_kv_cache_events": True}) as (report,):
        assert report["had_a_model"]
        assert report["error"].startswith("TypeError: EventPublisher.__init__() got an unexpected keyword argument")
        assert f"as it is configured: {report['error']}. Write " in report["said"][0]


@released
def test_without_kv_events_it_says_and_does_nothing(labs: Labs, release: str) -> None:
    with labs(release).engine(None) as (report,):
        assert (report["error"], report["said"], report["publisher"]) == (None, [], "NullEventPublisher")
        assert labs(release).generate(prompt()) == [2]
