"""Rank 0 writes, and waits for the others, who do not come."""

import torch
import torch.distributed as dist


def save(model, path: str) -> None:
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
