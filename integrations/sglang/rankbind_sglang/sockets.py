"""Which addresses a publisher binds: SGLang is asked, for its rule (bind or connect, which port) differs by release."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rankbind_sglang.releases import KV_EVENTS_MODULE


def would_bind(config: str, index: int) -> dict[str, str] | None:
    """The addresses that the publisher of cache `index` will bind, by role (``bind``, ``replay``); none that it dials.

    None where the configuration makes no publisher with sockets.

    Raises:
        ValueError: SGLang cannot read the configuration, or cannot give this cache an endpoint.
        AttributeError: a release whose publisher is another.
    """
    module = import_module(KV_EVENTS_MODULE)
    settings = module.KVEventsConfig.from_cli(config)
    if settings.publisher != "zmq":
        return None
    kind = module.ZmqEventPublisher
    return _binds(
        kind,
        _hwm=settings.hwm,
        _bind=getattr(settings, "bind", None),
        _endpoint=kind.offset_endpoint_port(settings.endpoint, index),
        _replay_endpoint=kind.offset_endpoint_port(settings.replay_endpoint, index),
    )


def bound(publisher: Any) -> dict[str, str]:
    """The addresses that a publisher has really bound, by role: for port 0, the one that it got."""
    import zmq

    live = {"bind": publisher._pub, "replay": publisher._replay}
    # Another thread uses the socket, but this text is never changed after bind, and libzmq only copies it.
    return {
        role: live[role].getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        for role in _binds(type(publisher), **vars(publisher))
        if live[role] is not None and not live[role].closed
    }


def _binds(kind: Any, **state: Any) -> dict[str, str]:
    """What the engine's own method does with sockets that only write it down."""
    rehearsed = object.__new__(kind)
    vars(rehearsed).update(state, _ctx=_Paper(), _pub=None, _replay=None)
    rehearsed._socket_setup()
    made = {"bind": rehearsed._pub, "replay": rehearsed._replay}
    return {role: paper.bound for role, paper in made.items() if paper is not None and paper.bound is not None}


class _Paper:
    """A context and socket of ZeroMQ on paper."""

    def __init__(self) -> None:
        self.bound: str | None = None

    def socket(self, *_: Any) -> _Paper:
        return _Paper()

    def bind(self, address: str) -> None:
        self.bound = address

    def getsockopt_string(self, *_: Any) -> str:
        return self.bound or ""

    def __getattr__(self, _: str) -> Any:
        return lambda *args, **kwargs: None
