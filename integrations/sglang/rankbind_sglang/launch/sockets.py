"""Everything of a launch that listens, beside the KV events: who binds where, who dials it, and which words say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankbind.endpoint import MAX_PORT
from rankbind.launch.command import Word
from rankbind_sglang.launch.arguments import Arguments
from rankbind_sglang.launch.deployment import Deployment, tcp
from rankbind_sglang.launch.rules import RANK_ZERO, Rules

_DERIVED = 233
_HANDSHAKE = 13
_FIRST_RANK: Mapping[str, int] = {"pp": 0, "tp": 0}
"""Rank 0 of each replica."""

_LOAD_AWARE = ("total_requests", "total_tokens")


def state(d: Deployment) -> None:
    """State them all."""
    _http(d)
    for word in d.lead.words("--use-ray"):
        d.draft.ignored.append((word, "Ray places the ranks; they are shown where SGLang would"))
    if d.lead.value("--encoder-only"):
        for word in d.lead.words("--encoder-only"):
            d.draft.ignored.append((word, "an encoder's own processes are not looked at, only its HTTP server"))
        return
    _rendezvous(d)
    if d.sizes.dp_attention:
        _over_ports(d)
    else:
        _over_files(d)
    _disaggregation(d)
    _elastic(d)
    _others(d)


def _rank_zero(d: Deployment) -> dict[str, Any]:
    """Where the processes of the server run: beside the first rank of node 0."""
    return {"rank": d.firsts[0] or 0}


def _host(arguments: Arguments) -> str:
    return arguments.text("--host") or "127.0.0.1"


def _at(arguments: Arguments, port: int) -> dict[str, Any]:
    """An address at ``--host``, as servers for HTTP and gRPC take it: an IPv6 one is for IPv6 alone."""
    host = _host(arguments)
    six = ":" in host
    return {"bind": tcp(host, port), "ipv6": True if six else None, "v6only": True if six else None}


def _where(arguments: Arguments, *options: str) -> tuple[Word, ...]:
    return (*(word for option in options for word in arguments.words(option)), *arguments.words("--host"))


# HTTP and gRPC


def _http(d: Deployment) -> None:
    a, rules = d.lead, d.rules
    port = a.value("--port")
    words = _where(a, "--port")
    legacy = bool(a.value("--smg-grpc-mode") or a.value("--grpc-mode"))
    move = dict.fromkeys(("RB201", "RB5"), "give each server a --port of its own")
    if legacy and not a.value("--encoder-only"):
        _legacy_grpc(d, port)
    elif rules.rust and a.flag("SGLANG_RUST_SERVER"):
        _rust(d, port, words)
    else:
        d.draft.resource(
            "http",
            *words,
            owner=_rank_zero(d),
            process="HTTP server",
            about="the API, /server_info, and /metrics with --enable-metrics: entrypoints/http_server.py",
            shared="reuseport" if a.value("--enable-http-worker-reuseport") else None,
            remedies=move,
            **_at(a, port),
        )
        _native_grpc(d)
    _health(d, hosted=_hosting_rust(d), remedies=move)


def _health(d: Deployment, *, hosted: Sequence[int], remedies: Mapping[str, str]) -> None:
    """The server that nodes behind the first have in place of the API."""
    groups: dict[tuple[str, int], list[int]] = {}
    for node in range(1, len(d.nodes)):
        if node not in hosted and d.firsts[node] is not None:
            groups.setdefault((_host(d.nodes[node]), d.nodes[node].value("--port")), []).append(node)
    for at, ((_, port), nodes) in enumerate(groups.items(), start=1):
        a = d.nodes[nodes[0]]
        d.draft.resource(
            "health" if len(groups) == 1 else f"health-{at}",
            *_where(a, "--port"),
            owner=d.beside(nodes),
            process="health server",
            about="answers health checks on nodes that do not serve: utils/common.py",
            remedies=remedies,
            **_at(a, port),
        )


def _hosting_rust(d: Deployment) -> list[int]:
    """The nodes whose port is the Rust server's."""
    if not (d.rules.rust and d.lead.flag("SGLANG_RUST_SERVER")):
        return []
    width = d.sizes.attn_tp * d.sizes.attn_cp
    return [
        node for node in range(len(d.nodes)) if any(pp == 0 and tp % width == 0 for pp, tp in d.sizes.started(node))
    ]


