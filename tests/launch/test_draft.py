"""Drafts: the topology file that a launch implies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankbind import config
from rankbind.check import run
from rankbind.launch.command import TYPED, typed
from rankbind.launch.draft import Draft

COMMAND = typed(["HOME=/x y", "engine", "--tp", "4", "--port", "8000", "--odd"], {"PATH": "/bin"})


def draft() -> Draft:
    words = COMMAND.words
    found = Draft("Engine 1.0", [COMMAND], deployment="blue")
    found.axis("dp", 2)
    found.axis("tp", 4, *words[1:3])
    found.view("attention", "tp", {"attn_dp": 2, "attn_tp": 2}, words[2])
    found.host("a", range(4), words[0], addresses=["192.0.2.1"])
    found.host("b", [7, 6, 5, 4])
    found.host("c", [])
    found.resource(
        "http",
        *words[3:5],
        owner={"tp": 0, "dp": 0},
        bind="tcp://127.0.0.1:8000",
        process="main",
        about="The API.\nSource: its manual.",
    )
    found.resource("kv", owner={"tp": [0, 2]}, once_per=["dp", "attn_dp"], bind=["tcp://*:{5557 + dp}"], with_="http")
    found.ignored.append((words[-1], "Engine 1.0 has no such option"))
    return found


def test_the_declaration_is_that_of_the_file() -> None:
    found = draft()

    assert config.parse(found.to_toml()).job == found.declaration().job


def test_the_file_is_readable() -> None:
    assert (
        draft().to_toml()
        == """\
# What Engine 1.0 starts, as rankbind reads it:
#   HOME='/x y' engine --tp 4 --port 8000 --odd
# --odd is not looked at: Engine 1.0 has no such option

deployment = "blue"

[axes]  # outermost first
dp = 2
tp = 4

[views.attention]
of = "tp"
axes = { attn_dp = 2, attn_tp = 2 }

[hosts.ranks]
a = "0-3"
b = [7, 6, 5, 4]
c = []

[hosts.addresses]
a = ["192.0.2.1"]

# The API.
# Source: its manual.
[resources.http]
owner = { tp = 0, dp = 0 }
bind = "tcp://127.0.0.1:8000"
process = "main"

[resources.kv]
owner = { tp = [0, 2] }
once_per = ["dp", "attn_dp"]
bind = ["tcp://*:{5557 + dp}"]
with = "http"
"""
    )


def test_values_stand_where_the_command_says_them() -> None:
    document = draft().declaration().document

    assert document.value("axes", "tp") == COMMAND.words[1].span
    assert document.value("resources", "http", "bind") == COMMAND.words[3].span
    assert document.key("hosts", "ranks", "b") == COMMAND.words[0].span
    assert document.value("resources", "kv").file == TYPED
    assert document.text == COMMAND.text


def test_findings_of_the_checks_point_into_the_command() -> None:
    finding = next(finding for finding in run(draft().declaration()) if finding.code == "RB201")

    assert finding.labels[0].span.file == TYPED


def test_a_reader_refuses() -> None:
    found = draft()
    found.refuse("RB606", "4 does not divide", COMMAND.words[2], fix="--tp 2", size=4)

    assert found.refused
    (finding,) = found.findings
    assert (finding.code, finding.fix, finding.facts) == ("RB606", "--tp 2", {"size": 4})
    assert finding.labels[0].span == COMMAND.words[2].span


@given(
    st.dictionaries(
        st.text(min_size=1).filter(lambda t: t.isprintable() and t.strip()), st.lists(st.integers(0, 7)), max_size=4
    ),
    st.text().filter(lambda t: t.isprintable() and not set("{}") & set(t)),
)
def test_any_names_and_placement_survive_the_file(hosts: dict[str, list[int]], text: str) -> None:
    found = Draft("Engine 1.0", [COMMAND])
    found.axis("tp", 8)
    for name, ranks in hosts.items():
        found.host(name, ranks)
    if text.strip():
        found.resource(text, owner={}, name=f"n{text}")

    assert config.parse(found.to_toml()).job == found.declaration().job


@given(st.lists(st.text(min_size=1), min_size=1), st.text())
def test_any_command_can_stand_in_the_file(words: list[str], reason: str) -> None:
    command = typed(["engine", *words])
    found = Draft("Engine 1.0", [command])
    found.axis("tp", 1)
    found.ignored.append((command.words[-1], reason))

    assert config.parse(found.to_toml()).job == found.declaration().job


def test_no_secret_is_written_into_a_file() -> None:
    command = typed(
        [
            "A_TOKEN=s3cret",
            "B=x y",
            "engine",
            "--api-key",
            "s3cret",
            "s3cret",
            "--admin-key-file=f",
            "--password=s3cret",
        ]
    )
    found = Draft("Engine 1.0", [command])
    found.axis("tp", 1)

    assert found.to_toml().splitlines()[1] == (
        "#   A_TOKEN=*** B='x y' engine --api-key *** *** --admin-key-file=f --password=***"
    )
