"""Everything of a launch that listens, beside the KV events: who binds where, who dials it, and which words say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankbind.endpoint import MAX_PORT
from rankbind.finding import few
from rankbind.launch.command import Word
from rankbind_sglang.launch.arguments import Arguments
from rankbind_sglang.launch.deployment import FREE, Deployment, Port, literal, port_of, tcp
from rankbind_sglang.launch.rules import RANK_ZERO

_DERIVED = 233
_HANDSHAKE = 13
_GRPC = 10000
_LOCAL = "local-ip"
_FIRST_RANK: Mapping[str, int] = {"pp": 0, "tp": 0}
"""Rank 0 of each replica."""

_LOAD_AWARE = ("total_requests", "total_tokens")


def state(d: Deployment) -> None:
    """State them all."""
    d.draft.remedies["", "RB301"] = _FENCE
    d.draft.remedies["", "RB302"] = "take an address of a private network, with a proxy in front that asks who it is"
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


def _listen(d: Deployment, name: str, host: str, port: Port, *words: Word, offset: str = "", **keys: Any) -> None:
    """State a socket that asks nobody who it is, unless `keys` say that it does."""
    if port.unknown:
        keys["about"] += f"\nat a port that is known at run time alone: {port.flag} {port.words[0].text}"
        keys["connect"] = None
    d.draft.resource(
        name,
        *words,
        bind=tcp(host, f"{{{port.number}{offset}}}" if offset and not port.unknown else port.number),
        **({"authenticated": False, "ipv6": True if ":" in host else None} | keys),
    )
    d.moves(port, name)


def _serve(d: Deployment, name: str, port: Port, *words: Word, of: Arguments | None = None, **keys: Any) -> None:
    """State a server for HTTP or gRPC at ``--host``, where an IPv6 address is for IPv6 alone."""
    a = of or d.lead
    host = _host(a)
    keys["v6only"] = True if ":" in host else None
    told = {"RB301": f"{_CLOSE}\nand {_FENCE}", "RB203": f"lower {port.flag}: ports end at {MAX_PORT}"}
    keys["remedies"] = told | keys.get("remedies", {})
    _listen(d, name, host, port, *port.words, *words, *a.words("--host"), **keys)


_OTHER = "take another port for {option}, or for the other of the two"
_CLOSE = "take 127.0.0.1 or an address of a private network for --host"
_FENCE = "let a firewall or a network policy decide who reaches the ports"


def _port(d: Deployment, of: Arguments | None = None) -> Port:
    """``--port``, which has a default."""
    port = d.port("--port", of)
    assert port is not None
    return port


def _is_rust(d: Deployment) -> bool:
    """Whether the Rust server takes the place of the HTTP server and the tokenizer."""
    return d.rules.rust and d.lead.flag("SGLANG_RUST_SERVER")


def _keyed(a: Arguments) -> bool:
    """Whether the API asks for a key. TLS alone does not: no release looks at what a client brings."""
    return bool(a.text("--api-key") or a.text("--admin-api-key"))


# HTTP and gRPC


def _http(d: Deployment) -> None:
    a = d.lead
    port = _port(d)
    legacy = bool(a.value("--smg-grpc-mode") or a.value("--grpc-mode"))
    # What it meets in its own launch is hardly ever another server for HTTP.
    move = {"RB201": _OTHER.format(option="--port"), "RB5": "give each server a --port of its own"}
    if legacy and not a.value("--encoder-only"):
        _legacy_grpc(d, port)
    elif _is_rust(d):
        _rust(d, port)
    else:
        _serve(
            d,
            "http",
            port,
            owner=_rank_zero(d),
            process="HTTP server",
            about="the API, /server_info, and /metrics with --enable-metrics: entrypoints/http_server.py",
            shared="reuseport" if a.value("--enable-http-worker-reuseport") else None,
            # An encoder's own server looks at no key.
            authenticated=_keyed(a) and not a.value("--encoder-only"),
            remedies=move | {"RB301": f"{_CLOSE}, and add --api-key\nand {_FENCE}"},
        )
        _native_grpc(d)
    _health(d, hosted=_hosting_rust(d), remedies=move)


def _health(d: Deployment, *, hosted: Sequence[int], remedies: Mapping[str, str]) -> None:
    """The server that nodes behind the first have in place of the API."""
    groups: dict[tuple[str, int], list[int]] = {}
    for node in range(1, len(d.nodes)):
        if node not in hosted and d.firsts[node] is not None:
            groups.setdefault((_host(d.nodes[node]), _port(d, d.nodes[node]).number), []).append(node)
    for at, nodes in enumerate(groups.values(), start=1):
        a = d.nodes[nodes[0]]
        port = _port(d, a)
        if a is not d.lead:
            # Their commands are others, and can say another port.
            port = replace(port, flag=f"--port of node {few(list(map(str, nodes)))}")
        _serve(
            d,
            "health" if len(groups) == 1 else f"health-{at}",
            port,
            of=a,
            owner=d.beside(nodes),
            process="health server",
            about="answers health checks on nodes that do not serve: utils/common.py",
            # It is sent nothing that it would have to believe.
            authenticated=None,
            remedies=remedies,
        )


def _hosting_rust(d: Deployment) -> list[int]:
    """The nodes whose port is the Rust server's."""
    if not _is_rust(d):
        return []
    width = d.sizes.attn_tp * d.sizes.attn_cp
    return [
        node for node in range(len(d.nodes)) if any(pp == 0 and tp % width == 0 for pp, tp in d.sizes.started(node))
    ]