def _rust(d: Deployment, port: int, words: Sequence[Word]) -> None:
    """A server in each leader of a KV cache, on ports counted along its node."""
    sizes = d.sizes
    offset = ""
    if sizes.dp_attention and d.rules.rust_offset == "node":
        local = "tp" if sizes.nodes_per_stage == 1 else f"tp % {sizes.tp_per_node}"
        offset = f" + ({local}) // {sizes.attn_tp * sizes.attn_cp}"
    elif sizes.cache_axis and d.rules.rust_offset == "replica":
        offset = f" + {sizes.cache_axis}"
    how = "counted from the first of each node" if d.rules.rust_offset == "node" else "counted by the KV cache"
    for name, base, option in (("rust-http", port, "--port"), ("rust-grpc", _grpc_port(d), "--grpc-port")):
        if base is None:
            continue
        at = _at(d.lead, base)
        if offset:
            at["bind"] = tcp(_host(d.lead), f"{{{base}{offset}}}")
        d.draft.resource(
            name,
            *(words if option == "--port" else _where(d.lead, option)),
            *d.lead.variable("SGLANG_RUST_SERVER"),
            owner=RANK_ZERO,
            process="Rust server",
            about=f"the API in place of Python's (SGLANG_RUST_SERVER), {how}: rust_server",
            **at,
        )


def _grpc_port(d: Deployment) -> int | None:
    """The port of the native gRPC server, where there is one."""
    a = d.lead
    if d.rules.grpc == "option":
        port: int | None = a.value("--grpc-port")
        return a.number("SGLANG_GRPC_PORT") if port is None else port
    if d.rules.grpc == "variable":
        number = a.number("SGLANG_GRPC_PORT")
        return a.value("--port") + 10000 if number is None else number
    return None


def _native_grpc(d: Deployment) -> None:
    a, rules = d.lead, d.rules
    port = _grpc_port(d)
    words = (*a.words("--grpc-port"), *a.variable("SGLANG_GRPC_PORT"))
    if port is None:
        return
    if not 1 <= port <= MAX_PORT:
        if words:
            d.draft.refuse("RB606", f"the gRPC port is {port}; ports are 1..{MAX_PORT}", *words)
        else:
            d.draft.refuse(
                "RB606",
                f"this release wants port {port} (--port + 10000) for gRPC, even without it; ports end at {MAX_PORT}",
                *a.words("--port"),
                fix="take a --port up to 55535, or set SGLANG_GRPC_PORT",
            )
        return
    if rules.grpc == "variable" and not a.flag("SGLANG_ENABLE_GRPC"):
        return
    if port == a.value("--port"):
        d.draft.refuse("RB606", f"gRPC and HTTP both take port {port}", *words, *a.words("--port"))
        return
    if rules.grpc == "option":
        _grpc_alone(d, words)
    nodes = range(len(d.nodes)) if rules.grpc_followers else [0]
    d.draft.resource(
        "grpc",
        *words,
        owner=d.beside(nodes) if rules.grpc_followers else _rank_zero(d),
        process="gRPC server",
        about="the native gRPC server"
        + (", and what is known of each further node" if len(d.nodes) > 1 and rules.grpc_followers else ""),
        **_at(a, port),
    )


