"""Real failures, and launches that are fine, as the commands that people had: tests/cases/launch, see its README."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rankbind.check.plan import Plan
from rankbind.cli import cli
from rankbind.config import parse
from rankbind.endpoint import MAX_PORT
from rankbind.finding import Finding, Level
from rankbind.launch.command import typed
from rankbind.launch.reading import Choice, Input, Subject, judge, subjects

CASES = Path(__file__).parent / "cases"
REPORTS: dict[str, dict[str, Any]] = {case["id"]: case for case in json.loads((CASES / "reports.json").read_text())}
"""Those of the 92 whose stage names `check`; the others are of the code, or of run time."""
OTHERS = {"C94", "C108", "C111", "C112", "C113", "C114", "C115", "C123", "C124", "C128", "C129"}
FILES = sorted((CASES / "launch").glob("*.yaml"))
CLASHES = {"RB201", "RB202", "RB212", "RB501", "RB502", "RB503"}


@dataclass(frozen=True)
class Launch:
    """A launch of a case, with one release of each engine, and what is to be said of it.

    Attributes:
        truth: as in the file; of what mends a failure, that it is clean.
        report: whose address model it has.
    """

    name: str
    versions: Mapping[str, str]
    setting: Mapping[str, Any]
    truth: Mapping[str, Any]
    report: str

    def subjects(self, folder: Path) -> list[Subject]:
        return read(self.setting, self.versions, folder)


def read(setting: Mapping[str, Any], versions: Mapping[str, str], folder: Path) -> list[Subject]:
    """What a setting starts: one command as it is typed, several as the lines of a script, and files."""
    choice = Choice(versions=versions)
    if "files" in setting:
        for name, text in setting["files"].items():
            (folder / name).write_text(text)
        found = subjects([Input(str(folder / name)) for name in setting["files"]], None, choice)
    elif len(setting["launch"]) == 1:
        found = subjects([], typed(shlex.split(setting["launch"][0])), choice)
    else:
        script = folder / "launch.sh"
        script.write_text("".join(f"{line} &\n" for line in setting["launch"]) + "wait\n")
        found = subjects([Input(str(script))], None, choice)
    for subject in found:
        # The exported file says the same.
        if subject.draft is not None and subject.declaration is not None:
            assert parse(subject.draft.to_toml()).job == subject.declaration.job
    return found


def releases(setting: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    version = setting["version"]
    if isinstance(version, Mapping):
        yield dict(version)
        return
    for each in version if isinstance(version, list) else [version]:
        yield {setting["engine"]: each}


def launches() -> Iterator[Launch]:
    for path in FILES:
        case = yaml.safe_load(path.read_text())
        told = [(path.stem, case["setting"], case["truth"], case["id"])]
        for at, change in enumerate(case.get("mended", ())):
            # A change of the command replaces files, and the other way round.
            setting = {key: value for key, value in case["setting"].items() if key not in ("launch", "files")}
            kept = {key: value for key, value in case["setting"].items() if key not in setting}
            asked = {key: change[key] for key in ("launch", "files", "version") if key in change}
            setting |= asked if asked.keys() & {"launch", "files"} else kept | asked
            truth = {"verdict": "clean"} | {key: change[key] for key in ("model", "bases") if key in change}
            told.append((f"{path.stem}-mended-{at + 1}", setting, truth, change.get("report", case["id"])))
        for name, setting, truth, report in told:
            for versions in releases(setting):
                yield Launch(name, versions, setting, truth, report)


LAUNCHES = list(launches())


def shown(launch: Launch) -> str:
    return f"{launch.name}-{'-'.join(launch.versions.values())}"


every = pytest.mark.parametrize("launch", LAUNCHES, ids=shown)


def plan_of(subject: Subject) -> Plan:
    assert subject.declaration is not None
    return Plan(subject.declaration)


# Facts


def ports(finding: Finding) -> set[int]:
    """Every port that a finding names, of a range the first."""
    texts = [*finding.facts.get("endpoints", ()), *finding.facts.get("dialled", ())]
    for row in finding.facts.get("collisions", ()):
        texts += [row.get("endpoint", ""), row.get("other", ""), *row.get("endpoints", {}).values()]
    return {int(found[1]) for text in texts if (found := re.search(r":(\d+)(?:-\d+)?$", text or ""))}


def tells(fact: Mapping[str, Any], finding: Finding, subject: Subject) -> bool:
    """Whether one finding, or one of the places that it lists, tells all of `fact`."""
    return any(
        all(_tells(key, wanted, dict(finding.facts) | row, finding, subject) for key, wanted in fact.items())
        for row in finding.facts.get("collisions", [{}])
    )


def _tells(key: str, wanted: Any, told: Mapping[str, Any], finding: Finding, subject: Subject) -> bool:
    if key == "resource":
        names = told.get("resources", [told.get("resource")])
        return (wanted in names) if isinstance(wanted, str) else set(wanted) == set(names)
    if key == "host":
        return str(wanted) in (str(told.get("node_rank")), str(told.get("host")))
    if key == "endpoint":
        return wanted in (told.get("endpoint"), told.get("other"), *(_values(told.get("endpoints"))))
    if key == "port":
        return wanted in ports(finding)
    if key == "ports_dialled":
        return finding.code == "RB210" and ports(finding) == set(wanted)
    if key in ("ambiguous", "endpoints", "ports"):
        return set(wanted) == set(_values(told.get(key)))
    if key == "coordinates":
        return any(wanted.items() <= at.items() for at in told.get("coordinates", ()))
    if key in ("mode", "advertised_as") and key not in told:
        return _heard(key, finding, subject) == wanted
    return bool(told.get(key) == wanted)


def _values(told: Any) -> Sequence[Any]:
    return list(told.values()) if isinstance(told, Mapping) else told or ()


def _heard(key: str, finding: Finding, subject: Subject) -> str | None:
    """How a publisher goes about it, and how routers are told it does, where nobody listens to what is dialled."""
    if finding.code != "RB210":
        return None
    name = finding.facts["resource"]
    who = [dial.consumer.by or "" for dial in plan_of(subject).dialled if dial.resource.name == name]
    if key == "mode":
        listens = any(binding.resource.name == name for binding in plan_of(subject).bindings)
        itself = any(text.startswith("the publisher itself") for text in who)
        return "connect" if itself and not listens else "bind"
    return "bind" if any("router" in text for text in who) else None


def failing(findings: Sequence[Sequence[Finding]]) -> list[Finding]:
    return [finding for told in findings for finding in told if finding.fails]


def assert_placed(subject: Subject, findings: Sequence[Finding]) -> None:
    """Each finding points at something that people wrote."""
    for finding in findings:
        assert finding.labels
        span = finding.labels[0].span
        if subject.draft is not None and span.file == subject.file:
            text = subject.text if subject.text is not None else Path(subject.file).read_text()
            assert 1 <= span.line <= len(text.split("\n"))


@every
def test_verdict(launch: Launch, tmp_path: Path) -> None:
    """Clean is without error and warning, a conflict is two owners in one place, broken is anything else."""
    found = launch.subjects(tmp_path)
    findings = judge(found).findings
    for subject, each in zip(found, findings, strict=True):
        assert_placed(subject, each)
    bad = failing(findings)
    codes = {finding.code for finding in bad}
    told = "clean" if not bad else "conflict" if CLASHES & codes else "broken"
    assert told == launch.truth["verdict"], [(finding.code, finding.message) for finding in bad]
    if "codes" in launch.truth:
        assert sorted(codes) == launch.truth["codes"]
    if told != "clean":
        assert max(bad, key=lambda finding: finding.level is Level.ERROR).level == launch.truth.get("level", "error")
    for fact in launch.truth.get("facts", ()):
        assert any(
            tells(fact, finding, subject)
            for subject, each in zip(found, findings, strict=True)
            for finding in each
            if finding.fails
        ), (fact, [(finding.code, finding.facts) for finding in bad])
    assert {finding.code for each in findings for finding in each} >= set(launch.truth.get("notes", ()))


def by_hand(name: str) -> tuple[Launch, list[str]]:
    """A case of one command, and the command line that checks it."""
    (launch,) = (each for each in LAUNCHES if each.name == name)
    ((engine, version),) = launch.versions.items()
    command = shlex.split(launch.setting["launch"][0])
    return launch, ["check", "--engine", engine, "--engine-version", version, "--format", "json", "--", *command]


@pytest.mark.parametrize(
    "name", ["c13-sglang-0514-pp2", "c14-sglang-0523-pp2", "c15-sglang-pp-flag", "c17-vllm-any-address-connects"]
)
def test_by_the_command_line(name: str, tmp_path: Path) -> None:
    """It says what `judge` says, and ends as the verdict is."""
    launch, arguments = by_hand(name)
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    told = json.loads(done.stdout)
    expected = [finding for each in judge(launch.subjects(tmp_path)).findings for finding in each]
    assert Counter(finding["code"] for file in told["files"] for finding in file["findings"]) == Counter(
        finding.code for finding in expected
    )
    assert done.exit_code == (1 if any(finding.fails for finding in expected) else 0)


@pytest.mark.parametrize("launch", [each for each in LAUNCHES if {"owners", "binds"} & each.truth.keys()], ids=shown)
def test_owners_and_addresses(launch: Launch, tmp_path: Path) -> None:
    (subject,) = launch.subjects(tmp_path)
    plan = plan_of(subject)
    for name, ranks in launch.truth.get("owners", {}).items():
        assert list(plan.owners[name]) == ranks
    for name, texts in launch.truth.get("binds", {}).items():
        assert [binding.text for binding in plan.bindings if binding.resource.name == name] == texts


# Address models


Bind = tuple[int, str, str, int, int]


def spelled(text: str) -> str:
    """Reports and engines spell the wildcard and the loopback address in several ways."""
    return text.replace("//0.0.0.0:", "//*:").replace("//localhost:", "//127.0.0.1:")


def bound(launch: Launch, found: Sequence[Subject], mapped: Mapping[str, str]) -> Counter[Bind]:
    hosts = list(dict.fromkeys(host.name for each in found for host in plan_of(each).job.topology.hosts))
    ours: Counter[Bind] = Counter()
    for number, subject in enumerate(found):
        for binding in plan_of(subject).bindings:
            for name, resource in mapped.items():
                if (binding.resource.name, binding.address.role) == _split(resource):
                    at = hosts.index(binding.host)
                    ours[at, spelled(binding.text), name, number, binding.rank] += 1
    return ours


def _split(resource: str) -> tuple[str, str]:
    name, _, role = resource.partition("/")
    return name, role or "bind"


def owner(label: str, truth: Mapping[str, Any]) -> tuple[int, int]:
    """Deployment and rank of ``r5``, which counts through deployments that begin at `bases`, or of ``d1.r0``."""
    deployment, _, rank = label.rpartition(".")
    number = int(rank.removeprefix("r"))
    if deployment:
        return truth["deployments"].index(deployment), number
    bases = truth.get("bases", [0])
    at = max(at for at, base in enumerate(bases) if base <= number)
    return at, number - bases[at]


def host(label: str) -> int:
    return int(label.removeprefix("pod")) if label.startswith("pod") else ord(label) - ord("A")


def modelled() -> list[Launch]:
    return [launch for launch in LAUNCHES if "model" in launch.truth]


@pytest.mark.parametrize("launch", modelled(), ids=shown)
def test_address_model(launch: Launch, tmp_path: Path) -> None:
    """The same processes bind the same addresses on the same hosts as the report's author worked out."""
    model = REPORTS[launch.report]["address_model"]
    mapped = {name: resource for name, resource in launch.truth["model"].items() if name in model["owners"]}
    assert mapped
    listed: Counter[Bind] = Counter(
        (host(bind["host"]), spelled(bind["endpoint"]), bind["resource"], *owner(bind["owner"], launch.truth))
        for bind in model["binds"]
        if bind["resource"] in mapped
    )
    found = launch.subjects(tmp_path)
    ours = bound(launch, found, mapped)
    if len(model["binds"]) == model["bind_count"]:
        assert ours == listed
    else:
        assert not listed - ours
    for name in mapped:
        assert {who[3:] for who in ours if who[2] == name} == {
            owner(label, launch.truth) for label in model["owners"][name]
        }
    past = {text for _, text, *_ in ours if text.startswith("tcp") and int(text.rpartition(":")[2]) > MAX_PORT}
    assert past == set(model["past_65535"])


