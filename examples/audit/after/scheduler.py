"""The same, with the owner declared: what the audit suggests."""

from dataclasses import dataclass

from rankbind import singleton_per

from .publisher import KvEventPublisher


@dataclass
class Options:
    kv_events: bool
    kv_events_port: int


@singleton_per(group=("pp", "tp"), rank=0)
def kv_events(options: Options, dp_rank: int) -> KvEventPublisher:
    return KvEventPublisher(options.kv_events_port, dp_rank)


class Scheduler:
    def __init__(self, options: Options, pp_rank: int, dp_rank: int) -> None:
        self.is_first_stage = pp_rank == 0
        self.publisher = kv_events(options, dp_rank) if options.kv_events else None
