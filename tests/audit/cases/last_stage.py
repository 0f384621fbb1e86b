# profile: sglang
"""Forward pass metrics: the last stage has the numbers; context parallel ranks are all last."""

import zmq


class MetricsReporter:
    def __init__(self, server_args, ps):
        self.ps = ps
        self._init_fpm(server_args.forward_pass_metrics_ipc_name)

    def _init_fpm(self, name: str | None) -> None:
        self.fpm = None
        is_fpm_rank = self.ps.attn_tp_rank == 0 and self.ps.pp_rank == self.ps.pp_size - 1
        if not (name and is_fpm_rank):
            return
        self.fpm = zmq.Context.instance().socket(zmq.PUB)
        self.fpm.bind(f"ipc://{name}.{self.ps.dp_rank or 0}")  # expect: RB701 attn_cp

    def stats_prefix(self) -> str:
        return f"CP{self.ps.attn_cp_rank} TP{self.ps.attn_tp_rank}"
