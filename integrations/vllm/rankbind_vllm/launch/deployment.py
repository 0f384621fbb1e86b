"""Commands that are nodes of one job, put together: its ranks on hosts, and what does not fit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rankbind.finding import Level
from rankbind.launch.command import Command, Word
from rankbind.launch.draft import Draft
from rankbind_vllm.launch.arguments import Arguments, Port
from rankbind_vllm.launch.layout import LOOPBACK, Node, Sizes, resolve
from rankbind_vllm.launch.releases import Release


@dataclass
class Host:
    """A network namespace and the commands that run in it."""

    name: str
    nodes: list[Node] = field(default_factory=list)

    @property
    def ranks(self) -> list[int]:
        """Its workers in local-rank order."""
        return [rank for node in self.nodes for rank in node.ranks]


@dataclass
class Deployment:
    """One job: its nodes by rank, on hosts."""

    hosts: list[Host]

    @cached_property
    def nodes(self) -> list[Node]:
        """All of them, host by host."""
        return [node for host in self.hosts for node in host.nodes]

    @cached_property
    def head(self) -> Node:
        """The node that runs rank 0, or would."""
        return _head(self.nodes)

    @cached_property
    def _homes(self) -> dict[int, Host]:
        return {id(node): host for host in self.hosts for node in host.nodes}

    @property
    def sizes(self) -> Sizes:
        """Those of the head."""
        return self.head.sizes

    @property
    def release(self) -> Release:
        """The release that all run."""
        return self.head.release

    def host_of(self, node: Node) -> Host:
        """Where a node is."""
        return self._homes[id(node)]

    def words(self, *dests: str) -> tuple[Word, ...]:
        """The words of any node that give these options, the head's first."""
        ordered = [self.head, *(node for node in self.nodes if node is not self.head)]
        found = [word for node in ordered for word in node.arguments.words(*dests)]
        return tuple({word.span: word for word in found}.values())


def _head(nodes: Sequence[Node]) -> Node:
    return min(nodes, key=lambda node: (node.start, node.node, node.headless))


def group(arguments: Sequence[Arguments]) -> list[list[Node]]:
    """The nodes of each deployment, in the order of the first commands."""
    found: dict[Hashable, list[Node]] = {}
    for at, one in enumerate(arguments):
        node = resolve(one)
        found.setdefault(_key(node, at), []).append(node)
    return list(found.values())


def _key(node: Node, at: int) -> Hashable:
    """What nodes of one job have in common; `at` for a command that is a job of its own."""
    sizes = node.sizes
    if node.nodes > 1:
        where = _meeting(node.master, node.master_port, node.arguments.command)
        return "nodes", node.nodes, where, sizes.dp, sizes.world
    if sizes.dp > 1 and (node.local < sizes.dp or node.headless):
        return "replicas", _meeting(node.address, node.rpc_port, node.arguments.command), sizes.dp, sizes.world
    return at


def _meeting(address: str, port: Port, command: Command) -> Hashable:
    # Loopback of another host is another address.
    return address, port, command.host if address in LOOPBACK else None


def assemble(nodes: Sequence[Node]) -> Deployment:
    """The nodes on their hosts; where one command stands for several nodes, they are added."""
    nodes = list(nodes)
    if len(nodes) == 1:
        nodes = _all_of(nodes[0])
    nodes = [_settled(node, _head(nodes)) for node in nodes]
    nodes.sort(key=lambda node: (node.node, node.start))
    hosts: dict[Hashable, Host] = {}
    for at, node in enumerate(nodes):
        command = node.arguments.command
        at_home = node.nodes == 1 and node.address in LOOPBACK
        name = command.host if at_home or not node.assumed else None
        key: Hashable = _assumed(node, nodes, at) if name is None else ("named", name)
        host = hosts.setdefault(key, Host(name or ""))
        host.nodes.append(node)
    found = list(hosts.values())
    taken = {host.name for host in found}
    for at, host in enumerate(found):
        if not host.name:
            host.name = str(at) if str(at) not in taken else f"node-{at}"
    return Deployment(found)


def _settled(node: Node, head: Node) -> Node:
    """A node as it works, where what is not known of its command may be ``--headless``."""
    if node is head or node.headless or not node.arguments.open:
        return node
    balancing = node.balancing if node.part > 0 else head.balancing
    if node.part == 0 and (head.balancing != "internal" or node.start == 0):
        return node
    return replace(node, headless=True, api_servers=0, balancing=balancing)


