"""The public face: what `import rankbind` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import rankbind

EXPORTS = [
    "Claim",
    "ClaimError",
    "ClaimedError",
    "Endpoint",
    "Gate",
    "Host",
    "Identity",
    "IdentityError",
    "RankbindError",
    "Scope",
    "Takeover",
    "Topology",
    "View",
    "__version__",
    "claim",
    "current_claim",
    "identity",
    "init",
    "overlaps",
    "release_all",
    "release_all_async",
    "singleton_per",
    "use",
]
HEAVY = ("torch", "zmq", "pydantic", "click", "rich", "yaml", "tree_sitter", "filelock", "asyncio", "concurrent")


def test_the_export_list_is_exact_and_sorted() -> None:
    assert rankbind.__all__ == EXPORTS == sorted(EXPORTS)
    for name in EXPORTS:
        assert getattr(rankbind, name) is not None


def test_importing_loads_nothing_heavy() -> None:
    code = f"import sys, rankbind; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_deciding_loads_nothing_heavy_either() -> None:
    code = (
        "import sys, rankbind; rankbind.init(axes={'pp': 2}, rank=0); "
        "assert rankbind.singleton_per(group='pp').owned; "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_thing_says_what_it_is() -> None:
    for name in EXPORTS:
        if name != "__version__":
            assert getattr(rankbind, name).__doc__, name
