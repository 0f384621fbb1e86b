"""Port 0 is a request: each rank gets another."""

import socket

import zmq


class PeerServer:
    def __init__(self, tp_rank: int, pp_rank: int, store):
        self.router = zmq.Context.instance().socket(zmq.ROUTER)
        port = self.router.bind_to_random_port("tcp://*")
        store.set(f"peer/{pp_rank}/{tp_rank}", str(port))
        self.control = socket.socket()
        self.control.bind(("127.0.0.1", 0))
        self.control.listen()
        store.set(f"control/{pp_rank}/{tp_rank}", str(self.control.getsockname()[1]))
