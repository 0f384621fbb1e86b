"""Every row that the engines' own functions answered, held against the model.

Not held, because they say nothing that a topology, a scope or an endpoint can agree with: what an option is called
(sglang-cli, vllm-cli) and where in the source a condition stands (sglang-gate-inventory: text without owners, its
gates are those of the rows here). Engine facts that stay the engine's are named where they occur: bind or connect
decided by spelling, ``_dp1`` appended to inproc, ``ipc`` refused for every index but 0, which base port is chosen.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rankbind.endpoint import MAX_PORT, Endpoint, overlaps
from rankbind.errors import EndpointError
from rankbind.resource import Job
from rankbind.scope import Gate, Scope
from rankbind.template import Template
from rankbind.topology import Topology

from .support.oracles import (
    MENDED,
    SGLANG_VERSIONS,
    VLLM_ENGINE,
    VLLM_VERSIONS,
    bound,
    collisions,
    kv_config,
    load,
    offset,
    option,
    owner_rows,
    recorded_collisions,
    sglang_gate,
    sglang_index,
    sglang_topology,
    sglang_unlisted,
    vllm_independent,
    vllm_topology,
)
from .support.outcome import outcome

Row = dict[str, Any]

SGLANG = [row for version in SGLANG_VERSIONS for row in load(f"sglang-{version}")]
SGLANG_GROUPS = [row for version in ("0.5.14", "0.5.23") for row in load(f"sglang-groups-{version}")]
SGLANG_PORTS = load("sglang-portargs")
VLLM = [row for version in VLLM_VERSIONS for row in load(f"vllm-{version}")]
RENDEZVOUS = load("vllm-rendezvous-0.33.0")
RULES = load("kv-endpoint-rules")
REALBIND = load("sglang-realbind")

REFUSED = {"vllm-0.33.0-nnodes3-tp4pp2", "vllm-0.33.0-multi-port-external-overlap", "vllm-0.33.0-dense-external"}
"""Launches that vLLM itself rejects: nothing to compare."""

SUPERVISED = "vllm-0.33.0-multi-port-external"
"""Its children are launched by a supervisor, so there is no rank table, but publishers there are."""


def every(rows: list[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=lambda row: row["id"])


def ranked() -> list[Row]:
    return [row for row in VLLM if row["id"] not in REFUSED | {SUPERVISED}]


def sglang_job(row: Row) -> Job:
    return Job(sglang_topology(row["resolved"], row["nnodes"]))


def vllm_job(row: Row) -> Job:
    if row["id"] == SUPERVISED:
        return Job(vllm_topology({"dp": int(option(row, "--data-parallel-size")), "pp": 1, "tp": 1}))
    return Job(vllm_topology(row["resolved"], len(row["nodes"])))


def members(scope: Scope, topology: Topology) -> list[list[int]]:
    return [list(group.members) for group in scope.groups(topology)]


def test_no_row_is_left_out() -> None:
    assert Counter(row["version"] for row in SGLANG) == {
        "0.5.10": 25,
        "0.5.14": 25,
        "0.5.15": 25,
        "0.5.20": 28,
        "0.5.23": 30,
    }
    assert Counter(row["version"] for row in VLLM) == {"0.11.0": 12, "0.33.0": 22}
    assert {row["id"] for row in VLLM if "error" in row} == REFUSED
    assert not any("error" in row for row in SGLANG + SGLANG_GROUPS + RENDEZVOUS)
    assert (len(ranked()), sum("ranks" not in row for row in VLLM)) == (30, 4)
    assert (len(SGLANG_GROUPS), len(RENDEZVOUS), len(RULES), len(REALBIND)) == (10, 8, 168, 74)
    assert (len(SGLANG_PORTS), sum("error" in row for row in SGLANG_PORTS)) == (135, 9)
    assert sum(len(row["ranks"]) for row in SGLANG) == 4013
    assert sum(len(row["ranks"]) for row in ranked()) == 238
    assert sum(len(row["gates"]) for row in SGLANG) == 977
    assert sum(len(row.get("kv_publishers", [])) for row in SGLANG + VLLM) == 906
    assert sum(len(row.get("kv_bind_collisions", {})) for row in SGLANG + VLLM) == 161
    assert sum(len(row["workers"]) for row in RENDEZVOUS) == 584
    assert sum(row["id"] not in {launch["id"] for launch in SGLANG} for row in REALBIND) == 12
    assert max(len(row["ranks"]) for row in SGLANG) == 512


# ---- SGLang


@every(SGLANG)
def test_sglang_coordinates(row: Row) -> None:
    job, sizes = sglang_job(row), row["resolved"]
    # 0.5.23 reports the group that MOE_DP really is where it stands for ATTN_CP; the earlier ones report the 0 they
    # were spawned with.
    moe_dp = "attn_cp" if row["version"] == "0.5.23" and sizes["attn_cp"] > sizes["moe_dp"] else "moe_dp"
    dp_rank = "attn_dp" if sizes["attn_dp"] > 1 else "dp" if job.topology.sizes["dp"] > 1 else None
    for number, values in enumerate(row["ranks"]):
        found = dict(zip(row["columns"], values, strict=True))
        at = job.topology.coordinates(number)
        assert found["world_rank"] == number % (sizes["tp"] * sizes["pp"])
        assert found == found | {
            "dp_replica": at["dp"],
            "node": job.variables(number)["node_rank"],
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
        assert job.topology.rank({"dp": found["dp_replica"], "pp": found["pp_rank"], "tp": found["tp_rank"]}) == number


@every(SGLANG)
def test_sglang_placement(row: Row) -> None:
    topology = sglang_job(row).topology
    missing = [
        topology.rank({"dp": dp, "pp": pp, "tp": tp})
        for dp, pp, tp in row.get("placement_problems", {}).get("missing", [])
    ]
    assert list(topology.unplaced) == missing
    assert row["placement_complete"] == (not missing)
    assert len(row["ranks"]) + len(missing) == topology.size
    assert len(topology.hosts) == row["nnodes"]
    assert topology.placed_twice == {}


@every(SGLANG)
def test_sglang_gpu_ids(row: Row) -> None:
    """The local rank, except where ``--gpu-id-step`` is forgotten on the pipeline's part: two ranks on one GPU."""
    job = sglang_job(row)
    step, base = int(option(row, "--gpu-id-step", "1")), int(option(row, "--base-gpu-id", "0"))
    template = Template(f"{{{base} + pp * tp_size + tp * {step}}}" if step > 1 else f"{{{base} + local_rank}}")
    gpus = [template.render(job.variables(rank)) for rank in range(len(row["ranks"]))]
    assert gpus == [str(values[row["columns"].index("gpu_id")]) for values in row["ranks"]]
    shared: dict[str, list[int]] = {}
    for rank, gpu in enumerate(gpus):
        shared.setdefault(f"node{job.variables(rank)['node_rank']}/gpu{gpu}", []).append(rank)
    assert {gpu: ranks for gpu, ranks in shared.items() if len(ranks) > 1} == row.get("gpu_id_collisions", {})


