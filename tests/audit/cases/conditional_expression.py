"""A server or nothing, in one expression."""

import socketserver


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(self.server.snapshot())


class Snapshots:
    def __init__(self, address: str, port: int, cp_rank: int, tp_rank: int):
        self.cp_rank, self.tp_rank = cp_rank, tp_rank
        self.server = socketserver.TCPServer((address, port), Handler) if tp_rank == 0 else None  # expect: RB701 cp

    def name(self) -> str:
        return f"cp{self.cp_rank}_tp{self.tp_rank}"
