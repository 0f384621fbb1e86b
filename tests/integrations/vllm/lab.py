"""Real engine cores of one vLLM release, in processes of their own: run by that release's python, never by pytest.

It imports vLLM once, then obeys one JSON command a line and answers each with one JSON line:

    {"do": "start", "launch": {"data_parallel_size": 2}, "events": {...}, "plugins": "cpu,rankbind",
     "environment": {...}}                                       -> a report for each engine core
    {"do": "start", ..., "replica": 1}                           -> of that replica alone
    {"do": "generate", "tokens": [...]}    in every engine core  -> how many tokens each has answered
    {"do": "said"}                                               -> what rankbind has logged, in each
    {"do": "stop"}                                               -> null

For each replica a process is forked that makes an ``EngineCore`` as vLLM's own process does, of vLLM's own arguments:
plugins, executor, KV cache, scheduler and publisher are the engine's. What is not: the worker has no model and answers
each request with token 7, for the released wheels compute nothing on a CPU.
"""
# ruff: noqa: E402

from __future__ import annotations

import os

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # the engine prints, from its import on

import json
import logging
import multiprocessing
import sys
import tempfile
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams, __version__
from vllm.config import ModelConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import registry
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: F401  (loaded here, once; the engine core is not)
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import WorkerBase

BLOCK = 16
ANSWER = 7

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}


class Worker(WorkerBase):  # type: ignore[misc]
    """A worker without a model: it answers everything with one token."""

    had_a_model = False

    def init_device(self) -> None:
        """There is none."""

    def load_model(self, **_: Any) -> None:
        """Note that it would have been loaded now."""
        Worker.had_a_model = True

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """Of a model with one layer."""
        return {"layer": FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=16, dtype=torch.float32)}

    def determine_available_memory(self) -> int:
        """Enough for a few hundred blocks, which nobody allocates."""
        return 2 << 20

    def initialize_from_config(self, *_: Any) -> None:
        """Nothing is allocated."""

    def initialize_cache(self, *_: Any) -> None:
        """Nothing is allocated."""

    def compile_or_warm_up_model(self) -> Any:
        """Nothing is compiled."""
        from vllm.v1.worker import worker_base

        times = getattr(worker_base, "CompilationTimes", None)
        return None if times is None else times(language_model=0.0, encoder=0.0)

    def execute_model(self, scheduled: Any) -> ModelRunnerOutput:
        """Answer every request that is scheduled to its end."""
        requests = list(scheduled.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=requests,
            req_id_to_index={request: index for index, request in enumerate(requests)},
            sampled_token_ids=[[ANSWER] for _ in requests],
            logprobs=None,
            prompt_logprobs_dict=dict.fromkeys(requests),
            pooler_output=[],
        )

    def shutdown(self) -> None:
        """There is nothing to shut down."""


class Replica:
    """An engine core."""

    def __init__(self, launch: dict[str, Any], events: dict[str, Any] | None, index: int) -> None:
        config = EngineArgs(
            model=os.environ["RANKBIND_LAB_MODEL"],
            skip_tokenizer_init=True,
            max_model_len=1024,
            enforce_eager=True,
            block_size=BLOCK,
            enable_prefix_caching=True,
            distributed_executor_backend="uni",
            worker_cls="__main__.Worker",
            kv_events_config=events,
            **launch,
        ).create_engine_config()
        # As vLLM's own EngineCoreProc.run_engine_core does for a dense model.
        parallel = config.parallel_config
        if hasattr(parallel, "data_parallel_index"):
            parallel.data_parallel_rank_local = parallel.data_parallel_index = index
            parallel.reconfigure_for_independent_dp_rank()
        else:
            parallel.data_parallel_rank_local = parallel.data_parallel_rank = index
        from vllm.v1.engine.core import EngineCore

        self.core = EngineCore(config, Executor.get_class(config), log_stats=False)
        self.numbers = count()

    def report(self) -> dict[str, Any]:
        """What publisher there is."""
        made = self.core.scheduler.kv_event_publisher
        return {"publisher": type(made).__name__, "endpoint": getattr(made, "_endpoint", None)}

    def generate(self, tokens: list[int]) -> int:
        """Have one request answered, with two tokens."""
        from vllm.v1.engine import EngineCoreRequest

        absent = dict.fromkeys(("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank"))
        if "eos_token_id" in EngineCoreRequest.__struct_fields__:
            absent["eos_token_id"] = None
        request = EngineCoreRequest(
            request_id=str(next(self.numbers)),
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=2, ignore_eos=True, detokenize=False),
            arrival_time=0.0,
            **absent,
        )
        self.core.add_request(*self.core.preprocess_add_request(request))
        answered = 0
        while self.core.scheduler.has_requests():
            outputs, _ = self.core.step_fn()
            for each in (outputs or {}).values():
                answered += sum(len(output.new_token_ids) for output in each.outputs)
        return answered

    def close(self) -> None:
        """End it as vLLM does."""
        self.core.shutdown()


