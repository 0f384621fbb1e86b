"""What is claimed, and what that is called in the runtime directory."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

_NAME_BYTES = 200
"""Of the 255 that a file name may have, leaving room for a suffix."""


@dataclass(frozen=True, slots=True)
class Key:
    """One resource, of one group, of one deployment.

    Attributes:
        group: index on each axis the resource exists once for; empty for one in all.
    """

    deployment: str
    resource: str
    group: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # True is 1, and numpy has integers of its own: one group must not have two names.
        group = {axis: operator.index(index) for axis, index in self.group.items()}
        object.__setattr__(self, "group", MappingProxyType(group))

    def __reduce__(self) -> tuple[Any, ...]:
        return Key, (self.deployment, self.resource, dict(self.group))

    def __hash__(self) -> int:
        return hash((self.deployment, self.resource, frozenset(self.group.items())))

    def __str__(self) -> str:
        at = ",".join(f"{axis}={index}" for axis, index in sorted(self.group.items()))
        return f"{self.deployment}/{self.resource}{f'[{at}]' if at else ''}"

    @property
    def file_name(self) -> str:
        """Its name in the runtime directory, without a suffix. Different keys have different ones."""
        # What separates the parts may also be in them.
        group = {axis.translate(_ESCAPED): index for axis, index in self.group.items()}
        return file_name(str(Key(self.deployment.translate(_ESCAPED), self.resource.translate(_ESCAPED), group)))


_ESCAPED = str.maketrans({char: f"%{ord(char):02X}" for char in "%/[],="})


def file_name(text: str) -> str:
    """A name for a file, without a suffix. Different texts have different ones."""
    name = quote(text, safe="=,[]+", errors="surrogatepass")
    if len(name) <= _NAME_BYTES:
        return name
    # Longer than any that is not cut short, and so equal to none.
    return f"{name[: _NAME_BYTES - 40]}~{digest(text)}"


def digest(text: str) -> str:
    """What stands for a text of any length in a file's name. Different texts have different ones."""
    from hashlib import sha256

    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:40]
