"""Who owns the KV events of vLLM, and where an engine core stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rankbind import Scope, Topology

KV_EVENTS = Scope(group=("pp", "pcp", "tp"), rank=0)
"""The declaration: one publisher for each replica, that is for each index of data parallelism, owned by the engine core
beside the first of the ranks that work on its KV cache together."""


@dataclass(frozen=True)
class Position:
    """An engine core's place: that of the first rank on its host.

    Attributes:
        coordinates: index on each axis.
        owns: whether this engine core owns the KV events of its replica.
        index: the number of its replica, which vLLM adds to the base port.
        rank: over all replicas.
    """

    coordinates: Mapping[str, int]
    owns: bool
    index: int
    rank: int

    @property
    def group(self) -> Mapping[str, int]:
        """Which replica it is, on the axes that have one for each index."""
        return {axis: at for axis, at in self.coordinates.items() if axis not in KV_EVENTS.group}

    def __str__(self) -> str:
        return ", ".join(f"{axis} {at}" for axis, at in self.coordinates.items())


def position(parallel: Any) -> Position:
    """The place that vLLM's ``ParallelConfig`` describes, in the process of an engine core.

    Raises:
        AttributeError: a rank or a size is not there.
        TopologyError: the sizes contradict each other.
    """
    # The replicas of a dense model know nothing of each other, and each has the data_parallel_rank 0, from the release
    # on that has an index beside it.
    index = getattr(parallel, "data_parallel_index", None)
    index = parallel.data_parallel_rank if index is None else index
    sizes = {
        "pp": parallel.pipeline_parallel_size,
        "pcp": getattr(parallel, "prefill_context_parallel_size", 1),
        "tp": parallel.tensor_parallel_size,
    }
    topology = Topology({"dp": max(parallel.data_parallel_size, index + 1), **sizes}, hosts={})
    first = topology.rank({"dp": index, "pp": 0, "pcp": 0, "tp": 0})
    coordinates = topology.complete({"rank": first + _first_here(parallel, index)})
    return Position(
        MappingProxyType({axis: coordinates[axis] for axis in topology.axes}),
        owns=KV_EVENTS.is_owner(topology, coordinates),
        index=index,
        rank=first + _first_here(parallel, index),
    )


def _first_here(parallel: Any, index: int) -> int:
    """The first rank on this host, in its replica: not 0 where a replica spans hosts, and this is not its first.

    An engine core belongs on the first alone. Elsewhere somebody forgot ``--headless``.
    """
    if getattr(parallel, "nnodes", 1) == 1:
        return 0
    # Before 0.28.0 a dense model's replica is told that it is alone, and that all the nodes are its own.
    mistold = not hasattr(parallel, "reconfigure_for_independent_dp_rank") and parallel.data_parallel_size == 1
    if mistold and index:
        return 0
    return int(parallel.node_rank_within_dp * parallel.local_world_size)


def replica(index: int) -> Position:
    """The place of an engine core of which nothing is known but its index."""
    at = {"dp": index, "pp": 0, "pcp": 0, "tp": 0}
    return Position(MappingProxyType(at), owns=True, index=index, rank=index)
