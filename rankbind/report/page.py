"""The page of a code on a terminal."""

from __future__ import annotations

import re
from io import StringIO


def render(page: str, width: int, *, colour: bool) -> str:
    """A Markdown page set for a terminal of `width` columns."""
    from rich.console import Console
    from rich.markdown import Markdown

    # The words that mark an example stand where only a program would see them.
    page = re.sub(r"^```(\w+) bad$", r"Bad:\n\n```\1", page, flags=re.MULTILINE)
    page = re.sub(r"^```(\w+) good$", r"Good:\n\n```\1", page, flags=re.MULTILINE)
    stream = StringIO()
    console = Console(
        file=stream,
        width=min(width, 100),
        color_system="standard" if colour else None,
        force_terminal=colour,
        legacy_windows=False,
    )
    console.print(Markdown(page, code_theme="ansi_dark"))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().split("\n")).rstrip("\n") + "\n"