def _grpc_alone(d: Deployment, words: Sequence[Word]) -> None:
    """What the native gRPC server does not go with."""
    for option in ("--use-ray", "--encoder-only", "--api-key", "--admin-api-key"):
        if d.lead.value(option):
            d.draft.refuse("RB606", f"--grpc-port does not go with {option}", *words, *d.lead.words(option))
    if (d.lead.value("--tokenizer-worker-num") or 1) > 1:
        more = d.lead.words("--tokenizer-worker-num")
        d.draft.refuse("RB606", "--grpc-port does not go with several tokenizer workers", *words, *more)


def _legacy_grpc(d: Deployment, port: int) -> None:
    a = d.lead
    words = a.words("--smg-grpc-mode", "--grpc-mode")
    grpc = port if d.rules.grpc != "option" else _grpc_port(d) or port + 10000
    d.draft.resource(
        "grpc",
        *words,
        owner=_rank_zero(d),
        process="gRPC server",
        about="gRPC in place of HTTP: entrypoints/grpc_server.py",
        **_at(a, grpc),
    )
    if d.patch >= 11:
        option = "--smg-http-sidecar-port" if a.has("--smg-http-sidecar-port") else "--grpc-http-sidecar-port"
        sidecar = a.value(option)
        d.draft.resource(
            "http",
            *words,
            owner=_rank_zero(d),
            process="HTTP sidecar",
            about="metrics and profiling beside gRPC; where the port is taken, only a line in the log says so",
            **_at(a, port + 1 if sidecar is None else sidecar),
        )


# torch


def _rendezvous(d: Deployment) -> None:
    a = d.lead
    if d.outside:
        return
    nccl, words = a.value("--nccl-port"), a.words("--nccl-port")
    host, port = _host(a), nccl
    if d.rendezvous is not None:
        (host, port), words = d.rendezvous, d.rendezvous_words
    several = d.sizes.replicas > 1
    option = "--dist-init-addr" if d.rendezvous else "--nccl-port"
    d.draft.resource(
        "torch-rendezvous",
        *words,
        owner=_FIRST_RANK,
        bind=tcp("*", port or 0),
        ipv6=True,
        connect=[{"to": tcp(host, port), "by": "the ranks of its replica"}] if port else None,
        process="torch's store",
        about="where the ranks of a replica find one another: distributed/bootstrap.py"
        + ("" if port else "\na port that was free when the server started"),
        remedies={
            "RB201": f"leave {option} out: each replica then rendezvouses at a port of its own"
            if several
            else "give each launch a --dist-init-addr of its own",
            "RB210": "give --dist-init-addr an address of node 0 that all nodes can dial",
        },
    )


# Between the tokenizer, the controller and the schedulers


def _over_files(d: Deployment) -> None:
    """Without data-parallel attention: unix sockets with fresh temporary names."""
    fresh = "a temporary name: "
    rank_zero = _rank_zero(d)
    for name, process, about in (
        ("tokenizer", "tokenizer manager", "what comes back to the tokenizer"),
        ("detokenizer", "detokenizer", "what the schedulers have to say"),
        ("scheduler-input", "tokenizer manager", "requests, to the scheduler or the controller"),
    ):
        if name == "detokenizer" and d.lead.value("--skip-tokenizer-init"):
            continue
        d.draft.resource(name, owner=rank_zero, bind="ipc://*", process=process, about=fresh + about)
    if d.sizes.replicas > 1:
        d.draft.resource(
            "scheduler-input-dp",
            *d.lead.words("--dp-size"),
            owner=_FIRST_RANK,
            bind="ipc://*",
            process="DP controller",
            about=f"{fresh}requests, from the controller to each replica",
        )


@dataclass(frozen=True)
class _Derived:
    """The ports that are derived from one: `store` itself, and those from `base` on."""

    host: str
    store: int
    base: int


