"""A flag worked out at the top of a long function, used at its end."""

import zmq


def run_worker(args, tp_rank, cp_rank, pp_rank, dp_rank):
    is_leader = tp_rank == 0 and cp_rank == 0 and pp_rank == 0
    context = zmq.Context(1)
    requests = context.socket(zmq.PULL)
    requests.connect(args.request_endpoint)
    replay = None
    if args.replay_port is not None and is_leader:
        replay = context.socket(zmq.ROUTER)
        replay.bind("tcp://*:" + str(args.replay_port + dp_rank))
    while True:
        batch = requests.recv_pyobj()
        if replay is not None and batch.replay:
            replay.send_pyobj((pp_rank, batch.events))
