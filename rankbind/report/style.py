"""Terminal text: styled pieces, cell widths, wrapping, and characters that must not reach a terminal as they are.

Nothing here needs rich until a colour is painted or a character outside ASCII is measured.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO, TypeAlias

Piece: TypeAlias = tuple[str, str]
"""A style (rich's words: ``bold red``; empty for none) and a text."""

Row: TypeAlias = Sequence[Piece]

_ONE_PIECE = re.compile(r"(?<![^ ])(?:[\w-]+ = )?\{[^{}]*\}[^ ]*")
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: a terminal that is not dumb, unless the environment says otherwise.

    ``NO_COLOR`` goes before ``FORCE_COLOR``; empty, and ``FORCE_COLOR=0``, they count as not set.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal behind `stream`, or ``COLUMNS``; None for a pipe or a file, where nothing is wrapped."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def paint(rows: Iterable[Row], *, colour: bool) -> str:
    """The rows as text, each ended by a newline, without trailing spaces."""
    if not colour:
        return "".join("".join(text for _, text in row).rstrip() + "\n" for row in rows)
    from rich.color import ColorSystem
    from rich.style import Style

    lines = []
    for row in rows:
        pieces = [(style, text) for style, text in row if text]
        while pieces and not pieces[-1][1].strip():
            pieces.pop()
        lines.append(
            "".join(
                Style.parse(style).render(text, color_system=ColorSystem.STANDARD) if style else text
                for style, text in pieces
            )
        )
    return "".join(f"{line}\n" for line in lines)


def safe(text: str) -> str:
    """`text` with control characters, lone surrogates and text-direction marks written as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(char) if _unsafe(char) else char for char in text)


def cells(text: str) -> int:
    """How many columns `text` takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrap(text: str, width: int | None, then: int | None = None) -> list[str]:
    """`text` in lines of at most `width` columns, broken at spaces and inside words only where one is longer.

    Args:
        then: columns of every line after the first, where they are fewer.
    """
    if width is None or cells(text) <= width:
        return [text]
    limit, rest = max(width, 1), max(width if then is None else then, 1)
    lines: list[str] = []
    line = ""
    for word in _words(text, min(limit, rest)):
        joined = f"{line} {word}" if line else word
        if cells(joined) <= limit:
            line = joined
            continue
        if line:
            lines.append(line)
            limit = rest
        while cells(word) > limit:
            cut = _fit(word, limit)
            lines.append(word[:cut])
            word = word[cut:]
            limit = rest
        line = word
    return [*lines, line] if line else lines


def _words(text: str, width: int) -> Iterator[str]:
    """The words of `text`; what would have to be copied in one piece, ``key = { ... }``, is one word where it fits."""
    at = 0
    for piece in _ONE_PIECE.finditer(text):
        if cells(piece[0]) <= width:
            yield from text[at : piece.start()].split(" ")[:-1]
            yield piece[0]
            at = piece.end() + 1
    if at <= len(text):
        yield from text[at:].split(" ")


def _fit(word: str, width: int) -> int:
    used = 0
    for index, char in enumerate(word):
        used += cells(char)
        if used > width:
            return max(index, 1)
    return len(word)


def _unsafe(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in _BIDIRECTIONAL


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
