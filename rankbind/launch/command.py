"""A command line as somebody keeps it: its words, each with the place it stands at, its environment, its host."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from rankbind.launch.turn import Turn
from rankbind.source import Span

TYPED = "<command>"
"""The name, in findings, of a command that stands in no file."""

SHARED_HOST = "0"
"""The host of a command of which no host is said: that of everybody else, and node 0 of a job."""

ENVIRONMENT = "<environment>"
"""The same of a variable that was exported by whoever runs us."""

_SECRET = re.compile(
    r"(?:.*[-_])?(?:api(?:[-_]?k(?:ey?)?)?|access[-_]?key|passw(?:or)?d|secret|token)\Z", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, or the value of a variable, after the shell has had its say.

    Attributes:
        span: where it stands; for a word that was put together from several places, the first.
        certain: whether `text` is what the engine will see. False where a part of it is known at run time alone (an
            unset shell variable, a command substitution): such a word is shown as it is written.
    """

    text: str
    span: Span
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Publication:
    """A port of a container that is a port of the machine as well, for TCP.

    Attributes:
        address: of the machine; empty: all of them.
        port: on the machine.
        target: inside the container.
        host: the network namespace it is published in, as in `Command.host`.
        span: where that is said.
    """

    address: str
    port: int
    target: int
    host: str | None
    span: Span


@dataclass(frozen=True, slots=True)
class Command:
    """One command line.

    Attributes:
        words: the program first, without assignments in front and without what merely starts it (``exec``, ``nohup``,
            ``srun``, ``numactl ...``); arguments as they will arrive.
        environment: the variables that are known to be set for it.
        host: the network namespace it runs in, by a name that other commands of the same check share (a node, a pod);
            None: not said, so it is assumed to be where everybody else is.
        node: which of the hosts of its job runs it, counted from 0, where the file says so (the index of a pod or of
            a SLURM node); None where only its arguments can.
        image: the container image it runs in, which may tell the engine's version.
        name: what a person calls it: a service, a pod, a line of a script. Names the deployment.
        text: the text that the spans of `TYPED` point into.
        bare: where the image is named, if nothing replaces its entrypoint: where it has one, `words` (there may be
            none) are the arguments of that.
        published: ports of its container that are ports of the machine as well.
        turn: when it runs among the commands of its script; None: beside all others.
    """

    words: tuple[Word, ...]
    environment: Mapping[str, Word] = field(default_factory=dict)
    host: str | None = None
    node: int | None = None
    image: str | None = None
    name: str | None = None
    text: str | None = None
    bare: Span | None = None
    published: tuple[Publication, ...] = ()
    turn: Turn | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))

    @property
    def texts(self) -> tuple[str, ...]:
        """The words without their places."""
        return tuple(word.text for word in self.words)

    def beside(self, other: Command) -> bool:
        """Whether both may run at the same time, as far as the file that keeps them says."""
        return self.turn is None or other.turn is None or self.turn.beside(other.turn)

    def variable(self, name: str) -> str | None:
        """The value of a variable, None where it is not set."""
        word = self.environment.get(name)
        return None if word is None else word.text


def typed(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Command:
    """The command that `words` are: assignments in front (``NAME=value``, also after ``env``) are its environment.

    Args:
        environment: what is exported besides.
    """
    found: list[Word] = []
    text = ""
    for word in words:
        text += " " if text else ""
        quoted = word if _is_assignment(word) and shlex.quote(word) == word else shlex.quote(word)
        found.append(Word(word, Span(TYPED, 1, len(text) + 1, max(1, len(quoted)))))
        text += quoted.replace("\n", " ")
    known = {
        name: Word(value, Span(ENVIRONMENT, 1, 1, max(1, len(name)))) for name, value in (environment or {}).items()
    }
    at = 1 if found and found[0].text == "env" else 0
    while at < len(found) and _is_assignment(found[at].text):
        name, _, value = found[at].text.partition("=")
        known[name] = Word(value, found[at].span)
        at += 1
    return Command(tuple(found[at:]), known, text=text)


def secrets(words: Sequence[Word]) -> Iterator[tuple[int, int]]:
    """The words that hold what is nobody else's business, by the names of their options: each, and where it begins."""
    inside = False
    for at, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        if word.text.startswith("-"):
            inside = bool(_SECRET.match(name))
            if inside and equals:
                yield at, len(name) + 1
        elif inside:
            yield at, 0


def is_secret(variable: str) -> bool:
    """Whether the value of a variable of this name is nobody else's business."""
    return bool(_SECRET.match(variable))


def shown(command: Command) -> str | None:
    """Its `text` with secrets crossed out, each in its place."""
    text = command.text
    if text is None:
        return None
    spans = [(command.words[at].span, start > 0) for at, start in secrets(command.words)]
    spans += [(word.span, True) for name, word in command.environment.items() if is_secret(name)]
    for span, named in spans:
        if span.file == TYPED:
            first, stop = span.column - 1, span.column - 1 + span.length
            first = text.index("=", first) + 1 if named else first
            text = text[:first] + "*" * (stop - first) + text[stop:]
    return text


def _is_assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()
