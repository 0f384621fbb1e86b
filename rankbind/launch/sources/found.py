"""What is found in one file, being collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rankbind.finding import Finding, Label, Level
from rankbind.launch.command import Command, Publication, Word
from rankbind.launch.sources.placed import Text
from rankbind.launch.sources.slurm import Sizes
from rankbind.launch.turn import Step, Turn
from rankbind.source import Span

UNKNOWN = "RB609"
"""The code of notes: a part of a file that cannot be told without running it."""

MOST_COMMANDS = 8192
_MOST_STEPS = 30_000
_MOST_ENDINGS = 64
_MOST_WORDS = 2_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command runs; see `Command`."""

    host: str | None = None
    node: int | None = None
    image: str | None = None
    name: str | None = None
    bare: Span | None = None
    published: tuple[Publication, ...] = ()
    path: tuple[Step, ...] = ()


class FullError(Exception):
    """More than anybody keeps in a file."""


@dataclass(slots=True)
class Found:
    """What is found in one file, being collected."""

    file: str
    commands: list[Command] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    steps: int = 0
    total: int = 0
    blocks: int = 0
    endings: list[tuple[Step, ...]] = field(default_factory=list)
    _words: dict[int, tuple[Text, Word]] = field(default_factory=dict)

    def add(self, words: Sequence[Text], environment: Mapping[str, Text], place: Place) -> None:
        """A command."""
        self.total += len(words) + len(environment)
        if len(self.commands) >= MOST_COMMANDS or self.total > _MOST_WORDS:
            raise FullError
        known = {name: self.word(value) for name, value in environment.items()}
        self.commands.append(
            Command(
                tuple(map(self.word, words)), known, place.host, place.node, place.image, place.name,
                bare=place.bare, published=place.published, turn=self._turn(place.path),
            )
        )  # fmt: skip

    def _turn(self, path: tuple[Step, ...]) -> Turn | None:
        return Turn(self.file, path, len(self.commands)) if path else None

    def block(self) -> int:
        """A number for a list of statements."""
        self.blocks += 1
        return self.blocks

    def ended(self, path: tuple[Step, ...]) -> None:
        """What was put in the background before is over (``wait``, ``kill``)."""
        if len(self.endings) < _MOST_ENDINGS:
            self.endings.append(path)

    def finished(self) -> tuple[Command, ...]:
        """The commands, with what ends them."""
        if not self.endings:
            return tuple(self.commands)
        endings = tuple(self.endings)
        return tuple(
            replace(command, turn=replace(command.turn, endings=endings)) if command.turn else command
            for command in self.commands
        )

    def word(self, text: Text) -> Word:
        """The word of a text; one for all copies."""
        known = self._words.get(id(text))
        if known is None:
            known = self._words[id(text)] = (text, text.word())
        return known[1]

    def step(self) -> None:
        """One more of what has been done for this file."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise FullError

    def note(self, message: str, at: Text | Span) -> None:
        """Something that cannot be told; once for each place."""
        span = at.span if isinstance(at, Text) else at
        finding = Finding(UNKNOWN, message, Level.NOTE, (Label(span),))
        if finding not in self.findings:
            self.findings.append(finding)

    def unreadable(self, message: str, span: Span) -> None:
        """Something that cannot be read."""
        finding = Finding("RB901", message, labels=(Label(span),))
        if finding not in self.findings:
            self.findings.append(finding)


@dataclass(slots=True)
class Shared:
    """What all shells of a file have in common.

    Attributes:
        allocation: what SLURM gives a batch script.
        containers: the namespaces of containers that were started, by name.
        nodes: how many steps got some node of the allocation, by the place of their ``srun``.
    """

    found: Found
    allocation: Sizes | None = None
    containers: dict[str, str | None] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
