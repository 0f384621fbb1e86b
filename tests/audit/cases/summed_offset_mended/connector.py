import zmq

from .ports import get_port_offset


class Connector:
    def __init__(self, config, dp_rank: int, tp_rank: int, tp_size: int):
        self.dp_rank = dp_rank
        self.tp_rank = tp_rank
        self.tp_size = tp_size
        self.port = config.handshake_port + get_port_offset(dp_rank, tp_rank, tp_size)

    def listen(self) -> None:
        self.router = zmq.Context.instance().socket(zmq.ROUTER)
        self.router.bind(f"tcp://*:{self.port}")
