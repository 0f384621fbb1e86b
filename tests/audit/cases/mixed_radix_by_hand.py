# order: dp, pp, tp
"""A port for each rank, by Horner's rule, and another by the global rank."""

import grpc
import zmq


class Ports:
    def __init__(self, base: int, sizes: dict[str, int]):
        self.base = base
        self.sizes = sizes

    def of(self, dp_rank: int, pp_rank: int, tp_rank: int) -> int:
        flat = dp_rank
        flat = flat * self.sizes["pp"] + pp_rank
        flat = flat * self.sizes["tp"] + tp_rank
        return self.base + flat


def serve(base: int, sizes: dict[str, int], rank: int, dp_rank: int, pp_rank: int, tp_rank: int, pool) -> None:
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.bind(f"tcp://*:{Ports(base, sizes).of(dp_rank, pp_rank, tp_rank)}")
    server = grpc.server(pool)
    server.add_insecure_port(f"[::]:{base + 1000 + rank}")
    server.start()
    server.wait_for_termination()
