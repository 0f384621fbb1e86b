"""Real failures and real clean launches, written as topology files by hand: tests/cases, see its README."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rankbind import check
from rankbind.check.clashes import clashes
from rankbind.check.plan import Binding, Plan
from rankbind.config import Declaration, parse, read
from rankbind.errors import ConfigError
from rankbind.finding import Finding, Level

CASES = Path(__file__).parent / "cases"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CASES / "expected.json").read_text())
REPORTS: dict[str, dict[str, Any]] = {case["id"]: case for case in json.loads((CASES / "reports.json").read_text())}
MODELS = sorted(name for name, case in REPORTS.items() if "address_model" in case)
FILES = sorted(path.stem for path in CASES.glob("*.toml"))

CLASHES = {"RB201", "RB202", "RB212"}
PREFIXES = {
    ("name", "shared"): "id:",
    ("name", "host"): "dev:",
    ("path", "host"): "file:",
    ("path", "shared"): "sfile:",
}


@cache
def declared(name: str) -> Declaration:
    return read(CASES / f"{name}.toml")


@cache
def planned(name: str) -> Plan:
    return Plan(declared(name))


@cache
def findings(name: str) -> tuple[Finding, ...]:
    try:
        return check.run(declared(name))
    except ConfigError as error:
        return tuple(finding for finding in error.findings if isinstance(finding, Finding))


def failing(name: str) -> dict[str, Level]:
    return {finding.code: finding.level for finding in findings(name) if finding.fails}


def holds(fact: Mapping[str, Any], finding: Finding) -> bool:
    """Whether one finding, or one of the places where it says that owners collide, tells all of `fact`."""
    for row in finding.facts.get("collisions", [{}]):
        told = dict(finding.facts) | row
        wanted = dict(fact)
        resources = wanted.pop("resource", None)
        names = {resources} if isinstance(resources, str) else set(resources or ())
        if names and names != set(told.get("resources", [told.get("resource")])):
            continue
        if "host" in wanted and wanted.pop("host") != told.get("node_rank"):
            continue
        if "endpoint" in wanted and wanted.pop("endpoint") not in (told.get("endpoint"), told.get("other")):
            continue
        if all(told.get(key) == value for key, value in wanted.items()):
            return True
    return False


@pytest.mark.parametrize("name", FILES)
def test_verdict(name: str) -> None:
    """Exactly the expected codes, each at its level, and every fact of the case in one of the findings."""
    expected = EXPECTED[name]
    assert {finding.code: finding.level.value for finding in findings(name)} == expected["codes"]
    for fact in expected.get("facts", ()):
        assert any(holds(fact, finding) for finding in findings(name)), fact
    for finding in findings(name):
        assert finding.labels
        assert all(label.span.line >= 1 for label in finding.labels)


@pytest.mark.parametrize("name", [name for name in FILES if "verdict" in EXPECTED[name]])
def test_told_in_axes(name: str) -> None:
    """Clean is without error and warning, a conflict is two owners in one place, broken is anything else."""
    found = failing(name)
    told = "clean" if not found else "conflict" if CLASHES & found.keys() else "broken"
    assert told == EXPECTED[name]["verdict"]


@pytest.mark.parametrize("name", MODELS)
def test_report_level(name: str) -> None:
    case, found = REPORTS[name], failing(name)
    expect = set(case["address_model"]["expect"])
    told = {
        "conf": bool(CLASHES & found.keys()),
        "dup": "RB102" in found,
        "miss": bool({"RB101", "RB104", "RB401"} & found.keys()),
        "over": "RB203" in found,
        "priv": "RB214" in found,
        "clean": not found,
    }
    assert {outcome for outcome, holds_ in told.items() if holds_} == expect
    if case["level"] == "error" and expect != {"clean"}:
        assert Level.ERROR in found.values()


class Names:
    """What the labels of a report (``r5``, ``d1.r0``, ``A``, ``pod0``) are in the topology file."""

    def __init__(self, name: str) -> None:
        self.ranks: dict[str, int] = EXPECTED[name].get("ranks", {})
        self.resources: dict[str, str] = EXPECTED[name].get("resources", {})

    def rank(self, label: str) -> int:
        if label in self.ranks:
            return self.ranks[label]
        deployment, _, rank = label.rpartition(".")
        return (self.ranks[deployment] if deployment else 0) + int(rank.removeprefix("r"))

    @staticmethod
    def host(label: str) -> int:
        return int(label.removeprefix("pod")) if label.startswith("pod") else ord(label) - ord("A")

    def owner(self, label: str) -> tuple[str, int]:
        resource, _, rank = label.partition("@")
        return resource, self.rank(rank)

    def resource(self, name: str) -> str:
        return self.resources.get(name, name)


def ports(binding: Binding) -> range | None:
    """The ports of a range, None for what is one address."""
    endpoint = binding.endpoint
    if endpoint is None or endpoint.first == endpoint.last:
        return None
    return range(endpoint.first, endpoint.last + 1)


def spelled(binding: Binding, port: int | None = None) -> str:
    """An address as the reports spell it; `port` is one of its range."""
    address = binding.address
    if binding.endpoint is None:
        return PREFIXES[address.kind, address.scope] + binding.text
    return binding.text if port is None else binding.text.rpartition(":")[0] + f":{port}"


def bound(names: Names, plan: Plan) -> Counter[tuple[int, str, str, int]]:
    return Counter(
        (binding.node, spelled(binding, port), names.resource(binding.resource.name), binding.rank)
        for binding in plan.bindings
        for port in ports(binding) or (None,)
    )


Side = tuple[str, str, int]


def met(names: Names, plan: Plan) -> Iterator[tuple[int, tuple[Side, ...]]]:
    for a, b in (pair for clash in clashes(plan.bindings) for pair in clash.pairs()):
        mine, theirs = ports(a), ports(b)
        common: list[int | None] = [None]
        if mine and theirs:
            common = [port for port in mine if port in theirs]
        elif (mine or theirs) and a.endpoint and b.endpoint:
            common = [b.endpoint.first if mine else a.endpoint.first]
        for port in common:
            sides = (
                (spelled(binding, port), names.resource(binding.resource.name), binding.rank) for binding in (a, b)
            )
            yield max(a.node, b.node), tuple(sorted(sides))


def same(ours: Counter[Any], listed: Counter[Any], count: int) -> None:
    """Long lists are cut short in the reports: then what is listed must be ours, and ours as many as they say."""
    assert ours.total() == count
    assert not listed - ours
    assert listed == ours or listed.total() < count


@pytest.mark.parametrize("name", MODELS)
class TestAddressModel:
    """The file of a report says the same as the expansion that the report's author made."""

    def test_owners(self, name: str) -> None:
        names, plan = Names(name), planned(name)
        helpers = EXPECTED[name].get("helpers", ())
        ours: dict[str, list[int]] = {}
        for resource, owners in plan.owners.items():
            processes = [rank for rank in owners for _ in plan.nodes[rank]]
            if processes and resource not in helpers:
                ours.setdefault(names.resource(resource), []).extend(processes)
        told = REPORTS[name]["address_model"]["owners"]
        assert {resource: sorted(ranks) for resource, ranks in ours.items()} == {
            resource: sorted(map(names.rank, ranks)) for resource, ranks in told.items()
        }

    def test_binds(self, name: str) -> None:
        names, model = Names(name), REPORTS[name]["address_model"]
        listed = Counter(
            (names.host(bind["host"]), bind["endpoint"], bind["resource"], names.rank(bind["owner"]))
            for bind in model["binds"]
        )
        same(bound(names, planned(name)), listed, model["bind_count"])

    def test_clashes(self, name: str) -> None:
        names, model = Names(name), REPORTS[name]["address_model"]
        listed = Counter(
            (
                names.host(clash["host"]),
                tuple(sorted((clash[side], *names.owner(clash[f"owner_{side}"])) for side in "ab")),
            )
            for clash in model["clashes"]
        )
        same(Counter(met(names, planned(name))), listed, model["clash_count"])

    def test_ports(self, name: str) -> None:
        model = REPORTS[name]["address_model"]
        past = Counter(
            binding.text for binding in planned(name).bindings if binding.endpoint and binding.endpoint.last > 65535
        )
        assert past == Counter(model["past_65535"])
        assert self.endpoints(name, "RB203") == set(model["past_65535"])
        assert self.endpoints(name, "RB204") == set(model["privileged"])

    @staticmethod
    def endpoints(name: str, code: str) -> set[str]:
        return {text for finding in findings(name) if finding.code == code for text in finding.facts["endpoints"]}

    def test_missing(self, name: str) -> None:
        plan = planned(name)
        ours: set[tuple[int, ...]] = set()
        for finding in findings(name):
            resource = finding.facts.get("resource")
            if finding.code in ("RB101", "RB104") and finding.facts.get("owners") == 0:
                axes = plan.job.resource(str(resource)).once_per or ()
                ours |= set(product(*(range(plan.job.topology.sizes[axis]) for axis in axes)))
            elif finding.code == "RB101":
                ours |= {tuple(value.values()) for value in finding.facts["missing"]}
            elif finding.code == "RB401" and "missing_on" in EXPECTED[name]:
                axis = EXPECTED[name]["missing_on"]
                ours |= {(plan.job.topology.coordinates(rank)[axis],) for rank in finding.facts["missing"]}
        assert ours == {identity(label) for label in REPORTS[name]["address_model"]["missing"]}

    def test_duplicate_owners(self, name: str) -> None:
        names, plan = Names(name), planned(name)
        ours = {
            (finding.facts["resource"], tuple(row["coordinates"].values())): [
                (rank, node) for rank in row["ranks"] for node in plan.nodes[rank]
            ]
            for finding in findings(name)
            if finding.code == "RB102"
            for row in finding.facts["several"]
        }
        told = REPORTS[name]["address_model"]["duplicate_owners"]
        assert ours == {
            (key.partition(":")[0], identity(key.partition(":")[2])): [
                (names.rank(rank), names.host(host)) for rank, _, host in (label.partition("@") for label in labels)
            ]
            for key, labels in told.items()
        }


