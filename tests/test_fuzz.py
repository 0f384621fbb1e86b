"""Bad input on every surface: no traceback, no endless run, always a position.

``RANKBIND_FUZZ=2000`` asks for more than the 200 malformed files tried by default, ``RANKBIND_SEED`` for others. A
failure names the seed of its file; ``mutant(seed)`` of tests/support/mutants.py makes it again.
"""

from __future__ import annotations

import json
import os
import string
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rankbind import Endpoint, Gate, RankbindError, Scope, Topology, View, check, overlaps
from rankbind.cli import cli
from rankbind.config import parse, read
from rankbind.errors import ConfigError, EndpointError, TemplateError, TextError
from rankbind.finding import Finding
from rankbind.report import text
from rankbind.report.result import Result as Checked
from rankbind.template import Template

from .support.mutants import ENDINGS, NAMES, NUMBERS, STARTS, WORDS, Mutant, broken, mutant, written

MALFORMED = int(os.environ.get("RANKBIND_FUZZ", "200"))
SEED = os.environ.get("RANKBIND_SEED", "1")
PARTS = 8


def lines_of(raw: bytes) -> list[str]:
    return raw.decode("utf-8-sig", "surrogateescape").split("\n")


def look(findings: tuple[Finding, ...], file: str, raw: bytes) -> None:
    """Every finding has a message, and a place that is there."""
    lines = lines_of(raw)
    assert findings
    for finding in findings:
        assert finding.message
        assert "\n" not in finding.message
        assert finding.labels
        for label in finding.labels:
            span = label.span
            assert span.file == file
            assert 1 <= span.line <= len(lines)
            assert 1 <= span.column <= len(lines[span.line - 1]) + 1
            assert span.length >= 1
        json.dumps(dict(finding.facts))


def said(error: ConfigError) -> tuple[Finding, ...]:
    findings = tuple(finding for finding in error.findings if isinstance(finding, Finding))
    assert len(findings) == len(error.findings)
    return findings


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.output
    return result


def try_file(file: Path, bad: Mutant) -> bool:
    """Whether the file cannot be used; everything on the way behaves."""
    file.write_bytes(bad.raw)
    name = str(file)
    findings: tuple[Finding, ...]
    try:
        declaration = read(name)
    except ConfigError as error:
        findings, unusable = said(error), True
        assert all(finding.family in ("RB9", "RB6") for finding in findings)
    else:
        findings = check.run(declaration)
        unusable = any(finding.family == "RB9" for finding in findings)
    if findings:
        look(findings, name, bad.raw)
    shown = text.render([Checked(name, findings)], width=72)
    assert not set(shown) & {"\x00", "\x1b", "\x07", "\r", "\u202e"}

    result = run("check", "--format", "json", name)
    (told,) = json.loads(result.stdout)["files"]
    fails = any(finding.fails for finding in findings)
    unusable = unusable or told["verdict"] == "unchecked"
    assert result.exit_code == (2 if unusable else 1 if fails else 0)
    assert [finding["code"] for finding in told["findings"]] == [finding.code for finding in findings]
    assert run("check", name).exit_code == result.exit_code
    return unusable


@pytest.mark.parametrize("part", range(PARTS))
def test_malformed_files(part: int, tmp_path: Path) -> None:
    wanted = -(-MALFORMED // PARTS)
    malformed = number = 0
    while malformed < wanted:
        bad = mutant(f"{SEED}-{part}-{number}")
        try:
            malformed += try_file(tmp_path / bad.name, bad)
        except BaseException as error:
            error.add_note(f"seed {SEED}-{part}-{number}: {bad.done}")
            raise
        number += 1
        assert number < 20 * wanted, "the fuzzer makes hardly anything malformed"


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("start", STARTS)
def test_what_the_mutants_start_from_is_sound(start: Any, ending: str) -> None:
    declared = parse(written(Random(0), start(), ending), f"t.{ending}")
    assert not any(finding.family == "RB9" for finding in check.run(declared))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("start", STARTS)
def test_cut_at_any_byte(start: Any, ending: str, tmp_path: Path) -> None:
    whole = written(Random(0), start(), ending).encode()
    file = tmp_path / f"t.{ending}"
    for end in range(0, len(whole), 7 if len(whole) > 500 else 1):
        file.write_bytes(whole[:end])
        try:
            findings = check.run(read(file))
        except ConfigError as error:
            findings = said(error)
            assert findings
        if findings:
            look(findings, str(file), whole[:end])


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_other_commands_on_malformed_files(command: str, tmp_path: Path) -> None:
    for number in range(40):
        bad = mutant(f"{SEED}-{command}-{number}")
        file = tmp_path / bad.name
        file.write_bytes(bad.raw)
        if command == "plan":
            run("plan", str(file), "--format", "json")
        else:
            run("explain", "kv-events", "--file", str(file), "--rank", "3")


# ---- the values of the model


def inside(error: TextError, text: str) -> None:
    assert 0 <= error.column <= len(text)
    assert error.width >= 1


def test_templates() -> None:
    rng = Random(f"{SEED}-template")
    values = {"tp": 1, "pp": 0, "dp": -3}
    starts = ["tcp://*:{5557 + tp}", "{tp * (pp + 2) // 3 % 4 - dp}", "{{literal}}", "ipc:///run/{tp}-{pp}", *WORDS]
    for _ in range(4000):
        written_ = rng.choice(starts)
        for _ in range(rng.randrange(4)):
            written_ = broken(rng, written_)
        try:
            rendered = Template(written_).render(values)
        except TemplateError as error:
            inside(error, written_)
        else:
            assert isinstance(rendered, str)


def test_endpoints() -> None:
    rng = Random(f"{SEED}-endpoint")
    starts = [
        "tcp://*:5557",
        "tcp://[::1]:5557-5560",
        "ipc:///run/x",
        "ipc://@x",
        "inproc://x",
        "tcp://127.0.0.1:0",
        *WORDS,
    ]
    alphabet = string.printable + "é\u202e٣\ud800²"
    sound = [Endpoint.parse("tcp://*:5557"), Endpoint.parse("ipc:///run/x")]
    for _ in range(4000):
        written_ = rng.choice(starts)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(written_) + 1)
            written_ = written_[:at] + rng.choice(alphabet) + written_[at + rng.randrange(2) :]
        try:
            found = Endpoint.parse(written_, ipv6=rng.random() < 0.5, v6only=rng.random() < 0.5)
        except EndpointError as error:
            inside(error, written_)
            continue
        assert isinstance(str(found), str)
        assert found.needs_ipv6 in (True, False)
        for other in (*sound, found):
            assert overlaps(found, other) == overlaps(other, found)


