"""Claims and elections through the decorator: one owner among processes, and everything that follows from losing one.

In one process several ranks are played by `use` with a deployment; their locks are as real as those of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import rankbind
from rankbind import ClaimedError, IdentityError, Takeover, Topology, singleton_per, use
from rankbind.errors import ClaimError, ScopeError
from rankbind.identity import Identity, reset
from rankbind.resource import Address, Job, Resource
from rankbind.runtime.claim import claim
from rankbind.runtime.registry import entries
from rankbind.scope import Gate, Scope
from rankbind.template import Template

ELECTOR = Path(__file__).parent / "support" / "elector.py"
PATIENCE = 30.0
TOPOLOGY = Topology({"dp": 2, "tp": 2}, hosts=1)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("RANK", "WORLD_SIZE", "SLURM_", "OMPI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "run"))
    reset()
    yield
    rankbind.release_all()
    reset()


@pytest.fixture
def ranks() -> Iterator[list[Identity]]:
    """Every rank of `TOPOLOGY`, as a process of the deployment ``test`` would be it; what they made is released."""
    found = [Identity.of(TOPOLOGY, rank, deployment="test") for rank in range(TOPOLOGY.size)]
    yield found
    for who in found:
        with use(who):
            rankbind.release_all()


class Elector:
    """A process of ``support/elector.py``."""

    def __init__(self, rank: int, *store: Path) -> None:
        self.rank = rank
        # A job that uses a store is on several hosts, each with a directory of its own.
        env = {**os.environ, "RANKBIND_DIR": os.environ["RANKBIND_DIR"] + f"-{rank}" * bool(store)}
        command = [sys.executable, str(ELECTOR), str(rank), *map(str, store)]
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> list[object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"rank {self.rank} ended"
        found: list[object] = json.loads(line)
        return found

    def is_told(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> list[object]:
        """Have it end by itself, and what it says meanwhile."""
        out, _ = self._process.communicate(timeout=PATIENCE)
        return [json.loads(line) for line in out.splitlines()]

    def __enter__(self) -> Elector:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


# Real processes


def test_the_first_owns_and_whoever_stands_by_takes_over_when_it_is_killed() -> None:
    with Elector(0) as first:
        made, _, token, port = first.says()
        assert (made, port) == ("made", 5557)
        assert first.says() == ["called", 0, 5557]
        with Elector(1) as second:
            assert second.says() == ["called", 1, None]
            first.kill()
            made, _, later, port = second.says()
            assert (made, port) == ("made", 5557)
            assert later > token
            assert second.says() == ["took over", 1, later, 0]
            second.is_told("value")
            assert second.says() == ["value", 1, 5557, True]


def test_an_owner_that_releases_is_followed_after_its_teardown() -> None:
    with Elector(2) as first:
        first.says()
        first.says()
        with Elector(3) as second:
            assert second.says() == ["called", 3, None]
            first.is_told("release")
            assert first.says() == ["torn down", 2]
            assert first.says() == ["released", 2]
            assert second.says()[0] == "made"
            assert second.says()[0] == "took over"
            assert second.end() == [["torn down", 3]]


def test_across_hosts_the_store_of_the_job_decides(tmp_path: Path) -> None:
    with Elector(0, tmp_path / "store") as one, Elector(1, tmp_path / "store") as other:
        said = one.says(), other.says()
        assert sorted(found[0] for found in said) == ["called", "made"]
        owner, waiting = (one, other) if said[0][0] == "made" else (other, one)
        token = said[0][2] if said[0][0] == "made" else said[1][2]
        assert owner.says() == ["called", owner.rank, 5557]
        owner.kill()
        made, rank, later, _ = waiting.says()
        assert (made, rank) == ("made", waiting.rank)
        assert later > token
        assert waiting.says() == ["took over", waiting.rank, later, owner.rank]


def test_an_owner_that_was_stopped_for_longer_than_its_lease_steps_down(tmp_path: Path) -> None:
    with Elector(0, tmp_path / "store") as one, Elector(1, tmp_path / "store") as other:
        said = one.says(), other.says()
        owner, waiting = (one, other) if said[0][0] == "made" else (other, one)
        assert owner.says() == ["called", owner.rank, 5557]
        owner.signal(signal.SIGSTOP)
        assert waiting.says()[0] == "made"
        assert waiting.says()[0] == "took over"
        owner.signal(signal.SIGCONT)
        assert owner.says() == ["torn down", owner.rank]
        owner.is_told("value")
        assert owner.says() == ["value", owner.rank, None, False]
        waiting.is_told("release")
        assert waiting.says() == ["torn down", waiting.rank]
        assert owner.says()[0] == "made", "it stands by again"
        assert owner.says()[0] == "took over"


def test_two_processes_that_say_they_are_one_rank_are_found_out() -> None:
    code = """
