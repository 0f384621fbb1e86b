"""A control server beside the engine, on the event loop of the worker."""

import asyncio
import logging

logger = logging.getLogger(__name__)


class ControlServer:
    def __init__(self, tp_rank: int, pp_rank: int, port: int):
        self.tp_rank = tp_rank
        self.pp_rank = pp_rank
        self.port = port

    async def start(self) -> None:
        if self.tp_rank != 0:
            logger.debug("stage %d: rank %d has no control server", self.pp_rank, self.tp_rank)
            return
        self.server = await asyncio.start_server(self.handle, "0.0.0.0", self.port)  # expect: RB701 pp
        async with self.server:
            await self.server.serve_forever()

    async def handle(self, reader, writer) -> None:
        command = await reader.readline()
        writer.write(b"ok " + command)
        await writer.drain()
        writer.close()
