"""A helper asks the kernel for a port; the stages agree on it through the group."""

import socket

import torch.distributed as dist
import zmq


def get_open_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class StageChannel:
    def __init__(self, pp_rank: int, tp_rank: int, pp_group):
        self.tp_rank = tp_rank
        ports = [get_open_port() if pp_rank == 0 else None]
        dist.broadcast_object_list(ports, group_src=0, group=pp_group)
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        if pp_rank == 0:
            self.socket.bind(f"tcp://127.0.0.1:{ports[0]}")
        else:
            self.socket.connect(f"tcp://127.0.0.1:{ports[0]}")
