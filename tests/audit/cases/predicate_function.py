# profile: sglang
"""One predicate for all sites, and one axis forgotten in it."""

from sglang.srt.disaggregation.kv_events import EventPublisherFactory


def is_kv_publisher_rank(ps) -> bool:
    """Exactly one rank of each attention data parallel group."""
    return ps.attn_tp_rank == 0 and ps.attn_cp_rank == 0


def kv_publisher_index(ps) -> int:
    return ps.attn_dp_rank if ps.attn_dp_size > 1 else (ps.dp_rank or 0)


class KvEvents:
    def __init__(self, ps, kv_events_config):
        self.ps = ps
        self.publisher = None
        if kv_events_config and is_kv_publisher_rank(ps):
            self.publisher = EventPublisherFactory.create(kv_events_config, kv_publisher_index(ps))  # expect: RB701 pp

    def describe(self) -> dict:
        return {"pp_rank": self.ps.pp_rank, "attn_dp_rank": self.ps.attn_dp_rank}
