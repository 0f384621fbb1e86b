"""Conditions in a list."""

import os

import grpc


async def serve_admin(config, ranks) -> grpc.aio.Server | None:
    wanted = all([config.admin_port, ranks.tp_rank == 0, ranks.cp_rank == 0])
    if not wanted:
        return None
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_insecure_port(f"0.0.0.0:{config.admin_port}")  # expect: RB701 dp
    await server.start()
    os.environ["ADMIN_OF"] = str(ranks.dp_rank)
    return server
