from .base import WorkerBase
from .serving import GrpcMixin


class Worker(GrpcMixin, WorkerBase):
    def __init__(self, config, rank: int):
        super().__init__(rank, config.tp_size, config.pp_size)
        self.start_grpc(config.grpc_port)  # expect: RB701 pp
