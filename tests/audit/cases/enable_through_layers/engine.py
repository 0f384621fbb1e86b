from wire import open_bus


class Engine:
    def __init__(self, options, report: bool = True, index: int = 0):
        self.options = options
        self.bus = open_bus(report, options.bus_port, index)