@every(SGLANG)
def test_sglang_gate_owners(row: Row) -> None:
    topology = sglang_job(row).topology
    started = set(range(topology.size)) - set(topology.unplaced)
    for name, gate in row["gates"].items():
        ours = sglang_gate(row, name)
        ours.validate(topology)
        assert owner_rows(gate, [rank for rank in ours.owners(topology) if rank in started]), name
        assert owner_rows(
            gate, [rank for rank in sorted(started) if ours.is_owner(topology, topology.coordinates(rank))]
        ), name


@every(SGLANG)
def test_sglang_mended_publisher_is_one_sentence(row: Row) -> None:
    """From 0.5.15 on all three sites are `MENDED`; before, they pass too many wherever cp or pp is more than 1."""
    topology = sglang_job(row).topology
    sites = [gate for name, gate in row["gates"].items() if name.startswith("kv_")]
    # Without --kv-events-config the gates are not asked.
    assert len(sites) == (0 if "kv_publishers" not in row else 2 if row["version"] == "0.5.10" else 3)
    ours = MENDED.owners(topology)
    assert ours == Gate({"pp": 0, "attn_tp": 0, "attn_cp": 0}).owners(topology)
    for rank in range(topology.size):
        at = topology.coordinates(rank)
        assert MENDED.is_owner(topology, {name: at[name] for name in MENDED.group}) == (rank in ours)
        owner = topology.coordinates(MENDED.owner_of(topology, at))
        assert owner == owner | {"dp": at["dp"], "attn_dp": at["attn_dp"], "pp": 0, "attn_cp": 0, "attn_tp": 0}
    assert set(MENDED.identity(topology)) == {"dp", "attn_dp"}
    forgotten = {"0.5.10": ("attn_tp",), "0.5.14": ("attn_cp", "attn_tp")}.get(row["version"], MENDED.group)
    for site in sites:
        assert owner_rows(site, Scope(forgotten).owners(topology))
        assert owner_rows(site, ours) == all(topology.sizes[name] == 1 for name in set(MENDED.group) - set(forgotten))


