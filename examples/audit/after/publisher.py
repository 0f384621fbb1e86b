"""Tells routers which blocks of the KV cache a replica has."""

import zmq


class KvEventPublisher:
    def __init__(self, base_port: int, dp_rank: int) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self.socket.bind(f"tcp://*:{base_port + dp_rank}")