def identity(label: str) -> tuple[int, ...]:
    """``dp1`` as the value of one axis, ``world`` (or the resource's own name) as the one value of none."""
    digits = re.search(r"\d+$", label)
    return (int(digits[0]),) if digits else ()


def mended(name: str, finding: Finding) -> Iterator[dict[str, Any]]:
    """The file with each remedy that a finding names; those in words alone are left out."""
    fix = finding.fix or ""
    resource = str(finding.facts["resources"][-1] if "resources" in finding.facts else finding.facts["resource"])

    def change() -> tuple[dict[str, Any], dict[str, Any]]:
        data = tomllib.loads((CASES / f"{name}.toml").read_text())
        return data, data["resources"][resource]

    if owner := re.match(r"(singleton_per|owner) = \{.*?\}", fix):
        data, entry = change()
        entry.pop("owner")
        yield data | {"resources": data["resources"] | {resource: entry | tomllib.loads(owner[0])}}
    if "give" in fix and (owner := re.search(r"owner = \{.*?\}", fix)):
        data, entry = change()
        entry.update(tomllib.loads(owner[0]))
        yield data
    if term := re.search(r"\{\.\.\. \+ (.*)\}", fix) or re.search(r"add (.*) to both ends", fix):
        data, entry = change()
        add(entry, term[1])
        yield data
    if names := re.search(r"put (.*) into it", fix):
        data, entry = change()
        for role in {"bind", "name", "path"} & entry.keys():
            entry[role] += "".join(re.findall(r"\{\w+\}", names[1]))
        yield data
    if to := re.search(r"move \S+ to (\d+)", fix):
        data, entry = change()
        first = min(
            binding.endpoint.first
            for binding in planned(name).bindings
            if binding.endpoint and binding.resource.name == resource
        )
        add(entry, str(int(to[1]) - first))
        yield data


