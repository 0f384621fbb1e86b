from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..support.sglang import ROOT

OBSERVER = """[sglang.srt.plugins]
observer = rankbind_e2e:observe
ungated = rankbind_e2e:ungated
"""


@pytest.fixture(scope="session")
def plugins_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rankbind and rankbind-sglang installed as users get them, and the tests' own plugin beside them."""
    folder = tmp_path_factory.mktemp("plugins")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--no-build-isolation", "--target", folder, ROOT, ROOT / "integrations" / "sglang"),
        ],
        check=True,
    )
    for module in (Path(__file__).parent / "observer").glob("*.py"):
        (folder / module.name).symlink_to(module)
    metadata = folder / "rankbind_e2e-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rankbind-e2e\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(OBSERVER)
    return folder
