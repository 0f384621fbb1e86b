"""One option, two parts that obey it, and two ideas of who does."""


class MetricsCollector:
    def __init__(self, labels: dict, count_events: bool):
        self.labels, self.count_events = labels, count_events


class EventLink:
    def __init__(self, endpoint: str, active: bool):
        self.endpoint, self.active = endpoint, active


class Scheduler:
    def __init__(self, args, pp_rank: int, tp_rank: int):
        labels = {"pp_rank": pp_rank, "tp_rank": tp_rank}
        count = bool(args.kv_events_config and tp_rank == 0)  # expect: RB702 pp
        active = bool(args.kv_events_config and pp_rank == 0 and tp_rank == 0)
        self.collector = MetricsCollector(labels, count_events=count)
        self.link = EventLink(args.kv_events_config, active=active)
