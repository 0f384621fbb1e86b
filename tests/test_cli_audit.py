"""``rankbind audit`` as it is used every day: output, exit status, ignores, baseline, what a change introduced.

What is found is a stand-in's, so that these say nothing of the analysis.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from rankbind import audit
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source
from rankbind.cli import audit as audit_cli
from rankbind.cli import cli

from .support import audits

RUN = audit.run
WRONG = "def f(x, tp_rank):\n    if tp_rank == 0:\n        x.bind(endpoint)\n"
RIGHT = WRONG.replace("endpoint", "endpoint + pp")
IGNORED = WRONG.replace("endpoint)", "endpoint)  # rankbind: ignore[RB701] one stage")
BROKEN = "def f(:\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "RANKBIND_DEBUG", *(n for n in os.environ if n[:4] == "GIT_")):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("engine").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """With which settings each analysis was made."""
    seen: list[Settings] = []

    def run(sources: Sequence[Source], settings: Settings, *, listing: bool = False) -> audit.Audit:
        seen.append(settings)
        return audits.run(sources, settings, listing=listing)

    monkeypatch.setattr(audit, "run", run)
    # Nothing here knows a rule's code but the stand-in.
    monkeypatch.setattr("rankbind.check.codes.titles", lambda: {"RB701": "", "RB702": "", "RB707": "", "RB901": ""})
    return seen


def write(**files: str) -> None:
    for name, text in files.items():
        Path("engine", f"{name}.py").write_text(text, encoding="utf-8")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["audit", *arguments], catch_exceptions=False)


def report(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(invoke(*arguments, "--format", "json").stdout)
    return found


def shown(*arguments: str) -> list[str]:
    return [f"{each['labels'][0]['file']} {each['code']}" for each in report(*arguments)["findings"]]


class TestReport:
    def test_what_is_found(self) -> None:
        write(a=WRONG, b=RIGHT)
        result = invoke("engine")

        assert result.exit_code == 1
        assert result.stdout == (
            "error[RB701]: ranks 0, 1 bind the same address: nothing tells pp apart\n"
            " --> engine/a.py:3:9\n"
            "  |\n"
            "3 |         x.bind(endpoint)\n"
            "  |         ^^^^^^^^^^^^^^^^ created here\n"
            "\n"
            "1 error in 1 file; audited 2 files, 2 sites\n"
        )

    def test_clean(self) -> None:
        write(b=RIGHT)
        result = invoke("engine/b.py")

        assert (result.exit_code, result.stdout) == (0, "clean: 1 file, 1 site\n")

    def test_json(self) -> None:
        write(a=WRONG)

        assert report("engine") == {
            "version": 1,
            "verdict": "findings",
            "audited": {"files": 1, "sites": 1, "gates": None},
            "ignored": 0,
            "known": 0,
            "stale": 0,
            "findings": [
                {
                    "code": "RB701",
                    "level": "error",
                    "message": "ranks 0, 1 bind the same address: nothing tells pp apart",
                    "labels": [{"file": "engine/a.py", "line": 3, "column": 9, "length": 16, "text": "created here"}],
                    "facts": {"axes": ["pp"]},
                    "details": [],
                    "fix": None,
                }
            ],
        }

    def test_what_cannot_be_audited_is_status_2_and_the_rest_is_audited(self) -> None:
        write(a=WRONG, b=BROKEN)
        Path("engine/c.py").write_bytes(b"\xff")
        result = invoke("engine")

        assert result.exit_code == 2
        assert shown("engine") == ["engine/a.py RB701", "engine/b.py RB901", "engine/c.py RB901"]
        assert result.stdout.splitlines()[-1] == (
            "3 errors in 3 files; audited 2 files, 1 site; 2 could not be audited"
        )

    def test_nothing_there(self) -> None:
        result = invoke("gone")

        assert result.exit_code == 2
        assert result.stdout.startswith("error[RB901]: cannot audit gone: no such file, folder or package\n --> gone\n")

    def test_the_line_of_a_file_in_another_encoding(self) -> None:
        text = "# coding: latin-1\n'ä'; x.bind(endpoint)\n"
        Path("engine/a.py").write_bytes(text.encode("latin-1"))

        assert "2 | 'ä'; x.bind(endpoint)\n" in invoke("engine").stdout

    def test_no_path(self) -> None:
        assert invoke().exit_code == 2

    def test_the_second_run_comes_from_the_cache(self, runs: list[Settings]) -> None:
        write(a=WRONG)

        assert invoke("engine").stdout == invoke("engine").stdout
        assert len(runs) == 1
        assert invoke("engine", "--no-cache").stdout == invoke("engine").stdout
        assert len(runs) == 2


class TestSettings:
    def test_from_pyproject(self, runs: list[Settings]) -> None:
        Path("pyproject.toml").write_text('[tool.rankbind.audit]\nprofile = "vllm"\nexclude = ["b.py"]\n')
        write(a=WRONG, b=WRONG)

        assert shown("engine") == ["engine/a.py RB701"]
        assert runs[0].profile == "vllm"

    def test_what_is_asked_for_goes_before_it(self, runs: list[Settings]) -> None:
        Path("pyproject.toml").write_text('[tool.rankbind.audit]\nprofile = "vllm"\nignore = ["RB707"]\n')
        write(a=WRONG, b="x = 1  # rankbind: ignore\n")

        assert shown("engine", "--profile", "torch", "--ignore", "RB701") == []
        assert shown("engine", "--profile", "torch") == ["engine/a.py RB701"]
        assert [each.profile for each in runs] == ["torch"]

    def test_another_file(self, runs: list[Settings]) -> None:
        Path("other.toml").write_text('[tool.rankbind.audit]\nprofile = "megatron"\n')
        write(a=WRONG)
        invoke("engine", "--config", "other.toml")

        assert runs[0].profile == "megatron"

    @pytest.mark.parametrize("style", ["text", "json"])
    def test_wrong_ones_are_shown_with_their_place(self, style: str) -> None:
        Path("pyproject.toml").write_text('[tool.rankbind.audit]\nexlude = ["b.py"]\n')
        write(a=WRONG)
        result = invoke("engine", "--format", style)

        assert result.exit_code == 2
        assert "unknown key 'exlude'" in result.stdout
        assert "did you mean exclude?" in result.stdout
        if style == "text":
            assert " --> pyproject.toml:2:1\n" in result.stdout
            assert "2 | exlude = [" in result.stdout

    def test_a_profile_there_is_not(self) -> None:
        assert "there is no profile sglnag; did you mean sglang?" in invoke("engine", "--profile", "sglnag").output


class TestIgnore:
    def test_a_comment(self) -> None:
        write(a=IGNORED)
        result = invoke("engine")

        assert (result.exit_code, result.stdout) == (0, "clean: 1 file, 1 site; 1 ignored\n")

    def test_one_without_a_reason(self) -> None:
        write(a=IGNORED.replace(" one stage", ""))
        result = invoke("engine")

        assert result.exit_code == 1
        assert result.stdout.startswith("warning[RB707]: an ignore comment without a reason\n --> engine/a.py:3:29\n")

    def test_one_too_many_fails_nothing(self) -> None:
        write(a=RIGHT.replace("pp)", "pp)  # rankbind: ignore[RB701] one stage"))
        result = invoke("engine")

        assert result.exit_code == 0
        assert result.stdout.endswith("clean: 1 file, 1 site; 1 note\n")

    def test_a_code(self) -> None:
        write(a=WRONG)
        result = invoke("engine", "--ignore", "rb701")

        assert (result.exit_code, result.stdout) == (0, "clean: 1 file, 1 site; 1 ignored\n")

    def test_a_code_does_not_make_its_comments_idle(self) -> None:
        write(a=IGNORED)

        assert invoke("engine", "--ignore", "RB701").stdout == "clean: 1 file, 1 site; 1 ignored\n"

    def test_what_cannot_be_ignored(self) -> None:
        result = invoke("engine", "--ignore", "RB901")

        assert result.exit_code == 2
        assert "RB901 cannot be ignored" in result.output


class TestBaseline:
    def test_what_it_knows_is_not_shown(self) -> None:
        write(a=WRONG)
        written = invoke("engine", "--baseline", "audit.json", "--write-baseline")

        assert written.exit_code == 0
        assert written.stdout == "clean: 1 file, 1 site; 1 known before\n"
        assert written.stderr == "rankbind: wrote audit.json, which knows 1 finding: 1 new, 0 gone\n"
        write(a="# more above\n" + WRONG, b=WRONG)
        result = invoke("engine", "--baseline", "audit.json")
        assert result.exit_code == 1
        assert shown("engine", "--baseline", "audit.json") == ["engine/b.py RB701"]
        assert result.stdout.endswith("1 error in 1 file; audited 2 files, 2 sites; 1 known before\n")

    def test_what_is_gone_is_said_and_taken_out(self) -> None:
        write(a=WRONG, b=WRONG)
        invoke("engine", "--baseline", "audit.json", "--write-baseline")
        write(a=RIGHT)
        Path("engine/b.py").unlink()

        assert invoke("engine", "--baseline", "audit.json").stdout == (
            "clean: 1 file, 1 site; 2 of the baseline are gone (--write-baseline)\n"
        )
        written = invoke("engine", "--baseline", "audit.json", "--write-baseline")
        assert written.stderr == "rankbind: wrote audit.json, which knows 0 findings: 0 new, 2 gone\n"
        assert json.loads(Path("audit.json").read_text()) == {"version": 1, "findings": []}

    def test_of_files_that_are_not_audited_nothing_is_forgotten(self) -> None:
        write(a=WRONG, b=WRONG, c=WRONG)
        invoke("engine", "--baseline", "audit.json", "--write-baseline")
        before = Path("audit.json").read_text()
        write(c=BROKEN)

        assert report("engine/a.py", "--baseline", "audit.json")["stale"] == 0
        assert invoke("engine/a.py", "--baseline", "audit.json", "--write-baseline").exit_code == 0
        assert invoke("engine", "--baseline", "audit.json", "--write-baseline").exit_code == 2
        assert Path("audit.json").read_text() == before

    def test_it_is_the_same_from_wherever_it_is_run(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        write(a=WRONG)
        invoke("engine", "--baseline", "audit.json", "--write-baseline")
        monkeypatch.chdir("engine")

        assert shown(".", "--baseline", "../audit.json") == []
        assert shown(f"{folder}/engine", "--baseline", f"{folder}/audit.json") == []

    def test_a_file_that_moved(self) -> None:
        write(a=WRONG)
        invoke("engine", "--baseline", "audit.json", "--write-baseline")
        Path("engine/a.py").rename("engine/b.py")

        assert shown("engine", "--baseline", "audit.json") == []
        assert report("engine", "--baseline", "audit.json")["stale"] == 0

    def test_what_cannot_be_audited_is_never_known(self) -> None:
        write(a=BROKEN)
        written = invoke("engine", "--baseline", "audit.json", "--write-baseline")

        assert written.exit_code == 2
        assert shown("engine", "--baseline", "audit.json") == ["engine/a.py RB901"]

    @pytest.mark.parametrize("write_it", [True, False])
    def test_one_that_cannot_be_read_is_not_overwritten(self, write_it: bool) -> None:
        Path("audit.json").write_text("mine", encoding="utf-8")
        write(a=WRONG)
        result = invoke("engine", "--baseline", "audit.json", *(["--write-baseline"] if write_it else []))

        assert result.exit_code == 2
        assert "error[RB901]: not JSON: Expecting value\n --> audit.json" in result.stdout
        assert Path("audit.json").read_text(encoding="utf-8") == "mine"

    def test_one_there_is_not(self) -> None:
        write(a=WRONG)
        result = invoke("engine", "--baseline", "audit.json")

        assert result.exit_code == 2
        assert "there is no audit.json: --write-baseline makes it" in result.stdout

    def test_one_that_cannot_be_written(self) -> None:
        write(a=WRONG)
        result = invoke("engine", "--baseline", "gone/audit.json", "--write-baseline")

        assert result.exit_code == 1 or result.exit_code == 2
        assert "cannot write gone/audit.json: No such file or directory" in result.output

    @pytest.mark.parametrize(
        "arguments", [["--write-baseline"], ["--baseline", "x", "--write-baseline", "--diff", "HEAD"]]
    )
    def test_what_does_not_go_together(self, arguments: list[str]) -> None:
        assert invoke("engine", *arguments).exit_code == 2


class TestDiff:
    @pytest.fixture(autouse=True)
    def repository(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], check=True, capture_output=True, timeout=60)

    def commit(self, **files: str) -> None:
        write(**files)
        self.git("add", "engine")
        self.git("commit", "--quiet", "--message", "x")

    def test_only_what_a_change_introduced(self) -> None:
        self.commit(a=WRONG, b=RIGHT)
        write(a="# more above\n" + WRONG, b=WRONG)
        result = invoke("engine", "--diff", "HEAD")

        assert result.exit_code == 1
        assert shown("engine", "--diff", "HEAD") == ["engine/b.py RB701"]
        assert result.stdout.endswith("1 error in 1 file; audited 2 files, 2 sites; 1 known before\n")

    def test_nothing_changed(self, runs: list[Settings]) -> None:
        self.commit(a=WRONG)

        assert invoke("engine", "--diff", "HEAD", "--no-cache").stdout == "clean: 1 file, 1 site; 1 known before\n"
        assert len(runs) == 1

    def test_a_renamed_file(self) -> None:
        self.commit(a=WRONG)
        Path("engine/a.py").rename("engine/b.py")

        assert shown("engine", "--diff", "HEAD") == []

    def test_a_file_that_could_not_be_audited_before_either(self) -> None:
        self.commit(a=BROKEN, b=RIGHT)
        write(b=WRONG, c=BROKEN)

        assert shown("engine", "--diff", "HEAD") == ["engine/b.py RB701", "engine/c.py RB901"]

    def test_an_ignore_that_was_taken_away(self) -> None:
        self.commit(a=IGNORED)
        write(a=WRONG)

        assert shown("engine", "--diff", "HEAD") == ["engine/a.py RB701"]

    def test_before_the_first_commit(self) -> None:
        write(a=WRONG)

        assert shown("engine", "--diff", "HEAD") == ["engine/a.py RB701"]

    def test_with_a_baseline(self) -> None:
        self.commit(a=RIGHT)
        write(a=WRONG)
        invoke("engine", "--baseline", "audit.json", "--write-baseline")

        assert shown("engine", "--diff", "HEAD", "--baseline", "audit.json") == []
        self.commit()
        assert report("engine", "--diff", "HEAD", "--baseline", "audit.json")["stale"] == 0

    def test_there_is_no_such_revision(self) -> None:
        self.commit(a=RIGHT)
        result = CliRunner().invoke(cli, ["audit", "engine", "--diff", "nope"])

        assert result.exit_code != 0
        assert "Error: --diff nope: there is no revision nope in " in result.output

    def test_no_traceback_and_status_2(self) -> None:
        write(a=RIGHT)
        done = subprocess.run(
            [sys.executable, "-m", "rankbind", "audit", "engine", "--diff", "nope"],
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert done.returncode == 2
        assert done.stderr.startswith("Error: --diff nope: there is no revision nope in ")


HEAD = """\
import zmq


