"""The engine that rankbind's entry point names: from commands to what they start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from rankbind.finding import Level, few
from rankbind.launch.command import Command, Word
from rankbind.launch.draft import Draft
from rankbind.launch.engine import chosen
from rankbind_sglang.launch import kv_events, sites, sockets
from rankbind_sglang.launch.arguments import Arguments, start_of, take_apart
from rankbind_sglang.launch.deployment import Deployment, address_of, literal, loopback
from rankbind_sglang.launch.rules import VERSIONS, rules_of
from rankbind_sglang.launch.sizes import SIZES, Sizes, sizes_of


class SGLang:
    """SGLang, as `rankbind.launch.engine.Engine` wants an engine."""

    name = "sglang"
    title = "SGLang"
    versions: Sequence[str] = VERSIONS
    entrypoints: Mapping[str, Sequence[str]] = MappingProxyType({})

    def starts(self, words: Sequence[str]) -> bool:
        """Whether a command with these words starts this engine's server."""
        return start_of(words) is not None

    def read(self, commands: Sequence[Command], version: str | None) -> Sequence[Draft]:
        """What the commands start: one draft for each deployment, in the order of their first commands."""
        launches: list[_Launch] = []
        for command in commands:
            by = chosen(self, command.image, version)
            draft = Draft(f"SGLang {by.release}", [command], deployment=command.name)
            if by.remark:
                draft.find("RB609", by.remark, level=Level.NOTE, fix=by.fix)
            arguments = take_apart(command, rules_of(by.release), draft, named=by.named)
            launch = next((each for each in launches if each.takes(arguments)), None)
            if launch is None:
                launches.append(_Launch(draft, [arguments]))
            else:
                launch.add(arguments, draft)
        launches = _once(launches)
        for launch in launches:
            launch.state()
            launch.say_untold()
        return [launch.draft for launch in launches]


def _once(launches: list[_Launch]) -> list[_Launch]:
    """`launches`, of which none is the other's node started once more while nodes are missing."""
    found: list[_Launch] = []
    for launch in launches:
        first = next((other for other in found if other.lacks(launch)), None)
        if first is None:
            found.append(launch)
        else:
            first.again += launch.commands
            first.merge(launch.draft)
    return found


