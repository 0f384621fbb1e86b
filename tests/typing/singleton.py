"""What type checkers see of the decorator. Read by mypy in test_typing.py; never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TextIO, assert_type

import rankbind
from rankbind import Claim, Identity, Takeover, Topology, singleton_per
from rankbind.runtime.election import Held
from rankbind.singleton import AsyncSingleton, Singleton


class Publisher:
    def __init__(self, port: int) -> None:
        self.port = port


class Null:
    pass


def make_null() -> Null:
    return Null()


# Functions: T | None without otherwise, T | U with it


@singleton_per(group="pp", rank=0)
def plain(port: int, *, host: str = "*") -> Publisher:
    return Publisher(port)


assert_type(plain(1), Publisher | None)
assert_type(plain(1, host="a"), Publisher | None)
assert_type(plain.owned, bool)
assert_type(plain.owner, int)
plain.release()
plain("1")  # type: ignore[arg-type]
print(plain(1).port)  # type: ignore[union-attr]


@singleton_per(group=("pp", "attn_tp"), otherwise=Publisher(0))
def same(port: int) -> Publisher:
    return Publisher(port)


assert_type(same(1), Publisher)
assert_type(same(1).port, int)


@singleton_per(group="pp", otherwise=make_null)
def factory(port: int) -> Publisher:
    return Publisher(port)


@singleton_per(group="pp", otherwise=Null)
def class_as_factory(port: int) -> Publisher:
    return Publisher(port)


@singleton_per("kv-events", otherwise=None)
def said_none(port: int) -> Publisher:
    return Publisher(port)


assert_type(factory(1), Publisher | Null)
assert_type(class_as_factory(1), Publisher | Null)
assert_type(said_none(1), Publisher | None)

# The declaration itself

gate = singleton_per("kv-events", name="publisher")
assert_type(gate.owned, bool)
assert_type(gate.owner, int)

# Generators, files


@singleton_per(group="pp")
def iterating(port: int) -> Iterator[Publisher]:
    yield Publisher(port)


@singleton_per(group="pp", otherwise=Null())
def generating(port: int) -> Generator[Publisher, None, None]:
    yield Publisher(port)


@singleton_per(group="pp")
def log() -> TextIO:
    raise NotImplementedError


assert_type(iterating(1), Publisher | None)
assert_type(generating(1), Publisher | Null)
assert_type(log(), TextIO | None)

# Coroutines and async generators


@singleton_per(group="pp")
async def coroutine(port: int) -> Publisher:
    return Publisher(port)


@singleton_per(group="pp", otherwise=Null)
async def async_iterating() -> AsyncIterator[Publisher]:
    yield Publisher(1)


@singleton_per(group="pp", otherwise=Publisher(0))
async def async_generating() -> AsyncGenerator[Publisher, None]:
    yield Publisher(1)


async def awaits() -> None:
    assert_type(await coroutine(1), Publisher | None)
    assert_type(await async_iterating(), Publisher | Null)
    assert_type(await async_generating(), Publisher)
    assert_type(coroutine.owned, bool)
    await coroutine.release()


# With-blocks


@singleton_per(group="pp")
@contextmanager
def block(port: int) -> Iterator[Publisher]:
    yield Publisher(port)


@singleton_per(group="pp", otherwise=Null)
@asynccontextmanager
async def async_block(port: int) -> AsyncIterator[Publisher]:
    yield Publisher(port)


def enters() -> None:
    with block(1) as publisher:
        assert_type(publisher, Publisher | None)
    assert_type(block.owned, bool)


async def enters_async() -> None:
    async with async_block(1) as publisher:
        assert_type(publisher, Publisher | Null)


# Methods


class Engine:
    @singleton_per(group="pp")
    def method(self, port: int = 1) -> Publisher:
        return Publisher(port)

    @singleton_per(group="pp", otherwise=Null)
    async def connect(self, port: int) -> Publisher:
        return Publisher(port)

    @singleton_per(group="pp")
    @staticmethod
    def loose(port: int) -> Publisher:
        return Publisher(port)

    @staticmethod
    @singleton_per(group="pp")
    def tight(port: int) -> Publisher:
        return Publisher(port)


engine = Engine()
assert_type(engine.method(), Publisher | None)
assert_type(engine.method(port=2), Publisher | None)
assert_type(engine.method.owned, bool)
assert_type(Engine.method(engine, 2), Publisher | None)
assert_type(Engine.method.owner, int)
assert_type(Engine.loose(1), Publisher | None)
assert_type(Engine.tight(1), Publisher | None)
engine.method("1")  # type: ignore[arg-type]


async def connects() -> None:
    assert_type(await engine.connect(1), Publisher | Null)


# Classes stay classes


@singleton_per(group="pp", otherwise=Null)
class Collector:
    def __init__(self, label: str) -> None:
        self.label = label


class Louder(Collector):
    pass


assert_type(Collector("a"), Collector)
assert_type(Collector, type[Collector])
assert_type(Louder("a").label, str)
Collector(1)  # type: ignore[arg-type]

# Forms can be named in annotations


def takes(singleton: Singleton[[int], Publisher | Null], connect: AsyncSingleton[[int], Publisher | None]) -> None:
    assert_type(singleton(1), Publisher | Null)


takes(factory, coroutine)

# Identity

assert_type(rankbind.identity(), Identity)
assert_type(rankbind.init("topology.toml", rank=5), Identity)
assert_type(rankbind.init(axes={"pp": 2}, coordinates={"pp": 0}).rank, int | None)
with rankbind.use(Topology({"pp": 2}), rank=1) as who:
    assert_type(who, Identity)

# What must not pass

singleton_per(group="pp", rank="0")  # type: ignore[call-overload]
singleton_per(group=3)  # type: ignore[call-overload]
singleton_per(group="pp", rank="any", name="x", on_takeover=lambda: None)  # type: ignore[call-overload]

# Claims and elections


def told(takeover: Takeover) -> None:
    assert_type(takeover.claim.token, int)
    assert_type(takeover.resource, str)


elected = singleton_per(group="world", rank="any", name="collector", on_takeover=told, lease=5.0)
assert_type(elected.owned, bool)


@elected
def elected_factory(port: int) -> Publisher:
    return Publisher(port)


assert_type(elected_factory(1), Publisher | None)
assert_type(elected_factory.claim, Held | None)
assert_type(rankbind.current_claim(), Held | None)
with rankbind.claim("collector", endpoints={"bind": "tcp://*:0"}) as held:
    assert_type(held, Claim)
    assert_type(held.token, int)