@every([row for row in SGLANG if "kv_publishers" in row])
def test_sglang_publishers(row: Row) -> None:
    job, axis = sglang_job(row), sglang_index(row)
    publishers = row["kv_publishers"]
    assert list(sglang_gate(row, "kv_publisher").owners(job.topology)) == [p["rank_row"] for p in publishers]
    for publisher in publishers:
        variables = job.variables(publisher["rank_row"])
        assert publisher["dp_replica"] == variables["dp"]
        assert publisher["node"] == variables["node_rank"]
        assert publisher["index"] == variables[axis]
        if "error" in publisher:
            # ipc: SGLang cannot offset it. For us it is one path for all: a collision, found below.
            assert kv_config(row)["endpoint"].startswith("ipc://")
            assert publisher["index"] > 0
            continue
        for role, key in (("pub", "endpoint"), ("replay", "replay_endpoint")):
            assert (role in publisher) == (key in kv_config(row))
            if role in publisher:
                template = offset(kv_config(row)[key], axis, publisher["index"])
                template.check_names(variables)
                assert template.render(variables) == publisher[role]["endpoint"]


@every([row for row in SGLANG if "kv_publishers" in row])
def test_sglang_collisions(row: Row) -> None:
    binds = bound(sglang_job(row), row, "rank_row", sglang_index(row))
    assert collisions(binds) == recorded_collisions(row)


def test_sglang_publishers_that_cannot_be_offset_are_known() -> None:
    errors = [p["error"] for row in SGLANG for p in row.get("kv_publishers", []) if "error" in p]
    assert errors == ["ValueError at endpoint offset"] * 5
    assert sum("kv_publishers" not in row for row in SGLANG) == 15


@every([row for row in SGLANG if "scheduler_input_per_dp" in row])
def test_sglang_addresses_of_the_dp_controller(row: Row) -> None:
    handshake = row["dp_worker_port_handshake"]
    assert (Endpoint.parse(handshake["endpoint"]).last <= MAX_PORT) == handshake["valid_port"]
    first = Endpoint.parse(row["scheduler_input_per_dp"][0])
    template = Template(f"tcp://{first.host}:{{{first.first} + attn_dp}}")
    assert [template.render({"attn_dp": index}) for index in range(len(row["scheduler_input_per_dp"]))] == row[
        "scheduler_input_per_dp"
    ]


@every([row for row in SGLANG if option(row, "--load-publish-endpoint")])
def test_sglang_load_ports_are_refused_where_they_overlap(row: Row) -> None:
    """0.5.20 and later check this one range themselves; which base ``auto`` takes is theirs to say."""
    count, config = row["resolved"]["num_dp_ranks"], kv_config(row)

    def span(text: str) -> Endpoint:
        first = Endpoint.parse(text)
        return Endpoint("tcp", first.host, first.first, first.first + count - 1)

    taken = [span(config[key]) for key in ("endpoint", "replay_endpoint") if key in config]
    found = row["load_pub_range"]
    if found["range"]:
        host, base = found["range"]
        assert not any(overlaps(span(f"tcp://{host}:{base}"), other) for other in taken)
    else:
        assert found["reason"] == "refused"
        assert any(overlaps(span(option(row, "--load-publish-endpoint")), other) for other in taken)


