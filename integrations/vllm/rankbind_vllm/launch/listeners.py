"""Everything that a deployment binds, dials and owns, stated as resources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rankbind.endpoint import IPC_PATH_BYTES
from rankbind.launch.draft import Draft
from rankbind_vllm.launch import kv_events, transfer
from rankbind_vllm.launch.arguments import Port
from rankbind_vllm.launch.deployment import Deployment
from rankbind_vllm.launch.layout import Node
from rankbind_vllm.launch.statement import Said, Statement, at_home, escaped, listed, tcp

_UUID = 36


def state(draft: Draft, deployment: Deployment) -> None:
    """Put all of it into the draft."""
    statement = Statement(draft, deployment)
    for part in (_gpus, _http, _handshake, _clients, _coordinator, _rendezvous, _queues, _gates):
        part(statement)
    kv_events.state(statement)
    transfer.state(statement)
    statement.state_knobs()
    hidden = _hidden(statement)
    for name in draft.names:
        draft.remedies[name, "RB3"] = hidden


# Devices


def _gpus(at: Statement) -> None:
    nodes = at.deployment.nodes
    if any(_placed_elsewhere(one) for one in nodes):
        return
    devices: dict[int, str] = {}
    local: dict[int, int] = {}
    for host in at.deployment.hosts:
        for index, (node, rank) in enumerate((each, rank) for each in host.nodes for rank in each.ranks):
            if node.assumed and len(host.nodes) > 1:
                continue
            device = _device(node, node.gpu(rank))
            if device is None:
                return
            devices[rank], local[rank] = device, index
    words = at.deployment.words("device_ids")
    words = words or tuple(word for one in nodes for word in one.arguments.set("CUDA_VISIBLE_DEVICES"))
    about = "the GPU of each worker: ParallelConfig.get_local_gpu_index, among those that the process sees"
    template = _template(devices, local, at.sizes.world)
    if template is not None:
        owner: dict[str, Any] = {} if len(devices) == at.sizes.dp * at.sizes.world else {"rank": listed(devices)}
        remedies = {"RB604": "CUDA_VISIBLE_DEVICES: other GPUs for each command"}
        at.draft.resource("gpu", *words, owner=owner, device=f"gpu {template}", about=about, remedies=remedies)
        return
    for device in dict.fromkeys(devices.values()):
        ranks = [rank for rank, other in devices.items() if other == device]
        at.draft.resource(f"gpu-{device}", *words, owner={"rank": listed(ranks)}, device=f"gpu {device}", about=about)


def _placed_elsewhere(node: Node) -> bool:
    """Whether somebody else says which GPU a worker takes."""
    return (
        node.arguments.value("distributed_executor_backend") in ("ray", "external_launcher")
        or node.arguments.value("data_parallel_backend", "mp") == "ray"
    )


def _device(node: Node, index: int) -> str | None:
    """The device with this number among those that a process sees; None: it cannot be told."""
    visible = node.arguments.value("device_ids")
    given = node.arguments.command.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None and given is not None:
        if not given.certain:
            return None
        visible = given.text
    if not visible:
        return str(index)
    names = (
        [name.strip() for name in visible.split(",")] if isinstance(visible, str) else [str(name) for name in visible]
    )
    return names[index] if index < len(names) else str(index)


def _template(devices: Mapping[int, str], local: Mapping[int, int], world: int) -> str | None:
    """One way to compute the device of every rank, where there is one."""
    if not devices or not all(device.isdecimal() for device in devices.values()):
        return None
    numbers = {rank: int(device) for rank, device in devices.items()}
    shifts = {number - local[rank] for rank, number in numbers.items()}
    if len(shifts) == 1 and min(shifts) >= 0:
        return f"{{local_rank + {shifts.pop()}}}" if shifts != {0} else "{local_rank}"
    return f"{{rank % {world}}}" if all(number == rank % world for rank, number in numbers.items()) else None


# Servers


def _http(at: Statement) -> None:
    remedies = {"RB2": "--port: one of its own for each command of a host"}

    def serves(node: Node, port: object) -> dict[str, Any]:
        return tcp(node.arguments.address("host"), port) | {"authenticated": _asks(node)}

    def server(node: Node) -> Said | None:
        arguments = node.arguments
        if node.multi_port:
            return None
        about = "HTTP: the API, /metrics" + (", /kv_event_sources" if at.release.has("sources advertised") else "")
        process = "API server" if node.api_servers == 1 else f"{node.api_servers} API servers"
        uds = arguments.value("uds")
        if uds:
            return Said({"bind": f"ipc://{escaped(uds)}", "process": process, "about": about}, arguments.words("uds"))
        if node.api_servers > 1:
            about += "\nall inherit one socket; its SO_REUSEPORT lets a second launch on the port pass unnoticed"
        port = arguments.port("port", 8000)
        keys = {**serves(node, port), "process": process, "about": about, "remedies": remedies}
        return Said(keys, arguments.words("port", "host"), port)

    def child(node: Node) -> Said | None:
        if not node.multi_port:
            return None
        port = node.arguments.port("port", 8000)
        words = node.arguments.words("port", "data_parallel_multi_port_external_lb")
        about = "HTTP of one server for each replica: --port and the index of the replica on its node"
        keys = serves(node, port.plus(f"dp - {node.start}" if node.start else "dp"))
        return Said({**keys, "process": "API server of the replica", "about": about, "remedies": remedies}, words, port)

    def supervisor(node: Node) -> Said | None:
        if not node.multi_port:
            return None
        words = node.arguments.words("data_parallel_supervisor_port", "data_parallel_multi_port_external_lb")
        port = node.arguments.port("data_parallel_supervisor_port", 9256)
        # It answers whoever asks how they are, and does nothing else.
        keys = tcp(node.arguments.address("host"), port) | {"authenticated": None}
        about = "health of the servers that it has started"
        return Said({**keys, "process": "DP supervisor", "about": about}, words, port)

    def grpc(node: Node) -> Said | None:
        if node.arguments.value("grpc_port") is None:
            return None
        port = node.arguments.port("grpc_port", 0)
        keys = serves(node, port)
        if node.arguments.value("uds"):
            keys = tcp("127.0.0.1", port)
        about = "gRPC of the front end in Rust"
        return Said({**keys, "process": "API server", "about": about}, node.arguments.words("grpc_port"), port)

    if at.head.multi_port:
        at.spread("http", child, at.engine_ranks, at.engine)
        at.spread("http-supervisor", supervisor, at.server_rank)
    else:
        at.spread("http", server, at.server_rank)
    at.spread("grpc", grpc, at.server_rank)


def _asks(node: Node) -> bool:
    """Whether its servers ask who is there: for a key, or for a certificate."""
    arguments = node.arguments
    if "api_key" in arguments.uncertain or any(arguments.value("api_key", [])) or arguments.value("ssl_cert_reqs") == 2:
        return True
    key = arguments.command.environment.get("VLLM_API_KEY")
    return key is not None and not (key.certain and not key.text)


def _hidden(at: Statement) -> str:
    """How what asks nobody is kept from strangers."""
    asks = all(_asks(node) for node in at.deployment.nodes if not node.headless)
    flags = [] if asks else ["--host"]
    if len(at.deployment.hosts) > 1:
        flags.append("--master-addr" if at.head.nodes > 1 else "--data-parallel-address")
    if not flags:
        return "a firewall, or a network policy, that decides who comes through"
    key = "" if asks else ", and --api-key"
    return (
        f"{' and '.join(flags)}: an address that only a private network sees{key}\n"
        "a firewall, or a network policy, for what has no such flag"
    )


# Front ends, engine cores, the coordinator


def _elastic(node: Node) -> bool:
    return bool(node.arguments.value("enable_elastic_ep", False))


def _handshake(at: Statement) -> None:
    head, about = at.head, "engine cores report here: ROUTER of the front end of replica 0"
    if at.placed and not head.headless:
        words = at.deployment.words("data_parallel_address", "data_parallel_rpc_port", "master_addr")
        if head.offline or (head.local == at.sizes.dp and not _elastic(head)):
            at.draft.resource("dp-handshake", owner=at.first, bind="ipc://*", process="front end", about=about)
        else:
            keys = tcp(head.address, head.rpc_port)
            at.moves(head.rpc_port, "dp-handshake")
            dial = {"to": keys["bind"], "owner": at.engine, "by": "engine cores"}
            at.draft.resource(
                "dp-handshake",
                *(words or at.deployment.words("data_parallel_size")),
                owner=at.first,
                process="front end",
                about=about,
                connect=[dial] if at.meets(head.address) and head.rpc_port.number else None,
                **keys,
            )
    later = [
        rank
        for node in at.deployment.nodes
        if node.local_only and not node.headless
        for rank in at.front_ranks(node)
        if rank > 0
    ]
    if later:
        at.draft.resource(
            "dp-handshake-local",
            owner={"rank": listed(later)},
            bind="ipc://*",
            process="front end",
            about="the same of the other front ends, for the engine cores beside them",
        )


def _clients(at: Statement) -> None:
    arguments = at.head.arguments
    folder = arguments.variable("VLLM_RPC_BASE_PATH", "")
    length = len(folder.encode()) + 1 + _UUID
    if folder and length > IPC_PATH_BYTES:
        at.draft.find(
            "RB206",
            f"the sockets in VLLM_RPC_BASE_PATH have paths of {length} bytes; {IPC_PATH_BYTES} is the most",
            *arguments.set("VLLM_RPC_BASE_PATH"),
            fix="take a shorter folder",
        )

    def sockets(what: str, node: Node) -> Said:
        local = node.offline or node.local_only or node.local == at.sizes.dp
        if _elastic(node) and (not node.local_only or node.start == 0):
            local = False
        each = f", one for each of {node.api_servers} API servers" if node.api_servers > 1 else ""
        keys = {"bind": "ipc://*"} if local else tcp(node.address, 0)
        words = node.arguments.words("data_parallel_address")
        return Said({**keys, "process": "front end", "about": what + each}, words)

    for name, what in (
        ("client-input", "requests to the engine cores: ROUTER"),
        ("client-output", "what the engine cores answer: PULL"),
    ):
        at.spread(name, partial(sockets, what), at.front_ranks)


def _coordinator(at: Statement) -> None:
    head = at.head
    if not head.coordinated or not at.placed or head.headless:
        return
    everybody = tcp(head.address, 0)
    front = {"bind": "ipc://*"} if not head.local_only else everybody
    back = {"bind": "ipc://*"} if head.local == at.sizes.dp and not _elastic(head) else everybody
    for name, keys, about in (
        ("dp-coordinator-front", front, "loads and waves, told to the front ends: XPUB"),
        ("dp-coordinator-back", back, "waves, told to the engine cores: XPUB"),
        ("dp-coordinator-input", back, "what the engine cores report: PULL"),
    ):
        words = at.deployment.words("data_parallel_size")
        at.draft.resource(name, *words, owner=at.first, once_per=[], process="DP coordinator", about=about, **keys)


# torch.distributed


def _rendezvous(at: Statement) -> None:
    head = at.head
    words = at.deployment.words
    if head.meets_at_master:
        keys = tcp(head.master, head.master_port)
        at.moves(head.master_port, "torch-world")
        at.draft.resource(
            "torch-world",
            *(words("master_addr", "master_port") or words("nnodes")),
            owner={"rank": 0},
            process="worker",
            about="init_process_group of all workers",
            connect=[{"to": keys["bind"], "by": "workers"}]
            if at.meets(head.master) and head.master_port.number
            else None,
            **keys,
        )
    elif at.sizes.dp == 1 or head.independent:
        file = at.release.has("file store")
        at.draft.resource(
            "torch-world",
            owner=at.engine,
            process="worker",
            about="init_process_group of the workers of a replica: "
            + ("through a file" if file else "at a port that was free a moment before"),
            **({} if file else tcp("127.0.0.1", _free(at))),
        )
    else:
        at.draft.resource(
            "torch-world",
            *words("data_parallel_size"),
            owner={"rank": 0},
            process="worker",
            about="init_process_group of the workers of all replicas: at a port that was free a moment before",
            **tcp(head.address, _free(at)),
        )
    if at.sizes.dp == 1:
        return
    if not head.independent:
        port = head.arguments.port_variable("VLLM_DP_MASTER_PORT", 0) if head.offline else Port("", 0)
        at.moves(port, "dp-group")
        at.draft.resource(
            "dp-group",
            *(port.words or words("data_parallel_size")),
            owner=at.first,
            process="engine core",
            about="gloo group of the engine cores",
            **tcp(head.address, port),
        )
    if at.release.has("coordination store") and not head.offline and at.placed and not head.headless:
        at.draft.resource(
            "dp-store",
            *words("data_parallel_size"),
            owner=at.first,
            once_per=[],
            process="front end",
            about="TCPStore through which replica 0 tells the others where they meet",
            **tcp(head.address, 0),
        )


def _free(at: Statement) -> str:
    """What the engine's get_open_port finds, and whoever asked binds a moment later.

    Any port; with VLLM_PORT the first from there on that is free: one of as many as there are replicas, and one more,
    behind those that the deployment has bound by then.
    """
    first = at.head.arguments.integer("VLLM_PORT", 0)
    if not first:
        return "0"
    for taken in at.numbers:
        first = taken + 1 if first <= taken <= first + at.sizes.dp else first
    return f"{first}-{first + at.sizes.dp}"


def _queues(at: Statement) -> None:
    if at.sizes.world == 1:
        return
    remote = any(node.spans > 1 for node in at.deployment.nodes)
    at.draft.resource(
        "worker-queue",
        owner=at.engine,
        process="engine core",
        **(at_home(at.head, 0) if remote else {"bind": "ipc://*"}),
        about="steps, told to the workers: shared memory, and a socket "
        + ("at the host's own address for those on other hosts" if remote else "for what does not fit into it"),
    )


def _gates(at: Statement) -> None:
    """What has an owner and no address."""
    at.draft.resource(
        "usage-report", owner=at.engine, process="worker", about="usage statistics: rank 0 of each replica"
    )
    at.draft.resource("driver-worker", owner={"tp": 0}, process="worker", about="rank % tensor_parallel_size == 0")
