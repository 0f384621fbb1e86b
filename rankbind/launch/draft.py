"""What a launch implies, being written: the topology file that nobody wrote, each value with the flag it comes from.

An engine's reader fills a `Draft`; `declaration` gives what `config` would give for the file, so that everything that
works on a topology file works on a command; `to_toml` is that file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankbind import config
from rankbind.check.suggest import Knob
from rankbind.config import Declaration
from rankbind.finding import Finding, Label, Level
from rankbind.launch.command import TYPED, Command, Word, is_secret, secrets
from rankbind.source import Document, KeyPath, Span

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_WIDTH = 110
_HIDDEN = "***"


@dataclass(slots=True)
class Draft:
    """One deployment that a command, or several, would start.

    Attributes:
        engine: what will run, with its release, for people: ``SGLang 0.5.23``.
        commands: the commands it was read from.
        findings: what the reader itself has to say: options that the engine refuses, preconditions that do not hold.
        ignored: words that mean nothing for what rankbind looks at, or to the reader at all, each with the reason.
        refused: whether the engine stops at what `findings` says, so that nothing below can be trusted.
        remedies: by resource and code (or family: ``RB1``), what to do instead of what a topology file's author would
            be told: nobody edits an engine's gates.
    """

    engine: str
    commands: Sequence[Command]
    deployment: str | None = None
    findings: list[Finding] = field(default_factory=list)
    ignored: list[tuple[Word, str]] = field(default_factory=list)
    refused: bool = False
    remedies: dict[tuple[str, str], str] = field(default_factory=dict)
    knobs: list[Knob] = field(default_factory=list)
    _data: dict[str, Any] = field(default_factory=lambda: {"axes": {}})
    _spans: dict[KeyPath, Span] = field(default_factory=dict)
    _about: dict[KeyPath, str] = field(default_factory=dict)

    def axis(self, name: str, size: int, *words: Word) -> None:
        """An axis, inside of those given before. `words` say its size."""
        self._data["axes"][name] = size
        self._place(("axes", name), words)

    def view(self, name: str, of: str | Sequence[str], axes: Mapping[str, int], *words: Word) -> None:
        """Another factorisation of `of`; see `rankbind.View`."""
        self._data.setdefault("views", {})[name] = {"of": of if isinstance(of, str) else list(of), "axes": dict(axes)}
        self._place(("views", name), words)

    def host(self, name: str, ranks: Iterable[int], *words: Word, addresses: Sequence[str] = ()) -> None:
        """A host, after those given before; its index is its node rank. `words` say that it is there."""
        hosts = self._data.setdefault("hosts", {"ranks": {}})
        hosts["ranks"][name] = list(ranks)
        self._place(("hosts", "ranks", name), words)
        if addresses:
            hosts.setdefault("addresses", {})[name] = list(addresses)

    def resource(
        self,
        name: str,
        /,
        *words: Word,
        owner: Mapping[str, int | Sequence[int]] | None = None,
        about: str = "",
        remedies: Mapping[str, str] | None = None,
        places: Mapping[str, Sequence[Word]] | None = None,
        **keys: Any,
    ) -> None:
        """A resource, after those given before, with the keys that a topology file has (docs/topology-file.md).

        Args:
            words: what of the commands makes it exist.
            owner: the gate as the engine has it; left out where ``singleton_per`` is among `keys`.
            about: a line for the exported file: what it is, and where the engine says so.
            remedies: see `Draft.remedies`, by code or family.
            places: for a key (``bind``, ``owner``), the words that it comes from, where they are not `words`.
            keys: as in the file; None leaves a key out, ``with_`` is ``with``.
        """
        entry: dict[str, Any] = {} if owner is None else {"owner": dict(owner)}
        entry |= {key.rstrip("_"): value for key, value in keys.items() if value is not None}
        self._data.setdefault("resources", {})[name] = entry
        at: KeyPath = ("resources", name)
        self._place(at, words)
        for key, origin in (places or {}).items():
            self._place((*at, key), origin)
        if about:
            self._about[at] = about
        for code, remedy in (remedies or {}).items():
            self.remedies[name, code] = remedy

    def knob(self, flag: str, value: int, *words: Word, moves: Iterable[tuple[str, str]]) -> None:
        """A flag that moves ports; see `rankbind.check.suggest.Knob`. `words` say its value, unless it is a default."""
        self.knobs.append(Knob(flag, value, frozenset(moves), words[0].span if words else None))

    def refuse(self, code: str, message: str, *words: Word, fix: str | None = None, **facts: Any) -> None:
        """A finding of the reader at which the engine itself stops."""
        self.refused = True
        self.find(code, message, *words, fix=fix, **facts)

    def find(
        self,
        code: str,
        message: str,
        *words: Word,
        level: Level = Level.ERROR,
        details: Sequence[str] = (),
        fix: str | None = None,
        **facts: Any,
    ) -> None:
        """A finding of the reader."""
        labels = tuple(Label(word.span) for word in words) or (Label(self.origin),)
        self.findings.append(Finding(code, message, level, labels, facts, tuple(details), fix))

    @property
    def names(self) -> Sequence[str]:
        """The resources given so far."""
        return tuple(self._data.get("resources", {}))

    @property
    def origin(self) -> Span:
        """Where the first command stands."""
        return self.commands[0].words[0].span

    def declaration(self) -> Declaration:
        """The job, as if it had been read from the exported file, with its values placed in the commands.

        Raises:
            ConfigError: the reader has drafted what no topology file may hold: a bug of the reader.
        """
        first = self.origin
        document = Document(first.file, self.commands[0].text or "", self._whole())
        document.keys.update(self._spans)
        document.values.update({(): first} | self._spans)
        return config.declare(document)

    def _whole(self) -> dict[str, Any]:
        return ({"deployment": self.deployment} if self.deployment else {}) | self._data

    def _place(self, path: KeyPath, words: Sequence[Word]) -> None:
        if words:
            self._spans[path] = words[0].span

    # As a file

    def to_toml(self) -> str:
        """The topology file that the commands imply."""
        lines = [f"# What {self.engine} starts, as rankbind reads it:"]
        lines += [_comment(f"  {_shown(command)}") for command in self.commands]
        lines += [_comment(f"{word.text} is not looked at: {reason}") for word, reason in self.ignored]
        lines.append("")
        data = self._whole()
        if self.deployment:
            lines += [f"deployment = {_toml(self.deployment)}", ""]
        lines += ["[axes]  # outermost first", *_pairs(data["axes"]), ""]
        for name, view in data.get("views", {}).items():
            lines += [f"[views.{_key(name)}]", *_pairs(view), ""]
        hosts = data.get("hosts")
        if hosts:
            lines += ["[hosts.ranks]", *_pairs({name: _runs(ranks) for name, ranks in hosts["ranks"].items()}), ""]
            if "addresses" in hosts:
                lines += ["[hosts.addresses]", *_pairs(hosts["addresses"]), ""]
        for name, entry in data.get("resources", {}).items():
            about = self._about.get(("resources", name))
            lines += [f"# {line}" for line in (about or "").splitlines()]
            lines += [f"[resources.{_key(name)}]", *_pairs(entry), ""]
        return "\n".join(lines).rstrip("\n") + "\n"


def _runs(ranks: Sequence[int]) -> str | Sequence[int]:
    """``"0-3, 8"``, where that says them all in their order."""
    if not ranks or list(ranks) != sorted(set(ranks)):
        return ranks
    starts = [at for at, rank in enumerate(ranks) if at == 0 or ranks[at - 1] != rank - 1]
    runs = [ranks[first:stop] for first, stop in zip(starts, [*starts[1:], len(ranks)], strict=True)]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _shown(command: Command) -> str:
    import shlex

    # What a file or a shell has set besides may be anybody's secret.
    typed = [(name, word) for name, word in command.environment.items() if word.span.file == TYPED]
    given = [f"{name}={_HIDDEN if is_secret(name) else shlex.quote(word.text)}" for name, word in typed]
    hidden = dict(secrets(command.words))
    words = [
        word.text[: hidden[at]] + _HIDDEN if at in hidden else shlex.quote(word.text)
        for at, word in enumerate(command.words)
    ]
    return " ".join([*given, *words])


def _comment(text: str) -> str:
    """A comment of one line: TOML has no control characters in it."""
    return "# " + "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _pairs(data: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_toml(value)}" for name, value in data.items()]


def _key(name: str) -> str:
    return name if _BARE.match(name) else _toml(name)


def _toml(value: Any) -> str:
    """A value in TOML; long lists in lines of their own."""
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{_key(name)} = {_toml(item)}" for name, item in value.items()) + " }" if value else "{}"
        )
    if isinstance(value, list | tuple):
        items = [_toml(item) for item in value]
        line = f"[{', '.join(items)}]"
        return line if len(line) < _WIDTH else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    # A JSON string is a TOML basic string, once DEL is escaped as well.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
