import engine


def run_engine(options, tp_rank: int, dp_rank: int) -> engine.Engine:
    options.log(f"TP{tp_rank} DP{dp_rank}")
    return engine.Engine(options, report=tp_rank == 0)  # expect: RB701 dp
