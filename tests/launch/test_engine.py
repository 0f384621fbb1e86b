"""Engines found by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rankbind.errors import LaunchError
from rankbind.launch import engine as engines
from rankbind.launch.command import typed
from rankbind.launch.engine import (
    Chosen,
    chosen,
    find,
    installed,
    python_module,
    recognise,
    release,
    version_of,
    with_entrypoint,
)
from rankbind.source import Span

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution with one engine where Python finds it."""

    def put(name: str, source: str) -> None:
        module = f"rankbind_test_{name}"
        (tmp_path / f"{module}.py").write_text(source)
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{engines.GROUP}]\n{name} = {module}:ENGINE\n")
        forget()

    def forget() -> None:
        installed.cache_clear()
        engines._load.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield put
    for module in [name for name in sys.modules if name.startswith("rankbind_test_")]:
        del sys.modules[module]
    forget()


ENGINE = """
class Engine:
    name, title, versions = "tiny", "Tiny", ("1.0", "1.2", "1.10")
    entrypoints = {"lab/tiny": ("tiny", "--serve")}
    def starts(self, words):
        return words[:1] == ("tiny",)
    def read(self, commands, version):
        return []
ENGINE = Engine()
"""


def test_an_engine_is_found_by_its_name_and_by_its_command(install: Install) -> None:
    install("tiny", ENGINE)

    assert "tiny" in installed()
    assert find("tiny").title == "Tiny"
    found = recognise(("tiny", "--port", "1"))
    assert found is not None
    assert found.name == "tiny"
    assert recognise(("other",)) is None


def test_a_reader_that_is_broken_is_in_nobodys_way(install: Install) -> None:
    install("broken", "ENGINE = 1")
    install("tiny", ENGINE)

    found = recognise(("tiny",))
    assert found is not None
    assert found.name == "tiny"
    with pytest.raises(LaunchError, match="is no rankbind engine"):
        recognise(("other",))


def test_a_reader_that_is_broken_is_not_in_the_way_of_an_image(install: Install) -> None:
    install("broken", "ENGINE = 1")
    install("tiny", ENGINE)
    command = replace(typed(["--port", "1"]), image="lab/tiny", bare=Span("pod.yaml", 3, 5))

    assert with_entrypoint(command).texts == ("tiny", "--serve", "--port", "1")


@pytest.mark.parametrize(
    ("source", "message"),
    [("import nowhere_to_be_found", "cannot be loaded: No module named"), ("ENGINE = 1", "is no rankbind engine")],
)
def test_a_reader_that_is_broken_is_named(install: Install, source: str, message: str) -> None:
    install("broken", source)

    with pytest.raises(LaunchError, match=message) as caught:
        find("broken")
    assert "rankbind_test_broken:ENGINE" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", r"no reader for nothing is installed; installed: tiny$"),
        ("vllm", r"installed: tiny\. `pip install rankbind-vllm` \(without the engine itself\)$"),
        ("sglnag", r"did you mean sglang\? installed: tiny\. `pip install rankbind-sglang` \(without"),
        ("tyny", r"did you mean tiny\? installed: tiny$"),
    ],
)
def test_a_reader_that_is_missing(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setattr(engines, "installed", lambda: frozenset({"tiny"}))

    with pytest.raises(LaunchError, match=message):
        find(name)


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ("1.0", "1.0"),
        ("1.1", "1.0"),
        ("1.9.9", "1.2"),
        ("v1.10.post1", "1.10"),
        ("1.10rc1", "1.10"),
        ("2", "1.10"),
        ("9" * 5000, "1.10"),
    ],
)
def test_the_nearest_release_before(install: Install, version: str, wanted: str) -> None:
    install("tiny", ENGINE)

    assert release(find("tiny"), version) == wanted


