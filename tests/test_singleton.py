"""The decorator, by the hazards it is there for."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import pickle
import re
import subprocess
import sys
import threading
import types
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pytest

import rankbind
from rankbind import IdentityError, RankbindError, Topology, singleton_per, use
from rankbind.errors import ScopeError, TopologyError, UnknownAxisError
from rankbind.identity import reset
from rankbind.resource import Job, Resource
from rankbind.scope import Gate, Scope

TOPOLOGY = Topology({"pp": 2, "tp": 4})
OWNER, OTHER = 1, 5
"""Ranks of one pp group."""


@pytest.fixture(autouse=True)
def _owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test runs as a process that owns, with the shortcuts of a process that has one identity."""
    for name in [name for name in os.environ if name.startswith(("RANK", "WORLD_SIZE", "SLURM_", "OMPI_"))]:
        monkeypatch.delenv(name)
    reset()
    rankbind.init(TOPOLOGY, rank=OWNER)
    yield
    rankbind.release_all()
    reset()


def become(rank: int) -> None:
    reset()
    rankbind.init(TOPOLOGY, rank=rank)


def together(count: int, act: Callable[[], object]) -> list[object]:
    """What `count` threads get that call `act` at the same moment: a result or an exception."""
    barrier = threading.Barrier(count)

    def one(_: int) -> object:
        barrier.wait()
        try:
            return act()
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


class Thing:
    """Something that can be told apart and referred to weakly."""


# The owner, and the others


def test_the_owner_makes_it_once_and_the_others_get_none() -> None:
    made = []

    @singleton_per(group="pp", rank=0)
    def kv_events() -> Thing:
        made.append(rankbind.identity().rank)
        return Thing()

    assert kv_events() is kv_events() is kv_events()
    assert kv_events.owned
    assert kv_events.owner == OWNER
    become(OTHER)
    assert [kv_events(), kv_events()] == [None, None]
    assert not kv_events.owned
    assert kv_events.owner == OWNER
    assert made == [OWNER]


@pytest.mark.parametrize(
    ("group", "rank"), [("pp", 0), ("pp", -1), ("tp", 2), (("pp", "tp"), 3), ("world", 7), ("host", 0)]
)
def test_the_decorator_obeys_the_scope(group, rank) -> None:
    declaration = singleton_per(group=group, rank=rank)
    made = declaration(lambda: Thing())
    owners = []
    for each in range(TOPOLOGY.size):
        with use(TOPOLOGY, rank=each):
            assert declaration.owned == made.owned == (made() is not None)
            owners += [each] * made.owned
            assert made.owner == Scope(group, rank).owner_of(TOPOLOGY, {"rank": each})
    assert tuple(owners) == Scope(group, rank).owners(TOPOLOGY)


def test_otherwise_is_a_value_or_a_factory_that_is_called_once() -> None:
    made = []

    def fallback() -> Thing:
        made.append(1)
        return Thing()

    fixed = Thing()
    by_value = singleton_per(group="pp", otherwise=fixed)(lambda: Thing())
    by_factory = singleton_per(group="pp", otherwise=fallback)(lambda: Thing())
    become(OTHER)
    assert by_value() is by_value(3) is fixed
    assert by_factory() is by_factory(3, x=4) is by_factory()
    assert made == [1]


def test_a_failing_otherwise_leaves_nothing_behind() -> None:
    answers: list[object] = [OSError("no"), Thing()]

    def fallback() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    tried = singleton_per(group="pp", otherwise=fallback)(lambda: Thing())
    become(OTHER)
    with pytest.raises(OSError, match="no"):
        tried()
    assert isinstance(tried(), Thing)


def test_none_and_false_are_things_too() -> None:
    made = []
    nothing = singleton_per(group="pp")(lambda: made.append(1))
    assert nothing() is None
    assert nothing() is None
    assert made == [1]


def test_one_declaration_for_several_sites() -> None:
    gate = singleton_per(group="pp", name="kv-events")

    @gate
    def publisher() -> Thing:
        return Thing()

    @gate
    class Cache:
        pass

    assert gate.owned
    assert gate.owner == OWNER
    assert publisher() is not Cache()
    become(OTHER)
    assert (gate.owned, publisher(), Cache()) == (False, None, None)


def test_a_scope_by_the_name_of_a_resource() -> None:
    job = Job(TOPOLOGY, (Resource("kv-events", Scope("pp", -1)), Resource("by-hand", Gate({"tp": 1}))))
    events, by_hand = singleton_per("kv-events"), singleton_per("by-hand")
    with use(job, rank=OTHER):
        assert events.owned
        assert by_hand.owned
        with pytest.raises(ScopeError, match="hand-written gate"):
            _ = by_hand.owner
        with pytest.raises(ScopeError, match=r"has no resource 'kv-event'; did you mean 'kv-events'\?"):
            _ = singleton_per("kv-event").owned
    with use(job, rank=OWNER):
        assert (events.owned, events.owner) == (False, OTHER)
    with pytest.raises(IdentityError, match="stands in a topology file, and there is none"):
        _ = events.owned


