"""Real components of one SGLang release, in processes of their own: run by that release's python, never by pytest.

It imports SGLang once, then obeys one JSON command a line and answers each with one JSON line:

    {"do": "start", "launch": {"pp_size": 2}, "events": {...}, "sites": [...],
     "environment": {...}, "watch": {"DELAYS": [...]}}                          -> a report for each scheduler
    {"do": "insert", "tokens": [...]}    every scheduler caches and publishes   -> null
    {"do": "left"}                                                              -> events that nobody took, for each
    {"do": "evict", "blocks": 3}, "flush", "idle"                               -> null
    {"do": "hurt", "how": "..."}, "said", "cached", "metrics"    for the first scheduler only: see rankbind_inside.py
    {"do": "stop"}                                                              -> null

(A scheduler that failed to start says "error" in its report, and null from then on.)

For each scheduler of the launch a process is forked, which builds metrics collector, cache and publisher by the
engine's own functions, in the engine's order, out of the engine's own ServerArgs and ranks. What needs a model (pools,
process groups) is left out: none of it decides who publishes. `sites` are the hooks of rankbind_sglang that are applied
there through SGLang's HookRegistry; null for an engine as it comes. `watch` changes constants of its module.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import multiprocessing
import os
import sys
import tempfile
from array import array
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rankbind_inside
import torch
from sglang.srt.configs.model_config import ModelConfig, ModelImpl
from sglang.srt.layers import dp_attention
from sglang.srt.managers.scheduler import Scheduler as EngineScheduler
from sglang.srt.managers.scheduler_components.kv_events_publisher import SchedulerKvEventsPublisher
from sglang.srt.mem_cache import kv_cache_builder
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.observability.metrics_collector import SchedulerMetricsCollector
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.version import __version__, __version_tuple__

PAGE = 4
PASSES_RANKS = __version_tuple__ < (0, 5, 21)

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}


class Scheduler:
    """What a scheduler builds to publish KV events, and nothing else."""

    had_a_model = False

    def __init__(self, launch: dict[str, Any], events: dict[str, Any] | None, rank: int, replica: int | None) -> None:
        args = server_args(launch, events)
        config = args.kv_events_config
        if PASSES_RANKS:
            ps = parallel_state(args, rank, replica)
            given: dict[str, Any] = {"ps": ps}
            build: dict[str, Any] = {
                "attn_tp_cpu_group": None,
                "tp_cpu_group": None,
                "attn_cp_cpu_group": None,
                "tp_group": None,
                "pp_group": SimpleNamespace(cpu_group=None),
            }
            metrics = {"tp_rank": ps.tp_rank, "pp_rank": ps.pp_rank, "dp_rank": ps.dp_rank}
            publisher = {
                name: getattr(ps, name) for name in ("attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "dp_rank")
            }
        else:
            from sglang.srt.mem_cache.events import KvEventLoraNames

            ps = publish_ranks(args, rank, replica)
            given, metrics, publisher = {}, {}, {}
            build = {"kv_event_lora_names": KvEventLoraNames()}
        # As much of the engine's scheduler as there is before it loads a model.
        self.engine = object.__new__(EngineScheduler)
        self.engine.server_args, self.engine.page_size = args, PAGE
        if PASSES_RANKS:
            self.engine.ps = ps
        self.engine.init_model_config()
        Scheduler.had_a_model = True
        model = self.engine.model_config
        model._resolved_model_impl = ModelImpl.SGLANG

        self.counts = SchedulerMetricsCollector.init_new(
            server_args=args,
            enable_priority_scheduling=False,
            enable_lora=False,
            enable_hierarchical_cache=False,
            **given,
            **metrics,
        ).enable_kv_cache_events
        # The engine's own gate, copied: it stands in the middle of Scheduler.__init__.
        records = bool(config and ps.attn_tp_rank == 0 and ps.attn_cp_rank == 0)
        if __version_tuple__ >= (0, 5, 15):
            records = records and ps.pp_rank == 0
        self.cache = kv_cache_builder.build_kv_cache(
            server_args=args,
            model_config=model,
            tp_worker=worker(model),
            page_size=PAGE,
            spec_algorithm=SpeculativeAlgorithm.NONE,
            enable_metrics=False,
            enable_kv_cache_events=records,
            enable_hierarchical_cache=False,
            **given,
            **build,
        ).tree_cache
        self.publisher = SchedulerKvEventsPublisher(
            kv_events_config=config,
            tree_cache=self.cache,
            send_metrics_from_scheduler=None,
            max_running_requests=8,
            max_total_num_tokens=1024,
            get_stats=lambda: None,
            **given,
            **publisher,
        )

    def report(self) -> dict[str, Any]:
        """What each site decided."""
        made = self.publisher.kv_event_publisher
        return {
            "publishes": made is not None,
            "endpoint": getattr(made, "_endpoint", None),
            "counts": self.counts,
        }

    def insert(self, tokens: list[int]) -> None:
        """Cache the tokens and publish, as a scheduler does at the end of a batch."""
        self.cache.insert(InsertParams(key=RadixKey(array("q", tokens), None), value=torch.arange(len(tokens))))
        self.publisher.publish_kv_events()

    def idle(self) -> None:
        """Publish what there is, as a scheduler does that has nothing to do."""
        self.publisher.publish_kv_events()

    def evict(self, blocks: int) -> None:
        """Throw blocks away, the least recently used first."""
        self.cache.evict(EvictParams(num_tokens=blocks * PAGE))
        self.publisher.publish_kv_events()

    def flush(self) -> None:
        """Throw everything away."""
        self.cache.reset()
        self.publisher.publish_kv_events()

    def cached(self) -> list[int]:
        """The hashes of all blocks in the cache's tree."""
        return rankbind_inside.cached(self.cache, PAGE)

    def hurt(self, how: str) -> None:
        """Let something happen to the publisher."""
        rankbind_inside.hurt(self.publisher.kv_event_publisher, how)

    def metrics(self) -> str:
        """What a server would serve as metrics, of all its processes."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return generate_latest(registry).decode()

    def left(self) -> int:
        """Count, and take, the events that the cache recorded and nobody took."""
        return len(self.cache.take_events())

    def close(self) -> None:
        """Stop the publisher's thread and close its sockets."""
        if self.publisher.kv_event_publisher is not None:
            self.publisher.kv_event_publisher.shutdown()


