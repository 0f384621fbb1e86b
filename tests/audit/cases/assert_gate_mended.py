"""The debug console of a trainer, opened by whoever calls it; the assertion says who may."""

import code
import socket

from megatron.core import parallel_state


def serve_console(port: int, namespace: dict) -> None:
    assert parallel_state.get_tensor_model_parallel_rank() == 0, "one console a stage"
    stage = parallel_state.get_pipeline_model_parallel_rank()
    listener = socket.create_server(("127.0.0.1", port + stage))
    connection, _ = listener.accept()
    stream = connection.makefile("rw")
    console = code.InteractiveConsole({**namespace, "stage": stage})
    for line in stream:
        console.push(line)
