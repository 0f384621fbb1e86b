"""Rows of tests/oracles as topologies, gates and templates: a launch of SGLang or vLLM said in rankbind's words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankbind.endpoint import Endpoint, overlaps
from rankbind.resource import Job
from rankbind.scope import Gate, Scope
from rankbind.template import Template
from rankbind.topology import Topology, View

FOLDER = Path(__file__).parent.parent / "oracles"
SGLANG_VERSIONS = ("0.5.10", "0.5.14", "0.5.15", "0.5.20", "0.5.23")
VLLM_VERSIONS = ("0.11.0", "0.33.0")

MENDED = Scope(("pp", "attn_tp", "attn_cp"), 0)
"""SGLang's KV event publisher as it is from 0.5.15 on, in one sentence."""


def load(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())["rows"]
    return rows


def option(row: Mapping[str, Any], name: str, default: str = "") -> str:
    """The value of a launch option."""
    argv: list[str] = row["argv"]
    return argv[argv.index(name) + 1] if name in argv else default


def kv_config(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(option(row, "--kv-events-config", "{}"))
    return found


# ---- SGLang


def sglang_topology(sizes: Mapping[str, int], nnodes: int = 1) -> Topology:
    """A launch of SGLang. Replicas of pure data parallelism are worlds of their own: the outermost axis, dp."""
    tp, pp, attn_dp = sizes["tp"], sizes["pp"], sizes["attn_dp"]
    replicas = sizes.get("dp_size", 1) if attn_dp == 1 else 1
    # engine._calculate_rank_ranges: blocks of consecutive ranks, rounded down, so that some may be left out.
    block = max(pp // nnodes, 1) * (tp // max(nnodes // pp, 1))
    return Topology(
        {"dp": replicas, "pp": pp, "tp": tp},
        {
            "attention": View(
                "tp",
                {
                    "attn_dp": attn_dp,
                    "attn_cp": sizes["attn_cp"],
                    "attn_tp": tp // attn_dp // sizes["attn_cp"],
                },
            ),
            "moe": View(
                "tp",
                {
                    "moe_dp": sizes["moe_dp"],
                    "moe_ep": sizes["ep"],
                    "moe_tp": tp // sizes["ep"] // sizes["moe_dp"],
                },
            ),
        },
        nnodes if block * nnodes == tp * pp else [block] * nnodes,
    )


def sglang_gate(row: Mapping[str, Any], name: str) -> Gate:
    """A gate as it stands in SGLang's source: ``["pp_rank=last", "attn_tp_rank=0"]``, or the name of another gate."""
    terms: dict[str, int] = {}
    for term in row["gates"][name]["axes"]:
        axis, equals, value = term.partition("=")
        if not equals:
            return sglang_gate(row, axis)
        terms[axis.removesuffix("_rank")] = -1 if value == "last" else int(value)
    return Gate(terms)


def owner_rows(gate: Mapping[str, Any], owners: Sequence[int]) -> bool:
    """Whether `owners` are those of a gate; the oracle lists the first 64 and then says how many there are."""
    rows: list[Any] = gate["owner_rows"]
    if rows and isinstance(rows[-1], str):
        return list(owners[: len(rows) - 1]) == rows[:-1] and f"... {len(owners)} total" == rows[-1]
    return list(owners) == rows


def sglang_index(row: Mapping[str, Any]) -> str:
    """The axis by which a release counts its ports: the replica only from 0.5.15 on."""
    knows_replicas = row["version"] not in ("0.5.9", "0.5.10", "0.5.12", "0.5.13", "0.5.14")
    return "dp" if knows_replicas and row["resolved"]["attn_dp"] == 1 else "attn_dp"


def sglang_unlisted(real: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The launch of a row of sglang-realbind that sglang-VERSION.json does not list, from its id; one publisher bound
    on every wildcard, by the gate of its release."""
    shapes = {
        "dpattn-tp8dp4": {"tp": 8, "attn_dp": 4},
        "dpattn-tp8dp8": {"tp": 8, "attn_dp": 8},
        "dpattn-tp8pp2dp4-n2": {"tp": 8, "pp": 2, "attn_dp": 4, "nnodes": 2},
        "highport-http65400": {"tp": 4, "attn_dp": 2},
        "load-auto-dp4": {"tp": 8, "attn_dp": 4},
    }
    _, version, shape = real["id"].split("-", 2)
    sizes = {"pp": 1, "attn_cp": 1, "ep": 1, "moe_dp": 1, **shapes[shape]}
    nnodes = sizes.pop("nnodes", 1)
    row = {
        "id": real["id"],
        "version": version,
        "nnodes": nnodes,
        "resolved": sizes,
        "argv": ["--kv-events-config", '{"endpoint": "tcp://*:5557"}'],
        "gates": next(other["gates"] for other in rows if other["version"] == version),
    }
    job = Job(sglang_topology(sizes, nnodes))
    row["kv_publishers"] = [
        {"rank_row": rank, "node": job.variables(rank)["node_rank"], "pub": {"mode": "bind"}}
        for rank in sglang_gate(row, "kv_publisher").owners(job.topology)
    ]
    return row


# ---- vLLM


def vllm_topology(sizes: Mapping[str, int], hosts: int = 1) -> Topology:
    """A launch of vLLM. Expert parallelism joins dp, pcp and tp, decode context parallelism cuts tp."""
    dp, pcp, tp, dcp = sizes["dp"], sizes.get("pcp", 1), sizes["tp"], sizes.get("dcp", 1)
    return Topology(
        {"dp": dp, "pp": sizes["pp"], "pcp": pcp, "tp": tp},
        {
            "expert": View(("dp", "pcp", "tp"), {"ep": dp * pcp * tp}),
            "decode": View("tp", {"dcp_outer": tp // dcp, "dcp": dcp}),
        },
        hosts,
    )


VLLM_ENGINE = Scope(("pp", "pcp", "tp"), 0)
"""One EngineCore for each dp index; it runs on the host of its first worker."""


def vllm_independent(version: str, is_moe: bool, dp: int) -> bool:
    """Whether each dp index is a torch world of its own: dense models from some release after 0.11.0 on."""
    return version == "0.33.0" and not is_moe and dp > 1


# ---- addresses


def offset(endpoint: str, axis: str, index: int) -> Template:
    """What both engines make of a KV endpoint, as a template over the coordinate that they add.

    For inproc they append ``_dp1`` and more but leave index 0 alone, which a template cannot say: there are two.
    """
    if endpoint.startswith("inproc"):
        return Template(endpoint if index == 0 else f"{endpoint}_dp{{{axis}}}")
    if endpoint.startswith("tcp") and endpoint.rpartition(":")[2].isdigit():
        head, _, port = endpoint.rpartition(":")
        return Template(f"{head}:{{{port} + {axis}}}")
    return Template(endpoint)


def bound(job: Job, row: Mapping[str, Any], who: str, axis: str) -> list[tuple[int, str, int, Endpoint]]:
    """(`who`, role, node, endpoint) of every bind that the publishers of a row make, by our templates.

    Whether the engine binds or connects, it decides by how the endpoint is spelt: that is taken from the row.
    """
    found = []
    engine = job.topology.size // job.topology.sizes["dp"]
    for publisher in row["kv_publishers"]:
        variables = job.variables(publisher[who] * (engine if who == "dp_index" else 1))
        for role, key in (("pub", "endpoint"), ("replay", "replay_endpoint")):
            if publisher.get(role, {}).get("mode") == "bind":
                template = offset(kv_config(row)[key], axis, variables[axis])
                endpoint = Endpoint.parse(template.render(variables))
                found.append((publisher[who], role, variables["node_rank"], endpoint))
    return found


def collisions(binds: list[tuple[int, str, int, Endpoint]]) -> set[frozenset[tuple[int, str, int]]]:
    """The pairs of binds, each as (who, role, node), that get in each other's way on one host."""
    return {
        frozenset({one[:3], other[:3]})
        for at, one in enumerate(binds)
        for other in binds[:at]
        if one[2] == other[2] and overlaps(one[3], other[3])
    }


def recorded_collisions(row: Mapping[str, Any]) -> set[frozenset[tuple[int, str, int]]]:
    """The pairs in ``{"node0:5557": [[0, "pub"], [4, "pub"]]}``."""
    found = set()
    for key, binds in row["kv_bind_collisions"].items():
        node = int(key.partition(":")[0].removeprefix("node"))
        ends = [(who, role, node) for who, role in binds]
        found |= {frozenset({one, other}) for at, one in enumerate(ends) for other in ends[:at]}
    return found
