"""The ranks that have nothing to log leave before the sum."""

import torch
import torch.distributed as dist


class LossLogger:
    def __init__(self, tp_rank: int, tp_group: dist.ProcessGroup):
        self.tp_rank = tp_rank
        self.tp_group = tp_group

    def log(self, loss: torch.Tensor, step: int) -> None:
        dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=self.tp_group)
        if self.tp_rank != 0:
            return
        print(f"step {step}: {loss.item():.4f}")
