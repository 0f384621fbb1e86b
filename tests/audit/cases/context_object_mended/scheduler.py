from .context import ReporterContext
from .reporter import Reporter


class Scheduler:
    def __init__(self, args, tp_rank: int, pp_rank: int, dp_rank: int):
        self.pp_rank = pp_rank
        self.context = ReporterContext(
            port=args.report_port,
            dp_rank=dp_rank,
            is_owner=tp_rank == 0 and self.pp_rank == 0,
        )
        self.reporter = Reporter(self.context)
