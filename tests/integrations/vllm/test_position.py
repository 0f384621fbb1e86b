from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rankbind_vllm.position import KV_EVENTS, position, replica


def parallel(**fields: Any) -> SimpleNamespace:
    """As much of a ParallelConfig of 0.33.0 as is looked at."""
    plain = {
        "data_parallel_size": 1,
        "data_parallel_rank": 0,
        "data_parallel_index": 0,
        "pipeline_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "tensor_parallel_size": 1,
        "nnodes": 1,
        "reconfigure_for_independent_dp_rank": None,
    }
    return SimpleNamespace(**{**plain, **fields})


def without(config: SimpleNamespace, *names: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: value for name, value in vars(config).items() if name not in names})


def test_a_replica_of_a_dense_model_is_known_by_its_index_alone() -> None:
    at = position(parallel(data_parallel_index=3, tensor_parallel_size=2))
    assert (at.index, at.rank, at.owns) == (3, 6, True)
    assert at.group == {"dp": 3}
    assert str(at) == "dp 3, pp 0, pcp 0, tp 0"


@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_release_without_an_index_has_a_rank(index: int) -> None:
    old = without(
        parallel(data_parallel_size=4, data_parallel_rank=index),
        *("data_parallel_index", "prefill_context_parallel_size", "nnodes", "reconfigure_for_independent_dp_rank"),
    )
    at = position(old)
    assert (at.index, at.rank, at.owns) == (index, index, True)


def test_an_engine_core_away_from_the_first_host_of_its_replica_does_not_own() -> None:
    spread = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "nnodes": 2, "local_world_size": 8}
    assert position(parallel(**spread, node_rank_within_dp=0)).owns
    at = position(parallel(**spread, node_rank_within_dp=1))
    assert not at.owns
    assert (at.rank, at.coordinates["pp"]) == (8, 1)


def test_before_0_28_a_dense_replica_is_told_that_all_nodes_are_its_own() -> None:
    told = {"data_parallel_index": 1, "nnodes": 2, "node_rank_within_dp": 1, "local_world_size": 0}
    assert position(without(parallel(**told), "reconfigure_for_independent_dp_rank")).owns


def test_one_of_which_only_the_index_is_known() -> None:
    at = replica(2)
    assert (at.index, at.owns, at.group) == (2, True, {"dp": 2})


def test_the_declaration_is_said_in_words() -> None:
    assert str(KV_EVENTS) == "rank 0 of each (pp, pcp, tp) group"