class Worker:
    def __init__(self, args, pp_rank, tp_rank):
        self.args, self.pp_rank, self.tp_rank = args, pp_rank, tp_rank
        self.bus = None
"""
MENDABLE = f"""{HEAD}\
        if tp_rank == 0:
            self.bus = zmq.Context().socket(zmq.PUB)
            self.bus.bind("tcp://*:5557")
"""
UNMENDABLE = f"""{HEAD}\
        if tp_rank != 0:
            return
        for port in args.ports:
            self.bus = zmq.Context().socket(zmq.PUB)
            self.bus.bind("tcp://*:5557")
"""


class TestFix:
    @pytest.fixture(autouse=True)
    def real(self, runs: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
        """With the real analysis: what is written depends on it."""
        monkeypatch.setattr(audit, "run", RUN)

    def on_terminal(self, answer: str, *arguments: str) -> tuple[str, int]:
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "rankbind", "audit", *arguments],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(follower)
        written = b""
        with suppress(OSError):
            while data := os.read(leader, 65536):
                if b"[y/N]" in data:
                    os.write(leader, answer.encode())
                written += data
        status = process.wait(60)
        os.close(leader)
        return written.decode().replace("\r\n", "\n"), status

    def test_without_a_terminal_it_is_a_patch_and_nothing_is_written(self) -> None:
        write(a=MENDABLE, b=UNMENDABLE)
        result = invoke("engine", "--fix")

        assert result.exit_code == 1
        assert result.stdout.startswith("--- a/engine/a.py\n+++ b/engine/a.py\n@@ -1,10 +1,16 @@\n")
        assert '\n-        if tp_rank == 0:\n+\n+        @singleton_per(group=("pp", "tp"), rank=0)\n' in result.stdout
        assert result.stderr == (
            "rankbind: this fixes 1 finding in 1 file; 1 finding has no mechanical fix\n"
            "rankbind: nothing is written; --yes writes it\n"
        )
        assert Path("engine/a.py").read_text() == MENDABLE
        done = subprocess.run(["git", "apply"], input=result.stdout.encode(), capture_output=True, timeout=60)
        assert (done.returncode, shown("engine/a.py")) == (0, [])

    def test_yes_writes_it_and_shows_what_is_left(self) -> None:
        write(a=MENDABLE, b=UNMENDABLE)
        result = invoke("engine", "--fix", "--yes")

        assert result.exit_code == 1
        assert result.stderr.endswith("no mechanical fix\nrankbind: wrote 1 file\n")
        assert " --> engine/b.py:" in result.stdout
        assert result.stdout.endswith("1 error in 1 file; audited 2 files, 2 sites\n")
        assert shown("engine") == ["engine/b.py RB701"]

    def test_the_status_is_that_of_what_is_left(self) -> None:
        write(a=MENDABLE)
        result = invoke("engine", "--fix", "--yes")

        assert result.exit_code == 0
        assert result.stdout.endswith("\nclean: 1 file, 1 site\n")

    @pytest.mark.parametrize(
        ("text", "told"),
        [(HEAD, "nothing to fix"), (UNMENDABLE, "nothing to fix: 1 finding has no mechanical fix")],
    )
    def test_nothing_to_fix(self, text: str, told: str) -> None:
        write(a=text)
        result = invoke("engine", "--fix", "--yes")

        assert result.stderr == f"rankbind: {told}\n"
        assert result.stdout == invoke("engine").stdout
        assert Path("engine/a.py").read_text() == text

    def test_on_a_terminal_it_asks(self) -> None:
        write(a=MENDABLE)
        no, status = self.on_terminal("n\n", "engine", "--fix")

        assert status == 1
        assert no.endswith("write these changes? [y/N]: n\nrankbind: nothing is written\n")
        assert "\x1b[31m-        if tp_rank == 0:\x1b[0m\n" in no
        assert Path("engine/a.py").read_text() == MENDABLE
        yes, status = self.on_terminal("y\n", "engine", "--fix")
        assert status == 0
        assert yes.endswith("wrote 1 file\n\x1b[1;32mclean: 1 file, 1 site\x1b[0m\n")
        assert shown("engine") == []

    def test_no_answer_writes_nothing(self) -> None:
        write(a=MENDABLE)
        _, status = self.on_terminal("\x04", "engine", "--fix")

        assert status == 130
        assert Path("engine/a.py").read_text() == MENDABLE

    def test_only_what_is_shown(self) -> None:
        write(a=MENDABLE, b=MENDABLE.replace("5557", "5558"), c=MENDABLE.replace("5557", "5559"))
        invoke("engine/a.py", "--baseline", "audit.json", "--write-baseline")
        ignored = Path("engine/b.py").read_text().replace('8")', '8")  # rankbind: ignore[RB701] no stages')
        write(b=ignored)
        result = invoke("engine", "--baseline", "audit.json", "--fix", "--yes")

        assert (result.exit_code, result.stdout.count("+++ ")) == (0, 1)
        assert result.stdout.endswith("clean: 3 files, 3 sites; 1 ignored; 1 known before\n")
        assert Path("engine/a.py").read_text() == MENDABLE
        assert Path("engine/b.py").read_text() == ignored
        assert "singleton_per" in Path("engine/c.py").read_text()

    def test_a_file_that_has_changed_meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        write(a=MENDABLE)
        monkeypatch.setattr(audit_cli, "write", lambda text: write(a=HEAD))
        result = CliRunner().invoke(cli, ["audit", "engine", "--fix", "--yes"])

        assert result.exit_code != 0
        assert "Error: nothing is written: engine/a.py has changed since it was read: audit it again" in result.stderr
        assert Path("engine/a.py").read_text() == HEAD

    def test_one_that_cannot_be_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        write(a=MENDABLE)
        monkeypatch.setattr("tempfile.mkstemp", full)
        result = CliRunner().invoke(cli, ["audit", "engine", "--no-cache", "--fix", "--yes"])

        assert result.exit_code != 0
        assert "Error: cannot write engine/a.py: No space left on device" in result.stderr
        assert Path("engine/a.py").read_text() == MENDABLE

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["--yes"], "--yes is about what --fix writes: it needs --fix"),
            (["--fix", "--gates"], "--gates lists what there is, and --fix changes it: give one"),
            (["--fix", "--format", "json"], "--fix shows a diff, which is no JSON: it does not take --format json"),
            (["--fix", "--baseline", "x", "--write-baseline"], "--write-baseline is to leave it: give one"),
        ],
    )
    def test_what_does_not_go_together(self, arguments: list[str], told: str) -> None:
        result = invoke("engine", *arguments)

        assert result.exit_code == 2
        assert told in result.stderr


class TestGates:
    def test_every_site_and_gate(self) -> None:
        write(a=WRONG, b=RIGHT)
        result = invoke("engine", "--gates")

        assert result.exit_code == 0
        assert result.stdout == (
            "site           function  pinned  varies  free  creation\n"
            "engine/a.py:3  f         tp      -       pp    zmq bind at endpoint\n"
            "engine/b.py:3  f         tp      -       -     zmq bind at endpoint\n"
            "\n"
            "gate           function  kind  target  axes  pinned  condition\n"
            "engine/a.py:2  f         if    -       tp    tp      if tp_rank == 0:\n"
            "engine/b.py:2  f         if    -       tp    tp      if tp_rank == 0:\n"
        )

    def test_json(self) -> None:
        write(a=WRONG)
        found = json.loads(invoke("engine", "--gates", "--format", "json").stdout)

        assert found["version"] == 1
        assert (found["sites"][0]["file"], found["sites"][0]["line"], found["sites"][0]["free"]) == (
            "engine/a.py",
            3,
            ["pp"],
        )
        assert (found["gates"][0]["line"], found["gates"][0]["axes"]) == (2, ["tp"])

    def test_what_could_not_be_audited_is_said(self) -> None:
        write(a=WRONG, b=BROKEN)
        result = invoke("engine", "--gates")

        assert result.exit_code == 2
        assert result.stderr.startswith("rankbind: not Python: ")
        assert result.stderr.count("\n") == 1

    def test_it_takes_all_there_are(self) -> None:
        assert invoke("engine", "--gates", "--diff", "HEAD").exit_code == 2


def test_the_hook_for_pre_commit_runs_what_there_is() -> None:
    (hook,) = yaml.safe_load((Path(__file__).parents[1] / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    words: list[str] = [*hook["entry"].split(), *hook["args"]]
    program, command, *arguments = words

    assert (hook["id"], program, command) == ("rankbind-audit", "rankbind", "audit")
    assert hook["pass_filenames"] is False
    with cli.commands["audit"].make_context("audit", arguments) as context:
        assert (context.params["revision"], context.params["paths"]) == ("HEAD", (Path(),))


def test_a_cached_run_imports_neither_pydantic_nor_rich_nor_torch() -> None:
    write(a=RIGHT)
    script = (
        "import sys; from rankbind.cli import cli\n"
        "for _ in range(2): cli.main(['audit', 'engine'], standalone_mode=False)\n"
        "heavy = {'pydantic', 'rich', 'torch', 'zmq', 'yaml', 'tree_sitter', 'filelock'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines()[-1] == "[]"
