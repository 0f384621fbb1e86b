"""What all commands do with what they have to say."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click

FORMATS = click.Choice(["text", "json"])
_BROKEN_PIPE = 141


def columns() -> int | None:
    """Columns of standard output; None where it is no terminal."""
    from rankbind.report.style import width_of

    return width_of(sys.stdout)


def colours() -> bool:
    """Whether standard output shows colours, and may."""
    from rankbind.report.style import wants_colour

    return wants_colour(sys.stdout)


def write(text: str) -> None:
    """Text to standard output; a reader who has gone is no error of ours, a full disk is one of the user's."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence()
        raise SystemExit(_BROKEN_PIPE) from None
    except OSError as error:
        _silence()
        raise click.ClickException(f"cannot write the report: {error.strerror or error}") from None


def _silence() -> None:
    # Python flushes once more at exit, and would complain then.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
