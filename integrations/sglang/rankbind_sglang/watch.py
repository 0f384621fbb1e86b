"""The publisher of KV events, watched: if its thread ends or its sockets are closed, it is started again.

SGLang makes one publisher, and if that fails every event from then on is lost, while routers go on trusting what they
have heard. A watching thread sleeps until the publisher's thread ends; a closed socket wakes nobody, so it looks at
those a few times a second. It then gives the same publisher object, which the scheduler holds, new sockets where they
are needed, and a new thread, both by the engine's own methods:

- ``AllBlocksCleared`` is sent first, then everything that the publisher took from its queue and that still holds (see
  `mirror`), sent or lost; then what waits in the queue, in its order. No scheduler's step is needed for it.
- Sequence numbers go on above any that may have been used, and the buffer for replays stays: a batch that was lost is
  missing from a replay, never replaced by another.
- A PUB socket that is open is kept, and with it every subscriber, if the thread was not sending as it ended: half a
  message in a socket would spoil the next. Otherwise its successor says nothing until subscribers are connected again.
  The ROUTER of the replays is always made anew; who waits for a replay has to ask again.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from importlib import import_module
from itertools import count
from threading import Thread
from typing import Any

from rankbind_sglang.mirror import Mirror
from rankbind_sglang.releases import KV_EVENTS_MODULE, publisher_lacks
from rankbind_sglang.sockets import bound

LOOK = 0.25
"""Seconds between two looks at the sockets. The end of the thread is known at once."""
RECONNECTED = 0.5
"""Seconds that a new PUB socket waits for its subscribers. libzmq's, if nobody set ``ZMQ_RECONNECT_IVL``, try again
after 0.1 to 0.2."""
PATIENCE = 0.5
"""Seconds to wait for an address: libzmq closes sockets in the background (4 ms were seen)."""
DELAYS = (0.0, 0.0, 1.0, 2.0, 4.0)
"""Seconds before the first try to start it again, the second, and so on. One more within `WINDOW` is not made."""
WINDOW = 60.0
"""Seconds."""

_log = logging.getLogger("rankbind_sglang")


class Watch:
    """The watch over one publisher, until that is shut down or given up.

    Args:
        publisher: an engine's ``ZmqEventPublisher``.
        cache: the number of its KV cache, for what is said.
        told: is given what `rankbind status` should say of the publisher.
    """

    def __init__(self, publisher: Any, cache: int, told: Callable[[str], None] = lambda _: None) -> None:
        self._publisher, self._cache = publisher, cache
        self._told = told
        self._mirror: Mirror | None = Mirror()
        self._noted: deque[Any] = deque()
        self._take = publisher._event_queue._get
        publisher._event_queue._get = self._taken
        self._tries: deque[float] = deque()
        self._restarts = 0
        self._count = _counter(cache)
        self._bound = bound(publisher)
        self._thread = Thread(target=self._run, name="rankbind-publisher-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while (why := self._failure()) is not None:
                if not self._again(why):
                    return
        except Exception as error:
            _log.error("rankbind-sglang: the watch over %s ended: %s: %s", self, type(error).__name__, error)
        finally:
            self._forget()

    def __str__(self) -> str:
        return f"the KV event publisher of cache {self._cache}"

    def _taken(self) -> Any:
        """What the queue gives the publisher's thread: `Queue._get` is there to be replaced, and is asked with the lock
        held, also by a thread that waits already.

        A thread that is ended in here leaves a batch that was noted and not taken, and to follow it twice is no
        different; one that was taken and not noted would be lost.
        """
        self._noted.append(self._publisher._event_queue.queue[0])
        return self._take()

    def _follow(self) -> None:
        """Let the mirror follow what was taken. In this thread: with the queue's lock held the scheduler would wait."""
        try:
            while self._noted:
                batch = self._noted.popleft()
                if batch is not None and self._mirror is not None:
                    self._mirror.apply(batch)
        except Exception as error:
            self._forget()
            _log.warning(
                "rankbind-sglang does not know the events of %s (%s: %s): should it fail, what the cache holds is not "
                "told again",
                self,
                type(error).__name__,
                error,
            )

    def _forget(self) -> None:
        self._mirror, self._publisher._event_queue._get = None, self._take
        self._noted.clear()

    def _failure(self) -> str | None:
        """Wait until the publisher fails, and say how; None when it was shut down."""
        while True:
            thread = self._publisher._thread
            thread.join(LOOK)
            self._follow()
            if not self._publisher._running:
                return None
            if not thread.is_alive():
                return "its thread has ended"
            closed = [name for name, socket in self._sockets().items() if socket is not None and socket.closed]
            if closed:
                return f"its {' and '.join(closed)} socket was closed"

    def _sockets(self) -> dict[str, Any]:
        return {"PUB": self._publisher._pub, "ROUTER": self._publisher._replay}

    def _again(self, why: str) -> bool:
        """Start the publisher again, whatever hinders it; False when it was shut down or given up."""
        began = time.monotonic()
        problem = ""
        while self._publisher._running:
            while self._tries and self._tries[0] < time.monotonic() - WINDOW:
                self._tries.popleft()
            if len(self._tries) >= len(DELAYS):
                self._give_up(why, problem)
                return False
            time.sleep(DELAYS[len(self._tries)])
            self._tries.append(time.monotonic())
            try:
                restarted = self._restart()
            except Exception as error:
                problem = f" ({type(error).__name__}: {error})"
                continue
            if restarted is not None:
                self._say_restarted(why, *restarted, time.monotonic() - began)
            return restarted is not None
        return False

    def _restart(self) -> tuple[int, int | None, int] | None:
        """Start it again: the number of ``AllBlocksCleared``, and how many blocks are told again and batches waited.

        None where it was shut down meanwhile.

        Raises:
            RuntimeError: the old thread does not end.
            Exception: the sockets cannot be made; whatever the engine's method raises.
        """
        publisher = self._publisher
        self._end_thread()
        sequence, sent_all = self._where_it_stopped()
        if publisher._ctx.closed:
            publisher._ctx = type(publisher._ctx).instance()
        if publisher._pub is None or publisher._pub.closed or not sent_all:
            self._close("_pub", "_endpoint", "bind")
        self._close("_replay", "_replay_endpoint", "replay")
        kept = publisher._pub is not None
        self._open()
        if not kept:
            time.sleep(RECONNECTED)
        if not publisher._running:
            self._close("_pub", "_endpoint", "bind")
            self._close("_replay", "_replay_endpoint", "replay")
            return None
        self._follow()
        blocks, waiting = None if self._mirror is None else len(self._mirror), publisher._event_queue.qsize()
        self._put_first(*self._anew())
        self._start_thread()
        return sequence, blocks, waiting

    def _end_thread(self) -> None:
        """See to it that the thread has ended: without its sockets it loses batch after batch."""
        thread, waiting = self._publisher._thread, self._publisher._event_queue
        if thread.is_alive():
            self._put_first(None)  # what the engine puts last to end it
            thread.join(2)
            if thread.is_alive():
                raise RuntimeError("its thread does not end")
            with waiting.mutex:  # it may have died before it saw that
                if waiting.queue and waiting.queue[0] is None and self._publisher._running:
                    waiting.queue.popleft()

    def _where_it_stopped(self) -> tuple[int, bool]:
        """The next sequence number, and whether the one before it was sent whole."""
        publisher = self._publisher
        sequence = next(publisher._seq_gen)
        publisher._seq_gen = count(sequence)
        last = publisher._buffer[-1][0] if publisher._buffer else -1
        return sequence, sequence == last + 1

    def _open(self) -> None:
        """Let the engine make the sockets that there are not, as soon as their addresses are free."""
        publisher = self._publisher
        end = time.monotonic() + PATIENCE
        while True:
            try:
                publisher._socket_setup()
                return
            except Exception:
                # The engine makes PUB first, so a ROUTER that is there is the one that found its address taken.
                for name in ("_replay", "_pub"):
                    if getattr(publisher, name) is not None:
                        getattr(publisher, name).close(linger=0)
                        setattr(publisher, name, None)
                        break
                if time.monotonic() > end:
                    raise
                time.sleep(0.005)

    def _close(self, name: str, endpoint: str, role: str) -> None:
        """Close a socket, and have the next one take the address that this one had."""
        socket = getattr(self._publisher, name)
        if socket is not None:
            socket.close(linger=0)
            setattr(self._publisher, name, None)
        address = self._bound.get(role, "")
        if address.startswith("tcp://") and getattr(self._publisher, endpoint).endswith((":0", ":*")):
            host = getattr(self._publisher, endpoint).rpartition(":")[0]
            setattr(self._publisher, endpoint, f"{host}:{address.rpartition(':')[2]}")

    def _anew(self) -> list[Any]:
        """What a router has to hear first: nothing that it knew holds, but this does."""
        told = self._mirror
        return [cleared(self._publisher), *(told.batches(self._publisher._dp_rank) if told is not None else ())]

    def _put_first(self, *batches: Any) -> None:
        waiting = self._publisher._event_queue
        with waiting.mutex:
            waiting.queue.extendleft(reversed(batches))
            waiting.unfinished_tasks += len(batches)
            waiting.not_empty.notify()

    def _start_thread(self) -> None:
        old = self._publisher._thread
        self._publisher._thread = Thread(target=self._publisher._publisher_thread, daemon=True, name=old.name)
        self._publisher._thread.start()

    def _say_restarted(self, why: str, sequence: int, blocks: int | None, waiting: int, took: float) -> None:
        self._restarts += 1
        self._count("restarted")
        _log.error(
            "rankbind-sglang: %s failed (%s), and was started again in %.0f ms (restart %d): AllBlocksCleared is "
            "number %d; then %s, and the %d batches that waited",
            self,
            why,
            took * 1000,
            self._restarts,
            sequence,
            "nothing is told again" if blocks is None else f"{blocks} blocks are told again",
            waiting,
        )
        self._tell(f"restart {self._restarts} at {_now()}: {why}")

    def _give_up(self, why: str, problem: str) -> None:
        """Let the scheduler live on without: nothing may wait for a queue that nobody empties."""
        publisher = self._publisher
        publisher.publish = lambda events: None
        waiting = publisher._event_queue
        with waiting.mutex:
            waiting.queue.clear()
            waiting.not_full.notify_all()
        # The last word, where there is a socket to say it with: no router should trust what it heard.
        ended = not publisher._thread.is_alive()
        if ended and publisher._pub is not None and not publisher._pub.closed and self._where_it_stopped()[1]:
            self._put_first(cleared(publisher), None)
            self._start_thread()
            publisher._thread.join(1)
        for socket in self._sockets().values():
            if socket is not None and not publisher._thread.is_alive():
                socket.close(linger=1000)
        self._count("given up")
        _log.error(
            "rankbind-sglang: %s failed (%s) and is given up after %d tries in %.0f s%s. The server goes on without KV "
            "events: routers know nothing of this cache until it is restarted",
            self,
            why,
            len(self._tries),
            WINDOW,
            problem,
        )
        self._tell(f"given up at {_now()}: {why}{problem}")

    def _tell(self, note: str) -> None:
        try:
            self._told(note)
        except Exception as error:
            _log.warning("rankbind-sglang cannot tell `rankbind status` of %s: %s", self, error)


