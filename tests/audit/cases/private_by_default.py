"""An option names the socket; without it each owner makes one for itself, with its rank."""

import tempfile

import zmq


def stats_endpoint(base: int | None, dp_rank: int) -> str:
    if base is None:
        return f"ipc://{tempfile.mktemp()}"
    return f"tcp://127.0.0.1:{base + dp_rank}"


class Stats:
    def __init__(self, args, tp_rank: int, dp_rank: int):
        if tp_rank == 0:
            self.socket = zmq.Context.instance().socket(zmq.PUB)
            self.socket.bind(stats_endpoint(args.stats_port, dp_rank))
