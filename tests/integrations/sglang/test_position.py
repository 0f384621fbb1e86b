from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
from rankbind_sglang.position import KV_EVENTS, position, ranks_of

from rankbind import RankbindError, Scope

from ...support.fake_sglang import ranks

SIZES = [
    pytest.param(replicas, pp, attn_dp, attn_cp, attn_tp, id=f"{replicas}-{pp}-{attn_dp}-{attn_cp}-{attn_tp}")
    for replicas, pp, attn_dp, attn_cp, attn_tp in product((1, 2), (1, 2, 4), (1, 2, 4), (1, 2), (1, 2))
    if replicas == 1 or attn_dp == 1
]


def schedulers(replicas: int, pp: int, attn_dp: int, attn_cp: int, attn_tp: int) -> list[SimpleNamespace]:
    """The ranks of every scheduler of a launch, by SGLang's own formulas."""
    tp = attn_dp * attn_cp * attn_tp
    return [
        ranks(
            tp_size=tp,
            pp_size=pp,
            dp_size=replicas * attn_dp,
            attn_tp_size=attn_tp,
            attn_cp_size=attn_cp,
            pp_rank=pp_rank,
            attn_tp_rank=tp_rank % attn_tp,
            attn_cp_rank=tp_rank // attn_tp % attn_cp,
            attn_dp_rank=tp_rank // (attn_tp * attn_cp),
            dp_rank=tp_rank // (attn_tp * attn_cp) if attn_dp > 1 else replica if replicas > 1 else None,
        )
        for replica, pp_rank, tp_rank in product(range(replicas), range(pp), range(tp))
    ]


def test_the_declaration() -> None:
    assert Scope(group=("pp", "attn_tp", "attn_cp"), rank=0) == KV_EVENTS


@pytest.mark.parametrize(("replicas", "pp", "attn_dp", "attn_cp", "attn_tp"), SIZES)
def test_each_cache_has_one_owner_and_each_owner_a_port(
    replicas: int, pp: int, attn_dp: int, attn_cp: int, attn_tp: int
) -> None:
    places = [position(each) for each in schedulers(replicas, pp, attn_dp, attn_cp, attn_tp)]
    assert sorted(place.index for place in places if place.owns) == list(range(replicas * attn_dp))


def test_the_owner_is_the_first_of_the_first_stage() -> None:
    places = [position(each) for each in schedulers(1, 2, 2, 1, 2)]
    owners = [dict(place.coordinates) for place in places if place.owns]
    assert owners == [
        {"dp": 0, "pp": 0, "attn_dp": 0, "attn_cp": 0, "attn_tp": 0},
        {"dp": 0, "pp": 0, "attn_dp": 1, "attn_cp": 0, "attn_tp": 0},
    ]


def test_a_replica_that_was_started_by_hand() -> None:
    assert position(ranks(dp_size=1, dp_rank=3)).index == 3


@pytest.mark.parametrize(
    "broken",
    [
        ranks(tp_size=8, attn_tp_size=3),
        ranks(tp_size=2, attn_tp_size=2, attn_tp_rank=2),
        ranks(pp_size=2, pp_rank=2),
    ],
)
def test_ranks_that_make_no_sense(broken: SimpleNamespace) -> None:
    with pytest.raises(RankbindError):
        position(broken)


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="pp_size"):
        position(SimpleNamespace(tp_size=1, attn_tp_size=1, attn_cp_size=1, attn_dp_rank=0, dp_rank=None, dp_size=1))


def test_where_each_line_of_releases_has_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, passed = ranks(), ranks()
    scheduler = SimpleNamespace(ps=theirs)
    assert ranks_of("scheduler", scheduler, {}) is scheduler
    assert ranks_of("ps", scheduler, {}) is theirs
    assert ranks_of("ps", None, {"ps": passed}) is passed
    context = SimpleNamespace(get_parallel=lambda: passed)
    monkeypatch.setitem(__import__("sys").modules, "sglang.srt.runtime_context", context)
    assert ranks_of("runtime context", None, {}) is passed
