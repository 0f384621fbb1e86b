"""From files and commands to what is checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from rankbind.cli import cli
from rankbind.errors import LaunchError
from rankbind.finding import Level
from rankbind.launch import engine as engines
from rankbind.launch.command import TYPED, Command, typed
from rankbind.launch.draft import Draft
from rankbind.launch.reading import Choice, Input, judge, subjects

CLEAN = '[axes]\ntp = 2\n\n[resources.http]\nsingleton_per = { group = "world" }\nbind = "tcp://*:8000"\n'


class Tiny:
    """An engine: ``tiny --tp N --port P [--gate]``, whose rank 0, or with --gate every rank, binds the port."""

    name, title, versions = "tiny", "Tiny", ("1.0", "2.0")
    entrypoints: ClassVar[dict[str, tuple[str, ...]]] = {"lab/tiny": ("tiny",)}

    def starts(self, words: Sequence[str]) -> bool:
        return words[:1] == ("tiny",)

    def read(self, commands: Sequence[Command], version: str | None) -> Sequence[Draft]:
        return [self._draft(command, version or "2.0") for command in commands]

    def _draft(self, command: Command, version: str) -> Draft:
        draft = Draft(f"Tiny {version}", [command])
        if "--tp" not in command.texts:
            draft.refuse("RB605", "Tiny wants --tp", *command.words[:1])
            return draft
        tp, port = (command.words[command.texts.index(option) + 1] for option in ("--tp", "--port"))
        draft.axis("tp", int(tp.text), tp)
        draft.host(command.host or "0", range(int(tp.text)))
        draft.resource(
            "http",
            port,
            owner={} if "--gate" in command.texts else {"tp": 0},
            bind=f"tcp://*:{port.text}",
            remedies={"RB2": "leave --gate away"},
        )
        return draft


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "installed", lambda: frozenset({"tiny"}))
    monkeypatch.setattr(engines, "_load", lambda name: Tiny())


def test_a_command_is_checked_as_the_file_that_it_implies() -> None:
    (subject,) = subjects([], typed(["tiny", "--tp", "2", "--port", "8000", "--gate"]))

    (finding,) = subject.checked()
    assert (subject.shown, finding.code, finding.fix) == (TYPED, "RB201", "leave --gate away")
    assert (finding.labels[0].span.line, finding.labels[0].span.column) == (1, 20)
    assert subject.text == "tiny --tp 2 --port 8000 --gate"


def test_what_an_engine_refuses_is_not_looked_at_further() -> None:
    (subject,) = subjects([], typed(["tiny"]))

    assert subject.declaration is None
    assert [(finding.code, finding.level) for finding in subject.checked()] == [("RB605", Level.ERROR)]


def test_files_and_a_command_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "b.sh").write_text("#!/bin/sh\ntiny --tp 4 --port 8001\ntiny --tp 2 --port 8002\n")
    (tmp_path / "a.toml").write_text(CLEAN)

    found = subjects(
        [Input(str(tmp_path / "b.sh")), Input(str(tmp_path / "a.toml"))], typed(["tiny", "--tp", "1", "--port", "8003"])
    )

    assert [(Path(subject.file).name, subject.name) for subject in found] == [
        ("b.sh", "line 2"),
        ("b.sh", "line 3"),
        ("a.toml", None),
        (TYPED, None),
    ]
    assert judge(found).findings == ((), (), (), ())


def test_what_is_between_two_is_told_with_the_later(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(CLEAN)
    found = subjects([Input(str(tmp_path / "a.toml"))], typed(["tiny", "--tp", "2", "--port", "8000"]))

    first, (finding,) = judge(found).findings
    assert first == ()
    assert (finding.code, {label.span.file for label in finding.labels}) == ("RB501", {found[0].file, TYPED})
    assert judge(found, together=False).findings == ((), ())


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("gone.toml", None, "RB901"),
        ("bad.toml", "[axes", "RB901"),
        ("bad.yaml", "services: {a: {command: [", "RB901"),
        ("none.sh", "echo hello\n", "RB907"),
        ("none.yaml", "services:\n  a:\n    command: sleep 1\n", "RB907"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, name: str, text: str | None, code: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)

    (subject,) = subjects([Input(str(tmp_path / name))])

    assert subject.declaration is None
    assert [finding.code for finding in subject.checked()] == [code]


def test_the_release_that_is_chosen() -> None:
    command = typed(["tiny", "--tp", "2", "--port", "8000"])

    (subject,) = subjects([], command, Choice(versions={"tiny": "1.5"}))

    assert subject.draft is not None
    assert subject.draft.engine == "Tiny 1.5"
    with pytest.raises(LaunchError, match=r"older than what can be read: 1\.0 to 2\.0"):
        subjects([], command, Choice(versions={"tiny": "0.9"}))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(), r"`sleep 1` starts no engine that can be read; installed: tiny"),
        (Choice("tiny"), r"`sleep 1` does not start Tiny"),
        (Choice("other"), r"no reader for other is installed; installed: tiny$"),
    ],
)
def test_a_command_that_starts_nothing(choice: Choice, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        subjects([], typed(["sleep", "1"]), choice)


COMPOSE = """
services:
  a:
    image: lab/tiny:1.0
    command: --tp 2 --port 8000
    ports: ["8000:8000"]
  b:
    image: lab/tiny:1.0
    command: --tp 2 --port 8000
    ports: ["127.0.0.1:8000:8000"]
  c:
    image: lab/tiny:1.0
    network_mode: host
    command: --tp 2 --port 8000
