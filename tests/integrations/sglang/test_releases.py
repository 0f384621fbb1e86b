from __future__ import annotations

import pytest
from rankbind_sglang.hooks import SITES
from rankbind_sglang.releases import LAYOUTS, Target, layout_of


@pytest.mark.parametrize(
    ("release", "since"),
    [
        ("0.5.12", (0, 5, 12)),
        ("0.5.12.post1", (0, 5, 12)),
        ("0.5.13", (0, 5, 13)),
        ("0.5.14", (0, 5, 13)),
        ("0.5.15.post1", (0, 5, 13)),
        ("0.5.20", (0, 5, 13)),
        ("0.5.21", (0, 5, 21)),
        ("0.5.23", (0, 5, 21)),
        ("0.6.0rc1", (0, 5, 21)),
        ("1.0", (0, 5, 21)),
        ("0.5.15.dev12+g1a2b3c", (0, 5, 13)),
        ("0.0.0.dev0", (0, 5, 21)),
        ("unknown", (0, 5, 21)),
    ],
)
def test_the_layout_of_a_release(release: str, since: tuple[int, ...]) -> None:
    assert layout_of(release).since == since


def test_layouts_are_in_order_and_know_only_known_sites() -> None:
    assert [layout.since for layout in LAYOUTS] == sorted(layout.since for layout in LAYOUTS)
    assert {site for layout in LAYOUTS for site in layout.sites} == set(SITES)
    assert all("publisher" in layout.sites for layout in LAYOUTS)


@pytest.mark.parametrize(
    ("target", "lacking"),
    [
        (Target("json.dumps", ("obj", "indent")), None),
        (Target("json.JSONDecoder.decode", ("self", "s")), None),
        (Target("json.dumps", ("obj", "ps", "tp")), "json.dumps takes no ps, tp"),
        (Target("json.nowhere", ()), "there is no json.nowhere"),
        (Target("no_such_module.function", ()), "there is no no_such_module.function"),
    ],
)
def test_what_a_target_lacks(target: Target, lacking: str | None) -> None:
    assert target.lacking() == lacking
