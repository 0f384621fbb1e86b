"""What a claim costs, beside filelock's own locks, and whether many claims cost as much each as few.

All take turns in short slices, and a ratio is the median of the ratios of slices that were neighbours in time, so that
a change of the machine's speed hits both sides alike. The 32 processes claim one after the other and all at once, and
hold what they have. The limits are on CPU time, as the wall clock of a busy machine measures who else is there. Exits 1
when something costs more than its limit. `python benchmarks/claims.py [DIRECTORY]`: on the
file system that DIRECTORY is on, left out, that of the runtime directory.
"""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from rankbind.runtime.claim import claim
from rankbind.runtime.directory import runtime_directory

LIMIT = 3.0
"""Times filelock's acquire and release."""
SLOPE = 1.5
"""Times the cost of one of 32 claims, that one of 1,024 may cost."""
ROUNDS, CALLS = 60, 10
PROCESSES = 32
RESOURCES = (32, 128, 1024)
FIRST_PORT = 20_000


def cases(folder: Path) -> dict[str, Callable[[], object]]:
    """What is measured; the first two are filelock's."""
    lock = FileLock(folder / "kept.lock", thread_local=False)

    def acquire() -> None:
        lock.acquire(timeout=0)
        lock.release()

    def construct() -> None:
        made = FileLock(folder / "made.lock", thread_local=False)
        made.acquire(timeout=0)
        made.release()

    here, port = folder / "claims", {"bind": f"tcp://*:{FIRST_PORT}"}
    return {
        "filelock, acquire + release": acquire,
        "filelock, construct + acquire + release": construct,
        "claim + release": lambda: claim("kv-events", directory=here).release(),
        "claim + release, with an endpoint": lambda: claim("kv-events", endpoints=port, directory=here).release(),
        "claim + release, with an ipc path": lambda: claim("kv", paths=["/run/kv.sock"], directory=here).release(),
    }


def uncontended(folder: Path) -> float:
    """Print what each costs, and give how many times filelock's a claim costs."""
    table = cases(folder)
    wall: dict[str, list[float]] = {name: [] for name in table}
    cpu: dict[str, list[float]] = {name: [] for name in table}
    for _ in range(ROUNDS):
        for name, call in table.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            for _ in range(CALLS):
                call()
            cpu[name].append((time.process_time() - cpu_began) / CALLS * 1e6)
            wall[name].append((time.perf_counter() - began) / CALLS * 1e6)
    first, second, *_ = table
    print(f"{'':42}{'wall':>10}{'CPU':>10}{'x acquire':>16}{'x construct':>17}")
    for name in table:
        told = f"{name:42}{statistics.median(wall[name]):7.0f} us{statistics.median(cpu[name]):7.0f} us"
        print(told, *(f"{_ratio(wall, name, to):8.2f},{_ratio(cpu, name, to):5.2f}" for to in (first, second)))
    return _ratio(cpu, "claim + release", first)


def _ratio(times: dict[str, list[float]], name: str, to: str) -> float:
    return statistics.median(one / other for one, other in zip(times[name], times[to], strict=True))


def claimant(folder: Path, names: list[str], ports: list[int], barrier: object, results: object) -> None:
    """One of the processes: claim everything, and say how long it took."""
    claim(f"{names[0]}, to be warm", directory=folder)
    barrier.wait()  # type: ignore[attr-defined]
    began, cpu = time.perf_counter(), time.process_time()
    held = [
        claim(name, endpoints={"bind": f"tcp://*:{port}"} if port else None, directory=folder)
        for name, port in zip(names, ports, strict=True)
    ]
    results.put((began, time.perf_counter(), time.process_time() - cpu))  # type: ignore[attr-defined]
    barrier.wait()  # type: ignore[attr-defined]
    assert all(each.held for each in held)


def many(folder: Path, count: int, endpoints: bool) -> tuple[float, float]:
    """Wall clock and CPU time of one claim, in microseconds, when `PROCESSES` claim `count` resources at once."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(PROCESSES), context.SimpleQueue()
    names = [f"resource-{number}" for number in range(count)]
    ports = [FIRST_PORT + number if endpoints else 0 for number in range(count)]
    processes = [
        context.Process(
            target=claimant, args=(folder, names[each::PROCESSES], ports[each::PROCESSES], barrier, results)
        )
        for each in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    wall = max(end for _, end, _ in found) - min(began for began, _, _ in found)
    return wall / count * 1e6, sum(cpu for *_, cpu in found) / count * 1e6


def scaling(folder: Path) -> float:
    """Print what one of many claims costs, and give how many times that of one of few."""
    # Loaded once, for all that are forked.
    claim("first", directory=folder / "first").release()
    print(f"\n{PROCESSES} processes{'':16}{'claims':>8}{'wall each':>13}{'CPU each':>12}")
    slopes = []
    for endpoints in (False, True):
        costs: dict[int, float] = {}
        for count in RESOURCES:
            each = [many(folder / f"{endpoints}-{count}-{turn}", count, endpoints) for turn in range(3)]
            wall = statistics.median(wall for wall, _ in each)
            cpu = statistics.median(cpu for _, cpu in each)
            costs[count] = cpu
            label = "with an endpoint each" if endpoints else "without endpoints"
            print(f"  {label:27}{count:8}{wall:10.0f} us{cpu:9.0f} us")
        slopes.append(costs[RESOURCES[-1]] / costs[RESOURCES[0]])
    return max(slopes)


def main() -> int:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else runtime_directory()
    folder = Path(tempfile.mkdtemp(prefix="benchmark-", dir=place))
    try:
        ratio, slope = uncontended(folder), scaling(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    late = []
    if ratio > LIMIT:
        late.append(f"a claim costs {ratio:.2f} x filelock's acquire and release, more than {LIMIT}")
    if slope > SLOPE:
        late.append(f"one of {RESOURCES[-1]} claims costs {slope:.2f} x one of {RESOURCES[0]}, more than {SLOPE}")
    for each in late:
        print(f"too slow: {each}", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
