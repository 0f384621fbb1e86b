"""The KV event publisher and the load publisher beside it: who binds, who connects, and what routers are told."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rankbind.endpoint import MAX_PORT, Endpoint
from rankbind.errors import EndpointError
from rankbind.finding import Level
from rankbind.launch.command import Word
from rankbind_sglang.launch.deployment import FREE, Deployment, Port, address_of, literal, loopback, port_of, tcp
from rankbind_sglang.launch.rules import RANK_ZERO, Rules

OPTION = "--kv-events-config"
_LOADS = "--load-publish-endpoint"
_WILDCARDS = ("*", "0.0.0.0", "::", "[::]")
_FORMATS = ("default", "dynamo")
_ROUTER = "a router that reads /server_info"


@dataclass(frozen=True)
class Config:
    """What ``--kv-events-config`` says. `named`: whether it names a publisher; `untold`: whose ports nobody knows."""

    publisher: str = "null"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    bind: bool | None = None
    named: bool = True
    untold: tuple[str, ...] = ()

    @property
    def publishes(self) -> bool:
        """Whether there is a socket."""
        return self.publisher == "zmq" and bool(self.endpoint)


def parse(text: str, rules: Rules) -> Config | str:
    """The configuration in `text`, or what the engine does not like about it."""
    try:
        data = json.loads(text)
    except ValueError as error:
        return f"is no JSON: {error}"
    if not isinstance(data, dict):
        return "is no JSON object"
    for key, kinds in (("publisher", str), ("endpoint", str), ("replay_endpoint", (str, type(None))), ("topic", str)):
        if key in data and not isinstance(data[key], kinds):
            return f"has a {key} that is no text: {data[key]!r}"
    for key in ("buffer_steps", "hwm", "max_queue_size"):
        if key in data and (isinstance(data[key], bool) or not _whole(data[key])):
            return f"has a {key} that is no whole number: {data[key]!r}"
    bind = data.get("bind") if rules.kv_bind_key else None
    if not isinstance(bind, bool | None):
        return f"has a bind that is neither true nor false: {bind!r}"
    if rules.kv_bind_key and data.get("format", "default") not in _FORMATS:
        return f"has a format that is none of {', '.join(_FORMATS)}: {data['format']!r}"
    publisher, endpoint = data.get("publisher", "null"), data.get("endpoint", Config.endpoint)
    config = Config(publisher, endpoint, data.get("replay_endpoint"), bind, "publisher" in data)
    if config.publisher not in ("null", "zmq"):
        return f"names a publisher that there is not: {config.publisher!r}"
    return config


_TAKEN = "what it says in full is looked at; a port that it does not is taken for one that nobody else has"
_UNTOLD = re.compile(r"[$`]")


def _as_told(config: Config) -> Config | None:
    """A configuration of which a part is known at run time alone: unknown ports are 0; None where nothing is left."""
    untold: list[str] = []
    if _UNTOLD.search(config.publisher):
        return None
    for key in ("endpoint", "replay_endpoint"):
        text = getattr(config, key)
        if text is None or not _UNTOLD.search(text):
            continue
        parts = re.fullmatch(r"(tcp://(?:\[[^\]]*\]|[^:]+)):(.+)", text.replace("{", "").replace("}", ""))
        if parts is None:
            return None
        if _UNTOLD.search(parts[2]):
            untold.append(key)
        shown = f"{parts[1]}:{0 if key in untold else parts[2]}"
        try:
            Endpoint.parse(shown)
        except EndpointError:
            return None
        config = replace(config, endpoint=shown) if key == "endpoint" else replace(config, replay_endpoint=shown)
    return replace(config, untold=tuple(untold))


def _untold(d: Deployment, config: Config) -> bool:
    """Whether the host that is published at is known at run time alone."""
    return not d.lead.certain(OPTION) and bool(_UNTOLD.search(config.endpoint))


def _whole(value: object) -> bool:
    try:
        return float(str(value)).is_integer()
    except ValueError:
        return False


def binds(config: Config, rules: Rules) -> bool:
    """Whether the publisher binds its endpoint, rather than connecting to it: told by what the text holds."""
    if config.bind is not None:
        return config.bind
    endpoint = config.endpoint
    if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
        return True
    return rules.kv_any_binds and "0.0.0.0" in endpoint


def shifted(endpoint: str, index: int) -> str:
    """What the publisher with `index` makes of an endpoint. A ValueError is the engine's own."""
    if not endpoint or index == 0:
        return endpoint
    if "inproc" in endpoint:
        return f"{endpoint}_dp{index}"
    if "tcp" not in endpoint:
        raise ValueError(endpoint)
    base, colon, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + index}" if colon else endpoint


