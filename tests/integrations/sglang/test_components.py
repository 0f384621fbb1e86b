"""The publisher, the cache and the metrics collector of real SGLang, in real processes with real sockets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from ...support.sglang import Batch, Lab, Subscriber, assert_each_once, free_ports, kv_events

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(180)]

SITES = ("publisher", "port index", "cache builder", "metrics collector")
RELEASES = ("0.5.14", "0.5.15", "0.5.23")
HAS_THE_BUG = ("0.5.14",)

PIPELINE = {"pp_size": 2}
REPLICAS = {"dp_size": 2}
ATTENTION_DP = {"pp_size": 2, "tp_size": 2, "dp_size": 2, "enable_dp_attention": True}

WHO_OWNS = (
    "rankbind-sglang on SGLang {} (publisher, port index, cache builder, metrics collector): this scheduler (dp 0, "
    "pp 0, attn_dp 0, attn_cp 0, attn_tp 0) owns the KV events of cache 0; they belong to rank 0 of each (pp, attn_tp, "
    "attn_cp) group"
)

BLOCK = 4
BLOCKS = 3
_tokens = count(1)


def fresh() -> list[int]:
    """Tokens for `BLOCKS` blocks that no cache of this test run has seen."""
    return [next(_tokens) for _ in range(BLOCK * BLOCKS)]


def subscribe(lab: Lab, subscribers: Sequence[Subscriber]) -> int:
    """Publish until every subscriber has been heard from, and say how many batches that took."""
    waiting, sent = list(subscribers), 0
    while waiting:
        lab.insert(fresh())
        sent += 1
        waiting = [subscriber for subscriber in waiting if not subscriber.take(1, seconds=0.2)]
        assert sent < 100, "nothing is received"
    return sent


def drain(subscriber: Subscriber) -> list[Batch]:
    return subscriber.take(1_000, seconds=0.5)


engines = pytest.mark.parametrize(
    ("release", "sites"),
    [
        pytest.param(release, sites, id=f"{release}-{'plain' if sites is None else 'plugin'}")
        for release in RELEASES
        for sites in (None, SITES)
        if sites is not None or release not in HAS_THE_BUG
    ],
)
"""Every release with the plugin, and without it those that gate as declared by themselves."""

plugged = pytest.mark.parametrize("release", RELEASES)
buggy = pytest.mark.parametrize("release", HAS_THE_BUG)


@engines
def test_every_event_is_received_once_and_in_sequence(lab: Lab, sites: Sequence[str] | None) -> None:
    port = free_ports(2)
    events = kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}")
    with lab.engine(PIPELINE, events, sites) as (first, second), Subscriber(port, replay=port + 1) as subscriber:
        assert (first["error"], second["error"]) == (None, None)
        assert (first["publishes"], first["counts"]) == (True, True)
        assert (second["publishes"], second["counts"]) == (False, False)
        sent = subscribe(lab, [subscriber])
        drain(subscriber)
        for _ in range(20):
            lab.insert(fresh())
        live = subscriber.take(20)
        assert [batch.sequence for batch in live] == list(range(sent, sent + 20))
        assert drain(subscriber) == []
        replayed = subscriber.replayed()
        assert len(replayed) == sent + 20
        assert replayed[sent:] == live
        assert_each_once(replayed, blocks=BLOCKS * len(replayed))
        assert lab.left() == [0, 0]


@engines
def test_attention_data_parallelism(lab: Lab, sites: Sequence[str] | None) -> None:
    port = free_ports(2)
    with lab.engine(ATTENTION_DP, kv_events(f"tcp://*:{port}"), sites) as reports:
        assert [report["error"] for report in reports] == [None] * 4
        assert [report["endpoint"] for report in reports] == [f"tcp://*:{port}", f"tcp://*:{port + 1}", None, None]
        assert [report["counts"] for report in reports] == [True, True, False, False]
        with Subscriber(port) as one, Subscriber(port + 1) as other:
            subscribe(lab, [one, other])
            assert {batch.cache for batch in drain(one)} <= {0}
            assert {batch.cache for batch in drain(other)} <= {1}
        assert lab.left() == [0] * 4


@engines
def test_replicas_publish_on_ports_of_their_own(lab: Lab, sites: Sequence[str] | None) -> None:
    port = free_ports(2)
    with lab.engine(REPLICAS, kv_events(f"tcp://*:{port}"), sites) as reports:
        assert [report["error"] for report in reports] == [None, None]
        assert [report["endpoint"] for report in reports] == [f"tcp://*:{port}", f"tcp://*:{port + 1}"]
        with Subscriber(port) as one, Subscriber(port + 1) as other:
            subscribe(lab, [one, other])
            drain(one)
            drain(other)
            lab.insert(fresh())
            assert [batch.cache for batch in (*one.take(1), *other.take(1))] == [0, 1]
        assert lab.left() == [0, 0]


@engines
def test_a_publisher_that_connects_sends_once(lab: Lab, sites: Sequence[str] | None) -> None:
    port = free_ports()
    with (
        Subscriber(port, binds=True) as subscriber,
        lab.engine(PIPELINE, kv_events(f"tcp://127.0.0.1:{port}"), sites) as reports,
    ):
        assert [(report["error"], report["publishes"]) for report in reports] == [(None, True), (None, False)]
        sent = subscribe(lab, [subscriber])
        drain(subscriber)
        for _ in range(5):
            lab.insert(fresh())
        assert [batch.sequence for batch in subscriber.take(10, seconds=1)] == list(range(sent, sent + 5))
        assert lab.left() == [0, 0]


@engines
def test_events_that_are_off_stay_off(lab: Lab, sites: Sequence[str] | None) -> None:
    with lab.engine(PIPELINE, None, sites) as reports:
        assert [(report["error"], report["publishes"], report["counts"]) for report in reports] == [
            (None, False, False)
        ] * 2
        assert [report["said"] for report in reports] == [[], []]
        lab.insert(fresh())
        assert lab.left() == [0, 0]


@plugged
def test_each_scheduler_says_in_one_line_who_owns(lab: Lab, release: str) -> None:
    with lab.engine(PIPELINE, kv_events(f"tcp://*:{free_ports()}"), SITES) as (first, second):
        assert first["said"] == [WHO_OWNS.format(release)]
        assert [line.count("does not own the KV events of cache 0") for line in second["said"]] == [1]


@engines
def test_an_ipc_endpoint_cannot_serve_two_replicas(
    lab: Lab, release: str, sites: Sequence[str] | None, tmp_path: Path
) -> None:
    with lab.engine(REPLICAS, kv_events(f"ipc://{tmp_path}/kv"), sites) as (first, second):
        assert first["error"] is None
        if release in HAS_THE_BUG:
            assert second["error"] is None, "a start that succeeds must not be broken"
        else:
            assert second["error"] == "ValueError: Invalid endpoint: must contain 'inproc' or 'tcp'"
        warned = [line for line in second["said"] if "cannot have a KV events endpoint of its own" in line]
        assert len(warned) == (sites is not None)


@buggy
class TestWithoutThePlugin:
    """What the plugin is for: positive controls, without which the tests above would prove little."""

    def test_two_stages_bind_one_port(self, lab: Lab) -> None:
        port = free_ports()
        with lab.engine(PIPELINE, kv_events(f"tcp://*:{port}"), None) as reports:
            errors = [report["error"] for report in reports if report["error"]]
            assert errors == [f"ZMQError: Address already in use (addr='tcp://*:{port}')"]

    def test_two_replicas_bind_one_port(self, lab: Lab) -> None:
        port = free_ports(2)
        with lab.engine(REPLICAS, kv_events(f"tcp://*:{port}"), None) as reports:
            errors = [report["error"] for report in reports if report["error"]]
            assert errors == [f"ZMQError: Address already in use (addr='tcp://*:{port}')"]

    def test_two_stages_bind_the_port_of_each_cache(self, lab: Lab) -> None:
        port = free_ports(2)
        with lab.engine(ATTENTION_DP, kv_events(f"tcp://*:{port}"), None) as reports:
            errors = sorted(report["error"] for report in reports if report["error"])
            assert errors == [f"ZMQError: Address already in use (addr='tcp://*:{port + cache}')" for cache in (0, 1)]

    def test_two_stages_that_connect_send_everything_twice(self, lab: Lab) -> None:
        port = free_ports()
        with (
            Subscriber(port, binds=True) as subscriber,
            lab.engine(PIPELINE, kv_events(f"tcp://127.0.0.1:{port}"), None) as reports,
        ):
            assert [report["error"] for report in reports] == [None, None]
            subscribe(lab, [subscriber])
            drain(subscriber)
            for _ in range(5):
                lab.insert(fresh())
            sequences = [batch.sequence for batch in subscriber.take(10)]
            assert sorted(sequences) == sorted([*set(sequences), *set(sequences)])

    def test_a_cache_without_its_gate_keeps_events_for_nobody(self, lab: Lab) -> None:
        port = free_ports()
        ungated = [site for site in SITES if site != "cache builder"]
        with lab.engine(PIPELINE, kv_events(f"tcp://*:{port}"), ungated) as reports:
            assert [report["publishes"] for report in reports] == [True, False]
            for _ in range(100):
                lab.insert(fresh())
            assert lab.left() == [0, 1 + 100 * BLOCKS]  # the one says that a new cache is empty
