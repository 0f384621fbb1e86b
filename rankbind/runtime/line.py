"""Asking a torch.distributed Store: with a limit to the waiting, and without making anybody else wait.

What torch does was tried (2.13; tests/runtime/test_line.py tries it again):

- An operation on a TCPStore whose server is stopped or out of reach does not return, whatever timeout the store has.
- One connection does one thing at a time: a `wait` in another thread of the job holds up every other operation.
- A thread that is inside an operation when the interpreter ends aborts the process.
- The server looks up the name of whoever connects, and serves nobody meanwhile: 5 s and more where the resolver does
  not answer. So no connection is made that the job does not have; who wants one of their own passes `store.clone()`.

So a thread of our own asks, one question after the other, and whoever wants an answer waits for the thread, up to a
limit. Only operations that do not wait for a key are used, `compare_set` and `add`: nobody else is held up for longer
than one of them takes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final, Generic, Protocol, TypeVar

from rankbind.errors import ClaimError, StoreGoneError

T = TypeVar("T")

_NOBODY: Final = "rankbind: no text of a claim is this"
_AT_EXIT: Final = 1.0
"""Seconds that the end of the interpreter may be held up, for all lines together."""
_CANCEL: Final = 0.05
"""Seconds until a caller who waits for an answer notices that it was called off."""


class Store(Protocol):
    """The two operations that are used of ``torch.distributed.Store``."""

    def compare_set(self, key: str, expected_value: str, desired_value: str, /) -> bytes:
        """Set `key` if it is `expected_value` (empty: if it is missing). What it is now; if missing, what was expected.

        So `desired_value` comes back from whoever set it and from nobody else, where no two ever desire the same.
        """

    def add(self, key: str, value: int, /) -> int:
        """The sum."""


def read(store: Store, key: str) -> str | None:
    """What `key` is; None: missing. As a comparison that fails, it is one operation and never waits, as `get` would."""
    found = store.compare_set(key, _NOBODY, _NOBODY).decode(errors="surrogateescape")
    return None if found in ("", _NOBODY) else found


def lost_connection(error: Exception) -> bool:
    """Whether the store is out of reach for good: torch does not connect again."""
    # By name: torch is not imported here.
    return isinstance(error, OSError) or type(error).__name__ == "DistNetworkError"


class Line:
    """The thread that asks one store, for all of this process. Made by `open_line`; the last user's `close` ends it.

    Attributes:
        where: what store it is, for errors.
        broken: why it never answers again; None as long as it may.
    """

    broken: str | None

    def __init__(self, store: Any) -> None:
        self.where, self.broken, self.users = _where(store), None, 0
        self.store: Any = store
        self._ending = False
        self._tasks: SimpleQueue[_Task[Any] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="rankbind-store", daemon=True)
        self._thread.start()

    def ask(
        self,
        question: Callable[[Store], T],
        patience: float,
        *,
        undo: Callable[[Store, T], object] | None = None,
        cancel: Event | None = None,
    ) -> T | None:
        """What `question` gives, asked of the store; None if `cancel` was set before there was an answer.

        Args:
            patience: seconds to wait. A question whose turn comes later is not asked.
            undo: called with an answer that nobody waits for any more.

        Raises:
            StoreGoneError: the store did not answer, or the connection is lost.
        """
        task = _Task(question, undo)
        self._put(task)
        end = time.monotonic() + patience
        try:
            while True:
                left = end - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    return task.answer.result(max(0.0, left if cancel is None else min(left, _CANCEL)))
                called_off = cancel is not None and cancel.is_set()
                if called_off or time.monotonic() >= end:
                    if not task.answer.cancel():
                        return task.answer.result()
                    if called_off:
                        return None
                    raise self._silent(patience)
        except CancelledError:
            raise self._ended() from None
        except (KeyboardInterrupt, SystemExit):
            if not task.answer.cancel():
                self._put(_Task(task.undone))
            raise

    def post(self, question: Callable[[Store], object]) -> Future[Any]:
        """Have it asked when its turn comes, however late."""
        task = _Task(question)
        self._put(task)
        return task.answer

    def settle(self, posted: Future[Any], patience: float) -> None:
        """Wait for what was posted. Raises as `ask`, but what is not answered in time is asked all the same."""
        try:
            posted.result(patience)
        except TimeoutError:
            raise self._silent(patience) from None
        except CancelledError:
            raise self._ended() from None

    def close(self) -> None:
        """One user less. Without any, the thread ends when it has asked what there is to ask."""
        with _mutex:
            self.users -= 1
        self._tasks.put(None)

    def end(self, until: float) -> None:
        """Have the thread ended by `until` (time.monotonic), by cutting its connection if nothing else helps."""
        self._ending = True
        self._tasks.put(None)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive() and _hang_up(self.store):
            self._thread.join(_AT_EXIT)

    def _put(self, task: _Task[Any]) -> None:
        if self._ending:
            raise self._ended()
        self._tasks.put(task)

    def _silent(self, patience: float) -> StoreGoneError:
        return StoreGoneError(
            f"{self.where} has not answered for {patience:g} s: its server (a thread of rank 0, or torchrun's agent) "
            "is dead, stopped, or out of reach, or another thread of this process waits for a key in the same store"
        )

    def _ended(self) -> StoreGoneError:
        return StoreGoneError(f"{self.where} is asked no more: this process is ending")

    def _work(self) -> None:
        while not self._is_over(task := self._tasks.get()):
            if task is None:
                continue
            if self._ending:
                task.answer.cancel()
            else:
                task.do(self._ask)
            del task  # what it refers to is not kept until there is another

    def _is_over(self, task: _Task[Any] | None) -> bool:
        with _mutex:
            # What was asked for by the last user may be behind the end of an earlier one.
            if task is not None or not (self._ending or (self.users == 0 and self._tasks.empty())):
                return False
            # Not before: whoever asks a store that does not answer finds this thread, and starts no other.
            _lines.pop(id(self.store), None)
            return True

    def _ask(self, question: Callable[[Store], T]) -> T:
        try:
            if self.broken is None:
                return question(self.store)
        except ClaimError:
            raise
        except NotImplementedError as error:
            raise ClaimError(f"{self.where} cannot hold claims: {_first_line(error)}") from None
        except Exception as error:
            if not lost_connection(error):
                raise StoreGoneError(f"{self.where} does not work: {_first_line(error)}") from error
            # Asked again, torch prints a page for every attempt.
            self.broken = _first_line(error)
        raise StoreGoneError(f"{self.where} is gone: {self.broken}")


class _Task(Generic[T]):
    def __init__(self, question: Callable[[Store], T], undo: Callable[[Store, T], object] | None = None) -> None:
        self._question, self._undo = question, undo
        self.answer: Future[T] = Future()

    def do(self, ask: Callable[[Callable[[Store], T]], T]) -> None:
        if self.answer.cancelled():
            return
        try:
            found = ask(self._question)
        except Exception as error:
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_exception(error)
            return
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(found)
        else:
            with contextlib.suppress(Exception):
                ask(lambda store: self._undo and self._undo(store, found))  # type: ignore[arg-type,return-value]

    def undone(self, store: Store) -> None:
        if self._undo is not None:
            self._undo(store, self.answer.result())


_mutex = Lock()
_lines: dict[int, Line] = {}
"""By the id of their store, which they keep."""
_over = False


def open_line(store: Any) -> Line:
    """The line to `store`, made if there is none. To be closed."""
    with _mutex:
        if _over:
            raise ClaimError("this process is ending: it can claim nothing any more")
        line = _lines.get(id(store))
        if line is None:
            line = _lines[id(store)] = Line(store)
        line.users += 1
        return line


def _innermost(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _where(store: Any) -> str:
    base = _innermost(store)
    kind = type(base).__name__
    if hasattr(base, "host") and hasattr(base, "port"):
        return f"the {kind} at {base.host}:{base.port}"
    return f"the {kind} {base.path}" if hasattr(base, "path") else f"the {kind} of this process"


def _hang_up(store: Any) -> bool:
    """Cut the connection of a TCPStore: whoever waits for an answer in it gets an error. Whether that was done."""
    # It is told nowhere else (c10d's TCPStore::repr).
    found = re.search(r"client=TCPClient\(SocketImpl\(fd=(\d+)", repr(_innermost(store)))
    if found is None:
        return False
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(found[1]))) as connection:
        connection.shutdown(socket.SHUT_RDWR)
        return True
    return False


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _forked() -> None:
    global _mutex
    _mutex = Lock()
    _lines.clear()


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _at_exit() -> None:
    global _over
    with _mutex:
        _over, left = True, tuple(_lines.values())
    until = time.monotonic() + _AT_EXIT
    for line in left:
        line.end(until)
