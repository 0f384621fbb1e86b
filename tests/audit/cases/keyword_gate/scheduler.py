from .publisher import KvPublisher


class Scheduler:
    def __init__(self, args, pp_rank: int, attn_tp_rank: int, attn_cp_rank: int, dp_rank: int):
        self.pp_rank = pp_rank
        self.attn_cp_rank = attn_cp_rank
        endpoint = f"tcp://*:{args.kv_port + dp_rank}"
        self.kv_publisher = KvPublisher(enable=attn_tp_rank == 0, endpoint=endpoint)  # expect: RB701 pp attn_cp
