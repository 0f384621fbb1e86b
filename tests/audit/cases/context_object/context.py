"""What the parts of a scheduler are told about their place."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReporterContext:
    port: int
    dp_rank: int
    is_owner: bool = False
