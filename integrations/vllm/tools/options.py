"""Makes rankbind_vllm/launch/options.json: the options of `vllm serve`, release by release.

    python integrations/vllm/tools/options.py                     # with the python of .venv, after `make environments`

    ... --fetch [RELEASE ...]                                     # only gets the releases, for `make parsers`

Of each release's wheel the Python files alone are kept (``.venv-sglang/vllm``); they are run on the packages of SGLang
0.5.23 and those of requirements.txt beside this file. No part of vLLM that is compiled is needed to ask its parser.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import typing
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TABLE = HERE.parent / "rankbind_vllm" / "launch" / "options.json"
HOME = ROOT / ".venv-sglang" / "vllm"
PYTHON = ROOT / ".venv-sglang" / "0.5.23" / "bin" / "python"
RELEASES = (
    *("0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0", "0.15.1", "0.16.0", "0.17.0"),
    *("0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1"),
    *("0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0"),
    *("0.32.0", "0.33.0"),
)

sys.path.insert(0, str(HERE.parents[1]))
import tables  # noqa: E402 (it lies beside the two integrations, in no package)


def parsers() -> tuple[Any, argparse.ArgumentParser]:
    """The parser of the vLLM that can be imported, and the one of its ``serve``."""
    import torch
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    if not hasattr(torch._C._cpu, "_is_avx512_supported"):
        # Renamed since; vLLM asks at import, and only to choose kernels.
        torch._C._cpu._is_avx512_supported = lambda: False
    # A wheel for CUDA on a machine without: it would not know its device, and some releases insist.
    vllm.platforms.current_platform = CpuPlatform()
    from vllm.entrypoints.cli.serve import ServeSubcommand

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    whole = FlexibleArgumentParser(description="vLLM CLI")
    subparsers = whole.add_subparsers(required=False, dest="subparser")
    return whole, ServeSubcommand().subparser_init(subparsers)


def kind_of(action: argparse.Action) -> str | None:
    """The name of a type: ``int?`` where ``None`` and nothing are None, ``json:KVEventsConfig`` of a dataclass."""
    if type(action).__name__ == "LoRAParserAction":
        return "lora"
    if getattr(action.type, "__name__", "") == "<lambda>":
        return action.dest
    return _kind(action.type)


def _kind(convert: Any) -> str | None:
    name = getattr(convert, "__qualname__", "")
    if name.endswith("._optional_type"):
        return f"{_kind(_enclosed(convert)) or tables.named(_enclosed(convert))}?"
    if name.endswith("._parse_type"):
        return _kind(_enclosed(convert)) or tables.named(_enclosed(convert))
    if name.endswith(".parse_dataclass"):
        return f"json:{inspect.signature(convert).parameters['cls'].default.__name__}"
    return None


def _enclosed(convert: Any) -> Any:
    return inspect.getclosurevars(convert).nonlocals["return_type"]


SHAPES = ("KVEventsConfig", "KVTransferConfig", "ECTransferConfig")
"""The dataclasses whose fields the table has: those that say who listens where."""


def shapes() -> list[dict[str, Any]]:
    """The fields of `SHAPES` and their types, as far as JSON goes."""
    import vllm.config

    found = []
    for name in SHAPES:
        shape = getattr(vllm.config, name, None)
        if shape is None:
            continue
        hints = typing.get_type_hints(shape)
        fields = {field: _typed(hints[field]) for field, about in shape.__dataclass_fields__.items() if about.init}
        closed = getattr(shape, "__pydantic_config__", {}).get("extra") == "forbid"
        found.append({"dest": name, "closed": closed, "fields": fields})
    return found


def _typed(hint: Any) -> str:
    if hint in (bool, int, float, str):
        return str(hint.__name__)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "None"
    if origin is typing.Literal:
        return f"Literal{list(inner)!r}"
    if origin is typing.Annotated:
        return _typed(inner[0])
    if origin is dict or hint is dict:
        return "dict"
    if origin is list or hint is list:
        return "list"
    if "Union" in str(origin):
        return " | ".join(_typed(part) for part in inner)
    return "Any"


def is_here(release: str) -> bool:
    """Whether `environment` has nothing to fetch."""
    return PYTHON.exists() and (HOME / release).is_dir() and (HOME / "packages").is_dir()


def environment(release: str) -> dict[str, str]:
    """The variables with which `PYTHON` imports a release. It is fetched if need be."""
    packages = HOME / "packages"
    if not packages.is_dir():
        _pip("install", "--no-compile", "--target", str(packages), "--requirement", str(HERE / "requirements.txt"))
    folder = HOME / release
    if not folder.is_dir():
        HOME.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HOME) as scratch:
            _pip("download", "--only-binary", ":all:", "--dest", scratch, f"vllm=={release}")
            [wheel] = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                kept = [name for name in archive.namelist() if name.endswith((".py", ".json", "/METADATA"))]
                archive.extractall(Path(scratch) / "unpacked", kept)
            shutil.move(Path(scratch) / "unpacked", folder)
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return os.environ | quiet | {"PYTHONPATH": f"{folder}{os.pathsep}{packages}"}


def _pip(command: str, *what: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", "--no-deps", *what], check=True
    )


def main() -> None:
    """Make the table."""
    options, fields = {}, {}
    for release in RELEASES:
        told = subprocess.run(
            [PYTHON, __file__, "--describe"], env=environment(release), check=False, capture_output=True, text=True
        )
        if told.returncode:
            raise SystemExit(f"vLLM {release}:\n{told.stderr[-2000:]}")
        options[release], fields[release] = json.loads(told.stdout.splitlines()[-1])
        print(release, len(options[release]), flush=True)
    TABLE.write_text(tables.together(options, shapes=fields), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--describe"]:
        print(json.dumps([tables.described(parsers()[1], kind_of), shapes()]))
    elif sys.argv[1:] == ["--parse"]:
        whole = parsers()[0]
        tables.answer(lambda words: whole.parse_args(["serve", *words]))
    elif sys.argv[1:2] == ["--fetch"]:
        for wanted in sys.argv[2:] or RELEASES:
            environment(wanted)
    else:
        main()
