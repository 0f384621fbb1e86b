"""What `rankbind check` of a launch command costs as a whole process: 512 ranks on 64 hosts beside 8 on one.

CPU time (user and system), commands taking turns; a ratio is the median of the ratios of runs that were neighbours in
time. Exits 1 when the large launch costs LIMIT times the small one or more. `python benchmarks/launch.py`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 15
LIMIT = 2.0
KV = '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557"}'
SGLANG = "python -m sglang.launch_server --model-path m --enable-dp-attention"
SGLANG_64 = "--attn-cp-size 2 --ep-size 32 --nnodes 64 --node-rank 0 --dist-init-addr 192.0.2.1:20000"
VLLM_64 = "--enable-expert-parallel --nnodes 64 --node-rank 0 --master-addr 192.0.2.1"
LAUNCHES = {
    "sglang, 8 ranks": f"{SGLANG} --tp-size 8 --dp-size 8",
    "sglang, 512 ranks, 64 hosts": f"{SGLANG} --tp-size 128 --pp-size 4 --dp-size 16 {SGLANG_64}",
    "vllm, 8 ranks": "vllm serve m -tp 8",
    "vllm, 512 ranks, 64 hosts": f"vllm serve m -tp 8 -pp 2 -dp 32 {VLLM_64}",
}


def cpu(arguments: list[str]) -> float:
    """Seconds of CPU that the command used, until it had ended."""
    with Path(os.devnull).open("w") as sink:
        process = subprocess.Popen([sys.executable, *arguments], stdout=sink, stderr=sink)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> int:
    commands = {"python -c pass": ["-c", "pass"], "rankbind --version": ["-m", "rankbind", "--version"]}
    for name, launch in LAUNCHES.items():
        events = KV if name.startswith("sglang") else KV.replace("{", '{"enable_kv_cache_events":true,', 1)
        words = [*launch.split(), "--kv-events-config", events]
        commands[name] = ["-m", "rankbind", "check", "--", *words]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, arguments in commands.items():
            times[name].append(cpu(arguments))
    for name, found in times.items():
        print(f"{name:32}{statistics.median(found) * 1000:8.0f} ms")
    slow = False
    for engine in ("sglang", "vllm"):
        small, large = times[f"{engine}, 8 ranks"], times[f"{engine}, 512 ranks, 64 hosts"]
        ratio = statistics.median(b / a for a, b in zip(small, large, strict=True))
        print(f"{engine}: 512 ranks cost {ratio:.2f} times what 8 do (limit {LIMIT})")
        slow |= ratio >= LIMIT
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
