"""The examples of the pages, and what the checker says of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from rankbind import audit
from rankbind.audit import ignores
from rankbind.audit import sources as sources_of
from rankbind.audit.settings import Settings
from rankbind.check import code as code_check
from rankbind.check import codes
from rankbind.launch import engine
from rankbind.launch.reading import Input, Subject, judge, subjects
from rankbind.report.result import Result

_BLOCK = re.compile(r"^```(\w+) (bad|good)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMES = {"toml": "topology.toml", "sh": "launch.sh", "python": "publisher.py"}

Example: TypeAlias = Mapping[str, str]
"""Files, by their names."""


def example(code: str, kind: str) -> Example:
    """The one example of `kind` (bad or good) on the page of `code`; several files of one kind are deployments."""
    blocks = [(language, text) for language, found, text in _BLOCK.findall(codes.page(code)) if found == kind]
    assert blocks, f"{code} has no {kind} example"
    several = len({language for language, _ in blocks}) < len(blocks)
    return {
        f"{'ab'[at]}{Path(_NAMES[language]).suffix}" if several else _NAMES[language]: text
        for at, (language, text) in enumerate(blocks)
    }


def checked(shown: Example, folder: Path) -> list[Result]:
    """What a check of the example gives, with its files in `folder` and named without it.

    Code without a deployment beside it is audited, all files together: one result.
    """
    if "launch.sh" in shown and not engine.installed():
        pytest.skip("no reader of launches is installed")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name, text in shown.items():
            Path(name).write_text(text, encoding="utf-8")
        if all(name.endswith(".py") for name in shown):
            return [_audited(shown)]
        found = subjects([Input(name) for name in shown if not name.endswith(".py")])
        return [*_results(found, "publisher.py" if "publisher.py" in shown else None)]
    finally:
        os.chdir(before)


def _audited(shown: Example) -> Result:
    sources, unread = sources_of.collect([Path(name) for name in shown], Settings())
    findings, _ = ignores.apply((*unread, *audit.run(sources, Settings()).findings), sources)
    return Result(", ".join(shown), tuple(findings), resources=0, ranks=0, hosts=0, text=next(iter(shown.values())))


def _results(found: list[Subject], code: str | None) -> Iterator[Result]:
    for subject, findings in zip(found, judge(found).findings, strict=True):
        if code is not None and subject.declaration is not None:
            findings += code_check.run(subject.declaration, code)
        job = None if subject.declaration is None else subject.declaration.job
        nothing = None if subject.draft is None else 0
        yield Result(
            subject.file,
            findings,
            nothing if job is None else len(job.resources),
            nothing if job is None else job.topology.size,
            nothing if job is None else len(job.topology.hosts),
            text=subject.text,
            deployment=subject.name,
        )
