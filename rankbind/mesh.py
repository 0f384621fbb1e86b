"""What torch's DeviceMesh and process groups say about all ranks, as plain data.

torch is never imported here: who has a mesh has imported it. The mesh that a slice was cut from, and what was flattened
of it, are no public part of torch 2.6 to 2.13: `_root`, `_flattened` and `_ranks` have all that is used of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from rankbind.errors import TopologyError
from rankbind.layout import few

TIMEOUT = 300.0
"""Seconds that the slowest rank may take to a call that every rank has to make."""

_GRACE = 10.0
"""How much longer the others wait for rank 0, which says who is missing."""


class Mesh(NamedTuple):
    """A mesh of the whole world.

    Attributes:
        groups: by dimension, its groups: of its own dimensions all, of flattened ones those that this process sees.
        world: how many ranks there are.
    """

    groups: dict[str, list[list[int]]]
    world: int


def read(mesh: Any, names: Sequence[str] | None = None) -> Mesh:
    """The mesh that `mesh` was cut from, and all that is known to have been flattened or unflattened of it.

    Args:
        mesh: a DeviceMesh, or what slicing, ``_flatten`` and ``_unflatten`` made of one.
        names: of its dimensions, where it has none, or others than these.

    Raises:
        TopologyError: it has no names, or leaves ranks of the job out.
    """
    root = _root(mesh)
    (whole, *_), world = _ranks(root), _world(root)
    held = sorted(whole.flat)
    if held != list(range(world)):
        lost = next((rank for rank in range(world) if rank not in held), held[-1])
        raise TopologyError(
            f"the {_said(root)} holds the ranks {few(held)}, and the job has ranks 0..{world - 1}: rank {lost} has no "
            "place. Give a mesh of the whole world, or the axes"
        )
    if names is not None and mesh is not root:
        raise TopologyError(f"names are for a whole mesh, and {_said(mesh)} is a part of {_said(root)}")
    named = tuple(names or root.mesh_dim_names or ())
    if len(named) != len(whole.shape) or len(set(named)) != len(named):
        raise TopologyError(
            f"the {_said(root)} has {len(whole.shape)} dimensions, and their names are {list(named) or 'not known'}: "
            'make it with mesh_dim_names, or give names=("pp", "tp"); they become the axes'
        )
    groups = _lines(named, [whole])
    for part in _flattened(root) if mesh is root else (*_flattened(root), mesh):
        found = _lines(part.mesh_dim_names or (), _ranks(part))
        new = {name: lines for name, lines in found.items() if name not in groups}
        # What a mesh of fewer dimensions was unflattened into says more than they do.
        groups = new | groups if part is mesh and len(found) > len(named) else groups | new
    return Mesh(groups, world)


def own_groups(groups: Mapping[str, Any]) -> tuple[dict[str, list[int]], int, int]:
    """The ranks of each process group that this process is in, its rank, and the size of the world.

    Raises:
        TopologyError: it is not in one of them, or there is no torch.distributed.
    """
    dist = _distributed()
    rank, found = dist.get_rank(), dict[str, list[int]]()
    for name, group in groups.items():
        # What new_group returns to those who are not in the group has no ranks, or those of some other.
        try:
            found[name] = dist.get_process_group_ranks(group)
        except Exception as error:
            raise TopologyError(f"rank {rank} has no process group for axis {name}: {error}", name) from error
        if rank not in found[name]:
            raise TopologyError(
                f"rank {rank} is not part of the process group given for axis {name} ({found[name]})", name
            )
    return found, rank, dist.get_world_size()


def gather_groups(
    groups: Mapping[str, Any], timeout: float = TIMEOUT
) -> tuple[dict[str, list[list[int]]], dict[str, tuple[int, ...]]]:
    """The groups of all ranks, by axis, and the ranks of each host. Every rank has to call it.

    Raises:
        TopologyError: on every rank alike: one of them has no group for an axis, has other axes than the others, or
            did not call within `timeout` seconds.
    """
    try:
        mine: dict[str, list[int]] | str = own_groups(groups)[0]
    except Exception as error:
        if not _initialised():
            raise
        mine = str(error)  # said when all have met, as the others are waiting already
    found = _gather({"groups": mine, "host": _here()}, _agreed, timeout)
    return found["groups"], {name: tuple(ranks) for name, ranks in found["hosts"].items()}


def gather_hosts(timeout: float = TIMEOUT) -> dict[str, tuple[int, ...]]:
    """The ranks of each network namespace, as `rankbind.Topology` takes its hosts. Every rank has to call it.

    Raises:
        TopologyError: torch.distributed is not initialised, or a rank did not call within `timeout` seconds.
    """
    found = _gather(_here(), _hosts, timeout)
    return {name: tuple(ranks) for name, ranks in found.items()}


def _agreed(said: Sequence[Any]) -> dict[str, Any]:
    """What `gather_groups` gives, from what each rank said. Raises `TopologyError`."""
    every: dict[str, list[list[int]]] = {}
    for rank, theirs in enumerate(each["groups"] for each in said):
        if isinstance(theirs, str):
            raise TopologyError(theirs)
        if list(theirs) != list(said[0]["groups"]):
            raise TopologyError(
                f"rank {rank} gives process groups for {', '.join(theirs) or 'no axis'}, and rank 0 for "
                f"{', '.join(said[0]['groups']) or 'no axis'}: all ranks give the same axes in the same order"
            )
    for rank, theirs in enumerate(each["groups"] for each in said):
        for name, group in theirs.items():
            if group[0] != rank:
                continue
            every.setdefault(name, []).append(group)
            for other in group:
                known = said[other]["groups"][name]
                if known != group:
                    raise TopologyError(
                        f"ranks {rank} and {other} do not agree on their {name} group: {few(group)} and {few(known)}",
                        name,
                    )
    return {"groups": every, "hosts": _hosts([each["host"] for each in said])}


# Hosts


def _here() -> tuple[str, str, int, int]:
    """The name of this host, what tells it from others, and which of its ranks this one is, if a launcher says so."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        network = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        boot, network = "", 0
    local = os.environ.get("LOCAL_RANK", "")
    return os.uname().nodename, boot, network, int(local) if local.isdecimal() else -1


