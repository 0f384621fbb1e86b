"""Programs that tests run as processes of their own, written beside the test that runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def write(folder: Path, code: str, name: str = "script.py") -> Path:
    """Put `code`, dedented, into a file: children that multiprocessing spawns import it again."""
    path = folder / name
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    return path


def run(folder: Path, code: str, *arguments: str, status: int | None = 0, limit: float = 60) -> str:
    """Run `code` to its end; what it printed. Its status has to be `status` (None: any)."""
    path = write(folder, code)
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=limit,
        env={**os.environ, "RANKBIND_DIR": str(folder / "runtime")},
        check=False,
    )
    assert status is None or done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
