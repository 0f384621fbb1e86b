"""Codes of findings as a user types them."""

from __future__ import annotations

from collections.abc import Iterable

import click


def ignorable(given: Iterable[str]) -> frozenset[str]:
    """The codes to leave out; UsageError for one there is not, or that no run goes on without."""
    skip = frozenset(map(known_code, given))
    unskippable = sorted(code for code in skip if code.startswith("RB9"))
    if unskippable:
        raise click.UsageError(f"{unskippable[0]} cannot be ignored: a file with it is not checked at all")
    return skip


def known_code(given: str) -> str:
    """A finding's code as it is written in pages; UsageError for one there is not."""
    from rankbind.check import codes

    known = codes.titles()
    code = given.upper()
    if code in known:
        return code
    near = codes.meant(code)
    hint = f"did you mean {near} ({known[near]})? " if near else ""
    raise click.UsageError(f"there is no code {given}; {hint}`rankbind explain` lists them all")
