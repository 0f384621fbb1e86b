"""A mixin: what the class that it is mixed into has."""

from concurrent import futures

import grpc


class GrpcMixin:
    def start_grpc(self, port: int) -> None:
        if self.is_driver:
            self.grpc_server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
            self.grpc_server.add_insecure_port(f"[::]:{port}")
            self.grpc_server.start()
