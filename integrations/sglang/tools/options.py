"""Makes rankbind_sglang/launch/options.json: the options of SGLang's launcher, release by release.

    python integrations/sglang/tools/options.py       # with the python of .venv, after `make environments`

    ... --fetch [RELEASE ...]                         # only gets the releases, for `make parsers`

Each release is installed (without its dependencies; those of the environments of tests/e2e do) and its own
``ServerArgs.add_cli_args`` asked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TABLE = HERE.parent / "rankbind_sglang" / "launch" / "options.json"
RELEASES = tuple(f"0.5.{patch}" for patch in range(9, 24))
PYTHON = ROOT / ".venv-sglang" / "0.5.14" / "bin" / "python"
"""Of an environment in which every release can be imported, as far as its options are concerned."""

sys.path.insert(0, str(HERE.parents[1]))
import tables  # noqa: E402 (it lies beside the two integrations, in no package)


def parser() -> argparse.ArgumentParser:
    """The parser of the SGLang that can be imported."""
    from sglang.srt.server_args import ServerArgs

    made = argparse.ArgumentParser(prog="sglang")
    ServerArgs.add_cli_args(made)
    return made


def kind_of(action: argparse.Action) -> str | None:
    """The name of a type that is in the action, not in its converter."""
    return "lora" if type(action).__name__ == "LoRAPathAction" else None


def is_here(release: str) -> bool:
    """Whether `environment` has nothing to fetch."""
    return PYTHON.exists() and _folder(release).is_dir()


def _folder(release: str) -> Path:
    return ROOT / ".venv-sglang" / "options" / release


def environment(release: str) -> dict[str, str]:
    """The variables with which `PYTHON` imports a release. It is installed if need be."""
    folder = _folder(release)
    if not folder.is_dir():
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
                *("--no-compile", "--target", str(folder), f"sglang=={release}"),
            ],
            check=True,
        )
    return os.environ | {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}


def main() -> None:
    """Make the table."""
    described = {}
    for release in RELEASES:
        told = subprocess.run(
            [PYTHON, __file__, "--describe"], env=environment(release), check=True, capture_output=True, text=True
        )
        described[release] = json.loads(told.stdout.splitlines()[-1])
        print(release, len(described[release]))
    TABLE.write_text(tables.together(described), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--describe"]:
        print(json.dumps(tables.described(parser(), kind_of)))
    elif sys.argv[1:] == ["--parse"]:
        tables.answer(parser().parse_args)
    elif sys.argv[1:2] == ["--fetch"]:
        for wanted in sys.argv[2:] or RELEASES:
            environment(wanted)
    else:
        main()
