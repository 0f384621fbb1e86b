"""Engines whose launch commands can be read: each in a distribution of its own, found by its entry point."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import PurePosixPath
from typing import Protocol, runtime_checkable

from rankbind.errors import LaunchError
from rankbind.launch.command import Command, Word
from rankbind.launch.draft import Draft
from rankbind.topology import nearest

_OURS = frozenset({"sglang", "vllm"})

GROUP = "rankbind.engines"
"""Entry points of this group are `Engine` objects; the name of the entry point is that of the engine."""


@runtime_checkable
class Engine(Protocol):
    """How the launch commands of one engine are read. It must import neither the engine nor torch.

    Attributes:
        name: as in ``--engine``: ``sglang``.
        title: as people write it: ``SGLang``.
        versions: the releases whose rules are known, oldest first.
        entrypoints: images that start the engine by themselves, without their tags, and the words they put in front of
            a container's arguments.
    """

    name: str
    title: str
    versions: Sequence[str]
    entrypoints: Mapping[str, Sequence[str]]

    def starts(self, words: Sequence[str]) -> bool:
        """Whether a command with these words starts this engine's server."""
        ...

    def read(self, commands: Sequence[Command], version: str | None) -> Sequence[Draft]:
        """What the commands start: one draft for each deployment, in the order of their first commands.

        Commands that are nodes of one job (one rendezvous address, different node ranks) are one deployment; a command
        for one node of several, whose others are not given, stands for all of them.

        Args:
            commands: each of them starts this engine.
            version: a release, as the user gave it; None: what a command's image says, else the newest known.
        """
        ...


def find(name: str) -> Engine:
    """The engine called `name`.

    Raises:
        LaunchError: none of that name is installed.
    """
    known = installed()
    if name not in known:
        near = nearest(name, {*known, *_OURS})
        advice = f"did you mean {near}? " if near else ""
        get = f"`pip install rankbind-{near or name}` (without the engine itself)" if {near, name} & _OURS else ""
        others = f"installed: {', '.join(sorted(known)) or 'none'}"
        raise LaunchError(
            f"no reader for {name} is installed; {advice}{others}{'. ' + get if get and near not in known else ''}"
        )
    return _load(name)


@cache
def installed() -> frozenset[str]:
    """The names of the engines that can be read."""
    return frozenset(point.name for point in entry_points(group=GROUP))


@cache
def _load(name: str) -> Engine:
    point = next(point for point in entry_points(group=GROUP) if point.name == name)
    try:
        engine = point.load()
    except Exception as error:
        raise LaunchError(f"the reader for {name} ({point.value}) cannot be loaded: {error}") from error
    if not isinstance(engine, Engine):
        raise LaunchError(f"the reader for {name} ({point.value}) is no rankbind engine")
    return engine


def recognise(words: Sequence[str]) -> Engine | None:
    """The engine that a command with these words starts; None where it starts none that is known.

    Raises:
        LaunchError: none starts, and there is a reader that cannot be loaded.
    """
    broken: LaunchError | None = None
    for name in sorted(installed()):
        try:
            engine = _load(name)
        except LaunchError as error:
            broken = error
        else:
            if engine.starts(words):
                return engine
    if broken is not None:
        raise broken
    return None


def release(engine: Engine, version: str) -> str:
    """The release of `engine` whose rules hold for `version`: itself, or the nearest before it.

    Raises:
        LaunchError: it is no version, or older than the oldest that is known.
    """
    wanted = _numbers(version)
    known = [other for other in engine.versions if _numbers(other) <= wanted]
    if not wanted or not known:
        what = "is older than what can be read" if wanted else "is no version"
        raise LaunchError(f"{engine.title} {version} {what}: {engine.versions[0]} to {engine.versions[-1]}")
    return max(known, key=_numbers)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The release whose rules a command is read by.

    Attributes:
        release: one of the engine's `versions`.
        named: whether it is the one that somebody said; None: nobody said which. False: somebody said another one.
        remark: what there is to say (RB609) where `release` is a guess, and something tells that it may be another.
        fix: what settles it.
    """

    release: str
    named: bool | None = None
    remark: str | None = None
    fix: str | None = None


def chosen(engine: Engine, image: str | None, version: str | None) -> Chosen:
    """The release by which a command is read: the `version` that was typed, else that of its `image`, else the newest.

    Raises:
        LaunchError: `version` is none that can be read.
    """
    newest = engine.versions[-1]
    if version is None and image is None:
        return Chosen(newest)
    settled = version or version_of(image, engine.versions)
    if settled is not None and version_of(f":{settled}", engine.versions) is not None:
        return Chosen(release(engine, settled), True)
    said = version
    if said is None:
        name, _, tag = (image or "").partition("@")[0].rpartition(":")
        found = re.match(r"v?(\d+\.\d+\.\d+)", tag)
        said = found[1] if found and engine.name in name else None
    fix = f"say which release it is: --engine-version {engine.name}="
    if said is None:
        remark = f"the image {image} does not tell its release of {engine.title}: {newest} is assumed"
        return Chosen(newest, None, remark, f"{fix}{newest}")
    title = f"{engine.title} {said.removeprefix('v')}"
    if version is None and _numbers(said) < _numbers(engine.versions[0]):
        oldest = engine.versions[0]
        remark = f"{title} (image {image}) is older than what can be read: {oldest}, the nearest, is assumed"
        return Chosen(oldest, False, remark, f"{fix}{oldest}")
    nearest = release(engine, said)
    where = "" if version else f" (image {image})"
    return Chosen(nearest, False, f"{title}{where} is not known: {nearest} is assumed", f"{fix}{nearest}")


def _numbers(version: str) -> tuple[int, ...]:
    """``0.5.13`` of ``v0.5.13.post1``: what releases are ordered by."""
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", version)
    return tuple(map(int, found[1].split("."))) if found else ()


def with_entrypoint(command: Command) -> Command:
    """`command`, after the words that its image puts in front of it."""
    if command.bare is None or command.image is None:
        return command
    name = command.image.partition("@")[0]
    name = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    for reader in sorted(installed()):
        try:
            engine = _load(reader)
        except LaunchError:
            continue  # `recognise` tells of it, where nobody else reads the command
        for image, words in engine.entrypoints.items():
            if f"/{name}".endswith(f"/{image}"):
                front = tuple(Word(word, command.bare) for word in words)
                return replace(command, words=(*front, *command.words), bare=None)
    return command


def python_module(words: Sequence[str]) -> tuple[str, int] | None:
    """The module that ``python -m MODULE`` runs, and the index of its first argument; None for other commands."""
    if not words or not PurePosixPath(words[0]).name.startswith("python"):
        return None
    for at, word in enumerate(words[1:], start=1):
        if word == "-m" and at + 1 < len(words):
            return words[at + 1], at + 2
        if word.startswith("-m") and len(word) > 2:
            return word[2:], at + 1
        if not word.startswith("-"):
            break
    return None


def version_of(image: str | None, versions: Sequence[str]) -> str | None:
    """The release that the tag of an image names (``lmsysorg/sglang:v0.5.14-cu129``), if it is one of `versions`."""
    _, colon, tag = (image or "").partition("@")[0].rpartition(":")
    if not colon or "/" in tag:
        return None
    tag = tag.removeprefix("v")
    fitting = [
        known for known in versions if tag == known or tag.startswith((f"{known}-", f"{known}.post", f"{known}_"))
    ]
    return max(fitting, key=len, default=None)