import sys, rankbind
rankbind.init(axes={"pp": 2}, rank=0)

@rankbind.singleton_per(group="pp", name="kv-events")
def kv_events():
    return "made"

try:
    print(kv_events(), flush=True)
except rankbind.ClaimedError as error:
    print(error, flush=True)
sys.stdin.read()
"""
    with contextlib.ExitStack() as stack:
        said = []
        for _ in range(2):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            said.append(process.stdout.readline().strip())
        assert said[0] == "made"
        assert said[1].startswith("default/kv-events is held by rank 0 (pp 0")


# What is claimed, and how long


def test_a_name_is_claimed_until_it_is_released(ranks: list[Identity]) -> None:
    order = []

    @singleton_per(group="tp", name="writer")
    def writer() -> Iterator[str]:
        yield "writer"
        order.append(_is_free("writer", {"dp": 0}))

    with use(ranks[0]):
        assert writer() == "writer"
        assert writer.claim is not None
        assert writer.claim.held
        assert not _is_free("writer", {"dp": 0})
        assert _is_free("writer", {"dp": 1}), "another group has its own"
        writer.release()
        assert writer.claim is None
        assert order == [False], "the claim ends after the teardown"
        assert _is_free("writer", {"dp": 0})


def test_without_a_name_or_a_deployment_nothing_is_claimed(ranks: list[Identity], tmp_path: Path) -> None:
    unnamed = singleton_per(group="tp")(lambda: "made")
    with use(ranks[0]):
        assert unnamed() == "made"
        assert unnamed.claim is None
    with use(TOPOLOGY, rank=0):
        assert singleton_per(group="tp", name="writer")(lambda: "made")() == "made"
    assert not (tmp_path / "run").exists()


def test_things_of_one_declaration_share_its_claim(ranks: list[Identity]) -> None:
    once = singleton_per(group="tp", name="kv-events")
    publisher, cache = once(lambda: "publisher"), once(lambda: "cache")
    with use(ranks[0]):
        assert (publisher(), cache()) == ("publisher", "cache")
        assert publisher.claim is cache.claim
        publisher.release()
        assert not _is_free("kv-events", {"dp": 0})
        cache.release()
        assert _is_free("kv-events", {"dp": 0})


def test_a_failed_creation_leaves_no_claim(ranks: list[Identity]) -> None:
    @singleton_per(group="tp", name="writer")
    def writer() -> None:
        raise OSError("no disk")

    with use(ranks[0]):
        for _ in range(2):
            with pytest.raises(OSError, match="no disk"):
                writer()
            assert _is_free("writer", {"dp": 0})


def test_a_creation_that_is_refused_leaves_nothing_and_may_be_tried_again(ranks: list[Identity]) -> None:
    made = []
    writer = singleton_per(group="tp", name="writer")(lambda: made.append(1) or "made")
    with use(ranks[0]):
        with claim("writer", deployment="test", group={"dp": 0}):
            with pytest.raises(ClaimedError, match=r"test/writer\[dp=0\] is held by"):
                writer()
            assert not made
        assert writer() == "made"


def test_an_instance_that_is_gone_holds_nothing(ranks: list[Identity]) -> None:
    class Server:
        @singleton_per(group="tp", name="writer")
        def writer(self) -> object:
            return object()

    with use(ranks[0]):
        server = Server()
        server.writer()
        assert not _is_free("writer", {"dp": 0})
        del server
        gc.collect()
        assert _is_free("writer", {"dp": 0})


def test_the_addresses_of_the_file_are_claimed_too() -> None:
    addresses = (
        Address("bind", Template("tcp://*:{20000 + tp}")),
        Address("replay", Template("ipc:///tmp/rankbind-test-{tp}")),
        Address("path", Template("/tmp/rankbind-test-log-{tp}"), "path"),
    )
    job = Job(TOPOLOGY, (Resource("kv-events", Scope("dp"), addresses), Resource("log", Gate({"tp": 1}), addresses)))
    for resource, rank, group in (("kv-events", 1, {"tp": 1}), ("log", 3, {"rank": 3})):
        who = Identity.of(job, rank, deployment="test")
        made = singleton_per(resource)(lambda: "made")
        with use(who):
            assert made() == "made"
            assert made.claim is not None
            assert made.claim.key.group == group
            assert dict(made.claim.record.endpoints) == {
                "bind": "tcp://*:20001",
                "replay": "ipc:///tmp/rankbind-test-1",
            }
            for other in (
                {"endpoints": {"bind": "tcp://127.0.0.1:20001"}},
                {"endpoints": {"bind": "ipc:///tmp/./rankbind-test-1"}},
                {"paths": ["/tmp/rankbind-test-log-1"]},
            ):
                with pytest.raises(ClaimedError, match=f"for test/{resource}"):
                    claim("other", deployment="another", **other)
            made.release()


def test_sharing_that_is_meant_is_no_conflict() -> None:
    resource = Resource("http", Gate({}), (Address("bind", Template("tcp://*:20002")),), shared="reuseport")
    job = Job(TOPOLOGY, (resource,))
    made = singleton_per("http")(lambda: "made")
    for rank in (0, 1):
        with use(job, rank=rank, deployment="test"):
            assert made() == "made"


def test_the_factory_sees_its_claim_and_tells_it_where_the_thing_is(ranks: list[Identity]) -> None:
    @singleton_per(group="tp", name="http")
    def http() -> int:
        held = rankbind.current_claim()
        assert held is not None
        held.update(endpoints={"bind": "tcp://127.0.0.1:20003"})
        return held.token

    assert rankbind.current_claim() is None
    with use(ranks[0]):
        token = http()
        assert http.claim is not None
        assert http.claim.token == token
        assert http.claim.record.endpoints == {"bind": "tcp://127.0.0.1:20003"}


def test_a_forked_child_has_nothing_of_its_parents_claim(ranks: list[Identity]) -> None:
    writer = singleton_per(group="tp", name="writer")(lambda: "made")
    with use(ranks[0]):
        writer()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                rankbind.init(TOPOLOGY, rank=0, deployment="test")
                try:
                    writer()
                except ClaimedError:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert writer.claim is not None


# Elections


def test_asking_is_taking_part(ranks: list[Identity]) -> None:
    once = singleton_per(group="world", rank="any", name="collector")
    with use(ranks[3]):
        assert once.owned
    for who in ranks[:3]:
        with use(who):
            assert not once.owned


def test_what_stood_by_is_made_with_the_arguments_of_its_call(ranks: list[Identity]) -> None:
    told: list[Takeover] = []
    happened = threading.Event()

    def takeover(what: Takeover) -> None:
        told.append(what)
        happened.set()

    once = singleton_per(group="world", rank="any", name="collector", otherwise=list, on_takeover=takeover)

    @once
    def collector(port: int) -> tuple[int, int | None]:
        return port, rankbind.identity().rank

    exporter = once(lambda: "exporter")
    with use(ranks[0]):
        assert collector(1) == (1, 0)
        first = collector.claim
        assert first is not None
    with use(ranks[1]):
        substitute = collector(2)
        assert substitute == []
        assert collector(2) is substitute
        assert exporter() == []
    with use(ranks[0]):
        collector.release()
    assert happened.wait(PATIENCE)
    with use(ranks[1]):
        assert collector(2) == (2, 1)
        assert exporter() == "exporter"
        assert once.owned
        assert collector.claim is told[0].claim is exporter.claim
        assert told[0].claim.token > first.token
        assert told[0].resource == "collector"
        assert told[0].before is not None
        assert told[0].before.rank == 0


def test_it_is_told_whom_it_follows_also_the_second_time(ranks: list[Identity]) -> None:
    told: list[int | None] = []
    once = singleton_per(
        group="world",
        rank="any",
        name="collector",
        on_takeover=lambda takeover: told.append(None if takeover.before is None else takeover.before.rank),
    )
    collector = once(lambda: rankbind.identity().rank)
    for rank in (0, 1):
        with use(ranks[rank]):
            collector()
    with use(ranks[0]):
        assert collector.owner == 0
        collector.release()
    _until(lambda: told == [0])
    with use(ranks[2]):
        assert collector() is None
        with pytest.raises(ScopeError, match="it is not this process"):
            collector.owner  # noqa: B018
    with use(ranks[1]):
        collector.release()
    _until(lambda: told == [0, 1])


def test_one_who_releases_what_it_stands_by_for_does_not_get_it(ranks: list[Identity]) -> None:
    made = []

    @singleton_per(group="world", rank="any", name="collector")
    def collector() -> int | None:
        made.append(rankbind.identity().rank)
        return rankbind.identity().rank

    for who in ranks:
        with use(who):
            collector()
    for who in ranks[1:3]:
        with use(who):
            collector.release()
    with use(ranks[0]):
        collector.release()
    _until(lambda: made == [0, 3])
    with use(ranks[3]):
        assert collector() == 3


def test_one_who_has_released_and_asks_again_takes_part_again() -> None:
    who = rankbind.init(TOPOLOGY, rank=3, deployment="test")
    collector = singleton_per(group="world", rank="any", name="collector")(lambda: "made")
    with claim("collector", deployment="test"):
        assert [collector(), collector()] == [None, None]
        collector.release()
    # What stood by may be trying at this moment, and lets go of what it gets.
    _until(lambda: collector() == "made")
    assert collector.claim is not None
    assert who is rankbind.identity()


def test_a_takeover_that_fails_is_told_and_left_to_others(
    ranks: list[Identity], caplog: pytest.LogCaptureFixture
) -> None:
    made = []

    @singleton_per(group="world", rank="any", name="collector")
    def collector() -> int | None:
        rank = rankbind.identity().rank
        if rank == 1:
            raise OSError("no port")
        made.append(rank)
        return rank

    with use(ranks[0]):
        collector()
    with use(ranks[1]):
        assert collector() is None
    with caplog.at_level(logging.ERROR, "rankbind"):
        with use(ranks[0]):
            collector.release()
        _until(lambda: "no port" in caplog.text)
    assert "collector could not be taken over" in caplog.text
    assert [each.record.notes for each in entries() if each.record is not None] == [
        {"takeover": "failed: OSError: no port"}
    ]
    with use(ranks[2]):
        collector()
    _until(lambda: made == [0, 2])
    with use(ranks[1]):
        collector.release()


def test_a_factory_of_the_first_owner_that_fails_leaves_it_to_others(ranks: list[Identity]) -> None:
    @singleton_per(group="world", rank="any", name="collector")
    def collector() -> int | None:
        if rankbind.identity().rank == 0:
            raise OSError("no port")
        return rankbind.identity().rank

    with use(ranks[0]), pytest.raises(OSError, match="no port"):
        collector()
    with use(ranks[1]):
        assert collector() == 1


def test_a_coroutine_is_taken_over_in_its_event_loop(ranks: list[Identity]) -> None:
    @singleton_per(group="world", rank="any", name="collector")
    async def collector() -> AsyncIterator[tuple[int | None, object]]:
        yield rankbind.identity().rank, asyncio.get_running_loop()

    async def main() -> None:
        with use(ranks[0]):
            first = await collector()
            assert first is not None
        with use(ranks[1]):
            assert await collector() is None
        with use(ranks[0]):
            await collector.release()
        with use(ranks[1]):
            while (got := await collector()) is None:
                await asyncio.sleep(0.01)
            assert got == (1, asyncio.get_running_loop())
            await collector.release()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_an_event_loop_that_has_ended_takes_nothing_over(ranks: list[Identity]) -> None:
    @singleton_per(group="world", rank="any", name="collector")
    async def collector() -> int | None:
        return rankbind.identity().rank

    async def call() -> int | None:
        return await collector()

    with claim("collector", deployment="test"), use(ranks[0]):
        assert asyncio.run(call()) is None
    _until(lambda: not any("stands by" in thread.name for thread in threading.enumerate()))
    assert _is_free("collector", {})
    with use(ranks[1]):
        assert asyncio.run(call()) == 1


def test_a_with_block_asks_when_it_is_entered(ranks: list[Identity]) -> None:
    @singleton_per(group="world", rank="any", name="collector")
    @contextlib.contextmanager
    def collector() -> Iterator[int | None]:
        yield rankbind.identity().rank

    with use(ranks[0]), collector() as mine:
        assert mine == 0
        with use(ranks[1]), collector() as other:
            assert other is None
    assert _is_free("collector", {})
    with use(ranks[1]), collector() as mine:
        assert mine == 1
    assert _is_free("collector", {})


def test_an_address_that_another_deployment_holds_is_an_error_and_not_a_lost_election() -> None:
    job = Job(TOPOLOGY, (Resource("http", Scope("world", "any"), (Address("bind", Template("tcp://*:20004")),)),))
    made = singleton_per("http")(lambda: "made")
    with (
        claim("http", deployment="another", endpoints={"bind": "tcp://*:20004"}),
        use(job, rank=0, deployment="test"),
        pytest.raises(ClaimedError, match=r"needs tcp://\*:20004, which is held by .*, for another/http"),
    ):
        made()


# What is an error


def test_an_election_needs_a_name_a_deployment_and_hosts() -> None:
    with pytest.raises(TypeError, match="needs name="):
        singleton_per(group="world", rank="any")
    once = singleton_per(group="world", rank="any", name="collector")
    with use(TOPOLOGY, rank=0), pytest.raises(IdentityError, match="give `use` a deployment"):
        once.owned  # noqa: B018
    with (
        use(Topology({"dp": 2}, hosts={}), rank=0, deployment="test"),
        pytest.raises(IdentityError, match="it is not known which ranks share a host"),
    ):
        once.owned  # noqa: B018


def test_takeovers_and_leases_are_of_elections() -> None:
    with pytest.raises(TypeError, match='go with rank="any"'):
        singleton_per(group="pp", on_takeover=print)
    with pytest.raises(TypeError, match='go with rank="any"'):
        singleton_per(group="pp", lease=1.0)
    with pytest.raises(ValueError, match="lasts some seconds"):
        singleton_per(group="pp", rank="any", name="x", lease=0.0)

    async def told(_: Takeover) -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        singleton_per(group="pp", rank="any", name="x", on_takeover=told)


def test_a_directory_that_cannot_be_used_is_an_error(
    ranks: list[Identity], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "no" / "such"))
    with use(ranks[0]), pytest.raises(ClaimError, match="from RANKBIND_DIR"):
        singleton_per(group="tp", name="writer")(lambda: "made")()


def _is_free(resource: str, group: dict[str, int]) -> bool:
    try:
        claim(resource, deployment="test", group=group).release()
    except ClaimedError:
        return False
    return True


def _until(true: object) -> None:
    """Wait until something is so."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.02)):
        if true():  # type: ignore[operator]
            return
        pause.wait(0.02)
    raise AssertionError("it never came true")
