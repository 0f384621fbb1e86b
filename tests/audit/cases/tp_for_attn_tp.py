# profile: sglang
"""Session replies: every sibling asks the attention rank, one asks the global one."""

import zmq


class SchedulerIpc:
    def __init__(self, port_args, ps):
        context = zmq.Context.instance()
        self.ps = ps
        index = ps.attn_dp_rank if ps.attn_dp_size > 1 else (ps.dp_rank or 0)
        self.load = self.stats = self.sessions = None
        if ps.pp_rank == 0 and ps.attn_tp_rank == 0 and ps.attn_cp_rank == 0:
            self.load = context.socket(zmq.PUB)
            self.load.bind(f"tcp://*:{port_args.load_port + index}")
        if ps.pp_rank == 0 and ps.attn_tp_rank == 0 and ps.attn_cp_rank == 0:
            self.stats = context.socket(zmq.PUB)
            self.stats.bind(f"tcp://*:{port_args.stats_port + index}")
        if ps.pp_rank == 0 and ps.tp_rank == 0 and ps.attn_cp_rank == 0:
            self.sessions = context.socket(zmq.ROUTER)
            self.sessions.bind(f"tcp://*:{port_args.session_port + index}")  # expect: RB705 tp attn_tp
