"""The main process is no rank: it starts them, and serves."""

import multiprocessing

import uvicorn
import zmq


def run_scheduler(args, tp_rank: int, pp_rank: int) -> None:
    requests = zmq.Context().socket(zmq.SUB)
    requests.connect(args.scheduler_endpoint)
    while True:
        args.step(pp_rank, tp_rank, requests.recv())


def launch(args, app) -> None:
    requests = zmq.Context().socket(zmq.PUB)
    requests.bind(args.scheduler_endpoint)
    for pp_rank in range(args.pp_size):
        for tp_rank in range(args.tp_size):
            multiprocessing.Process(target=run_scheduler, args=(args, tp_rank, pp_rank)).start()
    uvicorn.run(app, host=args.host, port=args.port)
