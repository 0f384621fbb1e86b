"""A stand-in for the analysis, for tests of what is done with its findings.

It takes every line with ``bind(`` for a creation, and one that does not say ``pp`` for one that forgets it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from rankbind.audit import Audit, Gate, Site
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source, text
from rankbind.finding import Finding, Label
from rankbind.source import Span


def run(sources: Sequence[Source], settings: Settings, *, listing: bool = False) -> Audit:
    findings: list[Finding] = []
    sites: list[Site] = []
    gates: list[Gate] = []
    for source in sources:
        try:
            ast.parse(source.data)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            findings.append(Finding("RB901", f"not Python: {error}", labels=(Label(Span(source.name, line, 1)),)))
            continue
        for number, line in enumerate(text(source).split("\n"), start=1):
            code = line.partition("#")[0]
            for span, what in _found(source.name, number, code):
                if what == "gate":
                    gates.append(Gate(span, "f", "if", None, ("tp",), ("tp",), code.strip()))
                    continue
                free = () if "pp" in code else ("pp",)
                sites.append(Site(span, "f", "zmq bind", ("tp",), (), free, False, "tp = 0", "endpoint"))
                if free:
                    message = f"ranks 0, 1 bind the same address: nothing tells {', '.join(free)} apart"
                    label = Label(span, "created here")
                    findings.append(Finding("RB701", message, labels=(label,), facts={"axes": list(free)}))
    findings.sort(key=lambda finding: (finding.labels[0].span, finding.code))
    return Audit(tuple(findings), tuple(sites), tuple(gates) if listing else (), len(sources))


def _found(name: str, number: int, code: str) -> Iterator[tuple[Span, str]]:
    for match in re.finditer(r"[\w.]*bind\(.*", code):
        yield Span(name, number, match.start() + 1, len(match[0].rstrip())), "site"
    for match in re.finditer(r"if .*rank.*:", code):
        yield Span(name, number, match.start() + 1, len(match[0])), "gate"
