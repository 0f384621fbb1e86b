"""One file, whatever it is."""

from __future__ import annotations

import re

from rankbind.launch.sources import Kind, compose, kinds, kubernetes, nodes, slurm
from rankbind.launch.sources.expand import Variables
from rankbind.launch.sources.found import Found, FullError, Place, Shared
from rankbind.launch.sources.placed import LARGEST, whole
from rankbind.launch.sources.shell import Shell
from rankbind.source import Document, Span

_SURROGATE = re.compile("[\ud800-\udfff]")


def read(file: str, text: str, kind: Kind | None) -> Found:
    """The commands in it."""
    found = Found(file)
    here = Span(file, 1, 1)
    document = Document(file, text)
    if len(text) > LARGEST:
        found.unreadable("too long for a file that people keep commands in", here)
    elif half := _SURROGATE.search(text):
        found.unreadable("not UTF-8 text", document.span(half.start()))
    elif kind != "topology" and (mark := kinds.template(file, text)) is not None:
        found.unreadable("a template: render it first (helm template CHART | rankbind check -)", document.span(mark))
    elif kind not in ("shell", "compose", "kubernetes"):
        found.findings += nodes.read(file, text)[1] if nodes.is_yaml(file) else ()
        if not found.findings:
            found.unreadable("neither a shell script nor a compose file nor a Kubernetes manifest", here)
    else:
        try:
            if kind == "shell":
                _script(document, found)
            else:
                documents, findings = nodes.read(file, text)
                found.findings += findings
                (compose if kind == "compose" else kubernetes).read(documents, found)
        except FullError:
            found.note("more commands than anybody keeps in a file: the rest is not looked at", here)
        except RecursionError:
            found.unreadable("nested too deeply to be read", here)
    return found


def _script(document: Document, found: Found) -> None:
    source = whole(document)
    shared = Shared(found, slurm.directives(document.text))
    variables = Variables()
    place = Place()
    if shared.allocation is not None:
        at = source.part(0, document.text.find("\n") if "\n" in document.text else len(document.text))
        known = slurm.batch(shared.allocation, at)
        variables = Variables(dict(known), set(known))
        place = Place(host=slurm.node_name(0))
    Shell(shared, variables, place).run(source)
