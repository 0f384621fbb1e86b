"""`rankbind status`, `endpoints` and `release` as they are used, on claims in real processes."""

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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankbind.cli import cli
from rankbind.runtime import dial, registry

from .support.claimants import Claimant, claimant
from .test_cli import on_terminal


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "RANKBIND_DEPLOYMENT", "RANKBIND_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(dial, "address", lambda: "10.1.2.3")
    return tmp_path / "run"


@pytest.fixture
def one(folder: Path) -> Iterator[Claimant]:
    with claimant(folder) as made:
        made.claim(
            "kv-events",
            group={"attn_dp": 0},
            rank=0,
            endpoints={"bind": "tcp://*:5557", "replay": "tcp://127.0.0.1:5657"},
        )
        yield made


@pytest.fixture
def two(folder: Path) -> Iterator[Claimant]:
    with claimant(folder) as made:
        made.claim("kv-events", group={"attn_dp": 1}, rank=4, endpoints={"bind": "tcp://*:5558"})
        yield made


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False)


def running(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rankbind", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


class TestStatus:
    def test_all_is_well(self, one: Claimant) -> None:
        found = invoke("status")

        heading, line = found.stdout.splitlines()
        assert heading.split()[:3] == ["resource", "state", "rank"]
        assert line.split()[:5] == ["default/kv-events[attn_dp=0]", "alive", "0", "-", str(one.pid)]
        assert "bind=tcp://*:5557,replay=tcp://127.0.0.1:5657" in line
        assert re.match(r"1 claim in \S+/run \(from RANKBIND_DIR\): 1 alive\n", found.stderr)
        assert found.exit_code == 0

    @pytest.mark.parametrize("end", [Claimant.kill, Claimant.pause])
    def test_something_is_not(self, one: Claimant, two: Claimant, end: Callable[[Claimant], None]) -> None:
        end(two)

        assert invoke("status").exit_code == 1
        assert invoke("status", "default/kv-events[attn_dp=0]").exit_code == 0

    def test_as_json_both_ways(self, one: Claimant) -> None:
        found = invoke("status", "--json")

        assert json.loads(found.stdout)["claims"][0]["record"]["endpoints"]["bind"] == "tcp://*:5557"
        assert invoke("status", "--format", "json").stdout == found.stdout
        assert invoke("status", "--format", "text").stdout == invoke("status").stdout

    def test_only_what_is_asked_for(self, one: Claimant, folder: Path) -> None:
        with claimant(folder) as other:
            other.claim("sampler", deployment="prod")
            assert len(invoke("status").stdout.splitlines()) == 3
            for names in (["sampler"], ["prod/sampler"], ["--deployment", "prod"], ["sampler", "--deployment", "prod"]):
                assert [line.split()[0] for line in invoke("status", *names).stdout.splitlines()[1:]] == [
                    "prod/sampler"
                ]

    def test_of_a_name_there_is_not(self, one: Claimant) -> None:
        found = invoke("status", "kv-event")

        assert (found.exit_code, found.stdout) == (1, "")
        assert "no kv-event in" in found.stderr
        assert "did you mean kv-events?" in found.stderr

    def test_where_there_is_nothing(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "elsewhere", lambda path: (Path("/tmp/rankbind-7"),))
        found = invoke("status")

        assert (found.exit_code, found.stdout) == (0, "")
        assert f"nothing is claimed in {folder} (from RANKBIND_DIR)" in found.stderr
        assert "RANKBIND_DIR=/tmp/rankbind-7 rankbind status" in found.stderr
        assert json.loads(invoke("status", "--json").stdout)["claims"] == []
        assert not folder.exists()

    def test_where_it_cannot_be_looked(self, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o777)
        for command in (["status"], ["endpoints", "kv-events"], ["release"], ["status", "--watch"]):
            found = invoke(*command)

            assert found.exit_code != 0
            assert f"the runtime directory {folder} (from RANKBIND_DIR) cannot be used" in found.stderr
            assert "other users can write it" in found.stderr

    def test_its_status_is_then_2(self, folder: Path) -> None:
        found = subprocess.run(
            [sys.executable, "-m", "rankbind", "status"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "RANKBIND_DIR": "here"},
            check=False,
        )

        assert found.returncode == 2
        assert "not an absolute path" in found.stderr

    def test_on_a_terminal(self, one: Claimant) -> None:
        found = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("status"))

        assert "1 claim in" in found
        assert f"rank 0, pid {one.pid} on " in found
        assert "bind tcp://*:5557, replay tcp://127.0.0.1:5657" in found
        assert all(len(line) <= 80 for line in found.splitlines())

    def test_it_imports_neither_rich_nor_pydantic_nor_what_claims_need(self, one: Claimant) -> None:
        script = (
            "import sys; from rankbind.cli import cli; cli.main(['status'], standalone_mode=False);"
            "heavy = {'pydantic', 'rich', 'torch', 'zmq', 'yaml', 'tree_sitter', 'filelock', 'prometheus_client'};"
            "print(sorted(heavy & set(sys.modules)))"
        )
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

        assert found.stdout.splitlines()[-1] == "[]"


