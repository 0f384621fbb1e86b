"""The consumer's half of the token."""

from __future__ import annotations

import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankbind.errors import DeposedError
from rankbind.runtime.fence import Fence


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9))))
def test_no_token_is_admitted_after_a_greater_one_of_its_resource(arrivals: list[tuple[str, int]]) -> None:
    fence = Fence()
    for index, (resource, token) in enumerate(arrivals):
        before = [other for name, other in arrivals[:index] if name == resource]
        assert fence.admit(resource, token) == (token >= max(before, default=token))


def test_a_refusal_says_what_was_seen_instead() -> None:
    fence = Fence()
    fence.check("kv-events", 7)
    fence.check("kv-events", 7)
    with pytest.raises(DeposedError, match=re.escape("kv-events: token 6 is from an owner that was deposed: 7 was")):
        fence.check("kv-events", 6)
    fence.check("metrics", 1)


def test_threads_that_race_admit_no_smaller_one_later() -> None:
    fence, admitted, mutex = Fence(), list[int](), threading.Lock()

    def arrive(start: int) -> None:
        for token in range(start, 2000, 8):
            with mutex:
                if fence.admit("r", token):
                    admitted.append(token)

    threads = [threading.Thread(target=arrive, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert admitted == sorted(admitted)
    assert not fence.admit("r", max(admitted) - 1)