@dataclass
class _Launch:
    """The commands of one launch, being collected.

    Attributes:
        again: commands that start a node that another of `commands` starts.
    """

    draft: Draft
    commands: list[Arguments] = field(default_factory=list)
    again: list[Arguments] = field(default_factory=list)

    @property
    def _nnodes(self) -> int:
        return int(self.commands[0].value("--nnodes") or 1)

    def takes(self, other: Arguments) -> bool:
        """Whether `other` is a further node of this launch: one rendezvous, another node."""
        first = self.commands[0]
        if min(self._nnodes, int(other.value("--nnodes") or 1)) < 2 or first.rules is not other.rules:
            return False
        if first.text("--dist-init-addr") != other.text("--dist-init-addr"):
            return False
        nodes = [each.node for each in self.commands]
        # Of commands that do not say which node they are, the second starts the rest.
        return other.node not in nodes if other.node is not None else nodes.count(None) < 2

    def add(self, arguments: Arguments, draft: Draft) -> None:
        """A further node, with what was found in its command."""
        self.commands.append(arguments)
        self.merge(draft)

    def lacks(self, other: _Launch) -> bool:
        """Whether `other` meets where this one does, which has its nodes already, and not all that there are."""
        first, second = self.commands[0], other.commands[0]
        one, two = ({each.node for each in launch.commands} for launch in (self, other))
        if None in one | two or not two <= one or len(one) >= self._nnodes or first.rules is not second.rules:
            return False
        text, command, theirs = first.text("--dist-init-addr"), first.command, second.command
        if text is None or text != second.text("--dist-init-addr") or not command.beside(theirs):
            return False
        if first.certain("--dist-init-addr"):
            return not loopback((address_of(text) or ("", 0))[0]) or command.host == theirs.host
        # Pods have variables of their own, the commands of a script share them.
        return command.image is None and command.words[0].span.file == theirs.words[0].span.file

    def merge(self, draft: Draft) -> None:
        """Add what was found in other commands of the launch."""
        self.draft.commands = [*self.draft.commands, *draft.commands]
        said = {finding.message for finding in self.draft.findings}
        self.draft.findings += [finding for finding in draft.findings if finding.message not in said]
        self.draft.ignored += draft.ignored
        self.draft.refused |= draft.refused

    def state(self) -> None:
        """State everything that the commands start."""
        draft, lead = self.draft, self._by_node().get(0, self.commands[0])
        if any(finding.code == "RB605" for finding in draft.findings) and draft.refused:
            # Nothing can be trusted of what the rest comes to.
            _nothing(draft)
            return
        before, refused = len(draft.findings), draft.refused
        sizes = sizes_of(lead, draft)
        guessed = [option for option in SIZES if not lead.known(option)]
        if guessed and len(draft.findings) > before:
            # The engine does not refuse what was put in place of a size that is not known.
            del draft.findings[before:]
            draft.refused, sizes = refused, None
        if sizes is None:
            _nothing(draft)
            return
        by_node = self._by_node()
        rest = by_node.get(None) or self.commands[-1]
        nodes = tuple(by_node.get(node) or rest for node in range(sizes.nnodes))
        d = Deployment(draft, lead.rules, sizes, nodes, self._hosts(nodes))
        if lead.known("--nnodes"):
            self._node_ranks(sizes)
            self._given(sizes)
        self._agree(d)
        self._addresses(d)
        before = len(draft.findings)
        _axes(d)
        _hosts(d)
        if guessed:
            del draft.findings[before:]
        _devices(d)
        sockets.state(d)
        kv_events.state(d)
        sites.state(d)
        d.knobs()

    def say_untold(self) -> None:
        """One note of all that only the run time knows, and of what is assumed in its place."""
        asked: dict[str, tuple[Word, str]] = {}
        for each in (*self.commands, *self.again):
            for name, (word, taken) in each.asked.items():
                asked.setdefault(name if name == word.text else f"{name} {_unknown(word)}", (word, taken))
        if not asked:
            return
        names = [name.partition(" ")[0] if name != word.text else "" for name, (word, _) in asked.items()]
        texts = list(dict.fromkeys(_unknown(word) for word, _ in asked.values()))
        is_ = "is" if len(texts) == 1 else "are"
        message = f"only the run time knows what {few(texts)} {'adds' if is_ == 'is' else 'add'}"
        if any(names):
            what = few(list(dict.fromkeys(filter(None, names))))
            message = f"{what} cannot be told: {few(texts)} {is_} known at run time alone"
        self.draft.find(
            "RB609",
            message,
            *(word for word, _ in asked.values()),
            level=Level.NOTE,
            details=[f"{name}: {taken}" for name, (_, taken) in asked.items()],
        )

    def _by_node(self) -> Mapping[int | None, Arguments]:
        """The commands by their nodes; under None the one that stands for the rest."""
        found: dict[int | None, Arguments] = {}
        untold = [each for each in self.commands if each.node is None]
        if len(untold) > 1:
            found[0] = untold[0]
        found |= {each.node: each for each in self.commands if each.node is not None}
        if untold:
            found[None] = untold[-1]
        return found

    def _hosts(self, nodes: Sequence[Arguments]) -> tuple[str, ...]:
        """The host of each node: that of its own command, else its number."""
        by_node = self._by_node()
        named = {node: each.command.host for node, each in by_node.items() if node is not None}
        if len(nodes) == 1 and nodes[0].command.host:
            named[0] = nodes[0].command.host
        taken = [host for host in named.values() if host]
        found = []
        for node in range(len(nodes)):
            host = named.get(node)
            plain = str(node) if str(node) not in taken else f"node {node}"
            found.append(host or plain)
        return tuple(found)

    # What the engine does not look at

    def _node_ranks(self, sizes: Sizes) -> None:
        for each in self.commands:
            if each.node is not None and not 0 <= each.node < sizes.nnodes:
                words = (*each.words("--node-rank"), *each.words("--nnodes"))
                self.draft.find(
                    "RB607",
                    f"--node-rank {each.node} with --nnodes {sizes.nnodes}: nodes are 0..{sizes.nnodes - 1}",
                    *words,
                    flag="--node-rank",
                    node=each.node,
                )

    def _given(self, sizes: Sizes) -> None:
        """Nodes that no command starts, or several."""
        started = [each.node for each in self.commands]
        missing = [str(node) for node in range(sizes.nnodes) if node not in started]
        if self.again:
            twice = sorted({each.node for each in self.again if each.node is not None})
            words = [word for each in (*self.commands, *self.again) if each.node in twice for word in _rank(each)]
            # One text that several tasks run: what differs between them was put in before there were any.
            alike = len({word.span for word in words}) < len(words)
            self.draft.find(
                "RB607",
                f"several commands say --node-rank {few(list(map(str, twice)))} of the launch at "
                f"{self.commands[0].text('--dist-init-addr')}, and none starts node {few(missing)}",
                *words,
                fix="quote the variable, srun bash -c '... --node-rank $SLURM_PROCID': a script's shell puts its own "
                "value in before srun starts the tasks"
                if alike
                else "give each node a --node-rank of its own",
                flag="--node-rank",
                twice=twice,
                missing=list(map(int, missing)),
            )
        elif missing and None not in started:
            given = "one command" if len(started) == 1 else f"{len(started)} commands"
            self.draft.find(
                "RB609",
                f"{given} of {sizes.nnodes} {'is' if len(started) == 1 else 'are'} given; the others are taken to be "
                "like it",
                *self.commands[0].words("--nnodes"),
                level=Level.NOTE,
            )

    def _agree(self, d: Deployment) -> None:
        """Options that have to be the same on all nodes."""
        for option in _SAME:
            values = {str(each.value(option)): each for each in self.commands if each.known(option)}
            if len(values) > 1:
                (one, first), (other, second) = list(values.items())[:2]
                self.draft.find(
                    "RB607",
                    f"the nodes of one launch are given different {option}: {one} and {other}",
                    *(second.words(option) or first.words(option)),
                    *(first.words(option) if second.words(option) else ()),
                    flag=option,
                    values=list(values),
                )

    def _addresses(self, d: Deployment) -> None:
        text, words = d.lead.text("--dist-init-addr"), d.lead.words("--dist-init-addr")
        if text is not None and address_of(text) is None:
            if d.lead.certain("--dist-init-addr"):
                self.draft.find(
                    "RB607",
                    f"--dist-init-addr {text} is no HOST:PORT",
                    *words,
                    fix="write HOST:PORT, or [IPV6]:PORT",
                    flag="--dist-init-addr",
                )
            else:
                self.draft.ignored.append((words[-1], "which port that is is known at run time alone"))
                d.lead.unsure("--dist-init-addr", words[-1], "what is counted from its port is not looked at")
        elif text is None and d.sizes.nnodes > 1 and not d.outside:
            how = (
                "SGLang fails to derive its ports" if d.sizes.dp_attention else "each node waits for the others at home"
            )
            self.draft.find(
                "RB607",
                f"--nnodes {d.sizes.nnodes} without --dist-init-addr: {how}",
                *d.lead.words("--nnodes"),
                fix="add --dist-init-addr HOST:PORT with an address of node 0, to every node",
                flag="--dist-init-addr",
            )
        elif d.rendezvous and d.sizes.nnodes > 1 and len(set(d.hosts)) > 1 and loopback(d.rendezvous[0]):
            self.draft.find(
                "RB607",
                f"--dist-init-addr {text}: other nodes dial themselves there",
                *words,
                fix="give an address of node 0 that all nodes can dial",
                flag="--dist-init-addr",
            )


