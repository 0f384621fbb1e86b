"""Launchers of real SGLang that are told, or stopped, before they start anything."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from ..support.holder import holder
from ..support.server import Server
from ..support.sglang import free_ports, kv_events
from .test_servers import PLUGIN, REPLICAS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

SAID = re.compile(r"rankbind-sglang has checked this launch in (\d+) ms, and (stops it|lets it go on)")
# What SGLang itself ends of, as soon as it has read its arguments.
NO_MODEL = ("--model-path", "/no/such/model")


def two_bases(port: int) -> dict[str, object]:
    """Replays one above the events, as in many a guide: where the second replica publishes."""
    return kv_events(f"tcp://*:{port}", f"tcp://*:{port + 1}")


def within_a_second(milliseconds: str) -> bool:
    """Of a machine that has nothing else to do: where it has, of the share that it gives."""
    return int(milliseconds) < 1000 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.parametrize("release", ["0.5.14", "0.5.23"])
def test_a_launch_that_would_fail_is_stopped_before_there_is_a_scheduler(
    release: str, tmp_path: Path, plugins_path: Path
) -> None:
    port = free_ports(3)
    with (
        holder(socket.AF_INET, "127.0.0.1", port + 2) as pid,
        Server(
            release,
            REPLICAS,
            two_bases(port),
            PLUGIN,
            plugins_path,
            tmp_path,
            environment={"RANKBIND_PREFLIGHT": "error"},
        ) as server,
    ):
        assert server.dies_alone() == 1
        (said,) = SAID.finditer(server.log)
        assert said[2] == "stops it"
        assert within_a_second(said[1])
        assert re.search(rf"^error\[RB201\]: .*tcp://\*:{port + 1}\b", server.log, re.MULTILINE)
        assert re.search(
            rf"^error\[RB501\]: .* tcp://\*:{port + 2}, which is in use on this host by pid {pid} \(",
            server.log,
            re.MULTILINE,
        )
        assert "Traceback" not in server.log
        assert server.happened("started") is None
        assert server.happened("loading") is None


@pytest.mark.parametrize("release", ["0.5.14", "0.5.23"])
def test_it_is_told_and_goes_on(release: str, tmp_path: Path, plugins_path: Path) -> None:
    port = free_ports(3)
    with Server(release, (*REPLICAS, *NO_MODEL), two_bases(port), PLUGIN, plugins_path, tmp_path) as server:
        assert server.dies() != 0
        (said,) = SAID.finditer(server.log)
        assert said[2] == "lets it go on"
        assert within_a_second(said[1])
        assert server.log.index("error[RB201]") < server.log.index("/no/such/model", said.end())
        assert "Traceback" in server.log[said.end() :], "of SGLang itself, that cannot find its model"


def test_off_says_nothing(tmp_path: Path, plugins_path: Path) -> None:
    port = free_ports(3)
    off = {"RANKBIND_PREFLIGHT": "off"}
    with Server(
        "0.5.23", (*REPLICAS, *NO_MODEL), two_bases(port), PLUGIN, plugins_path, tmp_path, environment=off
    ) as server:
        assert server.dies() != 0
        assert "this launch" not in server.log
