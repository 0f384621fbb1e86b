"""No gate: each rank has its own socket, it is said. The stage is missing in the name."""

import zmq


class TokenizerLink:
    def __init__(self, run_id: str, tp_rank: int, pp_rank: int):
        self.name = f"/tmp/{run_id}_tp{tp_rank}"
        self.pp_rank = pp_rank
        self.pull = zmq.Context.instance().socket(zmq.PULL)
        self.pull.bind("ipc://{}.in".format(self.name))  # expect: RB701 pp

    def poll(self):
        return self.pp_rank, self.pull.recv_pyobj(zmq.NOBLOCK)
