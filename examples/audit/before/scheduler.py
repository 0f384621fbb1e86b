"""The gate of SGLang PR 29044 in small: it asks for the tensor rank and forgets the pipeline stage."""

from dataclasses import dataclass

from .publisher import KvEventPublisher


@dataclass
class Options:
    kv_events: bool
    kv_events_port: int


class Scheduler:
    def __init__(self, options: Options, pp_rank: int, tp_rank: int, dp_rank: int) -> None:
        self.is_first_stage = pp_rank == 0
        self.publishes_events = options.kv_events and tp_rank == 0
        self.publisher: KvEventPublisher | None = None
        if self.publishes_events:
            self.publisher = KvEventPublisher(options.kv_events_port, dp_rank)
