"""Only the head of a pipeline may be asked for weights."""

from multiprocessing.connection import Listener


class WeightServer:
    def __init__(self, parallel, port: int):
        self.parallel = parallel
        self.port = port

    def listen(self):
        if self.parallel.pp_rank > 0:
            raise RuntimeError(f"stage {self.parallel.pp_rank} serves no weights")
        if self.parallel.tp_rank > 0:
            raise RuntimeError(f"rank {self.parallel.tp_rank} serves no weights")
        self.listener = Listener(("0.0.0.0", self.port), authkey=b"weights")
        while True:
            with self.listener.accept() as peer:
                peer.send((self.parallel.tp_rank, self.parallel.pp_rank))
