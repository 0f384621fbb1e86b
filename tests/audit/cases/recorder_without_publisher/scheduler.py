from .publisher import KvEventsPublisher
from .radix_cache import RadixCache


class Scheduler:
    def __init__(self, args, pp_rank: int, tp_rank: int, dp_rank: int):
        records = args.kv_port > 0 and tp_rank == 0
        publishes = args.kv_port > 0 and tp_rank == 0 and pp_rank == 0
        self.tree_cache = RadixCache(args.page_size, enable_kv_cache_events=records)  # expect: RB703 pp
        self.publisher = KvEventsPublisher(self.tree_cache, f"tcp://*:{args.kv_port + dp_rank}", enable=publishes)

    def event_loop(self) -> None:
        while True:
            self.step()
            self.publisher.publish_kv_events()
