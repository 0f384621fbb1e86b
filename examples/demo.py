"""The main job on one machine: the failure of SGLang PR 29044 predicted, seen, and gone. ``make demo`` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from textwrap import indent
from typing import Any

import zmq

HERE = Path(__file__).parent / "pr29044"
RANKS = 8
STREAMS = 2
EVENTS = 50


def main() -> int:
    title("1. What 0.5.14 does with --tp-size 4 --pp-size 2 and attention dp 2, before anything is launched")
    if check("before.toml") != 1:
        return fail("the check should have found the clash")
    title("2. The same, launched: 8 processes, hand-written gates, real sockets")
    if rehearse("before.toml", "by-hand") != 2:
        return fail("one process of each stream should have died")
    title("3. The first repair: the publisher learns pp, the cache that feeds it is forgotten")
    if check("forgotten.toml") != 1:
        return fail("the check should have found the forgotten site")
    title("4. One declaration")
    if check("after.toml") != 0:
        return fail("the declared topology should be clean")
    title("5. The same, launched: 8 processes, @singleton_per, real sockets; and one process too many")
    if rehearse("after.toml", "declared") != 0:
        return fail("the declared launch died")
    print("\nPredicted, explained, and gone.")
    return 0


def title(text: str) -> None:
    print(f"\n=== {text}\n", flush=True)


def fail(text: str) -> int:
    print(f"demo: {text}", file=sys.stderr)
    return 1


def check(name: str) -> int:
    command = [sys.executable, "-m", "rankbind", "check", os.path.relpath(HERE / name)]
    print(f"$ rankbind check {command[-1]}", flush=True)
    status = subprocess.run(command, check=False).returncode
    print(f"(exit status {status})", flush=True)
    return status


def rehearse(name: str, how: str) -> int:
    """Launch every rank; how many died because their address was in use. Prints what happened."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankbind-demo-")))
        base = free_ports(STREAMS)
        topology = folder / name
        # The rehearsal is shifted to ports that are free here; the launch itself would take 5557.
        topology.write_text((HERE / name).read_text().replace("5557", str(base)))
        workers = [stack.enter_context(worker(rank, how, topology)) for rank in range(RANKS)]
        started = [heard(process) for process in workers]
        for line in started:
            if "failed" in line:
                print(f"rank {line['rank']}: {line['failed']}")
        failed = [line for line in started if "failed" in line]
        if failed:
            print(f"{len(failed)} of {RANKS} processes died; the launch is over.")
            return sum("Address already in use" in line["failed"] for line in failed)
        print(f"bound by ranks {', '.join(str(line['rank']) for line in started if line['bound'])}")
        late = heard(stack.enter_context(worker(0, how, topology)))
        print("a second process that says it is rank 0:\n")
        print(indent(late.get("failed", "was let through"), "    "), end="\n\n")
        if "is held by rank 0" not in late.get("failed", ""):
            sys.exit(fail("the second rank 0 should have been refused"))
        receive(stack, workers, base)
        return 0


def receive(stack: ExitStack, workers: list[subprocess.Popen[str]], base: int) -> None:
    context = stack.enter_context(zmq.Context())
    subscriber = stack.enter_context(context.socket(zmq.SUB))
    subscriber.subscribe(b"")
    ports = [base + stream for stream in range(STREAMS)]
    for port in ports:
        subscriber.connect(f"tcp://127.0.0.1:{port}")
    for process in workers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    seen: Counter[int] = Counter()
    while sum(seen.values()) < STREAMS * EVENTS and subscriber.poll(20_000):
        _, sequence, _ = subscriber.recv_multipart()
        seen[int.from_bytes(sequence, "big")] += 1
    waiting = {line["rank"]: line["waiting"] for line in map(heard, workers)}
    extra = subscriber.poll(200)
    exactly_once = not extra and seen == Counter(dict.fromkeys(range(EVENTS), STREAMS))
    verdict = "each exactly once" if exactly_once else str(seen)
    print(f"{sum(seen.values())} events from {STREAMS} streams of {EVENTS}: {verdict}")
    print(f"events left waiting in caches: {sum(waiting.values())}")
    if not exactly_once or any(waiting.values()):
        sys.exit(fail("events were lost, doubled or hoarded"))


@contextmanager
def worker(rank: int, how: str, topology: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKBIND_")}
    environment |= {"RANKBIND_TOPOLOGY": str(topology), "RANKBIND_DIR": str(topology.parent / "claims")}
    environment |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    command = [sys.executable, str(HERE / "worker.py"), how]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    return dict(json.loads(line)) if line else {"rank": "?", "failed": f"died with status {process.wait(10)}"}


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that are free now, below the ephemeral range."""
    for _ in range(100):
        base = SystemRandom().randrange(20000, 32000)
        with ExitStack() as stack:
            try:
                for port in range(base, base + count):
                    probe = stack.enter_context(socket())
                    probe.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
                    probe.bind(("", port))
            except OSError:
                continue
            return base
    raise SystemExit("demo: found no free ports")


if __name__ == "__main__":
    sys.exit(main())