def test_the_name_of_a_resource_in_a_real_file(tmp_path: Path) -> None:
    pytest.importorskip("rankbind.config")
    path = tmp_path / "topology.toml"
    path.write_text(
        '[axes]\npp = 2\ntp = 4\n[resources.kv-events]\nsingleton_per = { group = "pp", rank = -1 }\n'
        'bind = "tcp://*:{5557 + tp}"\n'
    )
    reset()
    rankbind.init(path, rank=OTHER)
    assert singleton_per("kv-events").owned


# Arguments


def test_equal_arguments_give_the_same_and_others_name_both_call_sites() -> None:
    @singleton_per(group="pp")
    def server(host: str, port: int = 80) -> Thing:
        return Thing()

    first = server("a")
    line = sys._getframe().f_lineno - 1
    assert server("a", 80) is server(host="a") is server("a", port=80) is first
    with pytest.raises(RankbindError) as caught:
        server("a", port=81)
    message = str(caught.value)
    assert "server (declared at" in message
    assert f"made at {__file__}:{line} with ('a')" in message
    assert f"called at {__file__}:{line + 4} with ('a', port=81)" in message
    with pytest.raises(RankbindError, match="with \\(\\)"):
        server()  # type: ignore[call-arg]


def test_a_call_without_arguments_is_not_a_pass_for_other_ones() -> None:
    @singleton_per(group="pp")
    def server(port: int = 80) -> int:
        return port

    assert server(81) == 81
    with pytest.raises(RankbindError, match="exists once"):
        server()
    assert server(81) == 81


def test_arguments_that_cannot_be_compared_are_not_equal_unless_the_same() -> None:
    class Array:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth value of an array is ambiguous")

        __hash__ = None  # type: ignore[assignment]

    made = singleton_per(group="pp")(lambda values: Thing())
    one = Array()
    assert made(one) is made(one)
    with pytest.raises(RankbindError, match="exists once"):
        made(Array())


# Failure, re-entry, release


def test_a_failed_creation_leaves_nothing_behind_and_may_be_retried() -> None:
    attempts: list[int] = []

    @singleton_per(group="pp")
    def bind(port: int) -> Thing:
        attempts.append(port)
        if port == 1:
            raise OSError("Address already in use")
        return Thing()

    for _ in range(2):
        with pytest.raises(OSError, match="already in use"):
            bind(1)
    assert bind(2) is bind(2)
    assert attempts == [1, 1, 2]


def test_reentry_while_it_is_being_made_is_an_error_and_no_deadlock() -> None:
    @singleton_per(group="pp")
    def inner() -> object:
        return outer()

    @singleton_per(group="pp")
    def outer() -> object:
        return inner()

    with pytest.raises(RankbindError, match=r"outer \(declared at .*from within, while it was being made"):
        outer()
    with pytest.raises(RankbindError, match=r"inner \(declared at .*from within"):
        inner()


def test_release_and_make_again() -> None:
    thing = singleton_per(group="pp")(lambda: Thing())
    thing.release()
    first = thing()
    thing.release()
    thing.release()
    assert thing() is not first
    become(OTHER)
    thing.release()
    assert thing() is None


def test_generator_teardown_at_release_and_never_twice() -> None:
    log: list[str] = []

    @singleton_per(group="pp")
    def socket(name: str) -> Iterator[str]:
        log.append(f"open {name}")
        yield name
        log.append(f"close {name}")

    assert socket("a") == socket("a") == "a"
    assert log == ["open a"]
    socket.release()
    socket.release()
    assert log == ["open a", "close a"]
    assert socket("b") == "b"
    socket.release()
    become(OTHER)
    assert socket("c") is None
    assert log == ["open a", "close a", "open b", "close b"]


def test_generators_that_yield_never_or_twice() -> None:
    @singleton_per(group="pp")
    def never() -> Iterator[int]:
        yield from ()

    @singleton_per(group="pp")
    def twice() -> Iterator[int]:
        yield 1
        yield 2

    with pytest.raises(RuntimeError, match="didn't yield"):
        never()
    assert twice() == 1
    with pytest.raises(RuntimeError, match="didn't stop"):
        twice.release()
    assert twice() == 1
    with contextlib.suppress(RuntimeError):
        twice.release()


def test_release_all_runs_in_reverse_order_and_past_failures() -> None:
    log: list[str] = []

    def opened(name: str, fails: bool = False) -> Callable[[], Iterator[str]]:
        def factory() -> Iterator[str]:
            yield name
            log.append(name)
            if fails:
                raise OSError(name)

        return factory

    for name in ("first", "second", "third"):
        singleton = singleton_per(group="pp")(opened(name, fails=name == "third"))
        globals()[f"_keep_{name}"] = singleton
        singleton()
    with pytest.raises(OSError, match="third"):
        rankbind.release_all()
    assert log == ["third", "second", "first"]