def _assumed(node: Node, nodes: Sequence[Node], at: int) -> Hashable:
    """Which host a command runs on that does not say it.

    Commands that one script starts side by side are on the machine that runs it, unless they tell of several: a node
    rank, or a number of local replicas, makes a command the part of one machine, and so does a VLLM_HOST_IP. At a
    loopback address even those share the machine. A --data-parallel-rank tells of none: such commands share it at
    whatever address they meet.

    What is in separate files, in alternatives of one script, or not running at the same time although one job needs it
    to, is for several machines. There node ranks are hosts, and so are replicas; but replicas that meet at a loopback
    address, or all say which GPUs they take, share one.
    """
    mine = node.arguments
    if node.nodes == 1 and node.address in LOOPBACK:
        return "one"
    shares = node.master in LOOPBACK if node.nodes > 1 else mine.given("data_parallel_rank")
    if shares and any(_side_by_side(mine.command, other.arguments.command) for other in nodes):
        return "script", mine.command.words[0].span.file, mine.address_variable("VLLM_HOST_IP", "")
    if node.nodes > 1:
        return "node", node.node
    together = all(other.arguments.set("CUDA_VISIBLE_DEVICES") for other in nodes)
    return "one" if len(nodes) == 1 or together else ("replica", at)


def _side_by_side(one: Command, other: Command) -> bool:
    """Whether one script starts both, and the second while the first runs."""
    scripted = one.turn is not None and other.turn is not None
    same = one.words[0].span.file == other.words[0].span.file
    return one is not other and scripted and same and one.beside(other)


def _all_of(node: Node) -> list[Node]:
    """All nodes of a job of which one command is known: alike, but for servers, where the head has them all."""
    if node.nodes > 1:
        return [_follower(node, rank, node.nodes) for rank in range(node.nodes)]
    sizes = node.sizes
    if node.local < 1 or sizes.dp <= node.local or sizes.dp % node.local or node.start % node.local:
        return [node]
    found = []
    for start in range(0, sizes.dp, node.local):
        # Servers on one host cannot be alike, and what tells them apart is not known.
        headless = start > 0 if node.balancing == "internal" else node.address in LOOPBACK
        found.append(node if start == node.start else _like(node, headless, start=start))
    return found


def _follower(node: Node, rank: int, nodes: int) -> Node:
    if rank == node.node:
        return node
    on_node = node.sizes.dp * node.sizes.world // nodes
    start = rank * node.local if node.multi_port else rank * on_node // node.sizes.world
    headless = node.balancing == "internal" and rank > 0
    headless = headless or rank % node.spans > 0
    return _like(node, headless, node=rank, start=start)


def _like(model: Node, headless: bool, *, start: int, node: int = 0) -> Node:
    servers = 0 if headless else model.api_servers or 1
    return replace(model, headless=headless, api_servers=servers, assumed=True, start=start, node=node)


