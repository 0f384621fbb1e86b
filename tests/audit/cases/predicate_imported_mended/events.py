import zmq

from predicate_imported_mended.ranks import Parallel
from predicate_imported_mended.ranks import leads as is_head


class EventPublisher:
    def __init__(self, endpoint: str, parallel: Parallel):
        self.parallel = parallel
        host, _, port = endpoint.rpartition(":")
        self.endpoint = f"{host}:{int(port) + parallel.dp_rank}"
        self.socket = zmq.Context.instance().socket(zmq.XPUB)
        if is_head(self.parallel):
            self.socket.bind(self.endpoint)
