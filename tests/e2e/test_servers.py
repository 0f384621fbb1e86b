"""Whole servers of real SGLang, with and without the plugin that they find by its entry point."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pytest

from ..support.server import PAGE, Server
from ..support.sglang import CLEARED, Batch, BlockIndex, Subscriber, assert_each_once, free_ports, kv_events

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

PIPELINE = ("--pp-size", "2")
REPLICAS = ("--dp-size", "2")

PLAIN = ("observer",)
PLUGIN = ("observer", "rankbind")
UNGATED = ("observer", "ungated")

STRICT = {"RANKBIND_PREFLIGHT": "error"}
"""Where a launch is expected to be found clean by the plugin that checks it."""

BLOCKS = 3
_prompts = count(10)


def prompt() -> list[int]:
    """Tokens that fill some blocks, the first of which no other prompt has."""
    return [next(_prompts)] * (PAGE * BLOCKS)


def answer_until_heard(server: Server, subscriber: Subscriber) -> tuple[int, list[Batch]]:
    """Have requests answered until the subscriber hears of one, and then a few more: how many, and what it heard."""
    heard: list[Batch] = []
    asked = 0
    while not heard:
        assert len(server.generate(prompt())) == 4
        asked += 1
        heard = subscriber.take(1, seconds=0.5)
        assert asked < 50, "nothing is received"
    for _ in range(8):
        assert len(server.generate(prompt())) == 4
    return asked + 8, heard + subscriber.take(1_000, seconds=2)


@pytest.mark.parametrize(
    ("release", "plugins"),
    [
        pytest.param("0.5.14", PLUGIN, id="0.5.14-plugin"),
        pytest.param("0.5.23", PLAIN, id="0.5.23-plain"),
        pytest.param("0.5.23", PLUGIN, id="0.5.23-plugin"),
    ],
)
def test_a_pipeline_publishes_every_event_once_and_in_sequence(
    release: str, plugins: tuple[str, ...], tmp_path: Path, plugins_path: Path
) -> None:
    port = free_ports(2)
    events = kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}")
    with (
        Server(release, PIPELINE, events, plugins, plugins_path, tmp_path, environment=STRICT) as server,
        Subscriber(port, replay=port + 1) as subscriber,
    ):
        server.ready()
        asked, live = answer_until_heard(server, subscriber)
        replayed = subscriber.replayed()
        assert live == replayed[-len(live) :]
        assert_each_once(replayed, blocks=BLOCKS * asked)
        assert server.kept(stage=1) == 0
        said = [line for line in server.log.splitlines() if "rankbind-sglang" in line]
        assert not [line for line in said if "this launch" in line], "it has failed, or found something"
        assert len([line for line in said if "owns the KV events of cache 0" in line]) == ("rankbind" in plugins)
        assert len([line for line in said if "does not own the KV events of cache 0" in line]) == (
            "rankbind" in plugins
        )


def test_a_plain_pipeline_dies_of_its_second_publisher(tmp_path: Path, plugins_path: Path) -> None:
    events = kv_events(f"tcp://*:{free_ports()}")
    with Server("0.5.14", PIPELINE, events, PLAIN, plugins_path, tmp_path) as server:
        assert server.dies() != 0
        assert "zmq.error.ZMQError: Address already in use" in server.log
        # The observer of these tests is in its traceback, and is called rankbind_e2e.
        assert "rankbind_sglang" not in server.log
        assert "rankbind-sglang" not in server.log


def test_a_cache_without_its_gate_keeps_events_for_nobody(tmp_path: Path, plugins_path: Path) -> None:
    port = free_ports()
    with (
        Server("0.5.14", PIPELINE, kv_events(f"tcp://*:{port}"), UNGATED, plugins_path, tmp_path) as server,
        Subscriber(port) as subscriber,
    ):
        server.ready()
        answer_until_heard(server, subscriber)
        assert server.keeps(more_than=BLOCKS, stage=1)
        kept = server.kept(stage=1)
        asked, _ = answer_until_heard(server, subscriber)
        assert server.keeps(more_than=kept + BLOCKS * asked - 1, stage=1)


def test_plain_replicas_die_of_their_second_publisher(tmp_path: Path, plugins_path: Path) -> None:
    events = kv_events(f"tcp://*:{free_ports()}")
    with Server("0.5.14", REPLICAS, events, PLAIN, plugins_path, tmp_path) as server:
        assert server.dies() != 0
        assert "zmq.error.ZMQError: Address already in use" in server.log


def test_replicas_publish_on_ports_of_their_own(tmp_path: Path, plugins_path: Path) -> None:
    port = free_ports(2)
    with (
        Server(
            "0.5.14", REPLICAS, kv_events(f"tcp://*:{port}"), PLUGIN, plugins_path, tmp_path, environment=STRICT
        ) as server,
        Subscriber(port) as one,
        Subscriber(port + 1) as other,
    ):
        server.ready()
        (_, first), (_, second) = answer_until_heard(server, one), answer_until_heard(server, other)
        assert {batch.cache for batch in first} == {0}
        assert {batch.cache for batch in second} == {1}


@pytest.mark.parametrize("release", ["0.5.14", "0.5.23"])
def test_a_publisher_that_died_resumes_within_a_second_and_two_servers_do_not_share_its_port(
    release: str, tmp_path: Path, plugins_path: Path
) -> None:
    """Both in one, for a server takes a minute to start."""
    port = free_ports(2)
    events = kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}")
    (tmp_path / "other").mkdir()
    with (
        Server(release, (), events, PLUGIN, plugins_path, tmp_path) as server,
        Subscriber(port, replay=port + 1) as subscriber,
    ):
        server.ready()
        index = BlockIndex()
        answer_until_heard(server, subscriber)
        server.flush()
        index.apply(subscriber.until(CLEARED))

        system_prompt = prompt()
        for _ in range(4):
            server.generate(system_prompt + prompt())
        assert follow(index, subscriber, server)
        for how in ("idle", "sending"):
            began = server.hurt(how)
            if how == "sending":
                server.generate(system_prompt + prompt())
            batches = subscriber.until(CLEARED)
            assert batches[-1].events == (CLEARED,)
            assert time.monotonic() - began < 1 + (how == "sending"), "a request takes some time of its own"
            index.apply(batches)
            assert follow(index, subscriber, server), "with no request since"
            server.generate(system_prompt + prompt())
            assert follow(index, subscriber, server)
        assert index.dropped == 0
        replayed = [batch.sequence for batch in subscriber.replayed()]
        assert replayed == sorted(set(replayed))
        assert server.log.count("rankbind-sglang: the KV event publisher of cache 0 failed (its thread has ended)") == 2

        with Server(
            release,
            (),
            kv_events(f"tcp://*:{port}"),
            PLUGIN,
            plugins_path,
            tmp_path / "other",
            tmp_path / "claims",
        ) as other:
            assert other.dies() != 0
            assert f"binds tcp://*:{port}, which is in use on this host by rank 0 (" in other.log, "before it started"
            assert f"kv-events[attn_dp=0,dp=0] needs tcp://*:{port}, which is held by rank 0 (" in other.log
            assert "Scheduler hit an exception" in other.log
            started, failed = other.happened("started"), other.happened("failed")
            assert started is not None
            assert failed is not None
            assert failed - started < 1
            assert other.happened("loading") is None
        assert server.generate(prompt())


def follow(index: BlockIndex, subscriber: Subscriber, server: Server) -> bool:
    """Listen until the index is what the cache holds."""
    end = time.monotonic() + 20
    while (cached := server.cached()) != index.blocks and time.monotonic() < end:
        index.apply(subscriber.take(1_000, seconds=0.2))
    return cached == index.blocks
