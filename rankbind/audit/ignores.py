"""``# rankbind: ignore[RB701] reason``: findings that somebody has looked at and means.

Such a comment is about the statement that it stands in, on whichever of its lines, or about the one directly below. It
takes away the findings of its codes that have any of their labels there.
"""

from __future__ import annotations

import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rankbind.audit.sources import Source
from rankbind.finding import Finding, Label, Level
from rankbind.source import Span

_COMMENT: Final = re.compile(r"#\s*(rankbind\s*:\s*ignore\b)\s*(?:\[([^\]]*)\])?\s*(.*)", re.IGNORECASE)
_HINT: Final = re.compile(rb"rankbind\s*:\s*ignore", re.IGNORECASE)
_NEXT_COMMENT: Final = re.compile(r"(?:^|\s)#(?:\s|noqa|type:|pragma|pylint|pyright|mypy|fmt|nosec).*")
_FORM: Final = "# rankbind: ignore[RB701] why it is meant"
_OUTSIDE: Final = frozenset({tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING})


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment of ours.

    Attributes:
        span: from ``rankbind`` to the end.
        codes: as they are written, in capitals.
        reason: empty where none is given.
        first, last: the lines of the statement it is about; none (``last < first``) where there is nothing below it.
    """

    span: Span
    codes: tuple[str, ...]
    reason: str
    first: int
    last: int


def apply(findings: Sequence[Finding], sources: Sequence[Source]) -> tuple[list[Finding], int]:
    """The findings that no comment takes away, and how many are taken away.

    Added are findings RB707 about comments that are wrong or take nothing away; sorted by place.
    """
    comments = [comment for source in sources for comment in find(source)]
    if not comments:
        return sorted(findings, key=_order), 0
    by_line: dict[tuple[str, int], list[Comment]] = {}
    for comment in comments:
        for line in range(comment.first, comment.last + 1):
            by_line.setdefault((comment.span.file, line), []).append(comment)
    used: set[tuple[Span, str]] = set()
    kept = []
    for finding in findings:
        here = {
            comment.span
            for label in finding.labels
            for comment in by_line.get((label.span.file, label.span.line), ())
            if finding.code in comment.codes
        }
        if here and not finding.code.startswith("RB9"):
            used |= {(span, finding.code) for span in here}
        else:
            kept.append(finding)
    about = [finding for comment in comments for finding in _about(comment, used)]
    return sorted([*kept, *about], key=_order), len(findings) - len(kept)


def find(source: Source) -> list[Comment]:
    """The comments of ours in a file: in its comments only, not in its strings. None where it is no Python."""
    if b"ankbind" not in source.data or _HINT.search(source.data) is None:
        return []
    comments: list[tokenize.TokenInfo] = []
    # The lines of each statement; of one that holds others, those of its head.
    statements: list[tuple[int, int]] = []
    first = 0
    try:
        for token in tokenize.tokenize(io.BytesIO(source.data).readline):
            if token.type == tokenize.COMMENT:
                comments.append(token)
            elif token.type == tokenize.NEWLINE:
                statements.append((first or token.start[0], token.start[0]))
                first = 0
            elif not first and token.type not in _OUTSIDE:
                first = token.start[0]
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        pass  # the analysis says of it that it is no Python
    lines = {token.start[0] for token in comments}
    found = []
    for token in comments:
        match = _COMMENT.search(token.string)
        if match is None:
            continue
        line = token.start[0]
        within = _statement(statements, line)
        if within is None:
            # Comments in lines that follow each other are about the same statement.
            while line + 1 in lines and _statement(statements, line + 1) is None:
                line += 1
            within = _statement(statements, line + 1)
        column = token.start[1] + match.start(1)
        end = len(token.string.rstrip()) - match.start(1)
        codes = [code.strip().upper() for code in (match[2] or "").split(",")]
        found.append(
            Comment(
                Span(source.name, token.start[0], column + 1, max(end, 1)),
                tuple(dict.fromkeys(code for code in codes if code)),
                _NEXT_COMMENT.sub("", match[3]).strip(" -:"),
                *(within or (1, 0)),
            )
        )
    return found


def _statement(statements: Sequence[tuple[int, int]], line: int) -> tuple[int, int] | None:
    at = bisect_right(statements, line, key=lambda lines: lines[0]) - 1
    return statements[at] if at >= 0 and line <= statements[at][1] else None


def _about(comment: Comment, used: set[tuple[Span, str]]) -> Iterator[Finding]:
    """What is wrong with a comment."""
    if not comment.codes:
        yield _finding(comment, "an ignore comment that names no code ignores nothing", Level.WARNING, _FORM)
        return
    idle = [code for code in comment.codes if (comment.span, code) not in used]
    if idle:
        from rankbind.check import codes

        known = codes.titles()
        for code in idle:
            if code.startswith("RB9"):
                yield _finding(comment, f"{code} cannot be ignored: a file with it is not audited", Level.WARNING)
            elif code not in known:
                near = codes.meant(code)
                yield _finding(
                    comment,
                    f"there is no code {code} to ignore",
                    Level.WARNING,
                    f"did you mean {near}?" if near else None,
                )
            else:
                there = "there is no statement below it" if comment.last < comment.first else f"there is no {code} here"
                yield _finding(comment, f"this comment ignores nothing: {there}", Level.NOTE, "take it away")
    if not comment.reason:
        yield _finding(comment, "an ignore comment without a reason", Level.WARNING, _FORM)


def _finding(comment: Comment, message: str, level: Level, fix: str | None = None) -> Finding:
    return Finding(
        "RB707", message, level, labels=(Label(comment.span),), facts={"codes": list(comment.codes)}, fix=fix
    )


def _order(finding: Finding) -> tuple[Span, str]:
    return (finding.labels[0].span if finding.labels else Span("", 1, 1)), finding.code
