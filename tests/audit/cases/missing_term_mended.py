# profile: vllm
"""A listener for each worker; the stages and context ranks of one host share its port."""

import threading

import zmq
from vllm.distributed import get_pcp_group, get_pp_group, get_tensor_model_parallel_rank


class HandshakeServer:
    def __init__(self, parallel_config, base_port: int):
        self.tp_rank = get_tensor_model_parallel_rank()
        self.pp_rank = get_pp_group().rank_in_group
        self.pcp_rank = get_pcp_group().rank_in_group
        self.port = (
            base_port
            + (
                (parallel_config.data_parallel_rank * parallel_config.pipeline_parallel_size + self.pp_rank)
                * parallel_config.prefill_context_parallel_size
                + self.pcp_rank
            )
            * parallel_config.tensor_parallel_size
            + self.tp_rank
        )
        path = f"tcp://*:{self.port}"
        threading.Thread(target=self._listen, args=(path,), daemon=True).start()

    def _listen(self, path: str) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.bind(path)
            while True:
                router.send_multipart(router.recv_multipart())
