"""What a publisher has been given to tell of its cache: kept, so that it can be told again after ``AllBlocksCleared``.

Without it a router never hears of what was cached before: its index begins empty, and it can only drop events of blocks
whose parents it does not know. Those are the blocks of the prompts that everybody shares, which are cached first and
evicted last.

It is kept from the events and not read from the cache. Events are the same in every release and for every kind of
cache; the caches are not, the one that 0.5.21 and later make by default shows nobody its blocks, and none may be looked
at but by the scheduler's thread.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from typing import Any

from rankbind_sglang.releases import KV_EVENTS_MODULE

BLOCKS_A_BATCH = 1_000
"""About so many are told in one message."""


class Mirror:
    """The blocks that a cache holds, once all events are told that it has been shown. Not for two threads at once."""

    def __init__(self) -> None:
        self._runs: dict[str | None, dict[int, Any]] = {}
        """By medium and hash: the event that stored the block, and its neighbours, for the last time."""

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

    def apply(self, batch: Any) -> None:
        """Follow a batch of events.

        Raises:
            AttributeError, TypeError: events of a kind that no release has sent.
        """
        for event in batch.events:
            kind = type(event).__name__
            if kind == "BlockStored":
                run = event.__copy__()
                run.block_hashes = list(event.block_hashes)  # the engine may add to it
                run.token_ids = _packed(event.token_ids)
                blocks = self._runs.setdefault(event.medium, {})
                for block in run.block_hashes:
                    blocks[block] = run
            elif kind == "BlockRemoved":
                blocks = self._runs.get(event.medium, {})
                for block in event.block_hashes:
                    blocks.pop(block, None)
            elif kind == "AllBlocksCleared":
                self._runs.clear()
            else:
                raise TypeError(f"unknown event {kind}")

    def batches(self, rank: int) -> Iterator[Any]:
        """Everything as batches of stored blocks, parents before their children.

        Args:
            rank: the publisher's, which the engine puts on every batch.
        """
        module = import_module(KV_EVENTS_MODULE)
        events: list[Any] = []
        blocks = 0
        for event in self._events():
            events.append(event)
            blocks += len(event.block_hashes)
            if blocks >= BLOCKS_A_BATCH:
                yield module.KVEventBatch(ts=time.time(), events=events, attn_dp_rank=rank)
                events, blocks = [], 0
        if events:
            yield module.KVEventBatch(ts=time.time(), events=events, attn_dp_rank=rank)

    def _events(self) -> Iterator[Any]:
        todo = {id(run): run for blocks in self._runs.values() for run in blocks.values()}
        for run in tuple(todo.values()):
            chain: list[Any] = []
            above = todo.pop(id(run), None)
            while above is not None:
                chain.append(above)
                above = self._above(above, todo)
                todo.pop(id(above), None)
            for each in reversed(chain):
                yield from self._of(each)

    def _above(self, run: Any, todo: dict[int, Any]) -> Any:
        """What has the parent of a run, if it is yet to be told."""
        for blocks in self._runs.values():
            above = blocks.get(run.parent_block_hash)
            if above is not None and id(above) in todo:
                return above
        return None

    def _of(self, run: Any) -> Iterator[Any]:
        """What is left of a run, as events: one for each stretch of blocks that nothing was removed from."""
        blocks, size = self._runs[run.medium], run.block_size
        here = [blocks.get(block) is run for block in run.block_hashes]
        for left, places in groupby(range(len(here)), here.__getitem__):
            if left:
                first, *others = places
                end = first + 1 + len(others)
                stretch = run.__copy__()
                stretch.block_hashes = run.block_hashes[first:end]
                stretch.token_ids = list(run.token_ids[first * size : end * size])
                if first:
                    stretch.parent_block_hash = run.block_hashes[first - 1]
                yield stretch


def _packed(tokens: list[Any]) -> Any:
    """Token ids in an eighth of the memory, where they are numbers: speculative decoding has pairs of them."""
    try:
        return array("I", tokens)
    except (TypeError, OverflowError):
        return tokens
