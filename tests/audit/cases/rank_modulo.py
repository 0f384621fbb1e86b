# order: pp, tp
"""The driver of a stage by arithmetic on the global rank."""

import socket


class Driver:
    def __init__(self, rank: int, tp_size: int, pp_size: int, port: int):
        self.rank = rank
        self.pp_rank = rank // tp_size
        self.pp_size = pp_size
        self.is_driver = rank % tp_size == 0
        self.port = port

    def listen(self) -> None:
        if not self.is_driver:
            return
        self.socket = socket.create_server(("0.0.0.0", self.port), backlog=self.pp_size)  # expect: RB701 pp
