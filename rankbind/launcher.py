"""What others say about this process: variables (rankbind's, torchrun's, SLURM's, Open MPI's) and torch's own objects.

Each source makes a `Statement`, or none. Values of variables are text: anything but plain digits is an error, and half
a source (a rank without the size of its world) is none. torch is never imported here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankbind import layout, mesh
from rankbind.errors import IdentityError, TopologyError
from rankbind.topology import Topology


@dataclass(frozen=True, slots=True)
class Statement:
    """What one source says of this process.

    Attributes:
        said: the source, with the names and values of its variables.
        at: indices on axes, or ``{"rank": r}``.
        size: how many ranks its world has; None: it speaks of whatever world is declared.
        blocks: how many consecutive ranks each host runs, where it is known.
    """

    said: str
    at: Mapping[str, int]
    size: int | None = None
    blocks: tuple[int, ...] | None = None


def from_launchers() -> list[Statement]:
    """What the launchers say, nearest first. Several may speak of different worlds: srun can start torchrun."""
    return [said for said in (_torchrun(), _slurm(), _open_mpi()) if said is not None]


def from_own_variables(size: int | None) -> list[Statement]:
    """``RANKBIND_RANK`` and ``RANKBIND_COORDINATES``, in a world of `size` ranks."""
    found = []
    if "RANKBIND_RANK" in os.environ:
        rank = number("RANKBIND_RANK")
        found.append(Statement(f"RANKBIND_RANK={rank}", {"rank": rank}, size))
    if "RANKBIND_COORDINATES" in os.environ:
        at = pairs("RANKBIND_COORDINATES")
        found.append(Statement(f"RANKBIND_COORDINATES={os.environ['RANKBIND_COORDINATES']}", at, size))
    return found


def variables() -> dict[str, str]:
    """Every variable that a source reads."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("RANKBIND_", "SLURM_", "OMPI_")) or name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    }


def not_enough() -> str:
    """What is set and still does not answer who this process is; empty when there is no such thing."""
    env, seen = os.environ, []
    if "RANK" in env:
        seen.append(f"RANK={env['RANK']} without WORLD_SIZE")
    if "LOCAL_RANK" in env:
        seen.append(f"LOCAL_RANK={env['LOCAL_RANK']}, which counts within a host and says nothing about the world")
    if "SLURM_PROCID" in env:
        seen.append(f"SLURM_PROCID={env['SLURM_PROCID']} outside a step, as in a batch script: start tasks with srun")
    if "RANKBIND_RANK" in env or "RANKBIND_COORDINATES" in env:
        seen.append("RANKBIND_RANK or RANKBIND_COORDINATES without RANKBIND_AXES or RANKBIND_TOPOLOGY")
    return "; ".join(seen)


def number(name: str) -> int:
    """The variable `name` as a number. Raises `IdentityError` for anything but digits: no sign, no blanks."""
    text = os.environ[name]
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise IdentityError(f"{name}={text!r} is not a number: it must be digits alone, as in {name}=3")
    return int(text)


def pairs(name: str) -> dict[str, int]:
    """The variable `name` as ``pp=2,tp=4``. Raises `IdentityError` for anything else."""
    text, found = os.environ[name], dict[str, int]()
    for part in text.split(","):
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=([0-9]{1,9})", part)
        if match is None or match[1] in found:
            wrong = f"names {match[1]} twice" if match else f"cannot be read at {part!r}"
            raise IdentityError(f"{name}={text!r} {wrong}: it is written pp=2,tp=4")
        found[match[1]] = int(match[2])
    return found


def hosts() -> int | tuple[int, ...] | None:
    """``RANKBIND_HOSTS``: the number of hosts, or how many ranks each of them runs; None when it is not set."""
    text = os.environ.get("RANKBIND_HOSTS")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise IdentityError(
            f"RANKBIND_HOSTS={text!r} cannot be read: write the number of hosts, 2, or how many ranks each runs, 4,4"
        )
    counts = tuple(map(int, text.split(",")))
    return counts[0] if len(counts) == 1 else counts


def _world(name: str, rank_name: str, size_name: str) -> Statement | None:
    if rank_name not in os.environ or size_name not in os.environ:
        return None
    rank, size = number(rank_name), number(size_name)
    said = f"{name} ({rank_name}={rank}, {size_name}={size})"
    if rank >= size:
        raise IdentityError(f"{said}: there is no such rank, they count from 0 to {size_name} - 1")
    return Statement(said, {"rank": rank}, size)