def server_args(launch: dict[str, Any], events: dict[str, Any] | None) -> ServerArgs:
    """The engine's arguments for a launch of the tiny model on a CPU."""
    return ServerArgs(
        model_path=os.environ["RANKBIND_LAB_MODEL"],
        device="cpu",
        load_format="dummy",
        skip_tokenizer_init=True,
        page_size=PAGE,
        attention_backend="torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        disable_overlap_schedule=True,
        mem_fraction_static=0.5,
        max_total_tokens=2048,
        chunked_prefill_size=512,
        kv_events_config=None if events is None else json.dumps(events),
        **launch,
    )


def parallel_state(args: ServerArgs, rank: int, replica: int | None) -> Any:
    """The ranks as the scheduler of 0.5.13 to 0.5.20 works them out."""
    from sglang.srt.distributed.parallel_state_wrapper import ParallelState

    pp_rank, tp_rank = divmod(rank, args.tp_size)
    attn_tp_rank, attn_tp_size, attn_dp_rank, attn_dp_size = dp_attention.compute_dp_attention_world_info(
        args.enable_dp_attention, tp_rank, args.tp_size, args.dp_size, args.attn_cp_size
    )
    return ParallelState(
        tp_rank=tp_rank,
        tp_size=args.tp_size,
        pp_rank=pp_rank,
        pp_size=args.pp_size,
        dp_rank=attn_dp_rank if args.enable_dp_attention else replica,
        dp_size=args.dp_size,
        attn_tp_rank=attn_tp_rank,
        attn_tp_size=attn_tp_size,
        attn_cp_rank=tp_rank // attn_tp_size % args.attn_cp_size,
        attn_cp_size=args.attn_cp_size,
        attn_dp_rank=attn_dp_rank,
        attn_dp_size=attn_dp_size,
        moe_ep_rank=0,
        moe_ep_size=1,
        moe_dp_rank=None,
        moe_dp_size=1,
        gpu_id=0,
    )


def publish_ranks(args: ServerArgs, rank: int, replica: int | None) -> Any:
    """The ranks as 0.5.21 and later keep them, for the whole process, with groups that have no processes."""
    from sglang.srt import runtime_context

    ranks = runtime_context.SpawnRanks(world_rank=rank, gpu_id=0, dp_rank=replica)
    runtime_context.publish(args, role="scheduler", ranks=ranks)
    parallel = runtime_context.get_parallel()
    group = SimpleNamespace(cpu_group=None)
    parallel.override_permanently(attn_cp_group=group, attn_tp_group=group, pp_group=group, tp_group=group)
    return parallel


class NoMemory:
    """An allocator of blocks that gets them back from the cache, and has none."""

    device, page_size = "cpu", PAGE

    def get_kvcache(self) -> None:
        """There is none."""

    def free(self, indices: Any) -> None:
        """Do nothing."""

    def free_segment(self, indices: Any, start_pos: int) -> None:
        """Do nothing (0.5.21 and later)."""


