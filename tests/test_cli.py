"""The command, as it is used: its output, its exit status, its manners."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankbind.cli import cli
from rankbind.report.style import cells

CLEAN = """
[axes]
pp = 2
tp = 4

[views.attention]
of = "tp"
axes = { attn_dp = 2, attn_tp = 2 }

[resources.kv-events]
singleton_per = { group = ["pp", "attn_tp"], rank = 0 }
bind = "tcp://*:{5557 + attn_dp}"
replay = "tcp://*:{5657 + attn_dp}"
connect = { to = "tcp://localhost:{5557 + replica}", axes = { replica = 2 } }

[resources.sampler]
singleton_per = { group = "pp", rank = -1 }
"""
CLASH = """
[axes]
pp = 2
tp = 4

[resources.kv-events]
owner = { tp = 0 }
bind = "tcp://*:5557"
"""
NOTE = """
[axes]
dp = 2

[resources.kv-events]
owner = {}
bind = "tcp://*:{36000 + dp}"
"""
BROKEN = "[axes\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "RANKBIND_TOPOLOGY", "RANKBIND_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    for name, text in {"clean": CLEAN, "clash": CLASH, "note": NOTE, "broken": BROKEN}.items():
        Path(f"{name}.toml").write_text(text, encoding="utf-8")
    return tmp_path


def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin, catch_exceptions=False)


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankbind", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def on_terminal(*arguments: str, columns: int = 80, **environment: str) -> str:
    """What the command writes to a terminal of so many columns."""
    leader, follower = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "rankbind", *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", **environment},
        start_new_session=True,
    )
    os.close(follower)
    written = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([leader], [], [], 1)
        if not ready:
            continue
        try:
            data = os.read(leader, 65536)
        except OSError:
            break
        if not data:
            break
        written += data
    process.wait(60)
    os.close(leader)
    return written.decode().replace("\r\n", "\n")


class TestVersion:
    def test_it_says_which(self) -> None:
        assert command("--version").stdout == "rankbind 0.1.0\n"

    def test_it_imports_neither_pydantic_nor_rich_nor_what_the_job_needs(self) -> None:
        script = (
            "import sys; from rankbind.cli import cli; cli.main(['--version'], standalone_mode=False);"
            "heavy = {'pydantic', 'rich', 'torch', 'zmq', 'yaml', 'tree_sitter', 'filelock'};"
            "print(sorted(heavy & set(sys.modules)))"
        )
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

        assert found.stdout.splitlines() == ["rankbind 0.1.0", "[]"]

    def test_a_report_in_a_pipe_needs_no_rich(self) -> None:
        script = (
            "import sys; from rankbind.cli import cli; cli.main(['check', 'clash.toml'], standalone_mode=False);"
            "print('rich' in sys.modules)"
        )
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

        assert found.stdout.splitlines()[-1] == "False"


class TestExitStatus:
    @pytest.mark.parametrize(
        ("files", "status"),
        [
            (["clean.toml"], 0),
            (["note.toml"], 0),
            (["clash.toml"], 1),
            (["broken.toml"], 2),
            (["gone.toml"], 2),
            (["."], 2),
            (["clean.toml", "clash.toml"], 1),
            (["clash.toml", "broken.toml", "clean.toml"], 2),
            ([], 2),
            (["--format", "xml", "clean.toml"], 2),
            (["--no-such-option", "clean.toml"], 2),
        ],
    )
    def test_the_worst_of_the_files(self, files: list[str], status: int) -> None:
        assert invoke("check", *files).exit_code == status
        assert command("check", *files).returncode == status

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_that_may_not_be_read(self) -> None:
        Path("clean.toml").chmod(0)

        found = command("check", "clean.toml")
        assert found.returncode == 2
        assert "Permission denied" in found.stdout

    def test_the_others_are_still_checked(self) -> None:
        found = invoke("check", "--apart", "broken.toml", "gone.toml", "clash.toml", "clean.toml")

        assert "error[RB901]: not TOML" in found.output
        assert "error[RB901]: cannot read gone.toml: No such file or directory\n --> gone.toml\n" in found.output
        assert "error[RB201]: kv-events: ranks 0, 4 bind tcp://*:5557" in found.output
        assert found.output.endswith("3 errors in 3 files; 2 files could not be checked; 1 clean\n")

    def test_a_folder_is_no_file(self) -> None:
        assert "cannot read .: Is a directory" in invoke("check", ".").output

    def test_one_file_named_twice_is_one_file(self) -> None:
        assert invoke("check", "clash.toml", "clash.toml").output.endswith("1 error in 1 file\n")


class TestCheck:
    def test_clean(self) -> None:
        assert invoke("check", "clean.toml").output == "clean: 2 resources, 8 ranks, 1 host\n"

    def test_a_note_fails_nothing(self) -> None:
        output = invoke("check", "note.toml").output

        assert output.startswith("note[RB205]: ")
        assert output.endswith("\nclean: 1 resource, 2 ranks, 1 host; 1 note\n")

    def test_json(self) -> None:
        found = invoke("check", "--apart", "--format", "json", "clash.toml", "broken.toml", "clean.toml")

        assert found.exit_code == 2
        files = json.loads(found.output)["files"]
        assert [(file["file"], file["verdict"], file["ranks"]) for file in files] == [
            ("clash.toml", "findings", 8),
            ("broken.toml", "unchecked", None),
            ("clean.toml", "clean", 8),
        ]
        assert files[0]["findings"][0]["facts"]["collisions"][0]["ranks"] == [0, 4]

    def test_standard_input(self) -> None:
        found = invoke("check", "-", stdin=CLASH)

        assert found.exit_code == 1
        assert " --> <stdin>:8:8\n" in found.output
        assert '8 | bind = "tcp://*:5557"\n' in found.output

    def test_standard_input_that_is_no_text(self) -> None:
        found = invoke("check", "-", stdin=b'a = "\xff"\n')

        assert found.exit_code == 2
        assert "error[RB901]: not UTF-8 text\n --> <stdin>:1:6\n" in found.output

    def test_ignore(self) -> None:
        found = invoke("check", "clash.toml", "--ignore", "rb201")

        assert found.exit_code == 0
        assert found.output == "clean: 1 resource, 8 ranks, 1 host; 1 ignored\n"

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("RB20", "there is no code RB20; did you mean RB2"),
            ("nonsense", "there is no code nonsense; `rankbind explain` lists them all"),
            ("RB902", "RB902 cannot be ignored"),
        ],
    )
    def test_what_cannot_be_ignored(self, code: str, message: str) -> None:
        found = invoke("check", "clean.toml", "--ignore", code)

        assert found.exit_code == 2
        assert message in found.output

    def test_code(self) -> None:
        Path("engine.py").write_text(
            'from rankbind import singleton_per\n\n@singleton_per(group="tp", name="sampler")\ndef f(): ...\n',
            encoding="utf-8",
        )
        found = invoke("check", "clean.toml", "--code", "engine.py")

        assert found.exit_code == 1
        assert "error[RB402]: sampler: the code says rank 0 of each (tp) group" in found.output
        assert " --> engine.py:3:2\n" in found.output
        assert " ::: clean.toml:17:17\n" in found.output

    def test_code_that_agrees(self) -> None:
        Path("engine.py").write_text('singleton_per("sampler")\n', encoding="utf-8")
        found = invoke("check", "clean.toml", "--code", "engine.py")

        assert found.output == "clean: 2 resources, 8 ranks, 1 host, 1 declaration in the code\n"

    def test_code_there_is_not(self) -> None:
        found = invoke("check", "clean.toml", "--code", "no_such_package")

        assert found.exit_code == 2
        assert "cannot read the code at no_such_package: no such file or package" in found.output


class TestManners:
    def test_a_pipe_gets_no_colour_and_no_wrapping(self) -> None:
        found = command("check", "clash.toml").stdout

        assert "\x1b" not in found
        assert len(found.splitlines()[0]) > 100

    def test_colour_can_be_forced_and_forbidden(self) -> None:
        assert "\x1b[1;31m" in command("check", "clash.toml", FORCE_COLOR="1").stdout
        assert "\x1b" not in command("check", "clash.toml", FORCE_COLOR="0").stdout
        assert "\x1b" not in command("check", "clash.toml", FORCE_COLOR="1", NO_COLOR="1").stdout

    def test_a_terminal_gets_colour_unless_it_says_no(self) -> None:
        assert "\x1b[1;31merror[RB201]\x1b[0m" in on_terminal("check", "clash.toml")
        assert "\x1b" not in on_terminal("check", "clash.toml", NO_COLOR="1")
        assert "\x1b" not in on_terminal("check", "clash.toml", TERM="dumb")

    @pytest.mark.parametrize(
        "arguments",
        [
            ("check", "clash.toml"),
            ("check", "note.toml", "broken.toml"),
            ("plan", "clean.toml"),
            ("explain", "kv-events", "--rank", "4", "--file", "clean.toml"),
            ("explain", "RB201"),
        ],
    )
    @pytest.mark.parametrize("columns", [40, 80])
    def test_a_narrow_terminal_is_kept_to(self, arguments: tuple[str, ...], columns: int) -> None:
        output = on_terminal(*arguments, columns=columns)

        assert output
        for line in re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines():
            assert cells(line) <= columns

    def test_control_characters_of_a_file_do_not_reach_the_terminal(self) -> None:
        Path("evil.toml").write_text('[axes]\n"\\u001b[31m" = 2\n# \u202e\nx = 1\n', encoding="utf-8")
        output = on_terminal("check", "evil.toml", NO_COLOR="1")

        assert "\\x1b[31m" in output
        assert all(char == "\n" or char.isprintable() for char in output)

    def test_a_terminal_that_cannot_show_a_character_gets_an_escape(self) -> None:
        Path("t.toml").write_text("[axes]\npp = 1 # 日本\nx = '日本'\n", encoding="utf-8")
        found = command("check", "t.toml", PYTHONIOENCODING="ascii", PYTHONUTF8="0")

        assert found.returncode == 2
        assert "\\u65e5" in found.stdout
        assert found.stderr == ""

    def test_a_reader_who_has_gone(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "rankbind", "check", "clash.toml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()

        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(60) == 141

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_full_disk(self) -> None:
        with Path("/dev/full").open("w") as full:
            found = subprocess.run(
                [sys.executable, "-m", "rankbind", "check", "clash.toml"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
            )

        assert found.returncode == 2
        assert found.stderr == "Error: cannot write the report: No space left on device\n"

    def test_a_closed_output(self) -> None:
        found = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m rankbind check clash.toml >&-"],
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert (found.returncode, found.stderr) == (1, "")

    def test_an_interrupt(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "rankbind", "check", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Until click runs, Python itself would answer; then it waits for the rest of the input.
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)

        assert process.returncode == 130
        assert "Traceback" not in errors

    @pytest.mark.parametrize("debug", [False, True])
    def test_a_bug_of_ours_is_one_line_that_asks_for_a_report(self, debug: bool) -> None:
        script = (
            "import sys, rankbind.check; rankbind.check.run = lambda *_: {}['x'];"
            "sys.argv = ['rankbind', 'check', 'clean.toml']; from rankbind.cli import main; main()"
        )
        found = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "RANKBIND_DEBUG": "1" if debug else ""},
        )

        assert found.returncode == 2
        assert found.stdout == ""
        last = found.stderr.splitlines()[-1]
        assert last.startswith("rankbind: a bug of rankbind, not of your file: KeyError: 'x'")
        assert "please report it" in last
        assert ("Traceback" in found.stderr) == debug


class TestPlan:
    def test_the_table_in_a_pipe(self) -> None:
        assert invoke("plan", "clean.toml", "--resource", "kv-events").output.splitlines() == [
            "resource   address  rank  host  coordinates                    endpoint",
            "kv-events  bind     0     0     pp=0,tp=0,attn_dp=0,attn_tp=0  tcp://*:5557",
            "kv-events  bind     2     0     pp=0,tp=2,attn_dp=1,attn_tp=0  tcp://*:5558",
            "kv-events  replay   0     0     pp=0,tp=0,attn_dp=0,attn_tp=0  tcp://*:5657",
            "kv-events  replay   2     0     pp=0,tp=2,attn_dp=1,attn_tp=0  tcp://*:5658",
        ]

    def test_an_owner_without_an_address_is_in_it(self) -> None:
        lines = invoke("plan", "clean.toml", "--resource", "sampler").output.splitlines()

        assert [line.split()[2] for line in lines[1:]] == ["4", "5", "6", "7"]
        assert all(line.endswith("-") for line in lines[1:])

    def test_nothing_is_cut_in_a_pipe(self) -> None:
        path = "/" + "x" * 300
        Path("t.toml").write_text(f"[axes]\ntp = 1\n[resources.r]\nowner = {{}}\npath = '{path}'\n", encoding="utf-8")

        assert path in command("plan", "t.toml", COLUMNS="40").stdout

    def test_json(self) -> None:
        rows = json.loads(invoke("plan", "clean.toml", "--format", "json", "--host", "0").output)

        assert rows["version"] == 1
        assert rows["file"] == "clean.toml"
        assert rows["plan"][0] == {
            "resource": "kv-events",
            "address": "bind",
            "rank": 0,
            "process": None,
            "host": "0",
            "coordinates": {"pp": 0, "tp": 0, "attn_dp": 0, "attn_tp": 0},
            "endpoint": "tcp://*:5557",
            "candidate": False,
        }
        assert rows["plan"][-1]["address"] is None
        assert rows["plan"][-1]["endpoint"] is None

    def test_an_elected_owner(self) -> None:
        text = '[axes]\ntp = 2\n[resources.r]\nsingleton_per = { group = "tp", rank = "any" }\nbind = "tcp://*:5000"\n'
        Path("t.toml").write_text(text, encoding="utf-8")

        assert invoke("plan", "t.toml").output.count("tcp://*:5000 (if elected)") == 2

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--resource", "kv-event"), "clean.toml has no resource kv-event; did you mean kv-events?"),
            (("--resource", "zzz"), "clean.toml has no resource zzz; it has kv-events, sampler"),
            (("--host", "7"), "clean.toml has no host 7; it has 0"),
        ],
    )
    def test_names_there_are_not(self, arguments: tuple[str, ...], message: str) -> None:
        found = invoke("plan", "clean.toml", *arguments)

        assert found.exit_code == 2
        assert message in found.output

    def test_a_file_that_cannot_be_used(self) -> None:
        found = command("plan", "broken.toml")

        assert (found.returncode, found.stdout) == (2, "")
        assert "error[RB901]: not TOML" in found.stderr

    @pytest.mark.parametrize("wrong", ['owner = { ttp = 0 }\nbind = "tcp://*:1"', 'owner = {}\nbind = "tcp://*:{ttp}"'])
    def test_what_cannot_be_told_is_said(self, wrong: str) -> None:
        Path("t.toml").write_text(f"[axes]\ntp = 2\n[resources.r]\n{wrong}\n", encoding="utf-8")
        found = command("plan", "t.toml")

        assert found.returncode == 2
        assert found.stderr == "rankbind: not all of r can be told; `rankbind check t.toml` says why\n"


class TestExplain:
    def test_a_page_is_plain_in_a_pipe(self) -> None:
        output = invoke("explain", "rb201").output

        assert output.startswith("# RB201: two owners bind one address\n")
        assert "```toml bad\n" in output

    def test_a_page_is_set_on_a_terminal(self) -> None:
        output = on_terminal("explain", "RB201")

        assert "```" not in output
        assert "Bad:" in output
        assert "Good:" in output
        assert "\x1b[" in output

    def test_the_list_of_codes(self) -> None:
        lines = invoke("explain").output.splitlines()

        assert "RB201  two owners bind one address" in lines
        assert lines == sorted(lines)

    @pytest.mark.parametrize(("code", "hint"), [("RB299", "did you mean RB209"), ("RB999", "did you mean RB90")])
    def test_a_code_there_is_not(self, code: str, hint: str) -> None:
        found = invoke("explain", code)

        assert found.exit_code == 2
        assert hint in found.output

    @pytest.mark.parametrize(
        ("resource", "rank", "sentence"),
        [
            (
                "kv-events",
                4,
                (
                    "rank 4 does not own kv-events: its group is ranks 0, 1, 4, 5 (pp and attn_tp vary; attn_dp = 0) "
                    "and rank 0 of it is world rank 0"
                ),
            ),
            (
                "kv-events",
                2,
                "rank 2 owns kv-events: it is rank 0 of its group, ranks 2, 3, 6, 7 (pp and attn_tp vary; attn_dp = 1)",
            ),
            (
                "sampler",
                1,
                (
                    "rank 1 does not own sampler: its group is ranks 1, 5 (pp varies; tp = 1) "
                    "and rank -1 (the last) of it is world rank 5"
                ),
            ),
        ],
    )
    def test_why_a_rank_owns_or_does_not(self, resource: str, rank: int, sentence: str) -> None:
        output = invoke("explain", resource, "--rank", str(rank), "--file", "clean.toml").output

        assert sentence in output.splitlines()

    def test_where_it_stands_what_is_bound_and_who_dials(self) -> None:
        assert invoke("explain", "kv-events", "--rank", "3", "--file", "clean.toml").output.splitlines() == [
            "rank 3 of 8: pp 0, tp 3, attn_dp 1, attn_tp 1; local rank 3 of 8 on host 0",
            "",
            "kv-events (clean.toml:10:12): owned by rank 0 of each (pp, attn_tp) group",
            (
                "rank 3 does not own kv-events: its group is ranks 2, 3, 6, 7 (pp and attn_tp vary; attn_dp = 1) "
                "and rank 0 of it is world rank 2"
            ),
            "rank 2 takes:",
            "  bind: tcp://*:5558 on host 0",
            "  replay: tcp://*:5658 on host 0",
            "outside the job, replica 1 dials tcp://localhost:5558 (bind)",
        ]

    def test_a_gate(self) -> None:
        passes = invoke("explain", "kv-events", "--rank", "4", "--file", "clash.toml").output
        fails = invoke("explain", "kv-events", "--rank", "5", "--file", "clash.toml").output

        assert "rank 4 owns kv-events: it passes tp = 0; so does rank 0 (the gate says nothing about pp)" in passes
        assert "rank 5 does not own kv-events: it does not pass tp = 0 (its tp is 1); ranks 0, 4 do" in fails

    def test_a_gate_on_an_axis_of_a_view(self) -> None:
        """It says nothing about attn_dp; of tp it does say something."""
        view = "[views.attention]\nof = 'tp'\naxes = { attn_dp = 2, attn_tp = 2 }\n"
        Path("t.toml").write_text(f"[axes]\npp = 2\ntp = 4\n{view}[resources.r]\nowner = {{ attn_tp = 0 }}\n")
        assert (
            "(the gate says nothing about pp and attn_dp)"
            in invoke("explain", "r", "--rank", "4", "--file", "t.toml").output
        )

    @pytest.mark.parametrize(
        ("owner", "rank", "sentence"),
        [
            ('singleton_per = { group = "world", rank = 1 }', 0, "its group is ranks 0..3 (the world)"),
            ('singleton_per = { group = "host", rank = 0 }', 3, "its group is ranks 2, 3 (host b) and rank 0 of it"),
            ('singleton_per = { group = "tp", rank = "any" }', 2, "rank 2 may own r: whoever claims it first"),
            ('singleton_per = { group = "tp", rank = -2 }', 2, "it is rank -2 (counted from the end)"),
            ('singleton_per = { group = "tp", rank = 9 }', 2, "who owns it cannot be told: rank 9 is outside"),
            ('singleton_per = { group = "xx", rank = 0 }', 2, "who owns it cannot be told: unknown axis 'xx'"),
            ("owner = {}", 2, "rank 2 owns r, as every rank does"),
            ("owner = { local_rank = 0 }", 3, "(its local_rank is 1); ranks 0, 2 do"),
            ("owner = { dp = 0 }\nonce_per = ['tp']", 3, "exactly one owner is promised for tp = 1: rank 1 owns it"),
            ("owner = { dp = 0 }\nwith = 's'", 3, "it must have the owners of s, rank 0, but is owned by ranks 0, 1"),
        ],
    )
    def test_every_kind_of_owner(self, owner: str, rank: int, sentence: str) -> None:
        other = 'singleton_per = { group = "world", rank = 0 }'
        text = f'[axes]\ndp = 2\ntp = 2\n[hosts.ranks]\na = "0-1"\nb = "2-3"\n[resources.r]\n{owner}\n'
        Path("t.toml").write_text(f"{text}[resources.s]\n{other}\n", encoding="utf-8")
        found = invoke("explain", "r", "--rank", str(rank), "--file", "t.toml")

        assert found.exit_code == 0
        assert sentence in found.output

    def test_a_rank_on_no_host_and_on_two(self) -> None:
        rest = "[resources.r]\nsingleton_per = { group = 'host' }\nbind = 'tcp://*:{5000 + local_rank}'\n"
        Path("t.toml").write_text(f"[axes]\ntp = 3\n[hosts.ranks]\na = '0'\nb = '0, 1'\n{rest}", encoding="utf-8")

        nowhere = invoke("explain", "r", "--rank", "2", "--file", "t.toml").output
        twice = invoke("explain", "r", "--rank", "0", "--file", "t.toml").output
        assert nowhere.startswith("rank 2 of 3: tp 2; placed on no host\n")
        assert "rank 2 does not own r: it runs on no host" in nowhere
        assert twice.startswith("rank 0 of 3: tp 0; placed on hosts a, b\n")
        assert twice.count("rank 0 owns r: ") == 2

    def test_a_resource_without_a_rank(self) -> None:
        output = invoke("explain", "kv-events", "--file", "clean.toml").output

        assert "rank 0 owns it for ranks 0, 1, 4, 5 (pp and attn_tp vary; attn_dp = 0)\n" in output
        assert "rank 2 owns it for ranks 2, 3, 6, 7 (pp and attn_tp vary; attn_dp = 1)\n" in output

    def test_the_file_comes_from_the_environment_or_the_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nothing = invoke("explain", "sampler", "--rank", "0")
        monkeypatch.setenv("RANKBIND_TOPOLOGY", "clean.toml")
        variable = invoke("explain", "sampler", "--rank", "0")
        monkeypatch.delenv("RANKBIND_TOPOLOGY")
        Path("clean.toml").rename("topology.toml")
        default = invoke("explain", "sampler", "--rank", "0")

        assert nothing.exit_code == 2
        assert "there is no topology.toml" in nothing.output
        assert (variable.exit_code, default.exit_code) == (0, 0)
        assert variable.output.replace("clean.toml", "topology.toml") == default.output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("kv-event", "--rank", "0", "--file", "clean.toml"), "did you mean kv-events?"),
            (("kv-events", "--rank", "8", "--file", "clean.toml"), "there is no rank 8: clean.toml has ranks 0..7"),
            (("kv-events", "--rank", "-1", "--file", "clean.toml"), "Invalid value for '--rank'"),
            (("kv-events", "--rank", "0", "--file", "broken.toml"), "error[RB901]"),
            (("kv-events", "--rank", "0", "--file", "gone.toml"), "error[RB901]: cannot read gone.toml"),
            (("--rank", "0"), "name the resource"),
        ],
    )
    def test_what_cannot_be_explained(self, arguments: tuple[str, ...], message: str) -> None:
        found = invoke("explain", *arguments)

        assert found.exit_code == 2
        assert message in found.output
