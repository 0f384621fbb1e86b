"""The command that reads code: audit."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import click

from rankbind.cli.codes import ignorable
from rankbind.cli.output import FORMATS, colours, columns, write
from rankbind.topology import nearest

if TYPE_CHECKING:
    from rankbind.audit import Audit
    from rankbind.audit.settings import Settings
    from rankbind.audit.sources import Source
    from rankbind.finding import Finding
    from rankbind.report.audit import Outcome


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--format", "style", type=FORMATS, default="text", show_default=True, help="For a person or a program.")
@click.option("--ignore", "ignored", metavar="CODE", multiple=True, help="Leave out findings of this code. Repeatable.")
@click.option("--profile", metavar="NAME", help="Read names as torch, sglang, vllm or megatron has them.")
@click.option("--baseline", metavar="FILE", type=click.Path(path_type=Path), help="Leave out what this file knows.")
@click.option("--write-baseline", is_flag=True, help="Have the baseline know what is found now, and no more.")
@click.option("--diff", "revision", metavar="REV", help="Only what the work tree has and this git revision has not.")
@click.option("--fix", is_flag=True, help="Show what can be mended mechanically, as a diff, and offer to write it.")
@click.option("--yes", is_flag=True, help="With --fix: write it without asking.")
@click.option("--gates", is_flag=True, help="List every site and gate with its axes instead of what is wrong.")
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="Read [tool.rankbind.audit] from here.")
@click.option("--no-cache", is_flag=True, help="Audit again what has been audited before.")
@click.pass_context
def audit(
    context: click.Context,
    paths: tuple[Path, ...],
    style: str,
    ignored: tuple[str, ...],
    profile: str | None,
    baseline: Path | None,
    write_baseline: bool,
    revision: str | None,
    fix: bool,
    yes: bool,
    gates: bool,
    config: Path | None,
    no_cache: bool,
) -> None:
    """Find gates about ranks that forget an axis. Python code is read, never imported.

    PATH is a file, a folder, or the name of a package.
    """
    from rankbind.errors import ConfigError
    from rankbind.report import audit as report

    if yes and not fix:
        raise click.UsageError("--yes is about what --fix writes: it needs --fix")
    if fix and gates:
        raise click.UsageError("--gates lists what there is, and --fix changes it: give one")
    if fix and style == "json":
        raise click.UsageError("--fix shows a diff, which is no JSON: it does not take --format json")
    if fix and write_baseline:
        raise click.UsageError("--fix mends what is found, and --write-baseline is to leave it: give one")
    if write_baseline and baseline is None:
        raise click.UsageError("--write-baseline needs --baseline FILE: where to write it")
    if write_baseline and revision is not None:
        raise click.UsageError("--write-baseline is about all that there is, and --diff about what is new: give one")
    if gates and (baseline is not None or revision is not None):
        raise click.UsageError("--gates lists all there are: it takes neither --baseline nor --diff")
    skip = ignorable(ignored) if ignored else frozenset()
    try:
        work = _Work(paths, _settings(paths[0], config, profile, skip), not no_cache, baseline, revision)
        here = work.read(listing=gates)
        if gates:
            _list(context, here, style)
        outcome = work.outcome(here, write_baseline=write_baseline)
        if fix and _fix(context, work, here, outcome, yes=yes):
            outcome = work.outcome(work.read())
    except ConfigError as error:
        outcome = report.Outcome(cast("tuple[Finding, ...]", error.findings))
    if style == "json":
        write(report.to_json(outcome))
    else:
        write(report.to_text(outcome, width=columns(), colour=colours()))
    context.exit(outcome.status)


@dataclass(frozen=True, slots=True)
class _Read:
    """What is at the paths at one time: the sources, their audit, and the findings that nobody ignores."""

    sources: Sequence[Source]
    audit: Audit
    findings: list[Finding]
    ignored: int

    def texts(self, findings: Sequence[Finding]) -> dict[str, str]:
        """The texts that `findings` point into."""
        from rankbind.audit.sources import text

        names = {label.span.file for finding in findings for label in finding.labels}
        return {source.name: text(source) for source in self.sources if source.name in names}


@dataclass(frozen=True, slots=True)
class _Work:
    """What is asked for, whichever time it is asked about."""

    paths: Sequence[Path]
    settings: Settings
    cached: bool
    baseline: Path | None
    revision: str | None

    def read(self, *, listing: bool = False) -> _Read:
        """The work tree."""
        from rankbind.audit.sources import collect

        return self._audited(*collect(self.paths, self.settings), listing=listing)

    def outcome(self, here: _Read, *, write_baseline: bool = False) -> Outcome:
        """What is to be shown of `here`, which is the work tree: what neither baseline nor revision knows."""
        from rankbind.report.audit import Outcome

        findings, stale = here.findings, 0
        if self.baseline is not None:
            findings, stale = _unknown(here, self.baseline, write_baseline)
        if self.revision is not None:
            findings = self._introduced(here, findings, self.revision)
        return Outcome(
            tuple(findings),
            here.audit.files,
            len(here.audit.sites),
            here.ignored,
            len(here.findings) - len(findings),
            stale,
            texts=here.texts(findings),
        )

    def _introduced(self, here: _Read, findings: Sequence[Finding], revision: str) -> list[Finding]:
        """Those of `findings`, which are some of `here`, that there were not at `revision`."""
        from rankbind.audit.baseline import Places, subtract
        from rankbind.audit.change import ChangeError, before

        try:
            sources, unreadable = before(revision, self.paths, self.settings, here.sources)
        except ChangeError as error:
            raise click.ClickException(f"--diff {revision}: {error}") from None
        if sources == list(here.sources):
            there = here
        else:
            there = self._audited(sources, unreadable)
        places = Places(there.sources, there.audit)
        known = Counter(map(places.fingerprint, there.findings))
        names = {source.name for source in here.sources}
        new, _ = subtract(findings, Places(here.sources, here.audit), known, lambda file: file not in names)
        return new

    def _audited(self, sources: Sequence[Source], unreadable: Sequence[Finding], *, listing: bool = False) -> _Read:
        import rankbind.audit
        from rankbind.audit import cache, ignores

        analyse = cache.audited if self.cached else rankbind.audit.run
        found = analyse(sources, self.settings, listing=listing)
        kept, ignored = ignores.apply((*unreadable, *found.findings), sources)
        findings = [finding for finding in kept if finding.code not in self.settings.ignore]
        return _Read(sources, found, findings, ignored + len(kept) - len(findings))


def _settings(first: Path, config: Path | None, profile: str | None, skip: frozenset[str]) -> Settings:
    from rankbind.audit import settings

    if profile is not None and profile not in settings.PROFILES:
        near = nearest(profile, settings.PROFILES)
        hint = f"did you mean {near}?" if near else f"there is {', '.join(settings.PROFILES)}"
        raise click.UsageError(f"there is no profile {profile}; {hint}")
    found = settings.find(first) if config is None else settings.load(config)
    return replace(found, profile=profile or found.profile, ignore=tuple(sorted(skip.union(found.ignore))))


def _fix(context: click.Context, work: _Work, here: _Read, shown: Outcome, *, yes: bool) -> bool:
    """Show the fixes for what is `shown`, and write them where that is wanted; False where there are none.

    Where they are not wanted the command ends with the diff.
    """
    from rankbind.audit import fix
    from rankbind.report.audit import diff_to_terminal
    from rankbind.report.text import count

    edits = fix.fixes(shown.findings, here.sources, work.settings)
    mended = len({id(finding) for edit in edits for finding in edit.findings})
    rest = len(shown.findings) - mended
    unmended = f"{count(rest, 'finding')} {'has' if rest == 1 else 'have'} no mechanical fix" if rest else ""
    if not edits:
        click.echo(f"rankbind: nothing to fix{': ' if rest else ''}{unmended}", err=True)
        return False
    terminal = sys.stdout.isatty()
    diff = fix.diff(edits)
    write(diff_to_terminal(diff, colour=colours()) if terminal else diff)
    told = f"rankbind: this fixes {count(mended, 'finding')} in {count(len(edits), 'file')}"
    click.echo(f"{told}; {unmended}" if rest else told, err=True)
    if not yes:
        asked = terminal and sys.stdin.isatty()
        if not (asked and click.confirm("write these changes?", err=True)):
            click.echo(f"rankbind: nothing is written{'' if asked else '; --yes writes it'}", err=True)
            context.exit(shown.status)
    try:
        fix.write(edits)
    except fix.ChangedError as error:
        raise click.ClickException(f"nothing is written: {error}") from None
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror or error}") from None
    click.echo(f"rankbind: wrote {count(len(edits), 'file')}", err=True)
    return True


def _list(context: click.Context, here: _Read, style: str) -> NoReturn:
    from rankbind.report import audit as report
    from rankbind.report.style import safe

    write(report.gates_to_json(here.audit) if style == "json" else report.gates_to_text(here.audit, colour=colours()))
    refused = [finding for finding in here.findings if finding.family == "RB9"]
    for finding in refused:
        click.echo(f"rankbind: {safe(finding.message)}", err=True)
    context.exit(2 if refused else 0)


def _unknown(here: _Read, file: Path, write_it: bool) -> tuple[list[Finding], int]:
    """The findings that the baseline in `file` does not know, and how many that it knows are not there any more."""
    from rankbind.audit import baseline
    from rankbind.report.text import count

    missing = write_it and not os.path.lexists(file)
    known = baseline.Baseline(file, {}) if missing else baseline.read(file)
    places = known.places(here.sources, here.audit)
    new, left = baseline.subtract(here.findings, places, known.known, known.gone)
    unread = {finding.labels[0].span.file for finding in here.findings if finding.family == "RB9"}
    audited = [source.name for source in here.sources if source.name not in unread]
    stale = known.stale(left, audited)
    if not write_it:
        return new, stale.total()
    learnt = [finding for finding in here.findings if finding.family != "RB9"]
    kept = baseline.Baseline(file, Counter(map(places.fingerprint, learnt)) + (left - stale))
    try:
        baseline.write(kept)
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror or error}") from None
    refused = [finding for finding in new if finding.family == "RB9"]
    told = f"{len(new) - len(refused)} new, {stale.total()} gone"
    click.echo(f"rankbind: wrote {file}, which knows {count(Counter(kept.known).total(), 'finding')}: {told}", err=True)
    return refused, 0
