"""What of a launch is taken on this host already, and by whom."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from rankbind_sglang import taken

from rankbind.check.plan import Plan
from rankbind.config import parse
from rankbind.finding import Finding, Level

from ...support.claimants import Claimant
from ...support.holder import holder
from ...support.sglang import free_ports


def found(resources: str, node: int = 0, hosts: int = 1) -> list[Finding]:
    text = f"[axes]\npp = 2\n[hosts]\ncount = {hosts}\n{resources}"
    return list(taken.findings(Plan(parse(text)), node))


def resource(bind: str, name: str = "kv-events", **more: str) -> str:
    given = {"bind": f'"{bind}"', "owner": "{ pp = 0 }"} | more
    return f"[resources.{name}]\n" + "".join(f"{key.rstrip('_')} = {value}\n" for key, value in given.items())


@pytest.fixture
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "claims"))
    return tmp_path / "claims"


def test_a_port_that_another_program_listens_on(claims: Path) -> None:
    port = free_ports()
    with holder(socket.AF_INET, "127.0.0.1", port) as pid:
        (one,) = found(resource(f"tcp://*:{port}"))
    assert (one.code, one.level) == ("RB501", Level.ERROR)
    assert one.message.startswith(
        f"kv-events: rank 0 binds tcp://*:{port}, which is in use on this host by pid {pid} ({sys.executable} "
    )
    assert one.fix == f"`kill {pid}` ends it; or start this server on other ports"
    assert one.facts["pid"] == pid
    assert one.facts["deployment"] is None
    assert one.labels[0].span.line == 6
    assert found(resource(f"tcp://*:{port}")) == [], "it is gone"


@pytest.mark.parametrize(
    ("held", "bind", "meets"),
    [
        ("127.0.0.2", "tcp://127.0.0.1:{port}", False),
        ("127.0.0.1", "tcp://localhost:{port}", True),
        ("0.0.0.0", "tcp://127.0.0.1:{port}", True),
        ("0.0.0.0", "tcp://127.0.0.1:{port}-{next}", False),
        ("0.0.0.0", "tcp://127.0.0.1:0", False),
        ("0.0.0.0", "tcp://no.such.host.invalid:{port}", False),
        ("0.0.0.0", "tcp://192.0.2.1:{port}", False),
    ],
)
def test_what_meets(held: str, bind: str, meets: bool, claims: Path) -> None:
    port = free_ports()
    with holder(socket.AF_INET, held, port):
        assert bool(found(resource(bind.format(port=port, next=port + 1)))) is meets


def test_ipv6(claims: Path) -> None:
    port = free_ports()
    with holder(socket.AF_INET, "127.0.0.1", port) as pid:
        (one,) = found(resource(f"tcp://*:{port}", ipv6="true"))
        assert one.facts["pid"] == pid
        assert found(resource(f"tcp://*:{port}", ipv6="true", v6only="true")) == []


def test_a_socket_file_and_a_name(claims: Path, tmp_path: Path) -> None:
    path, name = tmp_path / "s", f"rankbind-test-{os.getpid()}"
    assert found(resource(f"ipc://{path}") + resource(f"ipc://@{name}", "other")) == []
    with holder(socket.AF_UNIX, str(path)) as one, holder(socket.AF_UNIX, f"\0{name}") as other:
        first, second = found(resource(f"ipc://{path}") + resource(f"ipc://@{name}", "other"))
    assert (first.code, first.facts["pid"]) == ("RB502", one)
    assert (second.code, second.facts["pid"]) == ("RB501", other)
    assert path.exists()
    assert found(resource(f"ipc://{path}")) == [], "the socket of one who is gone"
    path.unlink()
    path.write_text("a temporary file that keeps the name")
    assert found(resource(f"ipc://{path}")) == []


def test_a_probe_is_a_warning_and_a_process_is_named(claims: Path) -> None:
    port = free_ports()
    text = f'[resources.rpc]\nowner = {{ pp = 0 }}\nprobe = "tcp://127.0.0.1:{port}"\nprocess = "tokenizer manager"\n'
    with holder(socket.AF_INET, "127.0.0.1", port):
        (one,) = found(text)
    assert (one.code, one.level) == ("RB503", Level.WARNING)
    assert one.message.startswith(
        f"rpc: the tokenizer manager has to find tcp://127.0.0.1:{port} free, which is in use on this host by pid "
    )


def test_only_what_this_host_binds(claims: Path) -> None:
    port = free_ports()
    with holder(socket.AF_INET, "127.0.0.1", port):
        text = resource(f"tcp://*:{port}", owner="{ pp = 1 }")
        assert found(text, node=0, hosts=2) == []
        assert len(found(text, node=1, hosts=2)) == 1


def test_what_this_process_has_itself_is_in_nobodys_way(claims: Path) -> None:
    port = free_ports()
    with socket.create_server(("127.0.0.1", port)):
        assert found(resource(f"tcp://127.0.0.1:{port}")) == []


def test_a_claim_before_its_holder_has_bound(claims: Path) -> None:
    port = free_ports()
    claimant = Claimant(claims)
    try:
        told = {"endpoints": {"bind": f"tcp://*:{port}"}, "rank": 3, "deployment": "sglang-30000-5557"}
        claimant.claim("kv-events", **told)
        (one,) = found(resource(f"tcp://*:{port}"))
        assert f"in use on this host by rank 3, pid {claimant.pid} on {socket.gethostname()}, for " in one.message
        assert "for sglang-30000-5557/kv-events, since " in one.message
        assert one.facts["deployment"] == "sglang-30000-5557"
        assert one.fix == f"`kill {claimant.pid}` ends it; or start this server on other ports"
        claimant.pause()
        assert len(found(resource(f"tcp://*:{port}"))) == 1, "who is stopped keeps what it has"
        os.kill(claimant.pid, signal.SIGCONT)
        claimant.kill()
        assert found(resource(f"tcp://*:{port}")) == []
    finally:
        claimant.close()


def test_one_address_is_told_once(claims: Path) -> None:
    port = free_ports()
    with holder(socket.AF_INET, "127.0.0.1", port):
        assert len(found(resource(f"tcp://*:{port}", owner="{}"))) == 1


def test_a_runtime_directory_that_cannot_be_used_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "open"))
    port = free_ports()
    with holder(socket.AF_INET, "127.0.0.1", port):
        assert len(found(resource(f"tcp://*:{port}"))) == 1
