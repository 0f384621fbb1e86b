from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rankbind_sglang import mirror
from rankbind_sglang.mirror import Mirror

from ...support.fake_sglang import FakeSGLang

PAGE = 2


class BlockStored(msgspec.Struct):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int = PAGE
    medium: str | None = "GPU"
    lora_name: str | None = None


class BlockRemoved(msgspec.Struct):
    block_hashes: list[int]
    medium: str | None = "GPU"


class AllBlocksCleared(msgspec.Struct):
    pass


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeSGLang:
    return FakeSGLang(monkeypatch)


def batch(*events: object) -> SimpleNamespace:
    return SimpleNamespace(events=list(events))


def stored(parent: int | None, *blocks: int, medium: str | None = "GPU") -> BlockStored:
    return BlockStored(list(blocks), parent, [block * 10 + at for block in blocks for at in range(PAGE)], medium=medium)


def told(mirror: Mirror) -> list[Any]:
    return [event for each in mirror.batches(rank=3) for event in each.events]


def of(*events: object) -> Mirror:
    kept = Mirror()
    kept.apply(batch(*events))
    return kept


def test_what_was_stored_is_told_again() -> None:
    assert told(of(stored(None, 1, 2), stored(2, 3))) == [stored(None, 1, 2), stored(2, 3)]


def test_what_was_removed_is_not() -> None:
    assert told(of(stored(None, 1, 2, 3, 4, 5), BlockRemoved([3]))) == [stored(None, 1, 2), stored(3, 4, 5)]
    assert told(of(stored(None, 1, 2), BlockRemoved([1, 2]))) == []
    assert told(of(BlockRemoved([7]), stored(None, 1))) == [stored(None, 1)]


def test_nothing_is_left_of_what_was_cleared() -> None:
    assert told(of(stored(None, 1), AllBlocksCleared(), stored(None, 2))) == [stored(None, 2)]


def test_a_block_is_told_once_however_often_it_was_stored() -> None:
    assert told(of(stored(None, 1, 2), stored(None, 1, 2))) == [stored(None, 1, 2)]


def test_a_block_may_be_on_several_media() -> None:
    kept = of(stored(None, 1), stored(None, 1, medium="CPU_PINNED"), BlockRemoved([1]))
    assert told(kept) == [stored(None, 1, medium="CPU_PINNED")]


def test_a_parent_is_told_first_even_if_it_was_stored_anew_after_its_child() -> None:
    kept = of(stored(None, 1), stored(1, 2), stored(2, 3), BlockRemoved([1]), stored(None, 1))
    assert told(kept) == [stored(None, 1), stored(1, 2), stored(2, 3)]


def test_everything_else_of_an_event_is_kept() -> None:
    event = stored(None, 1)
    event.lora_name = "tuned"
    assert told(of(event)) == [event]


def test_events_that_the_engine_changes_later_are_not_followed() -> None:
    event = stored(None, 1)
    kept = of(event)
    event.block_hashes.append(2)
    assert told(kept) == [stored(None, 1)]


@pytest.mark.parametrize("tokens", [[(1, 2), (2, 3)], [-1, 2], [2**40, 1]])
def test_tokens_of_any_kind(tokens: list[Any]) -> None:
    event = BlockStored([1], None, tokens)
    assert told(of(event)) == [event]


def test_batches_are_of_a_bearable_size_and_carry_the_publishers_rank() -> None:
    kept = of(*(stored(None, block) for block in range(1, 2_501)))
    batches = list(kept.batches(rank=3))
    assert [len(each.events) for each in batches] == [mirror.BLOCKS_A_BATCH, mirror.BLOCKS_A_BATCH, 500]
    assert {each.attn_dp_rank for each in batches} == {3}


def test_an_event_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(TypeError, match="unknown event SimpleNamespace"):
        of(SimpleNamespace())


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_a_router_that_hears_it_knows_exactly_what_is_cached(chance: random.Random, steps: int) -> None:
    """A cache as the engine's: a tree, whose leaves are removed, and any block of it stored anew."""
    parents: dict[int, int | None] = {}
    cached: set[int] = set()
    kept = Mirror()
    with pytest.MonkeyPatch.context() as monkeypatch:
        FakeSGLang(monkeypatch)
        for _ in range(steps):
            leaves = [block for block in cached if not any(parents[other] == block for other in cached)]
            if leaves and chance.random() < 0.4:
                gone = chance.sample(leaves, chance.randint(1, len(leaves)))
                cached -= set(gone)
                kept.apply(batch(BlockRemoved(gone)))
                continue
            above = chance.choice([None, *sorted(cached)])
            run = []
            for _ in range(chance.randint(1, 4)):
                again = [b for b in parents if b not in cached and parents[b] == (run[-1] if run else above)]
                block = chance.choice(again) if again and chance.random() < 0.7 else len(parents) + 1
                parents[block] = run[-1] if run else above
                run.append(block)
                cached.add(block)
            kept.apply(batch(stored(above, *run)))
        index: set[int] = set()
        for event in told(kept):
            assert event.parent_block_hash is None or event.parent_block_hash in index
            assert not index & set(event.block_hashes)
            index |= set(event.block_hashes)
            assert event.token_ids == [block * 10 + at for block in event.block_hashes for at in range(PAGE)]
            for parent, block in zip([event.parent_block_hash, *event.block_hashes], event.block_hashes, strict=False):
                assert parents[block] == parent
        assert index == cached
        assert len(kept) == len(cached)
