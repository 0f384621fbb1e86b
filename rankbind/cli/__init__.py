"""The command ``rankbind``.

Exit status: 0 clean, 1 findings, 2 could not check. Everything but click is imported when it is needed, so that
``rankbind --version`` is quick.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from rankbind.cli import audit, claims, files
from rankbind.version import __version__

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command and end the process. No traceback is shown, unless ``RANKBIND_DEBUG`` asks for it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Closed by whoever started us. It stays open as long as the process lives.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # What the terminal cannot show is escaped rather than fatal.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if "audit" in sys.argv[1:2]:
        # The process ends with its audit: to look for what could be given back takes longer than it is worth.
        gc.disable()
        atexit.register(gc.freeze)
    try:
        status = cli.main(prog_name="rankbind", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = 2
    except (click.Abort, KeyboardInterrupt):
        status = _INTERRUPTED
    except Exception as error:
        status = _unexpected(error)
    sys.exit(status if isinstance(status, int) else 0)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rankbind", message="%(prog)s %(version)s")
def cli() -> None:
    """Say once who owns a resource of a distributed job, and prove it before launch.

    Exit status: 0 clean, 1 findings, 2 could not check.
    """


for _command in (
    files.check,
    files.plan,
    files.export,
    files.rehearse,
    files.explain,
    audit.audit,
    claims.status,
    claims.endpoints,
    claims.release,
):
    cli.add_command(_command)


def _unexpected(error: Exception) -> int:
    import traceback

    if os.environ.get("RANKBIND_DEBUG"):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    message = " ".join(str(error).split())[:200]
    told = f"{type(error).__name__}{': ' + message if message else ''}{where}"
    print(
        f"rankbind: a bug of rankbind, not of your file: {told}; please report it with the file "
        "and the traceback that RANKBIND_DEBUG=1 shows",
        file=sys.stderr,
    )
    return 2
