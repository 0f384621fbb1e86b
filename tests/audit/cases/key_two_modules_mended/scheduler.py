from .recorder import Recorder
from .reporter import Reporter


class Scheduler:
    def __init__(self, args, ps):
        self.recorder = Recorder(args, ps)
        self.reporter = Reporter(args, ps)
