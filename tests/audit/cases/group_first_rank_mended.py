"""Side channel of a connector: the first rank of the tensor parallel group listens."""

import zmq
from vllm.distributed.parallel_state import get_pp_group, get_tp_group


class SideChannel:
    def __init__(self, vllm_config, base_port: int):
        self.port = base_port + vllm_config.parallel_config.data_parallel_index
        self.stage = get_pp_group().rank_in_group
        self.router = None
        if get_tp_group().is_first_rank and get_pp_group().is_last_rank:
            self.router = zmq.Context.instance().socket(zmq.ROUTER)
            self.router.bind(f"tcp://*:{self.port}")
