"""The command ``rankbind``.

Exit status: 0 clean, 1 findings, 2 could not check. Everything but click is imported when it is needed, so that
``rankbind --version`` is quick.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from rankbind import __version__
from rankbind.topology import nearest

if TYPE_CHECKING:
    from rankbind.check.code import Code
    from rankbind.check.plan import Plan
    from rankbind.config import Declaration
    from rankbind.report.result import Result
    from rankbind.runtime.registry import Entry

DEFAULT_FILE = "topology.toml"
FILE_VARIABLE = "RANKBIND_TOPOLOGY"
_DEPLOYMENT = "RANKBIND_DEPLOYMENT"

_STDIN = "-"
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_FORMATS = click.Choice(["text", "json"])
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


def main() -> NoReturn:
    """Run the command and end the process. No traceback is shown, unless ``RANKBIND_DEBUG`` asks for it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Closed by whoever started us. It stays open as long as the process lives.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # What the terminal cannot show is escaped rather than fatal.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = cli.main(prog_name="rankbind", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = 2
    except (click.Abort, KeyboardInterrupt):
        status = _INTERRUPTED
    except Exception as error:
        status = _unexpected(error)
    sys.exit(status if isinstance(status, int) else 0)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rankbind", message="%(prog)s %(version)s")
def cli() -> None:
    """Say once who owns a resource of a distributed job, and prove it before launch.

    Exit status: 0 clean, 1 findings, 2 could not check.
    """


@cli.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--format", "style", type=_FORMATS, default="text", show_default=True, help="For a person or a program.")
@click.option("--ignore", "ignored", metavar="CODE", multiple=True, help="Leave out findings of this code. Repeatable.")
@click.option("--code", metavar="PATH_OR_PACKAGE", help="Compare with what singleton_per(...) says in this code.")
@click.pass_context
def check(
    context: click.Context, files: tuple[str, ...], style: str, ignored: tuple[str, ...], code: str | None
) -> None:
    """Check topology files: owners, endpoints, sites that must agree, placement.

    FILE is TOML, YAML or JSON; - reads TOML from standard input.
    """
    from rankbind.report import machine, text
    from rankbind.report.result import exit_status

    skip = frozenset(map(_code, ignored))
    unskippable = sorted(found for found in skip if found.startswith("RB9"))
    if unskippable:
        raise click.UsageError(f"{unskippable[0]} cannot be ignored: a file with it is not checked at all")
    read = None
    if code is not None:
        from rankbind.check.code import read as read_code

        read = read_code(code)
    results = [_check(file, skip, read) for file in dict.fromkeys(files)]
    _write(machine.render(results) if style == "json" else text.render(results, width=_width(), colour=_colour()))
    context.exit(exit_status(results))


@cli.command()
@click.argument("file", metavar="FILE")
@click.option("--format", "style", type=_FORMATS, default="text", show_default=True, help="For a person or a program.")
@click.option("--resource", metavar="NAME", help="Only this resource.")
@click.option("--host", metavar="NAME", help="Only what runs on this host.")
@click.pass_context
def plan(context: click.Context, file: str, style: str, resource: str | None, host: str | None) -> None:
    """Show which rank takes which address on which host."""
    from rankbind.report import plan as table

    found = _plan(context, file)
    if resource is not None:
        _choose("resource", resource, [known.name for known in found.job.resources], file)
    if host is not None:
        _choose("host", host, [known.name for known in found.job.topology.hosts], file)
    entries = table.entries(found, resource, host)
    if style == "json":
        _write(table.to_json(entries, found.declaration.document.file))
    elif sys.stdout.isatty():
        _write(table.to_terminal(entries, _width() or 80, colour=_colour()))
    else:
        _write(table.to_text(entries))
    untold = table.untold(found)
    if untold:
        told = f"rankbind: not all of {', '.join(untold)} can be told; `rankbind check {file}` says why"
        click.echo(told, err=True)
        context.exit(2)