def derived(d: Deployment) -> _Derived | None:
    """The derived ports; None where the engine cannot derive any."""
    rules: Rules = d.rules
    if d.rendezvous is not None:
        host, store = d.rendezvous
    elif len(d.nodes) == 1 and d.lead.text("--dist-init-addr") is None:
        host, store = "127.0.0.1", d.lead.value("--port") + _DERIVED
        if rules.reserved is not None and store > MAX_PORT:
            store -= 2 * _DERIVED
    else:
        return None
    reserved = rules.reserved or 0
    if rules.reserved_with_rust and d.lead.flag("SGLANG_RUST_SERVER"):
        reserved += d.sizes.caches
    wraps = rules.reserved is not None and store + reserved > MAX_PORT
    return _Derived(host, store, store - reserved - 1 if wraps else store + 1)


def _over_ports(d: Deployment) -> None:
    """With data-parallel attention: ports behind the rendezvous' or the server's, on node 0."""
    at = derived(d)
    if at is None:
        return
    words = d.rendezvous_words or d.lead.words("--port")
    rust = d.rules.rust and d.lead.flag("SGLANG_RUST_SERVER")
    six = True if ":" in at.host else None
    source = "--dist-init-addr" if d.rendezvous else f"--port + {_DERIVED}"
    move = {code: f"take other ports by {source.partition(' ')[0]}" for code in ("RB201", "RB5")}
    past = {"RB203": "lower the port of " + source.partition(" ")[0]}

    def listener(name: str, port: int, process: str, about: str, dialled: Mapping[str, int] | None, by: str) -> None:
        d.draft.resource(
            name,
            *words,
            owner=_rank_zero(d),
            bind=tcp(at.host, port),
            ipv6=six,
            connect=None if dialled is None else [{"to": tcp(at.host, port), "owner": dict(dialled), "by": by}],
            process=process,
            about=f"{about}: PortArgs, counted from {source}",
            remedies=move | past,
        )

    listener("tokenizer", at.base, "tokenizer manager", "what comes back to the tokenizer", RANK_ZERO, "schedulers")
    listener("detokenizer", at.base + 1, "detokenizer", "what the schedulers have to say", RANK_ZERO, "schedulers")
    listener("scheduler-input", at.base + 4, "tokenizer manager", "requests, to the controller", None, "")
    if d.rules.load_collector and (len(d.nodes) > 1 or d.lead.flag("SGLANG_LOAD_SNAPSHOT_USE_ZMQ")):
        aware = str(d.lead.value("--load-balance-method") or "").lower() in _LOAD_AWARE
        process = "DP controller" if aware else "tokenizer manager"
        listener("load-collector", at.base + 5, process, "the load of each KV cache", RANK_ZERO, "schedulers")
    _worker_ports(d, at, rust=rust)
    _probes(d, at, words)


def _worker_ports(d: Deployment, at: _Derived, *, rust: bool) -> None:
    a = d.lead
    words = a.words("--attn-dp-size", "--dp-size", "--dwdp-size")
    if rust:
        d.draft.resource(
            "rust-slots",
            *words,
            owner=RANK_ZERO,
            probe=tcp("*", f"{{{at.base + 6} + attn_dp}}"),
            ipv6=True,
            about="ports kept for the Rust server's requests, and bound by nobody: PortArgs",
        )
    else:
        d.draft.resource(
            "scheduler-input-dp",
            *words,
            owner=_rank_zero(d),
            bind=tcp(at.host, 0),
            ipv6=True if ":" in at.host else None,
            process="DP controller",
            about=f"requests to the {d.sizes.caches} KV caches, a port each: managers/data_parallel_controller.py",
        )
    host, port = d.rendezvous or (_host(a), a.value("--port"))
    others = d.beside(range(1, len(d.nodes)))
    d.draft.resource(
        "dp-handshake",
        *(d.rendezvous_words or a.words("--port")),
        owner=_rank_zero(d),
        bind=tcp(host, port + _HANDSHAKE),
        ipv6=True if ":" in host else None,
        connect=[{"to": tcp(host, port + _HANDSHAKE), "owner": others, "by": "the DP controllers of the other nodes"}]
        if others["rank"]
        else None,
        process="DP controller",
        about=f"tells the other nodes the ports of the KV caches; {_HANDSHAKE} behind "
        f"{'--dist-init-addr' if d.rendezvous else '--port'}, whatever the others are",
        remedies={"RB203": f"take a port up to {MAX_PORT - _HANDSHAKE}: no release looks at this one"},
    )


