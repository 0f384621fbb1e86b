"""The publisher of the scheduler: one for each replica is meant."""

import zmq


class Scheduler:
    def __init__(self, server_args, tp_rank: int, pp_rank: int, dp_rank: int):
        self.server_args = server_args
        self.tp_rank = tp_rank
        self.pp_rank = pp_rank
        self.dp_rank = dp_rank
        self.events = None
        if tp_rank == 0:
            self.events = zmq.Context.instance().socket(zmq.PUB)
            self.events.set_hwm(server_args.events_hwm)
            self.events.bind(f"tcp://*:{server_args.events_port + dp_rank}")  # expect: RB701 pp

    def close(self) -> None:
        if self.events is not None:
            self.events.close(linger=0)
