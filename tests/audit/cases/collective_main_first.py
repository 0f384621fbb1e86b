"""The others wait before, the main process after: each calls the barrier once."""

import os

import torch.distributed as dist


def load_dataset_once(load, path: str):
    local_rank = int(os.environ["LOCAL_RANK"])
    if local_rank != 0:
        dist.barrier()
    data = load(path)
    if local_rank == 0:
        dist.barrier()
    return data
