"""A decorator of our own: the body runs on the first rank of tensor parallelism."""

import functools
import logging

import uvicorn
from vllm.distributed import get_pp_group, get_tensor_model_parallel_rank

logger = logging.getLogger(__name__)


def tp_rank_zero_only(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if get_tensor_model_parallel_rank() != 0:
            return None
        return function(*args, **kwargs)

    return wrapper


@tp_rank_zero_only
def serve_debug(app, port: int) -> None:
    stage = get_pp_group().rank_in_group
    logger.info("debug server of stage %d", stage)
    uvicorn.run(app, host="127.0.0.1", port=port + stage)