def test_a_call_during_the_teardown_waits_for_its_end() -> None:
    tearing, go_on, log = threading.Event(), threading.Event(), []

    @singleton_per(group="pp")
    def port() -> Iterator[Thing]:
        log.append("bind")
        yield Thing()
        tearing.set()
        go_on.wait()
        log.append("unbind")

    first = port()
    with ThreadPoolExecutor(2) as pool:
        releasing = pool.submit(port.release)
        tearing.wait()
        again = pool.submit(port)
        assert not again.done()
        go_on.set()
        releasing.result()
        assert again.result() is not first
    assert log == ["bind", "unbind", "bind"]
    port.release()


def test_release_from_within_the_making_is_an_error() -> None:
    @singleton_per(group="pp")
    def odd() -> None:
        odd.release()

    with pytest.raises(RankbindError, match="was released at"):
        odd()


def test_a_forgotten_teardown_is_warned_about() -> None:
    def scope() -> None:
        @singleton_per(group="pp")
        def leaked() -> Iterator[Thing]:
            yield Thing()

        leaked()

    with pytest.warns(ResourceWarning, match=r"leaked .*garbage-collected and never released"):
        scope()


def test_leftovers_are_torn_down_at_exit_in_reverse_order(tmp_path: Path) -> None:
    script = tmp_path / "exit.py"
    script.write_text(
        "import rankbind\nfrom rankbind import singleton_per\n"
        "rankbind.init(axes={'pp': 1}, rank=0)\n"
        "def opened(name):\n    def factory():\n        yield name\n        print('close', name)\n    return factory\n"
        "a = singleton_per(group='pp')(opened('a'))\nb = singleton_per(group='pp')(opened('b'))\n"
        "print(a(), b())\n"
    )
    done = subprocess.run([sys.executable, "-Werror", str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["a b", "close b", "close a", ""]
    assert done.stderr == ""


# Threads


def test_racing_threads_get_one_object() -> None:
    made = []

    @singleton_per(group="pp")
    def slow() -> Thing:
        made.append(threading.get_ident())
        ready.wait(0.05)
        return Thing()

    ready = threading.Event()
    found = together(16, slow)
    assert len(set(map(id, found))) == 1
    assert len(made) == 1


def test_threads_that_wait_share_the_failure_of_the_attempt() -> None:
    attempts, waiting = [], threading.Event()

    @singleton_per(group="pp")
    def failing() -> None:
        attempts.append(1)
        waiting.wait(0.05)
        raise OSError("once")

    found = together(8, failing)
    assert all(isinstance(error, OSError) for error in found)
    with pytest.raises(OSError, match="once"):
        failing()


def test_an_interrupted_creation_is_taken_up_by_a_waiting_thread() -> None:
    started, attempts = threading.Event(), []

    @singleton_per(group="pp")
    def interrupted() -> Thing:
        attempts.append(1)
        if len(attempts) == 1:
            started.set()
            waiting.wait(0.2)
            raise KeyboardInterrupt
        return Thing()

    waiting = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(interrupted)
        started.wait()
        second = pool.submit(interrupted)
        assert isinstance(second.result(), Thing)
        with pytest.raises(KeyboardInterrupt):
            first.result()


def test_no_lock_is_held_for_another_resource() -> None:
    other = singleton_per(group="pp")(lambda: Thing())

    @singleton_per(group="pp")
    def starts_a_thread() -> object:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(other).result(timeout=30)

    assert starts_a_thread() is other()


def test_two_threads_that_wait_for_each_other_get_an_error_and_no_deadlock() -> None:
    barrier = threading.Barrier(2)

    @singleton_per(group="pp")
    def left() -> object:
        barrier.wait()
        return right()

    @singleton_per(group="pp")
    def right() -> object:
        barrier.wait()
        return left()

    def act() -> object:
        return left() if turns.pop() else right()

    turns = [True, False]
    for error in together(2, act):
        with pytest.raises(RankbindError, match="would wait for itself"):
            raise error  # type: ignore[misc]
    assert isinstance(singleton_per(group="pp")(lambda: Thing())(), Thing)


def test_the_books_are_kept_while_other_threads_make_things() -> None:
    stop, quick = threading.Event(), sys.getswitchinterval()

    def make() -> None:
        while not stop.is_set():
            engines = [Engine("busy") for _ in range(100)]
            for engine in engines:
                engine.publisher()

    def keep() -> None:
        try:
            for _ in range(300):
                rankbind.release_all()
                rankbind.identity.__globals__["_state"].shortcuts = True  # as in a process that never entered `use`
                with use(TOPOLOGY, rank=OTHER):
                    pass
        finally:
            stop.set()

    sys.setswitchinterval(1e-6)
    try:
        acts = [make, keep]
        assert together(2, lambda: acts.pop()()) == [None, None]
    finally:
        sys.setswitchinterval(quick)


def test_a_race_of_calls_and_releases_never_shows_two_at_once() -> None:
    alive: set[int] = set()
    most = []

    @singleton_per(group="pp")
    def port() -> Iterator[Thing]:
        thing = Thing()
        alive.add(id(thing))
        most.append(len(alive))
        yield thing
        alive.remove(id(thing))

    def churn() -> None:
        for _ in range(200):
            assert port() is not None
            port.release()

    assert together(4, churn) == [None] * 4
    assert set(most) == {1}


# Coroutines


def test_concurrent_awaits_get_one_object() -> None:
    made = []

    @singleton_per(group="pp")
    async def connect(port: int = 1) -> Thing:
        made.append(port)
        await asyncio.sleep(0)
        return Thing()

    async def main() -> None:
        found = await asyncio.gather(*(connect() for _ in range(10)))
        assert len(set(map(id, found))) == 1
        assert await connect(1) is await connect() is found[0]
        with pytest.raises(RankbindError, match="exists once"):
            await connect(2)
        await connect.release()
        assert await connect() is not found[0]

    asyncio.run(main())
    assert made == [1, 1]
    become(OTHER)
    assert asyncio.run(connect()) is None
    assert not connect.owned


def test_cancelling_one_who_waits_harms_nobody_else() -> None:
    async def main() -> None:
        gate, started = asyncio.Event(), asyncio.Event()

        @singleton_per(group="pp")
        async def connect() -> Thing:
            started.set()
            await gate.wait()
            return Thing()

        first, second = asyncio.create_task(connect()), asyncio.create_task(connect())
        await started.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.set()
        assert await second is await connect()

    asyncio.run(main())


def test_a_failed_coroutine_is_shared_and_may_be_retried() -> None:
    attempts = []

    @singleton_per(group="pp")
    async def connect() -> Thing:
        attempts.append(1)
        await asyncio.sleep(0)
        if len(attempts) == 1:
            raise OSError("refused")
        return Thing()

    async def main() -> None:
        found = await asyncio.gather(connect(), connect(), return_exceptions=True)
        assert all(isinstance(error, OSError) for error in found)
        assert isinstance(await connect(), Thing)

    asyncio.run(main())
    assert len(attempts) == 2


def test_a_coroutine_that_awaits_itself_is_an_error_and_no_deadlock() -> None:
    @singleton_per(group="pp")
    async def selfish() -> object:
        return await asyncio.create_task(selfish())

    with pytest.raises(RankbindError, match="from within"):
        asyncio.run(selfish())


def test_a_creation_that_its_loop_cancelled_is_made_anew_in_the_next() -> None:
    attempts = []

    @singleton_per(group="pp")
    async def connect() -> Thing:
        attempts.append(1)
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return Thing()

    async def gives_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connect(), 0.01)

    asyncio.run(gives_up())
    assert isinstance(asyncio.run(connect()), Thing)


def test_a_creation_cancelled_before_it_began_is_made_anew() -> None:
    @singleton_per(group="pp")
    async def connect() -> Thing:
        return Thing()

    async def leaves_at_once() -> None:
        task = asyncio.create_task(connect())
        await asyncio.sleep(0)
        del task

    asyncio.run(leaves_at_once())
    assert isinstance(asyncio.run(asyncio.wait_for(connect(), 5)), Thing)


@pytest.mark.filterwarnings("ignore")  # asyncio's own: the task was pending when its loop was closed
def test_a_creation_whose_loop_was_closed_is_made_anew() -> None:
    attempts = []

    @singleton_per(group="pp")
    async def connect() -> Thing:
        attempts.append(1)
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return Thing()

    loop = asyncio.new_event_loop()
    with pytest.raises(TimeoutError):
        loop.run_until_complete(asyncio.wait_for(connect(), 0.01))
    loop.close()
    assert isinstance(asyncio.run(asyncio.wait_for(connect(), 5)), Thing)
    gc.collect()


def test_two_tasks_that_wait_for_each_other_get_an_error_and_no_deadlock() -> None:
    @singleton_per(group="pp")
    async def left() -> object:
        await asyncio.sleep(0)
        return await right()

    @singleton_per(group="pp")
    async def right() -> object:
        await asyncio.sleep(0)
        return await left()

    async def main() -> list[object]:
        return await asyncio.wait_for(asyncio.gather(left(), right(), return_exceptions=True), 5)

    assert [type(error) for error in asyncio.run(main())] == [RankbindError] * 2


def test_two_loops_in_two_threads_share_one_object() -> None:
    @singleton_per(group="pp")
    async def connect() -> Thing:
        await asyncio.sleep(0.01)
        return Thing()

    found = together(4, lambda: asyncio.run(connect()))
    assert len(set(map(id, found))) == 1
    assert isinstance(found[0], Thing)


def test_async_generators_are_torn_down_in_the_task_that_made_them() -> None:
    tasks: list[object] = []
    log: list[str] = []

    @singleton_per(group="pp")
    async def channel() -> AsyncIterator[Thing]:
        tasks.append(asyncio.current_task())
        yield Thing()
        tasks.append(asyncio.current_task())
        log.append("closed")

    async def main() -> None:
        assert await channel() is await channel()
        await asyncio.create_task(channel.release())
        assert log == ["closed"]
        await channel.release()
        await channel()

    asyncio.run(main())
    assert log == ["closed", "closed"], "the end of the loop tears down what is left"
    assert tasks[0] is tasks[1]
    assert tasks[2] is tasks[3]


def test_release_all_async_runs_in_reverse_order_across_kinds() -> None:
    log: list[str] = []

    @singleton_per(group="pp")
    def first() -> Iterator[None]:
        yield
        log.append("first")

    @singleton_per(group="pp")
    async def second() -> AsyncIterator[None]:
        yield
        log.append("second")

    @singleton_per(group="pp")
    def third() -> Iterator[None]:
        yield
        log.append("third")

    async def main() -> None:
        first()
        await second()
        third()
        await rankbind.release_all_async()

    asyncio.run(main())
    assert log == ["third", "second", "first"]


def test_a_function_that_returns_a_coroutine_is_told_to_decorate_the_coroutine_function() -> None:
    async def connect() -> None: ...

    wrapped = singleton_per(group="pp")(lambda: connect())
    with pytest.raises(RankbindError, match="decorate the coroutine function itself"):
        wrapped()


# With-blocks


def test_with_blocks_share_one_object_and_the_last_tears_down() -> None:
    log: list[str] = []

    @singleton_per(group="pp")
    @contextlib.contextmanager
    def events(port: int = 1) -> Iterator[Thing]:
        log.append("open")
        yield Thing()
        log.append("close")

    with events() as one:
        with events(1) as two, events(port=1) as three:
            assert one is two is three
        assert log == ["open"]
        with pytest.raises(RankbindError, match="exists once"), events(2):
            pass
    assert log == ["open", "close"]
    with events(2) as again:
        assert again is not one
    assert log == ["open", "close"] * 2
    assert events.owned
    become(OTHER)
    with events() as nothing:
        assert nothing is None
    assert log == ["open", "close"] * 2


def test_the_exception_of_the_block_reaches_the_teardown() -> None:
    seen: list[str] = []

    @singleton_per(group="pp")
    @contextlib.contextmanager
    def swallowing() -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            seen.append(repr(error))

    with swallowing():
        raise KeyError("a")
    with pytest.raises(ValueError, match="b"), swallowing():
        raise ValueError("b")
    assert seen == ["KeyError('a')"]


def test_with_blocks_in_threads_never_overlap_two_objects() -> None:
    alive: list[int] = []
    most: list[int] = []

    @singleton_per(group="pp")
    @contextlib.contextmanager
    def port() -> Iterator[None]:
        alive.append(1)
        most.append(len(alive))
        yield
        alive.pop()

    def churn() -> None:
        for _ in range(100):
            with port():
                assert alive == [1]

    assert together(4, churn) == [None] * 4
    assert set(most) == {1}
    assert alive == []


def test_async_with_blocks() -> None:
    log: list[object] = []

    @singleton_per(group="pp")
    @contextlib.asynccontextmanager
    async def events() -> AsyncIterator[Thing]:
        log.append("open")
        try:
            yield Thing()
        except KeyError:
            log.append("swallowed")
        log.append("close")

    async def main() -> None:
        async with events() as one:
            async with events() as two:
                assert one is two
            assert log == ["open"]
        assert log == ["open", "close"]
        async with events():
            raise KeyError
        assert log[2:] == ["open", "swallowed", "close"]

    asyncio.run(main())
    become(OTHER)

    async def other() -> None:
        async with events() as nothing:
            assert nothing is None

    asyncio.run(other())


# Methods


class Engine:
    def __init__(self, name: str) -> None:
        self.name = name

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    @singleton_per(group="pp")
    def publisher(self, port: int = 1) -> list[object]:
        return [self.name, port]

    @singleton_per(group="pp")
    def channel(self) -> Iterator[list[object]]:
        yield [self]

    @singleton_per(group="pp")
    async def connect(self) -> list[object]:
        return [self.name]

    @singleton_per(group="pp")
    @contextlib.contextmanager
    def block(self) -> Iterator[list[object]]:
        yield [self.name]

    @singleton_per(group="pp")
    @classmethod
    def inside(cls) -> list[object]:
        return [cls]

    @classmethod
    @singleton_per(group="pp")
    def outside(cls) -> list[object]:
        return [cls]

    @singleton_per(group="pp")
    @staticmethod
    def loose(port: int = 1) -> list[object]:
        return [port]

    @staticmethod
    @singleton_per(group="pp")
    def tight(port: int = 1) -> list[object]:
        return [port]


class Turbo(Engine):
    @singleton_per(group="pp")
    def publisher(self, port: int = 1) -> list[object]:
        return ["turbo", *super().publisher(port)]


def test_methods_are_per_instance_and_ask_for_no_hash() -> None:
    one, two = Engine("one"), Engine("two")
    assert one.publisher() is one.publisher(1) is Engine.publisher(one) is one.publisher()
    assert (one.publisher(), two.publisher()) == (["one", 1], ["two", 1])
    with pytest.raises(RankbindError, match=r"Engine\.publisher .*exists once"):
        one.publisher(2)
    assert one.publisher.owned
    assert Engine.publisher.owned
    assert one.publisher.owner == OWNER
    kept = one.publisher()
    one.publisher.release()
    assert one.publisher() is not kept
    assert Engine("temporary").publisher() == ["temporary", 1]
    become(OTHER)
    assert one.publisher() is None
    assert Engine.publisher(one) is None


def test_a_method_that_overrides_another_and_calls_it() -> None:
    turbo = Turbo("t")
    assert turbo.publisher() == ["turbo", "t", 1]
    assert turbo.publisher() is turbo.publisher()


def test_methods_leak_no_instances() -> None:
    engine = Engine("gone")
    assert engine.publisher() == ["gone", 1]
    gone = weakref.ref(engine)
    del engine
    assert gone() is None, "without the garbage collector: nothing but the instance held what was made"
    engine = Engine("cycle")
    assert engine.channel()[0] is engine
    engine.channel.release()
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


def test_copies_and_pickles_of_an_instance_own_nothing() -> None:
    engine = Engine("original")
    made = engine.publisher()
    for other in (copy.copy(engine), copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        assert other.publisher() == ["original", 1]
        assert other.publisher() is other.publisher()
        assert other.publisher() is not made
    assert engine.publisher() is made


def test_methods_in_every_form() -> None:
    one, two = Engine("one"), Engine("two")

    async def main() -> None:
        assert await one.connect() is await one.connect()
        assert await two.connect() == ["two"]
        await one.connect.release()

    asyncio.run(main())
    with one.block() as first, one.block() as second, two.block() as third:
        assert first is second
        assert third == ["two"]
    assert one.block.owned


def test_static_and_class_methods_in_both_orders() -> None:
    one = Engine("one")
    for method in ("inside", "outside"):
        assert getattr(Engine, method)() is getattr(one, method)() is getattr(Engine, method)()
        assert getattr(Engine, method)() == [Engine]
        assert getattr(Turbo, method)() == [Turbo]
        assert getattr(Engine, method).owned
        # As Python 3.13 calls what @classmethod holds: the class is an argument.
        assert types.MethodType(vars(Engine)[method].__func__, Engine)() == [Engine] if method == "outside" else True
    for method in ("loose", "tight"):
        assert getattr(Engine, method)() is getattr(one, method)(1)
        assert getattr(Engine, method).owned
        with pytest.raises(RankbindError, match="exists once"):
            getattr(Engine, method)(2)


def test_slots_without_a_dict_are_told_what_to_add() -> None:
    class Tight:
        __slots__ = ()

        @singleton_per(group="pp")
        def thing(self) -> None: ...

    with pytest.raises(TypeError, match='add "__dict__" to __slots__'):
        Tight().thing()


def test_threads_that_race_for_a_method_get_one_object() -> None:
    for _ in range(20):
        engine = Engine("raced")
        assert len(set(map(id, together(8, engine.publisher)))) == 1


# Classes


@singleton_per(group="pp")
class Publisher:
    """Publishes."""

    def __init__(self, port: int = 1) -> None:
        self.port = port

    def send(self) -> int:
        return self.port


class Loud(Publisher):
    def __init__(self) -> None:
        super().__init__(2)


class Null:
    pass


@singleton_per(group="pp", otherwise=Null)
@dataclass
class Collector:
    label: str = "a"


class Source(ABC):
    @abstractmethod
    def read(self) -> int: ...


@singleton_per(group="pp")
class File(Source):
    def read(self) -> int:
        return 3


def test_classes_stay_classes() -> None:
    one = Publisher()
    assert one is Publisher(1) is Publisher(port=1)
    assert type(one) is Publisher
    assert isinstance(one, Publisher)
    assert (one.send(), Publisher.__name__, Publisher.__doc__) == (1, "Publisher", "Publishes.")
    with pytest.raises(RankbindError, match=r"Publisher \(declared at .*exists once"):
        Publisher(2)
    assert Publisher.owned
    assert Publisher.owner == OWNER
    Publisher.release()
    assert Publisher(2).port == 2
    become(OTHER)
    assert Publisher() is None
    assert not Publisher.owned


def test_subclasses_are_resources_of_their_own() -> None:
    loud = Loud()
    assert loud is Loud()
    assert (loud.port, isinstance(loud, Publisher), issubclass(Loud, Publisher)) == (2, True, True)
    assert Publisher() is not loud
    become(OTHER)
    assert Loud() is None


def test_dataclasses_and_abstract_classes() -> None:
    assert Collector() is Collector("a")
    assert Collector("a") == pickle.loads(pickle.dumps(Collector()))
    assert isinstance(File(), Source)
    assert File().read() == 3
    become(OTHER)
    assert isinstance(Collector(), Null)
    assert Collector() is Collector("b")


def test_pickling_a_class_and_an_instance_anywhere() -> None:
    text = pickle.dumps((Publisher, Publisher(), Loud))
    become(OTHER)
    cls, instance, loud = pickle.loads(text)
    assert (cls, loud, instance.port) == (Publisher, Loud, 1)
    assert type(copy.deepcopy(instance)) is Publisher


def test_a_class_with_attributes_of_these_names_keeps_them() -> None:
    @singleton_per(group="pp")
    class Lease:
        owner = "somebody"

        def release(self) -> str:
            return "mine"

    assert Lease().release() == Lease.release(Lease()) == "mine"
    assert (Lease.owner, Lease.owned) == ("somebody", True)


def test_racing_constructors_get_one_object() -> None:
    made = []

    @singleton_per(group="pp")
    class Slow:
        def __init__(self) -> None:
            made.append(1)
            threading.Event().wait(0.02)

    assert len(set(map(id, together(8, Slow)))) == 1
    assert made == [1]


@singleton_per(group="pp")
def module_level() -> Thing:
    return Thing()


def test_a_decorated_function_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.deepcopy(module_level) is module_level
    assert module_level.__name__ == "module_level"


Item = TypeVar("Item")


@singleton_per(group="pp")
class Queue(Generic[Item]):
    def __init__(self, first: Item) -> None:
        self.first = first


def test_generic_classes_stay_generic() -> None:
    assert Queue[int](1) is Queue(1)
    assert issubclass(type("Numbers", Queue[int].__mro_entries__(()), {}), Queue)


def test_parameters_may_be_called_self() -> None:
    made = singleton_per(group="pp")(lambda self: [self])
    assert made(self=3) is made(3)


# Many ranks in one process


def test_each_identity_has_its_own_and_finds_it_again() -> None:
    things = singleton_per(group="pp")(lambda: Thing())
    here = things()
    ranks = [rankbind.Identity.of(TOPOLOGY, rank) for rank in range(8)]
    found = {}
    for rank in ranks:
        with use(rank):
            found[rank] = things()
    assert sum(thing is not None for thing in found.values()) == 4
    for rank in ranks:
        with use(rank):
            assert things() is found[rank]
    assert things() is here


def test_a_warm_shortcut_does_not_leak_into_another_identity() -> None:
    things = singleton_per(group="pp")(lambda: Thing())
    here = things()
    for _ in range(3):
        assert things() is here
    with use(TOPOLOGY, rank=OTHER):
        assert things() is None
        with use(TOPOLOGY, rank=OWNER):
            assert things() not in (None, here)
    assert things() is here


def test_a_task_that_outlives_its_use_block_stays_who_it_was() -> None:
    things = singleton_per(group="pp")(lambda: Thing())

    async def main() -> None:
        go_on = asyncio.Event()

        async def late() -> object:
            await go_on.wait()
            return things()

        with use(TOPOLOGY, rank=OTHER):
            task = asyncio.create_task(late())
        for _ in range(3):
            assert things() is not None
        go_on.set()
        assert await task is None

    asyncio.run(main())


def test_things_go_with_their_identity() -> None:
    things = singleton_per(group="pp")(lambda: Thing())
    with use(TOPOLOGY, rank=OWNER) as who:
        gone = weakref.ref(things())
    del who
    gc.collect()
    assert gone() is None


# Never a silent False


def declared_here() -> str:
    return f"declared at {__file__}:"


def test_before_the_process_knows_its_rank() -> None:
    reset()
    made = singleton_per(group="pp", otherwise=3)(lambda: Thing())
    for act in (made, lambda: made.owned, lambda: made.owner, lambda: Publisher()):
        with pytest.raises(IdentityError, match="does not know its rank"):
            act()
    assert rankbind.init(TOPOLOGY, rank=OWNER).rank == OWNER
    assert isinstance(made(), Thing)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"group": "ttp"}, UnknownAxisError, "unknown axis 'ttp'; did you mean tp"),
        ({"group": "pp", "rank": 2}, ScopeError, "rank 2 is outside the group"),
    ],
)
def test_what_the_topology_has_not_is_named_at_first_use(keywords, error, message) -> None:
    @singleton_per(**keywords)
    def kv_events() -> None: ...

    for act in (kv_events, lambda: kv_events.owned, lambda: kv_events.owner):
        with pytest.raises(error, match=message) as caught:
            act()
        assert str(caught.value).startswith(f"{kv_events.__qualname__} ({declared_here()}")


