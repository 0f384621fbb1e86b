"""What the tools that make the tables of options share: a parser described, and releases put together.

Runs also under the engines' own interpreters, so: the standard library alone, and nothing of rankbind.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Entry = dict[str, Any]
"""An `rankbind.launch.options.Option` as the table has it, without what it has by default."""

_NAMES = {"loads": "json"}
_SIGNS = object()


def described(parser: argparse.ArgumentParser, kind_of: Callable[[argparse.Action], str | None]) -> list[Entry]:
    """The options of a parser.

    Args:
        kind_of: the name of the type of an action's value where it is not the name of its converter.
    """
    assert parser.allow_abbrev, "the engine takes no abbreviations"
    assert parser.prefix_chars == "-", "the engine's options begin with something else"
    assert not parser.fromfile_prefix_chars, "the engine reads arguments from files"
    strings: dict[argparse.Action, list[str]] = {action: [] for action in parser._actions}
    for string, action in parser._option_string_actions.items():
        strings[action].append(string)
    defaults: Entry = {}
    for action in parser._actions:
        if action.default is not argparse.SUPPRESS:
            # Of several actions with one dest the first decides.
            defaults.setdefault(action.dest, action.default)
    defaults |= parser._defaults
    return [_entry(action, spelled, defaults.get(action.dest), kind_of) for action, spelled in strings.items()]


def _entry(
    action: argparse.Action,
    spelled: Sequence[str],
    default: Any,
    kind_of: Callable[[argparse.Action], str | None],
) -> Entry:
    what, const = _does(action)
    entry: Entry = {"dest": action.dest}
    if spelled:
        entry["strings"] = list(spelled)
    if what == "boolean":
        entry["negative"] = [string for string in spelled if _stored(action, [], string) is False]
    if what != "store":
        entry["action"] = what
    nargs = 0 if what == "boolean" else action.nargs
    if nargs is not None:
        entry["nargs"] = nargs
    kind = "str" if nargs == 0 else kind_of(action) or named(action.type)
    if kind != "str":
        entry["kind"] = kind
    choices = None if action.choices is None else list(action.choices)
    if choices is not None:
        entry["choices"] = sorted(choices, key=str) if isinstance(action.choices, set | frozenset) else choices
    if const is not None:
        entry["const"] = const
    if isinstance(default, set | frozenset | tuple):
        default = sorted(default) if not isinstance(default, tuple) else list(default)
    if default is not None and _plain(default):
        entry["default"] = default
    if action.required and (spelled or action.nargs is None):
        entry["required"] = True
    return entry


def _does(action: argparse.Action) -> tuple[str, Any]:
    """What an action does with its value, and its const: found by doing it."""
    name = type(action).__name__
    if isinstance(action, argparse._HelpAction | argparse._VersionAction):
        return "help", True
    if isinstance(action, argparse.BooleanOptionalAction):
        return "boolean", None
    if isinstance(action, argparse._AppendAction):
        return "append", action.const
    if isinstance(action, argparse._StoreAction):
        return "store", action.const if _plain(action.const) else None
    string = action.option_strings[0]
    try:
        stored = _stored(action, [] if action.nargs == 0 else _SIGNS, string)
    except argparse.ArgumentError:
        raise
    except _RefusedError:
        return "refuse", None
    except Exception:
        # It takes its value apart.
        return "store", None
    if stored is _SIGNS:
        return "store", None
    if stored is None:
        return "nothing", None
    if _plain(stored):
        return "const", stored
    raise SystemExit(f"{string}: cannot tell what {name} does: it stores {stored!r}")


class _RefusedError(Exception):
    pass


class _Refusing(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise _RefusedError


def _stored(action: argparse.Action, values: Any, string: str) -> Any:
    namespace = argparse.Namespace()
    action(_Refusing(), namespace, values, string)
    return getattr(namespace, action.dest, None)


def named(convert: Any) -> str:
    """The name of a converter."""
    if convert is None:
        return "str"
    while isinstance(convert, functools.partial):
        convert = convert.func
    name = getattr(convert, "__name__", type(convert).__name__)
    return _NAMES.get(name, name)


def _plain(value: Any) -> bool:
    """Whether JSON gives it back as it is."""
    try:
        return bool(json.loads(json.dumps(value)) == value) and not isinstance(value, tuple)
    except (TypeError, ValueError):
        return False


def together(options: Mapping[str, Sequence[Entry]], **more: Mapping[str, Sequence[Entry]]) -> str:
    """The table of all releases, oldest first: an option a line, with the releases that have it so; `more` likewise."""
    versions = list(options)
    sections = [
        f"{json.dumps(name)}: [\n" + ",\n".join(_lines(entries, versions)) + "\n]"
        for name, entries in {"options": options, **more}.items()
    ]
    return ",\n".join([f'{{"versions": {json.dumps(versions)}', *sections]) + "}\n"


def _lines(releases: Mapping[str, Sequence[Entry]], versions: Sequence[str]) -> list[str]:
    found: list[tuple[str, int, str]] = []
    begun: dict[str, tuple[int, Entry]] = {}
    for at, version in enumerate([*versions, ""]):
        here = {json.dumps(entry, sort_keys=True): entry for entry in releases.get(version, ())}
        for text in [text for text in begun if text not in here]:
            first, entry = begun.pop(text)
            line: Entry = {"dest": entry["dest"]}
            if first:
                line["from"] = versions[first]
            if version:
                line["to"] = versions[at - 1]
            found.append((entry["dest"], first, json.dumps(line | entry, ensure_ascii=False)))
        for text, entry in here.items():
            begun.setdefault(text, (at, entry))
    return [line for _, _, line in sorted(found)]


def answer(parse: Callable[[list[str]], argparse.Namespace]) -> None:
    """For each line of the standard input, a list of words: what `parse` makes of it, a line of JSON.

    ``values`` are those that differ from what the first line came to; of that all are told.
    """
    first: dict[str, Any] | None = None
    for line in sys.stdin:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                values = _shown(vars(parse(json.loads(line))))
        except (Exception, SystemExit) as error:
            told: dict[str, Any] = {"refused": said.getvalue()[-300:] or repr(error)[-300:]}
        else:
            told = {"values": {name: value for name, value in values.items() if not first or first.get(name) != value}}
            first = first or values
        print(json.dumps(told), flush=True)


def _shown(value: Any) -> Any:
    """A value as JSON; of an object, what it is made of."""
    if isinstance(value, dict):
        return {str(key): _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(item) for item in value]
    if dataclasses.is_dataclass(value):
        fields = {about.name: getattr(value, about.name, None) for about in dataclasses.fields(value)}
        return {"=": type(value).__name__, **_shown(fields)}
    return value if value is None or isinstance(value, bool | int | float | str) else {"=": repr(value)}
