"""Real SGLang for the tests: its environments, a lab of its components, and a subscriber to its KV events."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

ROOT = Path(__file__).resolve().parents[2]

TOPIC = "kv-events"


def python_of(release: str) -> Path:
    """The python that has this release of SGLang.

    Raises:
        AssertionError: it was not built.
    """
    home = ROOT / ".venv-sglang" / release
    assert (home / ".complete").is_file(), (
        f"SGLang {release} is not installed under .venv-sglang/: run `make environments` (about a minute and 1 GB), "
        "or set RANKBIND_TESTS_WITHOUT_SGLANG=1 to do without the tests that need it"
    )
    return home / "bin" / "python"


def free_ports(count: int = 1) -> int:
    """The first of `count` consecutive ports that nothing on this host listens on.

    They lie below the ports that the kernel hands out by itself, so that no outgoing connection takes one meanwhile.
    """
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        base = random.randrange(10_240, max(lowest_ephemeral, 20_480) - count)
        with ExitStack() as sockets:
            try:
                for port in range(base, base + count):
                    sockets.enter_context(socket.create_server(("", port)))
            except OSError:
                continue
            return base


def kv_events(endpoint: str, replay: str | None = None) -> dict[str, Any]:
    """The value of ``--kv-events-config``."""
    return {"publisher": "zmq", "topic": TOPIC, "endpoint": endpoint, "replay_endpoint": replay}


class Lab:
    """Components of one release, in processes: see tests/integrations/sglang/lab.py.

    Args:
        directory: where its processes make their claims.
    """

    def __init__(self, release: str, directory: Path) -> None:
        path = (ROOT, ROOT / "integrations" / "sglang", ROOT / "tests" / "e2e" / "observer")
        self._process = subprocess.Popen(
            [python_of(release), "-W", "ignore", ROOT / "tests" / "integrations" / "sglang" / "lab.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, path)),
                "CUDA_VISIBLE_DEVICES": "",
                "RANKBIND_DIR": str(directory),
            },
            start_new_session=True,
        )
        assert self._answer() == {"release": release}

    @contextmanager
    def engine(
        self,
        launch: dict[str, Any],
        events: dict[str, Any] | None,
        sites: Sequence[str] | None,
        environment: Mapping[str, str] | None = None,
        watch: Mapping[str, Any] | None = None,
    ) -> Iterator[list[dict[str, Any]]]:
        """Start the schedulers of a launch, give their reports, and end them.

        Args:
            environment: more variables.
            watch: constants of ``rankbind_sglang.watch`` to change.
        """
        reports = self._ask(
            {
                "do": "start",
                "launch": launch,
                "events": events,
                "sites": sites,
                "environment": dict(environment or {}),
                "watch": dict(watch or {}),
            }
        )
        try:
            yield reports
        finally:
            self._ask({"do": "stop"})

    def insert(self, tokens: Sequence[int]) -> None:
        """Let every scheduler cache these tokens and publish."""
        self._ask({"do": "insert", "tokens": list(tokens)})

    def left(self) -> list[int | None]:
        """For each scheduler, the events in its cache that nobody took; None for one that did not start."""
        answer: list[int | None] = self._ask({"do": "left"})
        return answer

    def hurt(self, how: str) -> None:
        """Let something happen to the first scheduler's publisher; see rankbind_inside.py for what there is."""
        self._ask({"do": "hurt", "how": how})

    def cached(self) -> set[int]:
        """The hashes of the blocks that the first scheduler's cache holds, as it would publish them."""
        return set(self._ask({"do": "cached"})[0])

    def evict(self, blocks: int) -> None:
        """Let every cache throw away so many blocks, and publish that."""
        self._ask({"do": "evict", "blocks": blocks})

    def flush(self) -> None:
        """Let every cache throw everything away, and publish that."""
        self._ask({"do": "flush"})

    def idle(self) -> None:
        """Let every scheduler publish what there is, as it does all the time when it has nothing to do."""
        self._ask({"do": "idle"})

    def metrics(self) -> str:
        """What a server would serve as metrics."""
        return str(self._ask({"do": "metrics"})[0])

    def said(self) -> list[str]:
        """The lines that the plugin has logged in the first scheduler since it was started."""
        lines: list[str] = self._ask({"do": "said"})[0]
        return lines

    def close(self) -> None:
        """Kill whatever is left of the lab."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the lab died; run its file by hand to see why"
        return json.loads(line)


class Event(msgspec.Struct, frozen=True):
    """One KV event, as any release sends it."""

    kind: str
    blocks: tuple[int, ...] = ()
    """Hashes of the blocks that were stored or removed."""
    parent: int | None = None
    """Of the first of the blocks that were stored."""


class Batch(msgspec.Struct, frozen=True):
    """A batch of KV events as it was received."""

    sequence: int
    events: tuple[Event, ...]
    cache: int
    """The publisher's dp rank."""

    @property
    def stored(self) -> tuple[int, ...]:
        """Hashes of the blocks that were stored."""
        return tuple(block for event in self.events if event.kind == "BlockStored" for block in event.blocks)


