"""What names mean, in any program and in those of the engines."""

from __future__ import annotations

import pytest

from rankbind.audit.expression import Apply, Constant, Coordinate, Expression, Size, axes
from rankbind.audit.ranks import Layout
from rankbind.audit.vocabulary import MEGATRON, PROFILES, SGLANG, TORCH, VLLM, Profile, Vocabulary, profile_of

PLAIN = Vocabulary()
LOCAL_TP = Coordinate("tp", local=True)

COORDINATES: dict[str, Expression | None] = {
    "tp_rank": Coordinate("tp"),
    "_tp_rank": Coordinate("tp"),
    "TP_RANK": Coordinate("tp"),
    "my_tp_rank": Coordinate("tp"),
    "get_tp_rank": Coordinate("tp"),
    "tensor_parallel_rank": Coordinate("tp"),
    "get_tensor_model_parallel_rank": Coordinate("tp"),
    "pp_rank": Coordinate("pp"),
    "pp_rank_in_group": Coordinate("pp"),
    "pipeline_model_parallel_rank": Coordinate("pp"),
    "dp_rank": Coordinate("dp"),
    "data_parallel_rank": Coordinate("dp"),
    "data_parallel_index": Coordinate("dp"),
    "dp_idx": Coordinate("dp"),
    "attn_tp_rank": Coordinate("attn_tp"),
    "attention_cp_rank": Coordinate("attn_cp"),
    "moe_ep_rank": Coordinate("moe_ep"),
    "dcp_rank": Coordinate("dcp"),
    "node_rank": Coordinate("node"),
    "world_rank": Coordinate("rank"),
    "global_rank": Coordinate("rank"),
    "process_index": Coordinate("rank"),
    "local_rank": Coordinate("local_rank"),
    "local_process_index": Coordinate("local_rank"),
    "tp_rank_local": LOCAL_TP,
    "local_tp_rank": LOCAL_TP,
    "tp_local_rank": LOCAL_TP,
    "dp_local_rank": Coordinate("dp", local=True),
    # Whose rank it is is said, and it is not this process's.
    "remote_tp_rank": None,
    "prefill_dp_rank": None,
    "target_pp_rank": None,
    "rank": None,
    "rank0": None,
    "tp_ranks": None,
    "tp_size": None,
    "gpu_id": None,
    "idx": None,
    "tp_index": None,
}


@pytest.mark.parametrize(("name", "expected"), COORDINATES.items(), ids=COORDINATES)
def test_names_of_coordinates(name: str, expected: Expression | None) -> None:
    assert PLAIN.coordinate(name) == expected


SIZES: dict[str, Expression | None] = {
    "tp_size": Size("tp"),
    "_pp_size": Size("pp"),
    "get_tp_world_size": Size("tp"),
    "tensor_parallel_size": Size("tp"),
    "get_tensor_model_parallel_world_size": Size("tp"),
    "attn_cp_size": Size("attn_cp"),
    "world_size": Size("rank"),
    "get_world_size": Size("rank"),
    "batch_size": None,
    "page_size": None,
    "tp_rank": None,
}


@pytest.mark.parametrize(("name", "expected"), SIZES.items(), ids=SIZES)
def test_names_of_sizes(name: str, expected: Expression | None) -> None:
    assert PLAIN.size(name) == expected


GROUPS = {
    "tp_group": "tp",
    "get_tp_group": "tp",
    "_TP_GROUP": "tp",
    "tp_cpu_group": "tp",
    "attn_tp_cpu_group": "attn_tp",
    "tp_device_group": "tp",
    "pp_group": "pp",
    "dp_process_group": "dp",
    "world_group": "rank",
    "get_world_group": "rank",
    "get_tensor_model_parallel_group": "tp",
    "data_parallel_group": "dp",
    "get_data_parallel_group_gloo": None,
    "get_pipeline_model_parallel_group": "pp",
    "get_model_parallel_group": None,
    "tp_comm": "tp",
    "dp_mesh": "dp",
    "group": None,
    "control_group": None,
    "tp_groups": None,
}


@pytest.mark.parametrize(("name", "expected"), GROUPS.items(), ids=GROUPS)
def test_names_of_process_groups(name: str, expected: str | None) -> None:
    assert PLAIN.group(name) == expected


