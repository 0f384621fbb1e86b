"""The commands that read topology files and launches: check, plan, export, rehearse, explain."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from rankbind.cli import subjects
from rankbind.cli.codes import ignorable, known_code
from rankbind.cli.output import FORMATS, colours, columns, write
from rankbind.topology import nearest

if TYPE_CHECKING:
    from rankbind.check.code import Code
    from rankbind.check.plan import Plan
    from rankbind.finding import Finding
    from rankbind.launch.reading import Subject
    from rankbind.report.result import Result

_DEFAULT_FILE = "topology.toml"
_FILE_VARIABLE = "RANKBIND_TOPOLOGY"


@click.command(cls=subjects.Launching)
@click.argument("files", metavar="[FILE...]", nargs=-1)
@subjects.about_engines
@click.option("--apart", is_flag=True, help="The deployments share no host: check each for itself.")
@click.option("--suggest", is_flag=True, help="Say which ports to move, as little as can be, so that none collide.")
@click.option("--format", "style", type=FORMATS, default="text", show_default=True, help="For a person or a program.")
@click.option("--ignore", "ignored", metavar="CODE", multiple=True, help="Leave out findings of this code. Repeatable.")
@click.option("--code", metavar="PATH_OR_PACKAGE", help="Compare with what singleton_per(...) says in this code.")
@click.pass_context
def check(
    context: click.Context,
    files: tuple[str, ...],
    engine: str | None,
    versions: tuple[str, ...],
    apart: bool,
    suggest: bool,
    style: str,
    ignored: tuple[str, ...],
    code: str | None,
) -> None:
    """Check launches and topology files: owners, endpoints, sites that must agree, placement.

    FILE is a topology file (TOML, YAML, JSON), or what holds launch commands: a shell or SLURM script, a compose file,
    Kubernetes manifests; - is standard input. COMMAND is a launch command itself.
    """
    from rankbind.launch.reading import judge
    from rankbind.report import machine, text
    from rankbind.report.result import exit_status

    if apart and suggest:
        raise click.UsageError("--suggest is about deployments that share hosts, and --apart says that they do not")
    skip = ignorable(ignored)
    read = None
    if code is not None:
        from rankbind.check.code import read as read_code

        read = read_code(code)
    found = subjects.read(context, files, engine, versions)
    verdict = judge(found, together=not apart, suggest=suggest)
    results = [
        _result(subject, findings, skip, read) for subject, findings in zip(found, verdict.findings, strict=True)
    ]
    if style == "json":
        write(machine.render(results, verdict.suggestion, verdict.names))
    else:
        write(text.render(results, width=columns(), colour=colours()))
        if verdict.suggestion is not None:
            write(text.suggested(verdict.suggestion, verdict.names, width=columns(), colour=colours()))
    context.exit(exit_status(results))


@click.command(cls=subjects.Launching)
@subjects.takes_one
@click.option("--format", "style", type=FORMATS, default="text", show_default=True, help="For a person or a program.")
@click.option("--resource", metavar="NAME", help="Only this resource.")
@click.option("--host", metavar="NAME", help="Only what runs on this host.")
@click.pass_context
def plan(context: click.Context, subject: Subject, style: str, resource: str | None, host: str | None) -> None:
    """Show which rank takes which address on which host."""
    from rankbind.report import plan as table

    found = _plan(subject)
    if resource is not None:
        _choose("resource", resource, [known.name for known in found.job.resources], subject.shown)
    if host is not None:
        _choose("host", host, [known.name for known in found.job.topology.hosts], subject.shown)
    entries = table.entries(found, resource, host)
    if style == "json":
        write(table.to_json(entries, subject.shown))
    elif sys.stdout.isatty():
        write(table.to_terminal(entries, columns() or 80, colour=colours()))
    else:
        write(table.to_text(entries))
    untold = table.untold(found)
    if untold:
        told = f"rankbind: not all of {', '.join(untold)} can be told; `rankbind check {subject.file}` says why"
        click.echo(told, err=True)
        context.exit(2)


@click.command(cls=subjects.Launching)
@subjects.takes_one
def export(subject: Subject) -> None:
    """Write the topology file that a launch implies: what `check` checks, to be read, kept and changed."""
    if subject.draft is None:
        raise click.UsageError(f"{subject.file} is a topology file already")
    write(subject.draft.to_toml())


@click.command(cls=subjects.Launching)
@subjects.takes_one
@click.option("--hosts", type=click.Choice(["namespaces", "here"]), help="Where hosts are. Default: what can be had.")
@click.option("--shift", type=int, metavar="N", help="Bind each port N further up, or down.")
@click.option("--ports", type=click.Choice(["declared", "free"]), default="declared", show_default=True)
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, metavar="SECONDS")
@click.option("--format", "style", type=FORMATS, default="text", show_default=True, help="For a person or a program.")
@click.pass_context
def rehearse(
    context: click.Context,
    subject: Subject,
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
    try:
        seen = play(_plan(subject).declaration, Wishes(hosts, shift, ports == "free", timeout))
    except RehearsalError as error:
        click.echo(f"rankbind: cannot rehearse {subject.shown}: {error}", err=True)
        context.exit(2)
    write(report.to_json(seen) if style == "json" else report.to_text(seen, width=columns(), colour=colours()))
    context.exit(int(seen.failed))


@click.command(cls=subjects.Launching)
@click.argument("subject", metavar="[CODE|RESOURCE]", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Why this rank owns the resource, or does not.")
@click.option("--file", metavar="FILE", help=f"The topology file. Default: ${_FILE_VARIABLE}, or {_DEFAULT_FILE}.")
@subjects.about_engines
@subjects.about_deployment
@click.pass_context
def explain(
    context: click.Context,
    subject: str | None,
    rank: int | None,
    file: str | None,
    engine: str | None,
    versions: tuple[str, ...],
    deployment: str | None,
) -> None:
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

    chosen = file
    if file is None and not subjects.launch(context):
        chosen = os.environ.get(_FILE_VARIABLE) or _DEFAULT_FILE
        if not Path(chosen).exists():
            raise click.UsageError(
                f"there is no {chosen}: name the topology file with --file (or give a code, as in RB201)"
            )
    about = subjects.one(context, chosen, engine, versions, deployment)
    found, chosen = _plan(about), about.shown
    _choose("resource", subject, [known.name for known in found.job.resources], chosen)
    resource = found.job.resource(subject)
    if rank is None:
        write(resource_text(found, resource, width=columns(), colour=colours()))
        return
    size = found.job.topology.size
    if rank >= size:
        raise click.UsageError(f"there is no rank {rank}: {chosen} has ranks 0..{size - 1}")
    write(rank_text(found, resource, rank, width=columns(), colour=colours()))


def _result(subject: Subject, findings: tuple[Finding, ...], skip: frozenset[str], code: Code | None) -> Result:
    from rankbind.report.result import Result

    compared = None
    if code is not None and subject.declaration is not None:
        from rankbind.check.code import compare

        more, compared = compare(subject.declaration, code)
        findings += more
    kept = tuple(finding for finding in findings if finding.code not in skip)
    job = None if subject.declaration is None else subject.declaration.job
    nothing = None if subject.draft is None else 0
    return Result(
        subject.file,
        kept,
        resources=nothing if job is None else len(job.resources),
        ranks=nothing if job is None else job.topology.size,
        hosts=nothing if job is None else len(job.topology.hosts),
        declarations=compared,
        ignored=len(findings) - len(kept),
        text=subject.text,
        deployment=subject.name,
    )


def _plan(subject: Subject) -> Plan:
    from rankbind.check.plan import Plan

    assert subject.declaration is not None, "one that cannot be used was shown to be wrong"
    return Plan(subject.declaration)


def _explain_code(given: str) -> None:
    from rankbind.check import codes

    page = codes.page(known_code(given))
    if not sys.stdout.isatty():
        write(page)
        return
    from rankbind.report.page import render

    write(render(page, columns() or 80, colour=colours()))


def _choose(what: str, given: str, known: Sequence[str], file: str) -> None:
    if given in known:
        return
    near = nearest(given, known)
    hint = f"did you mean {near}?" if near else f"it has {', '.join(known) or 'none'}"
    raise click.UsageError(f"{file} has no {what} {given}; {hint}")
