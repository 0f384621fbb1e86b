"""The options of what starts other commands: enough to find where the command begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankbind.launch.sources.placed import Text


@dataclass(frozen=True, slots=True)
class Options:
    """Which options of a program take no value; all others do.

    Attributes:
        flags: long options without a value, as one text.
        short_flags: short options without a value.
        names: short options that are long ones as well.
        single_dash: whether long options may have one dash (mpirun).
    """

    flags: str = ""
    short_flags: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    single_dash: bool = False

    def read(self, words: Sequence[Text]) -> tuple[list[tuple[str, Text]], int]:
        """The options with their values, in order (a flag is its own value), and the index of the first other word."""
        found: list[tuple[str, Text]] = []
        flags = frozenset(self.flags.split())
        at = 0
        while at < len(words):
            word = words[at]
            text = word.text
            if word.opaque:  # "$OPTIONS"
                at += 1
                continue
            if text == "--":
                at += 1
                break
            if not text.startswith("-") or text == "-":
                break
            at += 1
            if text.startswith("--") or (self.single_dash and len(text) > 2):
                name, equals, value = text.lstrip("-").partition("=")
                if equals:
                    found.append((name, word.part(len(text) - len(value), len(text))))
                elif name in flags or at == len(words):
                    found.append((name, word))
                else:
                    found.append((name, words[at]))
                    at += 1
                continue
            for index, letter in enumerate(text[1:], start=1):
                name = self.names.get(letter, letter)
                if letter in self.short_flags:
                    found.append((name, word))
                    continue
                if index + 1 < len(text):
                    found.append((name, word.part(index + 1 + (text[index + 1] == "="), len(text))))
                elif at < len(words):
                    found.append((name, words[at]))
                    at += 1
                break
        return found, at