MEMBERS: dict[str, Expression | None] = {
    "rank_in_group": Coordinate("pp"),
    "rank": Coordinate("pp"),
    "get_rank": Coordinate("pp"),
    "is_first_rank": Apply("==", (Coordinate("pp"), Constant(0))),
    "is_last_rank": Apply("==", (Coordinate("pp"), Apply("-", (Size("pp"), Constant(1))))),
    "world_size": Size("pp"),
    "size": Size("pp"),
    "ranks": None,
    "barrier": None,
}


@pytest.mark.parametrize(("name", "expected"), MEMBERS.items(), ids=MEMBERS)
def test_members_of_a_group(name: str, expected: Expression | None) -> None:
    assert PLAIN.member("pp", name) == expected


WEAK: dict[str, Expression | None] = {
    "rank": Coordinate("rank"),
    "_rank": Coordinate("rank"),
    "get_rank": Coordinate("rank"),
    "is_main_process": Apply("==", (Coordinate("rank"), Constant(0))),
    "is_global_zero": Apply("==", (Coordinate("rank"), Constant(0))),
    "is_local_main_process": Apply("==", (Coordinate("local_rank"), Constant(0))),
    "is_pipeline_first_stage": Apply("==", (Coordinate("pp"), Constant(0))),
    "ranks": None,
}


@pytest.mark.parametrize(("name", "expected"), WEAK.items(), ids=WEAK)
def test_what_a_name_means_where_nothing_defines_it(name: str, expected: Expression | None) -> None:
    assert PLAIN.weak(name) == expected


TELLING = (
    "is_leader", "my_owner", "is_rank_zero", "worker_id", "proc_index", "is_main", "is_first", "replica_no", "actor_id",
    "driver", "shard_idx", "whoami", "source",
)  # fmt: skip
PLAIN_NAMES = (
    "port", "enable_metrics", "num_workers", "for_all_ranks", "per_rank", "max_schedulers", "misleading", "id",
    "worker_ids", "index", "each_rank",
)  # fmt: skip


@pytest.mark.parametrize("name", TELLING)
def test_names_that_sound_as_if_they_told_ranks_apart(name: str) -> None:
    assert PLAIN.role(name)


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_names_that_do_not(name: str) -> None:
    assert not PLAIN.role(name)


# ---- what a program adds


def test_axes_of_ones_own() -> None:
    own = Vocabulary(axes={"my_stage": "pp", "island": "island"})
    assert own.coordinate("my_stage") == own.coordinate("_my_stage") == Coordinate("pp")
    assert own.coordinate("island") == own.coordinate("island_rank") == Coordinate("island")
    assert own.size("island_size") == Size("island")
    assert own.group("island_group") == "island"
    assert own.axis("island") == "island"
    assert PLAIN.coordinate("my_stage") is None
    assert own.named == {"my_stage": "pp", "island": "island"}


def test_a_pattern_for_names_of_ones_own() -> None:
    own = Vocabulary(axes={"*.replica": "dp", "stage_*": "pp"})
    assert own.coordinate("replica") == Coordinate("dp")
    assert own.coordinate("stage_of_this") == Coordinate("pp")
    assert own.coordinate("replicas") is None


def test_what_a_program_says_itself_counts_before_what_is_common() -> None:
    assert Vocabulary(axes={"tp_rank": "column"}).coordinate("tp_rank") == Coordinate("column")


def test_an_axis_that_a_program_tells_of_is_one_of_its_own() -> None:
    assert "ep" in PLAIN.auxiliary
    assert "ep" not in Vocabulary(axes={"expert": "ep"}).auxiliary


# ---- engines


def test_the_data_parallel_rank_of_a_scheduler_is_the_attentions_where_there_is_one() -> None:
    found = Vocabulary(SGLANG).coordinate("dp_rank")
    assert found is not None
    assert axes(found) == ("attn_dp", "dp")
    assert Vocabulary(VLLM).coordinate("dp_rank") == Coordinate("dp")


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (["sglang"], SGLANG),
        (["app", "vllm"], VLLM),
        (["vllm_ascend"], VLLM),
        (["megatron"], MEGATRON),
        (["app", ""], TORCH),
        ([], TORCH),
    ],
)
def test_the_profile_is_that_of_the_engine(packages: list[str], expected: Profile) -> None:
    assert profile_of(packages) is expected


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_profile_is_consistent(profile: Profile) -> None:
    if profile.layout is None:
        return
    order = profile.layout.order
    assert len(set(order)) == len(order)
    assert {part for _, parts in profile.layout.whole for part in parts} <= set(order)
    assert {axis for pair in profile.layout.exclusive for axis in pair} <= set(order)
    assert set(profile.layout.outside) <= set(order)
    for pattern, role in profile.roles:
        assert ":" in pattern
        assert set(role) <= set(order)


