"""Load reports: the inner condition was written before context parallelism came."""

import zmq


class LoadReporter:
    def __init__(self, args, ps):
        self.attn_tp_rank = ps.attn_tp_rank
        self.attn_cp_rank = ps.attn_cp_rank
        self.dp_rank = ps.dp_rank
        self.pp_rank = ps.pp_rank
        self.socket = None
        if args.load_report_port:
            if self.pp_rank == 0:
                self.socket = self.open(args, zmq.Context.instance())

    def open(self, args, context):
        if self.attn_tp_rank == 0:
            socket = context.socket(zmq.PUB)
            socket.bind("tcp://*:%d" % (args.load_report_port + self.dp_rank))  # expect: RB701 attn_cp
            return socket
        return None

    def label(self) -> str:
        return f"pp{self.pp_rank}-cp{self.attn_cp_rank}-tp{self.attn_tp_rank}"
