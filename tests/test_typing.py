"""The types users see: tests/typing is checked by mypy, strictly, and never run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("path", sorted((HERE / "typing").glob("*.py")), ids=lambda path: path.stem)
def test_mypy_agrees(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--config-file=", str(path)]
    done = subprocess.run(
        [*command, f"--cache-dir={tmp_path}"], capture_output=True, text=True, check=False, cwd=HERE.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
