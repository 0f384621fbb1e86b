"""What a rehearsal may have left behind, taken away."""

from __future__ import annotations

import contextlib
import shutil
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from rankbind.rehearse import holder
from rankbind.rehearse.script import Order


def sweep(order: Order, bound: Iterable[str | None] = (), patience: float = 0.0) -> None:
    """Take away the folder of a rehearsal, and its sockets that nobody listens on any more.

    Args:
        bound: real endpoints, those that are no files among them.
        patience: seconds to wait for whoever listens on one of its sockets, and may be dying.
    """
    shutil.rmtree(order.folder, ignore_errors=True)
    files = [each.removeprefix("ipc://") for each in bound if each is not None and each.startswith("ipc://")]
    until = time.monotonic() + patience
    for path in (*order.paths, *files):
        with contextlib.suppress(OSError):
            while stat.S_ISSOCK(Path(path).lstat().st_mode):
                if holder.in_the_way(path) is None:
                    Path(path).unlink()
                elif time.monotonic() >= until:
                    break
                else:
                    time.sleep(0.02)
