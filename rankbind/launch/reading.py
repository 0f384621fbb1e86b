"""From files and commands to what is checked: the one way for the command line, a preflight and a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

from rankbind import check, config
from rankbind.check import deployments
from rankbind.check.plan import Plan
from rankbind.config import Declaration
from rankbind.errors import ConfigError, LaunchError
from rankbind.finding import Finding, Label, Level
from rankbind.launch import engine as engines
from rankbind.launch.command import SHARED_HOST, TYPED, Command, Word, shown
from rankbind.launch.draft import Draft
from rankbind.launch.engine import Engine
from rankbind.source import Span, read_text

if TYPE_CHECKING:
    from rankbind.check.suggest import Suggestion

PUBLISHED = "published ports"
"""The name of what container runtimes bind for the commands of a file, a deployment beside those."""


_ORDER = {level: at for at, level in enumerate(Level)}


@dataclass(frozen=True, slots=True)
class Subject:
    """One deployment: a topology file, or what commands start.

    Attributes:
        file: where it is from, as the user named it; `TYPED` for a command that stands in no file.
        name: tells it from the others of the same file; None where it is alone.
        declaration: what it declares; None where that cannot be told, and `findings` say why.
        findings: what reading it gave.
        text: the text its spans point into, where only we can have it.
        draft: what its commands imply; None for a topology file.
    """

    file: str
    name: str | None = None
    declaration: Declaration | None = None
    findings: tuple[Finding, ...] = ()
    text: str | None = None
    draft: Draft | None = None

    @property
    def shown(self) -> str:
        """What findings and reports call it."""
        return self.file if self.name is None else f"{self.file} [{self.name}]"

    def beside(self, other: Subject) -> bool:
        """Whether both may run at the same time, as far as the file that starts them says."""
        if self.draft is None or other.draft is None:
            return True
        return any(one.beside(two) for one in self.draft.commands for two in other.draft.commands)

    def checked(self, plan: Plan | None = None) -> tuple[Finding, ...]:
        """Everything that is wrong with it.

        Args:
            plan: of `declaration`, where it is made already.
        """
        if self.declaration is None:
            return self.findings
        found = self.findings + tuple(map(self._advised, check.run(self.declaration, plan)))
        # A command has no order in which things are declared: what is worse comes first.
        return found if self.draft is None else tuple(sorted(found, key=lambda finding: _ORDER[finding.level]))

    def _advised(self, finding: Finding) -> Finding:
        """With what to do about it, in the words of whoever wrote a command."""
        if self.draft is None:
            return finding
        # One flag may say several things that stand apart in a file: it is pointed at once.
        labels = tuple({label.span: label for label in reversed(finding.labels)}.values())[::-1]
        finding = replace(finding, labels=labels)
        named = [*finding.facts.get("resources", ()), finding.facts.get("resource", "")]
        for resource in named:
            for code in (finding.code, finding.family):
                if (resource, code) in self.draft.remedies:
                    return replace(finding, fix=self.draft.remedies[resource, code])
        # What else a rule has to say is how to write a topology file, and there is none.
        return replace(finding, fix=None)


@dataclass(frozen=True, slots=True)
class Input:
    """A file that is given, by name. `text`: what is in it, where it cannot be read again (standard input)."""

    file: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user said about engines.

    Attributes:
        engine: the only one whose commands are read; None: whichever starts.
        versions: the release of each engine by its name.
    """

    engine: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def subjects(inputs: Sequence[Input], command: Command | None = None, choice: Choice | None = None) -> list[Subject]:
    """The deployments in files, and the one that `command` starts, in the order in which they are given.

    Raises:
        LaunchError: an engine is chosen that nobody can read, or a release that its reader does not reach; `command`
            starts no engine.
    """
    choice = choice or Choice()
    if choice.engine is not None:
        engines.find(choice.engine)
    found: list[Subject] = []
    commands: list[Command] = []
    order: dict[str, int] = {}
    for given in inputs:
        order.setdefault(given.file, len(order))
        declared, started = _file(given, choice)
        found += declared
        commands += started
    if command is not None:
        order.setdefault(TYPED, len(order))
        if _engine(command, choice) is None:
            raise LaunchError(_unknown(command, choice))
        commands.append(command)
    texts = {given.file: given.text for given in inputs} | ({TYPED: shown(command)} if command else {})
    launched = _launched(commands, choice, texts)
    # What is remarked of a file that can be used is told with the first that it starts.
    remarks = {
        subject.file: subject.findings
        for subject in found
        if subject.declaration is None and not any(finding.fails for finding in subject.findings)
    }
    for at, subject in enumerate(launched):
        if subject.file in remarks:
            launched[at] = replace(subject, findings=remarks.pop(subject.file) + subject.findings)
            found = [other for other in found if other.file != subject.file or other.declaration is not None]
    found = sorted(found + launched, key=lambda subject: order[subject.file])
    return _without_bystanders(found)