class TestWatch:
    def test_in_a_pipe_it_tells_what_changes(self, one: Claimant, two: Claimant) -> None:
        with running("status", "--watch", "0.1") as watch:
            assert watch.stdout is not None
            assert watch.stderr is not None
            assert "2 claims in" in watch.stderr.readline()
            lines = [watch.stdout.readline() for _ in range(2)]
            assert all(re.match(r"\d\d:\d\d:\d\d default/kv-events\[attn_dp=\d\]: alive, rank", line) for line in lines)
            two.kill()
            assert "[attn_dp=1]: alive -> dead, rank 4, pid" in watch.stdout.readline()
            watch.send_signal(signal.SIGINT)

            output, errors = watch.communicate(timeout=60)
            assert (output, errors.strip()) == ("", "")
            assert watch.returncode == 130

    def test_as_json_it_is_one_object_a_line(self, one: Claimant) -> None:
        with running("status", "--watch", "0.1", "--json") as watch:
            assert watch.stdout is not None
            assert [claim["state"] for claim in json.loads(watch.stdout.readline())["claims"]] == ["alive"]
            one.kill()
            assert [claim["state"] for claim in json.loads(watch.stdout.readline())["claims"]] == ["dead"]
            watch.send_signal(signal.SIGINT)
            watch.communicate(timeout=60)

    @pytest.mark.parametrize("style", ["json", "text"])
    def test_nothing_is_said_while_nothing_changes(
        self, one: Claimant, style: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks = iter([None, None, None])

        def sleep(seconds: float) -> None:
            assert seconds == 2.0
            if next(looks, "over") == "over":
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(time, "sleep", sleep)
            found = invoke("status", "--watch", "--format", style)

        assert len(found.stdout.splitlines()) == 1

    def test_a_reader_who_goes_is_no_error(self, one: Claimant) -> None:
        with running("status", "--watch", "0.1") as watch:
            assert watch.stdout is not None
            assert watch.stderr is not None
            watch.stdout.readline()
            watch.stdout.close()
            one.kill()

            assert watch.wait(60) == 141
            assert "Traceback" not in watch.stderr.read()

    def test_on_a_terminal_it_is_drawn_again_in_place(self, one: Claimant) -> None:
        leader, follower = pty.openpty()
        watch = subprocess.Popen(
            [sys.executable, "-m", "rankbind", "status", "--watch", "0.1"],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"},
            start_new_session=True,
        )
        os.close(follower)
        try:
            alive = _until(leader, "alive since")
            one.kill()
            dead = _until(leader, "dead, held since")
            watch.send_signal(signal.SIGINT)
            rest = _until(leader, None)
        finally:
            watch.kill()
            os.close(leader)

        assert re.search(r"\d\d:\d\d:\d\d 1 claim in", alive)
        assert "\x1b[1A" in dead
        assert watch.wait(60) == 130
        assert "Traceback" not in rest
        assert "Aborted" not in rest

    @pytest.mark.parametrize("seconds", ["kv-events", "0", "nan", "1e9"])
    def test_seconds_that_are_none(self, seconds: str) -> None:
        found = invoke("status", "--watch", seconds)

        assert found.exit_code == 2
        assert "seconds" in found.stderr

    def test_a_name_behind_it_is_explained(self) -> None:
        assert "a name comes first: status kv-events --watch" in invoke("status", "--watch", "kv-events").stderr


class TestEndpoints:
    def test_one_a_line_in_the_order_of_the_groups(self, two: Claimant, one: Claimant) -> None:
        found = invoke("endpoints", "kv-events")

        assert found.stdout == "tcp://10.1.2.3:5557\ntcp://10.1.2.3:5558\n"
        assert (found.exit_code, found.stderr) == (0, "")

    def test_with_the_host_that_is_said(self, one: Claimant) -> None:
        assert invoke("endpoints", "kv-events", "--host", "node-a").stdout == "tcp://node-a:5557\n"

    def test_in_another_role(self, one: Claimant, two: Claimant) -> None:
        found = invoke("endpoints", "kv-events", "--role", "replay")

        assert found.stdout == "tcp://127.0.0.1:5657\n"
        assert "from this host alone" in found.stderr
        assert "[attn_dp=1]: left out: it has no replay: it has bind" in found.stderr

    def test_not_of_the_dead(self, one: Claimant, two: Claimant) -> None:
        one.kill()
        found = invoke("endpoints", "kv-events")

        assert found.stdout == "tcp://10.1.2.3:5558\n"
        assert "[attn_dp=0]: left out: its holder is dead" in found.stderr
        assert found.exit_code == 0

    def test_of_the_paused_with_a_word(self, one: Claimant) -> None:
        one.pause()
        found = invoke("endpoints", "kv-events")

        assert found.stdout == "tcp://10.1.2.3:5557\n"
        assert f"its holder (pid {one.pid}) is paused" in found.stderr

    def test_none_at_all(self, one: Claimant) -> None:
        one.kill()
        found = invoke("endpoints", "kv-events")

        assert (found.exit_code, found.stdout) == (1, "")
        assert "no endpoint of kv-events can be dialled" in found.stderr

    def test_of_a_name_there_is_not(self, one: Claimant) -> None:
        found = invoke("endpoints", "kv-evnts")

        assert (found.exit_code, found.stdout) == (1, "")
        assert "did you mean kv-events?" in found.stderr

    def test_what_the_kernel_chose_and_never_port_0(self, folder: Path) -> None:
        with claimant(folder) as made:
            made.claim("kv-events", endpoints={"bind": "tcp://*:0"})
            assert invoke("endpoints", "kv-events").exit_code == 1
            made.tell(update={"endpoints": {"bind": "tcp://*:41234"}})
            assert invoke("endpoints", "kv-events").stdout == "tcp://10.1.2.3:41234\n"

    def test_two_deployments_are_not_mixed(self, one: Claimant, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with claimant(folder) as other:
            other.claim("kv-events", deployment="prod", endpoints={"bind": "tcp://*:6557"})
            found = invoke("endpoints", "kv-events")
            assert (found.exit_code, found.stdout) == (2, "")
            assert "in the deployments default, prod" in found.stderr
            assert invoke("endpoints", "kv-events", "--deployment", "prod").stdout == "tcp://10.1.2.3:6557\n"
            monkeypatch.setenv("RANKBIND_DEPLOYMENT", "default")
            assert invoke("endpoints", "kv-events").stdout == "tcp://10.1.2.3:5557\n"

    def test_as_json(self, one: Claimant, two: Claimant) -> None:
        two.kill()
        found = json.loads(invoke("endpoints", "kv-events", "--json").stdout)["endpoints"]

        assert [(each["group"], each["endpoint"], each["state"]) for each in found] == [
            ({"attn_dp": 0}, "tcp://10.1.2.3:5557", "alive"),
            ({"attn_dp": 1}, None, "dead"),
        ]
        assert found[0]["token"] > 0


class TestRelease:
    def test_of_the_dead_and_of_nobody_else(self, one: Claimant, two: Claimant) -> None:
        two.kill()
        found = invoke("release")

        assert (
            found.stdout == f"default/kv-events[attn_dp=1]: released (dead: rank 4, pid {two.pid} on {os.uname()[1]})\n"
        )
        assert found.exit_code == 0
        assert [entry.state for entry in registry.entries()] == ["alive", "released"]
        assert invoke("release").stdout.startswith("nothing to release: 2 claims in ")

    def test_a_dry_run(self, one: Claimant) -> None:
        one.kill()

        assert "would be released" in invoke("release", "--dry-run").stdout
        assert registry.entries()[0].state == "dead"

    def test_one_that_is_named_and_lives(self, one: Claimant) -> None:
        found = invoke("release", "kv-events")

        assert found.exit_code == 1
        assert f"not released: it is held by pid {one.pid}: end it first: kill {one.pid}" in found.stdout

    def test_what_a_child_keeps(self, one: Claimant) -> None:
        child = one.leave("default/kv-events[attn_dp=0]")
        one.kill()
        found = invoke("release")

        assert found.exit_code == 1
        assert f"end that first: kill {child}" in found.stdout

    def test_of_a_name_there_is_not(self, one: Claimant) -> None:
        assert invoke("release", "sampler").exit_code == 1
        assert invoke("release", "--deployment", "prod").exit_code == 0


def test_a_thousand_claims_cost_less_than_half_a_second(folder: Path) -> None:
    """On a busy machine CPU time rises, too; benchmarks/status.py measures it in peace, and beside python -c pass."""
    with claimant(folder) as many:
        for index in range(1000):
            many.claim("kv-events", group={"attn_dp": index}, endpoints={"bind": f"tcp://*:{20000 + index}"})
        best = min(_cpu("status") for _ in range(3))

    assert best < 0.5


def _cpu(*arguments: str) -> float:
    with Path(os.devnull).open("w") as sink:
        process = subprocess.Popen([sys.executable, "-m", "rankbind", *arguments], stdout=sink, stderr=sink)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def _until(terminal: int, text: str | None) -> str:
    """What is written to the terminal, until `text` is (None: until nobody can write any more)."""
    written = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 1)
        try:
            data = os.read(terminal, 65536) if ready else b""
        except OSError:
            break
        written += data
        if text is not None and text.encode() in written:
            break
    else:
        pytest.fail(f"never saw {text!r} in {written!r}")
    return written.decode()