@cli.command()
@click.argument("file", metavar="FILE")
@click.option("--hosts", type=click.Choice(["namespaces", "here"]), help="Where hosts are. Default: what can be had.")
@click.option("--shift", type=int, metavar="N", help="Bind each port N further up, or down.")
@click.option("--ports", type=click.Choice(["declared", "free"]), default="declared", show_default=True)
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, metavar="SECONDS")
@click.option("--format", "style", type=_FORMATS, default="text", show_default=True, help="For a person or a program.")
@click.pass_context
def rehearse(
    context: click.Context,
    file: str,
    hosts: Literal["namespaces", "here"] | None,
    shift: int | None,
    ports: str,
    timeout: float,
    style: str,
) -> None:
    """Play the launch with real processes, claims and sockets, and compare it with what `check` predicts.

    Exit status: 0 as predicted and clean, 1 something failed, 2 could not be rehearsed.
    """
    from rankbind.rehearse.rehearsal import Wishes
    from rankbind.rehearse.rehearsal import rehearse as play
    from rankbind.rehearse.script import RehearsalError
    from rankbind.report import rehearsal as report

    if shift is not None and ports == "free":
        raise click.UsageError("--shift moves the declared ports, and --ports free takes others: give one of them")
    declaration = _plan(context, file).declaration
    try:
        seen = play(declaration, Wishes(hosts, shift, ports == "free", timeout))
    except RehearsalError as error:
        click.echo(f"rankbind: cannot rehearse {file}: {error}", err=True)
        context.exit(2)
    _write(report.to_json(seen) if style == "json" else report.to_text(seen, width=_width(), colour=_colour()))
    context.exit(int(seen.failed))