def _probes(d: Deployment, at: _Derived, words: Sequence[Word]) -> None:
    """The ports that every node looks at before it starts, whoever binds them later."""
    a = d.lead
    unchecked = d.outside and d.rules.store_unchecked
    nccl = a.value("--nccl-port")
    ports = [] if unchecked else [at.store]
    ports += [at.base, at.base + 1]
    ports += [nccl] if nccl and not unchecked else []
    ports += [at.base + 2, at.base + 3]
    ports += [at.base + 5] if d.rules.load_collector and len(d.nodes) > 1 else []
    ports += [at.base + 4]
    d.draft.resource(
        "start-up-check",
        *words,
        owner=d.beside(range(len(d.nodes))),
        probe=[tcp("*", port) for port in dict.fromkeys(ports)],
        ipv6=True,
        process="launcher",
        about=f"ports that have to be free on every node when it starts, or it waits 30 s and fails: PortArgs\n"
        f"of these {at.base + 2} (rpc) and {at.base + 3} (metrics) are bound by nobody",
        remedies={"RB203": "lower the port of " + ("--dist-init-addr" if d.rendezvous else "--port")},
    )


# Prefill and decode apart, encoders apart


def _disaggregation(d: Deployment) -> None:
    a = d.lead
    mode = a.value("--disaggregation-mode", "null")
    port = a.value("--disaggregation-bootstrap-port")
    rust = d.rules.rust and a.flag("SGLANG_RUST_SERVER")
    starts = mode == "prefill" or (mode != "null" and a.value("--enable-pd-role-switch"))
    words = _where(a, "--disaggregation-bootstrap-port", "--disaggregation-mode")
    if starts and not rust:
        host = d.rendezvous[0] if d.rendezvous else _host(a)
        to = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        d.draft.resource(
            "pd-bootstrap",
            *words,
            owner=_rank_zero(d),
            connect=[{"to": tcp(to, port), "by": "every prefill rank, to register"}] if mode == "prefill" else None,
            process="bootstrap server",
            about="where decode servers find the prefill ranks: managers/disagg_service.py",
            remedies={
                "RB201": "give it a --disaggregation-bootstrap-port of its own",
                "RB5": "give each server a --disaggregation-bootstrap-port of its own",
            }
            | dict.fromkeys(
                ("RB210", "RB211"), "add --host 0.0.0.0: ranks register at the address of --dist-init-addr"
            ),
            **_at(a, port),
        )
    if mode != "null":
        d.draft.resource(
            "pd-rank",
            *a.words("--disaggregation-mode"),
            owner={},
            bind="tcp://local-ip:0",
            about="where KV caches are asked for, told through the bootstrap server: disaggregation/common/conn.py",
        )
    if mode == "prefill" and d.sizes.pp > 1 and d.patch >= 23:
        d.draft.resource(
            "pp-consensus",
            *a.words("--pp-size"),
            owner={"pp": 0},
            bind="tcp://local-ip:0",
            about="where the stages agree on what has arrived: disaggregation/common/conn.py",
        )
    if a.value("--language-only") and a.has("--encoder-bootstrap-port"):
        d.draft.resource(
            "encoder-bootstrap",
            *_where(a, "--encoder-bootstrap-port", "--language-only"),
            owner=_rank_zero(d),
            process="tokenizer manager",
            about="where encoders register: disaggregation/encoder",
            **_at(a, a.value("--encoder-bootstrap-port")),
        )


# The rest


