"""The examples of the pages, and what the checker says of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rankbind import check, config
from rankbind.check import code as code_check
from rankbind.check import codes
from rankbind.errors import ConfigError
from rankbind.finding import Finding
from rankbind.report.result import Result

_BLOCK = re.compile(r"^```(\w+) (bad|good)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    toml: str
    python: str | None = None


def example(code: str, kind: str) -> Example:
    """The one example of `kind` (bad or good) on the page of `code`."""
    blocks = {language: text for language, found, text in _BLOCK.findall(codes.page(code)) if found == kind}
    return Example(blocks["toml"], blocks.get("python"))


def checked(shown: Example, folder: Path) -> Result:
    """What a check of the example gives, with its files in `folder` and named without it."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        if shown.python is not None:
            Path("publisher.py").write_text(shown.python, encoding="utf-8")
        try:
            declaration = config.parse(shown.toml)
        except ConfigError as error:
            found = tuple(finding for finding in error.findings if isinstance(finding, Finding))
            return Result("topology.toml", found, text=shown.toml)
        found = check.run(declaration)
        if shown.python is not None:
            found += code_check.run(declaration, "publisher.py")
    finally:
        os.chdir(before)
    topology = declaration.job.topology
    return Result(
        "topology.toml",
        found,
        len(declaration.job.resources),
        topology.size,
        len(topology.hosts),
        text=shown.toml,
    )
