"""A trace for each rank, from two handlers; the number of the step is no rank."""

import os

import torch
from torch.profiler import tensorboard_trace_handler


class Profiler:
    def __init__(self, directory: str, pp_rank: int, tp_rank: int, cp_rank: int):
        self.directory = directory
        self.ranks = {"pp": pp_rank, "cp": cp_rank, "tp": tp_rank}
        self.name = "_".join((f"pp{pp_rank}", f"cp{cp_rank}", f"tp{tp_rank}"))
        self.profiler = torch.profiler.profile(
            on_trace_ready=tensorboard_trace_handler(directory, worker_name=self.name),
        )

    def export(self, step: int) -> None:
        target = os.path.join(self.directory, self.name + f".step{step}.json")
        self.profiler.export_chrome_trace(target)
