"""The README is true: its file, its diagnostic and its program are taken from the page and run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RANKS = range(8)


def block(language: str, start: str = "") -> str:
    found = re.findall(rf"```{language}\n({re.escape(start)}.*?)```", README, re.DOTALL)
    assert len(found) == 1, f"the README has {len(found)} blocks of {language} that begin with {start!r}"
    return str(found[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "topology.toml").write_text(block("toml"))
    return tmp_path


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANKBIND_", "COLUMNS"))}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_launch_gives_what_is_shown(folder: Path) -> None:
    command, continued, *shown = block("console", "$ rankbind check --engine").splitlines()
    done = run("-m", *shlex.split(f"{command.removeprefix('$ ').removesuffix(chr(92))} {continued}"), folder=folder)
    assert done.returncode == 1, done.stderr
    assert shown == done.stdout.splitlines()


def test_the_diagnostic_is_what_the_command_prints(folder: Path) -> None:
    shown = block("console", "$ rankbind check topology").splitlines()
    assert shown[0] == "$ rankbind check topology.toml"
    done = run("-m", "rankbind", "check", "topology.toml", folder=folder)
    assert done.returncode == 1, done.stderr
    assert shown[1:] == done.stdout.splitlines()


def test_the_suggested_owner_makes_the_file_clean(folder: Path) -> None:
    suggested = re.search(r"= help: (singleton_per = \{.*\})", block("console", "$ rankbind check topology"))
    assert suggested is not None
    file = folder / "topology.toml"
    file.write_text(re.sub(r"owner = \{.*\}", suggested[1], file.read_text()))
    done = run("-m", "rankbind", "check", "topology.toml", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_runs_on_every_rank(folder: Path) -> None:
    file = folder / "topology.toml"
    # The kernel picks the ports here, so that this test can run beside others.
    file.write_text(file.read_text().replace("{5557 + attn_dp}", "{0 * attn_dp}"))
    program = block("python")
    assert "rank=4" in program
    owners = []
    for rank in RANKS:
        done = run("-W", "error", "-c", program.replace("rank=4", f"rank={rank}"), folder=folder)
        assert (done.returncode, done.stderr) == (0, "")
        said = re.fullmatch(r"rank (\d): owner (\d), owned (True|False)\n", done.stdout)
        assert said is not None
        assert int(said[1]) == rank
        assert (said[3] == "True") == (said[1] == said[2])
        owners.append(int(said[2]))
    assert owners == [0, 0, 2, 2, 0, 0, 2, 2]


def test_the_commands_are_those_of_the_makefile() -> None:
    targets = re.findall(r"^make (\w+)", block("sh"), re.MULTILINE)
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in targets)


@pytest.mark.parametrize("page", re.findall(r"\]\((docs/[^)#]+)", README))
def test_linked_pages_exist(page: str) -> None:
    assert (ROOT / page).is_file()
