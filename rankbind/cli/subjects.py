"""What commands that read launches take: files, or a command after ``--``, and what is said of the engine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rankbind.launch.reading import Choice, Subject

_STDIN = "-"
_LAUNCH = "rankbind.launch"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Launching(click.Command):
    """A command of ours that may be followed by ``--`` and somebody's launch command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the launch command away before click looks for options in it."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_LAUNCH] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """``[OPTIONS] FILE... [-- COMMAND...]``."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def about_engines(function: _Function) -> _Function:
    """The options ``--engine`` and ``--engine-version``."""
    version = click.option(
        "--engine-version",
        "versions",
        metavar="[ENGINE=]VERSION",
        multiple=True,
        help="Release whose rules hold. Default: what an image says, else the newest known. Repeatable.",
    )
    name = click.option("--engine", metavar="NAME", help="Read only commands of this engine: sglang, vllm.")
    return name(version(function))


def about_deployment(function: _Function) -> _Function:
    """The option ``--deployment``, of commands that are about one."""
    return click.option(
        "--deployment", metavar="NAME", help="Which of several in the file: a service, a pod, 'line 12'."
    )(function)


def takes_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A FILE or a launch command, and the options about it: the function is given the `Subject`, as ``subject``."""

    @click.argument("file", metavar="[FILE]", required=False)
    @about_engines
    @about_deployment
    @wraps(function)
    def with_subject(
        file: str | None,
        engine: str | None,
        versions: Sequence[str],
        deployment: str | None,
        **others: Any,
    ) -> Any:
        context = click.get_current_context()
        return context.invoke(function, subject=one(context, file, engine, versions, deployment), **others)

    return with_subject


def launch(context: click.Context) -> tuple[str, ...]:
    """The launch command after ``--``; empty where none is given."""
    words: tuple[str, ...] = context.meta.get(_LAUNCH, ())
    return words


def read(context: click.Context, files: Sequence[str], engine: str | None, versions: Sequence[str]) -> list[Subject]:
    """The deployments that the user names.

    Raises:
        click.UsageError: neither a file nor a command is given; an engine, a release or a command that nobody can read.
    """
    from rankbind.errors import LaunchError
    from rankbind.launch.command import typed
    from rankbind.launch.engine import recognise
    from rankbind.launch.reading import Input, subjects

    words = launch(context)
    if not files and not words:
        raise click.UsageError("name a FILE, or give a launch command after --", context)
    try:
        if len(words) == 1 and " " in words[0].strip():
            words = _split(words[0])
        if len(files) > 1 and not words and not os.path.exists(files[0]) and recognise(files):  # noqa: PTH110  # no error
            raise LaunchError(f"to check a command, put -- in front of it: -- {shlex.join(files)}")
        inputs = [Input("<stdin>", _stdin()) if file == _STDIN else Input(file) for file in dict.fromkeys(files)]
        return subjects(inputs, typed(words, os.environ) if words else None, _choice(engine, versions, words))
    except LaunchError as error:
        raise click.UsageError(str(error), context) from None


def _split(command: str) -> tuple[str, ...]:
    """The words of a command that is given in quotes, as from a variable of a script."""
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise click.UsageError(f"{command!r} is no command: {error}") from None


def one(
    context: click.Context,
    file: str | None,
    engine: str | None,
    versions: Sequence[str],
    deployment: str | None,
) -> Subject:
    """The one deployment that the user names; where it cannot be used, what is wrong is shown and the process ends."""
    from rankbind.launch.reading import PUBLISHED

    found = read(context, () if file is None else (file,), engine, versions)
    if deployment is not None:
        names = [subject.name or subject.file for subject in found]
        if deployment not in names:
            raise click.UsageError(f"there is no deployment {deployment}: there is {', '.join(names)}", context)
        found = [subject for subject, name in zip(found, names, strict=True) if name == deployment]
    else:
        # Nobody who names a file means the ports that its containers are reached at, unless there is nothing else.
        found = [subject for subject in found if subject.name != PUBLISHED] or found
    if len(found) > 1 and not any(subject.declaration is None for subject in found):
        names = [subject.name or subject.file for subject in found]
        raise click.UsageError(
            f"{found[0].file} has {len(found)} deployments: choose one with --deployment: {', '.join(names)}", context
        )
    refused = [subject for subject in found if subject.declaration is None]
    if refused:
        _show(refused)
        context.exit(2)
    return found[0]


def _show(refused: Sequence[Subject]) -> None:
    from rankbind.report import style, text
    from rankbind.report.result import Result

    results = [
        Result(subject.file, subject.findings, text=subject.text, deployment=subject.name) for subject in refused
    ]
    width, colour = style.width_of(sys.stderr), style.wants_colour(sys.stderr)
    click.echo(text.render(results, width=width, colour=colour), err=True, nl=False, color=True)


def _choice(engine: str | None, versions: Sequence[str], words: Sequence[str]) -> Choice:
    from rankbind.launch.engine import find, installed, recognise
    from rankbind.launch.reading import Choice

    if engine is not None:
        find(engine)
    found = {}
    for given in versions:
        name, equals, version = given.rpartition("=")
        if not equals:
            started = None if engine or not words else recognise(words)
            name = engine or (started.name if started else "")
            if not name:
                raise click.UsageError(f"--engine-version {given}: of which engine? --engine-version ENGINE={given}")
        elif name not in installed():
            raise click.UsageError(
                f"--engine-version {given}: {name} is not installed: {', '.join(sorted(installed()))}"
            )
        found[name] = version
    return Choice(engine, found)


def _stdin() -> str:
    # Bytes that are no UTF-8 become what the reader refuses, with their place.
    return sys.stdin.buffer.read().decode("utf-8-sig", "surrogateescape")
