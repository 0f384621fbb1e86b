"""Ranks may be added where no address comes of it, and where the gate leaves but one term."""

import random

import zmq


class Sampler:
    def __init__(self, args, dp_rank: int, tp_rank: int):
        random.seed(args.seed + dp_rank + tp_rank)
        self.delay = 0.01 * (dp_rank + tp_rank)
        self.port = args.port + dp_rank + tp_rank
        self.socket = None
        if tp_rank == 0:
            self.socket = zmq.Context.instance().socket(zmq.PUB)
            self.socket.bind(f"tcp://*:{self.port}")