def test_axes_nobody_declared_say_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    reset()
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert singleton_per(group="world", rank=3).owned
    with pytest.raises(
        UnknownAxisError, match=r"unknown axis 'pp'.*all that is known comes from torchrun .*RANKBIND_AXES"
    ):
        _ = singleton_per(group="pp").owned
    with pytest.raises(TopologyError, match="The hosts are not known: say hosts="):
        _ = singleton_per(group="host").owned


def test_a_coordinate_nobody_said_is_not_zero() -> None:
    reset()
    rankbind.init(axes={"pp": 2, "tp": 4}, coordinates={"pp": 0})
    assert singleton_per(group="pp").owned
    with pytest.raises(UnknownAxisError, match="axis tp decides who owns and is not known"):
        _ = singleton_per(group="tp").owned


def test_wrong_declarations_are_wrong_at_once() -> None:
    with pytest.raises(TypeError, match="with the parentheses"):
        singleton_per(lambda: None)  # type: ignore[call-overload]
    for keywords in ({}, {"rank": 0}):
        with pytest.raises(TypeError, match="needs group="):
            singleton_per(**keywords)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs group="):
        singleton_per("kv-events", rank=0)
    with pytest.raises(ScopeError, match="names an axis twice"):
        singleton_per(group=("pp", "pp"))
    with pytest.raises(TypeError, match="only once"):
        singleton_per(group="pp")(module_level)

    async def fallback() -> None: ...

    with pytest.raises(TypeError, match="not a coroutine function"):
        singleton_per(group="pp", otherwise=fallback)


