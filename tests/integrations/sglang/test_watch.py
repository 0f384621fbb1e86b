"""The publisher of real SGLang fails in each way that it can, and the plugin starts it again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from ...support.sglang import CLEARED, Batch, BlockIndex, Lab, Subscriber, free_ports, kv_events

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(180)]

SITES = ("publisher", "port index", "cache builder", "metrics collector")
RELEASES = ("0.5.14", "0.5.15", "0.5.23")

BLOCK = 4
BLOCKS = 3
SOON = 20
"""Seconds in which everything happens that happens at all; `test_it_resumes_within_a_second` measures."""
AT_ONCE = {"DELAYS": (0.0,) * 100}

_tokens = count(1)

released = pytest.mark.parametrize("release", RELEASES)
one_release = pytest.mark.parametrize("release", RELEASES[-1:])
hurt = pytest.mark.parametrize("how", ["idle", "sending", "halfway", "PUB", "ROUTER", "both"])
"""See tests/e2e/observer/rankbind_inside.py."""


def fresh(blocks: int = BLOCKS) -> list[int]:
    return [next(_tokens) for _ in range(BLOCK * blocks)]


class Router:
    """A subscriber that keeps an index of the blocks, and all that it was sent."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.subscriber, self.index = subscriber, BlockIndex()
        self.batches: list[Batch] = []

    def connected(self, lab: Lab) -> None:
        """Have blocks cached until it hears of them, and then so much that it has heard of everything."""
        while not self.subscriber.take(1, seconds=0.2):
            lab.insert(fresh())
        lab.flush()
        self.until_cleared()

    def until_cleared(self) -> list[Batch]:
        batches = self.hear(self.subscriber.until(CLEARED, SOON))
        assert batches, "nothing was published"
        assert CLEARED in batches[-1].events
        return batches

    def until_equal(self, lab: Lab) -> None:
        """Listen until it knows what the cache holds, which nobody changes meanwhile."""
        cached = lab.cached()
        end = time.monotonic() + SOON
        while self.index.blocks != cached and time.monotonic() < end:
            self.hear(self.subscriber.take(1, seconds=1))
        assert self.index.blocks == cached

    def hear(self, batches: Sequence[Batch]) -> list[Batch]:
        self.batches += batches
        self.index.apply(batches)
        return list(batches)

    @property
    def sequences(self) -> list[int]:
        return [batch.sequence for batch in self.batches]


def fail(lab: Lab, how: str) -> None:
    """Let the publisher fail, by a batch if it takes one."""
    lab.hurt(how)
    if how != "idle":
        lab.insert(fresh())


@released
@hurt
def test_a_router_knows_exactly_what_the_cache_holds_afterwards(lab: Lab, how: str) -> None:
    port, system_prompt = free_ports(2), fresh()
    events = kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}")
    with lab.engine({}, events, SITES), Subscriber(port, replay=port + 1) as subscriber:
        router = Router(subscriber)
        router.connected(lab)
        for _ in range(5):
            lab.insert(system_prompt + fresh())
        lab.evict(4)
        router.until_equal(lab)
        before = router.sequences[-1]
        fail(lab, how)
        cleared = router.until_cleared()[-1]
        assert cleared.events == (CLEARED,), "nothing comes before it, or with it"
        # No scheduler's step is needed: it has nothing to do.
        router.until_equal(lab)
        lab.insert(system_prompt + fresh())
        lab.evict(2)
        router.until_equal(lab)
        assert router.index.dropped == 0, "of a block, and not of its parent"

        assert router.sequences == sorted(set(router.sequences)), "they go on rising"
        lost = set(range(before, cleared.sequence)) - set(router.sequences)
        assert len(lost) == (how in ("sending", "halfway", "PUB", "both")), "its blocks are told again"
        sent = {batch.sequence: batch for batch in router.batches}
        replayed = subscriber.replayed(since=before)
        assert [batch.sequence for batch in replayed] == [each for each in sent if each >= before]
        assert all(sent[batch.sequence] == batch for batch in replayed)
        line = lab.said()[-1]
        assert line.startswith("rankbind-sglang: the KV event publisher of cache 0 failed (its ")
        assert f"AllBlocksCleared is number {cleared.sequence}" in line

        lab.flush()
        assert router.until_cleared()
        router.until_equal(lab)


@released
@hurt
def test_it_resumes_within_a_second(lab: Lab, how: str) -> None:
    port = free_ports(2)
    events = kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}")
    with lab.engine({}, events, SITES, watch=AT_ONCE), Subscriber(port) as subscriber:
        router = Router(subscriber)
        router.connected(lab)
        took = []
        while not took or (min(took) >= 1 and len(took) < 5):  # others have this machine, too
            began = time.monotonic()
            fail(lab, how)
            router.until_cleared()
            took.append(time.monotonic() - began)
        assert min(took) < 1


@one_release
def test_without_the_plugin_nothing_comes_any_more(lab: Lab) -> None:
    port = free_ports()
    with lab.engine({}, kv_events(f"tcp://*:{port}"), None), Subscriber(port) as subscriber:
        router = Router(subscriber)
        router.connected(lab)
        lab.hurt("idle")
        for _ in range(5):
            lab.insert(fresh())
        assert subscriber.take(1, seconds=2) == []


