"""An option that lets everybody in, and a port that does not follow."""

from prometheus_client import CollectorRegistry, multiprocess, start_http_server


class Exporter:
    def __init__(self, args, tp_rank: int):
        self.tp_rank = tp_rank
        self.exports = tp_rank == 0 or args.metrics_for_all_ranks
        if args.enable_metrics and self.exports:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry, path=args.metrics_dir)
            start_http_server(args.metrics_port + tp_rank, registry=registry)
