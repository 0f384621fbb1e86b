"""What one command of vLLM makes of its sizes: which engines it runs, in which mode, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from rankbind.launch.command import Word
from rankbind.topology import MAX_RANKS
from rankbind_vllm.launch.arguments import Arguments, Port, flag
from rankbind_vllm.launch.model import is_moe
from rankbind_vllm.launch.releases import Release

_NO_ADDRESS = re.compile(r"[\s/]")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Balancing = Literal["internal", "hybrid", "external"]


@dataclass(frozen=True)
class Sizes:
    """The axes of the job."""

    dp: int
    pp: int
    pcp: int
    tp: int
    dcp: int

    @property
    def world(self) -> int:
        """Workers of one engine."""
        return self.pp * self.pcp * self.tp


@dataclass(frozen=True)
class Node:
    """One command: a node of the deployment, or one process of several on a host.

    Attributes:
        start, local: the first data-parallel index whose engine (or a part of it) it runs, and of how many.
        balancing: who spreads requests over the replicas. Outside of ``internal`` it serves its own replicas only.
        multi_port: whether a supervisor starts one server for each replica.
        spans: how many nodes one replica takes; `part` is which of them this is. Only part 0 runs engine cores.
        api_servers: 0 on a node that runs workers or engines alone.
        moe: as the engine will find; an assumption where `moe_known` is False.
        address: where the replicas meet: data_parallel_master_ip.
        offline: VLLM_DP_SIZE gives the replicas, not the command line.
        assumed: nobody gave this command; that of another node stands for it.
    """

    arguments: Arguments
    sizes: Sizes
    start: int
    local: int
    balancing: Balancing
    multi_port: bool
    headless: bool
    nodes: int
    node: int
    spans: int
    api_servers: int
    moe: bool
    moe_known: bool
    address: str
    rpc_port: Port
    master: str
    master_port: Port
    offline: bool = False
    assumed: bool = False

    @property
    def release(self) -> Release:
        """The release that it runs."""
        return self.arguments.release

    @property
    def part(self) -> int:
        """Which of the nodes of its replica it is."""
        return self.node % self.spans

    @property
    def local_world(self) -> int:
        """Workers of one engine on this node."""
        return self.sizes.world // self.spans

    @property
    def local_only(self) -> bool:
        """Whether it serves no engines but its own."""
        return self.balancing != "internal"

    @property
    def independent(self) -> bool:
        """Whether each replica is a torch world of its own."""
        return self.release.has("independent dense replicas") and not self.moe and self.sizes.dp > 1

    @property
    def meets_at_master(self) -> bool:
        """Whether its workers meet at --master-addr: dense replicas that fit on a node do not."""
        within = self.independent and self.spans == 1 and self.release.has("dense replicas keep their nodes")
        return self.nodes > 1 and not within

    @property
    def coordinated(self) -> bool:
        """Whether there is a coordinator of the replicas."""
        if self.sizes.dp == 1 or self.offline:
            return False
        return self.moe or self.balancing != "external" or not self.release.has("independent dense replicas")

    @cached_property
    def engines(self) -> tuple[int, ...]:
        """The data-parallel indices whose engine cores it runs."""
        return tuple(range(self.start, self.start + self.local)) if self.part == 0 else ()

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Its workers, in the order of their GPUs; none beyond the last replica."""
        first = self.part * self.local_world
        return tuple(
            index * self.sizes.world + rank
            for index in range(self.start, self.start + self.local)
            if 0 <= index < self.sizes.dp
            for rank in range(first, first + self.local_world)
        )

    def gpu(self, rank: int) -> int:
        """Which of the GPUs that it sees the worker with this rank takes: ParallelConfig.get_local_gpu_index."""
        index, within = divmod(rank, self.sizes.world)
        if self.spans > 1:
            return within - self.part * self.local_world
        return (index - self.start) * self.sizes.world + within


def resolve(arguments: Arguments) -> Node:
    """What the command makes of its sizes. What it refuses is among the remarks of `arguments`."""
    node = _Resolver(arguments).node()
    for remark in _preconditions(node):
        arguments.refuse("RB606", *remark)
    return node


