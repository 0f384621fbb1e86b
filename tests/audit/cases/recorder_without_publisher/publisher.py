import zmq


class KvEventsPublisher:
    def __init__(self, tree_cache, endpoint: str, enable: bool):
        self.tree_cache = tree_cache
        self.socket = None
        if enable:
            self.socket = zmq.Context.instance().socket(zmq.PUB)
            self.socket.bind(endpoint)

    def publish_kv_events(self) -> None:
        if self.socket is None:
            return
        for event in self.tree_cache.take_events():
            self.socket.send_pyobj(event)
