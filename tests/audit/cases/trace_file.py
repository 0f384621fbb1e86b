"""A chrome trace for each rank."""

import os

import torch


class Profiler:
    def __init__(self, output_dir: str, tp_rank: int, cp_rank: int, pp_rank: int):
        self.ranks = {"tp": tp_rank, "cp": cp_rank, "pp": pp_rank}
        self.path = os.path.join(output_dir, f"trace-PP{pp_rank}-TP{tp_rank}.json.gz")
        self.cp_rank = cp_rank
        self.profiler = torch.profiler.profile(with_stack=True)

    def stop(self) -> None:
        self.profiler.stop()
        self.profiler.export_chrome_trace(self.path)  # expect: RB701 cp
