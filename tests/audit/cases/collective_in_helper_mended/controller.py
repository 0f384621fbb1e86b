from .sync import agree


class Controller:
    def __init__(self, pp_rank: int, pp_group):
        self.pp_rank = pp_rank
        self.pp_group = pp_group
        self.is_first_stage = pp_rank == 0

    def next_port(self, candidate: int) -> int:
        return agree([candidate if self.is_first_stage else None], self.pp_group)
