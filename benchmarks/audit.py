"""What `rankbind audit` of a whole engine costs, beside parsing all its files with `ast.parse`: one process each.

The sources of SGLang 0.5.23 (`make environments` fetches them). CPU time (user and system), the commands taking turns
on one core; a ratio is the median of the ratios of runs that were neighbours in time. Exits 1 when an audit costs more
than the parsing, a cached one more than a tenth of it, or one takes more than 1 GiB. `python benchmarks/audit.py`, with
the folder to audit where it is not SGLang's.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 3
MOST_MEMORY = 1 << 30
ROOT = Path(__file__).resolve().parent.parent
PARSING = """
import ast, pathlib, sys
for file in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    ast.parse(file.read_bytes())
"""


def sources() -> Path:
    """Where SGLang 0.5.23 is."""
    for folder in ROOT.glob(".venv-sglang/**/sglang/srt"):
        if (folder.parent.parent / "sglang-0.5.23.dist-info").is_dir():
            return folder
    raise SystemExit("the sources of SGLang 0.5.23 are not here: run `make environments`")


def used(arguments: list[str], cache: str) -> tuple[float, int]:
    """Seconds of CPU, and bytes of memory at most, that a command used until it had ended."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with Path(os.devnull).open("w") as sink:
        process = subprocess.Popen([sys.executable, *arguments], stdout=sink, stderr=sink, env=environment)
        _, status, found = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    return found.ru_utime + found.ru_stime, found.ru_maxrss * 1024


def main() -> int:
    folder = str(Path(sys.argv[1]) if len(sys.argv) > 1 else sources())
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    times: dict[str, list[float]] = {"ast.parse of every file": [], "rankbind audit": [], "the same again": []}
    memory = 0
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as cache:
            times["ast.parse of every file"].append(used(["-c", PARSING, folder], cache)[0])
            seconds, size = used(["-m", "rankbind", "audit", folder], cache)
            times["rankbind audit"].append(seconds)
            memory = max(memory, size)
            times["the same again"].append(used(["-m", "rankbind", "audit", folder], cache)[0])
    for name, found in times.items():
        print(f"{name:26}{statistics.median(found):7.2f} s")
    parsing, first, again = times.values()
    whole = statistics.median(b / a for a, b in zip(parsing, first, strict=True))
    cached = statistics.median(b / a for a, b in zip(parsing, again, strict=True))
    print(f"an audit costs {whole:.2f} times the parsing (limit 1), a cached one {cached:.3f} (limit 0.1)")
    print(f"memory: {memory / 2**20:.0f} MiB (limit {MOST_MEMORY >> 20})")
    return int(whole > 1 or cached > 0.1 or memory > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