CLEARED = Event("AllBlocksCleared")


class BlockIndex:
    """What a router knows of one cache: it drops blocks whose parents it does not know.

    Attributes:
        blocks: the hashes of what it believes is cached.
        dropped: how many blocks it could make nothing of.
    """

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.dropped = 0

    def apply(self, batches: Sequence[Batch]) -> None:
        for event in (event for batch in batches for event in batch.events):
            if event == CLEARED:
                self.blocks.clear()
            elif event.kind == "BlockRemoved":
                self.blocks -= set(event.blocks)
            elif event.parent is None or event.parent in self.blocks:
                self.blocks |= set(event.blocks)
            else:
                self.dropped += len(event.blocks)


class Subscriber:
    """One subscriber of one publisher, which misses nothing and says so.

    Args:
        at: the publisher's port on this host, or its endpoint.
        binds: the subscriber binds and the publisher connects.
        replay: where the publisher repeats, likewise.
    """

    def __init__(self, at: int | str, *, binds: bool = False, replay: int | str | None = None) -> None:
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt_string(zmq.SUBSCRIBE, TOPIC)
        if binds:
            self._live.bind(_endpoint(at))
        else:
            self._live.connect(_endpoint(at))
        self._replay = self._context.socket(zmq.DEALER)
        if replay is not None:
            self._replay.connect(_endpoint(replay))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._context.destroy(linger=0)

    def until(self, event: Event, seconds: float = 20) -> list[Batch]:
        """The next batches up to the first with `event`, or those that came in `seconds`."""
        end = time.monotonic() + seconds
        batches: list[Batch] = []
        while not (batches and event in batches[-1].events) and (left := end - time.monotonic()) > 0:
            batches += self.take(1, left)
        return batches

    def take(self, count: int, seconds: float = 20) -> list[Batch]:
        """The next `count` batches, or those that came in `seconds`."""
        end = time.monotonic() + seconds
        batches: list[Batch] = []
        while len(batches) < count and self._live.poll(max(0, int((end - time.monotonic()) * 1000))):
            topic, sequence, payload = self._live.recv_multipart()
            assert topic == TOPIC.encode()
            batches.append(_batch(sequence, payload))
        return batches

    def replayed(self, since: int = 0, seconds: float = 20) -> list[Batch]:
        """Everything the publisher has sent from number `since` on, as it repeats it when asked."""
        self._replay.send_multipart((b"", since.to_bytes(8, "big")))
        batches: list[Batch] = []
        while self._replay.poll(int(seconds * 1000)):
            *_, sequence, payload = self._replay.recv_multipart()
            if int.from_bytes(sequence, "big", signed=True) == -1:
                return batches
            batches.append(_batch(sequence, payload))
        raise AssertionError(f"the replay stopped after {len(batches)} batches")


def _endpoint(at: int | str) -> str:
    return at if isinstance(at, str) else f"tcp://127.0.0.1:{at}"


def _batch(sequence: bytes, payload: bytes) -> Batch:
    _, events, cache = msgspec.msgpack.decode(payload)
    return Batch(int.from_bytes(sequence, "big"), tuple(map(_event, events)), cache)


def _event(event: dict[str, Any] | list[Any]) -> Event:
    if isinstance(event, dict):
        return Event(event["type"], tuple(event.get("block_hashes", ())), event.get("parent_block_hash"))
    kind, *fields = event  # a list with its tag to 0.5.20
    return Event(kind, tuple(fields[0]) if fields else (), fields[1] if kind == "BlockStored" else None)


def assert_each_once(batches: Sequence[Batch], blocks: int) -> None:
    """Hold the batches against "every event exactly once and in sequence", from the very first on."""
    assert [batch.sequence for batch in batches] == list(range(len(batches)))
    stored = [block for batch in batches for block in batch.stored]
    assert len(stored) == len(set(stored)) == blocks
