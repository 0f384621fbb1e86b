"""A command taken apart as one release does it: which words are arguments, `--config` files, variables, options."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from rankbind.finding import Level, few
from rankbind.launch.command import Command, Word
from rankbind.launch.draft import Draft
from rankbind.launch.engine import python_module
from rankbind.launch.options import Option, OptionTable, Reading, Refusal, config_words
from rankbind.source import SourceError, parse, read_text
from rankbind_sglang.launch.kinds import KINDS
from rankbind_sglang.launch.rules import Rules

_MODULES = ("sglang.launch_server",)
_SCRIPT = "sglang/launch_server.py"
_TRUE = ("true", "1", "yes", "y")


@cache
def table() -> OptionTable:
    """The options of every release."""
    return OptionTable.load(files("rankbind_sglang.launch").joinpath("options.json"))


def start_of(words: Sequence[str]) -> int | None:
    """The index of the first argument of a command that starts the server; None for one that does not."""
    if not words:
        return None
    module = python_module(words)
    if module is not None:
        name, at = module
        if name in _MODULES:
            return at
        return at + 1 if name == "sglang.cli.main" and words[at : at + 1] == ["serve"] else None
    program = PurePosixPath(words[0])
    if program.name == "sglang":
        return 2 if len(words) > 1 and words[1] == "serve" and not _diffusion(words) else None
    if program.name.startswith("python"):
        script = next((at for at, word in enumerate(words[1:], start=1) if not word.startswith("-")), 0)
        return script + 1 if script and words[script].endswith(_SCRIPT) else None
    return 1 if words[0].endswith(_SCRIPT) else None


def _diffusion(words: Sequence[str]) -> bool:
    """Whether ``sglang serve`` is told to serve a model that makes pictures, whose options are others."""
    return "--model-type=diffusion" in words or ("--model-type", "diffusion") in pairwise(words)


@dataclass(frozen=True)
class Arguments:
    """The arguments of one command.

    Attributes:
        node: which node of its launch it starts, where that can be told.
        untold: by what it would set, the value of an option that only the run time knows. It is left at its default.
        asked: of these, and of variables, what somebody has looked at: the name, the word, and what it is taken for.
    """

    command: Command
    rules: Rules
    reading: Reading
    node: int | None
    _dests: Mapping[str, str] = field(repr=False)
    untold: Mapping[str, Word] = field(default_factory=dict, repr=False)
    asked: dict[str, tuple[Word, str]] = field(default_factory=dict, repr=False, compare=False)

    def has(self, option: str) -> bool:
        """Whether the release has an option, by any of its spellings."""
        return option in self._dests

    def value(self, option: str, default: Any = None) -> Any:
        """What an option is set to; `default` where the release has none of that spelling."""
        if option not in self._dests:
            return default
        found = self.reading.value(self._dests[option])
        if self.known(option):
            return found
        told = "not given" if found in (None, False) else str(found)
        self.asked.setdefault(option, (self.untold[self._dests[option]], f"taken for {told}"))
        return found

    def known(self, option: str) -> bool:
        """Whether an option has not a value that only the run time knows, in place of which its default is read."""
        return self._dests.get(option) not in self.untold

    def untold_of(self, option: str) -> Word:
        """The word that is not `known`."""
        return self.untold[self._dests[option]]

    def unsure(self, name: str, word: Word, taken: str) -> None:
        """Note that the value of `name` cannot be told, and what is assumed."""
        self.asked[name] = word, taken

    def text(self, option: str) -> str | None:
        """As `value`, of an option whose value is text; None also for an empty one."""
        value = self.value(option)
        return str(value) if value else None

    def words(self, *options: str) -> tuple[Word, ...]:
        """The words that set the first of `options` that is set."""
        for option in options:
            if option in self._dests and self.reading.given(self._dests[option]):
                return self.reading.words(self._dests[option])
        return ()

    def certain(self, option: str) -> bool:
        """Whether what an option is set to is what the engine will see."""
        return all(word.certain for word in self.words(option))

    def number(self, variable: str) -> int | None:
        """A variable that holds a number; None where it is not set, or no number."""
        text = self._variable(variable)
        try:
            return int(text) if text else None
        except ValueError:
            return None

    def flag(self, variable: str) -> bool:
        """A variable that is true or false."""
        return (self._variable(variable) or "").lower() in _TRUE

    def _variable(self, name: str) -> str | None:
        word = self.command.environment.get(name)
        if word is None or word.certain:
            return None if word is None else word.text
        self.asked.setdefault(name, (word, "taken for not set"))
        return None

    def variable(self, name: str) -> tuple[Word, ...]:
        """The word of a variable, if it is set."""
        word = self.command.environment.get(name)
        return () if word is None else (word,)


def take_apart(command: Command, rules: Rules, draft: Draft, *, named: bool | None) -> Arguments:
    """The arguments of `command`; what the engine refuses of them, or would not look at, goes to `draft`.

    Args:
        named: whether somebody has said that it is this release; None: nobody has said which one it is. Otherwise it
            is a later one, which may have more options.
    """
    words = list(command.words[start_of(command.texts) or 0 :])
    if PurePosixPath(command.words[0].text).name == "sglang" or "serve" in command.texts[:4]:
        words = _served(words, rules, draft)
    options = table().options(rules.release)
    words = _configured(words, options, rules, draft)
    reading = table().read(words, rules.release, kinds=KINDS)
    dests = {string: option.dest for option in options for string in option.strings}
    untold: dict[str, Word] = {}
    asked: dict[str, tuple[Word, str]] = {}
    for refusal in reading.refusals:
        if refusal.certain:
            _refuse(refusal, draft)
        elif refusal.option != "--node-rank":
            draft.ignored.append((refusal.word, refusal.message))
            if refusal.option in dests:
                untold[dests[refusal.option]] = refusal.word
            else:
                asked[refusal.word.text] = refusal.word, "taken for no option"
    _unknown(words, reading, rules, draft, named=named)
    node = reading.value(dests["--node-rank"]) if reading.given(dests["--node-rank"]) else None
    if any(refusal.option == "--node-rank" and not refusal.certain for refusal in reading.refusals):
        node = None
    node = command.node if node is None else node
    return Arguments(command, rules, reading, node, MappingProxyType(dests), MappingProxyType(untold), asked)


def _served(words: list[Word], rules: Rules, draft: Draft) -> list[Word]:
    """What ``sglang serve`` makes of its words: the kind of model is taken out, the model may stand alone."""
    found: list[Word] = []
    rest = iter(words)
    for word in rest:
        if word.text == "--model-type":
            next(rest, None)
        elif not word.text.startswith("--model-type="):
            found.append(word)
    if found and not found[0].text.startswith("-") and rules.positional_model:
        found.insert(0, Word("--model-path", found[0].span))
    return found


# --config


def _configured(words: list[Word], options: Sequence[Option], rules: Rules, draft: Draft) -> list[Word]:
    """`words` with those of a ``--config`` file in front, as the engine merges it; the file's own pair taken out."""
    at = [index for index, word in enumerate(words) if word.text == "--config"]
    for word in words:
        name, equals, _ = word.text.partition("=")
        if (equals and "--config".startswith(name) and len(name) > 4) or word.text in ("--conf", "--confi"):
            draft.find(
                "RB605",
                f"{name} is accepted, and the file is not read: SGLang looks for the two words --config FILE",
                word,
                level=Level.WARNING,
                fix="write --config FILE",
                flag=name,
            )
    if not at:
        return words
    if len(at) > 1 or at[0] == len(words) - 1:
        message = "--config is given twice" if len(at) > 1 else "--config needs a file"
        draft.refuse("RB605", message, words[at[-1]], flag="--config")
        return [word for index, word in enumerate(words) if index not in at]
    rest = words[: at[0]] + words[at[0] + 2 :]
    return [*_from_file(words[at[0] + 1], options, rules, draft), *rest]


