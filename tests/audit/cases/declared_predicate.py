"""One declaration, and every other site asks it."""

import zmq
from rankbind import singleton_per


@singleton_per(group=("pp", "attn_tp", "attn_cp"), rank=0, otherwise=None)
def kv_events(endpoint: str) -> zmq.Socket:
    socket = zmq.Context.instance().socket(zmq.PUB)
    socket.bind(endpoint)
    return socket


class Scheduler:
    def __init__(self, args, ps, cache):
        self.ps = ps
        cache.record = bool(args.kv_port and kv_events.owned)
        self.events = None
        if args.kv_port:
            self.events = kv_events(f"tcp://*:{args.kv_port + ps.attn_dp_rank}")