@dataclass(frozen=True)
class _Place:
    """An endpoint as templates.

    Attributes:
        all: for every index; None where one template cannot say it.
        first, others: for index 0 and for those behind it, where they are spelled differently; `others` None: the
            engine cannot make them.
        wrong: why libzmq does not take it, or the engine cannot make it for the others.
    """

    all: str | None = None
    first: str | None = None
    others: str | None = None
    wrong: str | None = None


def _place(endpoint: str, axis: str | None, index: int, *, known: bool = True) -> _Place:
    """Where the publishers are whose index is that on `axis`; without an axis it is `index` for all.

    Args:
        known: whether the port is.
    """
    if not known:
        return _Place(all=literal(endpoint))
    try:
        lone = shifted(endpoint, index if axis is None else 0)
    except ValueError:
        return _Place(wrong=f"{endpoint} cannot be counted on from, and index {index} is asked for")
    try:
        Endpoint.parse(lone)
    except EndpointError as error:
        return _Place(wrong=str(error))
    if axis is None:
        return _Place(all=literal(lone))
    try:
        shifted(endpoint, 1)
    except ValueError:
        return _Place(
            first=literal(endpoint),
            wrong=f"{endpoint} works for the first KV cache alone: only tcp:// and inproc:// are counted on from, "
            "and the publishers of the others stop with a ValueError",
        )
    if "inproc" in endpoint:
        return _Place(first=literal(endpoint), others=f"{literal(endpoint)}_dp{{{axis}}}")
    base, _, port = endpoint.rpartition(":")
    return _Place(all=f"{literal(base)}:{{{int(port)} + {axis}}}")


def state(d: Deployment) -> None:
    """State the publisher of KV events, who records them, and the publisher of loads."""
    text = d.lead.text(OPTION)
    if text is None:
        _loads(d, None)
        return
    words = d.lead.words(OPTION)
    config = parse(text, d.rules)
    if not d.lead.certain(OPTION):
        told = None if isinstance(config, str) else _as_told(config)
        d.lead.unsure(OPTION, words[-1], "its publisher is not looked at" if told is None else _TAKEN)
        if told is None:
            d.draft.ignored.append((words[-1], "what it says is known at run time alone"))
            return
        config = told
    if isinstance(config, str):
        d.draft.find(
            "RB607",
            f"{OPTION} {config}; SGLang finds that out in every scheduler, once they are started",
            *words,
            flag=OPTION,
        )
        _loads(d, None)
        return
    if not config.named:
        d.draft.find(
            "RB607",
            f"KV events are recorded and nobody publishes them: {OPTION} names no publisher",
            *words,
            level=Level.WARNING,
            fix=f'"publisher": "zmq" in {OPTION}',
            flag=OPTION,
        )
    _publisher(d, config, words)
    gate = d.rules.kv_gate if not d.plugged else RANK_ZERO
    remedy = {"RB4": _upgrade(d)}
    recording = "who records the events: mem_cache builder and scheduler"
    d.draft.resource(
        "kv-event-recording", *words, owner=gate, with_="kv-events", about=_about(d, recording), remedies=remedy
    )
    if d.rules.kv_metrics:
        metrics = "whose metrics collector thinks it publishes: observability/metrics_collector.py"
        d.draft.resource(
            "kv-event-metrics", *words, owner=gate, with_="kv-events", about=_about(d, metrics), remedies=remedy
        )
    _loads(d, config)


