from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ...support.sglang import Lab


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("RANKBIND_TESTS_WITHOUT_SGLANG") != "1":
        return
    without = [item for item in items if item.get_closest_marker("sglang")]
    config.hook.pytest_deselected(items=without)
    items[:] = [item for item in items if item not in without]


@pytest.fixture(scope="session")
def labs() -> Iterator[dict[str, Lab]]:
    labs: dict[str, Lab] = {}
    yield labs
    for lab in labs.values():
        lab.close()


@pytest.fixture
def lab(release: str, labs: dict[str, Lab]) -> Lab:
    if release not in labs:
        labs[release] = Lab(release)
    return labs[release]