def _hosts(said: Sequence[tuple[str, str, int, int]]) -> dict[str, tuple[int, ...]]:
    """The ranks of each host in local-rank order; hosts of one name are numbered."""
    found: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for rank, (name, boot, network, local) in enumerate(said):
        found.setdefault((name, boot, network), []).append((local, rank))
    names: dict[str, tuple[int, ...]] = {}
    for (name, _, _), ranks in found.items():
        title, number = name, 2
        while title in names:
            title, number = f"{name}-{number}", number + 1
        names[title] = tuple(rank for _, rank in sorted(ranks))
    return names


# torch


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    flat: list[int]


def _ranks(mesh: Any) -> list[_Tensor]:
    """The ranks of `mesh`; of a part, from torch 2.10 on, also those of the same part elsewhere."""
    layout, ranks = getattr(mesh, "_layout", None), getattr(mesh, "_rank_map", None)
    try:
        every = mesh.mesh.unsqueeze(0) if layout is None or ranks is None else layout.remap_to_tensor(ranks)
        return [_Tensor(tuple(map(int, one.shape)), one.flatten().tolist()) for one in every]
    except Exception as error:
        raise TopologyError(
            f"the {_said(mesh)} cannot be read here, as its ranks are no plain numbers: {error}"
        ) from error


def _lines(names: Sequence[str], tensors: Sequence[_Tensor]) -> dict[str, list[list[int]]]:
    """By dimension, the ranks that differ in it alone."""
    found: dict[str, list[list[int]]] = {name: [] for name in names}
    for shape, flat in tensors:
        for dim, name in enumerate(names):
            size, stride = shape[dim], prod(shape[dim + 1 :])
            for start in range(len(flat)):
                if start // stride % size == 0:
                    found[name].append(flat[start : start + size * stride : stride])
    return found


def _root(mesh: Any) -> Any:
    """The mesh that `mesh` was cut from. From torch 2.10 on DeviceMesh itself knows; before, its module."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    known = getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)
    return mesh if known is None else known.get_root_mesh(mesh)


def _flattened(root: Any) -> list[Any]:
    """The meshes of one dimension that were flattened out of parts of `root` so far."""
    if hasattr(root, "_flatten_mapping"):
        return list(root._flatten_mapping.values())
    known = getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)
    return list(getattr(known, "root_to_flatten_mapping", {}).get(root, {}).values())


def _said(mesh: Any) -> str:
    names = mesh.mesh_dim_names
    return f"DeviceMesh {tuple(names)}" if names else "DeviceMesh"


def _initialised() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and bool(dist.is_initialized())


def _world(mesh: Any) -> int:
    """How many ranks there are; a mesh that was made without process groups is taken at its word."""
    return int(sys.modules["torch.distributed"].get_world_size()) if _initialised() else int(mesh.size())


def _distributed() -> Any:
    if not _initialised():
        raise TopologyError("torch.distributed is not initialised in this process: call init_process_group first")
    return sys.modules["torch.distributed"]


def _gather(mine: Any, decide: Callable[[Sequence[Any]], Any], timeout: float) -> Any:
    """What `decide` makes, on rank 0, of what every rank says. It goes by way of the job's store.

    A collective would want numpy (``all_gather_object``) and the ranks' devices, and would say less of who is missing.
    """
    dist = _distributed()
    store = sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    call = f"rankbind/gather/{store.add(f'rankbind/calls/{rank}', 1)}"
    store.set(f"{call}/{rank}", json.dumps(mine))
    if rank == 0:
        last = time.monotonic() + timeout
        try:
            said = [_wait(store, f"{call}/{each}", each, last - time.monotonic()) for each in range(world)]
            outcome = {"found": decide(said)}
        except TopologyError as error:
            outcome = {"error": str(error)}
        store.set(call, json.dumps(outcome))
    outcome = _wait(store, call, 0, timeout + _GRACE)
    if "error" in outcome:
        raise TopologyError(outcome["error"])
    return outcome["found"]


def _wait(store: Any, key: str, rank: int, seconds: float) -> Any:
    try:
        store.wait([key], timedelta(seconds=max(seconds, 0.1)))
        return json.loads(store.get(key))
    except Exception as error:
        raise TopologyError(
            f"rank {rank} has not said what it knows: every rank of the job has to make this call ({error})"
        ) from error