class _Resolver:
    def __init__(self, arguments: Arguments) -> None:
        self.arguments, self.release = arguments, arguments.release
        self.value, self.number = arguments.value, arguments.number
        self.words = arguments.words

    def refuse(self, message: str, *dests: str) -> None:
        self.arguments.refuse("RB606", message, *self.words(*dests))

    def size(self, dest: str) -> int:
        found = self.number(dest, 1)
        if found < 1:
            self.refuse(f"{flag(dest)} must be at least 1, not {found}", dest)
        return max(found, 1)

    def node(self) -> Node:
        sizes = Sizes(
            self.size("data_parallel_size"),
            self.size("pipeline_parallel_size"),
            self.size("prefill_context_parallel_size"),
            self.size("tensor_parallel_size"),
            self.size("decode_context_parallel_size"),
        )
        nodes = self.size("nnodes")
        node = self.node_rank(nodes)
        multi_port = bool(self.value("data_parallel_multi_port_external_lb", False))
        headless = bool(self.value("headless", False)) and not self.arguments.module
        if not self.release.has("api servers by default") and self.number("api_server_count", 1) < 1:
            headless = not self.arguments.module
        moe, known = self.moe(sizes)
        offline = sizes.dp == 1 and "VLLM_DP_SIZE" in self.arguments.command.environment
        start, local, balancing, spans = self.place(sizes, nodes, node, headless, multi_port)
        # With one replica the variables count, whatever the options say.
        address = self.arguments.address("data_parallel_address", "master_addr")
        address = address if sizes.dp > 1 else self.arguments.address_variable("VLLM_DP_MASTER_IP", "127.0.0.1")
        found = Node(
            self.arguments,
            sizes,
            start,
            local,
            balancing,
            multi_port,
            headless,
            nodes,
            node,
            spans,
            0,
            moe,
            known,
            address or "127.0.0.1",
            self.arguments.port("data_parallel_rpc_port", 29550),
            self.arguments.address("master_addr") or "127.0.0.1",
            self.arguments.port("master_port", 29501),
        )
        if offline:
            found = self.offline(found)
        return replace(found, api_servers=self.api_servers(found))

    def node_rank(self, nodes: int) -> int:
        node = self.number("node_rank", 0)
        if not self.arguments.given("node_rank") and self.arguments.command.node is not None and nodes > 1:
            node = self.arguments.command.node
        if not 0 <= node < nodes:
            self.refuse(f"--node-rank must be from 0 to {nodes - 1}, not {node}", "node_rank", "nnodes")
            return min(max(node, 0), nodes - 1)
        return node

    def moe(self, sizes: Sizes) -> tuple[bool, bool]:
        model = str(self.value("model_tag") or self.value("model", ""))
        if not all(word.certain for word in self.words("model_tag", "model")):
            model = ""
        found = is_moe(model, self.value("hf_config_path"))
        if found is not None:
            return found, True
        if self.value("enable_expert_parallel", False):
            return True, True
        external = (
            self.value("data_parallel_external_lb", False)
            or self.value("data_parallel_multi_port_external_lb", False)
            or self.value("data_parallel_rank") is not None
        )
        # The engine refuses dense models there, so whoever asks for it has another.
        if external and self.release.has("external lb needs moe"):
            return True, False
        return False, sizes.dp == 1

    def place(
        self, sizes: Sizes, nodes: int, node: int, headless: bool, multi_port: bool
    ) -> tuple[int, int, Balancing, int]:
        """First replica, number of replicas, balancing, nodes of a replica."""
        rank = self.index("data_parallel_rank", 1)
        start = self.index("data_parallel_start_rank", self.number("data_parallel_size_local", 1))
        local = self.value("data_parallel_size_local")
        hybrid = bool(self.value("data_parallel_hybrid_lb", False))
        external = bool(self.value("data_parallel_external_lb", False)) or rank is not None
        inferred = 0
        if nodes > 1:
            if sizes.dp * sizes.world % nodes:
                self.refuse(
                    f"--nnodes {nodes} must divide the {sizes.dp * sizes.world} workers evenly",
                    "nnodes",
                    "tensor_parallel_size",
                    "pipeline_parallel_size",
                    "data_parallel_size",
                )
                return 0, sizes.dp, "internal", 1
            on_node = sizes.dp * sizes.world // nodes
            inferred = node * on_node // sizes.world
            if external and sizes.dp > 1:
                if rank is None and nodes % sizes.dp:
                    self.refuse("--node-rank does not tell the data-parallel rank: give --data-parallel-rank", "nnodes")
                rank = inferred if rank is None else rank
            elif local is None:
                local = max(on_node // sizes.world, 1)
        if multi_port:
            local = self.number("data_parallel_size_local", 1)
            return (node * local if start is None else start), local, "external", 1
        if sum((hybrid, external)) > 1 or (external and start is not None and self.release.has("one balancing mode")):
            self.refuse(
                "only one of the modes of data-parallel load balancing can be had",
                "data_parallel_hybrid_lb",
                "data_parallel_external_lb",
                "data_parallel_rank",
                "data_parallel_start_rank",
            )
        if external:
            if rank is None and self.arguments.lacks("data_parallel_rank"):
                self.refuse("--data-parallel-external-lb needs a --data-parallel-rank", "data_parallel_external_lb")
            if local not in (1, None):
                self.refuse(
                    "with --data-parallel-rank, --data-parallel-size-local must be 1", "data_parallel_size_local"
                )
            return rank or 0, 1, "external", self.spans(sizes, nodes, 1, external=True)
        if local is None:
            if hybrid and self.arguments.lacks("data_parallel_size_local"):
                self.refuse("--data-parallel-hybrid-lb needs --data-parallel-size-local", "data_parallel_hybrid_lb")
            return 0, sizes.dp, "internal", self.spans(sizes, nodes, sizes.dp, external=False)
        counts = start is not None if self.release.has("start rank 0 counts") else bool(start)
        hybrid = hybrid or (counts and not headless)
        if headless and hybrid:
            self.refuse(
                "--data-parallel-hybrid-lb and --headless exclude each other", "data_parallel_hybrid_lb", "headless"
            )
        balancing: Balancing = "internal"
        if hybrid and local == 1:
            balancing = "external"
        elif hybrid and local != sizes.dp:
            balancing = "hybrid"
        first = inferred if start is None else start
        return first, int(local), balancing, self.spans(sizes, nodes, int(local), external=balancing == "external")

    def index(self, dest: str, step: int) -> int | None:
        """A data-parallel rank; one that only the run time knows follows from the node, where the file says it."""
        found = self.value(dest)
        if found is None and dest in self.arguments.uncertain:
            node = self.arguments.command.node
            return None if node is None else node * step
        return None if found is None else int(found)

    def spans(self, sizes: Sizes, nodes: int, local: int, *, external: bool) -> int:
        if nodes == 1 or local < 1:
            return 1
        groups = max(sizes.dp // local, 1)
        if nodes % groups and not external:
            self.refuse(
                f"--nnodes {nodes} must be a multiple of the {groups} groups of replicas",
                "nnodes",
                "data_parallel_size",
                "data_parallel_size_local",
            )
        return max(nodes // groups, 1)

    def offline(self, node: Node) -> Node:
        """VLLM_DP_SIZE and VLLM_DP_RANK, which count where the command line gives no data parallelism."""
        environment = self.arguments
        dp, rank = environment.integer("VLLM_DP_SIZE", 1), environment.integer("VLLM_DP_RANK", 0)
        if dp <= 1:
            return node
        if not node.moe and self.release.has("external lb needs moe") and node.moe_known:
            environment.refuse("RB606", "VLLM_DP_SIZE is not for dense models", *environment.set("VLLM_DP_SIZE"))
        sizes = replace(node.sizes, dp=dp)
        return replace(node, sizes=sizes, start=rank, local=1, balancing="external", offline=True)

    def api_servers(self, node: Node) -> int:
        if node.headless:
            if self.number("api_server_count", 0) > (0 if self.release.has("api servers by default") else 1):
                self.refuse(
                    "--api-server-count cannot be had with --headless: no server is started", "api_server_count"
                )
            return 0
        if self.arguments.module:
            return 1
        count = self.value("api_server_count") if self.arguments.given("api_server_count") else None
        if count is None:
            count = 1
            if self.release.has("api servers by default") and not self.rust():
                start_rank = self.value("data_parallel_start_rank") is not None
                if node.multi_port or node.balancing == "external":
                    count = 1
                elif self.value("data_parallel_hybrid_lb", False) or start_rank:
                    count = self.number("data_parallel_size_local", 1)
                else:
                    count = node.sizes.dp
        if self.rust() or self.value("enable_elastic_ep", False):
            count = min(int(count), 1)
        return max(int(count), 1)

    def rust(self) -> bool:
        """Whether the front end in Rust serves."""
        return self.arguments.variable("VLLM_USE_RUST_FRONTEND", "0") not in ("0", "")


def _preconditions(node: Node) -> Iterator[tuple[str, *tuple[Word, ...]]]:
    """What the engine checks itself, for sizes that came out."""
    arguments, sizes, has = node.arguments, node.sizes, node.release.has
    words = arguments.words
    if sizes.dp * sizes.world > MAX_RANKS:
        factors = words("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        yield f"{sizes.dp * sizes.world} workers are more than can be", *factors
        return
    for dest in ("host", "data_parallel_address", "master_addr"):
        given = arguments.address(dest)
        if given and _NO_ADDRESS.search(given):
            yield f"{flag(dest)} {given!r} is no address", *words(dest)
    if not 0 <= node.start < sizes.dp:
        which = words("data_parallel_rank", "data_parallel_start_rank", "data_parallel_size")
        yield f"data-parallel rank {node.start} must be from 0 to {sizes.dp - 1}", *which
    if node.local < 0:
        yield f"--data-parallel-size-local cannot be {node.local}", *words("data_parallel_size_local")
    if node.local > sizes.dp:
        yield (
            f"--data-parallel-size-local {node.local} is more than the {sizes.dp} replicas",
            *words("data_parallel_size_local"),
        )
    if node.headless and node.local < 1:
        yield "a node with --headless needs at least one local replica", *words("data_parallel_size_local")
    if sizes.tp * sizes.pcp % sizes.dcp or (sizes.pcp == 1 and sizes.tp % sizes.dcp):
        yield (
            f"--decode-context-parallel-size {sizes.dcp} must divide --tensor-parallel-size {sizes.tp}",
            *words("decode_context_parallel_size", "tensor_parallel_size"),
        )
    elif sizes.pcp > 1 and sizes.dcp not in (1, sizes.pcp, sizes.tp * sizes.pcp):
        allowed = sorted({1, sizes.pcp, sizes.tp * sizes.pcp})
        yield (
            f"--decode-context-parallel-size must be one of {', '.join(map(str, allowed))}",
            *words("decode_context_parallel_size"),
        )
    external = node.balancing == "external" and not node.offline
    if external and sizes.dp == 1:
        flags = words("data_parallel_rank", "data_parallel_external_lb", "data_parallel_start_rank")
        yield "external load balancing needs --data-parallel-size above 1", *flags
    asked = any(
        arguments.given(dest)
        for dest in ("data_parallel_rank", "data_parallel_external_lb", "data_parallel_multi_port_external_lb")
    )
    if external and asked and sizes.dp > 1 and not node.moe and has("external lb needs moe"):
        yield (
            "external load balancing is for mixture-of-experts models: start dense replicas as servers of their own",
            *words("data_parallel_rank", "data_parallel_external_lb"),
        )
    backend = arguments.value("distributed_executor_backend")
    if node.nodes > 1 and backend not in (None, "mp", "uni", "external_launcher"):
        yield (
            f"--nnodes {node.nodes} needs the executor mp, not {backend}",
            *words("distributed_executor_backend", "nnodes"),
        )
    if node.nodes > 1 and arguments.value("data_parallel_backend", "mp") != "mp":
        yield f"--nnodes {node.nodes} needs --data-parallel-backend mp", *words("data_parallel_backend", "nnodes")
    if node.multi_port:
        yield from _supervised(node)
    text = arguments.variable("VLLM_PORT", "0")
    if not text.isdecimal():
        hint = ": a Kubernetes service called vllm sets it; name the service otherwise" if "://" in text else ""
        yield f"VLLM_PORT must be a port, not {text}{hint}", *arguments.set("VLLM_PORT")


def _supervised(node: Node) -> Iterator[tuple[str, *tuple[Word, ...]]]:
    arguments, dp, local = node.arguments, node.sizes.dp, node.local
    words = arguments.words("data_parallel_multi_port_external_lb")
    if dp < 2:
        yield "--data-parallel-multi-port-external-lb needs --data-parallel-size above 1", *words
    elif local < 2:
        yield "--data-parallel-multi-port-external-lb needs --data-parallel-size-local of at least 2", *words
    elif dp % local:
        yield f"--data-parallel-size {dp} must be a multiple of --data-parallel-size-local {local}", *words
    elif node.start + local > dp:
        yield f"replicas {node.start} to {node.start + local - 1} run past --data-parallel-size {dp}", *words
    for dest in ("grpc", "uds", "data_parallel_rank", "data_parallel_external_lb", "data_parallel_hybrid_lb"):
        if arguments.given(dest):
            yield f"--data-parallel-multi-port-external-lb does not go with {flag(dest)}", *arguments.words(dest)
    if arguments.given("api_server_count") and arguments.value("api_server_count") != 1:
        yield "--data-parallel-multi-port-external-lb needs --api-server-count 1", *arguments.words("api_server_count")
    port, supervisor = arguments.port("port", 8000).number, arguments.port("data_parallel_supervisor_port", 9256).number
    if port and port <= supervisor < port + local:
        yield (
            f"the supervisor's port {supervisor} is among those of the servers, {port} to {port + local - 1}",
            *arguments.words("port", "data_parallel_supervisor_port"),
        )