# Fork


def test_a_forked_child_owns_nothing_and_tears_nothing_down(tmp_path: Path) -> None:
    script = tmp_path / "fork.py"
    script.write_text(
        """
import os, sys, threading
import rankbind
from rankbind import singleton_per

rankbind.init(axes={"pp": 2}, rank=0, hosts=1)

@singleton_per(group="pp")
def port():
    print("bind", flush=True)
    try:
        yield object()
    finally:
        print("unbind", os.getpid() == parent, flush=True)

@singleton_per(group="pp")
def stuck():
    started.set()
    go_on.wait()
    return 1

parent, started, go_on = os.getpid(), threading.Event(), threading.Event()
port()
thread = threading.Thread(target=stuck)
thread.start()
started.wait()
pid = os.fork()
if pid == 0:
    for act in (port, stuck, lambda: port.owned):
        try:
            print("child got", act())
        except rankbind.IdentityError as error:
            print("IdentityError", "pid" in str(error) or "forked" in str(error) or "does not know" in str(error))
    port.release()
    rankbind.release_all()
    rankbind.init(axes={"pp": 1}, rank=0)
    os.environ["CHILD"] = "1"
    go_on.set()
    assert stuck() == 1
    sys.stdout.flush()
    sys.exit(0)          # a whole interpreter shutdown: atexit, garbage collection, generators closed
print("child exit", os.waitpid(pid, 0)[1], flush=True)
go_on.set()
thread.join()
assert port() is port()
"""
    )
    done = subprocess.run(
        [sys.executable, "-Wdefault", str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    lines = done.stdout.splitlines()
    assert lines == ["bind", *["IdentityError True"] * 3, "child exit 0", "unbind True"], done.stderr
    assert re.sub(r"(?m)^.*DeprecationWarning.*\n.*\n", "", done.stderr) == ""


def test_a_forked_child_says_nothing_of_what_its_parent_awaited(tmp_path: Path) -> None:
    script = tmp_path / "fork.py"
    script.write_text(
        """
import asyncio, os, sys
import rankbind

who = rankbind.init(axes={"pp": 2}, rank=0)

@rankbind.singleton_per(group="pp")
async def channel():
    try:
        yield object()
    finally:
        print("close", os.getpid() == parent, flush=True)

parent, loop = os.getpid(), asyncio.new_event_loop()
loop.run_until_complete(channel())
pid = os.fork()
if pid == 0:
    sys.exit(0)
os.waitpid(pid, 0)
loop.run_until_complete(channel.release())
loop.close()
"""
    )
    done = subprocess.run(
        [sys.executable, "-Wdefault", str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("close True\n", "")


def test_a_child_that_says_who_it_is_makes_its_own() -> None:
    things = singleton_per(group="pp")(lambda: os.getpid())
    assert things() == things() == os.getpid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        rankbind.init(TOPOLOGY, rank=OWNER)
        os.write(write, str(things() == os.getpid()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        assert stream.read() == "True"
    os.waitpid(pid, 0)
    assert things() == os.getpid()