def place(draft: Draft, deployment: Deployment) -> None:
    """Axes, views and hosts."""
    sizes, release, words = deployment.sizes, deployment.release, deployment.words
    draft.axis("dp", sizes.dp, *words("data_parallel_size"))
    draft.axis("pp", sizes.pp, *words("pipeline_parallel_size"))
    if release.has("pcp"):
        draft.axis("pcp", sizes.pcp, *words("prefill_context_parallel_size"))
    draft.axis("tp", sizes.tp, *words("tensor_parallel_size"))
    joined = ("dp", "pcp", "tp") if release.has("pcp") else ("dp", "tp")
    if deployment.head.moe or not release.has("independent dense replicas"):
        draft.view("expert", joined, {"ep": sizes.dp * sizes.pcp * sizes.tp}, *words("enable_expert_parallel"))
    dcp = words("decode_context_parallel_size")
    if sizes.dcp > 1 and sizes.pcp == 1:
        draft.view("decode", "tp", {"dcp_group": sizes.tp // sizes.dcp, "dcp": sizes.dcp}, *dcp)
    elif sizes.dcp > 1 and sizes.dcp == sizes.pcp:
        draft.view("decode", "pcp", {"dcp": sizes.dcp}, *dcp)
    elif sizes.dcp > 1:
        draft.view("decode", ("tp", "pcp"), {"dcp": sizes.dcp}, *dcp)
    head = deployment.head
    for host in deployment.hosts:
        addresses = []
        if head in host.nodes:
            addresses = [a for a in dict.fromkeys((head.address, head.master)) if a not in LOOPBACK and a != host.name]
        first = host.nodes[0].arguments.words("node_rank", "data_parallel_start_rank", "data_parallel_rank")
        draft.host(host.name, host.ranks, *first, addresses=addresses)


def check(draft: Draft, deployment: Deployment) -> None:
    """What the engine does not check, and that cannot work."""
    head, sizes = deployment.head, deployment.sizes
    several = len(deployment.hosts) > 1
    for node in deployment.nodes:
        words = node.arguments.words
        late = range(max(node.start, sizes.dp), node.start + node.local)
        if late:
            draft.find(
                "RB607",
                f"replicas {late[0]} to {late[-1]} do not exist: --data-parallel-size is {sizes.dp}",
                *words("data_parallel_start_rank", "data_parallel_size_local", "data_parallel_size"),
                fix=f"start at {max(0, sizes.dp - node.local)}, or run {max(0, sizes.dp - node.start)} on this node",
            )
        serves = not node.headless and node is not head
        alone = node.part > 0 or (node.balancing == "internal" and node.start > 0)
        if serves and alone:
            what = "its server waits for engines that it does not run" if node.part else "vLLM stops at an assertion"
            draft.find(
                "RB607",
                f"node {node.node if node.nodes > 1 else node.start} serves requests, without --headless: {what}",
                *(words("node_rank", "data_parallel_start_rank") or node.arguments.command.words[:1]),
                fix="add --headless to every node but the first",
            )
        elif _misfits(node, head):
            how, mode = "with" if node.headless else "without", f"{head.balancing} load balancing of the head"
            draft.find(
                "RB607",
                f"replica {node.start} is started {how} --headless, which the {mode} does not take: the head stops",
                *_said(node, "headless", "data_parallel_hybrid_lb", "data_parallel_start_rank", "data_parallel_rank"),
                *_said(
                    head,
                    "data_parallel_hybrid_lb",
                    "data_parallel_start_rank",
                    "data_parallel_rank",
                    "data_parallel_size_local",
                ),
                fix="one way for all nodes: either --headless on every node but the first, which alone serves, or "
                "--data-parallel-hybrid-lb on every node and no --headless",
            )
    if head.independent and head.spans > 1:
        draft.find(
            "RB607",
            f"each of {sizes.dp} replicas of a dense model takes {head.spans} nodes: its first node announces "
            f"{sizes.world} workers and the others {sizes.world * sizes.dp}, all at {head.master}:{head.master_port}",
            *deployment.words("nnodes", "data_parallel_size"),
            fix="start one server for each replica, or keep a replica on one node",
            details=("torch.distributed waits for ranks that never come, and nothing refuses it",),
        )
    elif head.independent and head.nodes > 1 and not deployment.release.has("dense replicas keep their nodes"):
        draft.find(
            "RB607",
            f"each replica of a dense model takes all {head.nodes} nodes to be its own, and waits for "
            f"{sizes.world - sizes.world // head.nodes} workers that nobody starts",
            *deployment.words("nnodes", "data_parallel_size"),
            fix="start one server for each replica; from 0.28.0 on, replicas that fit on a node are sound",
        )
    if several and head.nodes > 1 and head.master in LOOPBACK and _chosen(head, "master_addr"):
        draft.find(
            "RB607",
            f"{head.nodes} nodes meet at {head.master}:{head.master_port}, which is a different place on each of them",
            *(deployment.words("master_addr") or deployment.words("nnodes")),
            fix="--master-addr: an address of the first node",
        )
    elif several and head.nodes == 1 and head.address in LOOPBACK and _chosen(head, "data_parallel_address"):
        draft.find(
            "RB607",
            f"replicas on {len(deployment.hosts)} hosts meet at {head.address}:{head.rpc_port}, which is a different "
            "place on each of them",
            *deployment.words("data_parallel_address", "data_parallel_size"),
            fix="--data-parallel-address: an address of the first host",
        )
    if not head.moe_known and sizes.dp > 1:
        taken = "a mixture of experts" if head.moe else "dense"
        draft.find(
            "RB609",
            f"the model is not on this machine and is taken for {taken}; that decides how its replicas meet",
            *(deployment.words("model_tag", "model") or head.arguments.command.words[:1]),
            level=Level.NOTE,
            fix="check where the model's folder is, or say --enable-expert-parallel for a mixture of experts",
        )
    if any(node.assumed for node in deployment.nodes):
        draft.find(
            "RB609",
            f"one command of {len(deployment.nodes)} is given; the others are taken to be like it",
            *deployment.words("nnodes", "data_parallel_size", "data_parallel_size_local"),
            level=Level.NOTE,
        )
    empty = [host.name for host in deployment.hosts if not host.ranks]
    if empty:
        draft.find(
            "RB609",
            f"host {', '.join(empty)} runs no worker: what its server binds is not looked at",
            *deployment.words("data_parallel_size_local"),
            level=Level.NOTE,
        )
    different = [node for node in deployment.nodes if (node.sizes, node.moe) != (sizes, head.moe)]
    for node in different:
        draft.find(
            "RB607",
            f"the nodes disagree about their sizes: {_sizes(sizes)} and {_sizes(node.sizes)}",
            *node.arguments.words("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size"),
        )


def _misfits(node: Node, head: Node) -> bool:
    """Whether the head, with which all engine cores shake hands, turns down those of `node`."""
    if node is head or not node.engines or any(each.assumed or each.arguments.open for each in (node, head)):
        return False
    if node.headless:
        return head.balancing != "internal"
    # What is no follower by its rank is another head, which is said elsewhere.
    return head.balancing == "internal" and node.start > head.start


def _chosen(node: Node, dest: str) -> bool:
    """Whether the value of an option, or its default, is the one that counts: nothing else may say it."""
    return node.arguments.given(dest) or node.arguments.lacks(dest)


def _said(node: Node, *dests: str) -> tuple[Word, ...]:
    """The words that give these options, or where the command begins."""
    return node.arguments.words(*dests) or node.arguments.command.words[:1]


def _sizes(sizes: Sizes) -> str:
    return f"dp {sizes.dp}, pp {sizes.pp}, pcp {sizes.pcp}, tp {sizes.tp}"
