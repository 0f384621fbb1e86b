"""The first rank of the world pins every axis there is."""

import os

import torch.distributed as dist


class Trainer:
    def __init__(self, args, mesh):
        self.mesh = mesh
        self.tp_rank = mesh.get_local_rank("tp")
        self.pp_rank = mesh.get_local_rank("pp")
        self.is_main = dist.get_rank() == 0
        self.log = None
        if self.is_main:
            self.log = open(os.path.join(args.output_dir, "train.jsonl"), "w")
        store_owner = int(os.environ["RANK"]) == 0
        self.store = dist.TCPStore(args.host, args.port, dist.get_world_size(), is_master=store_owner)

    def step(self, loss: float) -> None:
        if self.log is not None:
            self.log.write(f"{loss}\n")