def worker(model: ModelConfig) -> Any:
    """As much of a model worker as the cache builder looks at: a plain attention model, with no memory behind it."""
    runner = SimpleNamespace(
        model_config=model,
        token_to_kv_pool=None,
        linear_attn_model_spec=None,
        hybrid_gdn_config=None,
        mamba2_config=None,
        kimi_linear_config=None,
        hybrid_lightning_config=None,
        mtp_draft_device_pools=(),
        mtp_draft_mamba_pools=(),
    )
    allocator = NoMemory()
    return SimpleNamespace(model_runner=runner, is_hybrid_swa=False, get_memory_pool=lambda: (None, allocator))


def run_scheduler(orders: Connection, start: dict[str, Any], rank: int, replica: int | None) -> None:
    """The life of one forked scheduler."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("rankbind_sglang").addHandler(handler)
    logging.getLogger("rankbind_sglang").setLevel(logging.INFO)
    os.environ.update(start["environment"])
    if start["sites"] is not None:
        import rankbind_sglang
        import rankbind_sglang.watch
        from sglang.srt.plugins.hook_registry import HookRegistry

        for name, value in start["watch"].items():
            setattr(rankbind_sglang.watch, name, value)
        rankbind_sglang.register(start["sites"])
        HookRegistry.apply_hooks()
    try:
        scheduler = Scheduler(start["launch"], start["events"], rank, replica)
    except Exception as error:
        orders.send(
            {
                "error": "\n".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ()))),
                "said": said,
                "pid": os.getpid(),
                "had_a_model": Scheduler.had_a_model,
            }
        )
        return
    orders.send({"error": None, "said": said, "pid": os.getpid(), **scheduler.report()})
    while (order := orders.recv())["do"] != "stop":
        do = order.pop("do")
        orders.send(said if do == "said" else getattr(scheduler, do)(**order))
    scheduler.close()


class Engine:
    """The schedulers of one launch."""

    def __init__(self, start: dict[str, Any]) -> None:
        launch = start["launch"]
        replicas = launch.get("dp_size", 1) if not launch.get("enable_dp_attention") else 1
        world = launch.get("pp_size", 1) * launch.get("tp_size", 1)
        fork = multiprocessing.get_context("fork")
        self.schedulers = []
        for replica in range(replicas):
            for rank in range(world):
                ours, theirs = fork.Pipe()
                process = fork.Process(
                    target=run_scheduler, args=(theirs, start, rank, replica if replicas > 1 else None), daemon=True
                )
                process.start()
                theirs.close()
                self.schedulers.append((ours, process))
        self.reports = [ours.recv() for ours, _ in self.schedulers]

    def tell(self, order: dict[str, Any]) -> list[Any]:
        """Give every living scheduler the same order, as the stages of a pipeline get it, and wait for all."""
        alive = [ours for (ours, _), report in zip(self.schedulers, self.reports, strict=True) if not report["error"]]
        if order["do"] in ("hurt", "said", "cached", "metrics"):
            alive = [self.schedulers[0][0]]
        for ours in alive:
            ours.send(order)
        return [ours.recv() if ours in alive else None for ours, _ in self.schedulers]

    def stop(self) -> None:
        """End all schedulers, and wait until they have."""
        for (ours, _), report in zip(self.schedulers, self.reports, strict=True):
            if not report["error"]:
                ours.send({"do": "stop"})
        for _, process in self.schedulers:
            process.join()


class HashInPython:
    """The hash of a block that 0.5.15 compiles with g++ at its first use, and 0.5.14 has in Python."""

    @staticmethod
    def get_hash(
        tokens: array[int], length: int, width: int, _bigram: bool, prior: bytes | None, page: int | None
    ) -> str | list[str]:
        """The SHA-256 over the previous block's and the tokens, one for each page."""
        hashes = []
        for start in range(0, length, page or length):
            block = tokens[start * width : min(start + (page or length), length) * width]
            digest = hashlib.sha256((prior or b"") + b"".join(token.to_bytes(4, "little") for token in block))
            prior = digest.digest()
            hashes.append(digest.hexdigest())
        return hashes if page else hashes[0]


def main() -> None:
    """Answer commands until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine prints
    if __version__.startswith("0.5.15"):
        native_hash = importlib.import_module("sglang.srt.mem_cache.cpp_utils.native_hash")
        native_hash._load_native_hash_module = HashInPython
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        os.environ["RANKBIND_LAB_MODEL"] = folder
        print(json.dumps({"release": __version__}), file=answers, flush=True)
        engine: Engine | None = None
        for line in sys.stdin:
            order = json.loads(line)
            answer: Any = None
            if order["do"] == "start":
                engine = Engine(order)
                answer = engine.reports
            elif engine is not None and order["do"] == "stop":
                engine.stop()
            elif engine is not None:
                answer = engine.tell(order)
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
