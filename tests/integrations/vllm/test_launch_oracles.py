"""Every row that vLLM's own functions answered, held against what the reader makes of the same command lines.

Not held: nothing. Two columns are spelled otherwise here: an oracle's `api_server_count` is the argument, so 1 on a
headless node of 0.11.0, which starts no server; and kernel-chosen ipc names are ``ipc://*``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from rankbind_vllm.launch import ENGINE, arguments, layout
from rankbind_vllm.launch.releases import Release

from rankbind import check, config
from rankbind.check import Plan
from rankbind.check.plan import Binding
from rankbind.launch.command import Command, typed
from rankbind.launch.draft import Draft

from ...support.oracles import collisions, load, recorded_collisions

Row = dict[str, Any]

ROWS = [row for version in ("0.11.0", "0.33.0") for row in load(f"vllm-{version}")]
SOUND = [row for row in ROWS if "error" not in row]
RANKED = [row for row in SOUND if "ranks" in row]
RENDEZVOUS = load("vllm-rendezvous-0.33.0")
ENDPOINTS = [row for row in load("kv-endpoint-rules") if row["engine"] == "vllm"]
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
SIDES = {"pub": "bind", "replay": "replay"}


def names(row: Row) -> str:
    return str(row["id"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[bool, str]:
    """A folder with the config.json of a mixture of experts, and one of a dense model."""
    found = {}
    for moe, text in ((True, {"model_type": "mixtral", "num_local_experts": 8}), (False, {"model_type": "llama"})):
        folder = tmp_path_factory.mktemp("model")
        (folder / "config.json").write_text(json.dumps(text))
        found[moe] = str(folder)
    return found


def commands(row: Row, models: Mapping[bool, str], *extra: str) -> list[Command]:
    """One for each node, each on a host of its own, as the oracles have them."""
    found = []
    for node, own in enumerate(row["node_argv"]):
        words = ["vllm", "serve", models[row["model_is_moe"]], *row["argv"], *own, *extra]
        # The oracles were made on a machine with this address.
        command = typed(words, row.get("environment", {"VLLM_HOST_IP": "192.0.2.2"}))
        found.append(Command(command.words, command.environment, host=f"n{node}", text=command.text))
    return found


def drafted(row: Row, models: Mapping[bool, str], *extra: str) -> Draft:
    [draft] = ENGINE.read(commands(row, models, *extra), row["version"])
    declaration = draft.declaration()
    assert config.parse(draft.to_toml()).job == declaration.job
    return draft


def planned(row: Row, models: Mapping[bool, str], *extra: str) -> Plan:
    return Plan(drafted(row, models, *extra).declaration())


def nodes(row: Row, models: Mapping[bool, str]) -> list[layout.Node]:
    release = Release(row["version"])
    return [layout.resolve(arguments.read(command, release, named=True)) for command in commands(row, models)]


def role(node: layout.Node) -> str:
    """What kind of process a command becomes."""
    if node.multi_port:
        return "dp_supervisor"
    if node.headless:
        return "headless"
    return "multi_api_server" if node.api_servers > 1 else "single_api_server"


@pytest.mark.parametrize("row", RANKED, ids=names)
def test_sizes(row: Row, models: Mapping[bool, str]) -> None:
    topology = planned(row, models).job.topology
    resolved = row["resolved"]
    assert topology.axes == {
        name: resolved[name] for name in ("dp", "pp", "pcp", "tp") if name != "pcp" or "pcp" in topology.axes
    }
    assert ("pcp" in topology.axes) == (row["version"] != "0.11.0")
    assert topology.sizes.get("dcp", 1) == resolved["dcp"]
    assert topology.size == resolved["world_size_per_engine"] * resolved["dp"]


@pytest.mark.parametrize("row", RANKED, ids=names)
def test_ranks(row: Row, models: Mapping[bool, str]) -> None:
    """Every worker: host, replica, rank, torch rank, GPU, and its index in every group."""
    plan = planned(row, models)
    topology = plan.job.topology
    by_host = nodes(row, models)
    gpus = {binding.rank: binding.text for binding in plan.bindings if binding.address.kind == "device"}
    found = []
    for host, node in zip(topology.hosts, by_host, strict=True):
        for rank in host.ranks:
            at = {"dcp": 0, "pcp": 0} | topology.coordinates(rank)
            values = {
                "node": topology.hosts.index(host),
                "dp_index": at["dp"],
                "rank_in_engine": rank % row["resolved"]["world_size_per_engine"],
                # Independent replicas are worlds of their own.
                "torch_rank": rank % node.sizes.world if node.independent else rank,
                "local_gpu_index": int(gpus[rank].removeprefix("gpu ")),
                **{f"{axis}_rank": at[axis] for axis in ("tp", "pp", "pcp", "dcp")},
                # Independent replicas do not know of each other.
                "dp_rank": 0 if node.independent else at["dp"],
                "ep_rank": at.get("ep"),
            }
            found.append([values[column] for column in row["columns"]])
    assert found == row["ranks"]
    assert ("ep_rank" in row["columns"]) == ("ep" in topology.sizes)
    assert row["placement_complete"] == (not topology.unplaced and not topology.placed_twice)


@pytest.mark.parametrize("row", RANKED, ids=names)
def test_groups(row: Row, models: Mapping[bool, str]) -> None:
    """The process groups of one torch world, each a line along an axis."""
    topology = planned(row, models).job.topology
    node = nodes(row, models)[0]
    size = row["torch_world_size"]
    assert size == (row["resolved"]["world_size_per_engine"] if node.independent else topology.size)
    for name, groups in row["groups"].items():
        lines: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for rank in range(size):
            at = {"dcp": 0, "pcp": 0} | topology.coordinates(rank)
            if name == "dp" and node.independent:
                lines[(rank,)] = [(0, rank)]
                continue
            along = {"ep": ("dp", "pcp", "tp"), "dcp": ("dcp",)}.get(name, (name,))
            # Within a group of decode context parallelism, only the part of tp that it cuts off changes.
            place = {
                axis: index for axis, index in at.items() if axis in ("dp", "pp", "pcp", "tp") and axis not in along
            }
            if name == "dcp":
                place = {axis: at[axis] for axis in ("dp", "pp", "pcp")}
                place["tp"] = at.get("dcp_group", at["tp"])
            lines.setdefault(tuple(place.values()), []).append((at.get(name, 0), rank))
        assert sorted([rank for _, rank in sorted(line)] for line in lines.values()) == sorted(groups), name


@pytest.mark.parametrize("row", SOUND, ids=names)
def test_nodes(row: Row, models: Mapping[bool, str]) -> None:
    """What every command becomes: its role and the derived arguments."""
    for node, wanted in zip(nodes(row, models), row["nodes"], strict=True):
        assert not node.arguments.refused
        found = {
            "role": role(node),
            "api_server_count": node.api_servers or (1 if row["version"] == "0.11.0" else 0),
            "http_port": None if node.headless else node.arguments.value("port"),
            "data_parallel_rank": node.start,
            "data_parallel_size": node.sizes.dp,
            "data_parallel_size_local": node.local,
            "external_lb": node.balancing == "external",
            "hybrid_lb": node.balancing == "hybrid",
            "world_size": node.sizes.world,
            "data_parallel_master_ip": node.address,
            "data_parallel_rpc_port": node.rpc_port.number,
            "engine_cores": list(node.engines),
            "nnodes": node.nodes,
            "node_rank": node.node,
            "nnodes_within_dp": node.spans,
            "node_rank_within_dp": node.part,
            "local_world_size": node.local_world,
            "master": f"{node.master}:{node.master_port}" if node.nodes > 1 else None,
            "needs_dp_coordinator": node.coordinated,
            "supervisor_port": node.arguments.value("data_parallel_supervisor_port"),
        }
        listened = ("client_input_addrs", "client_output_addrs", "nixl_side_channel_ports", "children", "node")
        assert {key: found[key] for key in wanted if key not in listened} == {
            key: value for key, value in wanted.items() if key not in listened
        }


@pytest.mark.parametrize("row", SOUND, ids=names)
def test_listeners(row: Row, models: Mapping[bool, str]) -> None:
    """The sockets that the oracle lists: HTTP, those of the clients, the rendezvous, NIXL."""
    plan = planned(row, models, "--kv-transfer-config", NIXL)
    for number, wanted in enumerate(row["nodes"]):
        here = [b for b in plan.bindings if b.node == number]

        def texts(name: str, here: Sequence[Binding] = here) -> list[str]:
            return sorted(b.text for b in here if b.resource.name.rstrip("-0123456789") == name)

        if wanted["role"] == "dp_supervisor":
            assert texts("http") == [f"tcp://*:{child['port']}" for child in wanted["children"]]
            assert texts("http-supervisor") == [f"tcp://*:{wanted['supervisor_port']}"]
            world = plan.job.topology.size // plan.job.topology.sizes["dp"]
            gpus = {b.rank // world: [] for b in here if b.address.kind == "device"}
            for b in here:
                if b.address.kind == "device":
                    gpus[b.rank // world].append(int(b.text.removeprefix("gpu ")))
            assert gpus == {child["data_parallel_rank"]: child["device_ids"] for child in wanted["children"]}
            continue
        assert texts("http") == ([] if wanted["http_port"] is None else [f"tcp://*:{wanted['http_port']}"])
        for name, key in (("client-input", "client_input_addrs"), ("client-output", "client_output_addrs")):
            addresses = {a.replace("<VLLM_RPC_BASE_PATH>/<uuid>", "*") for a in wanted.get(key, ())}
            if row["version"] != "0.11.0":
                assert set(texts(name)) == addresses
                assert len(texts(name)) == (wanted["role"] != "headless")
        servers = [b.resource.process for b in here if b.resource.name == "http"]
        if servers and wanted["api_server_count"] > 1:
            assert str(wanted["api_server_count"]) in str(servers[0])
        if "nixl_side_channel_ports" in wanted:
            world = plan.job.topology.size // plan.job.topology.sizes["dp"]
            nixl = {str(b.rank // world): b.endpoint.first for b in here if b.resource.name == "nixl" and b.endpoint}
            assert nixl == wanted["nixl_side_channel_ports"]
        coordinator = [b for b in here if b.resource.name.startswith("dp-coordinator")]
        assert bool(coordinator) == (
            bool(wanted.get("needs_dp_coordinator", wanted["data_parallel_size"] > 1)) and number == 0
        )
    if len(row["nodes"]) > 1 and row["nodes"][0].get("master"):
        [world_store] = [b.text for b in plan.bindings if b.resource.name == "torch-world"]
        assert world_store == f"tcp://{row['nodes'][0]['master']}"
    head = row["nodes"][0]
    if head["data_parallel_size_local" if "data_parallel_size_local" in head else "node"] not in (
        0,
        head.get("data_parallel_size"),
    ):
        shake = [b.text for b in plan.bindings if b.resource.name == "dp-handshake"]
        assert shake == [f"tcp://{head['data_parallel_master_ip']}:{head['data_parallel_rpc_port']}"]


@pytest.mark.parametrize("row", SOUND, ids=names)
def test_publishers(row: Row, models: Mapping[bool, str]) -> None:
    """Every publisher: on which host, bound or connected, where; and which of them get in each other's way."""
    draft = drafted(row, models)
    plan = Plan(draft.declaration())
    world = plan.job.topology.size // plan.job.topology.sizes["dp"]
    bound = {
        (b.node, b.rank // world, b.address.role): b.text
        for b in plan.bindings
        if b.resource.name.startswith("kv-events")
    }
    dialled = {
        (d.node, d.rank // world, "bind"): str(d.endpoint)
        for d in plan.dialled
        if d.resource.name.startswith("kv-events") and d.rank is not None
    }
    wanted_bound, wanted_dialled = {}, {}
    for publisher in row["kv_publishers"]:
        if "error" in publisher:
            assert "RB606" in {finding.code for finding in draft.findings}
            continue
        for side, role in SIDES.items():
            if side in publisher:
                into = wanted_bound if publisher[side]["mode"] == "bind" else wanted_dialled
                into[publisher["node"], publisher["dp_index"], role] = publisher[side]["endpoint"]
    assert bound == wanted_bound
    assert dialled == wanted_dialled
    ends = [
        (b.rank // world, {"bind": "pub"}.get(b.address.role, b.address.role), b.node, b.endpoint)
        for b in plan.bindings
        if b.resource.name.startswith("kv-events") and b.endpoint is not None
    ]
    assert collisions(ends) == recorded_collisions(row)
    clashing = {
        frozenset({b["endpoint"]})
        for finding in check.run(plan.declaration)
        if finding.code == "RB201"
        for b in finding.facts["collisions"]
    }
    assert bool(clashing) == bool(row["kv_bind_collisions"])


@pytest.mark.parametrize("row", [row for row in ROWS if "error" in row], ids=names)
def test_refused(row: Row, models: Mapping[bool, str]) -> None:
    draft = drafted(row, models)
    assert draft.refused
    assert {finding.code for finding in draft.findings if finding.fails} <= {"RB605", "RB606"}


WRONG = ("replay-adjacent", "ep-0.0.0.0", "ep-ipc-dp2", "0.11.0-ep-port0-dp2")


@pytest.mark.parametrize("row", SOUND, ids=names)
def test_verdict(row: Row, models: Mapping[bool, str]) -> None:
    draft = drafted(row, models)
    found = [*draft.findings, *check.run(draft.declaration())]
    failing = [finding for finding in found if finding.fails]
    assert bool(failing) == row["id"].endswith(WRONG), failing
    assert draft.refused == row["id"].endswith("ep-ipc-dp2")


@pytest.mark.parametrize("row", RENDEZVOUS, ids=names)
def test_rendezvous(row: Row, models: Mapping[bool, str]) -> None:
    """Where every worker meets the others, in a world of which size, as which rank."""
    words = [f"--{name.replace('_', '-')}={size}" for name, size in row["sizes"].items()]
    own = [
        [
            "--nnodes",
            str(row["nnodes"]),
            "--node-rank",
            str(n),
            "--master-addr",
            "10.0.0.1",
            *(["--headless"] if n else []),
        ]
        for n in range(row["nnodes"])
    ]
    launch = {**row, "argv": words, "node_argv": own if row["nnodes"] > 1 else [[]]}
    draft = drafted(launch, models)
    errors = {finding.code for finding in (*draft.findings, *check.run(draft.declaration())) if finding.fails}
    assert errors == (set() if row["rendezvous_consistent"] else {"RB607"})
    plan = Plan(draft.declaration())
    topology = plan.job.topology
    by_host = nodes(launch, models)
    world = topology.size // topology.sizes["dp"]
    met = {b.text for b in plan.bindings if b.resource.name == "torch-world"}
    found = []
    for number, (host, node) in enumerate(zip(topology.hosts, by_host, strict=True)):
        for rank in host.ranks:
            # Followers of a dense replica never learn that it is a world of its own: that is the inconsistency.
            alone = node.independent and node.part == 0
            size, torch_rank = (world, rank % world) if alone else (topology.size, rank)
            found.append([number, rank // world, rank % world, node.part == 0, size, torch_rank])
    assert found == [[*worker[:4], *worker[5:]] for worker in row["workers"]]
    methods = {worker[4] for worker in row["workers"]}
    assert met == {m.replace("<next dp init port>", "0") for m in methods if m is not None}


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row['version']}-{row['endpoint']}")
def test_endpoints(row: Row, models: Mapping[bool, str]) -> None:
    """What a publisher makes of every spelling of its endpoint, as replica 0, 1, 7 and 10."""
    events = json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": row["endpoint"]})
    launch = {
        "version": row["version"],
        "model_is_moe": True,
        "argv": ["--data-parallel-size", "11", "--kv-events-config", events],
        "node_argv": [[]],
        "environment": {},
    }
    draft = drafted(launch, models)
    plan = Plan(draft.declaration())
    bound = {b.rank: b.text for b in plan.bindings if b.resource.name.startswith("kv-events")}
    dialled = {
        d.rank: str(d.endpoint) for d in plan.dialled if d.resource.name.startswith("kv-events") and d.rank is not None
    }
    said = {finding.code for finding in draft.findings}
    for index, wanted in ((int(index), wanted) for index, wanted in row["by_index"].items()):
        if "error" in wanted:
            assert draft.refused
            assert "RB606" in said
            assert index not in bound
        elif wanted["mode"] is None:
            assert not bound
            assert "RB607" in said
        elif index == 0 and row["endpoint"] in ("tcp://*", "tcp://host.example", "ws://*:5557"):
            # No endpoint at all, or none that libzmq's sockets here know: refused, and not stated.
            assert "RB606" in said
        elif wanted["mode"] == "bind":
            assert bound[index] == wanted["endpoint"]
            assert not dialled
        else:
            # Whoever listens at a real address is outside of the job: only said.
            assert index not in bound
            assert dialled.get(index, wanted["endpoint"]) == wanted["endpoint"]
            assert index in dialled or "RB215" in said
