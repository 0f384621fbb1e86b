"""The commands that look at what is claimed on this host: status, endpoints, release."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rankbind.cli.output import FORMATS, colours, columns, write
from rankbind.topology import nearest

if TYPE_CHECKING:
    from rankbind.runtime.registry import Entry

_DEPLOYMENT = "RANKBIND_DEPLOYMENT"
_WATCH = 2.0
"""Seconds between two looks of ``status --watch``."""


class _Seconds(click.ParamType):  # type: ignore[type-arg]
    """How long to wait. Its error speaks to who wrote ``--watch NAME``, where the name is taken for a number."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of seconds; a name comes first: status {value} --watch", param, context)
        if not 0.1 <= seconds <= 86400:
            self.fail("between 0.1 seconds and a day, please", param, context)
        return seconds


class _Seen(NamedTuple):
    """What is claimed, and where that was looked up."""

    path: Path
    said: str
    everything: tuple[Entry, ...]
    name: str | None
    deployment: str | None

    @property
    def found(self) -> tuple[Entry, ...]:
        """What was asked for."""
        return tuple(entry for entry in self.everything if entry.called(self.name, self.deployment))

    @property
    def summary(self) -> str:
        """What was found, in a line."""
        from rankbind.report.status import summary

        return summary(self.found, self.path, self.said)


def _look(name: str | None, deployment: str | None) -> _Seen:
    from rankbind.runtime import directory, registry

    return _Seen(*directory.chosen(), registry.entries(), name, deployment)


def _registry_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of the commands that look at what is claimed, and their errors."""

    @functools.wraps(command)
    def wrapped(context: click.Context, /, **options: Any) -> None:
        from rankbind.errors import ClaimError, IdentityError

        try:
            command(context, **options)
        except (ClaimError, IdentityError) as error:
            raise click.ClickException(str(error)) from None

    deployment = click.option("--deployment", metavar="NAME", help="Only of this deployment.")
    return click.pass_context(deployment(wrapped))


_json = click.option("--json", "style", flag_value="json", default=None, help="The same as --format json.")
_format = click.option("--format", "style", type=FORMATS, help="For a person or a program.  [default: text]")


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@_format
@_json
@click.option(
    "--watch",
    type=_Seconds(),
    is_flag=False,
    flag_value=str(_WATCH),
    metavar="[SECONDS]",
    help=f"Look again and again, every {_WATCH:g} seconds or as said, until Ctrl-C.",
)
@_registry_options
def status(context: click.Context, name: str | None, deployment: str | None, style: str, watch: float | None) -> None:
    """Show what is claimed on this host: by whom, whether they live, the real endpoints.

    NAME is a resource, or deployment/resource. Exit status: 0 all is alive (or was released), 1 something is dead,
    paused, or cannot be seen, or there is no NAME; 2 could not look.
    """
    if watch is not None:
        _watch(name, deployment, style, watch)
        return
    from rankbind.report import status as report

    seen = _look(name, deployment)
    found = seen.found
    if style == "json":
        write(report.to_json(found, seen.path))
    elif not found:
        _no_claim(seen)
    elif sys.stdout.isatty():
        width = columns() or 80
        write(report.heading(seen.summary, width) + report.to_terminal(found, width, colour=colours()))
    else:
        write(report.to_text(found))
        click.echo(seen.summary, err=True)
    context.exit(1 if not found and (name, deployment) != (None, None) else report.exit_status(found))


@click.command()
@click.argument("name")
@click.option("--role", default="bind", show_default=True, metavar="ROLE", help="Which address: bind, replay, ...")
@click.option(
    "--host", metavar="HOST", help="What to dial where every address is bound.  [default: this host's address]"
)
@_format
@_json
@_registry_options
def endpoints(
    context: click.Context, name: str, deployment: str | None, role: str, host: str | None, style: str
) -> None:
    """Print what to connect to for the resource NAME: one endpoint a line, in the order of its groups.

    Exit status: 0 there is one at least, 1 there is none, 2 could not look. What is left out, and why, is said on
    standard error.
    """
    from rankbind.report import status as report
    from rankbind.runtime.dial import dialled

    seen = _look(name, deployment or os.environ.get(_DEPLOYMENT))
    found = seen.found
    names = sorted({entry.key.deployment for entry in found if entry.state != "released"})
    if len(names) > 1:
        raise click.UsageError(f"{name} is in the deployments {', '.join(names)}: say which with --deployment")
    told = dialled(found, role, host)
    if style == "json":
        write(report.dial_to_json(told, seen.path))
    else:
        write(report.to_dial(told))
        for line in report.beware(told):
            click.echo(f"rankbind: {line}", err=True)
    if not any(each.endpoint for each in told):
        if not found:
            _no_claim(seen)
        else:
            click.echo(f"rankbind: no endpoint of {name} can be dialled", err=True)
        context.exit(1)


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--dry-run", is_flag=True, help="Say what would be released, and release nothing.")
@_registry_options
def release(context: click.Context, name: str | None, deployment: str | None, dry_run: bool) -> None:
    """Mark what dead holders left behind as released. Nothing that is held, or may be, is touched.

    Exit status: 0 done, or nothing to do; 1 something that is dead, or that was named, could not be released; 2 could
    not look.
    """
    from rankbind.report import status as report
    from rankbind.runtime import registry

    seen = _look(name, deployment)
    found = seen.found
    refused = released = 0
    for entry in found:
        if entry.state == "released" or (name is None and entry.live):
            continue
        why = registry.release(entry, dry_run=dry_run)
        refused, released = refused + (why is not None), released + (why is None)
        write(report.release_line(entry, why, dry_run=dry_run))
    if not found:
        _no_claim(seen)
    elif not refused and not released:
        write(f"nothing to release: {seen.summary}\n")
    context.exit(int(bool(refused) or (not found and name is not None)))


def _no_claim(seen: _Seen) -> None:
    """Say that there is nothing (of that name), and what that may mean."""
    from rankbind.report import status as report
    from rankbind.runtime import registry

    if not seen.everything:
        click.echo(report.nothing(seen.path, seen.said, registry.elsewhere(seen.path)), err=True)
        return
    known = sorted({entry.key.resource for entry in seen.everything if entry.called(None, seen.deployment)})
    near = nearest(seen.name, known) if seen.name else None
    of = f" of deployment {seen.deployment}" if seen.deployment else ""
    hint = f"did you mean {near}?" if near else f"there is {', '.join(known) or 'nothing of it'}"
    click.echo(f"rankbind: no {seen.name or 'claim'}{of} in {seen.path} ({seen.said}); {hint}", err=True)


def _watch(name: str | None, deployment: str | None, style: str | None, seconds: float) -> None:
    """Show the claims again and again; on a terminal in place, else what changes, a line each."""
    from rankbind.report import status as report

    if style != "json" and sys.stdout.isatty():
        from rankbind.report.live import redraw

        redraw(lambda: ((seen := _look(name, deployment)).summary, seen.found), seconds, colour=colours())
        return
    before: tuple[Entry, ...] | None = None
    while True:
        seen = _look(name, deployment)
        found = seen.found
        if style == "json":
            if before is None or any(report.changes(before, found)):
                write(report.to_json(found, seen.path))
        else:
            if before is None:
                click.echo(seen.summary, err=True)
            for line in report.changes(before or (), found):
                write(f"{time.strftime('%H:%M:%S')} {line}\n")
        before = found
        time.sleep(seconds)
