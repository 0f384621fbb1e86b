"""What the launcher does with a launch that would fail: says nothing, says so, or stops."""

from __future__ import annotations

import gc
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from rankbind_sglang import PREFLIGHT, SWITCH, install, launch, preflight
from rankbind_sglang.launch import reader

from rankbind.launch.command import Command
from rankbind.launch.draft import Draft

from ...support.fake_sglang import FakeSGLang
from ...support.holder import holder
from ...support.sglang import free_ports

LAUNCHER = "/usr/lib/python3/site-packages/sglang/launch_server.py"
ARGUMENTS = ("--model-path", "m", "--pp-size", "2")
CLEAN: dict[str, int | Sequence[int]] = {"pp": 0}
TWICE: dict[str, int | Sequence[int]] = {}


class StandIn:
    """A reader of a launch with two stages and one resource."""

    versions = ("0.5.13", "0.5.14")

    def __init__(self) -> None:
        self.owner: Mapping[str, int | Sequence[int]] = CLEAN
        self.bind = "tcp://*:0"
        self.asked: list[tuple[Command, str | None]] = []
        self.refuses = ""
        self.fails: BaseException | None = None

    def starts(self, words: Sequence[str]) -> bool:
        return "generate" not in words

    def read(self, commands: Sequence[Command], version: str | None) -> Sequence[Draft]:
        (command,) = commands
        self.asked.append((command, version))
        if self.fails is not None:
            raise self.fails
        draft = Draft("SGLang", commands)
        draft.axis("pp", 2, command.words[-1])
        draft.resource("kv-events", command.words[-2], owner=self.owner, bind=self.bind)
        if self.refuses:
            draft.refuse("RB605", self.refuses, command.words[-1])
        return [draft]