def index_of(d: Deployment) -> tuple[str | None, int]:
    """By which axis the publishers' ports are counted, and the index where there is none."""
    if d.sizes.attn_dp > 1:
        return "attn_dp", 0
    if not (d.rules.kv_counts_replicas or d.plugged):
        return None, 0
    if d.sizes.replicas > 1:
        return "dp", 0
    return None, 0 if d.plugged else d.lead.number("SGLANG_DP_RANK") or 0


def _publisher(d: Deployment, config: Config, words: Sequence[Word]) -> None:
    gate: Mapping[str, int] = RANK_ZERO if d.plugged else d.rules.kv_gate
    axis, index = index_of(d)
    published = _Place()
    if config.publishes:
        published = _place(config.endpoint, axis, index, known="endpoint" not in config.untold)
    replayed = _Place()
    if config.publishes and config.replay_endpoint:
        replayed = _place(config.replay_endpoint, axis, index, known="replay_endpoint" not in config.untold)
    for key, place in (("endpoint", published), ("replay_endpoint", replayed)):
        if place.wrong:
            d.draft.find(
                "RB607", f"{OPTION}: {key} {place.wrong}", *words, fix=_spell(d), resource="kv-events", flag=OPTION
            )
    bound = binds(config, d.rules)
    by = "the publisher itself: it connects, where an endpoint has no wildcard"
    connect = _advertised(d, config)
    if published.all and not bound and "endpoint" not in config.untold:
        if _is_ours(d, config.endpoint):
            connect.insert(0, {"to": published.all, "by": by, "owner": dict(gate)})
        else:
            told, connect = connect[:1], connect[1:]
            _elsewhere(d, config, published.all, words, told[0]["to"] if told else None)
    about = "KV event publisher, disaggregation/kv_events.py: one for each KV cache"
    about += "\na port is known at run time alone, and shown as 0" if config.untold else ""
    about += "" if config.publishes else "\nno socket: the configuration names no publisher"
    if d.rules.kv_advertised and (named := _told(config, d.rules)):
        about += f"\n/server_info tells routers: host {named[0]}, ports from {named[1]}, {d.sizes.caches} of them"
    d.draft.resource(
        "kv-events",
        *words,
        owner=gate,
        once_per=["dp", "attn_dp"],
        bind=published.all if bound else None,
        replay=replayed.all,
        connect=connect or None,
        about=_about(d, about),
        authenticated=False if (published.all and bound) or replayed.all else None,
        remedies=_remedies(d, config, bound),
        places=dict.fromkeys(("bind", "replay", "connect"), words[-1:]),
    )
    if bound:
        d.moves(_port(d, "endpoint", config), "kv-events")
    d.moves(_port(d, "replay_endpoint", config), "kv-events", "replay")
    _apart(d, words, gate, axis, published if bound else _Place(), replayed)


def _is_ours(d: Deployment, endpoint: str) -> bool:
    """Whether an endpoint that is connected to stands for a host of the launch itself."""
    told = _told_of(endpoint)
    return told is None or told[0] in {*_WILDCARDS, *d.hosts, *d.addresses, d.public} or loopback(told[0])


def _elsewhere(d: Deployment, config: Config, template: str, words: Sequence[Word], told: str | None) -> None:
    """Say that the events go to somebody who listens elsewhere, as some routers do."""
    d.draft.find(
        "RB215",
        f"the publisher of KV events connects to {config.endpoint}: whoever wants them has to listen there"
        + (", and /server_info tells routers to dial it" if told else ""),
        *words[-1:],
        level=Level.NOTE,
        fix='for subscribers that connect, write "endpoint": "tcp://*:PORT", which is bound',
        resource="kv-events",
        mode="connect",
        endpoint=template,
        advertised=told,
    )


def _apart(d: Deployment, words: Sequence[Word], gate: Mapping[str, int], axis: str | None, *places: _Place) -> None:
    """The addresses that are spelled differently for the first KV cache and for the others."""
    if axis is None:
        return
    count = d.sizes.caches
    for name, indices, texts in (
        ("kv-events-first", [0], [place.first for place in places]),
        ("kv-events-others", list(range(1, count)), [place.others for place in places]),
    ):
        if any(texts):
            d.draft.resource(
                name,
                *words,
                owner={**gate, axis: indices},
                bind=texts[0],
                replay=texts[1],
                about=_about(d, "where kv-events is, which is not spelled alike for the first KV cache and the others"),
            )