def _rust(d: Deployment, port: Port) -> None:
    """A server in each leader of a KV cache, on ports counted along its node."""
    sizes = d.sizes
    offset = ""
    if sizes.dp_attention and d.rules.rust_offset == "node":
        local = "tp" if sizes.nodes_per_stage == 1 else f"tp % {sizes.tp_per_node}"
        offset = f" + ({local}) // {sizes.attn_tp * sizes.attn_cp}"
    elif sizes.cache_axis and d.rules.rust_offset == "replica":
        offset = f" + {sizes.cache_axis}"
    how = "counted from the first of each node" if d.rules.rust_offset == "node" else "counted by the KV cache"
    for name, base in (("rust-http", port), ("rust-grpc", _grpc_port(d))):
        if base is not None:
            _serve(
                d,
                name,
                base,
                *d.lead.variable("SGLANG_RUST_SERVER"),
                offset=offset,
                owner=RANK_ZERO,
                process="Rust server",
                about=f"the API in place of Python's (SGLANG_RUST_SERVER), {how}: rust_server",
                authenticated=_keyed(d.lead),
            )


def _grpc_port(d: Deployment) -> Port | None:
    """The port of the native gRPC server, where there is one."""
    if d.rules.grpc == "option":
        return d.port("--grpc-port") or d.variable_port("SGLANG_GRPC_PORT")
    if d.rules.grpc == "variable":
        return d.variable_port("SGLANG_GRPC_PORT") or _port(d).plus(_GRPC)
    return None


def _native_grpc(d: Deployment) -> None:
    a, rules = d.lead, d.rules
    port = _grpc_port(d)
    if port is None:
        return
    if not port.unknown and not 1 <= port.number <= MAX_PORT:
        if port.number == port.value:
            d.draft.refuse("RB606", f"the gRPC port is {port.value}; ports are 1..{MAX_PORT}", *port.words)
        else:
            d.draft.refuse(
                "RB606",
                f"this release wants port {port.number} (--port + {_GRPC}) for gRPC, even without it; ports end at "
                f"{MAX_PORT}",
                *port.words,
                fix=f"take a --port up to {MAX_PORT - _GRPC}, or set SGLANG_GRPC_PORT",
            )
        return
    if rules.grpc == "variable" and not a.flag("SGLANG_ENABLE_GRPC"):
        return
    if port.number and port.number == _port(d).number:
        d.draft.refuse("RB606", f"gRPC and HTTP both take port {port.number}", *port.words, *a.words("--port"))
        return
    if rules.grpc == "option":
        _grpc_alone(d, port.words)
    nodes = range(len(d.nodes)) if rules.grpc_followers else [0]
    _serve(
        d,
        "grpc",
        port,
        owner=d.beside(nodes),
        process="gRPC server",
        about="the native gRPC server"
        + (", and what is known of each further node" if len(d.nodes) > 1 and rules.grpc_followers else ""),
    )


def _grpc_alone(d: Deployment, words: Sequence[Word]) -> None:
    """What the native gRPC server does not go with."""
    for option in ("--use-ray", "--encoder-only", "--api-key", "--admin-api-key"):
        if d.lead.value(option):
            d.draft.refuse("RB606", f"--grpc-port does not go with {option}", *words, *d.lead.words(option))
    if (d.lead.value("--tokenizer-worker-num") or 1) > 1:
        more = d.lead.words("--tokenizer-worker-num")
        d.draft.refuse("RB606", "--grpc-port does not go with several tokenizer workers", *words, *more)


