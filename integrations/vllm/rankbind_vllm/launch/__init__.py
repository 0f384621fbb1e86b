"""The vLLM launch reader: what `vllm serve` and its module start, without vLLM.

Each module uses those above it:

    releases     what differs between releases
    flexible     what FlexibleArgumentParser does before argparse
    arguments    a command taken apart: options, the file of --config, variables
    model        dense, or a mixture of experts
    layout       one command: its engines, its mode, what it refuses
    deployment   several commands as one job, on hosts
    statement    who owns what in it, node by node
    kv_events    the publisher of KV cache events
    transfer     side channels of KV and encoder-cache connectors
    listeners    everything that the job binds, dials and owns
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from rankbind.finding import Level
from rankbind.launch.command import Command, Word
from rankbind.launch.draft import Draft
from rankbind.launch.engine import chosen
from rankbind_vllm.launch import arguments, deployment, listeners
from rankbind_vllm.launch.arguments import Remark
from rankbind_vllm.launch.layout import Node
from rankbind_vllm.launch.releases import Release


class _VLLM:
    """See `rankbind.launch.engine.Engine`."""

    name = "vllm"
    title = "vLLM"
    entrypoints: Mapping[str, Sequence[str]] = MappingProxyType({"vllm/vllm-openai": ("vllm", "serve")})

    def __init__(self) -> None:
        self.versions: Sequence[str] = arguments.table().versions

    def starts(self, words: Sequence[str]) -> bool:
        """Whether it is ``vllm serve``, or the module of its API server."""
        return arguments.first_argument(words) is not None

    def read(self, commands: Sequence[Command], version: str | None) -> Sequence[Draft]:
        """One draft for each deployment."""
        found = []
        for command in commands:
            choice = chosen(self, command.image, version)
            # Of a release that is not known, no option can be said not to be there.
            one = arguments.read(command, Release(choice.release), named=choice.named is True)
            if choice.remark:
                assumed = Remark("RB609", choice.remark, command.words[:1], Level.NOTE, choice.fix)
                one.remarks.insert(0, assumed)
            found.append(one)
        return [_draft(nodes) for nodes in deployment.group(found)]


def _draft(nodes: Sequence[Node]) -> Draft:
    job = deployment.assemble(nodes)
    given = {id(node.arguments): node.arguments for node in nodes}.values()
    name = next((one.command.name for one in given if one.command.name), None)
    draft = Draft(job.release.title, [one.command for one in given], name)
    if not any(one.refused for one in given):
        deployment.place(draft, job)
        deployment.check(draft, job)
        listeners.state(draft, job)
    else:
        draft.axis("dp", 1)
    # Last, because what listens also reads values that may be wrong.
    for one in given:
        draft.ignored += one.ignored
    for remark in _once([remark for one in given for remark in one.remarks]):
        draft.find(
            remark.code, remark.message, *remark.words, level=remark.level, details=remark.details, fix=remark.fix
        )
        draft.refused = draft.refused or remark.refuses
    return draft


def _once(remarks: Sequence[Remark]) -> Sequence[Remark]:
    """What several nodes give to note is noted once, at the words of all of them."""
    found: dict[Hashable, tuple[Remark, dict[Hashable, Word]]] = {}
    for at, remark in enumerate(remarks):
        key = (remark.code, remark.message) if remark.level is Level.NOTE else at
        _, words = found.setdefault(key, (remark, {}))
        words.update({word.span: word for word in remark.words})
    return [replace(remark, words=tuple(words.values())) for remark, words in found.values()]


ENGINE = _VLLM()
"""vLLM, as the entry point of the group ``rankbind.engines`` names it."""

__all__ = ["ENGINE"]