def add(entry: dict[str, Any], term: str) -> None:
    for role in {"bind", "replay"} & entry.keys():
        texts = entry[role] if isinstance(entry[role], list) else [entry[role]]
        entry[role] = [
            re.sub(r"\{(.*?)\}|(?<=[:-])(\d+)", lambda port: f"{{{port[1] or port[2]} + ({term})}}", text)
            for text in texts
        ]


FIXED = CLASHES | {"RB101", "RB102", "RB401"}


@pytest.mark.parametrize("name", [name for name in FILES if FIXED & EXPECTED[name]["codes"].keys()])
def test_remedies_help(name: str) -> None:
    """Whoever does what a finding proposes is rid of it, and nothing else gets worse."""
    for finding in findings(name):
        if finding.code not in FIXED:
            continue
        for data in mended(name, finding):
            about = finding.facts.get("resources", finding.facts.get("resource"))
            after = check.run(parse(json.dumps(data), "mended.json"))
            assert not [
                (other.code, other.message)
                for other in after
                if other.fails and other.code == finding.code
                if other.facts.get("resources", other.facts.get("resource")) == about
            ], data
            assert len([other for other in after if other.fails]) < len([f for f in findings(name) if f.fails])


def test_every_report_is_a_file_or_is_listed() -> None:
    listed = set(re.findall(r"^\| (C\d+) \| no ", (CASES / "NOT_EXPRESSIBLE.md").read_text(), flags=re.MULTILINE))
    assert listed | {name for name in FILES if name in REPORTS} == set(REPORTS)
    assert not listed & set(FILES)
    assert len(MODELS) == 69
    assert set(MODELS) <= set(FILES)


def test_every_file_has_an_expectation() -> None:
    assert set(EXPECTED) == set(FILES)
