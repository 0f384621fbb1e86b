"""Reading a file, joining a segment and making a registry need no owner."""

import json
from multiprocessing import shared_memory

from prometheus_client import CollectorRegistry, Counter


class Worker:
    def __init__(self, model_dir: str, tp_rank: int, pp_rank: int):
        with open(f"{model_dir}/config.json") as file:
            self.config = json.load(file)
        self.table = shared_memory.SharedMemory(name="routing_table")
        self.registry = CollectorRegistry()
        self.steps = Counter("steps", "steps", ["pp", "tp"], registry=self.registry).labels(pp_rank, tp_rank)
