"""Membership in a tuple that was once longer."""

import zmq


def open_trace_feed(args, rank_info):
    if rank_info.cp_rank not in (0,) or rank_info.tp_rank not in {0}:
        return None
    feed = zmq.Context.instance().socket(zmq.PUB)
    feed.setsockopt(zmq.SNDHWM, args.feed_hwm)
    feed.setsockopt(zmq.IDENTITY, b"stage-%d" % rank_info.pp_rank)
    feed.bind("ipc://" + args.feed_path + "." + str(rank_info.pp_rank))
    return feed