def _elastic(d: Deployment) -> None:
    a = d.lead
    elastic = a.value("--elastic-ep-backend")
    if d.patch >= 10 and a.value("--enable-elastic-expert-backup") and elastic:
        base = 10000 if a.number("SGLANG_BACKUP_PORT_BASE") is None else a.number("SGLANG_BACKUP_PORT_BASE")
        node = _node_of(d)
        d.draft.resource(
            "expert-backup",
            *a.words("--enable-elastic-expert-backup"),
            *a.variable("SGLANG_BACKUP_PORT_BASE"),
            owner=d.beside(range(len(d.nodes))),
            bind=[f"tcp://local-ip:{{{base} + 2 * {node}}}", f"tcp://local-ip:{{{base} + 2 * {node} + 1}}"]
            if node
            else [f"tcp://local-ip:{base}", f"tcp://local-ip:{(base or 0) + 1}"],
            process="launcher",
            about="experts that are kept for others: elastic_ep/expert_backup_manager.py",
        )
    if d.patch >= 10 and (elastic or a.value("--moe-a2a-backend") == "nixl"):
        port = a.number("SGLANG_TCP_STORE_PORT") or 29600
        d.draft.resource(
            "expert-store",
            *a.words("--elastic-ep-backend", "--moe-a2a-backend"),
            owner=_FIRST_RANK,
            bind=tcp("*", port),
            ipv6=True,
            shared="reuseport" if d.sizes.replicas > 1 else None,
            about="a store for all ranks, distributed/parallel_state.py: where its port is taken, a warning says so",
        )


def _node_of(d: Deployment) -> str:
    """The index of a rank's node, as arithmetic; empty where there is one node."""
    sizes = d.sizes
    if len(d.nodes) == 1:
        return ""
    stage = f"pp // {sizes.pp_per_node}" if sizes.pp_per_node > 1 else "pp"
    if sizes.nodes_per_stage == 1:
        return f"({stage})"
    return f"(({stage}) * {sizes.nodes_per_stage} + tp // {sizes.tp_per_node})"


def _others(d: Deployment) -> None:
    a = d.lead
    gated = a.value("--gated-launch-port")
    if gated is not None:
        d.draft.resource(
            "gated-launch",
            *_where(a, "--gated-launch-port"),
            owner=_FIRST_RANK,
            process="rank 0 of each replica",
            about="waits to be told to go on: distributed/gated_launch.py",
            remedies={"RB201": "leave --gated-launch-port out: every replica binds it"},
            **_at(a, gated),
        )
    seed = a.value("--remote-instance-weight-loader-start-seed-via-transfer-engine")
    if seed and a.has("--engine-info-bootstrap-port"):
        d.draft.resource(
            "engine-info",
            *_where(a, "--engine-info-bootstrap-port"),
            *a.words("--remote-instance-weight-loader-start-seed-via-transfer-engine"),
            owner=_rank_zero(d),
            process="bootstrap server",
            about="tells other servers where the weights are: entrypoints/engine_info_bootstrap_server.py",
            remedies={"RB5": "give each server an --engine-info-bootstrap-port of its own"},
            **_at(a, a.value("--engine-info-bootstrap-port")),
        )
    endpoint = a.text("--decoupled-spec-bind-endpoint")
    if endpoint and (a.value("--decoupled-spec-role") or "null") != "null":
        d.draft.resource(
            "decoupled-speculation",
            *a.words("--decoupled-spec-bind-endpoint"),
            owner=RANK_ZERO,
            bind=endpoint.replace("{", "{{").replace("}", "}}"),
            about="where verifier and drafter meet",
        )
    dumper = a.number("DUMPER_SERVER_PORT")
    if dumper is not None and dumper > 0:
        d.draft.resource(
            "dumper",
            *a.variable("DUMPER_SERVER_PORT"),
            owner=_FIRST_RANK,
            bind=tcp("0.0.0.0", dumper),
            about="a debugging server of global rank 0",
        )
