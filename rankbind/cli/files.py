"""The commands that read a topology file: check, plan, rehearse, explain."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from rankbind.cli.output import FORMATS, colours, columns, write
from rankbind.topology import nearest

if TYPE_CHECKING:
    from rankbind.check.code import Code
    from rankbind.check.plan import Plan
    from rankbind.config import Declaration
    from rankbind.report.result import Result

_DEFAULT_FILE = "topology.toml"
_FILE_VARIABLE = "RANKBIND_TOPOLOGY"
_STDIN = "-"


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--format", "style", type=FORMATS, default="text", show_default=True, help="For a person or a program.")
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
    write(machine.render(results) if style == "json" else text.render(results, width=columns(), colour=colours()))
    context.exit(exit_status(results))


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--format", "style", type=FORMATS, default="text", show_default=True, help="For a person or a program.")
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
        write(table.to_json(entries, found.declaration.document.file))
    elif sys.stdout.isatty():
        write(table.to_terminal(entries, columns() or 80, colour=colours()))
    else:
        write(table.to_text(entries))
    untold = table.untold(found)
    if untold:
        told = f"rankbind: not all of {', '.join(untold)} can be told; `rankbind check {file}` says why"
        click.echo(told, err=True)
        context.exit(2)


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--hosts", type=click.Choice(["namespaces", "here"]), help="Where hosts are. Default: what can be had.")
@click.option("--shift", type=int, metavar="N", help="Bind each port N further up, or down.")
@click.option("--ports", type=click.Choice(["declared", "free"]), default="declared", show_default=True)
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, metavar="SECONDS")
@click.option("--format", "style", type=FORMATS, default="text", show_default=True, help="For a person or a program.")
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
    from rankbind.errors import RehearsalError
    from rankbind.rehearse.rehearsal import Wishes
    from rankbind.rehearse.rehearsal import rehearse as play
    from rankbind.report import rehearsal as report

    if shift is not None and ports == "free":
        raise click.UsageError("--shift moves the declared ports, and --ports free takes others: give one of them")
    declaration = _plan(context, file).declaration
    try:
        seen = play(declaration, Wishes(hosts, shift, ports == "free", timeout))
    except RehearsalError as error:
        click.echo(f"rankbind: cannot rehearse {file}: {error}", err=True)
        context.exit(2)
    write(report.to_json(seen) if style == "json" else report.to_text(seen, width=columns(), colour=colours()))
    context.exit(int(seen.failed))


@click.command()
@click.argument("subject", metavar="[CODE|RESOURCE]", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Why this rank owns the resource, or does not.")
@click.option("--file", metavar="FILE", help=f"The topology file. Default: ${_FILE_VARIABLE}, or {_DEFAULT_FILE}.")
@click.pass_context
def explain(context: click.Context, subject: str | None, rank: int | None, file: str | None) -> None:
    """Explain a finding's code (RB201), or who owns a resource and why; without either, list the codes."""
    if subject is None:
        if rank is not None or file is not None:
            raise click.UsageError("name the resource that is to be explained")
        from rankbind.check import codes

        write("".join(f"{code}  {title}\n" for code, title in codes.titles().items()))
        return
    if rank is None and file is None and subject[:2].upper() == "RB" and subject[2:].isdecimal():
        _explain_code(subject)
        return
    from rankbind.report.explain import rank_text, resource_text

    chosen = file or os.environ.get(_FILE_VARIABLE) or _DEFAULT_FILE
    if file is None and not Path(chosen).exists():
        raise click.UsageError(
            f"there is no {chosen}: name the topology file with --file (or give a code, as in RB201)"
        )
    found = _plan(context, chosen)
    _choose("resource", subject, [known.name for known in found.job.resources], chosen)
    resource = found.job.resource(subject)
    if rank is None:
        write(resource_text(found, resource, width=columns(), colour=colours()))
        return
    size = found.job.topology.size
    if rank >= size:
        raise click.UsageError(f"there is no rank {rank}: {chosen} has ranks 0..{size - 1}")
    write(rank_text(found, resource, rank, width=columns(), colour=colours()))


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
        write(page)
        return
    from rankbind.report.page import render

    write(render(page, columns() or 80, colour=colours()))


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
