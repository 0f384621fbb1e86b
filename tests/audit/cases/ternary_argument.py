"""The gate stands in an argument."""

from datetime import timedelta

from torch.distributed import TCPStore


def make_store(args, tp_rank: int, dp_rank: int) -> TCPStore:
    return TCPStore(  # expect: RB701 dp
        args.host,
        args.store_port,
        args.tp_size,
        True if tp_rank == 0 else False,
        timeout=timedelta(seconds=args.timeout + dp_rank),
    )
