"""Recording follows the option alone; only one rank takes what is recorded."""

import zmq


class BlockManager:
    def __init__(self, record_events: bool):
        self.record_events = record_events
        self.events: list[tuple[str, int]] = []

    def evict(self, block: int) -> None:
        if self.record_events:
            self.events.append(("removed", block))


class Engine:
    def __init__(self, config, dp_rank: int, tp_rank: int):
        self.blocks = BlockManager(record_events=config.enable_events and tp_rank == 0)
        self.publisher = None
        if config.enable_events and tp_rank == 0:
            self.publisher = zmq.Context.instance().socket(zmq.PUB)
            self.publisher.bind(f"tcp://*:{config.events_port + dp_rank}")

    def step(self) -> None:
        if self.publisher is not None:
            events, self.blocks.events = self.blocks.events, []
            self.publisher.send_pyobj(events)
