"""Whoever connects shares nothing."""

import socket

import zmq
from torch.distributed import TCPStore


class Client:
    def __init__(self, args, tp_rank: int, pp_rank: int):
        self.name = f"{pp_rank}.{tp_rank}"
        context = zmq.Context.instance()
        self.requests = context.socket(zmq.PULL)
        self.requests.connect(args.request_endpoint)
        self.events = context.socket(zmq.SUB)
        self.events.connect("tcp://127.0.0.1:5557")
        self.control = socket.create_connection(("127.0.0.1", args.control_port))
        self.store = TCPStore(args.host, args.store_port, is_master=False)
