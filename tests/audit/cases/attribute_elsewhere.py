"""The gate is set in __init__, the server starts long after."""

from prometheus_client import CollectorRegistry, Gauge, start_http_server


class MetricsReporter:
    def __init__(self, args, ps):
        self.args = args
        self.ps = ps
        self.enabled = bool(args.enable_metrics and ps.tp_rank == 0)
        self.registry = CollectorRegistry()
        self.running = Gauge("running", "requests", ["pp_rank"], registry=self.registry)

    def observe(self, running: int) -> None:
        self.running.labels(pp_rank=str(self.ps.pp_rank)).set(running)

    def warmed_up(self) -> None:
        if not self.enabled:
            return
        start_http_server(self.args.metrics_port, registry=self.registry)  # expect: RB701 pp
