from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...support.sglang import ROOT
from ...support.vllm import Lab


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("RANKBIND_TESTS_WITHOUT_VLLM") != "1":
        return
    without = [item for item in items if item.get_closest_marker("vllm")]
    config.hook.pytest_deselected(items=without)
    items[:] = [item for item in items if item not in without]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metadata of rankbind-vllm as an installation has it: vLLM finds the plugin by its entry point."""
    project = tomllib.loads((ROOT / "integrations" / "vllm" / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("installed")
    metadata = folder / "rankbind_vllm-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rankbind-vllm\nVersion: 0\n")
    plugins = project["entry-points"]["vllm.general_plugins"]
    lines = [f"{name} = {where}\n" for name, where in plugins.items()]
    (metadata / "entry_points.txt").write_text("".join(("[vllm.general_plugins]\n", *lines)))
    return folder


@pytest.fixture(scope="session")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime directory of everything in the labs."""
    return tmp_path_factory.mktemp("claims") / "rankbind"


@pytest.fixture(scope="session")
def labs(installed: Path, claims: Path) -> Iterator[Labs]:
    labs = Labs(installed, claims)
    yield labs
    for lab in labs.running:
        lab.close()


class Labs:
    """Labs that are started when they are first asked for, and lent to one test after the other."""

    def __init__(self, installed: Path, claims: Path) -> None:
        self._of: dict[tuple[str, int], Lab] = {}
        self._with = installed, claims

    def __call__(self, release: str, number: int = 0) -> Lab:
        """The lab of a release; a second one for another launch on this host."""
        if (release, number) not in self._of:
            self._of[release, number] = Lab(release, *self._with)
        return self._of[release, number]

    @property
    def running(self) -> list[Lab]:
        return list(self._of.values())
