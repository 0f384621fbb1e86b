"""Reads the table of `Settings`, with the place of everything that is wrong in it.

Apart from `rankbind.audit.settings` because it needs pydantic, which takes longer to import than all else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr, ValidationError
from pydantic_core import ErrorDetails

from rankbind import config, python
from rankbind.audit.settings import Settings
from rankbind.check import codes
from rankbind.finding import Finding, Label
from rankbind.source import Document, KeyPath, SourceError, Span, parse, read_text

_TABLE: Final = ("tool", "rankbind", "audit")


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


_Texts = Annotated[list[StrictStr], BeforeValidator(_as_list)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    axes: dict[str, StrictStr] = {}
    order: _Texts = []
    profile: Literal["torch", "sglang", "vllm", "megatron"] | None = None
    creations: dict[str, StrictStr | Annotated[StrictInt, Field(ge=0)]] = {}
    exclude: _Texts = []
    ignore: _Texts = []


def read(path: Path) -> Settings:
    """The settings in the file at `path`.

    Raises:
        ConfigError: it cannot be read, has no ``[tool.rankbind.audit]``, or that is wrong.
    """
    file = python.shown(path)
    try:
        document = parse(read_text(path), file)
    except SourceError as error:
        raise config.refuse([Finding("RB901", str(error), labels=(Label(error.span),))]) from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        message = f"cannot read {file}: {reason}"
        raise config.refuse([Finding("RB901", message, labels=(Label(Span(file, 1, 1)),))]) from None
    data = document.at(_TABLE)
    if data is None:
        message = f"there is no [{'.'.join(_TABLE)}] in {file}"
        raise config.refuse([Finding("RB903", message, labels=(Label(Span(file, 1, 1)),))])
    try:
        table = _Table.model_validate(data)
    except ValidationError as error:
        raise config.refuse([*_explained(document, error.errors(include_url=False))]) from None
    wrong = [*_wrong(table, document)]
    if wrong:
        raise config.refuse(wrong)
    return Settings(
        table.axes,
        tuple(table.order),
        table.profile,
        {name: str(argument) for name, argument in table.creations.items()},
        tuple(table.exclude),
        tuple(code.upper() for code in table.ignore),
    )


def _explained(document: Document, details: Sequence[ErrorDetails]) -> Iterator[Finding]:
    """Each error once: of a choice between types, pydantic tells why it is neither."""
    seen: set[Span] = set()
    for detail in details:
        finding = config.explain(document, detail, _known, _TABLE)
        if finding.labels[0].span not in seen:
            seen.add(finding.labels[0].span)
            yield finding


def _known(path: KeyPath) -> Iterable[str]:
    return _Table.model_fields


def _wrong(table: _Table, document: Document) -> Iterator[Finding]:
    """What is of the right type and means nothing."""
    for pattern, axis in table.axes.items():
        if not pattern.strip():
            yield _finding("an empty name is the coordinate of no axis", document.key(*_TABLE, "axes", pattern))
        if not axis.isidentifier():
            yield _finding(f"{axis!r} is no name of an axis", document.value(*_TABLE, "axes", pattern))
    for at, axis in enumerate(table.order):
        if not axis.isidentifier() or axis in table.order[:at]:
            what = "is given twice" if axis.isidentifier() else "is no name of an axis"
            yield _finding(f"{axis!r} {what}", _element(document, "order", at))
    for pattern, argument in table.creations.items():
        if not (str(argument).isidentifier() or str(argument).isdecimal()):
            message = f"{argument!r} is neither the name of an argument nor its place"
            yield _finding(message, document.value(*_TABLE, "creations", pattern))
    for at, pattern in enumerate(table.exclude):
        if not pattern.strip("/. "):
            yield _finding(f"{pattern!r} would leave out everything", _element(document, "exclude", at))
    known = codes.titles()
    for at, code in enumerate(table.ignore):
        span = _element(document, "ignore", at)
        if code.upper().startswith("RB9"):
            yield _finding(f"{code} cannot be ignored: a file with it is not audited at all", span)
        elif code.upper() not in known:
            near = codes.meant(code.upper())
            yield _finding(f"there is no code {code!r}", span, f"did you mean {near}?" if near else None)


def _element(document: Document, key: str, at: int) -> Span:
    several = isinstance(document.at((*_TABLE, key)), list)
    return document.value(*_TABLE, key, *((at,) if several else ()))


def _finding(message: str, span: Span, fix: str | None = None) -> Finding:
    return Finding("RB903", message, labels=(Label(span),), fix=fix)
