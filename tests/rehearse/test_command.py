"""``rankbind rehearse``: its output, its exit status, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankbind import config
from rankbind.check.plan import Plan
from rankbind.cli import cli
from rankbind.rehearse.cast import Ports

from ..support.rehearsals import CASES


def rehearse(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["rehearse", *arguments], catch_exceptions=False)


def test_json_says_what_was_seen() -> None:
    done = rehearse(str(CASES / "c01-pp-publisher.toml"), "--ports", "free", "--format", "json")
    told = json.loads(done.stdout)

    assert done.exit_code == 1
    assert (told["verdict"], told["hosts"], told["ranks"]) == ("failed", "here", 8)
    first, second = told["addresses"]
    assert first["real"].endswith(f":{told['moved']['5557']}")
    assert (first["state"], first["claim"], first["heard"]) == ("bound", "held", True)
    assert (second["state"], second["claim"], second["claim_holder"]) == ("refused", "refused", "rank 0")
    assert (second["error"], second["holder"], second["foreign"]) == ("Address already in use", "rank 0", False)
    assert "held by rank 0" in second["diagnosis"]
    (prediction,) = told["predictions"]
    assert (prediction["code"], prediction["came_true"]) == ("RB201", True)


def test_a_clean_launch_is_status_0_and_a_shift_reaches_free_ports() -> None:
    clean = CASES / "c02-pp-publisher-fixed.toml"
    free = Ports(Plan(config.read(clean)), free=True)
    free.close()
    shift = free.of(5557) - 5557
    done = rehearse(str(clean), f"--shift={shift}")

    assert done.exit_code == 0
    assert f"ports shifted by {shift}" in done.stdout
    assert done.stdout.endswith("as predicted: 1 address held\n")


def test_a_shift_out_of_the_ports() -> None:
    done = rehearse(str(CASES / "c07-wildcard-and-loopback.toml"), "--shift", "60000", "--format", "json")

    assert done.exit_code == 2
    assert "port 9400 shifted by 60000 would be 69400: there are ports 1..65535" in done.stderr


def test_both_ways_to_move_ports() -> None:
    done = rehearse(str(CASES / "c01-pp-publisher.toml"), "--shift", "1", "--ports", "free")

    assert done.exit_code == 2
    assert "give one of them" in done.stderr


def test_a_file_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[axes\n")
    done = rehearse(str(tmp_path / "t.toml"))

    assert done.exit_code == 2
    assert "RB901" in done.stderr


def test_no_namespaces_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = rehearse(str(CASES / "c05-dp-on-four-hosts.toml"), "--hosts", "namespaces")

    assert done.exit_code == 2
    assert "cannot rehearse" in done.stderr
    assert "iproute2" in done.stderr
