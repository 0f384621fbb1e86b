"""Making a thing once for each `Identity`: whoever asks first makes it, the others wait, failure leaves nothing behind.

A `Record` stands in its `Once` from the moment somebody begins to make the thing until its teardown is over, so nobody
sees a half of either. Locks guard records only; none is held while user code runs.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import itertools
import reprlib
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Protocol

from rankbind.errors import RankbindError
from rankbind.identity import Identity, current, identity, settle, watch, watchers
from rankbind.runtime.election import Held
from rankbind.site import call_site
from rankbind.tenure import Tenure, end_all

if TYPE_CHECKING:
    import asyncio

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]

COLD: Final[Any] = object()
"""No shortcut: it has to be asked who this process is."""
_AGAIN: Final[Any] = object()
"""What was waited for came to nothing that matters to you: look again."""
_NEVER: Final[Any] = (COLD, None, COLD)
"""Arguments that no call has."""

_CONTEXT = contextlib.contextmanager(lambda: iter(())).__code__
_ASYNC_CONTEXT = contextlib.asynccontextmanager(lambda: None).__code__  # type: ignore[arg-type,return-value]


class Rule(Protocol):
    """Who makes the thing, and what the others get."""

    otherwise: Any

    def decide(self, who: Identity, label: str, *, stand_by: bool = True) -> bool:
        """Whether `who` owns. `stand_by`: if that is elected and somebody else does, wait for it in the background."""

    def owner_rank(self, who: Identity, label: str) -> int:
        """Who owns for `who`."""

    def tenure(self, who: Identity) -> Tenure | None:
        """What `who` has of the resource; None where nothing is claimed."""


class Record:
    """One thing of one identity: being made, there, or on its way out. `doing` says which, for errors.

    Attributes:
        substitute: whether it is what one who does not own gets instead.
        tenure, claim, ticket: what it is made under, if anything is claimed, and what stands for it there.
    """

    tenure: Tenure | None = None
    claim: Held | None = None
    substitute = False

    def __init__(self, once: Once, args: Args, kwargs: Kwargs, doing: str = "it was being made") -> None:
        from concurrent.futures import Future

        self.label, self.args, self.kwargs, self.doing, self.site = once.label, args, kwargs, doing, call_site()
        self.done: Future[Any] = Future()
        self.done.set_running_or_notify_cancel()  # so that a waiter who is cancelled does not cancel it for all
        self.gone: Future[bool] = Future()
        self.gone.set_running_or_notify_cancel()
        self.closing: Any = None
        self.ticket = object()
        self.serial = self.users = 0
        self.waits_for: Record | None = None
        self.task: asyncio.Task[None] | None = None
        self.leave: asyncio.Future[BaseException | None] | None = None
        self.barrier: Record | None = None

    def publish(self, value: Any) -> None:
        """The thing is there: let those who wait have it."""
        self.serial, self.waits_for = next(_serial), None
        self.done.set_result(value)

    def give_up(self) -> None:
        """Nothing of it is left: it needs the claim no longer."""
        tenure, self.tenure, self.claim = self.tenure, None, None
        if tenure is not None:
            tenure.leave(self.ticket)

    def __del__(self) -> None:
        self.give_up()
        if self.closing is not None:
            warnings.warn(
                f"{self.label}, made at {self.site}, was garbage-collected and never "
                "released: its teardown did not run in order, if at all",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )


@dataclass(frozen=True)
class _Stood:
    """What is made when its process comes to own: a `Candidate` of its `Tenure`, which keeps nothing alive."""

    of: weakref.ref[Once]
    who: Identity
    args: Args
    kwargs: Kwargs
    loop: asyncio.AbstractEventLoop | None = None

    def take_over(self) -> bool:
        once = self.of()
        if once is None:
            return False
        with once._mutex:
            found = once._records.get(self.who)
            if found is not None and found.substitute:
                del once._records[self.who]
            once.cool()
        return once._take_over(self)

    def step_down(self) -> None:
        once = self.of()
        record = None if once is None else once._records.get(self.who)
        if once is not None and record is not None and not record.substitute:
            once._step_down(self, record)


_serial = itertools.count(1)
_in_progress: ContextVar[tuple[Record, ...]] = ContextVar("rankbind.in_progress", default=())


class Once:
    """What making now and making in an event loop have in common.

    Attributes:
        label: what errors call it: its name, and where it was declared.
        fast: the thing, if a call without arguments gives it whoever asks, else `COLD`.
        settled: arguments (None: any) and what a call with equal ones gives, whoever asks. Replaced whole.
    """

    __slots__ = ("__dict__", "__weakref__", "_of", "_slot", "fast", "settled")
    _of: Callable[[], Any] | None
    _slot: str
    fast: Any
    settled: tuple[Args | None, Kwargs | None, Any]

    def __init__(self, rule: Rule, function: Callable[..., Any], label: str, of: Any = None) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]  # the forms are callable
        self._rule, self._function, self.label = rule, function, label
        self._factory, self._opens = _factory(function)
        self._of = None if of is None else _weakly(of)
        self._slot = f"_rankbind_{id(self):x}"
        self._start_over()
        watch(self)

    def cool(self) -> None:
        """Forget the shortcuts."""
        self.fast, self.settled = COLD, _NEVER

    def forked(self) -> None:
        """In a child: forget what the parent made, and see to it that its teardown never runs here."""
        _pin(list(self._records.values()))
        self._start_over()

    def _start_over(self) -> None:
        self._mutex = RLock()  # a signal handler or a finaliser may call in while this thread holds it
        self._records: weakref.WeakKeyDictionary[Identity, Record] = weakref.WeakKeyDictionary()
        self.cool()

    _stands_by = True
    """Whether one who does not own gets the thing when he comes to own."""

    @property
    def claim(self) -> Held | None:
        """The claim that the thing is made under; None where nothing is claimed, or this process has none."""
        who = current()
        record = None if who is None else self._records.get(who)
        return None if record is None or record.claim is None or not record.claim.held else record.claim

    def _decide(self, who: Identity, args: Args, kwargs: Kwargs) -> tuple[bool, bool]:
        """Whether `who` owns, and whether that is settled. If it is not, the thing is made when `who` comes to own."""
        if self._rule.decide(who, self.label, stand_by=self._stands_by):
            return True, True
        tenure = self._rule.tenure(who)
        if tenure is None or not tenure.elected:
            return False, True
        if self._stands_by:
            tenure.stand_for(self._stood(who, args, kwargs))
        return False, False

    def _stood(self, who: Identity, args: Args, kwargs: Kwargs) -> _Stood:
        return _Stood(weakref.ref(self), who, args, kwargs)

    def _take_over(self, stood: _Stood) -> bool:
        raise NotImplementedError

    def _step_down(self, stood: _Stood, record: Record) -> None:
        raise NotImplementedError

    def _enter(self, who: Identity, record: Record) -> None:
        """Take the claim that the thing is to be made under, if there is one."""
        tenure = self._rule.tenure(who)
        if tenure is not None:
            record.claim = tenure.enter(record.ticket, self._stood(who, record.args, record.kwargs))
            record.tenure = tenure

    def _withdraw(self, who: Identity) -> None:
        tenure = self._rule.tenure(who)
        if tenure is not None and tenure.elected:
            tenure.withdraw(weakref.ref(self))

    def _begin(self, who: Identity, args: Args, kwargs: Kwargs) -> tuple[Record, bool]:
        """The record of `who`, and whether it is for the caller to make the thing."""
        record, new = self._records.get(who), None
        if record is None:
            new = Record(self, args, kwargs)
            with self._mutex:
                record = self._records.setdefault(who, new)
        if record is not new:
            self._before_waiting(record, "called")
        return record, record is new

    def _before_waiting(self, record: Record, what: str) -> None:
        """Say that what this thread or task is making waits for `record`. An error if they would wait in a circle."""
        mine, last = _in_progress.get(), record
        for each in mine:
            each.waits_for = record
        while not last.done.done():
            if last in mine:
                for each in mine:
                    each.waits_for = None
                by = "" if last is record else f" (for {last.label}, which is waiting for it)"
                raise RankbindError(
                    f"{self.label} was {what} at {call_site()} from within, while {record.doing} for {record.site}"
                    f"{by}: it would wait for itself"
                )
            if last.waits_for is None:
                return
            last = last.waits_for

    def _verdict(self, record: Record, args: Args, kwargs: Kwargs, outcome: Callable[[], Any]) -> Any:
        """What somebody who waited for `record` gets: the thing, the error of the attempt, or `_AGAIN`."""
        same = self._same(record, args, kwargs)
        try:
            value = outcome()
        except Exception:
            if same:
                raise
            return _AGAIN
        if value is not _AGAIN and not same:
            raise RankbindError(
                f"{self.label} exists once: it was made at {record.site} with {_shown(record.args, record.kwargs)}, "
                f"and called at {call_site()} with {_shown(args, kwargs)}. Pass equal arguments, or release() it first"
            )
        return value

    def _same(self, record: Record, args: Args, kwargs: Kwargs) -> bool:
        try:
            if record.args == args and record.kwargs == kwargs:
                return True
            signature = inspect.signature(self._function)
            one = signature.bind(*self._with_self(record.args), **record.kwargs)
            other = signature.bind(*self._with_self(args), **kwargs)
            one.apply_defaults()
            other.apply_defaults()
            return bool(one.arguments == other.arguments)
        except Exception:  # arguments whose == raises or gives no truth value (arrays) are not known to be equal
            return False

    def _with_self(self, args: Args) -> Args:
        return args if self._of is None else (self._of(), *args)

    def _abandon(self, who: Identity, record: Record, error: BaseException) -> None:
        if record.done.done():
            return
        with self._mutex:
            if self._records.get(who) is record:
                del self._records[who]
        if isinstance(error, Exception):
            record.done.set_exception(error)
        else:
            record.done.set_result(_AGAIN)

    def _warm(self, who: Identity, record: Record | None, value: Any) -> None:
        def shortcut() -> None:
            self.settled = (None, None, value) if record is None else (record.args, record.kwargs, value)
            if record is None or not (record.args or record.kwargs):
                self.fast = value

        with self._mutex:
            if record is None or self._records.get(who) is record:
                settle(who, shortcut)

    def _bar(self, who: Identity, record: Record, *, leaving: bool = False, force: bool = False) -> Record | None:
        """Take `record` away and let callers wait until `_unbar`. None: it is in use, or somebody else did."""
        barrier = Record(self, (), {}, "it was being released")
        with self._mutex:
            record.users -= leaving
            if (record.users > 0 and not force) or self._records.get(who) is not record:
                return None
            self._records[who] = barrier
            self.cool()
            return barrier

    def _unbar(self, who: Identity, barrier: Record) -> None:
        with self._mutex:
            if self._records.get(who) is barrier:
                del self._records[who]
        barrier.done.set_result(_AGAIN)

    def _join(self, who: Identity, record: Record) -> bool:
        """Become a user of `record`, whose teardown then waits; False if it is on its way out."""
        with self._mutex:
            here = self._records.get(who) is record
            record.users += here
            return here


class OnceNow(Once):
    """The thing is made in the thread that asks first; others that ask wait in theirs."""

    def obtain(self, args: Args, kwargs: Kwargs) -> tuple[Identity, Record | None, Any]:
        """Who asks, the record if there is one to release, and the thing (or `otherwise`)."""
        who = identity()
        (owned, settled), otherwise = self._decide(who, args, kwargs), self._rule.otherwise
        if not owned:
            args, kwargs = (), {}
            if not callable(otherwise):
                if settled:
                    self._warm(who, None, otherwise)
                return who, None, otherwise
        record, value = self._get(who, args, kwargs, owned)
        if settled:
            self._warm(who, record if owned else None, value)
        return who, record if owned else None, value

    def _get(self, who: Identity, args: Args, kwargs: Kwargs, owned: bool) -> tuple[Record, Any]:
        value = _AGAIN
        while value is _AGAIN:
            record, mine = self._begin(who, args, kwargs)
            if mine:
                value = self._make(who, record, owned)
            else:
                value = self._verdict(record, args, kwargs, record.done.result)
        return record, value

    def _take_over(self, stood: _Stood) -> bool:
        record, value = self._get(stood.who, stood.args, stood.kwargs, True)
        self._warm(stood.who, record, value)
        return True

    def _step_down(self, stood: _Stood, record: Record) -> None:
        with contextlib.suppress(Exception):
            record.done.result()
        self._close(stood.who, record, force=True)

    def _make(self, who: Identity, record: Record, owned: bool) -> Any:
        token = _in_progress.set((*_in_progress.get(), record))
        record.substitute = not owned
        try:
            if not owned:
                value = self._rule.otherwise()
            else:
                self._enter(who, record)
                value = self._factory(*self._with_self(record.args), **record.kwargs)
                if self._opens:
                    context, value = value, value.__enter__()
                    record.closing = context
                elif inspect.iscoroutine(value):
                    value.close()
                    raise RankbindError(f"{self.label} returned a coroutine: decorate the coroutine function itself")
        except BaseException as error:
            record.give_up()
            self._abandon(who, record, error)
            raise
        finally:
            _in_progress.reset(token)
        record.publish(value)
        return value

    def _close(
        self,
        who: Identity,
        record: Record,
        error: BaseException | None = None,
        leaving: bool = False,
        force: bool = False,
    ) -> bool:
        """Tear down, unless in use; whether the teardown swallowed `error`."""
        barrier = self._bar(who, record, leaving=leaving, force=force)
        if barrier is None:
            return False
        token = _in_progress.set((*_in_progress.get(), barrier))
        try:
            context, record.closing = record.closing, None
            return context is not None and bool(context.__exit__(*_info(error)))
        finally:
            _in_progress.reset(token)
            record.give_up()
            self._unbar(who, barrier)

    def release(self) -> None:
        """Run the teardown and forget the object; the next call makes a new one. Without an object nothing happens.

        One who stands by for it does so no longer.
        """
        who = current()
        record = None if who is None else self._records.get(who)
        if who is not None:
            self._withdraw(who)
        if who is not None and record is not None:
            self._before_waiting(record, "released")
            with contextlib.suppress(Exception):
                record.done.result()
            self._close(who, record)


class OnceAwaited(Once):
    """The thing is made in a task of its own, which tears it down too: cancelling one who waits harms nobody else."""

    async def obtain(self, args: Args, kwargs: Kwargs) -> tuple[Identity, Record | None, Any]:
        """As `OnceNow.obtain`."""
        who = identity()
        (owned, settled), otherwise = self._decide(who, args, kwargs), self._rule.otherwise
        if not owned:
            args, kwargs = (), {}
            if not callable(otherwise):
                if settled:
                    self._warm(who, None, otherwise)
                return who, None, otherwise
        record, value = await self._get(who, args, kwargs, owned)
        if settled:
            self._warm(who, record if owned else None, value)
        return who, record if owned else None, value

    async def _get(self, who: Identity, args: Args, kwargs: Kwargs, owned: bool) -> tuple[Record, Any]:
        import asyncio

        value = _AGAIN
        while value is _AGAIN:
            record, mine = self._begin(who, args, kwargs)
            if mine:
                record.task = asyncio.create_task(self._make(who, record, self._with_self(args), owned))
                record.task.add_done_callback(functools.partial(self._never_began, who, record))
            elif record.task is not None and record.task.get_loop().is_closed():
                self._never_began(who, record)
            await _over(record)
            value = self._verdict(record, args, kwargs, record.done.result)
        return record, value

    def _stood(self, who: Identity, args: Args, kwargs: Kwargs) -> _Stood:
        import asyncio

        return _Stood(weakref.ref(self), who, args, kwargs, asyncio.get_running_loop())

    def _take_over(self, stood: _Stood) -> bool:
        """In the event loop that asked for it; False if that has ended."""
        import asyncio

        loop = stood.loop
        if loop is None or loop.is_closed():
            return False
        get = self._get(stood.who, stood.args, stood.kwargs, True)
        try:
            asyncio.run_coroutine_threadsafe(get, loop).result()
        except RuntimeError:
            get.close()
            if not loop.is_closed():
                raise
            return False
        return True

    def _step_down(self, stood: _Stood, record: Record) -> None:
        import asyncio

        async def close() -> None:
            await _over(record)
            await self._close(stood.who, record)

        if stood.loop is not None and not stood.loop.is_closed():
            asyncio.run_coroutine_threadsafe(close(), stood.loop).result()

    def _never_began(self, who: Identity, record: Record, _task: Any = None) -> None:
        """The loop ended, or cancelled the task, before the making could say how it went."""
        self._abandon(who, record, GeneratorExit())

    async def _make(self, who: Identity, record: Record, args: Args, owned: bool) -> None:
        import asyncio

        _in_progress.set((*_in_progress.get(), record))
        record.substitute = not owned
        try:
            if owned:
                self._enter(who, record)
            if not owned:
                value = self._rule.otherwise()
            elif self._opens:
                context = self._factory(*args, **record.kwargs)
                value = await context.__aenter__()
                record.closing, record.leave = context, asyncio.get_running_loop().create_future()
            else:
                value = await self._factory(*args, **record.kwargs)
        except BaseException as error:
            record.give_up()
            self._abandon(who, record, error)
            if isinstance(error, Exception):
                return
            raise
        record.publish(value)
        if record.leave is not None:
            await self._keep(who, record, record.leave)

    async def _keep(self, who: Identity, record: Record, leave: asyncio.Future[BaseException | None]) -> None:
        """Wait for the release, or for the end of the loop, and tear down in the task that made the thing."""
        import asyncio

        error, stopped = None, None
        try:
            error = await leave
        except asyncio.CancelledError as cancelled:
            stopped = cancelled
        barrier = record.barrier or self._bar(who, record, force=True)
        _in_progress.set((*_in_progress.get(), *([barrier] if barrier else [])))
        context, record.closing = record.closing, None
        try:
            record.gone.set_result(bool(await context.__aexit__(*_info(error))))
        except BaseException as failure:
            record.gone.set_exception(failure)
            if stopped is not None:
                raise
        finally:
            record.give_up()
            if barrier is not None:
                self._unbar(who, barrier)
        if stopped is not None:
            raise stopped

    async def _close(
        self, who: Identity, record: Record, error: BaseException | None = None, leaving: bool = False
    ) -> bool:
        """As `OnceNow._close`."""
        import asyncio

        barrier = self._bar(who, record, leaving=leaving)
        if barrier is None:
            return False
        if record.leave is None or record.leave.get_loop().is_closed():
            record.give_up()
            self._unbar(who, barrier)
            return False
        loop = record.leave.get_loop()
        record.barrier = barrier
        loop.call_soon_threadsafe(_set, record.leave, error)
        return await asyncio.wrap_future(record.gone)

    async def release(self) -> None:
        """As `OnceNow.release`."""
        who = current()
        record = None if who is None else self._records.get(who)
        if who is not None:
            self._withdraw(who)
        if who is not None and record is not None:
            self._before_waiting(record, "released")
            await _over(record)
            await self._close(who, record)


def release_all() -> None:
    """Release everything this process (or the `use` block) made, last made first, and stand by for nothing any longer.

    It runs by itself at exit.

    A teardown that raises does not keep the others from running. What was made in an event loop stays, with a
    ResourceWarning: see `release_all_async`.
    """
    who = current()
    if who is not None:
        _release([each for each in _made() if each[1] is who])
        end_all(who)


async def release_all_async() -> None:
    """As `release_all`, with what was made in event loops."""
    who = current()
    async with contextlib.AsyncExitStack() as stack:
        for once, who_made, record in _made():
            if who_made is who and isinstance(once, OnceNow):
                stack.callback(once._close, who_made, record)
            elif who_made is who and isinstance(once, OnceAwaited):
                stack.push_async_callback(once._close, who_made, record)
    if who is not None:
        end_all(who)


def current_claim() -> Held | None:
    """The claim under which something is being made at this moment, for the code that makes it; None if there is none.

    Its ``token`` goes into what is published, and ``update(endpoints=...)`` tells where that really is.
    """
    claims = [record.claim for record in _in_progress.get() if record.claim is not None]
    return claims[-1] if claims else None


def _release(found: list[tuple[Once, Identity, Record]]) -> None:
    with contextlib.ExitStack() as stack:
        for once, who, record in found:
            if isinstance(once, OnceNow):
                stack.callback(once._close, who, record)
            elif record.closing is not None:
                record.closing = None
                message = (
                    f"{once.label}, made at {record.site}, needs an event loop to be released: its teardown did not run"
                )
                stack.callback(warnings.warn, message, ResourceWarning, 1)


def _made() -> list[tuple[Once, Identity, Record]]:
    """What is there, first made first."""
    found: list[tuple[Once, Identity, Record]] = []
    for once in watchers():
        if isinstance(once, Once):
            with once._mutex:
                found += [(once, who, record) for who, record in once._records.items() if record.serial]
    return sorted(found, key=lambda each: each[2].serial)


def _factory(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """What makes the thing, and whether it makes a context manager whose value is the thing."""
    if inspect.isgeneratorfunction(function):
        return contextlib.contextmanager(function), True
    if inspect.isasyncgenfunction(function):
        return contextlib.asynccontextmanager(function), True
    return function, is_context(function) or is_async_context(function)


def is_context(function: Any) -> bool:
    """Whether `function` was made by ``@contextmanager``."""
    return getattr(function, "__code__", None) is _CONTEXT


def is_async_context(function: Any) -> bool:
    """Whether `function` was made by ``@asynccontextmanager``."""
    return getattr(function, "__code__", None) is _ASYNC_CONTEXT


def _info(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


async def _over(record: Record) -> None:
    """Wait until `record` is made, or is not."""
    import asyncio

    if not record.done.done():
        with contextlib.suppress(Exception):
            await asyncio.wrap_future(record.done)


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _shown(args: Args, kwargs: Kwargs) -> str:
    return f"({', '.join([*map(reprlib.repr, args), *(f'{name}={reprlib.repr(v)}' for name, v in kwargs.items())])})"


def _weakly(of: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(of)
    except TypeError:
        return lambda: of


def _pin(things: list[Any]) -> None:
    """Keep `things` until the process ends, beyond the end of the interpreter: no finaliser may run for them."""
    if things:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))


@atexit.register
def _at_exit() -> None:
    end_all(None)
    _release(_made())
