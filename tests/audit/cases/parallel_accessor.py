# profile: sglang
"""Coordinates asked of the runtime, where they are needed."""

import zmq
from sglang.srt.runtime_context import get_parallel


def open_snapshot_writer(args):
    parallel = get_parallel()
    if parallel.attn_tp_rank != 0 or parallel.attn_cp_rank != 0:
        return None
    index = parallel.attn_dp_rank if parallel.attn_dp_size > 1 else (parallel.dp_rank or 0)
    writer = zmq.Context.instance().socket(zmq.PUB)
    writer.bind(f"tcp://127.0.0.1:{args.snapshot_port + index}")  # expect: RB701 pp
    return writer


def describe() -> str:
    return f"stage {get_parallel().pp_rank} of {get_parallel().pp_size}"