_SAME = (
    *("--tp-size", "--pp-size", "--dp-size", "--attn-dp-size", "--enable-dp-attention", "--attn-cp-size", "--ep-size"),
    *("--moe-dp-size", "--dcp-size", "--nnodes", "--nccl-port", "--kv-events-config", "--load-publish-endpoint"),
)
"""Options of which the nodes of one launch must think alike."""


def _unknown(word: Word) -> str:
    """What of a word is known at run time alone."""
    found = _VARIABLES.findall(word.text)
    return few(list(dict.fromkeys(found))) if found and len(word.text) > _SHORT else word.text


_SHORT = 24
_VARIABLES = re.compile(r"\$(?:\w+|\{[^}]*\}|\([^)]*\)+)")


def _rank(arguments: Arguments) -> Sequence[Word]:
    """The words that say which node it is; its program's, where a file says so."""
    return arguments.words("--node-rank") or arguments.command.words[:1]


def _nothing(draft: Draft) -> None:
    """A draft of which nothing can be told has one rank."""
    draft.axis("rank0", 1)


def _axes(d: Deployment) -> None:
    a, sizes, draft = d.lead, d.sizes, d.draft
    dp_words = a.words("--attn-dp-size", "--dp-size", "--dwdp-size")
    draft.axis("dp", sizes.replicas, *(a.words("--dp-size") if sizes.replicas > 1 else ()))
    draft.axis("pp", sizes.pp, *a.words("--pp-size"))
    draft.axis("tp", sizes.tp, *a.words("--tp-size"))
    attention = {"attn_dp": sizes.attn_dp, "attn_cp": sizes.attn_cp, "attn_tp": sizes.attn_tp}
    draft.view("attention", "tp", attention, *(dp_words or a.words("--attn-cp-size", "--tp-size")))
    if sizes.moe_dp * sizes.ep * sizes.moe_tp == sizes.tp:
        experts = {"moe_dp": sizes.moe_dp, "moe_ep": sizes.ep, "moe_tp": sizes.moe_tp}
        draft.view("experts", "tp", experts, *a.words("--ep-size", "--moe-dp-size", "--tp-size"))
    else:
        draft.find(
            "RB607",
            f"--ep-size {sizes.ep} does not divide tp {sizes.tp}: some ranks would be in no group of experts",
            *a.words("--ep-size"),
            *a.words("--tp-size"),
            flag="--ep-size",
        )
    if sizes.dcp > 1:
        draft.view("decode", "tp", {"dcp_outer": sizes.tp // sizes.dcp, "dcp": sizes.dcp}, *a.words("--dcp-size"))
        if sizes.attn_tp % sizes.dcp:
            draft.find(
                "RB607",
                f"--dcp-size {sizes.dcp} does not divide the {sizes.attn_tp} ranks of an attention group: its groups "
                "reach across KV caches",
                *a.words("--dcp-size"),
                flag="--dcp-size",
            )


def _hosts(d: Deployment) -> None:
    """Who runs where, with the holes and the doubles that the engine's floors make."""
    sizes, draft = d.sizes, d.draft
    ranks: dict[str, list[int]] = {}
    for node, host in enumerate(d.hosts):
        ranks.setdefault(host, []).extend(sizes.ranks(node))
        nowhere = [(pp, tp) for pp, tp in sizes.started(node) if pp >= sizes.pp or tp >= sizes.tp]
        if nowhere:
            draft.find(
                "RB607",
                f"node {node} starts pp {nowhere[0][0]} tp {nowhere[0][1]}, and there is no such rank"
                + (f", nor {len(nowhere) - 1} more" if len(nowhere) > 1 else ""),
                *d.lead.words("--nnodes"),
                fix=_PLACEMENT,
                node=node,
                coordinates=[{"pp": pp, "tp": tp} for pp, tp in nowhere[:16]],
            )
    words = d.lead.words("--nnodes")
    for host, there in ranks.items():
        draft.host(host, there, *words, addresses=d.addresses if host == d.hosts[0] else ())
    for code in ("RB601", "RB602"):
        draft.remedies["", code] = _PLACEMENT


_PLACEMENT = "let --nnodes divide --pp-size, or be a multiple of it that divides --tp-size in turn: SGLang rounds down"


_STEP = "leave --gpu-id-step out: SGLang does not count it where one node starts several stages"
_MOVE = "move one by --base-gpu-id or CUDA_VISIBLE_DEVICES"


def _devices(d: Deployment) -> None:
    groups: dict[tuple[int, int, str], list[int]] = {}
    for node, a in enumerate(d.nodes):
        if str(a.value("--device") or "cuda") == "cpu":
            continue
        base, step = a.value("--base-gpu-id", 0), a.value("--gpu-id-step", 1)
        shift, suffix = _visible(a)
        if not a.known("--base-gpu-id"):
            suffix += f" counted from {literal(a.untold_of('--base-gpu-id').text)}"
        groups.setdefault((base + shift, step, suffix), []).append(node)
    sizes = d.sizes
    for at, ((base, step, suffix), nodes) in enumerate(groups.items(), start=1):
        terms = [str(base)] if base else []
        if sizes.replicas > 1:
            terms.append(f"dp * {sizes.world * step}")
        if sizes.pp_per_node > 1:
            stage = "pp" if sizes.pp_per_node == sizes.pp else f"pp % {sizes.pp_per_node}"
            terms.append(f"{stage} * {sizes.tp_per_node}")
        if sizes.tp_per_node > 1:
            local = "tp" if sizes.tp_per_node == sizes.tp else f"tp % {sizes.tp_per_node}"
            terms.append(local if step == 1 else f"{local} * {step}")
        number = f"{{{' + '.join(terms)}}}" if terms else "0"
        everywhere = len(nodes) == len(d.nodes)
        d.draft.resource(
            "gpu" if len(groups) == 1 else f"gpu-{at}",
            *d.nodes[nodes[0]].words("--base-gpu-id", "--gpu-id-step", "--tp-size"),
            owner={} if everywhere else {"rank": [rank for node in nodes for rank in sizes.ranks(node)]},
            device=f"gpu {number}{suffix}",
            about="the device of each rank: base, stage and tp; the stage is not multiplied by --gpu-id-step",
            remedies={"RB604": _STEP if step > 1 and sizes.pp_per_node > 1 else _MOVE},
        )


def _visible(a: Arguments) -> tuple[int, str]:
    """Which device the first one is, and what the numbers count where that cannot be told."""
    text = a.command.variable("CUDA_VISIBLE_DEVICES")
    if text is None or not text.strip():
        # What is seen in a container is its own.
        return 0, f" of {a.command.name or a.command.image}" if a.command.image else ""
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdecimal() for part in parts):
        numbers = [int(part) for part in parts]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return numbers[0], ""
    return 0, f" of {literal(text.strip())}"


ENGINE = SGLang()
"""What the entry point ``rankbind.engines`` names."""
