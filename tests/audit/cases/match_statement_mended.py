"""Roles by pattern."""

import zmq


class Broadcaster:
    def __init__(self, config, pp_rank: int, tp_rank: int, dp_rank: int):
        context = zmq.Context.instance()
        self.place = (dp_rank, pp_rank, tp_rank)
        match (pp_rank, tp_rank):
            case (0, 0):
                self.socket = context.socket(zmq.XPUB)
                self.socket.bind(f"tcp://127.0.0.1:{config.port + dp_rank}")
            case _:
                self.socket = context.socket(zmq.SUB)
                self.socket.connect(f"tcp://127.0.0.1:{config.port + dp_rank}")
                self.socket.setsockopt(zmq.SUBSCRIBE, b"")
