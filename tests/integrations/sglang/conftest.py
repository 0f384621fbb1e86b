from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(scope="session")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime directory of everything in the labs."""
    return tmp_path_factory.mktemp("claims") / "rankbind"


@pytest.fixture
def lab(release: str, labs: dict[str, Lab], claims: Path) -> Lab:
    return lab_of(release, labs, claims)


@pytest.fixture
def other_lab(labs: dict[str, Lab], claims: Path) -> Lab:
    """One of a release that is tested with the others: another server on this host."""
    return lab_of("0.5.15", labs, claims)


def lab_of(release: str, labs: dict[str, Lab], claims: Path) -> Lab:
    if release not in labs:
        labs[release] = Lab(release, claims)
    return labs[release]
