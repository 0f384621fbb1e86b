"""A rank as truth value."""

from multiprocessing import shared_memory


class RoutingTable:
    def __init__(self, tp_rank: int, pp_rank: int, size: int):
        self.tp_rank = tp_rank
        self.pp_rank = pp_rank
        self.memory = None
        if not tp_rank:
            self.memory = shared_memory.SharedMemory(name="routing_table", create=True, size=size)  # expect: RB701 pp

    def load(self, layer: int) -> bytes:
        if self.memory is None:
            self.memory = shared_memory.SharedMemory(name="routing_table")
        return bytes(self.memory.buf[layer * 64 : (layer + 1) * 64])
