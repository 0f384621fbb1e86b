"""The reader of docs/engines.md: found by its entry point, as an installed one is, and right about real commands."""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankbind import config
from rankbind.finding import Level
from rankbind.launch import engine as engines
from rankbind.launch.command import Command, typed
from rankbind.launch.engine import Engine
from rankbind.launch.reading import Subject, judge, subjects
from rankbind.scope import Scope

from ..support.oracles import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "engines" / "megatron"
ROWS = load("megatron-groups-0.16.1")

TRAIN = "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
TWO = TRAIN.replace("torchrun", "torchrun --nnodes 2 --master-addr 10.0.0.1 --master-port 6000")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The distribution as pip leaves it, without pip: its module on the path, and its metadata beside it."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items()) for group, points in groups
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    for path in (FOLDER, tmp_path):
        monkeypatch.syspath_prepend(str(path))
    monkeypatch.delitem(sys.modules, "rankbind_megatron", raising=False)
    engines.installed.cache_clear()
    engines._load.cache_clear()
    yield
    engines.installed.cache_clear()
    engines._load.cache_clear()
    sys.modules.pop("rankbind_megatron", None)


def command(text: str) -> Command:
    return typed(shlex.split(text))


def read(text: str) -> Subject:
    (subject,) = subjects([], command(text))
    draft = subject.draft
    assert draft is not None
    if not draft.refused:
        assert config.parse(draft.to_toml()).job == draft.declaration().job
    return subject


def codes(subject: Subject) -> list[str]:
    return [finding.code for finding in subject.checked() if finding.level is not Level.NOTE]


def job(subject: Subject) -> Any:
    assert subject.declaration is not None
    return subject.declaration.job


def test_it_is_found_by_its_entry_point() -> None:
    assert "megatron" in engines.installed()
    engine = engines.find("megatron")
    assert isinstance(engine, Engine)
    assert engines.recognise(shlex.split(TRAIN)) is engine
    assert engine.starts(shlex.split("python3 -m torch.distributed.run --nnodes 1 /src/pretrain_t5.py"))
    for other in ("torchrun train.py", "python pretrain_gpt.py", "torchrun", "vllm serve x"):
        assert not engine.starts(shlex.split(other)), other


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_its_groups_are_those_that_megatron_makes(row: dict[str, Any]) -> None:
    sizes, nodes = row["sizes"], 2
    subject = read(
        f"torchrun --nnodes={nodes} --nproc_per_node {row['world_size'] // nodes} --master-addr a pretrain_gpt.py "
        f"--tensor-model-parallel-size {sizes['tp']} --pipeline-model-parallel-size {sizes['pp']} "
        f"--context-parallel-size {sizes['cp']} --expert-model-parallel-size {sizes['ep']} "
        f"--expert-tensor-parallel-size {sizes['expert_tp']}"
    )
    topology = job(subject).topology
    for name, groups in row["groups"].items():
        scope = {"dp_cp": ("dp", "cp"), "tp_pp": ("tp", "pp"), "tp_dp_cp": ("tp", "dp", "cp"), "tp_cp": ("tp", "cp")}
        scope |= {"tp_ep": ("expert_tp", "ep"), "tp_ep_pp": ("expert_tp", "ep", "pp")}
        found = [list(group.members) for group in Scope(scope.get(name, name)).groups(topology)]
        assert sorted(found) == sorted(groups), name
    assert [len(host.ranks) for host in topology.hosts] == [row["world_size"] // nodes] * nodes
    assert codes(subject) == []


def test_what_it_says_of_a_training() -> None:
    subject = read(f"{TWO} --node-rank 1 --save /ckpt/{{run}} --tensorboard-dir /tb --lr 3e-4")
    found = job(subject)
    assert [resource.name for resource in found.resources] == ["store", "gpu", "save", "tensorboard_dir"]
    assert found.address("store", 0) == "tcp://*:6000"
    assert found.address("save", 0, "path") == "/ckpt/{run}/latest_checkpointed_iteration.txt"
    assert found.resource("tensorboard_dir").owner.owners(found.topology) == (15,)
    assert codes(subject) == []
    assert subject.draft is not None
    assert [word.text for word, _ in subject.draft.ignored] == ["--lr"]


def test_the_nodes_of_one_job_are_one_deployment_and_other_jobs_are_not() -> None:
    engine = engines.find("megatron")
    nodes = [command(f"{TWO} --seed 1".replace("--nnodes", f"--node-rank {node} --nnodes")) for node in range(2)]
    other = command(TWO.replace("6000", "6001"))
    assert [len(draft.commands) for draft in engine.read([nodes[0], other, nodes[1]], None)] == [2, 1]


def test_two_trainings_on_one_host_meet_at_the_store() -> None:
    one, other = (read(f"{TRAIN} --save /{name}") for name in "ab")
    found = [
        finding for findings in judge([one, other]).findings for finding in findings if finding.level is not Level.NOTE
    ]
    assert {finding.code for finding in found} == {"RB501"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("--tensor-model-parallel-size 3", "RB606"),
        ("--expert-model-parallel-size 3", "RB606"),
        ("--tensor-model-parallel-size two", "RB605"),
        ("--tensor-model-parallel-size", "RB605"),
    ],
)
def test_what_megatron_refuses(change: str, code: str) -> None:
    subject = read(f"{TRAIN} {change}")
    assert subject.declaration is None
    assert codes(subject) == [code]


def test_a_master_address_that_only_one_node_has_is_found_by_the_model() -> None:
    (finding,) = read(TWO.replace("--master-addr 10.0.0.1", "")).checked()
    assert (finding.code, finding.fix) == ("RB210", "give --master-addr, an address of the first node")
    assert "ranks 8..15 dial tcp://127.0.0.1:6000, where nobody listens" in finding.message


def test_a_rendezvous_that_it_does_not_know_is_left_out_and_said() -> None:
    subject = read(TRAIN.replace("torchrun", "torchrun --rdzv-backend c10d --rdzv-endpoint a:29400"))
    assert [resource.name for resource in job(subject).resources] == ["gpu"]
    assert subject.draft is not None
    assert [word.text for word, _ in subject.draft.ignored] == ["--rdzv-backend", "--rdzv-endpoint"]


def test_the_page_shows_the_file_itself() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    for name in ("rankbind_megatron.py", "pyproject.toml"):
        assert (FOLDER / name).read_text(encoding="utf-8").strip() in page, (
            f"docs/engines.md does not show {name} as it is"
        )