@cli.command()
@click.argument("subject", metavar="[CODE|RESOURCE]", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Why this rank owns the resource, or does not.")
@click.option("--file", metavar="FILE", help=f"The topology file. Default: ${FILE_VARIABLE}, or {DEFAULT_FILE}.")
@click.pass_context
def explain(context: click.Context, subject: str | None, rank: int | None, file: str | None) -> None:
    """Explain a finding's code (RB201), or who owns a resource and why; without either, list the codes."""
    if subject is None:
        if rank is not None or file is not None:
            raise click.UsageError("name the resource that is to be explained")
        from rankbind.check import codes

        _write("".join(f"{code}  {title}\n" for code, title in codes.titles().items()))
        return
    if rank is None and file is None and subject[:2].upper() == "RB" and subject[2:].isdecimal():
        _explain_code(subject)
        return
    from rankbind.report.explain import rank_text, resource_text

    chosen = file or os.environ.get(FILE_VARIABLE) or DEFAULT_FILE
    if file is None and not Path(chosen).exists():
        raise click.UsageError(
            f"there is no {chosen}: name the topology file with --file (or give a code, as in RB201)"
        )
    found = _plan(context, chosen)
    _choose("resource", subject, [known.name for known in found.job.resources], chosen)
    resource = found.job.resource(subject)
    if rank is None:
        _write(resource_text(found, resource, width=_width(), colour=_colour()))
        return
    size = found.job.topology.size
    if rank >= size:
        raise click.UsageError(f"there is no rank {rank}: {chosen} has ranks 0..{size - 1}")
    _write(rank_text(found, resource, rank, width=_width(), colour=_colour()))


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
_format = click.option("--format", "style", type=_FORMATS, help="For a person or a program.  [default: text]")


@cli.command()
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
    from rankbind.runtime import registry

    path, _ = registry.where()
    everything = registry.entries(path)
    found = tuple(entry for entry in everything if entry.called(name, deployment))
    if style == "json":
        _write(report.to_json(found, path))
    elif not found:
        _no_claim(everything, name, deployment)
    else:
        _write_claims(found)
    context.exit(1 if not found and (name, deployment) != (None, None) else report.exit_status(found))


@cli.command()
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
    from rankbind.runtime import registry
    from rankbind.runtime.dial import dialled

    path, _ = registry.where()
    everything = registry.entries(path)
    found = tuple(entry for entry in everything if entry.called(name, deployment or os.environ.get(_DEPLOYMENT)))
    names = sorted({entry.key.deployment for entry in found if entry.state != "released"})
    if len(names) > 1:
        raise click.UsageError(f"{name} is in the deployments {', '.join(names)}: say which with --deployment")
    told = dialled(found, role, host)
    if style == "json":
        _write(report.dial_to_json(told, path))
    else:
        _write(report.to_dial(told))
        for line in report.beware(told):
            click.echo(f"rankbind: {line}", err=True)
    if not any(each.endpoint for each in told):
        if not found:
            _no_claim(everything, name, deployment or os.environ.get(_DEPLOYMENT))
        else:
            click.echo(f"rankbind: no endpoint of {name} can be dialled", err=True)
        context.exit(1)


@cli.command()
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

    path, _ = registry.where()
    everything = registry.entries(path)
    found = tuple(entry for entry in everything if entry.called(name, deployment))
    refused = released = 0
    for entry in found:
        if entry.state == "released" or (name is None and entry.live):
            continue
        why = registry.release(entry, dry_run=dry_run)
        refused, released = refused + (why is not None), released + (why is None)
        _write(report.release_line(entry, why, dry_run=dry_run))
    if not found:
        _no_claim(everything, name, deployment)
    elif not refused and not released:
        _write(f"nothing to release: {report.summary(found, *registry.where())}\n")
    context.exit(int(bool(refused) or (not found and name is not None)))


def _write_claims(found: Sequence[Entry]) -> None:
    from rankbind.report import status as report
    from rankbind.runtime import registry

    summary = report.summary(found, *registry.where())
    if sys.stdout.isatty():
        width = _width() or 80
        _write(report.heading(summary, width) + report.to_terminal(found, width, colour=_colour()))
    else:
        _write(report.to_text(found))
        click.echo(summary, err=True)


def _no_claim(everything: Sequence[Entry], name: str | None, deployment: str | None) -> None:
    """Say that there is nothing (of that name), and what that may mean."""
    from rankbind.report import status as report
    from rankbind.runtime import registry

    path, said = registry.where()
    if not everything:
        click.echo(report.nothing(path, said, registry.elsewhere(path)), err=True)
        return
    known = sorted({entry.key.resource for entry in everything if entry.called(None, deployment)})
    near = nearest(name, known) if name else None
    of = f" of deployment {deployment}" if deployment else ""
    hint = f"did you mean {near}?" if near else f"there is {', '.join(known) or 'nothing of it'}"
    click.echo(f"rankbind: no {name or 'claim'}{of} in {path} ({said}); {hint}", err=True)


def _watch(name: str | None, deployment: str | None, style: str | None, seconds: float) -> None:
    """Show the claims again and again; on a terminal in place, else what changes, a line each."""
    import time

    from rankbind.report import status as report
    from rankbind.runtime import registry

    def look() -> tuple[Entry, ...]:
        return tuple(entry for entry in registry.entries(path) if entry.called(name, deployment))

    path, said = registry.where()
    if style != "json" and sys.stdout.isatty():
        from rankbind.report.live import redraw

        redraw(lambda: (report.summary(found := look(), path, said), found), seconds, colour=_colour())
        return
    before: tuple[Entry, ...] | None = None
    while True:
        found = look()
        if style == "json":
            if before is None or any(report.changes(before, found)):
                _write(report.to_json_line(found, path))
        else:
            if before is None:
                click.echo(report.summary(found, path, said), err=True)
            for line in report.changes(before or (), found):
                _write(f"{time.strftime('%H:%M:%S')} {line}\n")
        before = found
        time.sleep(seconds)


def _check(file: str, skip: frozenset[str], code: Code | None) -> Result:
    from rankbind.check import run
    from rankbind.errors import ConfigError
    from rankbind.finding import Finding
    from rankbind.report.result import Result

    shown, text = _named(file)
    try:
        declaration = _read(shown, text)
    except ConfigError as error:
        return Result(shown, tuple(found for found in error.findings if isinstance(found, Finding)), text=text)
    findings, compared = run(declaration), None
    if code is not None:
        from rankbind.check.code import compare

        more, compared = compare(declaration, code)
        findings += more
    kept = tuple(finding for finding in findings if finding.code not in skip)
    topology = declaration.job.topology
    return Result(
        shown,
        kept,
        resources=len(declaration.job.resources),
        ranks=topology.size,
        hosts=len(topology.hosts),
        declarations=compared,
        ignored=len(findings) - len(kept),
        text=declaration.document.text,
    )


def _plan(context: click.Context, file: str) -> Plan:
    """The expanded job of a file; says what is wrong with the file and exits where it cannot be used."""
    from rankbind.check.plan import Plan
    from rankbind.errors import ConfigError
    from rankbind.finding import Finding
    from rankbind.report import style, text
    from rankbind.report.result import Result

    shown, given = _named(file)
    try:
        return Plan(_read(shown, given))
    except ConfigError as error:
        findings = tuple(found for found in error.findings if isinstance(found, Finding))
        width, colour = style.width_of(sys.stderr), style.wants_colour(sys.stderr)
        shown_text = text.render([Result(shown, findings, text=given)], width=width, colour=colour)
        click.echo(shown_text, err=True, nl=False, color=True)
        context.exit(2)


def _named(file: str) -> tuple[str, str | None]:
    """What a file is called in findings, and its text where only we can have it."""
    if file != _STDIN:
        return file, None
    # Bytes that are no UTF-8 become what the reader refuses, with their place.
    return "<stdin>", sys.stdin.buffer.read().decode("utf-8-sig", "surrogateescape")


def _read(file: str, text: str | None) -> Declaration:
    from rankbind import config

    return config.read(file) if text is None else config.parse(text, file)


def _explain_code(given: str) -> None:
    from rankbind.check import codes

    page = codes.page(_code(given))
    if not sys.stdout.isatty():
        _write(page)
        return
    from rankbind.report.page import render

    _write(render(page, _width() or 80, colour=_colour()))


def _code(given: str) -> str:
    """A finding's code as it is written in pages; UsageError for one there is not."""
    from rankbind.check import codes

    known = codes.titles()
    code = given.upper()
    if code in known:
        return code
    family = [other for other in known if other[:3] == code[:3]]
    near = nearest(code, family or known)
    hint = f"did you mean {near} ({known[near]})? " if near else ""
    raise click.UsageError(f"there is no code {given}; {hint}`rankbind explain` lists them all")


def _choose(what: str, given: str, known: Sequence[str], file: str) -> None:
    if given in known:
        return
    near = nearest(given, known)
    hint = f"did you mean {near}?" if near else f"it has {', '.join(known) or 'none'}"
    raise click.UsageError(f"{file} has no {what} {given}; {hint}")


def _width() -> int | None:
    from rankbind.report.style import width_of

    return width_of(sys.stdout)


def _colour() -> bool:
    from rankbind.report.style import wants_colour

    return wants_colour(sys.stdout)


def _write(text: str) -> None:
    """Text to standard output; a reader who has gone is no error of ours, a full disk is one of the user's."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence()
        raise SystemExit(_BROKEN_PIPE) from None
    except OSError as error:
        _silence()
        raise click.ClickException(f"cannot write the report: {error.strerror or error}") from None


def _silence() -> None:
    # Python flushes once more at exit, and would complain then.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: Exception) -> int:
    import traceback

    if os.environ.get("RANKBIND_DEBUG"):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    message = " ".join(str(error).split())[:200]
    told = f"{type(error).__name__}{': ' + message if message else ''}{where}"
    print(
        f"rankbind: a bug of rankbind, not of your file: {told}; please report it with the file "
        "and the traceback that RANKBIND_DEBUG=1 shows",
        file=sys.stderr,
    )
    return 2
