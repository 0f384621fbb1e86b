from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_predicts_shows_and_mends_the_failure() -> None:
    done = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110
    )
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "2 of 8 processes died; the launch is over.",
        "bound by ranks 0, 2",
        "a second process that says it is rank 0:",
        "100 events from 2 streams of 50: each exactly once",
        "events left waiting in caches: 0",
    ):
        assert line in done.stdout.splitlines()
    assert done.stdout.count("Address already in use") == 2
    assert "likely: two processes say that they are rank 0" in done.stdout