def _port(d: Deployment, key: Literal["endpoint", "replay_endpoint"], config: Config) -> Port:
    """The port that a key of the configuration says."""
    return port_of(getattr(config, key) if config.publishes else None, f"{OPTION} {key}", d.lead.words(OPTION))


def _told(config: Config, rules: Rules) -> tuple[str, int] | None:
    """Host and first port in ``/server_info``; None where it says nothing."""
    if not config.publishes or not config.endpoint.startswith("tcp://"):
        return None
    return _told_of(config.endpoint, bare=rules.bare_ipv6_advertised)


def _told_of(endpoint: str | None, *, bare: bool = False) -> tuple[str, int] | None:
    if not endpoint or not endpoint.startswith("tcp://"):
        return None
    body = endpoint.removeprefix("tcp://")
    found = address_of(body)
    if found is None:
        host, _, port = body.rpartition(":")
        if not (bare and host and port.isdecimal()):
            return None
        found = host, int(port)
    return found if 0 < found[1] <= MAX_PORT else None


def _advertised(d: Deployment, config: Config) -> list[dict[str, Any]]:
    """What routers dial, by what they are told."""
    page_size = d.lead.value("--page-size")
    if not d.rules.kv_advertised or (page_size is not None and page_size <= 0):
        return []
    told = _told(config, d.rules)
    if told is None:
        return []
    found = [_dialled(d, *told)]
    replay = _told_of(config.replay_endpoint)
    if d.rules.replay_advertised and replay is not None:
        found.append(_dialled(d, "*", replay[1]) | {"role": "replay"})
    return found


def _dialled(d: Deployment, host: str, port: int) -> dict[str, Any]:
    to = d.public if host in _WILDCARDS else host
    if d.sizes.caches == 1:
        return {"to": tcp(to, port), "axes": {"index": 1}, "by": _ROUTER}
    return {"to": tcp(to, f"{{{port} + index}}"), "axes": {"index": d.sizes.caches}, "by": _ROUTER}


# The load publisher


def _loads(d: Deployment, config: Config | None) -> None:
    mode = (d.lead.text(_LOADS) or "").strip()
    if not d.rules.load_events or not mode or mode.lower() == "off":
        return
    words = d.lead.words(_LOADS)
    if not d.lead.certain(_LOADS) or (config is not None and (config.untold or _untold(d, config))):
        word = next((word for word in (*words, *d.lead.words(OPTION)) if not word.certain), words[-1])
        d.lead.unsure(_LOADS, word, "where loads are published is not looked at")
        return
    base = _load_base(d, config, mode)
    if isinstance(base, str):
        d.draft.refuse("RB606", f"{_LOADS} {mode}: {base}", *words, flag=_LOADS)
        return
    axis, index = index_of(d)
    host, port = base
    text = tcp(host, port.number + index) if axis is None else tcp(host, f"{{{port.number} + {axis}}}")
    d.draft.resource(
        "load-events",
        *words,
        owner=RANK_ZERO if d.plugged else d.rules.kv_gate,
        once_per=["dp", "attn_dp"],
        bind=text,
        connect=[_dialled(d, "*", port.number)],
        ipv6=True if ":" in host else None,
        about=_about(d, "load publisher, managers/scheduler_components/load_publisher.py: beside kv-events"),
        authenticated=False,
        remedies=_one_host(d),
    )
    d.moves(port, "load-events")


