"""What `rankbind status` costs on 1,000 claims, in CPU time of the whole process (user and system), and beside
``python -c pass``, which every Python command costs.

The claims are real, made by 8 processes; then all of these are killed, so that every holder is dead. The commands take
turns, and a ratio is the median of the ratios of runs that were neighbours in time. Exits 1 when one costs LIMIT
seconds or more. `python benchmarks/status.py`.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

CLAIMS, PROCESSES = 1_000, 8
ROUNDS = 11
LIMIT = 0.5
MAKE = """
import sys
from rankbind.runtime.claim import claim
first, last = int(sys.argv[1]), int(sys.argv[2])
for at in range(first, last):
    claim("kv-events", group={"attn_dp": at}, rank=at, coordinates={"pp": 0, "attn_dp": at, "attn_tp": 0},
          endpoints={"bind": f"tcp://*:{20000 + at}", "replay": f"tcp://*:{40000 + at}"})
print("ready", flush=True)
sys.stdin.read()
"""
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "rankbind --version": ["-m", "rankbind", "--version"],
    "rankbind status": ["-m", "rankbind", "status"],
    "rankbind status --json": ["-m", "rankbind", "status", "--json"],
    "rankbind endpoints kv-events": ["-m", "rankbind", "endpoints", "kv-events"],
}


def cpu(arguments: list[str], environment: dict[str, str]) -> float:
    """Seconds of CPU that the command used, until it had ended."""
    with Path(os.devnull).open("w") as sink:
        process = subprocess.Popen([sys.executable, *arguments], stdout=sink, stderr=sink, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def measure(title: str, environment: dict[str, str]) -> list[str]:
    """Print a table; the commands that are too slow."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            times[name].append(cpu(arguments, environment))
    print(f"{title:34}{'median':>12}{'ratio':>8}")
    for name, found in times.items():
        ratio = statistics.median(one / base for one, base in zip(found, times["python -c pass"], strict=True))
        print(f"{name:34}{statistics.median(found) * 1000:9.1f} ms{ratio:8.1f}")
    return [f"{name}, {title}" for name, found in times.items() if statistics.median(found) >= LIMIT]


def main() -> int:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        environment = {**os.environ, "RANKBIND_DIR": str(Path(folder, "run")), "PYTHONPYCACHEPREFIX": f"{folder}/cache"}
        # As installed: compiled once, and not at every start.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        step = CLAIMS // PROCESSES
        holders = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", MAKE, str(first), str(first + step)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                )
            )
            for first in range(0, CLAIMS, step)
        ]
        try:
            for holder in holders:
                if holder.stdout is None or holder.stdout.readline() != b"ready\n":
                    raise SystemExit("a holder could not claim")
            late = measure(f"{CLAIMS} claims, all alive", environment)
        finally:
            for holder in holders:
                with suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGKILL)
                holder.wait()
        print()
        late += measure(f"{CLAIMS} claims, all dead", environment)
    for name in late:
        print(f"too slow: {name} takes {LIMIT} s of CPU or more", file=sys.stderr)
    return int(bool(late))


if __name__ == "__main__":
    raise SystemExit(main())
