"""Agreement within a pipeline."""

import torch.distributed as dist


def agree(value: list, pp_group) -> object:
    """Everybody gets what the first stage has."""
    dist.broadcast_object_list(value, group_src=0, group=pp_group)
    return value[0]
