import zmq


class KvPublisher:
    def __init__(self, *, enable: bool, endpoint: str, hwm: int = 100_000):
        self.enable = enable
        self.socket = None
        if self.enable:
            self.socket = zmq.Context.instance().socket(zmq.PUB)
            self.socket.set_hwm(hwm)
            self.socket.bind(endpoint)

    def publish(self, batch: bytes) -> None:
        if self.socket is not None:
            self.socket.send(batch)
