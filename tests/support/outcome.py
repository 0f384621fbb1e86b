"""What a call comes to: its result, or the error that it raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def outcome(call: Callable[[], T], *errors: type[E]) -> T | E:
    try:
        return call()
    except errors as error:
        return error