@every(SGLANG_GROUPS)
def test_sglang_groups(row: Row) -> None:
    topology = sglang_topology(row["sizes"])
    assert topology.size == row["world_size"]
    axis_of = {"attention_tp": "attn_tp"}
    # self_pp is every rank by itself: the one group that spans no axis, and no scope.
    assert row["groups"].get("self_pp", []) in ([], [[rank] for rank in range(topology.size)])
    held = {name: groups for name, groups in row["groups"].items() if name != "self_pp"}
    for name, groups in held.items():
        assert members(Scope(axis_of.get(name, name)), topology) == sorted(groups), name
    for slot, built in row["group_slot_built_as"].items():
        # MOE_DP standing for ATTN_CP is SGLang's choice; the other aliases are equal groups, and so must ours be.
        if (slot, built) != ("MOE_DP", "attn_cp"):
            assert members(Scope(slot.lower()), topology) == sorted(held[built]), slot


@pytest.mark.parametrize("row", SGLANG_PORTS, ids=lambda row: f"{row['version']}-{row['port']}-{row['dist_init_addr']}")
def test_sglang_derived_ports(row: Row) -> None:
    """Consecutive ports from a base (whose overflow rule is SGLang's), and which of them no port can be."""
    if "error" in row:
        # nnodes > 1 without --dist-init-addr: PortArgs cannot be made.
        assert (row["nnodes"], row["dist_init_addr"]) == (2, None)
        return
    names = ["tokenizer", "detokenizer", "rpc", "metrics", "scheduler_input", "load_collector"]
    texts = [row["addresses"][f"{name}_ipc_name"] for name in names if f"{name}_ipc_name" in row["addresses"]]
    found = [Endpoint.parse(text) for text in texts]
    head = texts[0].rpartition(":")[0]
    template = Template(f"{head}:{{{found[0].first} + tp}}")
    topology = Topology({"tp": len(found)})
    assert [template.render(topology.coordinates(rank)) for rank in range(topology.size)] == texts
    past = [name for name, text in row["addresses"].items() if Endpoint.parse(text).last > MAX_PORT]
    assert sorted(past) == sorted(set(row.get("out_of_range", [])) & set(row["addresses"]))
    assert not any(overlaps(a, b) for at, a in enumerate(found) for b in found[:at])


# ---- vLLM


@every(ranked())
def test_vllm_coordinates(row: Row) -> None:
    job, sizes = vllm_job(row), row["resolved"]
    topology = job.topology
    alone = vllm_independent(row["version"], row["model_is_moe"], sizes["dp"])
    engine = sizes["world_size_per_engine"]
    assert topology.unplaced == ()
    assert row["placement_complete"]
    assert row["torch_world_size"] == (engine if alone else topology.size)
    ranks = set()
    for values in row["ranks"]:
        found = dict(zip(row["columns"], values, strict=True))
        rank = topology.rank(
            {"dp": found["dp_index"], "pp": found["pp_rank"], "pcp": found.get("pcp_rank", 0), "tp": found["tp_rank"]}
        )
        at = topology.coordinates(rank)
        expected = {
            "node": job.variables(rank)["node_rank"],
            "local_gpu_index": job.variables(rank)["local_rank"],
            "rank_in_engine": rank % engine,
            "torch_rank": rank % engine if alone else rank,
            "dp_rank": 0 if alone else at["dp"],
            "dcp_rank": at["dcp"],
        }
        if "ep_rank" in found:
            expected["ep_rank"] = at["ep"]
        assert found == found | expected
        ranks.add(rank)
    assert ranks == set(range(topology.size))


@every(ranked())
def test_vllm_groups(row: Row) -> None:
    sizes = row["resolved"]
    if vllm_independent(row["version"], row["model_is_moe"], sizes["dp"]):
        sizes = sizes | {"dp": 1}
    topology = vllm_topology(sizes)
    assert set(row["groups"]) - {"ep"} == {"tp", "dcp", "pp", "dp"} | ({"pcp"} if row["version"] == "0.33.0" else set())
    for name, groups in row["groups"].items():
        assert members(Scope(name), topology) == sorted(groups), name