@released
def test_many_failures(lab: Lab) -> None:
    port = free_ports(2)
    events = kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}")
    watch = {**AT_ONCE, "RECONNECTED": 0.25, "LOOK": 0.05}
    with lab.engine({}, events, SITES, watch=watch), Subscriber(port) as subscriber:
        router = Router(subscriber)
        router.connected(lab)
        for how in ("idle", "ROUTER", "sending", "idle", "PUB", "both") * 3:
            lab.insert(fresh())
            fail(lab, how)
            router.until_cleared()
        router.until_equal(lab)
        assert router.sequences == sorted(set(router.sequences))
        assert router.index.dropped == 0
        assert len([line for line in lab.said() if "(restart " in line]) == 18


@one_release
def test_what_waits_is_neither_lost_nor_told_first(lab: Lab) -> None:
    port = free_ports()
    with (
        lab.engine({}, kv_events(f"tcp://*:{port}"), SITES, watch={"RECONNECTED": 2.0}),
        Subscriber(port) as subscriber,
    ):
        router = Router(subscriber)
        router.connected(lab)
        fail(lab, "sending")
        for _ in range(4):
            lab.insert(fresh())
        assert [batch.events for batch in router.until_cleared()] == [(CLEARED,)]
        router.until_equal(lab)
        assert "and the 4 batches that waited" in lab.said()[-1]


@one_release
def test_a_full_queue_does_not_hold_the_scheduler_up(lab: Lab) -> None:
    port = free_ports()
    events = {**kv_events(f"tcp://*:{port}"), "max_queue_size": 2}
    with lab.engine({}, events, SITES), Subscriber(port) as subscriber:
        router = Router(subscriber)
        router.connected(lab)

        def work() -> None:
            fail(lab, "sending")
            for _ in range(6):
                lab.insert(fresh())  # waits, when two are waiting, until there is a publisher again

        # In a thread, for a subscriber that does not listen does not subscribe again when it is connected again.
        with ThreadPoolExecutor() as pool:
            working = pool.submit(work)
            router.until_cleared()
            working.result(SOON)
        router.until_equal(lab)


@released
def test_a_publisher_that_fails_again_and_again_is_given_up(lab: Lab) -> None:
    port = free_ports(2)
    events = {**kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}"), "max_queue_size": 2}
    watch = {"DELAYS": (0.0, 0.05, 0.1), "RECONNECTED": 0.25}
    with lab.engine({}, events, SITES, watch=watch), Subscriber(port) as subscriber:
        router = Router(subscriber)
        router.connected(lab)
        fail(lab, "always")
        end = time.monotonic() + SOON
        while "is given up" not in lab.said()[-1]:
            assert time.monotonic() < end
        assert "its thread has ended) and is given up after 3 tries in 60 s" in lab.said()[-1]
        for _ in range(10):
            lab.insert(fresh())  # more than the queue takes
        assert len(lab.cached()) == BLOCKS * 11, "the scheduler lives on"


@one_release
def test_it_waits_for_an_address_that_another_took(lab: Lab) -> None:
    port = free_ports()
    watch = {"DELAYS": (0.0, 0.1, 0.1), "PATIENCE": 0.2}
    with lab.engine({}, kv_events(f"tcp://*:{port}"), SITES, watch=watch), Subscriber(port) as subscriber:
        Router(subscriber).connected(lab)
        fail(lab, "taken")
        end = time.monotonic() + SOON
        while "is given up" not in lab.said()[-1]:
            assert time.monotonic() < end
        assert f"(ZMQError: Address already in use (addr='tcp://*:{port}'))" in lab.said()[-1]
        lab.insert(fresh())


@one_release
@hurt
def test_ipc_endpoints(lab: Lab, how: str, tmp_path: Path) -> None:
    at, replay = f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/replay"
    with lab.engine({}, kv_events(at, replay), SITES, watch=AT_ONCE), Subscriber(at, replay=replay) as subscriber:
        router = Router(subscriber)
        router.connected(lab)
        for _ in range(3):
            fail(lab, how)
            router.until_cleared()
            router.until_equal(lab)
            first = subscriber.replayed(since=router.sequences[0])[0]
            assert first == router.batches[0]
        with Subscriber(at) as late:
            Router(late).connected(lab)


@one_release
def test_a_publisher_that_connects(lab: Lab) -> None:
    port = free_ports()
    with (
        Subscriber(port, binds=True) as subscriber,
        lab.engine({}, kv_events(f"tcp://127.0.0.1:{port}"), SITES),
    ):
        router = Router(subscriber)
        router.connected(lab)
        for how in ("idle", "sending", "PUB"):
            fail(lab, how)
            router.until_cleared()
            router.until_equal(lab)


@one_release
def test_failures_are_counted_where_the_server_serves_metrics(lab: Lab, tmp_path: Path) -> None:
    port = free_ports()
    served = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    with (
        lab.engine({}, kv_events(f"tcp://*:{port}"), SITES, environment=served) as _,
        Subscriber(port) as subscriber,
    ):
        router = Router(subscriber)
        router.connected(lab)
        name = "rankbind_sglang_publisher_failures_total"
        assert f'{name}{{cache="0",outcome="given up"}} 0.0' in lab.metrics()
        assert f'{name}{{cache="0",outcome="restarted"}} 0.0' in lab.metrics()
        fail(lab, "idle")
        router.until_cleared()
        end = time.monotonic() + SOON
        while f'{name}{{cache="0",outcome="restarted"}} 1.0' not in lab.metrics():
            assert time.monotonic() < end
