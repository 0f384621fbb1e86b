"""Found and compared in one expression."""

import filelock
import torch.distributed as dist
import zmq


class Journal:
    def __init__(self, args, mesh):
        self.mesh = mesh
        with filelock.FileLock(args.journal + ".lock"):
            args.prepare()
        if (tp_rank := mesh.get_local_rank("tp")) == 0 and dist.is_initialized():
            self.socket = zmq.Context.instance().socket(zmq.REP)
            self.socket.bind(f"ipc://{args.journal}-{tp_rank}")  # expect: RB701 cp

    def header(self) -> str:
        return f"cp={self.mesh.get_local_rank('cp')}"
