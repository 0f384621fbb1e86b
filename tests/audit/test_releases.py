"""What the audit says of released engines, against what was read by hand in their sources: tests/audit/releases.

The sources are those of `make environments`; each release is audited once in a run, whichever worker comes first.
"""

from __future__ import annotations

import json
import os
import pickle
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from rankbind import audit
from rankbind.audit.settings import Settings
from rankbind.audit.sources import collect
from rankbind.finding import Finding
from rankbind.source import Span

# The first test of a release audits it, the others may wait for that.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "releases"
TABLES: Mapping[str, Mapping[str, Any]] = {
    engine: tomllib.loads((HERE / f"{engine}.toml").read_text()) for engine in ("sglang", "vllm")
}
INVENTORY: Mapping[str, Mapping[str, list[Any]]] = json.loads((HERE / "sglang-inventory.json").read_text())
AUDITED = {"sglang": "sglang/srt", "vllm": "vllm"}

_TENSOR = ("attn_dp", "attn_cp", "attn_tp")
WHOLE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sglang": {"tp": _TENSOR, "rank": ("pp", *_TENSOR)},
    "vllm": {"rank": ("dp", "pp", "pcp", "tp")},
}
"""Axes that stand for several: a gate on tp_rank is one on each of those that make it up."""


@dataclass(frozen=True)
class Release:
    engine: str
    version: str

    def __str__(self) -> str:
        return f"{self.engine}-{self.version}"


@dataclass(frozen=True)
class Place:
    """Some lines of a file, which is called as in the tables."""

    file: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.file}:{self.first}" + (f"..{self.last}" if self.last > self.first else "")


class Audited:
    """The audit of one release, with its files called as in the tables."""

    def __init__(self, release: Release, root: Path, found: audit.Audit) -> None:
        self._prefix = f"{root.as_posix()}/"
        self._whole = WHOLE[release.engine]
        self.found = found

    def at(self, span: Span, places: Iterable[Place]) -> bool:
        file = span.file.removeprefix(self._prefix)
        return any(place.file == file and place.first <= span.line <= place.last for place in places)

    def gates(self, place: Place) -> Iterator[audit.Gate]:
        return (gate for gate in self.found.gates if self.at(gate.span, [place]))

    def findings(self, code: str, places: Iterable[Place]) -> list[Finding]:
        """Those that have a label there."""
        where = list(places)
        return [
            finding
            for finding in self.found.findings
            if finding.code == code and any(self.at(label.span, where) for label in finding.labels)
        ]

    def parts(self, axes: Iterable[str]) -> frozenset[str]:
        return frozenset(part for axis in axes for part in self._whole.get(axis, (axis,)))


def sources_of(release: Release) -> Path:
    """The folder that is audited.

    Raises:
        AssertionError: it is not there, in CI; elsewhere the test is skipped.
    """
    home = ROOT / f".venv-{release.engine}"
    sites = [home / "sources" / release.version, *home.glob(f"{release.version}/lib/python*/site-packages")]
    folder = next((each for site in sites if (each := site / AUDITED[release.engine]).is_dir()), None)
    if folder is not None:
        return folder
    missing = f"the sources of {release.engine} {release.version} are not under {home.name}/: run `make environments`"
    assert "CI" not in os.environ, missing
    pytest.skip(missing)


def audit_of(root: Path) -> audit.Audit | str:
    """The audit, or why there is none."""
    try:
        sources, unread = collect([root], Settings())
        if unread:
            return "\n".join(finding.message for finding in unread)
        return audit.run(sources, Settings(), listing=True)
    except Exception:
        return traceback.format_exc()


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Release], Audited]:
    base = tmp_path_factory.getbasetemp()
    # Of one run, and the same for all workers of xdist.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    done: dict[Release, Audited] = {}

    def of(release: Release) -> Audited:
        if release not in done:
            root = sources_of(release)
            kept = shared / f"audit-of-{release}.pickle"
            with FileLock(f"{kept}.lock"):
                if not kept.exists():
                    part = kept.with_suffix(".part")
                    part.write_bytes(pickle.dumps(audit_of(root)))
                    part.rename(kept)
            found = pickle.loads(kept.read_bytes())
            # Once is enough, also where it failed: there are hundreds of tests.
            if isinstance(found, str):
                pytest.fail(found, pytrace=False)
            done[release] = Audited(release, root, found)
        return done[release]

    return of


def releases() -> list[Release]:
    return [Release(engine, version) for engine, table in TABLES.items() for version in table["releases"]]


def named(kind: str) -> list[Any]:
    """The entries of one kind, each with every release that it is about."""
    found = []
    for release in releases():
        for entry in TABLES[release.engine][kind]:
            if release.version in entry.get("lines", entry.get("releases", ())):
                words = [entry["row"], entry.get("code"), entry.get("file", "").rpartition("/")[2], entry.get("target")]
                text = "-".join(word for word in words if word)
                found.append(pytest.param(release, entry, id=f"{release}-{text}"))
    return found


def places(release: Release, *rows: str) -> list[Place]:
    """Where the gates of some rows stand and what is behind them is created."""
    found = []
    for entry in (*TABLES[release.engine]["gate"], *TABLES[release.engine]["site"]):
        lines = entry["lines"].get(release.version, []) if entry["row"] in rows else []
        pairs = lines if lines and isinstance(lines[0], list) else [lines] if lines else []
        found += [Place(entry["file"], first, last) for first, last in pairs]
    return found


