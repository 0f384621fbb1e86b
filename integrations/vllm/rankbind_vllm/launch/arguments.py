"""A vLLM command taken apart: its words as vLLM changes them, its options, its variables, and what it refuses.

What vLLM does to the words before argparse is in `flexible`, what argparse does in the table of options. Here is the
file of ``--config``, which stands in front of the other words, and what is known at run time alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from rankbind.finding import Level
from rankbind.launch.command import Command, Word
from rankbind.launch.engine import python_module
from rankbind.launch.options import Option, OptionTable, Reading
from rankbind.source import Document, SourceError
from rankbind.source import read as read_source
from rankbind_vllm.launch import flexible
from rankbind_vllm.launch.releases import Release

_ODD = re.compile(r"\W+")
_SERVER = "vllm.entrypoints.openai.api_server"
_COMMANDS = ("vllm.entrypoints.cli.main", "vllm.entrypoints.cli", "vllm")
# What people write, as other engines have it, and no release of this one has.
_NEVER = {
    "--tp": "-tp",
    "--pp": "-pp",
    "--dp": "-dp",
    "--ep": "--enable-expert-parallel",
    "--tp-size": "--tensor-parallel-size",
    "--pp-size": "--pipeline-parallel-size",
    "--dp-size": "--data-parallel-size",
    "--ep-size": "--enable-expert-parallel",
    "--model-path": "--model",
    "--dist-init-addr": "--master-addr",
}
_ALIKE = 0.8
# Taken as they are, also where only the run time knows what they say.
_KEPT = ("--model", "--config")
# Where only the run time knows them: which node a command is follows from the others.
_BY_NODE = ("node_rank", "data_parallel_rank", "data_parallel_start_rank")


@dataclass(frozen=True)
class Remark:
    """Something the reader has to say, before there is a draft to say it in.

    Attributes:
        refuses: whether the engine stops at it.
    """

    code: str
    message: str
    words: tuple[Word, ...] = ()
    level: Level = Level.ERROR
    fix: str | None = None
    refuses: bool = False
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Port:
    """A port, and what says it.

    Attributes:
        flag: what a person turns: ``--port``, ``VLLM_NIXL_SIDE_CHANNEL_PORT``, ``--kv-events-config endpoint``.
        number: 0: the kernel picks one, or only the run time knows it.
        words: where it is said; none where it is a default.
    """

    flag: str
    number: int
    words: tuple[Word, ...] = field(default=(), compare=False)

    def plus(self, term: str) -> str:
        """As a template, with `term` added."""
        return f"{{{self.number} + {term}}}" if self.number else "0"

    def __str__(self) -> str:
        return str(self.number)


@dataclass
class Arguments:
    """One command, taken apart.

    Attributes:
        module: whether it is ``python -m vllm.entrypoints.openai.api_server``, which runs one API server and knows no
            head and no followers.
        remarks: what is to be said of its options.
        ignored: words that mean nothing here, each with the reason.
        uncertain: by what it would set, the value of an option that only the run time knows.
        open: whether it may say more than is known: a word, or a file of ``--config``, that may hold any option.
    """

    command: Command
    release: Release
    module: bool
    reading: Reading
    remarks: list[Remark] = field(default_factory=list)
    ignored: list[tuple[Word, str]] = field(default_factory=list)
    uncertain: Mapping[str, Word] = field(default_factory=dict)
    open: bool = False

    def value(self, dest: str, default: Any = None) -> Any:
        """The value of an option; `default` where the release has none of that name, or it is not given."""
        if dest in self.uncertain and dest not in _BY_NODE:
            self._untold(flag(dest), self.uncertain[dest])
        found = self.reading.value(dest)
        return default if found is None else found

    def address(self, *dests: str) -> str | None:
        """The first of these options that is given; what only the run time knows is called by its variable."""
        for dest in dests:
            found = _called(self.uncertain[dest]) if dest in self.uncertain else self.value(dest)
            if found:
                return str(found)
        return None

    def words(self, *dests: str) -> tuple[Word, ...]:
        """The words that give any of these options."""
        return tuple(word for dest in dests for word in self.reading.words(dest))

    def number(self, dest: str, default: int) -> int:
        """The value of an option that is an integer."""
        found = self.value(dest, default)
        return found if isinstance(found, int) and not isinstance(found, bool) else default

    def given(self, dest: str) -> bool:
        """Whether the command says it."""
        return bool(self.reading.words(dest))

    def lacks(self, dest: str) -> bool:
        """Whether the command does not say it for certain: nothing in it that only the run time knows may."""
        return not self.given(dest) and dest not in self.uncertain and not self.open

    def mapping(self, dest: str) -> dict[str, Any] | None:
        """The value of an option that is JSON; None where it is not given, is no JSON object, or not known in full."""
        found = self.value(dest)
        if dest in self.uncertain:
            return None
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except ValueError:
                return None
        return dict(found) if isinstance(found, Mapping) and self.given(dest) else None

    def variable(self, name: str, default: str) -> str:
        """The value of an environment variable."""
        found = self.command.environment.get(name)
        if found is not None and not found.certain:
            self._untold(name, found)
        return default if found is None or not found.certain else found.text

    def address_variable(self, name: str, default: str) -> str:
        """The same of an address; see `address`."""
        found = self.command.environment.get(name)
        return default if found is None else found.text if found.certain else _called(found)

    def integer(self, name: str, default: int) -> int:
        """The number that an environment variable gives; what is none is refused."""
        text = self.variable(name, str(default))
        try:
            return int(text)
        except ValueError:
            self.refuse("RB605", f"{name} must be a number, not {text!r}", self.command.environment[name])
            return default

    def port(self, dest: str, default: int) -> Port:
        """The port that an option gives."""
        number = self.number(dest, default)
        return Port(flag(dest), 0 if dest in self.uncertain else number, self.words(dest)[-1:])

    def port_variable(self, name: str, default: int) -> Port:
        """The same of an environment variable."""
        number, words = self.integer(name, default), self.set(name)
        return Port(name, number if all(word.certain for word in words) else 0, words)

    def port_key(self, dest: str, config: Mapping[str, Any], key: str, default: int) -> Port:
        """The same of a key in `config`, which is (a part of) the JSON of an option."""
        found = config.get(key)
        name = f"{flag(dest)} {key}"
        try:
            return Port(name, int(str(found)), self.words(dest)[-1:])
        except ValueError:
            return Port(name, default)

    def set(self, *names: str) -> tuple[Word, ...]:
        """The words that set any of these variables."""
        return tuple(self.command.environment[name] for name in names if name in self.command.environment)

    def _untold(self, name: str, value: Word) -> None:
        message = f"{name} cannot be told: {value.text} is known at run time alone"
        self.remark("RB609", message, value, level=Level.NOTE)

    def refuse(self, code: str, message: str, *words: Word, fix: str | None = None) -> None:
        """Note that the engine stops here; said once."""
        remark = Remark(code, message, words, fix=fix, refuses=True)
        if remark not in self.remarks:
            self.remarks.append(remark)

    def remark(self, code: str, message: str, *words: Word, level: Level = Level.ERROR, fix: str | None = None) -> None:
        """Note a finding; said once."""
        remark = Remark(code, message, words, level, fix)
        if remark not in self.remarks:
            self.remarks.append(remark)

    @property
    def refused(self) -> bool:
        """Whether the engine stops at this command."""
        return any(remark.refuses for remark in self.remarks)


def flag(dest: str) -> str:
    """How the option that sets `dest` is written out."""
    return f"--{dest.replace('_', '-')}"


def _called(value: Word) -> str:
    """A name for what a word that only the run time knows comes to."""
    return _ODD.sub("-", value.text).strip("-") or "unknown"


def first_argument(words: Sequence[str]) -> tuple[int, bool] | None:
    """Where the options of a command begin, and whether it is the module of the API server; None: it starts no vLLM."""
    words = list(words)
    if not words:
        return None
    program = PurePosixPath(words[0])
    if program.name == "vllm":
        return (2, False) if words[1:2] == ["serve"] else None
    if not program.name.startswith("python"):
        return None
    module = python_module(words)
    if module is not None:
        name, at = module
        if name == _SERVER:
            return at, True
        return (at + 1, False) if name in _COMMANDS and words[at : at + 1] == ["serve"] else None
    script = next((at for at, word in enumerate(words[1:], start=1) if not word.startswith("-")), None)
    if script is None:
        return None
    path = PurePosixPath(words[script])
    if path.parts[-4:] == ("vllm", "entrypoints", "openai", "api_server.py"):
        return script + 1, True
    if path.name == "vllm" or path.parts[-4:] == ("vllm", "entrypoints", "cli", "main.py"):
        return (script + 2, False) if words[script + 1 : script + 2] == ["serve"] else None
    return None


@cache
def table() -> OptionTable:
    """Every option of every release."""
    return OptionTable.load(files(__package__).joinpath("options.json"))


def read(command: Command, release: Release, *, named: bool) -> Arguments:
    """A command that `first_argument` takes.

    Args:
        named: whether somebody said which release it is, so that what it does not know is refused.
    """
    found = first_argument(command.texts)
    assert found is not None
    at, module = found
    if not release.has("image serves") and _from_image(command):
        module = True
    reader = _Reader(release, named)
    words = reader.known(list(command.words[at:]))
    words, refusals = (words, []) if module else flexible.model_first(words, release.text)
    words = flexible.dashed(reader.configured(words, module), release.text)
    reader.replaced(words)
    words, more = flexible.folded(words, release.text)
    reading = table().read(words, release.text, kinds=flexible.kinds(release.text))
    arguments = Arguments(
        command, release, module, reading, reader.remarks, reader.ignored, reader.uncertain, reader.open
    )
    for refusal in (*refusals, *more, *reading.refusals):
        if not refusal.certain:
            arguments.open = arguments.open or not refusal.option
            what = f"is in {refusal.option} {refusal.word.text}" if refusal.option else f"{refusal.word.text} adds"
            arguments.remark("RB609", f"only the run time knows what {what}", refusal.word, level=Level.NOTE)
            continue
        near = _NEVER.get(refusal.word.text.partition("=")[0]) or ", ".join(refusal.meant)
        fix = f"did you mean {near}?" if near else None
        arguments.refuse("RB605", refusal.message, refusal.word, fix=fix)
    reader.unknown(arguments, reading.unknown)
    for dest in ("kv_events_config", "kv_transfer_config", "ec_transfer_config"):
        if (
            arguments.given(dest)
            and dest not in reader.uncertain
            and arguments.mapping(dest) is None
            and not reading.refusals
        ):
            arguments.refuse("RB605", f"{flag(dest)} must be a JSON object", *arguments.words(dest)[-1:])
    return arguments


def _from_image(command: Command) -> bool:
    """Whether the words in front are those of the image: they stand nowhere of their own."""
    return command.image is not None and command.words[0].span == command.words[1].span


class _Reader:
    """What happens to the words before argparse sees them."""

    def __init__(self, release: Release, named: bool) -> None:
        self.release, self.named = release, named
        self.remarks: list[Remark] = []
        self.ignored: list[tuple[Word, str]] = []
        self.uncertain: dict[str, Word] = {}
        self.open = False

    def known(self, words: list[Word]) -> list[Word]:
        """Those whose value is known before the job runs; an option whose value is not is left at its default."""
        kept: list[Word] = []
        rest = iter(zip(words, [*words[1:], None], strict=False))  # no words, no None
        for word, value in rest:
            name, equals, _ = word.text.partition("=")
            option = self._option(Word(name, word.span))
            alone = equals or (option is not None and option.nargs == 0)
            unsure = word if alone or value is None else value
            if not name.startswith("-") or unsure.certain or name in _KEPT:
                kept.append(word)
                continue
            dest = option.dest if option else name
            self.uncertain[dest] = unsure
            self.ignored.append((Word(name, word.span), f"{unsure.text} is known at run time alone"))
            if unsure is value:
                next(rest)
        return kept

    def _option(self, name: Word) -> Option | None:
        """The one that is named, or a key of which is."""
        spelled = flexible.dashed([name], self.release.text)[0].text
        return _options(self.release.text).get(spelled.partition(".")[0])

    def configured(self, words: list[Word], module: bool) -> list[Word]:
        """The file of ``--config`` in front of the other words, so that they win."""
        at = next((at for at, word in enumerate(words) if word.text == "--config"), None)
        if at is None:
            return words
        if sum(word.text == "--config" for word in words) > 1 or at + 1 == len(words):
            self._refuse("RB605", "--config takes one file", words[at])
            return words[:at]
        file = words[at + 1]
        rest = [*words[:at], *words[at + 2 :]]
        added = self._from_file(file)
        front = 0 if module or not rest or rest[0].text.startswith("-") else 1
        if not module and not front and not any(word.text == "--model" for word in added):
            self._refuse("RB605", "neither the command nor the file of --config names a model", words[at])
        return [*rest[:front], *added, *rest[front:]]

    def _from_file(self, file: Word) -> list[Word]:
        if not file.certain:
            return self._not_here(file, "its name is known at run time alone")
        if file.text.rpartition(".")[2] not in ("yaml", "yml"):
            self._refuse("RB605", f"--config takes a .yaml or .yml file, not {file.text}", file)
            return []
        try:
            document = read_source(Path(file.text))
        except SourceError as error:
            self._refuse("RB605", f"--config: {error}", Word(file.text, error.span))
            return []
        except OSError as error:
            return self._not_here(file, f"{error.strerror}")
        return [word for key, value in document.data.items() for word in self._entry(document, str(key), value)]

    def _not_here(self, file: Word, why: str) -> list[Word]:
        message = f"--config {file.text} is not here ({why}), so what it says is not looked at"
        self.remarks.append(Remark("RB608", message, (file,), Level.NOTE))
        self.ignored.append((file, "the file is not here"))
        self.open = True
        return []

    def _entry(self, document: Document, key: str, value: Any) -> Iterator[Word]:
        name, place = f"--{key}", document.key(key)
        if isinstance(value, bool):
            negative = f"--no-{key}"
            if value:
                yield Word(name, place)
            elif self.release.has("false in a config file") and _has(self.release, negative.replace("_", "-")):
                yield Word(negative, place)
            return
        if isinstance(value, list) and not value:
            return
        yield Word(name, place)
        at = document.value(key)
        if isinstance(value, list):
            yield from (Word(str(item), at) for item in value)
        else:
            mapping = isinstance(value, dict) and self.release.has("mappings in a config file")
            yield Word(json.dumps(value) if mapping else str(value), at)

    def replaced(self, words: Sequence[Word]) -> None:
        """JSON that a dotted key of the same option, wherever it stands, brings to nothing."""
        dotted: dict[str, Word] = {}
        for word in words:
            option, dot, _ = word.text.partition("=")[0].partition(".")
            if dot and option.startswith("--"):
                dotted.setdefault(option, word)
        for option, key in dotted.items():
            before = next((word for word in words if word.text.partition("=")[0] == option), None)
            if before is not None:
                self.remarks.append(
                    Remark(
                        "RB607",
                        f"{option}.* is one later {option}, which replaces the JSON that is given: all of that is lost",
                        (before, key),
                        Level.WARNING,
                        fix=f"put everything into one {option}, or write every key with a dot",
                    )
                )

    def unknown(self, arguments: Arguments, words: Sequence[Word]) -> None:
        """Options that the release does not have: refused where that is certain, else listed."""
        for word in words:
            name = word.text.partition("=")[0]
            if not name.startswith("-"):
                if not arguments.refused and not any(flag.text.startswith("-") for flag in words):
                    arguments.refuse("RB605", f"{self.release.title} does not take {word.text!r} here", word)
                continue
            elsewhere = [version for version in table().versions if _has(Release(version), name)]
            near = _NEVER.get(name) or next(iter(get_close_matches(name, _options(self.release.text), 1, _ALIKE)), None)
            if self.named or (not elsewhere and near):
                fix = f"did you mean {near}?" if near else None
                arguments.refuse("RB605", f"{self.release.title} has no option {name}", word, fix=fix)
            else:
                known = f"; {elsewhere[0]} to {elsewhere[-1]} have it" if elsewhere else "; no release known here has"
                arguments.ignored.append((word, f"{self.release.title} has no such option"))
                arguments.remark("RB608", f"{self.release.title} has no option {name}{known}", word, level=Level.NOTE)

    def _refuse(self, code: str, message: str, word: Word) -> None:
        self.remarks.append(Remark(code, message, (word,), refuses=True))


@cache
def _options(version: str) -> Mapping[str, Option]:
    """What each spelling of an option is."""
    return {string: option for option in table().options(version) for string in option.strings}


def _has(release: Release, name: str) -> bool:
    return name in _options(release.text)
