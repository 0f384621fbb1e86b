"""Each configured listener of a worker, some of them for the leader alone."""

import socket


class Frontend:
    def __init__(self, config, dp_rank: int, tp_rank: int):
        self.dp_rank = dp_rank
        self.tp_rank = tp_rank
        self.sockets: dict[str, socket.socket] = {}
        for name, port in (("control", config.control_port), ("health", config.health_port)):
            if self.tp_rank != 0:
                continue
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", port))  # expect: RB701 dp
            listener.listen()
            self.sockets[name] = listener
