"""Where in somebody's code something was asked of rankbind."""

from __future__ import annotations

import sys
from types import FrameType


def call_site() -> str:
    """``file:line`` of the code that called into rankbind."""
    frame = sys._getframe(1)
    while _is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_ours(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__") or ""
    # What a module of ours declares (rankbind.exporter) is a declaration like any other.
    return module == "contextlib" or (module.startswith("rankbind.") and frame.f_code.co_name != "<module>")
