"""Names that nobody else has: a temporary file, a process id, a random one."""

import os
import tempfile
import uuid
from multiprocessing import shared_memory

import zmq


class Worker:
    def __init__(self, tp_rank: int, pp_rank: int):
        self.place = (pp_rank, tp_rank)
        context = zmq.Context.instance()
        self.inbox = context.socket(zmq.PULL)
        self.inbox.bind(f"ipc://{tempfile.NamedTemporaryFile(delete=False).name}")
        self.trace = open(f"/tmp/trace_{os.getpid()}.json", "w")
        self.buffer = shared_memory.SharedMemory(name=f"buffer_{uuid.uuid4().hex}", create=True, size=4096)
        self.directory = tempfile.mkdtemp(prefix="worker-")
        self.replies = context.socket(zmq.REP)
        self.replies.bind("ipc://" + os.path.join(self.directory, "replies"))