def run_replica(orders: Connection, start: dict[str, Any], index: int) -> None:
    """The life of one forked engine core."""
    said: list[str] = []

    def hear(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        return True

    logging.getLogger("vllm.rankbind").addFilter(hear)  # vLLM takes handlers away when it configures its own
    os.environ.update(start["environment"], VLLM_PLUGINS=start["plugins"], VLLM_ENABLE_V1_MULTIPROCESSING="0")
    replica = None
    error = None
    try:
        replica = Replica(start["launch"], start["events"], index)
    except Exception as failure:
        error = "\n".join((f"{type(failure).__name__}: {failure}", *getattr(failure, "__notes__", ())))
    made = {} if replica is None else replica.report()
    orders.send({"error": error, "said": said, "pid": os.getpid(), "had_a_model": Worker.had_a_model, **made})
    if replica is None:
        return
    while (order := orders.recv())["do"] != "stop":
        do = order.pop("do")
        orders.send(said if do == "said" else getattr(replica, do)(**order))
    replica.close()
    orders.send(None)
    orders.recv()  # it lives on until it is told that nobody looks at what it holds


class Engine:
    """The engine cores of one launch on this host."""

    def __init__(self, start: dict[str, Any]) -> None:
        fork = multiprocessing.get_context("fork")
        replicas = range(start["launch"].get("data_parallel_size", 1))
        self.cores = []
        for index in replicas if start["replica"] is None else (start["replica"],):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=run_replica, args=(theirs, start, index))
            process.start()
            theirs.close()
            self.cores.append((ours, process))
        self.reports = [ours.recv() for ours, _ in self.cores]

    def tell(self, order: dict[str, Any]) -> list[Any]:
        """Give every living engine core the same order, and wait for all."""
        alive = [ours for (ours, _), report in zip(self.cores, self.reports, strict=True) if not report["error"]]
        for ours in alive:
            ours.send(order)
        return [ours.recv() if ours in alive else None for ours, _ in self.cores]

    def end(self) -> None:
        """End what was shut down, and wait until it has."""
        for (ours, process), report in zip(self.cores, self.reports, strict=True):
            if not report["error"]:
                ours.send(None)
            process.join()


def main() -> None:
    """Answer commands until there are no more."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        os.environ["RANKBIND_LAB_MODEL"] = folder
        # Look at the model class here and once: vLLM has a process do it that imports vLLM again, for each engine.
        registry._run_in_subprocess = lambda look: look()
        ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=1024)
        print(json.dumps({"release": __version__}), file=ANSWERS, flush=True)
        engine: Engine | None = None
        for line in sys.stdin:
            order = json.loads(line)
            answer: Any = None
            if order["do"] == "start":
                engine = Engine(order)
                answer = engine.reports
            elif engine is not None and order["do"] == "end":
                engine.end()
            elif engine is not None:
                answer = engine.tell(order)
            print(json.dumps(answer), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
