"""The launch checked in the process that is about to start it, before its arguments are even parsed.

What `rankbind check` says of the command, and what is taken on this host already. Whatever goes wrong in here is one
warning, and the launch goes on.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING

from rankbind_sglang import PREFLIGHT, SWITCH

if TYPE_CHECKING:
    from rankbind.finding import Finding
    from rankbind.launch.command import Command
    from rankbind.launch.draft import Draft

MODES = ("off", "warn", "error")

_log = logging.getLogger("rankbind_sglang")


def run(mode: str) -> None:
    """Check the launch, if this process is one, and say what would fail.

    Raises:
        SystemExit: something would, and `mode` is ``error``.
    """
    words = launched(sys.argv)
    if words is None:
        return
    if mode not in MODES:
        _log.warning(
            "rankbind-sglang: %s=%s means nothing; it is off, warn or error, and is taken as warn", PREFLIGHT, mode
        )
        mode = "warn"
    began = time.perf_counter()
    try:
        with _no_collection():
            report = check(words, os.environ)
    except (Exception, SystemExit) as error:  # a parser that meets what it does not expect ends its process
        _log.warning("rankbind-sglang cannot check this launch, and lets it go on: %s: %s", type(error).__name__, error)
        return
    took = (time.perf_counter() - began) * 1000
    if report is None:
        _log.info("rankbind-sglang has checked this launch in %.0f ms: nothing to say", took)
    elif mode == "warn":
        _log.warning(
            "rankbind-sglang has checked this launch in %.0f ms, and lets it go on (%s=error would stop it):\n%s",
            took,
            PREFLIGHT,
            report,
        )
    else:
        _log.error(
            "rankbind-sglang has checked this launch in %.0f ms, and stops it (%s=error):\n%s", took, PREFLIGHT, report
        )
        sys.exit(1)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection: one that looks through all that an engine imports takes as long as all the rest."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def launched(arguments: Sequence[str]) -> list[str] | None:
    """The command that a process with these arguments is, as people write it; None where it starts no server.

    Args:
        arguments: as `sys.argv`: the first is a path.
    """
    program = PurePath(arguments[0] if arguments else "")
    rest = list(arguments[1:])
    if program.parts[-2:] == ("sglang", "launch_server.py"):
        words = ["python", "-m", "sglang.launch_server", *rest]
    elif program.name == "sglang":
        words = ["sglang", *rest]
    else:
        return None
    # Who asks for help starts nothing.
    return None if {"-h", "--help"} & set(rest) else words


def check(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """What would fail, as the text of `rankbind check`; None where nothing would, or it is no launch of a server.

    Raises:
        LaunchError: the rules of the running release are not known.
        Exception: whatever a reader comes upon.
    """
    from sglang.version import __version__ as installed

    from rankbind.launch.command import shown, typed
    from rankbind_sglang.launch import ENGINE

    if not ENGINE.starts(words):
        return None
    # The reader is told that the plugin is there, which gates where the engine does not.
    active = {SWITCH: "off" if environment.get(SWITCH) == "off" else "on"}
    command = typed(words, {**environment, **active})
    release = _known(installed, ENGINE.versions)
    (draft,) = ENGINE.read([command], release)
    if draft.refused and _may_be_of_another_kind(words):
        return None
    return _judge(draft, 0 if draft.refused else _node(command, release), shown(command) or "")


def _judge(draft: Draft, node: int, shown: str) -> str | None:
    """As `check`, of a launch that is read, and would run here as `node`.

    Args:
        shown: its command.
    """
    from rankbind.check.plan import Plan
    from rankbind.errors import LaunchError
    from rankbind.launch.command import TYPED
    from rankbind.launch.reading import of_draft
    from rankbind.report import style, text
    from rankbind.report.result import Result
    from rankbind_sglang import taken

    subject = of_draft(draft, file=TYPED, text=shown)
    if subject.declaration is None:
        result = Result(TYPED, _failing(subject.checked()), text=shown)
    else:
        plan = Plan(subject.declaration)
        topology = plan.job.topology
        result = Result(
            TYPED,
            _failing((*subject.checked(plan), *taken.findings(plan, node))),
            resources=len(plan.job.resources),
            ranks=topology.size,
            hosts=len(topology.hosts),
            text=shown,
        )
    if not result.findings:
        return None
    unreadable = next((finding for finding in result.findings if finding.family == "RB9"), None)
    if unreadable is not None:
        # Of what cannot be read nothing follows. The engine will say what is wrong with it, if anything is.
        raise LaunchError(f"{unreadable.code}: {unreadable.message}")
    return text.render([result], width=style.width_of(sys.stderr), colour=style.wants_colour(sys.stderr)).rstrip("\n")


def _failing(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.fails)


def _node(command: Command, release: str) -> int:
    """The index of this host among those of the launch."""
    from rankbind.launch.draft import Draft
    from rankbind_sglang.launch.arguments import take_apart
    from rankbind_sglang.launch.rules import rules_of

    return take_apart(command, rules_of(release), Draft("SGLang", [command]), named=True).node or 0


def _known(installed: str, versions: Sequence[str]) -> str:
    """The release whose rules hold for the one that runs: itself, or the one that it is a later build of.

    Raises:
        LaunchError: there are none. Rules of another release are none to stop a launch by.
    """
    from rankbind.errors import LaunchError

    number = re.match(r"\d+(?:\.\d+)*", installed)
    if installed in versions:
        return installed
    if number and number[0] in versions:
        return number[0]
    raise LaunchError(f"the rules of SGLang {installed} are not known, only those of {versions[0]} to {versions[-1]}")


def _may_be_of_another_kind(words: Sequence[str]) -> bool:
    """Whether ``sglang serve`` may find, when it looks at the model, that other options hold: those for diffusion."""
    return words[0] == "sglang" and "llm" not in words and "--model-type=llm" not in words
