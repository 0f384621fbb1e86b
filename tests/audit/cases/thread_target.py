"""A thread started in __init__ serves; no rank is asked, neither here nor there."""

import threading

import zmq


class KvPuller:
    def __init__(self, base_port: int, dp_rank: int, tp_rank: int, tp_size: int):
        self.port = base_port + dp_rank * tp_size
        self.tp_rank = tp_rank
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._serve, name=f"puller-{tp_rank}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        router = zmq.Context.instance().socket(zmq.ROUTER)
        router.bind(f"tcp://0.0.0.0:{self.port}")  # expect: RB701 tp
        while not self.stopping.is_set():
            identity, key = router.recv_multipart()
            router.send_multipart([identity, self.block(key)])

    def block(self, key: bytes) -> bytes:
        return b"%d:" % self.tp_rank + key