@every([row for row in VLLM if row["id"] not in REFUSED])
def test_vllm_publishers(row: Row) -> None:
    job, config = vllm_job(row), kv_config(row)
    owners = VLLM_ENGINE.owners(job.topology)
    assert [publisher["dp_index"] for publisher in row["kv_publishers"]] == list(range(len(owners)))
    for publisher, owner in zip(row["kv_publishers"], owners, strict=True):
        variables = job.variables(owner)
        assert (publisher["dp_index"], publisher["node"]) == (variables["dp"], variables["node_rank"])
        if "error" in publisher:
            assert config["endpoint"].startswith("ipc://")
            assert publisher["dp_index"] > 0
            continue
        for role, key in (("pub", "endpoint"), ("replay", "replay_endpoint")):
            assert (role in publisher) == (key in config)
            if role not in publisher:
                continue
            found = publisher[role]["endpoint"]
            if row["version"] == "0.33.0" and config[key] == "tcp://*:0":
                # vLLM puts the node's address in the place of this one spelling, and leaves port 0 alone.
                assert Endpoint.parse(found).kernel_picks
                continue
            assert offset(config[key], "dp", publisher["dp_index"]).render(variables) == found


@every([row for row in VLLM if row["id"] not in REFUSED])
def test_vllm_collisions(row: Row) -> None:
    assert collisions(bound(vllm_job(row), row, "dp_index", "dp")) == recorded_collisions(row)


@every([row for row in ranked() if row["version"] == "0.33.0"])
def test_vllm_engine_cores_and_their_side_channels(row: Row) -> None:
    job = vllm_job(row)
    by_node: dict[int, dict[str, int]] = {node: {} for node in range(len(row["nodes"]))}
    for owner in VLLM_ENGINE.owners(job.topology):
        variables = job.variables(owner)
        by_node[variables["node_rank"]][str(variables["dp"])] = int(Template("{5600 + dp}").render(variables))
    for node in row["nodes"]:
        assert [int(index) for index in by_node[node["node"]]] == node["engine_cores"]
        assert by_node[node["node"]] == node.get("nixl_side_channel_ports", {})


@every(RENDEZVOUS)
def test_vllm_rendezvous(row: Row) -> None:
    """Each worker's torch world and rank; launches whose workers disagree about them are recognised."""
    long = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp"}
    sizes = {"tp": 1, "pp": 1, "dp": 1} | {long[name]: size for name, size in row["sizes"].items()}
    topology = vllm_topology(sizes, row["nnodes"])
    engine = sizes["tp"] * sizes["pp"]
    alone = vllm_independent(row["version"], row["model_is_moe"], sizes["dp"])
    worlds: dict[str, set[int]] = {}
    wrong = 0
    for values in row["workers"]:
        found = dict(zip(row["columns"], values, strict=True))
        rank = found["dp_index"] * engine + found["rank_in_engine"]
        assert topology.hosts[found["node"]] is topology.host_of(rank)
        leader = topology.host_of(VLLM_ENGINE.owner_of(topology, {"rank": rank}))
        assert found["leader_node"] == (leader is topology.host_of(rank))
        ours = (engine, rank % engine) if alone else (topology.size, rank)
        wrong += ours != (found["torch_world_size"], found["torch_rank"])
        worlds.setdefault(str(found["init_method"]), set()).add(found["torch_world_size"])
    # Replicas that are worlds of their own must not span hosts: their followers were never told.
    spans = any(len({topology.host_of(rank) for rank in group.members}) > 1 for group in VLLM_ENGINE.groups(topology))
    assert row["rendezvous_consistent"] == (not (alone and spans)) == (not wrong)
    assert row["rendezvous_consistent"] == all(len(sizes) == 1 for sizes in worlds.values())


def test_one_rendezvous_is_inconsistent() -> None:
    assert [row["id"] for row in RENDEZVOUS if not row["rendezvous_consistent"]] == [
        "vllm-0.33.0-rdv-dense-tp4dp2-nnodes4"
    ]


# ---- endpoints


UNREADABLE = {
    "tcp://*": "no port",
    "tcp://host.example": "no port",
    "ws://*:5557": "unknown transport",
    "": "no transport",
}
"""Endpoints that libzmq refuses, or that we do not know (ws). The engines pass them on at index 0, unread."""


