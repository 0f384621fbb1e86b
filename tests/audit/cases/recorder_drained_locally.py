"""Each rank records and each takes what it has recorded; one of them publishes besides."""

import logging

import zmq

logger = logging.getLogger(__name__)


class Cache:
    def __init__(self, record_events: bool):
        self.record_events = record_events
        self.events: list[str] = []

    def insert(self, key: str) -> None:
        if self.record_events:
            self.events.append(key)


class Engine:
    def __init__(self, config, dp_rank: int, tp_rank: int):
        self.cache = Cache(record_events=config.enable_events)
        self.publisher = None
        if config.enable_events and tp_rank == 0:
            self.publisher = zmq.Context.instance().socket(zmq.PUB)
            self.publisher.bind(f"tcp://*:{config.events_port + dp_rank}")

    def step(self) -> None:
        events, self.cache.events = self.cache.events, []
        logger.debug("%d events", len(events))
        if self.publisher is not None:
            self.publisher.send_pyobj(events)
