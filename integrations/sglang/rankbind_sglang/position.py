"""Who owns the KV events of SGLang, and where this process stands.

Every formula of ranks here was obtained by running SGLang's own functions, 0.5.9 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from rankbind import Scope, Topology, View
from rankbind_sglang.releases import Ranks

KV_EVENTS = Scope(group=("pp", "attn_tp", "attn_cp"), rank=0)
"""The declaration: one publisher for each KV cache, that is for each replica and each rank of attention data
parallelism, owned by the first rank of all that work on this cache together."""


@dataclass(frozen=True)
class Position:
    """A scheduler's place in the topology that its engine was launched with.

    Attributes:
        coordinates: index on each axis, the attention view's for tp.
        owns: whether this scheduler owns the KV events of its cache.
        index: the number of its cache, which is added to the base port.
        rank: in the world of its replica.
    """

    coordinates: Mapping[str, int]
    owns: bool
    index: int
    rank: int

    @property
    def group(self) -> Mapping[str, int]:
        """Which cache it is, on the axes that have one for each index."""
        return {axis: at for axis, at in self.coordinates.items() if axis not in KV_EVENTS.group}

    def __str__(self) -> str:
        return ", ".join(f"{axis} {at}" for axis, at in self.coordinates.items())


def position(ranks: Any) -> Position:
    """The place that SGLang's `ranks` describe: any object with its ``pp_rank``, ``attn_tp_size`` and so on.

    Raises:
        AttributeError: a rank or a size is not there.
        TopologyError: the sizes contradict each other.
    """
    attn_dp_size = ranks.tp_size // (ranks.attn_tp_size * ranks.attn_cp_size)
    # Under attention data parallelism dp_rank repeats attn_dp_rank; where no controller has set it, it is None.
    replica = 0 if attn_dp_size > 1 else ranks.dp_rank or 0
    # Not dp_size alone: a replica that was started by hand, with SGLANG_DP_RANK, has a dp_size of 1.
    replicas = 1 if attn_dp_size > 1 else max(ranks.dp_size, replica + 1)
    topology = Topology(
        axes={"dp": replicas, "pp": ranks.pp_size, "tp": ranks.tp_size},
        views={
            "attention": View(
                of="tp",
                axes={"attn_dp": attn_dp_size, "attn_cp": ranks.attn_cp_size, "attn_tp": ranks.attn_tp_size},
            )
        },
    )
    coordinates = {
        "dp": replica,
        "pp": ranks.pp_rank,
        "attn_dp": ranks.attn_dp_rank,
        "attn_cp": ranks.attn_cp_rank,
        "attn_tp": ranks.attn_tp_rank,
    }
    return Position(
        MappingProxyType(coordinates),
        owns=KV_EVENTS.is_owner(topology, coordinates),
        # SGLang runs replicas or attention data parallelism, never both, so this is the index on one of the two axes.
        index=replica * attn_dp_size + ranks.attn_dp_rank,
        rank=ranks.pp_rank * ranks.tp_size
        + (ranks.attn_dp_rank * ranks.attn_cp_size + ranks.attn_cp_rank) * ranks.attn_tp_size
        + ranks.attn_tp_rank,
    )


def ranks_of(source: Ranks, holder: object, arguments: Mapping[str, Any]) -> Any:
    """Where a site finds its ranks in this release.

    Args:
        source: from the release's layout.
        holder: the object whose method the site is, None for a function.
        arguments: what the site was called with.
    """
    if source == "scheduler":
        return holder
    if source == "ps":
        return arguments.get("ps") or holder.ps  # type: ignore[attr-defined]
    return import_module("sglang.srt.runtime_context").get_parallel()
