"""One axis where another is meant."""

from __future__ import annotations

import textwrap

import pytest

from rankbind.audit import gates
from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Program
from rankbind.audit.rules import free_axis
from rankbind.audit.rules.other_axis import findings
from rankbind.audit.sites import ways
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import SGLANG, VLLM, Profile, Vocabulary
from rankbind.finding import Finding, Level


def audited(body: str, profile: Profile = SGLANG) -> list[Finding]:
    meaning = Meaning(Program([Source("a.py", "a", textwrap.dedent(body).encode())]), Vocabulary(profile))
    judged = [free_axis.judge(meaning, one, way) for one, found in ways(meaning, {}) for way in found]
    return list(findings(meaning, gates.conditions(meaning), judged))


SIBLINGS = """
class Scheduler:
    def load(self, ps):
        if ps.pp_rank == 0 and ps.attn_tp_rank == 0 and ps.attn_cp_rank == 0:
            self.send_load()

    def metrics(self, ps):
        self.is_rank_zero = ps.pp_rank == 0 and ps.attn_tp_rank == 0 and ps.attn_cp_rank == 0

    def session(self, ps):
        if {gate}:
            return answer()
"""


def test_the_whole_beside_one_of_its_parts() -> None:
    (one,) = audited(SIBLINGS.format(gate="ps.pp_rank == 0 and ps.tp_rank == 0 and ps.attn_cp_rank == 0"))
    assert one.code == "RB705"
    assert one.level is Level.WARNING
    assert one.message == "the gate asks for tp_rank where 2 gates like it ask for attn_tp_rank"
    assert [(str(label.span), label.text) for label in one.labels] == [
        ("a.py:11:12", "tp_rank here"),
        ("a.py:11:32", "the gate: tp_rank"),
        ("a.py:4:32", "attn_tp_rank here"),
        ("a.py:8:49", "attn_tp_rank here"),
    ]
    assert one.facts["axes"] == ["tp", "attn_tp"]
    assert one.details == ("tp_rank == 0 says attn_cp_rank == 0 already, so attn_tp_rank is what is left to ask",)
    assert one.fix == "attn_tp_rank == 0 instead of tp_rank == 0"


@pytest.mark.parametrize(
    "gate",
    [
        "ps.pp_rank == 0 and ps.attn_tp_rank == 0 and ps.attn_cp_rank == 0",
        "ps.tp_rank == 0",
        "ps.tp_rank == 0 and args.verbose",
        "ps.pp_rank == 0 and ps.tp_rank == 0",
        "ps.pp_rank == 0 and ps.tp_rank == 0 and ps.attn_cp_rank == 1",
        "ps.pp_rank == 1 and ps.tp_rank == 0 and ps.attn_cp_rank == 0",
    ],
)
def test_gates_that_say_another_thing_mean_it(gate: str) -> None:
    assert audited(SIBLINGS.format(gate=gate)) == []


@pytest.mark.parametrize(
    "gate",
    [
        "not (ps.pp_rank != 0 or ps.tp_rank != 0 or ps.attn_cp_rank != 0)",
        "args.on and ((ps.pp_rank == 0 and ps.tp_rank == 0 and ps.attn_cp_rank == 0) or args.all_ranks)",
    ],
)
def test_however_it_is_put(gate: str) -> None:
    assert [one.facts["axes"] for one in audited(SIBLINGS.format(gate=gate))] == [["tp", "attn_tp"]]


def test_one_sibling_is_no_habit() -> None:
    body = SIBLINGS.replace("self.is_rank_zero = ps.pp_rank == 0 and ps.attn_tp_rank", "self.flag = ps.moe_tp_rank")
    assert audited(body.format(gate="ps.pp_rank == 0 and ps.tp_rank == 0 and ps.attn_cp_rank == 0")) == []


def test_without_a_part_beside_it_three_siblings_have_to_say_so() -> None:
    gates = "\n".join(
        f"    def f{place}(self, ps):\n        if ps.pp_rank == 0 and ps.attn_tp_rank == 0:\n            go()\n"
        for place in range(3)
    )
    last = "    def g(self, ps):\n        if ps.pp_rank == 0 and ps.tp_rank == 0:\n            go()\n"
    (one,) = audited(f"class Scheduler:\n{gates}\n{last}")
    assert one.details == ("the rest of them is the same, so attn_tp_rank is what is left to ask",)
    assert (
        audited(f"class Scheduler:\n{gates.replace('def f2', 'def h').replace('attn_tp_rank', 'x', 1)}\n{last}") == []
    )


def test_where_no_axis_is_a_whole_nothing_is_said() -> None:
    gate = "ps.pp_rank == 0 and ps.tp_rank == 0 and ps.attn_cp_rank == 0"
    assert audited(SIBLINGS.format(gate=gate), VLLM) == []


WRITER = """
import os, torch
from pathlib import Path

LOCAL_RANK = int(os.environ["LOCAL_RANK"])
RANK = int(os.environ["RANK"])

class Trainer:
    def __init__(self, checkpoint_dir, cache_dir):
        self.checkpoint_dir, self.cache_dir = Path(checkpoint_dir), Path(cache_dir)

    def mark(self, state):
        if {gate}:
            {write}
"""


@pytest.mark.parametrize(
    "write",
    [
        'open(os.path.join(self.checkpoint_dir, "latest"), "w").write("1")',
        'torch.save(state, self.checkpoint_dir / "latest.pt")',
        '(self.checkpoint_dir / "latest").write_text("1")',
        '(self.checkpoint_dir / "latest").open("w")',
        'save_file(state, self.checkpoint_dir / "latest.safetensors")',
    ],
)
def test_one_writer_for_each_host(write: str) -> None:
    (one,) = audited(WRITER.format(gate="LOCAL_RANK == 0", write=write))
    assert one.level is Level.WARNING
    assert one.facts["axes"] == ["local_rank", "rank"]
    assert one.labels[0].span.line == 14
    assert one.details[0].startswith("with 2 hosts of 2 ranks: ranks 0 and 2 are both local rank 0, and both write ")


@pytest.mark.parametrize(
    ("gate", "write"),
    [
        ("RANK == 0", 'open(self.checkpoint_dir / "latest", "w")'),
        ("LOCAL_RANK == 0 and RANK == 0", 'open(self.checkpoint_dir / "latest", "w")'),
        ("LOCAL_RANK == 0", 'open(self.checkpoint_dir / "latest")'),
        ("LOCAL_RANK == 0", 'open(self.checkpoint_dir / f"latest-{RANK}", "w")'),
        ("LOCAL_RANK == 0", 'open(self.cache_dir / "latest", "w")'),
        ("LOCAL_RANK == 0", 'open("/tmp/checkpoint", "w")'),
        ("LOCAL_RANK == 0", 'open(self.checkpoint_dir / gethostname(), "w")'),
        ("LOCAL_RANK == 0", 'open(something, "w")'),
        ("LOCAL_RANK != 0", 'open(self.checkpoint_dir / "latest", "w")'),
        ("LOCAL_RANK == 0 or state", 'open(self.checkpoint_dir / "latest", "w")'),
    ],
)
def test_writers_that_are_right_or_may_be(gate: str, write: str) -> None:
    assert audited(WRITER.format(gate=gate, write=write)) == []
