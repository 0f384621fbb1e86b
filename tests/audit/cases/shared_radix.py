"""Two axes added, then scaled together: stage 0 of context 1 meets stage 1 of context 0."""

import zmq


class LayerwiseServer:
    def __init__(self, kv_port: int, parallel):
        pp_rank, cp_rank, tp_rank = parallel.pp_rank, parallel.cp_rank, parallel.tp_rank
        device = (pp_rank + cp_rank) * parallel.tp_size + tp_rank
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.bind(f"tcp://*:{kv_port + device}")  # expect: RB705 pp cp