def _torchrun() -> Statement | None:
    """RANK and WORLD_SIZE: torchrun's, and torch's own ``env://`` rendezvous.

    torchrun numbers the ranks agent by agent (torch/distributed/elastic/agent/server/api.py, _assign_worker_ranks), so
    with equal agents each host runs LOCAL_WORLD_SIZE consecutive ones. One agent a host is assumed.
    """
    said = _world("torchrun", "RANK", "WORLD_SIZE")
    if said is None or said.size is None or "LOCAL_WORLD_SIZE" not in os.environ:
        return said
    local = number("LOCAL_WORLD_SIZE")
    if local < 1 or said.size % local:
        return said
    agents, agent = said.size // local, said.at["rank"] // local
    for name, expected in (("GROUP_RANK", agent), ("GROUP_WORLD_SIZE", agents)):
        if name in os.environ and number(name) != expected:
            return said
    return replace(said, blocks=(local,) * agents, said=f"{said.said[:-1]}, LOCAL_WORLD_SIZE={local})")


def _slurm() -> Statement | None:
    """SLURM_PROCID in a step of SLURM_STEP_NUM_TASKS tasks (srun(1), "output environment variables").

    A batch script has SLURM_PROCID=0 and SLURM_NTASKS as well and is no task: outside a step they say nothing. Each
    node runs the tasks that SLURM_STEP_TASKS_PER_NODE counts if SLURM_GTIDS, the tasks of this node, says so too; with
    a cyclic distribution it does not, and the hosts stay unknown.
    """
    env = os.environ
    in_step = "SLURM_STEP_ID" in env or "SLURM_STEP_NUM_TASKS" in env
    if "SLURM_JOB_ID" in env and not in_step:
        return None
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    said = _world("SLURM", "SLURM_PROCID", size_name)
    counts = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or ""
    parts = [re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?", part) for part in counts.split(",")]
    blocks = tuple(int(part[1]) for part in parts if part for _ in range(int(part[2] or 1)))
    if said is None or None in parts or sum(blocks) != said.size or "SLURM_NODEID" not in env:
        return said
    node = number("SLURM_NODEID")
    mine = range(sum(blocks[:node]), sum(blocks[: node + 1]))
    listed = ",".join(map(str, mine))
    if said.at["rank"] not in mine or env.get("SLURM_GTIDS", listed) != listed:
        return said
    return replace(said, blocks=blocks)


def _open_mpi() -> Statement | None:
    """OMPI_COMM_WORLD_RANK and _SIZE (Open MPI 5, "Environment variables set for MPI applications").

    Ranks may be mapped to nodes in any way and no variable tells how: the hosts are known only if there is one.
    """
    said = _world("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if said is None or "OMPI_COMM_WORLD_LOCAL_SIZE" not in os.environ:
        return said
    local = number("OMPI_COMM_WORLD_LOCAL_SIZE")
    return replace(said, blocks=(local,)) if local == said.size else said


def from_mesh(device_mesh: Any) -> tuple[Topology, Statement]:
    """The topology of a ``DeviceMesh``, or of the mesh that it is a part of, and the place of this process in it.

    Raises:
        IdentityError: it has no dimension names, leaves ranks out, or numbers them in no order of axes.
    """
    try:
        topology, (_, rank, _) = Topology.from_device_mesh(device_mesh), mesh.own_groups({})
    except TopologyError as error:
        raise IdentityError(f"device_mesh: {error}") from error
    return topology, _stated("DeviceMesh", topology, topology.axes, rank)


def from_groups(groups: Mapping[str, Any]) -> tuple[Topology, Statement]:
    """The topology of which this process's groups are axes, if those of the others are alike, and its place in it.

    Raises:
        IdentityError: this process is in none of them, or they are not the axes of the whole world.
    """
    try:
        own, rank, world = mesh.own_groups(groups)
        topology = Topology.from_layout(layout.explain({name: [group] for name, group in own.items()}, world), {})
    except TopologyError as error:
        raise IdentityError(f"process_groups: {error}") from error
    return topology, _stated("process groups", topology, own, rank)


def _stated(what: str, topology: Topology, names: Iterable[str], rank: int) -> Statement:
    at = topology.coordinates(rank)
    sizes = {name: topology.sizes[name] for name in topology.sizes if name in names}
    found = {name: at[name] for name in sizes}
    return Statement(f"{what} {sizes} at {found}", found | {"rank": rank}, topology.size)
