"""The declaration decides who owns; the old gate around the call was left."""

import zmq
from rankbind import singleton_per


@singleton_per(group=("pp", "tp"), rank=0)
def kv_events(port: int) -> zmq.Socket:
    socket = zmq.Context.instance().socket(zmq.PUB)
    socket.bind(f"tcp://*:{port}")
    return socket


class Scheduler:
    def __init__(self, args, pp_rank: int, tp_rank: int, dp_rank: int):
        self.place = (dp_rank, pp_rank, tp_rank)
        self.events = None
        if args.kv_port:
            self.events = kv_events(args.kv_port + dp_rank)
