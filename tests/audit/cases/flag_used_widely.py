"""One option with many readers: each rank counts, one serves. That is no disagreement."""

import time

from prometheus_client import start_http_server


class Worker:
    def __init__(self, args, tp_rank: int, dp_rank: int):
        self.args = args
        self.tp_rank = tp_rank
        self.steps = 0
        self.started = time.monotonic() if args.enable_metrics else 0.0
        if args.enable_metrics and tp_rank == 0:
            start_http_server(args.metrics_port + dp_rank)

    def step(self, batch) -> None:
        if self.args.enable_metrics:
            self.steps += 1
            batch.label = f"tp{self.tp_rank}: {self.steps / (time.monotonic() - self.started):.1f}/s"
