"""The loop of the launcher is the axis; the child adds it to the port."""

import torch.multiprocessing as mp
import zmq


def serve_replica(base_port: int, dp_rank: int) -> None:
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(f"tcp://*:{base_port + dp_rank}")
    while True:
        socket.send(socket.recv())


def launch(args) -> None:
    replicas = [
        mp.Process(target=serve_replica, args=(args.base_port, dp_rank), daemon=True) for dp_rank in range(args.dp_size)
    ]
    for replica in replicas:
        replica.start()
    for replica in replicas:
        replica.join()