# What is not among them


def not_launched() -> dict[str, str]:
    text = (CASES / "launch" / "NOT_LAUNCHED.md").read_text()
    return dict(re.findall(r"^\| (C\d+) \| (\w+) \|", text, flags=re.MULTILINE))


def test_every_report_is_launched_or_is_listed() -> None:
    launched = {launch.report for launch in LAUNCHES if launch.report in REPORTS}
    listed = not_launched()
    assert set(listed) | launched == set(REPORTS) | OTHERS
    assert launched & set(listed) == {name for name, how in listed.items() if how == "partly"}
    assert {path.stem[:3] for path in FILES if path.stem[0] == "c"} == {f"c{n}" for n in range(13, 19)}


# Launches that are fine


def fine() -> Iterator[Launch]:
    given = yaml.safe_load((CASES / "launch-clean.yaml").read_text())
    for engine, lists in given.items():
        at = 0
        for each in lists:
            for launch in each["launches"]:
                at += 1
                setting = {"launch": [launch]} if isinstance(launch, str) else {"launch": launch}
                setting = launch if isinstance(launch, Mapping) else setting
                for version in each["versions"]:
                    versions = version if isinstance(version, Mapping) else {engine: version}
                    yield Launch(f"{engine}-{at}", versions, setting, {"verdict": "clean"}, "")


FINE = list(fine())


def test_there_are_enough() -> None:
    assert len({launch.name for launch in FINE}) >= 40


@pytest.mark.parametrize("launch", FINE, ids=shown)
def test_sane_launches_are_clean(launch: Launch, tmp_path: Path) -> None:
    found = launch.subjects(tmp_path)
    assert any(subject.draft is not None for subject in found)
    bad = failing(judge(found).findings)
    assert not [(finding.code, finding.message) for finding in bad]