ROLES = [
    (SGLANG, "sglang.srt.managers.data_parallel_controller", "DataParallelController.run", ()),
    (SGLANG, "sglang.srt.managers.tokenizer_manager", "TokenizerManager.__init__", ()),
    (SGLANG, "sglang.srt.entrypoints.engine", "launch", ()),
    (SGLANG, "sglang.srt.managers.scheduler", "Scheduler.__init__", None),
    (VLLM, "vllm.v1.worker.gpu_worker", "GPUWorker.init", ("dp", "pp", "pcp", "tp")),
    (VLLM, "vllm.v1.core.sched.scheduler", "Scheduler.__init__", ("dp",)),
    (VLLM, "vllm.distributed.kv_transfer.nixl", "NixlConnectorWorker.start", ("dp", "pp", "pcp", "tp")),
    (VLLM, "vllm.distributed.kv_transfer.nixl", "NixlConnectorScheduler.start", ("dp",)),
    (VLLM, "vllm.entrypoints.api", "serve", ()),
    (VLLM, "vllm.plugin", "f", None),
    (TORCH, "app", "f", None),
]


@pytest.mark.parametrize(("profile", "module", "function", "expected"), ROLES)
def test_the_axes_of_the_processes_that_run_a_function(
    profile: Profile, module: str, function: str, expected: tuple[str, ...] | None
) -> None:
    assert Vocabulary(profile).role_of(module, function) == expected


def test_what_is_said_of_a_class_is_asked_for_apart() -> None:
    engine = Vocabulary(VLLM)
    assert engine.role_of("vllm.v1.core.sched.scheduler", "Scheduler.__init__", by_class=True) == ("dp",)
    assert engine.role_of("vllm.v1.core.sched.scheduler", "helper") == ("dp",)
    assert engine.role_of("vllm.v1.core.sched.scheduler", "helper", by_class=True) is None


# ---- the axes that make up the ranks


def known(*words: str) -> Vocabulary:
    found = Vocabulary(SGLANG)
    found.within(lambda word: word in words)
    return found


def test_axes_that_a_release_has_no_word_for_are_not_there() -> None:
    layout = known("pp_rank", "attn_tp_rank", "attn_tp_size", "attn_dp_rank", "tp_size", "dp_size").layout(())
    assert layout.order == ("dp", "pp", "attn_dp", "attn_tp")
    assert layout.parts("tp") == ("attn_dp", "attn_tp")
    assert layout.outside == ("dp",)


def test_a_program_that_knows_only_the_whole_has_its_parts() -> None:
    assert known("tp_rank", "pp_group").layout(()).order == ("pp", "attn_dp", "attn_cp", "attn_tp")


def test_a_program_without_a_profile_has_no_axes_to_leave_out() -> None:
    found = Vocabulary()
    found.within(lambda _: False)
    assert found.layout(["pp"]).order == ("pp",)


LAYOUTS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "outermost first": (["tp", "pp"], ("pp", "tp")),
    "in no order of their own": (["tp", "cp", "dp", "pp"], ("pp", "dp", "cp", "tp")),
    "the attention's instead of the whole": (["attn_tp", "tp", "pp"], ("pp", "attn_dp", "attn_cp", "attn_tp")),
    "what cuts others makes up no ranks": (["ep", "moe_tp", "node"], ("rank",)),
    "nothing but the world": (["rank"], ("rank",)),
    "nothing": ([], ("rank",)),
    "an axis that nobody knows": (["island", "tp"], ("tp", "island")),
}


@pytest.mark.parametrize(("evident", "expected"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_layout_of_code_that_names_some_axes(evident: list[str], expected: tuple[str, ...]) -> None:
    assert PLAIN.layout(evident).order == expected


def test_the_order_that_a_program_gives() -> None:
    found = Vocabulary(MEGATRON, order=("tp", "dp"))
    assert found.layout(["dp"]).order == ("tp", "dp")
    assert found.layout(["pp", "dp"]).order == ("tp", "dp", "pp")
    assert MEGATRON.layout is not None
    assert Vocabulary(MEGATRON).layout(["dp"]) == MEGATRON.layout == Layout(("pp", "dp", "cp", "tp"))
