"""docs/rehearsal.md is true: its example is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "rehearsal.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text(block("toml"))
    first, _, shown = block("console").partition("\n")
    command = first.removeprefix("$ rankbind ").split()
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "rankbind", *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )

    assert (done.stdout, done.stderr, done.returncode) == (shown, "", 1)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / link).exists()
