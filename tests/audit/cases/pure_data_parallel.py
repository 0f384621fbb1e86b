# profile: sglang
"""The index of the replica is an attention rank: with pure data parallelism it is 0 in all of them."""

import zmq


class Scheduler:
    def __init__(self, args, ps, dp_rank: int | None):
        self.ps = ps
        self.dp_rank = dp_rank
        self.events = None
        if ps.pp_rank == 0 and ps.attn_tp_rank == 0 and ps.attn_cp_rank == 0:
            index = ps.attn_dp_rank
            self.events = zmq.Context.instance().socket(zmq.PUB)
            self.events.bind(f"tcp://*:{args.kv_port + index}")  # expect: RB701 dp

    def label(self) -> str:
        return f"DP{self.dp_rank}" if self.dp_rank is not None else "DP0"
