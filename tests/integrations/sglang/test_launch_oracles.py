"""Every row that SGLang's own functions answered, held against what the reader makes of the same command."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

import pytest
from rankbind_sglang.launch import ENGINE

from rankbind import check, config
from rankbind.check.clashes import clashes
from rankbind.check.plan import Binding, Dialled, Plan
from rankbind.endpoint import MAX_PORT, Endpoint
from rankbind.finding import Finding
from rankbind.launch.command import Command, typed
from rankbind.launch.draft import Draft
from rankbind.template import Template

from ...support.oracles import SGLANG_VERSIONS, load, option, owner_rows, recorded_collisions

Row = dict[str, Any]

ROWS = {row["id"]: row for version in SGLANG_VERSIONS for row in load(f"sglang-{version}")}
PORTS = load("sglang-portargs")
RULES = [row for row in load("kv-endpoint-rules") if row["engine"] == "sglang"]
BINDS = load("sglang-realbind")

UNLISTED = {
    "dpattn-tp8dp4": ("--tp-size 8 --dp-size 4 --enable-dp-attention", 1),
    "dpattn-tp8dp8": ("--tp-size 8 --dp-size 8 --enable-dp-attention", 1),
    "dpattn-tp8pp2dp4-n2": (
        "--tp-size 8 --pp-size 2 --dp-size 4 --enable-dp-attention --dist-init-addr 10.0.0.1:20000",
        2,
    ),
    "highport-http65400": ("--tp-size 4 --dp-size 2 --enable-dp-attention --port 65400", 1),
    "load-auto-dp4": ("--tp-size 8 --dp-size 4 --enable-dp-attention --load-publish-endpoint auto", 1),
}
"""The launches of sglang-realbind that sglang-VERSION.json does not list; each publishes on every wildcard."""

GATES = {
    "kv_publisher": "kv-events",
    "kv_cache_event_recording": "kv-event-recording",
    "kv_events_flag_in_metrics_collector": "kv-event-metrics",
    "stats_logging_rank": "stats-logging",
    "scheduler_metrics_enabled": "scheduler-metrics",
    "ipc_metrics_push": "metrics-push",
    "ipc_rank_zero": "ipc-rank-zero",
    "forward_pass_metrics_pub": "forward-pass-metrics",
    "reports_dp_token_imbalance_ratio": "dp-imbalance-ratio",
}
KV_EVENTS = ("kv-events", "kv-events-first", "kv-events-others")
ROLES = {"pub": "bind", "replay": "replay"}
NOT_FOR_ZMQ = ("tcp://*", "tcp://host.example", "ws://*:5557")
WILDCARDS = ("*", "0.0.0.0", "::", "[::]")


class Launch:
    """What comes of commands for every node, the public way."""

    def __init__(
        self, version: str, argv: list[str], nodes: int = 1, environment: dict[str, str] | None = None
    ) -> None:
        (self.draft,) = ENGINE.read([self._command(argv, node, environment) for node in range(nodes)], version)
        self.declaration = self.draft.declaration()
        assert config.parse(self.draft.to_toml()).job == self.declaration.job
        self.plan = Plan(self.declaration)
        self.topology = self.declaration.job.topology

    @staticmethod
    def _command(argv: list[str], node: int, environment: dict[str, str] | None) -> Command:
        words = [str(node) if word == "{node}" else word for word in argv]
        return typed(["python", "-m", "sglang.launch_server", "--model-path", "m", *words], environment)

    @cached_property
    def findings(self) -> list[Finding]:
        return [*self.draft.findings, *check.run(self.declaration, self.plan)]

    def codes(self, *codes: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.code in codes]

    def bound(self, *names: str, role: str = "bind") -> list[Binding]:
        return [b for b in self.plan.bindings if b.resource.name in names and b.address.role == role]

    def dialled(self, *names: str, role: str = "bind", outside: bool) -> list[Dialled]:
        found = [d for d in self.plan.dialled if d.resource.name in names and d.consumer.role == role]
        return [d for d in found if (d.rank is None) == outside]

    def owners(self, name: str) -> list[int]:
        """Those that are started."""
        return [rank for rank in self.plan.owners[name] if self.plan.nodes[rank]]

    @cached_property
    def outward(self) -> Mapping[str, Any]:
        """What is said of events that go to somebody outside of the launch; empty where they do not."""
        found = [finding for finding in self.codes("RB215") if finding.facts["resource"] == "kv-events"]
        return found[0].facts if found else {}

    def heard(self) -> list[Endpoint | None]:
        """Where those subscribe who are told by the HTTP server."""
        if self.outward.get("advertised"):
            template = Template(self.outward["advertised"])
            caches = self.topology.sizes["dp"] * self.topology.sizes["attn_dp"]
            return [Endpoint.parse(template.render({"index": index})) for index in range(caches)]
        return [d.endpoint for d in self.dialled("kv-events", outside=True)]

    def published(self) -> dict[int, dict[str, tuple[str, str]]]:
        """By rank and role, whether a KV event publisher binds or connects, and where."""
        found: dict[int, dict[str, tuple[str, str]]] = {rank: {} for rank in self.owners("kv-events")}
        for role, address in ROLES.items():
            for b in self.bound(*KV_EVENTS, role=address):
                assert role not in found[b.rank]
                found[b.rank][role] = "bind", b.text
        for d in self.dialled("kv-events", outside=False):
            assert d.rank is not None
            found[d.rank]["pub"] = "connect", str(d.endpoint)
        if self.outward:
            template = Template(self.outward["endpoint"])
            for rank, roles in found.items():
                assert "pub" not in roles
                roles["pub"] = "connect", template.render(self.plan.job.variables(rank))
        return found


def metrics(version: str) -> list[str]:
    """As the oracle evaluated its gates."""
    return ["--enable-metrics", *(["--enable-forward-pass-metrics"] if version != "0.5.10" else [])]


@cache
def launch(name: str) -> Launch:
    row = ROWS[name]
    return Launch(row["version"], [*row["argv"], *metrics(row["version"])], row["nnodes"])


every = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
published = pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if "kv_publishers" in row], ids=lambda row: row["id"]
)


def test_no_row_is_left_out() -> None:
    assert (len(ROWS), len(PORTS), len(RULES), len(BINDS)) == (133, 135, 120, 74)
    assert {row["engine"] for row in ROWS.values()} == {"sglang"}
    assert {row["id"] for row in BINDS} - ROWS.keys() == {
        f"sglang-{version}-{shape}"
        for version in ("0.5.14", "0.5.15", "0.5.23")
        for shape in UNLISTED
        if (version, shape) in {("0.5.15", "highport-http65400"), ("0.5.23", "highport-http65400")}
        or shape.startswith("dpattn")
        or (version, shape) == ("0.5.23", "load-auto-dp4")
    } - {"sglang-0.5.23-dpattn-tp8dp8"}


@every
def test_ranks(row: Row) -> None:
    found = launch(row["id"])
    sizes = found.topology.sizes
    resolved = row["resolved"]
    replicas = resolved["num_dp_ranks"] // resolved["attn_dp"]
    assert sizes == sizes | {
        "dp": replicas,
        "pp": resolved["pp"],
        "tp": resolved["tp"],
        "attn_dp": resolved["attn_dp"],
        "attn_cp": resolved["attn_cp"],
        "moe_ep": resolved["ep"],
        "moe_dp": resolved["moe_dp"],
    }
    gpus = {b.rank: b.text for b in found.bound("gpu", role="device")}
    # 0.5.23 reports the group that MOE_DP really is where it stands for ATTN_CP.
    moe_dp = "attn_cp" if row["version"] == "0.5.23" and resolved["attn_cp"] > resolved["moe_dp"] else "moe_dp"
    dp_rank = "attn_dp" if sizes["attn_dp"] > 1 else "dp" if replicas > 1 else None
    columns = row["columns"]
    by_rank = {
        values[columns.index("dp_replica")] * resolved["tp"] * resolved["pp"]
        + values[columns.index("world_rank")]: values
        for values in row["ranks"]
    }
    assert list(by_rank) == [rank for rank in range(found.topology.size) if found.plan.nodes[rank]]
    for rank, values in by_rank.items():
        at = found.topology.coordinates(rank)
        (node,) = found.plan.nodes[rank]
        assert dict(zip(columns, values, strict=True)) == {
            "dp_replica": at["dp"],
            "world_rank": rank % (resolved["tp"] * resolved["pp"]),
            "node": node,
            "gpu_id": int(gpus[rank].removeprefix("gpu ")),
            "pp_rank": at["pp"],
            "tp_rank": at["tp"],
            "attn_dp_rank": at["attn_dp"],
            "attn_cp_rank": at["attn_cp"],
            "attn_tp_rank": at["attn_tp"],
            "moe_dp_rank": at[moe_dp],
            "moe_ep_rank": at["moe_ep"],
            "moe_tp_rank": at["moe_tp"],
            "dp_rank_arg": at[dp_rank] if dp_rank else None,
        }


@every
def test_hosts_and_placement(row: Row) -> None:
    found = launch(row["id"])
    hosts = found.topology.hosts
    assert [host.name for host in hosts] == [str(node) for node in range(row["nnodes"])]
    problems = row.get("placement_problems", {"missing": [], "out_of_range": [], "duplicate": []})
    assert not problems["out_of_range"]
    assert not problems["duplicate"]
    missing = [found.topology.rank(dict(zip(("dp", "pp", "tp"), at, strict=True))) for at in problems["missing"]]
    told = [rank for finding in found.codes("RB601") for rank in finding.facts["ranks"]]
    assert told == missing
    assert row["placement_complete"] == (not missing)
    assert not found.codes("RB602")


@every
def test_devices_used_twice(row: Row) -> None:
    found = launch(row["id"])
    shared: dict[str, set[int]] = {}
    for clash in clashes(b for b in found.plan.bindings if b.address.kind == "device"):
        key = f"node{clash.a.node}/{clash.a.text.replace(' ', '')}"
        shared.setdefault(key, set()).update(b.rank for pair in clash.pairs() for b in pair)
    assert shared == {key: set(ranks) for key, ranks in row.get("gpu_id_collisions", {}).items()}
    assert bool(found.codes("RB604")) == bool(shared)


@every
def test_gates(row: Row) -> None:
    found = launch(row["id"])
    for gate, about in row["gates"].items():
        assert owner_rows(about, found.owners(GATES[gate])), gate
    stated = {name for name in GATES.values() if name in found.plan.owners}
    assert stated == {GATES[gate] for gate in row["gates"]}


@published
def test_publishers(row: Row) -> None:
    found = launch(row["id"])
    ours = found.published()
    assert list(ours) == [publisher["rank_row"] for publisher in row["kv_publishers"]]
    counts_replicas = row["version"] not in ("0.5.10", "0.5.14") and row["resolved"]["attn_dp"] == 1
    for publisher in row["kv_publishers"]:
        rank = publisher["rank_row"]
        at = found.topology.coordinates(rank)
        assert publisher["node"] == found.plan.nodes[rank][0]
        assert publisher["dp_replica"] == at["dp"]
        assert publisher["index"] == at["dp" if counts_replicas else "attn_dp"]
        expected = {
            role: (publisher[role].get("mode", "bind"), publisher[role]["endpoint"])
            for role in ROLES
            if role in publisher
        }
        assert ours[rank] == expected
    refused = any("error" in publisher for publisher in row["kv_publishers"])
    assert bool([finding for finding in found.draft.findings if finding.code == "RB607"]) == refused


@published
def test_publishers_that_collide(row: Row) -> None:
    found = launch(row["id"])
    names = {address: role for role, address in ROLES.items()}
    ends = {
        frozenset((b.rank, names[b.address.role], b.node) for b in pair)
        for clash in clashes(b for b in found.plan.bindings if b.resource.name in KV_EVENTS and b.address.role in names)
        for pair in clash.pairs()
    }
    assert ends == recorded_collisions(row)
    told = [finding for finding in found.codes("RB201", "RB202") if "kv-events" in str(finding.facts)]
    assert bool(told) == bool(ends)


@published
def test_advertised(row: Row) -> None:
    found = launch(row["id"])
    told = row["advertised_kv_events"]
    heard = found.heard()
    replay = [d.endpoint for d in found.dialled("kv-events", role="replay", outside=True)]
    loads = [d.endpoint for d in found.dialled("load-events", outside=True)]
    if not isinstance(told, dict):
        assert not heard + replay + loads
        return
    host = told["endpoint_host"]
    public = "10.0.0.1" if "--dist-init-addr" in row["argv"] else "127.0.0.1"
    assert {e.host for e in heard if e} == {public if host in WILDCARDS else host.strip("[]")}
    for key, ports in (("endpoint", heard), ("replay_endpoint", replay), ("load_endpoint", loads)):
        base = told.get(f"{key}_port_base")
        expected = [] if base is None else list(range(base, base + told["dp_size"]))
        assert [e.first for e in ports if e] == expected
    elsewhere = any(publisher["node"] for publisher in row["kv_publishers"])
    if ":" in host:
        assert found.codes("RB209")
    elif host not in (*WILDCARDS, "127.0.0.1"):
        assert found.outward
        assert not found.codes("RB210")
    elif row["version"] != "0.5.14":
        assert bool(found.codes("RB210", "RB211")) == elsewhere


@every
def test_ports_between_the_processes(row: Row) -> None:
    check_ports(launch(row["id"]), row["port_args_node0"], row["port_args_prechecked"], row["resolved"]["attn_dp"] > 1)
    if row["resolved"]["attn_dp"] > 1 and row["version"] != "0.5.10":
        # The load collector's port is bound wherever shared memory is not used.
        everywhere = Launch(row["version"], row["argv"], row["nnodes"], {"SGLANG_LOAD_SNAPSHOT_USE_ZMQ": "1"})
        assert [b.text for b in everywhere.bound("load-collector")] == [
            row["port_args_node0"]["load_collector_ipc_name"]
        ]


def check_ports(found: Launch, addresses: dict[str, Any], prechecked: list[list[Any]], over_ports: bool) -> None:
    names = {"tokenizer": "tokenizer", "detokenizer": "detokenizer", "scheduler_input": "scheduler-input"}
    checked = found.bound("start-up-check", role="probe")
    if not over_ports:
        assert {addresses[f"{name}_ipc_name"] for name in (*names, "rpc", "metrics")} == {"ipc://<tmpfile>"}
        assert {b.text for name in names.values() for b in found.bound(name)} == {"ipc://*"}
        assert not checked
        assert prechecked == []
        return
    for theirs, ours in names.items():
        (b,) = found.bound(ours)
        assert (b.text, b.node) == (addresses[f"{theirs}_ipc_name"], 0)
    ports = [item[1] for item in prechecked if item[1] != -1]
    for node in range(len(found.topology.hosts)):
        assert [b.endpoint.first for b in checked if b.node == node and b.endpoint] == ports
    assert {b.endpoint.host for b in checked if b.endpoint} == {"*"}
    # Nobody binds these two; their ports are looked at all the same.
    for name in ("rpc", "metrics"):
        assert int(addresses[f"{name}_ipc_name"].rpartition(":")[2]) in ports
    collector = found.bound("load-collector")
    assert [b.text for b in collector] == [addresses.get("load_collector_ipc_name")] * bool(collector)
    assert bool(collector) == (len(found.topology.hosts) > 1 and "load_collector_ipc_name" in addresses)
    (store,) = found.bound("torch-rendezvous")
    assert store.endpoint
    assert (store.endpoint.kernel_picks, addresses.get("nccl_port", -1)) in ((True, -1), (False, -1))


@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if "dp_worker_port_handshake" in row], ids=lambda row: row["id"]
)
def test_ports_of_the_dp_controller(row: Row) -> None:
    found = launch(row["id"])
    handshake = row["dp_worker_port_handshake"]
    (b,) = found.bound("dp-handshake")
    assert (b.text, b.node) == (handshake["endpoint"], 0)
    past = [finding for finding in found.codes("RB203") if finding.facts["resource"] == "dp-handshake"]
    assert bool(past) == (not handshake["valid_port"])
    dialled = found.dialled("dp-handshake", outside=False)
    assert sorted(d.node for d in dialled if d.node is not None) == list(range(1, row["nnodes"]))
    # 50000 and up stand in for ports that the kernel picks.
    (b,) = found.bound("scheduler-input-dp")
    assert b.node == 0
    heads = {text.rpartition(":")[0] for text in row["scheduler_input_per_dp"]}
    assert {b.text.rpartition(":")[0]} == heads
    assert b.endpoint
    assert b.endpoint.kernel_picks
    # The oracle lists the first eight.
    assert len(row["scheduler_input_per_dp"]) == min(found.topology.sizes["attn_dp"], 8)


@pytest.mark.parametrize("row", [row for row in ROWS.values() if "load_pub_range" in row], ids=lambda row: row["id"])
def test_load_publishers(row: Row) -> None:
    found = launch(row["id"])
    wanted = row["load_pub_range"]
    refused = [finding for finding in found.draft.findings if finding.code == "RB606"]
    assert bool(refused) == found.draft.refused == (wanted["reason"] == "refused")
    ours = found.bound("load-events")
    if wanted["range"] is None:
        assert not ours
        return
    host, base = wanted["range"]
    assert [b.text for b in ours] == [f"tcp://{host}:{base + at}" for at in range(row["resolved"]["num_dp_ranks"])]
    assert [b.rank for b in ours] == [publisher["rank_row"] for publisher in row["kv_publishers"]]


@every
def test_nothing_else_is_refused(row: Row) -> None:
    assert launch(row["id"]).draft.refused == (row.get("load_pub_range", {}).get("reason") == "refused")


# Derived ports, with the edges


@pytest.mark.parametrize("row", PORTS, ids=lambda row: "-".join(str(value) for value in list(row.values())[:6]))
def test_derived_ports(row: Row) -> None:
    argv = ["--tp-size", "16", "--dp-size", str(row["dp"]), "--enable-dp-attention", "--port", str(row["port"])]
    argv += ["--nnodes", str(row["nnodes"])]
    if row["nnodes"] > 1:
        argv += ["--node-rank", "{node}"]
    if row["dist_init_addr"]:
        argv += ["--dist-init-addr", row["dist_init_addr"]]
    environment = {"SGLANG_RUST_SERVER": "1"} if row["rust_server"] else None
    found = Launch(row["version"], argv, row["nnodes"], environment)
    if "error" in row:
        (finding,) = [each for each in found.draft.findings if each.code == "RB607"]
        assert finding.facts["flag"] == "--dist-init-addr"
        assert not found.bound("tokenizer")
        return
    check_ports(found, row["addresses"], row["prechecked"], over_ports=True)
    last = row["scheduler_input_last_dp"]
    if row["rust_server"]:
        slots = found.bound("rust-slots", role="probe")
        assert [b.endpoint.first for b in slots if b.endpoint] == [
            int(last.rpartition(":")[2]) - back for back in range(row["dp"])
        ][::-1]
    else:
        (b,) = found.bound("scheduler-input-dp")
        assert b.text.rpartition(":")[0] == last.rpartition(":")[0]
    addresses = {
        f"{name}_ipc_name": port
        for name, port in zip(
            ("tokenizer", "detokenizer", "scheduler_input"),
            [
                b.endpoint.last
                for name in ("tokenizer", "detokenizer", "scheduler-input")
                for b in found.bound(name)
                if b.endpoint
            ],
            strict=True,
        )
    }
    past = {name for name, port in addresses.items() if port > MAX_PORT}
    assert past == set(row.get("out_of_range", ())) & addresses.keys()
    named = {finding.facts["resource"] for finding in found.codes("RB203")}
    assert {name.replace("-", "_") + "_ipc_name" for name in named} & addresses.keys() == past


# Endpoints, spelled in every way


@pytest.mark.parametrize("row", RULES, ids=lambda row: f"{row['version']}-{row['endpoint']}")
def test_endpoints(row: Row) -> None:
    endpoint = row["endpoint"]
    text = json.dumps({"publisher": "zmq", "endpoint": endpoint})
    sixteen = ["--tp-size", "16", "--dp-size", "16", "--enable-dp-attention"]
    found = Launch(row["version"], [*sixteen, "--kv-events-config", text])
    ours = found.published()
    wrong = [finding for finding in found.draft.findings if finding.code == "RB607"]
    for key, expected in row["by_index"].items():
        rank = int(key)
        if endpoint in NOT_FOR_ZMQ or expected.get("mode", "") is None:
            assert ours[rank] == {}
        elif "error" in expected:
            assert ours[rank] == {}
            assert wrong
        else:
            assert ours[rank] == {"pub": (expected["mode"], expected["endpoint"])}
    assert bool(wrong) == (endpoint in NOT_FOR_ZMQ or any("error" in each for each in row["by_index"].values()))
    four = Launch(row["version"], ["--tp-size", "4", "--dp-size", "4", "--kv-events-config", text])
    told = row["advertised"]
    dialled = four.heard()
    if not isinstance(told, dict):
        assert dialled == []
        return
    host, base = told["endpoint_host"], told["endpoint_port_base"]
    assert [e.first for e in dialled if e] == list(range(base, base + told["dp_size"]))
    assert {e.host for e in dialled if e} == {"127.0.0.1" if host in WILDCARDS else host.strip("[]")}


# Bound for real


@cache
def bound_for_real(name: str) -> Launch:
    if name in ROWS:
        return launch(name)
    _, version, shape = name.split("-", 2)
    argv, nodes = UNLISTED[shape]
    words = [*argv.split(), "--kv-events-config", '{"publisher":"zmq","endpoint":"tcp://*:5557"}']
    return Launch(version, [*words, *(["--nnodes", str(nodes), "--node-rank", "{node}"] if nodes > 1 else [])], nodes)


@pytest.mark.parametrize("row", BINDS, ids=lambda row: f"{row['id']}-node{row['node']}")
def test_binds(row: Row) -> None:
    """Which of two loses is a race, so only this: of each pair that we say collides one lost, and nobody else did."""
    found = bound_for_real(row["id"])
    outcomes = {owner["rank_row"]: owner["outcome"] for owner in row["owners"]}
    assert list(outcomes) == [rank for rank in found.owners("kv-events") if found.plan.nodes[rank] == (row["node"],)]
    bindings = [b for name in KV_EVENTS for role in ROLES.values() for b in found.bound(name, role=role)]
    pairs = [
        {b.rank for b in pair}
        for clash in clashes(b for b in bindings if b.node == row["node"])
        for pair in clash.pairs()
    ]
    lost = {rank for rank, outcome in outcomes.items() if outcome == "EADDRINUSE"}
    assert all(pair & lost for pair in pairs)
    assert lost <= {rank for pair in pairs for rank in pair}
    deaf = {rank for finding in found.codes("RB209") for rank in finding.facts["ranks"]}
    assert {rank for rank, outcome in outcomes.items() if outcome == "ENODEV"} == deaf & outcomes.keys()
    refused = {rank for rank in outcomes if not found.published()[rank]}
    assert {rank for rank, outcome in outcomes.items() if outcome == "ValueError"} == refused
    assert {owner["rank_row"]: owner["index"] for owner in row["owners"]} == {
        rank: found.topology.coordinates(rank)[
            "attn_dp" if found.topology.sizes["attn_dp"] > 1 or row["id"].startswith("sglang-0.5.14") else "dp"
        ]
        for rank in outcomes
    }


def test_binds_by_outcome() -> None:
    outcomes = Counter(owner["outcome"] for row in BINDS for owner in row["owners"])
    assert outcomes == {"ok": 147, "EADDRINUSE": 11, "ENODEV": 4, "ValueError": 2}


def test_options_are_those_of_the_rows() -> None:
    """What the helper above takes for granted."""
    assert {option(row, "--nnodes", "1") for row in ROWS.values()} == {str(row["nnodes"]) for row in ROWS.values()}
    assert isinstance(launch("sglang-0.5.23-tp1").draft, Draft)
