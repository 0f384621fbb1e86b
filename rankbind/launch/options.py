"""A command line taken apart as the engine's own argparse does: prefixes, aliases, choices, refusals.

An `OptionTable` says which options each release of an engine has; a parser made of them by Python's argparse reads the
words, so that what is accepted and what it comes to is what the engine would make of it. argparse tells neither which
words it took for what nor more than the first thing that it does not like: a scan of the words adds that, for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rankbind.launch.command import TYPED, Word
from rankbind.source import Document, Span

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from importlib.resources.abc import Traversable

_NEGATIVE = re.compile(r"-\d+\Z|-\d*\.\d+\Z")
_VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")
_CHOICES_SHOWN = 12
_TAKES = {"int": "an integer", "float": "a number", "json": "JSON"}
_DEFAULT_KINDS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "json": json.loads,
}


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One option of a release.

    Attributes:
        dest: the name of its value.
        strings: how it is spelled; none where it is positional.
        nargs: as argparse has it; 0 where it takes no value.
        kind: the name of the type of its value.
        default: None also where it is nothing that JSON can hold.
        choices: the values it takes, None where that is not limited.
        const: what it sets, where it takes no value or may be given without.
        action: what it does with its value: ``store``, ``append``, ``const``, ``boolean``, ``help`` (and the engine
            stops), ``refuse`` (the engine stops, and says what to use instead), ``nothing``.
        required: whether it must be given.
        negative: those of `strings` that set a ``boolean`` to False.
    """

    dest: str
    strings: tuple[str, ...] = ()
    nargs: int | str | None = None
    kind: str = "str"
    default: Any = None
    choices: tuple[Any, ...] | None = None
    const: Any = None
    action: str = "store"
    required: bool = False
    negative: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The first spelling, or what the positional one is called."""
        return self.strings[0] if self.strings else self.dest


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of an option, and the words that set it: the option's own first. None where it is the default."""

    value: Any
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the engine stops at a word.

    Attributes:
        message: for people, without the engine's name: ``--tp-size takes an integer, not 'two'``.
        word: the word; where an option is missing, the last of all.
        option: its name, as the release spells it; empty where the word names none.
        meant: the options that an abbreviation could be, if it could be several.
        certain: False where the engine may well go on: what it will see cannot be told.
    """

    message: str
    word: Word
    option: str = ""
    meant: tuple[str, ...] = ()
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """A command line taken apart.

    Attributes:
        settings: every option of the release by its dest. One at which the engine stops has its default as value.
        refusals: where there are any, the engine stops; see `Refusal.certain`.
        unknown: words that no option takes. The engine stops at those as well.
    """

    settings: Mapping[str, Setting]
    refusals: tuple[Refusal, ...] = ()
    unknown: tuple[Word, ...] = ()

    def value(self, dest: str, default: Any = None) -> Any:
        """What an option is set to; `default` where the release has no such option."""
        setting = self.settings.get(dest)
        return default if setting is None else setting.value

    def words(self, dest: str) -> tuple[Word, ...]:
        """The words that set an option; none where it has its default."""
        setting = self.settings.get(dest)
        return () if setting is None else setting.words

    def given(self, dest: str) -> bool:
        """Whether words set an option."""
        return bool(self.words(dest))


class OptionTable:
    """The options of every release of an engine.

    Attributes:
        versions: the releases, oldest first.
    """

    def __init__(self, versions: Sequence[str], options: Mapping[str, Sequence[Option]]) -> None:
        self.versions = tuple(versions)
        self._options = {version: tuple(options[version]) for version in versions}
        self._parsers: dict[tuple[str, frozenset[tuple[str, Callable[[str], Any]]]], ArgumentParser] = {}

    @classmethod
    def load(cls, resource: Traversable) -> OptionTable:
        """A table from its file: ``versions``, and ``options`` with the ranges of releases that have each of them.

        ``default``, ``from`` and ``to`` are left out where they are None, the oldest and the newest release.
        """
        data = json.loads(resource.read_text(encoding="utf-8"))
        versions: list[str] = data["versions"]
        options: dict[str, list[Option]] = {version: [] for version in versions}
        for entry in data["options"]:
            first, last = entry.pop("from", versions[0]), entry.pop("to", versions[-1])
            for key in ("strings", "choices", "negative"):
                if key in entry:
                    entry[key] = tuple(entry[key])
            option = Option(**entry)
            for version in versions[versions.index(first) : versions.index(last) + 1]:
                options[version].append(option)
        return cls(versions, options)

    def options(self, version: str) -> tuple[Option, ...]:
        """The options of a release, one of `versions`."""
        return self._options[version]

    def read(
        self, words: Sequence[Word], version: str, *, kinds: Mapping[str, Callable[[str], Any]] | None = None
    ) -> Reading:
        """What a release makes of the arguments `words`.

        Args:
            version: one of `versions`.
            kinds: how values of the engine's own types are read, by `Option.kind`; those that are neither among these
                nor ``str``, ``int``, ``float``, ``bool``, ``json`` are taken as they are written.
        """
        kinds = kinds or {}
        key = version, frozenset(kinds.items())
        if key not in self._parsers:
            self._parsers[key] = _parser(self._options[version], kinds)
        return _read(tuple(words), self._options[version], self._parsers[key])


class _StopError(Exception):
    """argparse does not go on."""


def _parser(options: tuple[Option, ...], kinds: Mapping[str, Callable[[str], Any]]) -> ArgumentParser:
    """argparse's own parser of `options`. It requires nothing: what is missing is looked for elsewhere."""
    import argparse

    formatter = argparse.HelpFormatter("")

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise _StopError(message)

        def _get_formatter(self) -> argparse.HelpFormatter:
            # Each option that is added is formatted once, as a check: a third of the time, for nothing but a width.
            return formatter

    class Boolean(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            setattr(namespace, self.dest, option_string not in self.const)

    class Constant(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            setattr(namespace, self.dest, self.const)

    class Refuse(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            raise argparse.ArgumentError(self, "no longer")

    class Nothing(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            pass

    actions: dict[str, Any] = {
        "boolean": Boolean,
        "const": Constant,
        "help": Constant,
        "refuse": Refuse,
        "nothing": Nothing,
    }
    known = {**_DEFAULT_KINDS, **kinds}
    parser = Parser(prog="", add_help=False, exit_on_error=False)
    for option in options:
        named: dict[str, Any] = {"dest": option.dest} if option.strings else {}
        parser.add_argument(
            *(option.strings or (option.dest,)),
            **named,
            action=actions.get(option.action, option.action),
            nargs="?" if not option.strings and option.nargs is None else option.nargs,
            const=option.negative if option.action == "boolean" else option.const,
            default=option.default,
            type=_guarded(known.get(option.kind, str)),
            choices=option.choices,
        )
    return parser


def _guarded(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """`convert`, whatever it raises a ValueError: the engine stops at a value one way or the other."""

    def guarded(text: str) -> Any:
        try:
            return convert(text)
        except Exception as error:
            raise ValueError(str(error)) from error

    return guarded


@dataclass(frozen=True, slots=True)
class _Use:
    """An option on the command line: the word that names it and those of its values.

    `string` is how the table spells it. Without an option: an abbreviation of several, `meant`.
    """

    words: tuple[Word, ...]
    option: Option | None = None
    string: str = ""
    explicit: str | None = None
    meant: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        return (self.explicit,) if self.explicit is not None else tuple(word.text for word in self.words[1:])


@dataclass(slots=True)
class _Scan:
    """What each word of a command line is to argparse: of an option, or loose; `divider` is the first ``--``."""

    words: tuple[Word, ...]
    options: tuple[Option, ...]
    uses: list[_Use] = field(default_factory=list)
    loose: list[Word] = field(default_factory=list)
    divider: Word | None = None

    def __post_init__(self) -> None:
        strings = {string: option for option in self.options for string in option.strings}
        negatives = any(_NEGATIVE.match(string) for string in strings)
        stop = next((at for at, word in enumerate(self.words) if word.text == "--"), len(self.words))
        self.divider = self.words[stop] if stop < len(self.words) else None
        found = [self._use(word, strings, negatives) for word in self.words[:stop]]
        at = 0
        while at < stop:
            use = found[at]
            at += 1
            if use is None or (use.option is None and not use.meant):
                self.loose.append(self.words[at - 1])
                continue
            if use.explicit is None:
                # Behind an abbreviation of several options stands what one of them would take.
                most = max(_most(strings[string]) for string in (use.meant or (use.string,)))
                first = at
                while at < stop and found[at] is None and at - first < most:
                    at += 1
                use = replace(use, words=(use.words[0], *self.words[first:at]))
            self.uses.append(use)
        self.loose += self.words[stop:]

    @staticmethod
    def _use(word: Word, strings: Mapping[str, Option], negatives: bool) -> _Use | None:
        """The option that a word names, alone; none in it where it looks like one; None for a value."""
        text = word.text
        if not text.startswith("-"):
            return None
        if text in strings:
            return _Use((word,), strings[text], text)
        if text == "-":
            return None
        name, equals, value = text.partition("=")
        explicit = value if equals else None
        if equals and name in strings:
            return _Use((word,), strings[name], name, explicit)
        fitting = {string: explicit for string in strings if string.startswith(name)}
        if not text.startswith("--"):
            fitting |= {string: text[2:] for string in strings if string == text[:2]}
        if len(fitting) == 1:
            [(string, explicit)] = fitting.items()
            return _Use((word,), strings[string], string, explicit)
        if fitting:
            return _Use((word,), explicit=explicit, meant=tuple(fitting))
        if (_NEGATIVE.match(text) and not negatives) or " " in text:
            return None
        return _Use((word,))


def _most(option: Option) -> float:
    """How many values an option takes at most."""
    if option.nargs is None or option.nargs == "?":
        return 1
    return option.nargs if isinstance(option.nargs, int) else float("inf")


def _read(words: tuple[Word, ...], options: tuple[Option, ...], parser: ArgumentParser) -> Reading:
    scan = _Scan(words, options)
    refusals: list[Refusal] = []
    left_out: set[int] = set()
    try:
        values, extras = _parse(parser, words)
    except _StopError as stop:
        for use in scan.uses:
            refusal = _refusal(use, parser)
            if refusal is not None:
                refusals.append(refusal)
                left_out |= {id(word) for word in use.words}
        try:
            values, extras = _parse(parser, [word for word in words if id(word) not in left_out])
        except _StopError:
            refusals.append(Refusal(str(stop), words[0]))
            values, extras = _parse(parser, ())
    loose = _matching(scan.loose, extras)
    refusals += [Refusal(_untold(word), word, certain=False) for word in loose if not word.certain]
    setters = _setters(scan, loose)
    last = words[-1] if words else Word("", Span(TYPED, 1, 1))
    refusals += [
        Refusal(f"{option.name} is missing", last, option.name)
        for option in options
        if option.required and option.dest not in setters
    ]
    places = {id(word): at for at, word in enumerate(words)}
    refusals.sort(key=lambda refusal: places.get(id(refusal.word), len(words)))
    settings = {option.dest: Setting(values.get(option.dest), setters.get(option.dest, ())) for option in options}
    unknown = tuple(word for word in loose if word.certain)
    return Reading(MappingProxyType(settings), tuple(refusals), unknown)


def _setters(scan: _Scan, unknown: Sequence[Word]) -> dict[str, tuple[Word, ...]]:
    """By dest, the words that set it; `unknown` set nothing."""
    setters: dict[str, tuple[Word, ...]] = {}
    for use in scan.uses:
        if use.option is not None and use.option.action != "nothing":
            before = setters.get(use.option.dest, ()) if use.option.action == "append" else ()
            setters[use.option.dest] = (*before, *use.words)
    left = {id(word) for word in unknown}
    taken = [word for word in scan.loose if id(word) not in left and word is not scan.divider]
    for option in scan.options:
        if not option.strings and taken:
            share = int(min(_most(option), len(taken)))
            setters[option.dest], taken = tuple(taken[:share]), taken[share:]
    return setters


def _parse(parser: ArgumentParser, words: Sequence[Word]) -> tuple[dict[str, Any], list[str]]:
    import argparse

    try:
        namespace, extras = parser.parse_known_args([word.text for word in words])
    except argparse.ArgumentError as error:
        raise _StopError(str(error)) from None
    return vars(namespace), extras


def _accepts(parser: ArgumentParser, words: Sequence[Word]) -> bool:
    try:
        _parse(parser, words)
    except _StopError:
        return False
    return True


def _matching(words: Sequence[Word], texts: Sequence[str]) -> list[Word]:
    """Those of `words` whose texts argparse has left over, in their order; the later ones where a text recurs."""
    left = list(texts)
    found = []
    for word in reversed(words):
        if word.text in left:
            left.remove(word.text)
            found.append(word)
    return found[::-1]


def _refusal(use: _Use, parser: ArgumentParser) -> Refusal | None:
    """Why the engine stops at `use`; None where it does not."""
    word = use.words[0]
    option = use.option
    if option is None:
        if not word.certain:
            return Refusal(_untold(word), word, certain=False)
        return Refusal(f"{word.text.partition('=')[0]} could be {_listed(use.meant)}", word, "", use.meant)
    if _accepts(parser, use.words):
        return None
    uncertain = next((word for word in use.words if not word.certain), None)
    if uncertain is not None:
        return Refusal(_untold(uncertain), uncertain, use.string, certain=False)
    message, culprit = _explained(use, option, parser)
    return Refusal(message, culprit, use.string)


def _explained(use: _Use, option: Option, parser: ArgumentParser) -> tuple[str, Word]:
    word, values = use.words[0], use.values
    if option.action == "refuse":
        return f"{use.string} is no longer an option", word
    if option.nargs == 0:
        return f"{use.string} takes no value", word
    least = option.nargs if isinstance(option.nargs, int) else {"?": 0, "*": 0}.get(option.nargs or "", 1)
    if len(values) < least:
        needs = "a value" if option.nargs is None else f"{least} values" if least > 1 else "at least one value"
        return f"{use.string} needs {needs}", word
    for at, value in enumerate(values):
        culprit = word if use.explicit is not None else use.words[at + 1]
        alone = [word] if use.explicit is not None else [word, *[culprit] * max(1, least)]
        if not _accepts(parser, alone):
            if option.choices is not None:
                return f"{use.string} is {_listed(tuple(map(str, option.choices)))}, not {value!r}", culprit
            takes = _TAKES.get(option.kind.removesuffix("?"))
            told = f"takes {takes}, not {value!r}" if takes else f"does not take {value!r}"
            return f"{use.string} {told}", culprit
    return f"{use.string} does not take {' '.join(values)!r}", word


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_CHOICES_SHOWN])
    if len(names) > len(shown):
        return f"{', '.join(shown)} or {len(names) - len(shown)} others"
    return f"{', '.join(shown[:-1])} or {shown[-1]}" if len(shown) > 1 else "".join(shown)


def _untold(word: Word) -> str:
    """What is to be said of a word whose text the engine will not see."""
    names = [braced or bare for braced, bare in _VARIABLE.findall(word.text)]
    if not names:
        return f"cannot be told: {word.text} is known at run time alone"
    named = _listed_and([f"${name}" for name in dict.fromkeys(names)])
    return f"cannot be told: {named} {'is' if len(set(names)) == 1 else 'are'} not set here"


def _listed_and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def config_words(document: Document, spelled: Callable[[str, Any], Sequence[str]]) -> tuple[Word, ...]:
    """The words that a configuration file (a mapping) stands for, each placed at the key or the value it comes from.

    Args:
        spelled: the words of a key with its value, as the engine makes them: the option first. None, for none.
    """
    words: list[Word] = []
    for key, value in document.data.items():
        for at, text in enumerate(spelled(key, value)):
            words.append(Word(text, document.value(key) if at else document.key(key)))
    return tuple(words)
