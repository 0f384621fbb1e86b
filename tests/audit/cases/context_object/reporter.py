import zmq

from .context import ReporterContext


class Reporter:
    def __init__(self, context: ReporterContext):
        self.context = context
        self.socket = None
        if self.context.is_owner:
            self.socket = zmq.Context.instance().socket(zmq.PUB)
            self.socket.bind(f"tcp://*:{self.context.port + self.context.dp_rank}")  # expect: RB701 pp
