"""The gate pins one axis, the collective runs along another: the whole group is behind the gate."""

import torch.distributed as dist


class PipelineSync:
    def __init__(self, tp_rank: int, pp_rank: int, pp_group: dist.ProcessGroup, sync: bool):
        self.tp_rank = tp_rank
        self.pp_rank = pp_rank
        self.pp_group = pp_group
        self.sync = sync

    def flush(self) -> None:
        if self.tp_rank == 0:
            dist.barrier(group=self.pp_group)
        if self.sync:
            dist.barrier()
