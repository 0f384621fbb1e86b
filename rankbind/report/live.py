"""The claims on a terminal, drawn again in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rankbind.report.status import heading, to_terminal
from rankbind.runtime.registry import Entry


def redraw(look: Callable[[], tuple[str, Sequence[Entry]]], seconds: float, *, colour: bool) -> None:
    """Draw what `look` gives, a line above and the claims below, every so many seconds. Until KeyboardInterrupt."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=not colour, highlight=False)

    def drawn() -> Text:
        summary, found = look()
        width = console.width
        above = heading(f"{time.strftime('%H:%M:%S')} {summary}", width)
        return Text.from_ansi(above + to_terminal(found, width, colour=colour), no_wrap=True, overflow="crop")

    with Live(drawn(), console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            time.sleep(seconds)
            live.update(drawn(), refresh=True)
