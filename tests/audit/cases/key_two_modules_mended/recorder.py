class Recorder:
    def __init__(self, args, ps):
        self.counts: dict[str, int] = {}
        self.records = False
        if args.metrics_ipc_name and ps.attn_tp_rank == 0 and ps.attn_cp_rank == 0:
            self.records = True

    def count(self, name: str) -> None:
        if self.records:
            self.counts[name] = self.counts.get(name, 0) + 1
