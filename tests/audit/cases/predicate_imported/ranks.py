"""Who leads."""

from dataclasses import dataclass


@dataclass
class Parallel:
    dp_rank: int
    pp_rank: int
    cp_rank: int
    tp_rank: int


def leads(parallel: Parallel) -> bool:
    if parallel.tp_rank:
        return False
    return parallel.pp_rank == 0
