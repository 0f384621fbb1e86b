from collections import deque


class RadixCache:
    def __init__(self, page_size: int, enable_kv_cache_events: bool):
        self.page_size = page_size
        self.enable_kv_cache_events = enable_kv_cache_events
        self.kv_event_queue: deque = deque()

    def insert(self, block) -> None:
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(("stored", block))

    def take_events(self) -> list:
        events = list(self.kv_event_queue)
        self.kv_event_queue.clear()
        return events
