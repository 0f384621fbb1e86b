"""Small programs, each with what the audit must say of it: tests/audit/cases, see its README."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from rankbind import audit
from rankbind.audit.settings import Settings
from rankbind.audit.sources import collect
from rankbind.finding import Finding

CASES = Path(__file__).parent / "cases"
PATHS = {
    path.stem: path
    for path in sorted(CASES.iterdir())
    if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))
}

EXPECT = re.compile(r"#\s*expect:\s*(?P<findings>.+)$")
ONE = re.compile(r"(?P<code>RB7\d\d)(?P<axes>(?: [a-z_]+)*)$")
SETTING = re.compile(r"^# (?P<key>profile|order|axes): (?P<value>.+)$", re.MULTILINE)

Found = tuple[str, int, str, frozenset[str]]


def files(name: str) -> list[Path]:
    path = PATHS[name]
    return sorted(path.glob("*.py")) if path.is_dir() else [path]


@cache
def expected(name: str) -> frozenset[Found]:
    found = set()
    for path in files(name):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if (comment := EXPECT.search(line)) is None:
                continue
            for text in comment["findings"].split(";"):
                one = ONE.match(text.strip())
                assert one is not None, f"{path.name}:{number}: no finding is written {text.strip()!r}"
                found.add((path.name, number, one["code"], frozenset(one["axes"].split())))
    return frozenset(found)


def settings(name: str) -> Settings:
    said = {match["key"]: match["value"] for path in files(name) for match in SETTING.finditer(path.read_text())}
    axes = dict(pair.split(" = ") for pair in said.get("axes", "").split(", ") if pair)
    order = tuple(axis.strip() for axis in said.get("order", "").split(",") if axis.strip())
    return Settings(axes=axes, order=order, profile=said.get("profile"))


@cache
def findings(name: str) -> tuple[Finding, ...]:
    sources, unread = collect([PATHS[name]], settings(name))
    assert not unread
    assert len(sources) == len(files(name))
    return audit.run(sources, settings(name)).findings


def found(finding: Finding) -> Found:
    span = finding.labels[0].span
    return Path(span.file).name, span.line, finding.code, frozenset(finding.facts.get("axes", ()))


def text(one: Found) -> str:
    file, line, code, axes = one
    return f"{file}:{line}: {code} {' '.join(sorted(axes))}".rstrip()


BAD = sorted(name for name in PATHS if expected(name))
CLEAN = sorted(set(PATHS) - set(BAD))


@pytest.mark.parametrize("name", PATHS)
def test_what_is_wrong_is_found_and_nothing_else(name: str) -> None:
    said = {found(finding): finding for finding in findings(name)}
    missed = sorted(text(one) for one in expected(name) - said.keys())
    extra = sorted(f"{text(one)}: {said[one].message}" for one in said.keys() - expected(name))
    assert not missed + extra, "\n".join(
        [*(f"missed  {line}" for line in missed), *(f"too many  {line}" for line in extra)]
    )
    assert len(findings(name)) == len(said), "one mistake, one finding"


@pytest.mark.parametrize("name", BAD)
def test_a_finding_says_what_to_do(name: str) -> None:
    for finding in findings(name):
        assert finding.fails
        assert finding.fix


@pytest.mark.parametrize("name", PATHS)
def test_the_program_is_python(name: str) -> None:
    for path in files(name):
        compile(path.read_text(), path.name, "exec", dont_inherit=True)


def test_there_are_sixty_and_half_are_clean() -> None:
    assert len(PATHS) >= 60
    assert len(CLEAN) >= len(PATHS) / 2


@pytest.mark.parametrize("name", BAD)
def test_a_bad_program_has_a_twin_that_differs_in_little(name: str) -> None:
    twin = f"{name}_mended"
    assert twin in CLEAN
    assert [path.name for path in files(twin) if path != PATHS[twin]] == [
        path.name for path in files(name) if path != PATHS[name]
    ]
    bad = [EXPECT.sub("", line).rstrip() for path in files(name) for line in path.read_text().splitlines()]
    mended = [line for path in files(twin) for line in path.read_text().splitlines()]
    assert bad != mended
    assert len(set(bad) - set(mended)) <= 6


def test_a_mended_program_has_a_bad_one() -> None:
    assert {name.removesuffix("_mended") for name in PATHS if name.endswith("_mended")} <= set(BAD)


def test_every_family_of_mistake_has_a_program() -> None:
    codes = {code for name in BAD for _, _, code, _ in expected(name)}
    assert codes == {"RB701", "RB702", "RB703", "RB704", "RB705", "RB706"}


def test_no_two_programs_are_the_same() -> None:
    trees = {name: "".join(ast.dump(ast.parse(path.read_text())) for path in files(name)) for name in PATHS}
    assert len(set(trees.values())) == len(trees)