def _from_file(file: Word, options: Sequence[Option], rules: Rules, draft: Draft) -> Sequence[Word]:
    if not file.certain:
        message = f"--config cannot be told: {file.text} is known at run time alone, and so is what it says"
        draft.find("RB609", message, file, level=Level.NOTE, details=["--config: taken for not given"])
        draft.ignored.append((file, "which file that is is known at run time alone"))
        return ()
    if PurePosixPath(file.text).suffix.lower() not in (".yaml", ".yml"):
        draft.refuse("RB605", f"--config takes a .yaml or .yml file, not {file.text!r}", file, flag="--config")
        return ()
    try:
        text = read_text(file.text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"--config {file.text} cannot be read from {Path.cwd()}: {reason}; it is part of the command"
        draft.refuse("RB605", message, file, flag="--config", file=file.text)
        return ()
    try:
        document = parse(text, file.text)
    except SourceError as error:
        draft.refuse("RB605", f"--config {error.span}: {error}", file, flag="--config", file=file.text)
        return ()
    switches, refused = _keys(options, rules)
    for key in document.data:
        if key.replace("-", "_") in refused:
            word = Word(key, document.key(key))
            draft.refuse("RB605", f"{key!r} cannot be given in a --config file: it is no plain option", word, flag=key)

    def spelled(key: str, value: Any) -> Sequence[str]:
        if key.replace("-", "_") in refused:
            return ()
        if isinstance(value, bool):
            if key.replace("-", "_") in switches:
                return (f"--{key}",) if value else ()
            return f"--{key}", str(value).lower()
        if isinstance(value, list):
            return (f"--{key}", *map(str, value)) if value else ()
        as_json = isinstance(value, dict) and rules.config_json
        return f"--{key}", json.dumps(value) if as_json else str(value)

    return config_words(document, spelled)


def _keys(options: Sequence[Option], rules: Rules) -> tuple[set[str], set[str]]:
    """The keys of switches, and those that the merger refuses."""
    switches: set[str] = set()
    plain: set[str] = set()
    odd: set[str] = set()
    for option in options:
        keys = {option.dest}
        if rules.config_aliases:
            keys |= {string[2:].replace("-", "_") for string in option.strings if string.startswith("--")}
        if option.action == "const" and option.const is True:
            switches |= keys
        elif option.action == "store" or (rules.config_aliases and option.nargs is None):
            plain |= keys
        elif "--config" not in option.strings and option.action != "help":
            odd |= keys
    return switches, odd - switches - plain if rules.config_aliases else odd


# What is refused, and what is not known


def _refuse(refusal: Refusal, draft: Draft) -> None:
    option = refusal.option
    facts: dict[str, Any] = {"flag": option or refusal.word.text.partition("=")[0]}
    fix = None
    if refusal.meant:
        facts["ambiguous"] = list(refusal.meant)
        fix = f"write {min(refusal.meant, key=len)}" if len(refusal.meant) > 1 else None
    draft.refuse("RB605", refusal.message, refusal.word, fix=fix, **facts)


def _unknown(words: Sequence[Word], reading: Reading, rules: Rules, draft: Draft, *, named: bool | None) -> None:
    """What no option of the release takes. The engine stops there, if it is that release."""
    places = {id(word): at for at, word in enumerate(words)}
    # What follows a word that is refused may be its value.
    behind = {places.get(id(refusal.word), -2) for refusal in reading.refusals}
    for word in reading.unknown:
        at = places.get(id(word), -2)
        if at - 1 in behind and not word.text.startswith("-"):
            behind.add(at)
            draft.ignored.append((word, f"it belongs to {words[at - 1].text}"))
        elif not word.text.startswith("-"):
            draft.refuse("RB605", f"{word.text!r} belongs to no option", word, flag=word.text)
        else:
            behind.add(at)
            _no_option(word, rules, draft, named=named)


def _no_option(word: Word, rules: Rules, draft: Draft, *, named: bool | None) -> None:
    """An option that the release does not have."""
    name = word.text.partition("=")[0]
    elsewhere = [version for version in table().versions if name in _strings(version)]
    near = None if elsewhere or named is False else _near(name, rules.release)
    reason = f"SGLang {rules.release} has no option {name}" + (f"; {_ranges(elsewhere)} do" if elsewhere else "")
    if named or near is not None:
        draft.refuse("RB605", reason, word, fix=f"write {near}" if near else None, flag=name)
        return
    draft.ignored.append((word, reason))
    fix = f"say which release it is: --engine-version sglang={elsewhere[-1]}" if elsewhere and named is None else None
    draft.find("RB608", f"{name} is not looked at: {reason}", word, level=Level.NOTE, fix=fix, flag=name)


@cache
def _strings(version: str) -> frozenset[str]:
    return frozenset(string for option in table().options(version) for string in option.strings)


def _near(name: str, version: str) -> str | None:
    """The option that is meant by `name`, if one seems to be: ``--tp_size``."""
    known = _strings(version)
    dashed = name.replace("_", "-")
    if dashed in known:
        return dashed
    return next(iter(difflib.get_close_matches(name, sorted(known), 1, 0.85)), None)


def _ranges(versions: Sequence[str]) -> str:
    """``0.5.12 to 0.5.15``."""
    known = table().versions
    return few([run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in _runs(versions, known)])


def _runs(versions: Sequence[str], known: Sequence[str]) -> Iterator[list[str]]:
    run: list[str] = []
    for version in versions:
        if run and known.index(version) != known.index(run[-1]) + 1:
            yield run
            run = []
        run.append(version)
    if run:
        yield run
