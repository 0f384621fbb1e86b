"""The plan as a table: the process that takes an address, where it is not the rank itself."""

from __future__ import annotations

import json

from rankbind.report.plan import entries, to_json, to_terminal, to_text

from ..support.findings import plan

TEXT = """
[axes]
tp = 2
[resources.http]
owner = { rank = 0 }
bind = "tcp://*:30000"
probe = "tcp://*:30001"
process = "HTTP server"
[resources.weights]
owner = {}
device = "gpu {rank}"
[resources.watchdog]
owner = { rank = 1 }
process = "watch\\tdog"
"""


def test_text() -> None:
    assert to_text(entries(plan(TEXT))) == (
        "resource  address  rank  process      host  coordinates  endpoint\n"
        "http      bind     0     HTTP-server  0     tp=0         tcp://*:30000\n"
        "http      probe    0     HTTP-server  0     tp=0         tcp://*:30001\n"
        "weights   device   0     -            0     tp=0         gpu 0\n"
        "weights   device   1     -            0     tp=1         gpu 1\n"
        "watchdog  -        1     watch-dog    0     tp=1         -\n"
    )


def test_no_column_where_nobody_is_named() -> None:
    assert to_text(entries(plan(TEXT), resource="weights")).splitlines()[0].split() == [
        "resource",
        "address",
        "rank",
        "host",
        "coordinates",
        "endpoint",
    ]


def test_terminal() -> None:
    wide = to_terminal(entries(plan(TEXT)), 80, colour=False).splitlines()
    assert wide[1] == "http      bind     0     HTTP-server  0     tp=0         tcp://*:30000"
    narrow = to_terminal(entries(plan(TEXT)), 40, colour=False).splitlines()
    assert narrow[:2] == ["http", "  rank 0 (HTTP server) on host 0, bind:"]
    assert "  rank 0 on host 0, device:" in narrow


def test_json() -> None:
    rows = json.loads(to_json(entries(plan(TEXT)), "t.toml"))["plan"]
    assert [row["process"] for row in rows] == ["HTTP server", "HTTP server", None, None, "watch\tdog"]