class Launcher:
    """This process, as one that SGLang starts a server with; `said` is what it logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self._monkeypatch, self._caplog = monkeypatch, caplog
        self.reader = StandIn()
        monkeypatch.setattr(launch, "ENGINE", self.reader)
        self.command(LAUNCHER, *ARGUMENTS)

    def command(self, *words: str) -> None:
        self._monkeypatch.setattr(sys, "argv", list(words))

    def release(self, release: str) -> None:
        self._monkeypatch.setattr(sys.modules["sglang.version"], "__version__", release)

    @property
    def said(self) -> list[tuple[int, str]]:
        return [(record.levelno, record.getMessage()) for record in self._caplog.records]

    @property
    def line(self) -> str:
        ((_, line),) = self.said
        return line


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> Launcher:
    caplog.set_level(logging.INFO, "rankbind_sglang")
    for name in (PREFLIGHT, SWITCH, "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "claims"))
    FakeSGLang(monkeypatch).leave_the_scheduler()
    return Launcher(monkeypatch, caplog)


@pytest.fixture
def set_mode(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda mode: monkeypatch.setenv(PREFLIGHT, mode)


def a_broken(launcher: Launcher) -> int:
    """Two stages on one port, which is it."""
    port = free_ports()
    launcher.reader.owner, launcher.reader.bind = TWICE, f"tcp://*:{port}"
    return port


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_a_clean_launch_goes_on(launcher: Launcher, mode: str, set_mode: Callable[[str], None]) -> None:
    set_mode(mode)
    install()
    ((level, line),) = launcher.said
    assert level == logging.INFO
    assert line.endswith(": nothing to say")


def test_a_launch_that_would_fail_goes_on_with_a_warning(launcher: Launcher) -> None:
    port = a_broken(launcher)
    install()
    ((level, text),) = launcher.said
    first, *report = text.splitlines()
    assert level == logging.WARNING
    assert first.startswith("rankbind-sglang has checked this launch in ")
    assert first.endswith(" ms, and lets it go on (RANKBIND_PREFLIGHT=error would stop it):")
    assert report[0] == (
        f"error[RB201]: kv-events: ranks 0, 1 bind tcp://*:{port} on host 0; neither the owner nor the address tells "
        "pp apart"
    )
    assert "1 | python -m sglang.launch_server --model-path m --pp-size 2" in report
    assert report[-1] == "1 error in 1 file"
    assert "\x1b" not in text


def test_it_is_stopped_where_that_is_wanted(launcher: Launcher, set_mode: Callable[[str], None]) -> None:
    set_mode("error")
    a_broken(launcher)
    with pytest.raises(SystemExit) as stopped:
        install()
    assert stopped.value.code == 1
    ((level, text),) = launcher.said
    assert level == logging.ERROR
    assert " ms, and stops it (RANKBIND_PREFLIGHT=error):\nerror[RB201]: " in text


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_a_note_is_not_said(launcher: Launcher, mode: str, set_mode: Callable[[str], None]) -> None:
    set_mode(mode)
    # A port that outgoing connections may take, by the kernel's default: a note.
    launcher.reader.bind = "tcp://*:45000"
    install()
    assert launcher.line.endswith(": nothing to say")


def test_a_port_that_is_taken_stops_it_as_well(launcher: Launcher, set_mode: Callable[[str], None]) -> None:
    set_mode("error")
    port = free_ports()
    launcher.reader.bind = f"tcp://*:{port}"
    with holder(socket.AF_INET, "127.0.0.1", port) as pid, pytest.raises(SystemExit):
        install()
    assert f"error[RB501]: kv-events: rank 0 binds tcp://*:{port}, which is in use on this host by pid {pid} (" in (
        launcher.line
    )


def test_off_is_off(tmp_path: Path) -> None:
    """Not even an import."""
    code = (
        "import sys; before = set(sys.modules); import rankbind_sglang; "
        f"sys.argv = [{LAUNCHER!r}, '--pp', '2']; rankbind_sglang.install(); "
        "print(sorted(name for name in set(sys.modules) - before if name.startswith('rankbind')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={PREFLIGHT: "off", "PATH": ""}
    )
    assert done.stdout == "['rankbind_sglang']\n"
    assert done.stderr == ""


def test_a_mode_that_is_none_is_a_warning_and_taken_as_warn(
    launcher: Launcher, set_mode: Callable[[str], None]
) -> None:
    set_mode("fatal")
    a_broken(launcher)
    install()
    (_, first), (_, second) = launcher.said
    assert first.startswith("rankbind-sglang: RANKBIND_PREFLIGHT=fatal means nothing; it is off, warn or error")
    assert ", and lets it go on (" in second


@pytest.mark.parametrize("failure", [ValueError("no such flag"), SystemExit(2), AssertionError()])
def test_a_check_that_fails_itself_stops_nothing(
    launcher: Launcher, failure: BaseException, set_mode: Callable[[str], None]
) -> None:
    set_mode("error")
    launcher.reader.fails = failure
    install()
    ((level, line),) = launcher.said
    assert level == logging.WARNING
    assert line.startswith(f"rankbind-sglang cannot check this launch, and lets it go on: {type(failure).__name__}: ")


def test_what_the_reader_makes_no_sense_of_stops_nothing(launcher: Launcher, set_mode: Callable[[str], None]) -> None:
    set_mode("error")
    a_broken(launcher)
    launcher.reader.bind = "tcp://*:{5557 // pp}"
    install()
    assert launcher.line.startswith(
        "rankbind-sglang cannot check this launch, and lets it go on: LaunchError: RB904: resource kv-events: "
    )


@pytest.mark.parametrize("fails", [None, ValueError()])
@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_collected_meanwhile(launcher: Launcher, fails: Exception | None, enabled: bool) -> None:
    class Reader(StandIn):
        def read(self, commands: Sequence[Command], version: str | None) -> Sequence[Draft]:
            assert not gc.isenabled()
            return super().read(commands, version)

    launcher.reader.__class__ = Reader
    launcher.reader.fails = fails
    (gc.enable if enabled else gc.disable)()
    try:
        install()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert len(launcher.reader.asked) == 1


def test_a_reader_that_is_not_there_stops_nothing(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, set_mode: Callable[[str], None]
) -> None:
    set_mode("error")
    monkeypatch.setitem(sys.modules, "rankbind_sglang.launch", None)
    install()
    assert "lets it go on: ModuleNotFoundError: " in launcher.line


@pytest.mark.parametrize(
    ("release", "rules"),
    [("0.5.14", "0.5.14"), ("0.5.14.post1", "0.5.14"), ("0.5.13+cu129", "0.5.13"), ("0.5.15", None), ("nightly", None)],
)
def test_the_rules_are_those_of_the_running_release_or_none(
    launcher: Launcher, release: str, rules: str | None, set_mode: Callable[[str], None]
) -> None:
    set_mode("error")
    launcher.release(release)
    if rules is not None:
        install()
        assert [version for _, version in launcher.reader.asked] == [rules]
        return
    a_broken(launcher)
    install()
    assert launcher.reader.asked == []
    assert launcher.line.endswith(
        f"LaunchError: the rules of SGLang {release} are not known, only those of 0.5.13 to 0.5.14"
    )


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ((LAUNCHER, "--pp-size", "2"), ["python", "-m", "sglang.launch_server", "--pp-size", "2"]),
        (("/opt/bin/sglang", "serve", "--pp-size", "2"), ["sglang", "serve", "--pp-size", "2"]),
        ((LAUNCHER, "--help"), None),
        (("/opt/bin/sglang", "serve", "-h"), None),
        (("/home/me/launch_server.py",), None),
        (("train.py",), None),
        (("-c",), None),
        (("",), None),
        ((), None),
    ],
)
def test_which_processes_are_launches(words: tuple[str, ...], command: list[str] | None) -> None:
    assert preflight.launched(words) == command


@pytest.mark.parametrize("words", [("/opt/bin/sglang", "generate"), ("train.py",)])
def test_what_is_no_launch_is_left_alone(
    launcher: Launcher, words: tuple[str, ...], set_mode: Callable[[str], None]
) -> None:
    set_mode("error")
    a_broken(launcher)
    launcher.command(*words)
    install()
    assert launcher.reader.asked == []


def test_a_process_that_a_launcher_started_is_no_launch(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, set_mode: Callable[[str], None]
) -> None:
    set_mode("error")
    a_broken(launcher)
    monkeypatch.setattr("rankbind_sglang.parent_process", lambda: object())
    install()
    assert launcher.said == []


@pytest.mark.parametrize(("given", "told"), [(None, "on"), ("on", "on"), ("false", "on"), ("off", "off")])
def test_the_reader_is_told_whether_the_plugin_gates(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, given: str | None, told: str
) -> None:
    if given is not None:
        monkeypatch.setenv(SWITCH, given)
    monkeypatch.setenv("SGLANG_DP_RANK", "3")
    install()
    ((command, _),) = launcher.reader.asked
    assert command.variable(SWITCH) == told
    assert command.variable("SGLANG_DP_RANK") == "3"
    assert command.texts == ("python", "-m", "sglang.launch_server", *ARGUMENTS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((LAUNCHER, *ARGUMENTS), True),
        (("sglang", "serve", *ARGUMENTS), False),
        (("sglang", "serve", "--model-type", "llm", *ARGUMENTS), True),
        (("sglang", "serve", "--model-type=llm", *ARGUMENTS), True),
    ],
)
def test_options_that_may_be_those_of_another_kind_of_server_are_not_refused(
    launcher: Launcher, words: tuple[str, ...], said: bool
) -> None:
    launcher.command(*words)
    launcher.reader.refuses = "--num-gpus is unknown"
    install()
    assert ("error[RB605]: --num-gpus is unknown" in launcher.line) is said


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        (("--api-key", "hush"), "--api-key ****"),
        (("--api-key=hush",), "--api-key=****"),
        (("--api", "hush hush"), "--api ***********"),
        (("--api-key=hush hush",), "'--api-key=**********"),
        (("--admin-api-key", "hush"), "--admin-api-key ****"),
        (("--ssl-keyfile-password", "hush"), "--ssl-keyfile-password ****"),
    ],
)
def test_secrets_are_not_logged(launcher: Launcher, secret: tuple[str, ...], shown: str) -> None:
    launcher.command(LAUNCHER, *secret, *ARGUMENTS)
    a_broken(launcher)
    install()
    assert f"1 | python -m sglang.launch_server {shown} --model-path m --pp-size 2" in launcher.line.splitlines()
    assert "hush" not in launcher.line
    ((command, _),) = launcher.reader.asked
    assert secret[-1] in command.texts, "the reader sees it all"


def test_other_nodes_addresses_are_not_looked_at(launcher: Launcher) -> None:
    port = free_ports()

    def read(commands: Sequence[Command], version: str | None) -> Sequence[Draft]:
        draft = Draft("SGLang", commands)
        draft.axis("pp", 2)
        draft.host("head", [0])
        draft.host("other", [1])
        draft.resource("kv-events", owner={"pp": 0}, bind=f"tcp://*:{port}")
        return [draft]

    launcher.reader.read = read  # type: ignore[method-assign]
    with holder(socket.AF_INET, "127.0.0.1", port):
        for words in (("--node-rank", "1"), ("--node-rank=1",)):
            launcher.command(LAUNCHER, *ARGUMENTS, *words)
            install()
            assert launcher.said[-1][1].endswith(": nothing to say")
        launcher.command(LAUNCHER, *ARGUMENTS, "--node-rank", "0")
        install()
        assert "error[RB501]" in launcher.said[-1][1]


# With the reader of the package


EVENTS = ("--kv-events-config", '{"publisher": "zmq", "endpoint": "tcp://*:%d"}')


@pytest.fixture
def real(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    monkeypatch.setattr(launch, "ENGINE", reader.ENGINE)
    return launcher


@pytest.mark.parametrize("switch", ["on", "off"])
def test_what_the_plugin_mends_is_not_broken(
    real: Launcher, monkeypatch: pytest.MonkeyPatch, switch: str, set_mode: Callable[[str], None]
) -> None:
    set_mode("error")
    monkeypatch.setenv(SWITCH, switch)
    port = free_ports(3)
    words = ("--model-path", "m", "--port", str(port), "--pp-size", "2")
    real.command(LAUNCHER, *words, EVENTS[0], EVENTS[1] % (port + 1))
    if switch == "on":
        install()
        assert real.line.endswith(": nothing to say")
    else:
        with pytest.raises(SystemExit):
            install()
        (text,) = (text for _, text in real.said if "\n" in text)
        assert f"error[RB201]: kv-events: ranks 0, 1 bind tcp://*:{port + 1} on host 0" in text


@pytest.mark.parametrize(("node", "stopped"), [(0, True), (1, False)])
def test_each_node_looks_at_its_own_ports(
    real: Launcher, node: int, stopped: bool, set_mode: Callable[[str], None]
) -> None:
    set_mode("error")
    port = free_ports(10)
    words = ("--model-path", "m", "--port", str(port + 9), "--tp-size", "4", "--nnodes", "2")
    real.command(
        *(LAUNCHER, *words, "--dist-init-addr", f"192.0.2.7:{port}", "--node-rank", str(node)),
        *(EVENTS[0], EVENTS[1] % (port + 8)),
    )
    with holder(socket.AF_INET, "0.0.0.0", port + 8) as pid:
        if stopped:
            with pytest.raises(SystemExit):
                install()
            assert f"tcp://*:{port + 8}, which is in use on this host by pid {pid} (" in real.line
        else:
            install()
            assert real.line.endswith(": nothing to say")
    with holder(socket.AF_INET, "127.0.0.1", port + 9), pytest.raises(SystemExit):
        # The server, or the one that says in its place that a further node is well.
        install()


def test_it_takes_less_than_a_second(real: Launcher, tmp_path: Path) -> None:
    """Of a processor, in a process that has imported nothing of rankbind yet."""
    code = """
import sys, time
import argparse, json, logging, pydantic
begun = time.process_time()
from rankbind_sglang import preflight
preflight.check(sys.argv[1:], {})
print(time.process_time() - begun, *sorted({"torch", "zmq", "click", "rich", "tree_sitter"} & set(sys.modules)))
"""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "version.py").write_text("__version__ = '0.5.23'")
    words = ("python", "-m", "sglang.launch_server", "--model-path", "m", "--pp-size", "2", EVENTS[0], EVENTS[1] % 5557)

    def run() -> list[str]:
        return subprocess.run(
            [sys.executable, "-X", f"pycache_prefix={tmp_path}/cache", "-c", code, *words],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": "", "PYTHONPATH": str(tmp_path), "RANKBIND_DIR": str(tmp_path / "claims")},
        ).stdout.split()

    run()  # compiles, as an installation does
    spent, *heavy = run()
    assert heavy == []
    assert float(spent) < 1