def _load_base(d: Deployment, config: Config | None, mode: str) -> tuple[str, Port] | str:
    """Host and first port of the load publishers, or why the engine refuses."""
    count = d.sizes.caches
    if config is None or not config.publishes:
        return f"needs an active publisher in {OPTION}"
    events = _told_of(config.endpoint)
    replay = _told_of(config.replay_endpoint)
    if mode.lower() == "auto":
        if events is None or events[0] not in _WILDCARDS:
            return f"packs its ports behind a tcp:// wildcard, which {config.endpoint} is not"
        host, port = events[0], _port(d, "endpoint", config).plus(count)
        if replay and _overlap(port.number, replay[1], count):
            # There only as long as the two overlap: no flag moves it one for one.
            port = FREE.plus(replay[1] + count)
    else:
        found = _told_of(mode)
        if events is None:
            return f"is told to routers beside a tcp:// endpoint, which {config.endpoint} is not"
        if found is None or found[0] not in _WILDCARDS:
            return "takes a tcp:// wildcard: a concrete host would be connected to"
        host, port = found[0], Port(found[1], _LOADS, found[1], d.lead.words(_LOADS))
        for other in filter(None, (events, replay)):
            if _overlap(port.number, other[1], count):
                taken = f"{other[1]}..{other[1] + count - 1}"
                return f"ports {port.number}..{port.number + count - 1} overlap those of the KV events, {taken}"
    if port.number + count - 1 > MAX_PORT:
        return f"ports {port.number}..{port.number + count - 1} run past {MAX_PORT}"
    return host, port


def _overlap(a: int, b: int, count: int) -> bool:
    return a < b + count and b < a + count


# In words


def _about(d: Deployment, text: str) -> str:
    return text if d.rules.release in text else f"{text} (SGLang {d.rules.release})"


def _upgrade(d: Deployment) -> str:
    fixed = "upgrade to SGLang 0.5.15 or later"
    return f"{fixed}, or install rankbind-sglang, which gates it" if d.patch >= 12 else fixed


def _one_host(d: Deployment) -> dict[str, str]:
    """What to do where the publishers are on several hosts."""
    if len(set(d.hosts)) == 1:
        return {}
    told = "tell the router the host of each node: /server_info names one host for all ports"
    return {"RB210": told, "RB211": told}


def _spell(d: Deployment) -> str:
    return (
        f'write "endpoint": "tcp://*:5557" for {d.sizes.caches} ports from 5557 on'
        if d.sizes.caches > 1
        else 'write "endpoint": "tcp://*:5557"'
    )


def _remedies(d: Deployment, config: Config, bound: bool) -> dict[str, str]:
    """By code, what to do about the publisher in words of options and releases."""
    count = d.sizes.caches
    gated = d.plugged or (d.rules.kv_gate == RANK_ZERO and d.rules.kv_counts_replicas)
    collide: list[str] = []
    if not gated:
        collide.append(_upgrade(d))
    events, replay = _told_of(config.endpoint), _told_of(config.replay_endpoint)
    if events and replay and _overlap(events[1], replay[1], count):
        collide.append(f"move replay_endpoint {count} ports away or more: tcp://*:{events[1] + max(100, count)}")
    found = {"RB1": _upgrade(d)}
    if collide:
        found |= dict.fromkeys(("RB201", "RB202"), "\nand ".join(collide))
    if config.endpoint.startswith("ipc://") and count > 1:
        found["RB202"] = _spell(d)
    found["RB203"] = f"lower the port in {OPTION}: {count} ports from it on have to end at {MAX_PORT}"
    found["RB209"] = 'write "endpoint": "tcp://*:PORT": the publisher never turns IPv6 on'
    found["RB214"] = 'start from a port of your own: "endpoint": "tcp://*:5557"'
    return found | _missed(d, config, bound)


def _missed(d: Deployment, config: Config, bound: bool) -> dict[str, str]:
    """What to do where those who are told to dial reach nobody."""
    if not bound:
        how = ', or add "bind": true to bind that address' if d.rules.kv_bind_key else ""
        text = f'write "endpoint": "tcp://*:PORT", which is bound{how}: any other host is connected to'
    elif index_of(d)[1]:
        text = "unset SGLANG_DP_RANK: it moves the port, and not what /server_info says"
    elif not (d.rules.kv_counts_replicas or d.plugged) and d.sizes.replicas > 1:
        text = _upgrade(d)
    else:
        text = 'write "endpoint": "tcp://*:PORT": others cannot reach what is bound to one address'
        return {"RB210": text, "RB211": text} | _one_host(d)
    return {"RB210": text, "RB211": text}