@pytest.mark.parametrize(("version", "message"), [("0.9", "is older than what can be read"), ("main", "is no version")])
def test_a_release_that_nobody_knows(install: Install, version: str, message: str) -> None:
    install("tiny", ENGINE)

    with pytest.raises(LaunchError, match=f"Tiny {version} {message}: 1.0 to 1.10"):
        release(find("tiny"), version)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["python", "-m", "a.b", "--x"], ("a.b", 3)),
        (["/usr/bin/python3.11", "-u", "-m", "a.b"], ("a.b", 4)),
        (["python3", "-ma.b", "--x"], ("a.b", 2)),
        (["python", "a.py", "-m", "a.b"], None),
        (["python", "-m"], None),
        (["vllm", "-m", "a.b"], None),
        ([], None),
    ],
)
def test_the_module_of_a_command(words: list[str], found: tuple[str, int] | None) -> None:
    assert python_module(words) == found


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("lab/engine:v0.5.14-cu129", "0.5.14"),
        ("lab/engine:v0.5.1", "0.5.1"),
        ("lab/engine:0.5.14.post1", "0.5.14"),
        ("lab/engine:v0.5.14@sha256:00", "0.5.14"),
        ("lab/engine@sha256:00", None),
        ("lab/engine:latest", None),
        ("lab/engine", None),
        ("host:5000/engine", None),
        ("lab/engine:v0.5.140", None),
        (None, None),
    ],
)
def test_the_release_in_the_tag_of_an_image(image: str | None, version: str | None) -> None:
    assert version_of(image, ["0.5.1", "0.5.14"]) == version


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("lab/tiny:v1.2", ("tiny", "--serve", "--port", "1")),
        ("registry.example:5000/lab/tiny", ("tiny", "--serve", "--port", "1")),
        ("lab/tiny@sha256:00", ("tiny", "--serve", "--port", "1")),
        ("other/tiny", ("--port", "1")),
        ("mylab/tiny", ("--port", "1")),
        (None, ("--port", "1")),
    ],
)
def test_the_words_that_an_image_puts_in_front(install: Install, image: str | None, words: tuple[str, ...]) -> None:
    install("tiny", ENGINE)
    command = replace(typed(["--port", "1"]), image=image, bare=Span("pod.yaml", 3, 5))

    found = with_entrypoint(command)

    assert found.texts == words
    assert all(word.span == Span("pod.yaml", 3, 5) for word in found.words[:-2])
    assert with_entrypoint(replace(command, bare=None)).texts == ("--port", "1")


@pytest.mark.parametrize(
    ("image", "version", "found"),
    [
        (None, None, Chosen("1.10")),
        (None, "1.2", Chosen("1.2", True)),
        (None, "v1.2.post1", Chosen("1.2", True)),
        ("lab/tiny:v1.0-cu12", None, Chosen("1.0", True)),
        ("lab/tiny:v1.0-cu12", "1.2", Chosen("1.2", True)),
        ("lab/tiny:v0.9.3", None, Chosen("1.0", False, "Tiny 0.9.3 (image lab/tiny:v0.9.3) is older than", "")),
        ("lab/tiny:v1.5.0", None, Chosen("1.2", False, "Tiny 1.5.0 (image lab/tiny:v1.5.0) is not known: 1.2", "")),
        ("lab/tiny:latest", None, Chosen("1.10", None, "the image lab/tiny:latest does not tell its release", "")),
        ("lab/other:v1.0.0", None, Chosen("1.10", None, "the image lab/other:v1.0.0 does not tell", "")),
        (None, "2.0", Chosen("1.10", False, "Tiny 2.0 is not known: 1.10 is assumed", "")),
    ],
)
def test_the_release_whose_rules_hold(install: Install, image: str | None, version: str | None, found: Chosen) -> None:
    install("tiny", ENGINE)

    seen = chosen(find("tiny"), image, version)

    assert (seen.release, seen.named) == (found.release, found.named)
    assert (seen.remark or "").startswith(found.remark or "")
    assert (seen.remark is None) == (found.remark is None)
    assert ("--engine-version tiny=" in (seen.fix or "")) == (seen.remark is not None)