def _legacy_grpc(d: Deployment, port: Port) -> None:
    a = d.lead
    words = a.words("--smg-grpc-mode", "--grpc-mode")
    _serve(
        d,
        "grpc",
        port if d.rules.grpc != "option" else _grpc_port(d) or port.plus(_GRPC),
        *words,
        owner=_rank_zero(d),
        process="gRPC server",
        about="gRPC in place of HTTP: entrypoints/grpc_server.py",
    )
    if d.patch >= 11:
        option = "--smg-http-sidecar-port" if a.has("--smg-http-sidecar-port") else "--grpc-http-sidecar-port"
        _serve(
            d,
            "http",
            d.port(option) or port.plus(1),
            *words,
            owner=_rank_zero(d),
            process="HTTP sidecar",
            about="metrics and profiling beside gRPC; where the port is taken, only a line in the log says so",
        )


# torch


def _rendezvous(d: Deployment) -> None:
    if d.outside:
        return
    host, port = d.rendezvous or (_host(d.lead), d.port("--nccl-port"))
    at = port or FREE
    told = at.number != 0
    several = d.sizes.replicas > 1
    option = "--dist-init-addr" if d.rendezvous else "--nccl-port"
    _listen(
        d,
        "torch-rendezvous",
        "*",
        at,
        *at.words,
        owner=_FIRST_RANK,
        ipv6=True,
        connect=[{"to": tcp(host, at.number), "by": "the ranks of its replica"}] if told else None,
        process="torch's store",
        # It asks nobody, on every address, whatever --host says: there is nothing to advise.
        authenticated=None,
        about="where the ranks of a replica find one another: distributed/bootstrap.py"
        + ("" if told else "\na port that was free when the server started"),
        remedies={
            "RB201": f"leave {option} out: each replica then rendezvouses at a port of its own"
            if several
            else _OTHER.format(option=option),
            "RB5": "give each launch a --dist-init-addr of its own",
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
    store: Port
    base: Port


def derived(d: Deployment) -> _Derived | None:
    """The derived ports; None where the engine cannot derive any."""
    rules = d.rules
    if d.rendezvous is not None:
        host, store = d.rendezvous
    elif len(d.nodes) == 1 and d.lead.text("--dist-init-addr") is None:
        host, store = "127.0.0.1", _port(d).plus(_DERIVED)
        if rules.reserved is not None and store.number > MAX_PORT:
            store = store.plus(-2 * _DERIVED)
    else:
        return None
    reserved = rules.reserved or 0
    if rules.reserved_with_rust and d.lead.flag("SGLANG_RUST_SERVER"):
        reserved += d.sizes.caches
    wraps = rules.reserved is not None and store.number + reserved > MAX_PORT
    return _Derived(host, store, store.plus(-reserved - 1 if wraps else 1))


def _over_ports(d: Deployment) -> None:
    """With data-parallel attention: ports behind the rendezvous' or the server's, on node 0."""
    at = derived(d)
    if at is None:
        return
    source = "--dist-init-addr" if d.rendezvous else f"--port + {_DERIVED}"
    move = {code: f"take other ports by {source.partition(' ')[0]}" for code in ("RB201", "RB5")}
    past = {"RB203": "lower the port of " + source.partition(" ")[0]}

    def listener(name: str, behind: int, process: str, about: str, *, dialled: bool = True) -> None:
        port = at.base.plus(behind)
        connect = {"to": tcp(at.host, port.number), "owner": dict(RANK_ZERO), "by": "schedulers"}
        _listen(
            d,
            name,
            at.host,
            port,
            *port.words,
            owner=_rank_zero(d),
            connect=[connect] if dialled else None,
            process=process,
            about=f"{about}: PortArgs, counted from {source}",
            remedies=move | past,
        )

    listener("tokenizer", 0, "tokenizer manager", "what comes back to the tokenizer")
    listener("detokenizer", 1, "detokenizer", "what the schedulers have to say")
    listener("scheduler-input", 4, "tokenizer manager", "requests, to the controller", dialled=False)
    if d.rules.load_collector and (len(d.nodes) > 1 or d.lead.flag("SGLANG_LOAD_SNAPSHOT_USE_ZMQ")):
        aware = str(d.lead.value("--load-balance-method") or "").lower() in _LOAD_AWARE
        process = "DP controller" if aware else "tokenizer manager"
        listener("load-collector", 5, process, "the load of each KV cache")
    _worker_ports(d, at)
    _probes(d, at)


def _worker_ports(d: Deployment, at: _Derived) -> None:
    a = d.lead
    words = a.words("--attn-dp-size", "--dp-size", "--dwdp-size")
    if _is_rust(d) and at.base.unknown:
        pass
    elif _is_rust(d):
        slots = at.base.plus(6)
        d.draft.resource(
            "rust-slots",
            *words,
            owner=RANK_ZERO,
            probe=tcp("*", f"{{{slots.number} + attn_dp}}"),
            ipv6=True,
            about="ports kept for the Rust server's requests, and bound by nobody: PortArgs",
        )
        d.moves(slots, "rust-slots", "probe")
    else:
        _listen(
            d,
            "scheduler-input-dp",
            at.host,
            FREE,
            *words,
            owner=_rank_zero(d),
            process="DP controller",
            about=f"requests to the {d.sizes.caches} KV caches, a port each: managers/data_parallel_controller.py",
        )
    host, port = d.rendezvous or (_host(a), _port(d))
    port = port.plus(_HANDSHAKE)
    others = d.beside(range(1, len(d.nodes)))
    connect = {"to": tcp(host, port.number), "owner": others, "by": "the DP controllers of the other nodes"}
    _listen(
        d,
        "dp-handshake",
        host,
        port,
        *port.words,
        owner=_rank_zero(d),
        connect=[connect] if others["rank"] else None,
        process="DP controller",
        about=f"tells the other nodes the ports of the KV caches; {_HANDSHAKE} behind "
        f"{'--dist-init-addr' if d.rendezvous else '--port'}, whatever the others are",
        remedies={"RB203": f"take a port up to {MAX_PORT - _HANDSHAKE}: no release looks at this one"},
    )


def _probes(d: Deployment, at: _Derived) -> None:
    """The ports that every node looks at before it starts, whoever binds them later."""
    if at.base.unknown:
        return
    unchecked = d.outside and d.rules.store_unchecked
    nccl = d.port("--nccl-port") or FREE
    ports = [] if unchecked else [at.store]
    ports += [at.base, at.base.plus(1)]
    ports += [nccl] if nccl.number and not unchecked else []
    ports += [at.base.plus(2), at.base.plus(3)]
    ports += [at.base.plus(5)] if d.rules.load_collector and len(d.nodes) > 1 else []
    ports += [at.base.plus(4)]
    apart = {port.number: port for port in reversed(ports)}
    checked = sorted(apart.values(), key=ports.index)
    rpc, metrics = at.base.plus(2).number, at.base.plus(3).number
    d.draft.resource(
        "start-up-check",
        *at.base.words,
        owner=d.beside(range(len(d.nodes))),
        probe=[tcp("*", port.number) for port in checked],
        ipv6=True,
        process="launcher",
        about=f"ports that have to be free on every node when it starts, or it waits 30 s and fails: PortArgs\n"
        f"of these {rpc} (rpc) and {metrics} (metrics) are bound by nobody",
        remedies={"RB203": "lower the port of " + ("--dist-init-addr" if d.rendezvous else "--port")},
    )
    for place, port in enumerate(checked, start=1):
        d.moves(port, "start-up-check", f"probe {place}")


# Prefill and decode apart, encoders apart


def _disaggregation(d: Deployment) -> None:
    a = d.lead
    mode = a.value("--disaggregation-mode", "null")
    port = d.port("--disaggregation-bootstrap-port")
    starts = mode == "prefill" or (mode != "null" and a.value("--enable-pd-role-switch"))
    if starts and port is not None and not _is_rust(d):
        host = d.rendezvous[0] if d.rendezvous else _host(a)
        to = tcp({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port.number)
        _serve(
            d,
            "pd-bootstrap",
            port,
            *a.words("--disaggregation-mode"),
            owner=_rank_zero(d),
            connect=[{"to": to, "by": "every prefill rank, to register"}] if mode == "prefill" else None,
            process="bootstrap server",
            about="where decode servers find the prefill ranks: managers/disagg_service.py",
            remedies={
                "RB201": "give it a --disaggregation-bootstrap-port of its own",
                "RB5": "give each server a --disaggregation-bootstrap-port of its own",
            }
            | dict.fromkeys(
                ("RB210", "RB211"), "add --host 0.0.0.0: ranks register at the address of --dist-init-addr"
            ),
        )
    if mode != "null":
        _listen(
            d,
            "pd-rank",
            _LOCAL,
            FREE,
            *a.words("--disaggregation-mode"),
            owner={},
            about="where KV caches are asked for, told through the bootstrap server: disaggregation/common/conn.py",
        )
    if mode == "prefill" and d.sizes.pp > 1 and d.patch >= 23:
        _listen(
            d,
            "pp-consensus",
            _LOCAL,
            FREE,
            *a.words("--pp-size"),
            owner={"pp": 0},
            about="where the stages agree on what has arrived: disaggregation/common/conn.py",
        )
    encoders = d.port("--encoder-bootstrap-port")
    if encoders is not None and a.value("--language-only"):
        _serve(
            d,
            "encoder-bootstrap",
            encoders,
            *a.words("--language-only"),
            owner=_rank_zero(d),
            process="tokenizer manager",
            about="where encoders register: disaggregation/encoder",
        )


# The rest


def _elastic(d: Deployment) -> None:
    a = d.lead
    elastic = a.value("--elastic-ep-backend")
    if d.patch >= 10 and a.value("--enable-elastic-expert-backup") and elastic:
        base = d.variable_port("SGLANG_BACKUP_PORT_BASE") or Port(10000, "SGLANG_BACKUP_PORT_BASE", 10000)
        node = f" + 2 * {_node_of(d)}" if len(d.nodes) > 1 else ""
        d.draft.resource(
            "expert-backup",
            *a.words("--enable-elastic-expert-backup"),
            *base.words,
            owner=d.beside(range(len(d.nodes))),
            bind=[tcp(_LOCAL, f"{{{base.number + each}{node}}}") for each in (0, 1)],
            process="launcher",
            about="experts that are kept for others: elastic_ep/expert_backup_manager.py",
            authenticated=False,
        )
        d.moves(base, "expert-backup")
    if d.patch >= 10 and (elastic or a.value("--moe-a2a-backend") == "nixl"):
        store = d.variable_port("SGLANG_TCP_STORE_PORT")
        _listen(
            d,
            "expert-store",
            "*",
            store if store and store.number else Port(29600, "SGLANG_TCP_STORE_PORT", 29600),
            *a.words("--elastic-ep-backend", "--moe-a2a-backend"),
            owner=_FIRST_RANK,
            ipv6=True,
            shared="reuseport" if d.sizes.replicas > 1 else None,
            about="a store for all ranks, distributed/parallel_state.py: where its port is taken, a warning says so",
        )


def _node_of(d: Deployment) -> str:
    """The index of a rank's node, as arithmetic."""
    sizes = d.sizes
    stage = f"pp // {sizes.pp_per_node}" if sizes.pp_per_node > 1 else "pp"
    if sizes.nodes_per_stage == 1:
        return f"({stage})"
    return f"(({stage}) * {sizes.nodes_per_stage} + tp // {sizes.tp_per_node})"


def _others(d: Deployment) -> None:
    a = d.lead
    gated = d.port("--gated-launch-port")
    if gated is not None:
        _serve(
            d,
            "gated-launch",
            gated,
            owner=_FIRST_RANK,
            process="rank 0 of each replica",
            about="waits to be told to go on: distributed/gated_launch.py",
            remedies={"RB201": "leave --gated-launch-port out: every replica binds it"},
        )
    seed = "--remote-instance-weight-loader-start-seed-via-transfer-engine"
    info = d.port("--engine-info-bootstrap-port")
    if info is not None and a.value(seed):
        _serve(
            d,
            "engine-info",
            info,
            *a.words(seed),
            owner=_rank_zero(d),
            process="bootstrap server",
            about="tells other servers where the weights are: entrypoints/engine_info_bootstrap_server.py",
            remedies={"RB5": "give each server an --engine-info-bootstrap-port of its own"},
        )
    option = "--decoupled-spec-bind-endpoint"
    endpoint = a.text(option)
    if endpoint and not a.certain(option):
        a.unsure(option, a.words(option)[-1], "where it is is not looked at")
    elif endpoint and (a.value("--decoupled-spec-role") or "null") != "null":
        d.draft.resource(
            "decoupled-speculation",
            *a.words(option),
            owner=RANK_ZERO,
            bind=literal(endpoint),
            about="where verifier and drafter meet",
            authenticated=False,
        )
        d.moves(port_of(endpoint, option, a.words(option)), "decoupled-speculation")
    dumper = d.variable_port("DUMPER_SERVER_PORT")
    if dumper is not None and dumper.number > 0:
        _listen(
            d,
            "dumper",
            "0.0.0.0",
            dumper,
            *dumper.words,
            owner=_FIRST_RANK,
            about="a debugging server of global rank 0",
        )
