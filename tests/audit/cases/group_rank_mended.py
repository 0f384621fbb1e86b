"""The rank within a group, asked of torch."""

import torch.distributed as dist


class Rendezvous:
    def __init__(self, tp_group, pp_group, host: str, port: int, world_size: int):
        self.tp_group = tp_group
        self.pp_group = pp_group
        leader = dist.get_rank(tp_group) == 0 and dist.get_rank(group=pp_group) == 0
        self.store = dist.TCPStore(host, port, world_size, is_master=leader)

    def stage(self) -> int:
        return dist.get_rank(self.pp_group)
