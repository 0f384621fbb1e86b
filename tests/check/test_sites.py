"""RB401: sites that have to agree about who owns."""

from __future__ import annotations

import pytest

from ..support.findings import JOB, codes, finding, underlined

CACHE = f"{JOB}owner = {{ pp = 0, tp = 0 }}\n[resources.cache]\nwith = 'kv'\n"


@pytest.mark.parametrize(
    "owner",
    [
        "owner = { pp = 0, tp = 0 }",
        "owner = { rank = 0 }",
        "owner = { pp = 0, attn_tp = 0, attn_dp = 0 }",
        "singleton_per = { group = 'world' }",
        "singleton_per = { group = ['tp', 'pp'] }",
        "singleton_per = { group = ['pp', 'attn_tp', 'attn_dp'], rank = -8 }",
    ],
)
def test_silent_when_the_owners_are_the_same_however_it_is_said(owner: str) -> None:
    assert codes(CACHE + owner) == []


def test_the_cache_that_forgot_the_stages() -> None:
    """Case c11: rank 4 records events that nobody takes."""
    text = f"{CACHE}owner = {{ tp = 0 }}"
    found = finding(text, "RB401")
    assert found.message == "cache and kv must have the same owners: rank 4 owns cache without kv"
    assert found.facts == {
        "resource": "cache",
        "disagrees_with": "kv",
        "ranks": [4],
        "extra": [4],
        "missing": [],
        "axes": ["pp"],
    }
    assert underlined(found, text) == ["{ tp = 0 }", "{ pp = 0, tp = 0 }"]
    assert [label.text for label in found.labels] == ["owned by ranks 0, 4", "owned by rank 0"]
    assert found.fix == "give cache the owner of kv: owner = { pp = 0, tp = 0 }"
    assert codes(f"{CACHE}owner = {{ pp = 0, tp = 0 }}") == []


def test_owners_on_both_sides() -> None:
    found = finding(f"{CACHE}owner = {{ tp = [1, 2] }}", "RB401")
    assert found.message == (
        "cache and kv must have the same owners: ranks 1, 2, 5, 6 own cache without kv; rank 0 owns kv without cache"
    )
    assert (found.facts["extra"], found.facts["missing"]) == ([1, 2, 5, 6], [0])


def test_what_is_not_known_is_not_compared() -> None:
    assert codes(f"{CACHE}owner = {{ tq = 0 }}") == ["RB103"]
    assert codes(f"{JOB}owner = {{ tq = 0 }}\n[resources.cache]\nwith = 'kv'\nowner = {{}}") == ["RB103"]
