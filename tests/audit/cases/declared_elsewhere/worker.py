from . import resources


class Worker:
    def __init__(self, args, dp_rank: int, pp_rank: int, cp_rank: int, tp_rank: int):
        self.args, self.dp_rank = args, dp_rank
        self.is_last_stage = pp_rank == args.pp_size - 1
        self.place = (pp_rank, cp_rank, tp_rank)
        self.start_exporter()

    def start_exporter(self) -> None:
        if not self.is_last_stage:
            return
        self.exporter = resources.exporter(self.args.metrics_port + self.dp_rank)  # expect: RB706 pp
