"""What a project says about its own code: ``[tool.rankbind.audit]`` in its pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PROFILES: Final = ("torch", "sglang", "vllm", "megatron")
_FILE: Final = "pyproject.toml"


@dataclass(frozen=True, slots=True)
class Settings:
    """How names are to be read, what is audited, and what is left out.

    Attributes:
        axes: pattern of a name -> the axis that it is the coordinate of: ``{"my_stage": "pp"}``.
        order: the axes, outermost first.
        profile: one of `PROFILES`; None to choose it by what the sources are.
        creations: pattern of a dotted name that is called -> the argument that is the address: its name, or its place
            as text (``"0"``).
        exclude: patterns of files and folders to leave out.
        ignore: codes of findings to leave out.
    """

    axes: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    profile: str | None = None
    creations: Mapping[str, str] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


def load(file: Path) -> Settings:
    """The settings in `file`.

    Raises:
        ConfigError: it cannot be read, has no ``[tool.rankbind.audit]``, or that is wrong.
    """
    from rankbind.audit import table

    return table.read(file)


def find(first: Path) -> Settings:
    """The settings for what is at `first`: of the nearest pyproject.toml above that has any, else the defaults.

    Raises:
        ConfigError: that file has them, and they are wrong.
    """
    start = Path(first).absolute()
    # With its links as they are: the project is where the user says that the code is.
    for folder in (start, *start.parents):
        file = folder / _FILE
        if _may_have_settings(file):
            return load(file)
    return Settings()


def _may_have_settings(file: Path) -> bool:
    """Whether `file` has a table of ours, or means to and is no TOML."""
    try:
        data = file.read_bytes()
    except OSError:
        return False
    if b"rankbind" not in data:
        return False
    try:
        found: Any = tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return b"tool.rankbind.audit" in data
    for name in ("tool", "rankbind", "audit"):
        found = found.get(name) if isinstance(found, dict) else None
    return found is not None
