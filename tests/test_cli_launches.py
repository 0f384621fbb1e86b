"""`rankbind check`, `plan`, `export`, `explain` and `rehearse` on launch commands, as a user types them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankbind import config
from rankbind.cli import cli

EVENTS = '{"publisher":"zmq","endpoint":"tcp://*:5557"}'
SGLANG = ["python", "-m", "sglang.launch_server", "--model-path", "m"]
PIPELINE = [*SGLANG, "--tp-size", "4", "--pp-size", "2", "--kv-events-config", EVENTS]

SCRIPT = f"""#!/bin/sh
python -m sglang.launch_server --model-path a --port 30000 --kv-events-config '{EVENTS}' &
python -m sglang.launch_server --model-path b --port 31000 --base-gpu-id 1 --kv-events-config '{EVENTS}' &
wait
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    Path("serve.sh").write_text(SCRIPT)


def invoke(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def test_the_launch_of_pr_29044() -> None:
    found = invoke("check", "--engine-version", "sglang=0.5.14", "--", *PIPELINE)

    assert found.exit_code == 1
    assert "error[RB102]: kv-events has several owners: ranks 0, 4" in found.output
    assert "error[RB201]: kv-events: ranks 0, 4 bind tcp://*:5557 on host 0" in found.output
    assert " --> <command>:1:71\n" in found.output
    assert "help: upgrade to SGLang 0.5.15 or later, or install rankbind-sglang" in found.output


def test_the_release_that_mended_it_is_clean() -> None:
    found = invoke("check", "--engine", "sglang", "--engine-version", "0.5.15", "--", *PIPELINE)

    assert found.exit_code == 0, found.output
    assert "clean: " in found.output
    assert "8 ranks, 1 host" in found.output


def test_a_command_in_quotes() -> None:
    one = invoke("check", "--engine-version", "0.5.14", "--", shlex.join(PIPELINE))

    assert one.output == invoke("check", "--engine-version", "sglang=0.5.14", "--", *PIPELINE).output
    assert "error[RB102]" in one.output


def test_an_option_that_the_engine_refuses() -> None:
    found = invoke("check", "--format", "json", "--", *SGLANG, "--tp", "8", "--pp", "2")

    assert found.exit_code == 1
    (file,) = json.loads(found.output)["files"]
    assert (file["file"], file["verdict"], file["ranks"]) == ("<command>", "findings", 0)
    assert [finding["code"] for finding in file["findings"]] == ["RB605"]


def test_between_the_deployments_of_a_script() -> None:
    found = invoke("check", "serve.sh")

    assert found.exit_code == 1
    assert "kv-events of serve.sh [line 2] and kv-events of serve.sh [line 3] both bind tcp://*:5557" in found.output
    assert "1 error" in found.output.splitlines()[-1]
    assert invoke("check", "--apart", "serve.sh").exit_code == 0


def test_the_smallest_change() -> None:
    found = invoke("check", "--suggest", "serve.sh")

    assert found.exit_code == 1
    assert "  serve.sh [line 3]: --kv-events-config endpoint 5557 -> 5558\n" in found.output


def test_the_smallest_change_for_a_program() -> None:
    found = json.loads(invoke("check", "--suggest", "--format", "json", "serve.sh").output)

    assert [file["deployment"] for file in found["files"]] == ["line 2", "line 3"]
    (move,) = found["suggestion"]["moves"]
    assert (move["deployment"], move["value"]) == ("serve.sh [line 3]", 5557)
    assert found["suggestion"]["left"] == []


def test_nothing_to_change() -> None:
    assert invoke("check", "--suggest", "--", *PIPELINE).output.endswith("suggestion: leave the ports as they are\n")


def test_standard_input_may_be_a_script() -> None:
    found = invoke("check", "-", stdin=SCRIPT)

    assert " --> <stdin>:2:" in found.output
    assert "python -m sglang.launch_server --model-path a" in found.output


def test_plan() -> None:
    found = invoke("plan", "--resource", "kv-events", "--", *PIPELINE)

    assert found.exit_code == 0
    heading, row = found.output.splitlines()
    assert heading.split()[0] == "resource"
    assert row.split()[:3] == ["kv-events", "bind", "0"]
    assert row.endswith("tcp://*:5557")


def test_export_gives_a_file_that_says_the_same() -> None:
    found = invoke("export", "--engine-version", "sglang=0.5.14", "--", *PIPELINE)

    assert found.exit_code == 0
    assert found.output.startswith("# What SGLang 0.5.14 starts")
    Path("topology.toml").write_text(found.output)
    assert config.load("topology.toml").topology.size == 8
    assert {line[:12] for line in invoke("check", "topology.toml").output.splitlines() if line.startswith("error")} == {
        "error[RB102]",
        "error[RB201]",
    }


def test_one_of_several() -> None:
    several = invoke("export", "serve.sh")
    assert several.exit_code == 2
    assert "serve.sh has 2 deployments: choose one with --deployment: line 2, line 3" in several.output

    assert "--model-path b" in invoke("export", "--deployment", "line 3", "serve.sh").output
    assert "there is no deployment line 9" in invoke("plan", "--deployment", "line 9", "serve.sh").output


def test_explain() -> None:
    found = invoke("explain", "kv-events", "--rank", "4", "--", *PIPELINE)

    assert found.exit_code == 0
    assert "rank 4 does not own kv-events" in found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "name a FILE, or give a launch command after --"),
        (["check", "--", "sleep", "1"], "`sleep 1` starts no engine that can be read; installed: sglang, vllm"),
        (["check", "--engine", "sglang", "--", "vllm", "serve", "m"], "`vllm serve m` does not start SGLang"),
        (["check", "--engine", "other", "--", "x"], "no reader for other is installed"),
        (["check", "--engine-version", "0.5.14", "serve.sh"], "of which engine? --engine-version ENGINE=0.5.14"),
        (["check", "vllm", "serve", "m"], "to check a command, put -- in front of it: -- vllm serve m"),
        (["check", "--engine-version", "sglang=0.4", "--", *SGLANG], "SGLang 0.4 is older than what can be read"),
        (["check", "--engine-version", "x=1", "--", *SGLANG], "--engine-version x=1: x is not installed"),
        (["check", "--", "vllm serve 'm"], "No closing quotation"),
        (["check", "--apart", "--suggest", "serve.sh"], "--suggest is about deployments that share hosts"),
        (["export", "topology.toml"], "topology.toml is a topology file already"),
    ],
)
def test_bad_usage(arguments: list[str], message: str) -> None:
    Path("topology.toml").write_text("[axes]\ntp = 1\n")

    found = invoke(*arguments)

    assert found.exit_code == 2
    assert message in found.output


def test_what_cannot_be_planned_is_said() -> None:
    found = invoke("plan", "--", *SGLANG, "--pp", "2")

    assert found.exit_code == 2
    assert "error[RB605]" in found.output


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys; from rankbind.cli import cli;"
        f"cli.main({['check', '--', *PIPELINE]!r}, standalone_mode=False);"
        "print({'torch', 'zmq', 'rich', 'sglang', 'vllm', 'yaml'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)

    assert found.stdout.splitlines()[-1] == "set()", found.stdout + found.stderr
