import zmq


class Reporter:
    """Pushes what the recorder has counted to the planner."""

    def __init__(self, args, ps):
        self.push = None
        if args.metrics_ipc_name and ps.attn_tp_rank == 0:  # expect: RB702 attn_cp
            self.push = zmq.Context.instance().socket(zmq.PUSH)
            self.push.connect(f"ipc://{args.metrics_ipc_name}")
