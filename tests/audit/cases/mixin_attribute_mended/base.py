"""What every worker knows of itself."""


class WorkerBase:
    def __init__(self, rank: int, tp_size: int, pp_size: int):
        self.rank = rank
        self.tp_rank = rank % tp_size
        self.pp_rank = rank // tp_size
        self.pp_size = pp_size
        self.is_driver = self.tp_rank == 0 and self.pp_rank == pp_size - 1