@pytest.mark.parametrize("row", RULES, ids=lambda row: f"{row['engine']}-{row['version']}-{row['endpoint']}")
def test_kv_endpoint_rules(row: Row) -> None:
    """The port of each index. Bind or connect (``mode``) is decided by substrings, and is the engines' own."""
    text = row["endpoint"]
    base = outcome(lambda: Endpoint.parse(text), EndpointError)
    assert isinstance(base, EndpointError) == (text in UNREADABLE)
    if isinstance(base, EndpointError):
        assert UNREADABLE[text] in str(base)
        assert all(text == found.get("endpoint", text) for found in row["by_index"].values())
        assert not isinstance(row["advertised"], dict)
        return
    assert base.needs_ipv6 == ("::" in text)
    for key, found in row["by_index"].items():
        index = int(key)
        if "error" in found:
            assert base.transport == "ipc"
            assert index > 0
            continue
        if row["version"] == "0.33.0" and text == "tcp://*:0":
            # vLLM 0.33.0 leaves port 0 alone, so that the kernel picks each; a sum with 0 in it would not.
            assert Endpoint.parse(found["endpoint"]).kernel_picks
            continue
        ours = offset(text, "dp", index).render({"dp": index})
        assert ours == found["endpoint"]
        usable = base.transport != "tcp" or 0 < base.last <= MAX_PORT
        assert overlaps(Endpoint.parse(ours), base, same_process=True) == (index == 0 and usable)
        if base.transport == "tcp":
            assert (Endpoint.parse(ours).last > MAX_PORT) == (base.first + index > MAX_PORT)
    if isinstance(row["advertised"], dict):
        assert row["advertised"]["endpoint_host"].strip("[]") == base.host
        assert row["advertised"]["endpoint_port_base"] == base.first <= MAX_PORT


def test_kv_endpoint_rules_that_are_engine_facts_are_counted() -> None:
    cells = [(row["endpoint"], key, found) for row in RULES for key, found in row["by_index"].items()]
    assert len(cells) == 168 * 4
    assert len({row["endpoint"] for row in RULES}) == 24
    # Nothing to compare for these: ipc at every index but 0, and libzmq's refusals.
    assert sum("error" in found for _, _, found in cells) == 7 * (3 + 3) * 3
    assert sum(endpoint in UNREADABLE for endpoint, _, _ in cells) == 7 * 4 * 4
    assert Counter(type(row["advertised"]).__name__ for row in RULES) == {"str": 72, "dict": 50, "NoneType": 46}


@pytest.mark.parametrize("row", REALBIND, ids=lambda row: f"{row['id']}-node{row['node']}")
def test_sglang_real_binds(row: Row) -> None:
    """What happened when the owners of one node really bound, one after another, is what `overlaps` says."""
    launch = next((other for other in SGLANG if other["id"] == row["id"]), None) or sglang_unlisted(row, SGLANG)
    job, axis, config = sglang_job(launch), sglang_index(launch), kv_config(launch)
    publishers = {publisher["rank_row"]: publisher for publisher in launch["kv_publishers"]}
    assert [owner["rank_row"] for owner in row["owners"]] == [
        rank for rank, publisher in publishers.items() if publisher["node"] == row["node"]
    ]
    held: list[Endpoint] = []
    for owner in row["owners"]:
        variables = job.variables(owner["rank_row"])
        expected = "ok"
        for role, key in (("pub", "endpoint"), ("replay", "replay_endpoint")):
            publisher = publishers[owner["rank_row"]]
            if expected != "ok" or key not in config or publisher.get(role, {}).get("mode") == "connect":
                continue
            if "error" in publisher:
                expected = "ValueError"
                continue
            wanted = Endpoint.parse(offset(config[key], axis, variables[axis]).render(variables))
            if wanted.needs_ipv6 and not wanted.ipv6:
                expected = "ENODEV"
            elif any(overlaps(wanted, other, same_process=True) for other in held):
                expected = "EADDRINUSE"
            else:
                held.append(wanted)
        assert owner["outcome"] == expected, owner


def test_real_binds_by_outcome() -> None:
    outcomes = Counter(owner["outcome"] for row in REALBIND for owner in row["owners"])
    assert outcomes == {"ok": 147, "EADDRINUSE": 11, "ENODEV": 4, "ValueError": 2}