"""


def test_what_is_published_is_bound_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)

    found = subjects([Input(str(tmp_path / "compose.yaml"))])

    assert [subject.name for subject in found] == ["published ports", "a", "b", "c"]
    verdict = judge(found, suggest=True)
    assert [[finding.code for finding in findings] for findings in verdict.findings] == [
        ["RB201"],
        [],
        [],
        ["RB501", "RB501"],
    ]
    (clash,) = verdict.findings[0]
    assert clash.fix == "publish it on another port of the machine"
    assert [label.span.line for label in clash.labels] == [6, 10]
    assert {tuple(finding.facts["resources"]) for finding in verdict.findings[3]} == {
        ("a:8000", "http"),
        ("b:8000", "http"),
    }


def test_what_is_remarked_of_a_file_is_told_with_what_it_starts(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE + "  d:\n    extends: {file: other.yaml, service: x}\n")

    found = subjects([Input(str(tmp_path / "compose.yaml"))])

    assert [subject.name for subject in found] == ["published ports", "a", "b", "c"]
    assert [finding.code for finding in found[1].findings] == ["RB609"]


def test_who_names_a_file_does_not_mean_its_published_ports(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("services: {a: {image: lab/tiny, command: --tp 2 --port 8000, ports: ['8000:8000']}}\n")

    found = CliRunner().invoke(cli, ["plan", str(file)])
    assert found.exit_code == 0, found.output
    assert "http" in found.output
    published = CliRunner().invoke(cli, ["plan", "--deployment", "published ports", str(file)])
    assert "a:8000" in published.output


def test_a_word_that_can_be_no_address_is_a_finding() -> None:
    (subject,) = subjects([], typed(["tiny", "--tp", "2", "--port", "80\n"]))

    assert subject.declaration is None
    (finding,) = subject.checked()
    assert (finding.code, finding.labels[0].span.column) == ("RB904", 20)


def test_a_port_of_a_container_may_be_published_often(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    ports = "'8000-12095:9000-13095', '127.0.0.1:7000:9000', '[::1]:7000:9000'"
    file.write_text(f"services: {{a: {{image: lab/tiny, command: --tp 2 --port 8000, ports: [{ports}]}}}}\n")

    published, _ = subjects([Input(str(file))])
    assert published.draft is not None
    names = published.draft.names
    assert (len(names), names[:2], names[-2:]) == (4098, ("a:9000", "a:9001"), ("a:9000 2", "a:9000 3"))


def test_files_that_start_nothing_do_not_hinder_those_that_do(tmp_path: Path) -> None:
    (tmp_path / "nginx.sh").write_text("nginx -g x\n")
    (tmp_path / "serve.sh").write_text("tiny --tp 2 --port 8000\n")

    (found,) = subjects([Input(str(tmp_path / "nginx.sh")), Input(str(tmp_path / "serve.sh"))])

    (note,) = found.checked()
    assert (note.code, note.level, Path(note.labels[0].span.file).name) == ("RB609", Level.NOTE, "nginx.sh")
