"""Real SGLang for the tests: its environments, a lab of its components, and a subscriber to its KV events."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
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
    """Components of one release, in processes: see tests/integrations/sglang/lab.py."""

    def __init__(self, release: str) -> None:
        path = (ROOT, ROOT / "integrations" / "sglang")
        self._process = subprocess.Popen(
            [python_of(release), "-W", "ignore", ROOT / "tests" / "integrations" / "sglang" / "lab.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,
        )
        assert self._answer() == {"release": release}

    @contextmanager
    def engine(
        self, launch: dict[str, Any], events: dict[str, Any] | None, sites: Sequence[str] | None
    ) -> Iterator[list[dict[str, Any]]]:
        """Start the schedulers of a launch, give their reports, and end them."""
        reports = self._ask({"do": "start", "launch": launch, "events": events, "sites": sites})
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


class Batch(msgspec.Struct, frozen=True):
    """A batch of KV events as it was received."""

    sequence: int
    stored: tuple[int, ...]
    """Hashes of the blocks that were stored."""
    cache: int
    """The publisher's dp rank."""


class Subscriber:
    """One subscriber of one publisher, which misses nothing and says so.

    Args:
        port: of the publisher.
        binds: the subscriber binds and the publisher connects.
        replay: the port on which the publisher repeats.
    """

    def __init__(self, port: int, *, binds: bool = False, replay: int | None = None) -> None:
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt_string(zmq.SUBSCRIBE, TOPIC)
        address = f"tcp://127.0.0.1:{port}"
        if binds:
            self._live.bind(address)
        else:
            self._live.connect(address)
        self._replay = self._context.socket(zmq.DEALER)
        if replay is not None:
            self._replay.connect(f"tcp://127.0.0.1:{replay}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._context.destroy(linger=0)

    def take(self, count: int, seconds: float = 20) -> list[Batch]:
        """The next `count` batches, or those that came in `seconds`."""
        end = time.monotonic() + seconds
        batches: list[Batch] = []
        while len(batches) < count and self._live.poll(max(0, int((end - time.monotonic()) * 1000))):
            topic, sequence, payload = self._live.recv_multipart()
            assert topic == TOPIC.encode()
            batches.append(_batch(sequence, payload))
        return batches

    def replayed(self, seconds: float = 20) -> list[Batch]:
        """Everything the publisher has sent since its start, as it repeats it when asked."""
        self._replay.send_multipart((b"", (0).to_bytes(8, "big")))
        batches: list[Batch] = []
        while self._replay.poll(int(seconds * 1000)):
            *_, sequence, payload = self._replay.recv_multipart()
            if int.from_bytes(sequence, "big", signed=True) == -1:
                return batches
            batches.append(_batch(sequence, payload))
        raise AssertionError(f"the replay stopped after {len(batches)} batches")


def _batch(sequence: bytes, payload: bytes) -> Batch:
    _, events, cache = msgspec.msgpack.decode(payload)
    stored: list[int] = []
    for event in events:  # a list with its tag to 0.5.20, a map later
        if isinstance(event, dict):
            stored += event["block_hashes"] if event["type"] == "BlockStored" else ()
        else:
            stored += event[1] if event[0] == "BlockStored" else ()
    return Batch(int.from_bytes(sequence, "big"), tuple(stored), cache)


def assert_each_once(batches: Sequence[Batch], blocks: int) -> None:
    """Hold the batches against "every event exactly once and in sequence", from the very first on."""
    assert [batch.sequence for batch in batches] == list(range(len(batches)))
    stored = [block for batch in batches for block in batch.stored]
    assert len(stored) == len(set(stored)) == blocks