def watch(publisher: Any, cache: int, release: str, **to_tell: Any) -> Watch | None:
    """Watch a publisher that the engine has made; None for one that cannot be, which is said if it publishes anything.

    Args:
        to_tell: as `Watch` takes it.
    """
    module = import_module(KV_EVENTS_MODULE)
    if publisher is None or isinstance(publisher, module.NullEventPublisher):
        return None
    lacks = publisher_lacks(publisher)
    if lacks:
        known = isinstance(publisher, module.ZmqEventPublisher)
        _log.warning(
            "rankbind-sglang does not know the publisher %s of SGLang %s (%s) and does not watch it",
            type(publisher).__name__,
            release,
            f"it has no {', '.join(lacks)}" if known else "a plugin's own",
        )
        return None
    return Watch(publisher, cache, **to_tell)


def cleared(publisher: Any) -> Any:
    """A batch that says that the cache is empty, as the engine makes it."""
    module = import_module(KV_EVENTS_MODULE)
    return module.KVEventBatch(ts=time.time(), events=[module.AllBlocksCleared()], attn_dp_rank=publisher._dp_rank)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _counter(cache: int) -> Callable[[str], None]:
    """Counts what became of failures, where the server serves metrics: SGLang collects those of all its processes."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return lambda outcome: None
    try:
        failures = _failures(import_module("prometheus_client").Counter)
    except ImportError:
        return lambda outcome: None
    for outcome in ("restarted", "given up"):
        failures.labels(cache=str(cache), outcome=outcome).inc(0)
    return lambda outcome: failures.labels(cache=str(cache), outcome=outcome).inc()


_made: dict[str, Any] = {}


def _failures(kind: Any) -> Any:
    if "failures" not in _made:
        _made["failures"] = kind(
            "rankbind_sglang_publisher_failures",
            "Failures of the KV event publisher, by what became of them",
            ("cache", "outcome"),
        )
    return _made["failures"]