def _without_bystanders(found: list[Subject]) -> list[Subject]:
    """Of several files (``k8s/*.yaml``) some start nothing: a note, if any of them does."""
    idle = [subject for subject in found if [finding.code for finding in subject.findings] == ["RB907"]]
    if not idle or len(idle) == len(found):
        return found
    notes = tuple(replace(subject.findings[0], code="RB609", level=Level.NOTE) for subject in idle)
    first, *rest = (subject for subject in found if subject not in idle)
    return [replace(first, findings=first.findings + notes), *rest]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with several deployments.

    Attributes:
        findings: of each. What is between two of them is told with the later one.
        suggestion: which ports to move so that nothing is between them; None where nobody asked.
        names: what the suggestion calls each deployment by its number.
    """

    findings: tuple[tuple[Finding, ...], ...]
    suggestion: Suggestion | None = None
    names: tuple[str, ...] = ()


def judge(found: Sequence[Subject], *, together: bool = True, suggest: bool = False) -> Verdict:
    """Everything that is wrong with each of `found`, and, where they run `together`, between them.

    Args:
        suggest: whether to look for the smallest change of ports after which nothing collides.
    """
    plans = [None if subject.declaration is None else Plan(subject.declaration) for subject in found]
    judged = [list(subject.checked(plan)) for subject, plan in zip(found, plans, strict=True)]
    usable = [(subject, plan, mine) for subject, plan, mine in zip(found, plans, judged, strict=True) if plan]
    if not together or not usable:
        return Verdict(tuple(map(tuple, judged)))
    apart = {
        (one, other)
        for one, other in combinations(range(len(usable)), 2)
        if not usable[one][0].beside(usable[other][0])
    }
    names = tuple(subject.shown for subject, _, _ in usable)
    expanded = [plan for _, plan, _ in usable]
    for finding in deployments.between(expanded, names, apart):
        usable[max(finding.facts["deployments"])][2].append(finding)
    suggestion = None
    if suggest:
        from rankbind.check import suggest as moving

        turned = [moving.knobs(plan) if subject.draft is None else subject.draft.knobs for subject, plan, _ in usable]
        suggestion = moving.suggest(expanded, names, turned, apart)
    return Verdict(tuple(map(tuple, judged)), suggestion, names)


def of_draft(draft: Draft, *, file: str | None = None, name: str | None = None, text: str | None = None) -> Subject:
    """What a draft declares, unless its engine would stop before it comes to that, or a word of it can be no address.

    Raises:
        ConfigError: the reader has drafted what no topology file may hold: a bug of the reader.
    """
    declaration, findings = None, list(draft.findings)
    if not draft.refused:
        try:
            declaration = draft.declaration()
        except ConfigError as error:
            refused = [found for found in error.findings if isinstance(found, Finding)]
            if not refused or any(found.code != "RB904" for found in refused):
                raise
            findings += refused
    return Subject(file or draft.origin.file, name, declaration, tuple(findings), text, draft)


def _file(given: Input, choice: Choice) -> tuple[list[Subject], list[Command]]:
    """What a file declares, or what is wrong with it, and its commands. It is a topology file unless seen not to be."""
    # A preflight, which has its command already, has no need of it.
    from rankbind.launch import sources

    start = Label(Span(given.file, 1, 1))
    try:
        text = read_text(given.file) if given.text is None else given.text
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        unread = Finding("RB901", f"cannot read {given.file}: {reason}", labels=(start,))
        return [Subject(given.file, findings=(unread,))], []
    if sources.kind_of(given.file, text) in (None, "topology"):
        try:
            return [Subject(given.file, declaration=config.parse(text, given.file), text=text)], []
        except ConfigError as error:
            findings = tuple(found for found in error.findings if isinstance(found, Finding))
            return [Subject(given.file, findings=findings, text=text)], []
    read = sources.commands(given.file, text)
    started = [command for command in map(engines.with_entrypoint, read.commands) if _engine(command, choice)]
    machine = [command for command in read.commands if command.published] if started else []
    findings = read.findings if started or read.findings else (Finding("RB907", _nothing(choice), labels=(start,)),)
    found = [Subject(given.file, findings=findings, text=text)] if findings else []
    if machine:
        found.append(of_draft(_published(machine), file=given.file, name=PUBLISHED, text=text))
    return found, started


def _published(commands: Sequence[Command]) -> Draft:
    """The ports of machines that containers are reached at, as a deployment of its own: their runtime binds them."""
    draft = Draft("the containers' ports", commands)
    machines = list(dict.fromkeys(port.host or SHARED_HOST for command in commands for port in command.published))
    draft.axis("machine", len(machines))
    for rank, machine in enumerate(machines):
        draft.host(machine, [rank])
    seen: dict[str, int] = {}
    for command in commands:
        for port in command.published:
            name = f"{command.name or 'container'}:{port.target}"
            seen[name] = number = seen.get(name, 0) + 1
            name += f" {number}" if number > 1 else ""
            host = f"[{port.address}]" if ":" in port.address else port.address or "*"
            said = Word(str(port.port), port.span)
            draft.resource(
                name,
                said,
                owner={"machine": machines.index(port.host or SHARED_HOST)},
                bind=f"tcp://{host}:{port.port}",
                process="container runtime",
                remedies={"RB2": "publish it on another port of the machine"},
            )
            draft.knob(f"the port that {name} is published on,", port.port, said, moves=[(name, "bind")])
    return draft


def _nothing(choice: Choice) -> str:
    known = ", ".join(sorted(engines.installed())) or "none is installed: pip install rankbind-sglang rankbind-vllm"
    return f"no command here starts {choice.engine or f'an engine that can be read ({known})'}"


def _launched(commands: Sequence[Command], choice: Choice, texts: Mapping[str, str | None]) -> list[Subject]:
    by_engine: dict[str, tuple[Engine, list[Command]]] = {}
    for command in commands:
        engine = _engine(command, choice)
        if engine is not None:
            by_engine.setdefault(engine.name, (engine, []))[1].append(command)
    drafts = [
        draft
        for name, (engine, started) in by_engine.items()
        for draft in engine.read(started, _checked(engine, choice.versions.get(name)))
    ]
    files = [draft.origin.file for draft in drafts]
    names = _names(drafts)
    return [
        of_draft(
            draft, name=names[at] if files.count(draft.origin.file) > 1 else None, text=texts.get(draft.origin.file)
        )
        for at, draft in enumerate(drafts)
    ]


def _names(drafts: Sequence[Draft]) -> list[str]:
    """What tells the drafts of a file apart: the names that people gave them, else their lines."""
    wished = [draft.commands[0].name or f"line {draft.origin.line}" for draft in drafts]
    seen: dict[tuple[str, str], int] = {}
    names = []
    for draft, name in zip(drafts, wished, strict=True):
        seen[draft.origin.file, name] = count = seen.get((draft.origin.file, name), 0) + 1
        names.append(name if count == 1 else f"{name}, {count}")
    return names


def _engine(command: Command, choice: Choice) -> Engine | None:
    if choice.engine is None:
        return engines.recognise(command.texts)
    engine = engines.find(choice.engine)
    return engine if engine.starts(command.texts) else None


def _checked(engine: Engine, version: str | None) -> str | None:
    if version is not None:
        engines.release(engine, version)
    return version


def _unknown(command: Command, choice: Choice) -> str:
    shown = " ".join(command.texts[:4]) + (" ..." if len(command.texts) > 4 else "")
    if choice.engine is not None:
        return f"`{shown}` does not start {engines.find(choice.engine).title}"
    known = sorted(engines.installed())
    if not known:
        return (
            "no engine's reader is installed: `pip install rankbind-sglang rankbind-vllm` (the engines are not needed)"
        )
    return f"`{shown}` starts no engine that can be read; installed: {', '.join(known)}"
