"""The declaration, applied to the engine cores of a running vLLM.

Two of vLLM's functions are wrapped. One where an engine core has its configuration and no model yet: the owner claims
what it will publish on, and what cannot work is said. One that makes the publisher: an engine core that does not own
gets one that publishes nothing, and what the owner's has bound is told to ``rankbind status``. The engine's addresses
are never changed. A hook that fails says so in one line, and the engine does what it would have done without it.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rankbind.errors import ClaimedError
from rankbind_vllm import claims
from rankbind_vllm.position import KV_EVENTS, Position, position, replica
from rankbind_vllm.releases import ENGINE_CORE, KV_EVENTS_MODULE, PUBLISHER, START, TARGETS
from rankbind_vllm.sockets import Sockets, bound, rehearse

if TYPE_CHECKING:
    from rankbind.runtime.claim import Claim

_log = logging.getLogger("vllm.rankbind")


def when_there_are_engine_cores() -> None:
    """Hook the engine, now or when it is imported."""
    if ENGINE_CORE in sys.modules:
        register()
    elif not any(isinstance(each, _Await) for each in sys.meta_path):
        sys.meta_path.insert(0, _Await())


def register() -> bool:
    """Hook the running release, and say whether it is hooked. For both functions or for none.

    Raises:
        KeyError: there is no vLLM.
    """
    release = getattr(sys.modules["vllm"], "__version__", "?")
    moved = [lack for lack in (target.lacking() for target in TARGETS) if lack is not None]
    if moved:
        _log.warning("rankbind-vllm does not know vLLM %s (%s) and leaves the engine alone", release, "; ".join(moved))
        return False
    executor, start = START.found()
    factory, create = PUBLISHER.found()
    if hasattr(start, "_rankbind"):
        return True
    hooks = _Hooks(release, create)

    @functools.wraps(start)
    def started(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        hooks.start(vllm_config)
        start(self, vllm_config, *args, **kwargs)

    @functools.wraps(create)
    def created(cls: Any, config: Any, data_parallel_rank: int = 0) -> Any:
        return hooks.publisher(cls, config, data_parallel_rank)

    started._rankbind = hooks  # type: ignore[attr-defined]
    executor.__init__ = started
    factory.create = classmethod(created)
    return True


class _Hooks:
    """The hooks of one process. It may have several engine cores, which start one after the other."""

    def __init__(self, release: str, create: Callable[..., Any]) -> None:
        self._release, self._create = release, create
        self._at: Position | None = None
        self._sockets: Sockets | None = None
        self._claim: Claim | None = None

    def start(self, vllm_config: Any) -> None:
        """Before the executor is made, and with it the model: the owner holds its KV events, or it does not start."""
        self._forget()
        events = getattr(vllm_config, "kv_events_config", None)
        if events is None:
            return
        try:
            self._at = at = position(vllm_config.parallel_config)
        except Exception as error:
            self._leave("start", error)
            return
        self._hold(events, at)

    def publisher(self, factory: Any, config: Any, index: int) -> Any:
        """In place of ``EventPublisherFactory.create``."""
        at = self._at
        if at is not None and not at.owns:
            return self._create(factory, None, index)
        if at is None and config is not None:
            # An executor that is made in a way of its own: late, but not too late for a path that would be taken over.
            self._hold(config, replica(index))
        try:
            made = self._create(factory, config, index)
        except BaseException:
            self._forget()
            raise
        if config is not None:
            self._made(made, config)
        return made

    def _hold(self, events: Any, at: Position) -> None:
        """Say what this engine core owns, and claim it.

        Raises:
            ClaimedError: somebody else holds it.
        """
        sockets: Sockets | None = None
        wrong: str | None = None
        if at.owns:
            try:
                sockets = rehearse(events, at.index, self._create)
                wrong = None if sockets is None else sockets.unfit(at.index)
            except (ValueError, TypeError) as error:
                wrong = f"{type(error).__name__}: {error}"
            except Exception as error:
                self._leave("endpoints", error)
                return
            if wrong is not None:
                _log.warning(
                    "rankbind-vllm: this engine core (%s) will not publish its KV events as it is configured: %s. "
                    'Write "publisher": "zmq" and an endpoint tcp://*:PORT in --kv-events-config: the number of the '
                    "replica is added to that port, or to an inproc:// name, and to nothing else",
                    at,
                    wrong,
                )
            elif sockets is None:
                return
        self._tell(at)
        if sockets is None or wrong is not None or not claims.switched_on():
            return
        self._sockets = sockets
        try:
            first = sockets if not at.index else rehearse(events, 0, self._create) or sockets
            self._claim = claims.take(at, sockets.binds, first.binds)
        except ClaimedError as error:
            error.add_note(
                "rankbind-vllm: this engine core would publish its KV events there, and ends before it loads its "
                "model. Stop the other one, or give this one another port in --kv-events-config (endpoint, "
                f"replay_endpoint). {claims.SWITCH}=off starts it without asking"
            )
            raise
        except Exception as error:
            _log.warning(
                "rankbind-vllm starts this engine core without a claim on its KV events: %s: %s",
                type(error).__name__,
                error,
            )

    def _made(self, publisher: Any, config: Any) -> None:
        """Let the claim say where the publisher really is, and end with it; and say what a publisher is there for."""
        try:
            module: Any = sys.modules[KV_EVENTS_MODULE]
            silent = isinstance(publisher, module.NullEventPublisher)
            if config.enable_kv_cache_events and silent:
                _log.warning(
                    'rankbind-vllm: enable_kv_cache_events is true, and vLLM %s publishes none: write "publisher": '
                    '"zmq" in --kv-events-config',
                    self._release,
                )
            elif not config.enable_kv_cache_events and not silent:
                _log.warning(
                    "rankbind-vllm: vLLM %s opens the endpoint of KV events and will never publish any there: "
                    '"enable_kv_cache_events" is not true in --kv-events-config',
                    self._release,
                )
            claim, sockets = self._claim, self._sockets
            self._at = self._sockets = self._claim = None
            if claim is not None and sockets is not None:
                _end_with(publisher, claim)
                claim.update(endpoints=bound(publisher, sockets.binds))
        except Exception as error:
            self._leave("publisher", error)

    def _forget(self) -> None:
        """An engine core that this process began to start made no publisher, and never will."""
        claim = self._claim
        self._at = self._sockets = self._claim = None
        if claim is not None:
            claim.release()

    def _tell(self, at: Position) -> None:
        said = (self._release, at, "owns" if at.owns else "does not own", at.index, KV_EVENTS)
        text = "rankbind-vllm on vLLM %s: this engine core (%s) %s the KV events of replica %d; they belong to %s"
        if at.owns:
            _log.info(text, *said)
        else:
            _log.warning(f"{text}. It is not on the first host of its replica: start this host with --headless", *said)

    def _leave(self, site: str, error: Exception) -> None:
        _log.warning(
            "rankbind-vllm leaves the %s of vLLM %s as it is: %s: %s", site, self._release, type(error).__name__, error
        )


def _end_with(publisher: Any, claim: Claim) -> None:
    """Release the claim when the publisher has been shut down. If its process dies first, the kernel does it."""
    shutdown = publisher.shutdown

    @functools.wraps(shutdown)
    def ended(*args: Any, **kwargs: Any) -> Any:
        try:
            return shutdown(*args, **kwargs)
        finally:
            claim.release()

    publisher.shutdown = ended


class _Await(MetaPathFinder, Loader):
    """Waits for the import of the engine core, and hooks it then. It changes nothing about the import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Give the module's own spec, with this as its loader."""
        if name != ENGINE_CORE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        self._loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does; then hook it."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            register()
        except Exception as error:
            _log.warning("rankbind-vllm leaves the engine alone: %s: %s", type(error).__name__, error)