def test_axes_views_hosts_scopes_and_gates() -> None:
    rng = Random(f"{SEED}-model")
    names = ["tp", "pp", "a", "b", *NAMES]
    sizes: list[Any] = [1, 2, 2, 3, 4, 6, 0.5, None, True, "2", *NUMBERS]
    ranks: list[Any] = [0, 1, -1, 2, *NUMBERS]
    members: list[Any] = [*ranks, "any", 0.5, None, "x"]

    def some(values: list[Any], most: int = 3) -> list[Any]:
        return [rng.choice(values) for _ in range(rng.randrange(most + 1))]

    made = 0
    for _ in range(4000):
        try:
            views = {
                rng.choice(["v", "w"]): View(some(names, 2), {rng.choice(names): rng.choice(sizes) for _ in range(2)})
                for _ in range(rng.randrange(3))
            }
            hosts: Any = rng.choice([1, 2, rng.choice(NUMBERS), some(ranks), {"a": some(ranks), "b": some(ranks)}])
            axes = {rng.choice(names): rng.choice(sizes) for _ in range(rng.randrange(4))}
            topology = Topology(axes, views, hosts)
            made += 1
        except RankbindError:
            topology = Topology({"tp": 4, "pp": 2}, {"v": View("tp", {"a": 2, "b": 2})}, 2)
        coordinates = {rng.choice([*names, "rank"]): rng.choice(ranks) for _ in range(rng.randrange(4))}
        try:
            owner: Scope | Gate
            if rng.random() < 0.5:
                owner = Scope(some([*names, "world", "host"]), rng.choice(members))
            else:
                owner = Gate({rng.choice([*names, "rank", "local_rank"]): rng.choice([*ranks, some(ranks), [0.5]])})
            str(owner)
            owner.validate(topology)
            assert set(owner.owners(topology)) <= set(range(topology.size))
            owner.is_owner(topology, coordinates)
        except RankbindError:
            pass
    assert made > 20


# ---- the command line


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(written(Random(0), STARTS[0](), "toml"))
    (tmp_path / "bad.yaml").write_text("axes: [")
    (tmp_path / "folder").mkdir()
    rng = Random(f"{SEED}-arguments")
    pool = [
        "good.toml",
        "bad.yaml",
        "folder",
        "none.toml",
        "-",
        "",
        "--",
        "\udcff",
        "x" * 5000,
        "--format",
        "json",
        "text",
        "xml",
        "--ignore",
        "RB201",
        "rb205",
        "RB901",
        "RB000",
        "--code",
        "good.toml",
        "json",
        "no.such",
        "--rank",
        "0",
        "-1",
        "99999",
        "3",
        "x",
        "--file",
        "--resource",
        "kv-events",
        "kv",
        "--host",
        "a",
        "-h",
        "--version",
        "RB202",
        "--nonsense",
        "é",
    ]
    for _ in range(250):
        arguments = [
            rng.choice(["check", "plan", "explain", "chekc"]),
            *(rng.choice(pool) for _ in range(rng.randrange(5))),
        ]
        try:
            result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        except BaseException as error:
            error.add_note(f"rankbind {arguments}")
            raise
        assert result.exit_code in (0, 1, 2), arguments
        assert "Traceback" not in result.output
