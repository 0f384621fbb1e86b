"""What docs/audit.md and the README show of ``rankbind audit`` is what it says of examples/audit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankbind.audit.settings import Settings
from rankbind.audit.table import _Table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLES = [
    block for page in (PAGE, README) for block in re.findall(r"```console\n(\$ rankbind audit .*?)```", page, re.DOTALL)
]


def run(words: list[str], folder: Path) -> str:
    """The output of the command, with what it says on standard error first, as a terminal has it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANKBIND_", "COLUMNS"))}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment | {"XDG_CACHE_HOME": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, 1), done.stdout
    return done.stdout


@pytest.mark.parametrize("block", CONSOLES)
def test_every_command_gives_what_is_shown(block: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "audit", tmp_path / "examples" / "audit")
    commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    assert "".join(f"$ {command}\n{run(shlex.split(command), tmp_path)}" for command in commands) == block


def test_there_is_a_command_in_both() -> None:
    assert "$ rankbind audit" in README
    assert len(CONSOLES) > 3


def test_the_wrapper_that_is_taught_is_found(tmp_path: Path) -> None:
    (settings,) = re.findall(r"```toml\n(\[tool\.rankbind\.audit\].*?)```", PAGE, re.DOTALL)
    (program,) = re.findall(r"```python\n(from ourlib .*?)```", PAGE, re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    (tmp_path / "worker.py").write_text(program, encoding="utf-8")

    shown = run(["rankbind", "audit", "worker.py"], tmp_path)

    assert "error[RB701]: MyBus: ranks that differ only in pp " in shown
    assert " --> worker.py:7:" in shown


@pytest.mark.parametrize("key", _Table.model_fields)
def test_every_key_of_the_table_is_described(key: str) -> None:
    assert f"| `{key}` |" in PAGE
    assert key in Settings.__dataclass_fields__


@pytest.mark.parametrize("link", re.findall(r"\]\(([\w/.-]+\.md)", PAGE))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
