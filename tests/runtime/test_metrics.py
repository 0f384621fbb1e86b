"""The same claims for Prometheus: what is exposed, and that it never costs a scrape."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankbind
from rankbind import Topology
from rankbind.errors import ClaimedError, PortError
from rankbind.exporter import NAME, exporter
from rankbind.identity import reset
from rankbind.runtime import registry
from rankbind.runtime.claim import claim
from rankbind.runtime.metrics import RankbindCollector, serving

from ..support.claimants import claimant

prometheus_client = pytest.importorskip("prometheus_client")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKBIND_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("RANKBIND_DEPLOYMENT", raising=False)
    return tmp_path / "run"


@pytest.fixture
def _no_identity() -> Iterator[None]:
    reset()
    yield
    rankbind.release_all()
    reset()


def samples(deployment: str | None = None) -> dict[tuple[str, str, str], float]:
    """Value by name, group and state."""
    return {
        (sample.name, sample.labels.get("group", ""), sample.labels.get("state", "")): sample.value
        for metric in RankbindCollector(deployment).collect()
        for sample in metric.samples
    }


def scrape(endpoint: str) -> str:
    port = endpoint.rpartition(":")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def test_what_is_exposed(folder: Path) -> None:
    with claimant(folder) as one, claimant(folder) as other:
        token = one.claim("kv-events", group={"pp": 0, "attn_dp": 1}, rank=3)
        other.claim("kv-events", group={"pp": 0, "attn_dp": 2})
        other.kill()
        found = samples()

        alive, dead = "pp=0,attn_dp=1", "pp=0,attn_dp=2"
        assert found["rankbind_registry_readable", "", ""] == 1
        assert found["rankbind_claim_held", alive, "alive"] == 1
        assert found["rankbind_claim_held", dead, "dead"] == 0
        assert found["rankbind_claim_token", alive, ""] == token
        assert found["rankbind_claim_takeovers_total", alive, ""] == 0
        (entry, _) = registry.entries()
        assert entry.record is not None
        assert found["rankbind_claim_since_seconds", alive, ""] == entry.record.since
        one.pause()
        assert samples()["rankbind_claim_held", alive, "paused"] == 1


def test_a_takeover_is_counted(folder: Path) -> None:
    with claimant(folder) as one:
        one.claim("kv-events")
        one.kill()
    with claim("kv-events"):
        assert samples()["rankbind_claim_takeovers_total", "", ""] == 1


def test_it_agrees_with_the_format_of_prometheus(folder: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    own = prometheus_client.CollectorRegistry()
    own.register(RankbindCollector())
    with claim("kv-events", group={"attn_dp": 1}, rank=3, deployment='a "b"\\'):
        text = prometheus_client.generate_latest(own).decode()
    (held,) = [each for each in text_string_to_metric_families(text) if each.name == "rankbind_claim_held"]

    (sample,) = held.samples
    assert sample.labels["deployment"] == 'a "b"\\'
    assert (sample.labels["rank"], sample.labels["group"], sample.labels["state"]) == ("3", "attn_dp=1", "alive")


def test_a_directory_that_cannot_be_used_does_not_cost_the_scrape(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)

    assert samples() == {("rankbind_registry_readable", "", ""): 0}


def test_registering_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entries", lambda: pytest.fail("looked"))

    prometheus_client.CollectorRegistry().register(RankbindCollector())


def test_a_record_that_was_copied_is_one_series(folder: Path) -> None:
    with claim("kv-events"):
        (file,) = (folder / "claims").glob("*.json")
        (file.parent / "copy.json").write_bytes(file.read_bytes())
        (file.parent / "copy.lock").touch()
        own = prometheus_client.CollectorRegistry()
        own.register(RankbindCollector())

        assert prometheus_client.generate_latest(own).decode().count("rankbind_claim_token{") == 1


def test_only_of_one_deployment() -> None:
    with claim("kv-events", group={"dp": 0}, deployment="a"), claim("kv-events", group={"dp": 1}, deployment="b"):
        groups = {group for _, group, _ in samples("b")}

        assert groups == {"", "dp=1"}


def test_it_is_served_on_a_port_that_the_kernel_picks_and_gone_afterwards() -> None:
    with claim("kv-events"), serving(address="127.0.0.1") as endpoint:
        assert endpoint.startswith("tcp://127.0.0.1:")
        assert "rankbind_claim_held{" in scrape(endpoint)
    with pytest.raises(OSError, match=r"refused"):
        scrape(endpoint)


def test_importing_it_needs_no_prometheus() -> None:
    script = "import sys, rankbind.exporter, rankbind.runtime.metrics; print('prometheus_client' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert found.stdout == "False\n"


@pytest.mark.usefixtures("_no_identity")
class TestExporter:
    def test_it_is_claimed_and_its_endpoint_published(self) -> None:
        rankbind.init(Topology({"dp": 2}, hosts=1), rank=0)
        endpoint = exporter(address="127.0.0.1")
        (entry,) = registry.entries()

        assert endpoint is not None
        assert entry.key.resource == NAME
        assert entry.record is not None
        assert entry.record.endpoints == {"bind": endpoint}
        assert f'resource="{NAME}"' in scrape(endpoint)
        assert exporter(address="127.0.0.1") is endpoint
        exporter.release()
        assert registry.entries()[0].state == "released"

    def test_the_other_ranks_of_the_host_serve_nothing(self) -> None:
        rankbind.init(Topology({"dp": 2}, hosts=1), rank=1)

        assert exporter() is None
        assert registry.entries() == ()

    def test_a_second_process_of_that_rank_is_told(self, folder: Path) -> None:
        rankbind.init(Topology({"dp": 2}, hosts=1), rank=0)
        with claimant(folder) as other:
            other.claim(NAME, group={"node_rank": 0}, rank=0)

            with pytest.raises(ClaimedError, match=f"pid {other.pid}"):
                exporter(address="127.0.0.1")


def test_no_resolver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer would hold the engine up for seconds."""

    def asked(*_: object) -> str:
        raise AssertionError("a name was looked up")

    for name in ("getfqdn", "gethostbyaddr", "gethostbyname", "getnameinfo"):
        monkeypatch.setattr(socket, name, asked)
    with serving(address="127.0.0.1") as endpoint:
        assert endpoint.startswith("tcp://127.0.0.1:")


def test_a_port_that_is_taken_is_said_to_be_whose() -> None:
    with serving(address="127.0.0.1") as endpoint:
        port = int(endpoint.rpartition(":")[2])
        with pytest.raises(PortError, match=f"in use by pid {os.getpid()} "), serving(port, "127.0.0.1"):
            pass
