"""Launch commands out of the files that people keep them in. Nothing of them is run.

placed      text that knows where each of its characters stands
shell       scripts, SLURM batch scripts among them; its words: expand, arithmetic
kinds       what a text is, where its name does not tell
starters    what starts other commands: srun, docker run, bash -c, ...; options, slurm
nodes       YAML with positions, aliases and merge keys
compose     docker compose files
kubernetes  manifests
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, TypeAlias

from rankbind.finding import Finding
from rankbind.launch.command import Command

__all__ = ["Found", "Kind", "commands", "kind_of"]

Kind: TypeAlias = Literal["topology", "shell", "compose", "kubernetes"]

_SHELL = frozenset({".sh", ".bash", ".zsh", ".ksh", ".sbatch", ".slurm", ".batch", ".sub"})
_SHEBANG = re.compile(r"\ufeff?#!\s*\S*(?:/|\benv\s+(?:-S\s+)?)(?:ba|da|k|z)?sh\b")


@dataclass(frozen=True, slots=True)
class Found:
    """What a file starts.

    Attributes:
        commands: those that may start something, in the order in which they stand.
        findings: what could not be read (RB901), and notes (RB609) on what only running it would tell.
    """

    commands: tuple[Command, ...]
    findings: tuple[Finding, ...] = ()


def kind_of(file: str, text: str) -> Kind | None:
    """What a file is, by its name and its text; None where neither tells."""
    suffix = PurePath(file).suffix.lower()
    if suffix == ".toml":
        return "topology"
    if suffix in _SHELL or _SHEBANG.match(text) or re.search(r"^#SBATCH\s", text, re.MULTILINE):
        return "shell"
    if text.startswith("#!"):
        return None
    from rankbind.launch.sources import kinds, nodes

    return kinds.of_yaml(file, text) if nodes.is_yaml(file) else kinds.of_text(file, text)


def commands(file: str, text: str) -> Found:
    """The commands in a file that is a shell script, a compose file or a Kubernetes manifest.

    What cannot be read is a finding, never an error.
    """
    from rankbind.launch.sources import reading

    found = reading.read(file, text, kind_of(file, text))
    return Found(found.finished(), tuple(found.findings))