def text(axes: Iterable[str]) -> str:
    return f"{{{', '.join(sorted(axes))}}}"


@pytest.mark.parametrize("release", releases(), ids=str)
def test_every_file_is_read(release: Release, audited: Callable[[Release], Audited]) -> None:
    found = audited(release).found
    assert [finding.message for finding in found.findings if finding.family == "RB9"] == []
    assert found.files == len([*sources_of(release).rglob("*.py")])


@pytest.mark.parametrize(("release", "gate"), named("gate"))
def test_gates(release: Release, gate: Mapping[str, Any], audited: Callable[[Release], Audited]) -> None:
    """Each gate of the table "Ownership gates" is found, with the axes that it depends on."""
    said = audited(release)
    place = Place(gate["file"], *gate["lines"][release.version])
    there = [*said.gates(place)]
    assert there, f"no gate found at {place}, where {gate['function']} asks for {text(gate['axes'])}"
    # `rank % tp_size == 0` asks for the rank, and pins tp.
    assert said.parts(gate["axes"]) in [said.parts(axes) for each in there for axes in (each.axes, each.pinned)], (
        f"{place}: {text(gate['axes'])}; found {', '.join(f'{text(each.axes)} in {each.text!r}' for each in there)}"
    )
    assert gate["function"] in {each.function for each in there}


@pytest.mark.parametrize(("release", "bug"), named("bug"))
def test_bugs_are_found(release: Release, bug: Mapping[str, Any], audited: Callable[[Release], Audited]) -> None:
    """Each in every release that has it, with the axes in which two ranks collide."""
    said = audited(release)
    found = said.findings(bug["code"], places(release, bug["row"]))
    if "other" in bug:
        others = places(release, *bug["other"])
        found = [each for each in found if any(said.at(label.span, others) for label in each.labels)]
    assert found, f"{bug['row']}: no {bug['code']}, although {bug['why']}"
    axes = said.parts(axis for each in found for axis in each.facts.get("axes", ()))
    assert axes >= said.parts(bug.get("free", ())), f"{bug['row']}: {text(axes)} of {text(bug['free'])}: {bug['why']}"
    assert not axes & said.parts(bug.get("bound", ())), f"{bug['row']}: {text(axes)}, although {bug['why']}"
    assert bug.get("note", False) or all(each.fails for each in found)


@pytest.mark.parametrize(("release", "row"), named("clean"))
def test_what_is_right_is_left_alone(
    release: Release, row: Mapping[str, Any], audited: Callable[[Release], Audited]
) -> None:
    """Among it each bug that was mended, in the first release without it and those after."""
    where = places(release, row["row"])
    assert where, f"nothing is said of where {row['row']} is in {release}"
    said = audited(release)
    # What a finding compares with is shown there as well, and is not what is wrong.
    found = [each for each in said.findings(row["code"], where) if said.at(each.labels[0].span, where)]
    assert not found, f"{row['row']}: {row['why']}, but: {'; '.join(each.message for each in found)}"


@pytest.mark.parametrize("version", INVENTORY)
def test_every_condition_about_ranks_is_seen(version: str, audited: Callable[[Release], Audited]) -> None:
    """Not only those of the table: all that compare a rank with 0, with 1 or with the last, in five releases.

    The inventory leaves out checks of an argument (``dp_rank < 0``), which are no gates, and conditions on `node_rank`
    alone, which is a place and no axis, and two checks of tensorcast's. It has no axes for conditions on ranks that cut
    others (dp_rank, moe_ep_rank, dcp_rank), on a rank of the host, or on one of a group that only the caller knows:
    those need only be seen.
    """
    said = audited(Release("sglang", version))
    missed = []
    for file, rows in INVENTORY[version].items():
        for function, first, last, axes in rows:
            place = Place(file, first, last)
            there = [*said.gates(place)]
            if not there:
                missed.append(f"{place} {function}: {text(axes or ())}, no gate found")
            elif axes is not None and said.parts(axes) not in [said.parts(each.axes) for each in there]:
                seen = " ".join(text(each.axes) for each in there)
                missed.append(f"{place} {function}: {text(axes)}, found {seen}")
    assert not missed, "\n".join([f"{len(missed)} of {sum(map(len, INVENTORY[version].values()))}", *missed])


def test_the_tables_are_about_the_releases_that_they_name() -> None:
    for table in TABLES.values():
        known = set(table["releases"])
        for kind in ("gate", "site", "bug", "clean"):
            assert all(set(entry.get("lines", entry.get("releases"))) <= known for entry in table[kind])
        rows = {entry["row"] for kind in ("gate", "site") for entry in table[kind]}
        assert {entry["row"] for kind in ("bug", "clean") for entry in table[kind]} <= rows
    assert set(INVENTORY) <= set(TABLES["sglang"]["releases"])


@pytest.mark.parametrize(("release", "entry"), [*named("gate"), *named("site")])
def test_the_tables_are_about_what_is_there(release: Release, entry: Mapping[str, Any]) -> None:
    """The lines are those of the function: a table of line numbers is soon wrong."""
    lines = (sources_of(release) / entry["file"]).read_text().splitlines()
    stated = entry["lines"][release.version]
    for first, last in stated if isinstance(stated[0], list) else [stated]:
        assert 1 <= first <= last <= len(lines)
        name = entry["function"].rpartition(".")[2]
        assert not name or any(f"def {name}(" in line for line in lines[:first])
        shown = "\n".join(lines[first - 1 : last])
        assert all(part in shown for part in (entry.get("target", "").rpartition(".")[2],))
