"""Collectives that some ranks of their group reach and others do not."""

from __future__ import annotations

import textwrap

import pytest

from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Program
from rankbind.audit.rules import collective
from rankbind.audit.rules.collective import findings
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import SGLANG, Profile, Vocabulary
from rankbind.finding import Finding, Level


def audited(*bodies: str, profile: Profile | None = None, **modules: str) -> list[Finding]:
    """What is found in files ``a.py``, ``b.py``, ..., each of which imports torch.distributed."""
    named = dict(zip("abcdef", bodies, strict=False)) | modules
    sources = [
        Source(f"{name}.py", name, ("import torch.distributed as dist\n" + textwrap.dedent(body)).encode())
        for name, body in named.items()
    ]
    return list(findings(Meaning(Program(sources), Vocabulary(profile))))


def told(*bodies: str, profile: Profile | None = None) -> list[str]:
    return [
        f"{one.facts['collective']} {one.facts['group']} {' '.join(one.facts['axes'])}"
        for one in audited(*bodies, profile=profile)
    ]


def test_the_finding_shows_the_call_the_gate_and_two_ranks() -> None:
    (one,) = audited("""
        def save(model):
            if dist.get_rank() == 0:
                model.write()
                dist.barrier()
    """)
    assert one.code == "RB704"
    assert one.level is Level.ERROR
    assert (
        one.message
        == "collective: barrier on the world is reached only where rank == 0; with 2 ranks, rank 1 never joins"
    )
    assert [(str(label.span), label.text) for label in one.labels] == [
        ("a.py:6:9", "not every rank of the world joins"),
        ("a.py:4:8", "the gate: rank == 0"),
    ]
    assert one.details == ("with 2 ranks: rank 0 waits in barrier, rank 1 does not come",)
    assert one.fix == "call barrier on every rank of the world, and gate only what one of them does alone"
    assert one.facts == {
        "collective": "barrier",
        "group": "rank",
        "function": "save",
        "axes": ["rank"],
        "topology": {"rank": 2},
        "ranks": [0, 1],
        "gate": "rank == 0",
    }


GATED = {
    "an early return": """
        def f(x, tp_rank, tp_group):
            if tp_rank != 0:
                return
            dist.all_reduce(x, group=tp_group)
    """,
    "a flag": """
        class A:
            def __init__(self, tp_rank, tp_group):
                self.leads, self.tp_group = tp_rank == 0, tp_group
                self.speaks = tp_rank == 0

            def f(self, x):
                if self.speaks:
                    dist.all_reduce(x, group=self.tp_group)
    """,
    "a flag of the function": """
        def f(x, tp_rank, tp_group):
            speaks = tp_rank == 0
            if speaks:
                dist.all_reduce(x, group=tp_group)
    """,
    "a loop goes on": """
        def f(xs, tp_rank, tp_group):
            for x in xs:
                if tp_rank > 0:
                    continue
                dist.all_reduce(x, group=tp_group)
    """,
    "a predicate": """
        def is_rank_zero():
            return get_tp_group().rank_in_group == 0

        def f(x):
            if is_rank_zero():
                dist.all_reduce(x, group=get_tp_group().device_group)
    """,
    "a condition over lines": """
        def f(x, tp_rank, pp_rank, tp_group, verbose):
            if (
                verbose
                and tp_rank == 0
            ):
                x = x + 1
                dist.all_reduce(x, group=tp_group)
    """,
    "one branch of two": """
        def f(x, tp_rank, tp_group):
            if tp_rank == 0:
                x = x + 1
            else:
                dist.all_reduce(x, group=tp_group)
    """,
    "by position": """
        def f(x, tp_rank, tp_group):
            if tp_rank == 0:
                dist.all_reduce(x, dist.ReduceOp.SUM, tp_group)
    """,
    "a coordinator": """
        def f(x, tp_rank):
            if tp_rank == 0:
                get_tp_group().all_reduce(x)
    """,
    "a group that was kept": """
        class A:
            def __init__(self, tp_rank, tp_group):
                self.tp_rank = tp_rank
                self.channel = tp_group

            def f(self, x):
                if self.tp_rank == 0:
                    dist.all_reduce(x, group=self.channel)
    """,
    "a sum of all besides": """
        def f(x, tp_rank, tp_group):
            if tp_rank == 0:
                dist.all_reduce(x, group=tp_group)
            dist.all_reduce(x, group=tp_group)
    """,
    "another collective on another group": """
        def f(x, tp_rank, tp_group, pp_group):
            if tp_rank == 0:
                dist.all_reduce(x, group=tp_group)
            else:
                dist.all_reduce(x, group=pp_group)
    """,
    "where a switch says so": """
        def f(x, tp_rank, tp_group, on):
            if on and tp_rank == 0:
                dist.all_reduce(x, group=tp_group)
            if not on and tp_rank != 0:
                dist.all_reduce(x, group=tp_group)
    """,
    "the others raise nothing": """
        def f(x, tp_rank, tp_size, tp_group):
            if tp_rank >= tp_size:
                raise ValueError(tp_rank)
            if tp_rank == 0:
                dist.all_reduce(x, group=tp_group)
    """,
}


@pytest.mark.parametrize("body", GATED.values(), ids=GATED)
def test_some_members_never_join(body: str) -> None:
    assert set(told(body)) == {"all_reduce tp tp"}


WHOLE = {
    "the group is behind the gate as a whole": """
        def f(x, tp_rank, pp_rank, pp_group):
            if tp_rank == 0:
                dist.all_reduce(x, group=pp_group)
    """,
    "both branches": """
        def f(x, tp_rank, tp_group):
            if tp_rank == 0:
                dist.broadcast(x, 0, group=tp_group)
            else:
                y = x + 1
                dist.broadcast(y, 0, group=tp_group)
    """,
    "a return, and the others after it": """
        def f(x, tp_rank, tp_group):
            if tp_rank == 0:
                dist.broadcast(x, 0, group=tp_group)
                return x
            dist.broadcast(x, 0, group=tp_group)
            return x
    """,
    "first the others": """
        def f(load):
            local_rank = int(os.environ["LOCAL_RANK"])
            if local_rank != 0:
                dist.barrier()
            load()
            if local_rank == 0:
                dist.barrier()
    """,
    "a helper in the other branch": """
        def receive(x, tp_group):
            dist.broadcast(x, 0, group=tp_group)

        def f(x, tp_rank, tp_group):
            if tp_rank == 0:
                dist.broadcast(x, 0, group=tp_group)
            else:
                receive(x, tp_group)
    """,
    "something of that name in the other branch": """
        class A:
            def receive(self, x):
                dist.broadcast(x, 0)

        def f(x, worker):
            if dist.get_rank() == 0:
                dist.broadcast(x, 0)
            else:
                worker.receive(x)
    """,
    "what an heir may do in the other branch": """
        class A:
            def receive(self, x):
                raise NotImplementedError

            def f(self, x):
                if dist.get_rank() == 0:
                    dist.broadcast(x, 0)
                else:
                    self.receive(x)

        class B(A):
            def receive(self, x):
                dist.broadcast(x, 0)
    """,
    "the caller has the others join": """
        def publish(x):
            if dist.get_rank() == 0:
                dist.broadcast(x, 0)

        def f(x):
            publish(x)
            if dist.get_rank() != 0:
                dist.broadcast(x, 0)
    """,
    "the others serve in a loop": """
        def publish(x):
            if dist.get_rank() == 0:
                dist.broadcast_object_list([x], 0)

        def serve():
            if dist.get_rank() != 0:
                while True:
                    dist.broadcast_object_list([None], 0)
    """,
    "several ranks": """
        def f(x, tp_rank, tp_size, tp_group):
            if tp_size == 1:
                return x
            dist.all_reduce(x, group=tp_group)
    """,
    "a switch": """
        def f(x, tp_rank, tp_group, on):
            rank = tp_rank
            if on:
                dist.all_reduce(x, group=tp_group)
    """,
    "a group that nobody knows": """
        def f(x, rank, group):
            if rank == 0:
                dist.all_reduce(x, group=group)
    """,
    "a test of which nothing is known": """
        def f(x, tp_group):
            if is_my_turn_as_leader(x):
                dist.all_reduce(x, group=tp_group)
    """,
    "each rank in turn": """
        def f(x, n):
            rank = dist.get_rank()
            for turn in range(n):
                if turn == rank:
                    dist.barrier()
    """,
    "a rank that there is not": """
        def f(x):
            if dist.get_rank() != 0:
                raise RuntimeError("run me on one rank")
            dist.barrier()
    """,
    "a rank that there is not, and another gate": """
        def f(x, tp_rank, dp_rank, tp_group):
            if tp_rank != 0:
                raise RuntimeError("run me without tensor parallelism")
            if dp_rank == 0:
                dist.all_reduce(x, group=tp_group)
    """,
    "asserted": """
        def f(x):
            assert dist.get_rank() == 0
            dist.barrier()
    """,
    "from one to one": """
        def f(x, pp_rank, pp_group):
            if pp_rank == 0:
                dist.send(x, 1, group=pp_group)
            else:
                dist.recv(x, 0, group=pp_group)
    """,
    "only members make the group": """
        def f(ranks):
            if dist.get_rank() == 0:
                dist.new_group([0], use_local_synchronization=True)
    """,
    "made once, by whoever needs it first": """
        _pool = None

        def pool():
            global _pool
            if _pool is None:
                dist.barrier()
                _pool = object()
            return _pool

        def f(pp_rank):
            if pp_rank == 0:
                pool()

        def g():
            pool()
    """,
    "a test says that it fails": """
        class Test:
            def f(self):
                if self.rank == 0:
                    with self.assertRaisesRegex(RuntimeError, "failed to pass"):
                        dist.monitored_barrier()
    """,
    "a tensor's own": """
        def f(x, tp_rank, index):
            if tp_rank == 0:
                x = x.gather(0, index)
                return torch.scatter(x, 0, index, x)
    """,
}


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
def test_everybody_joins_or_nobody_can_tell(body: str) -> None:
    assert told(body) == []


def test_the_gate_is_said_as_a_reader_would() -> None:
    (one,) = audited(GATED["an early return"])
    assert one.message == (
        "collective: all_reduce on the tp group is reached only where tp_rank == 0; with tp=2, rank 1 never joins"
    )


class TestHelpers:
    HELPER = """
        def agree(value, group):
            dist.broadcast_object_list(value, 0, group=group)
    """

    def test_the_group_is_what_the_caller_hands_in(self) -> None:
        caller = """
            from a import agree

            def f(value, pp_rank, pp_group, tp_group):
                if pp_rank == 0:
                    agree(value, {})
        """
        assert told(self.HELPER, caller.format("pp_group")) == ["broadcast_object_list pp pp"]
        assert told(self.HELPER, caller.format("tp_group")) == []
        assert told(self.HELPER, caller.format("group=pp_group")) == ["broadcast_object_list pp pp"]
        assert told(self.HELPER, caller.format("None")) == ["broadcast_object_list rank pp"]

    def test_it_is_followed_through_several(self) -> None:
        (one,) = audited(
            self.HELPER,
            """
            from a import agree

            def settle(value, group):
                agree(value, group)
            """,
            """
            from b import settle

            def f(value, pp_rank, pp_group):
                if pp_rank == 0:
                    settle(value, pp_group)
            """,
        )
        assert [str(label.span) for label in one.labels] == ["a.py:4:5", "c.py:7:9", "c.py:6:8"]
        assert one.details == (
            "with pp=2: rank 0 waits in broadcast_object_list (through settle, agree), rank 1 does not come",
        )

    def test_it_is_called_in_both_branches(self) -> None:
        assert not told(
            self.HELPER,
            """
            from a import agree

            def f(value, pp_rank, pp_group):
                if pp_rank == 0:
                    agree(value, pp_group)
                else:
                    agree([None], pp_group)
            """,
        )

    def test_a_gate_is_handed_in(self) -> None:
        assert told("""
            def write(x, master_rank: bool, tp_group):
                if master_rank:
                    dist.barrier(tp_group)

            def f(x, tp_rank, tp_group):
                write(x, tp_rank == 0, tp_group)
        """) == ["barrier tp tp"]

    def test_one_serves_in_a_loop_whom_another_module_asks(self) -> None:
        assert not told(
            """
            def serve():
                while True:
                    dist.broadcast_object_list([None], 0)
            """,
            """
            from a import serve

            def f(app):
                if dist.get_rank() != 0:
                    serve()
                app.run()
            """,
        )


class TestGroups:
    def test_the_world_is_every_axis(self) -> None:
        body = """
            def f(tp_rank, pp_rank):
                if tp_rank == 0 and pp_rank == 0:
                    dist.barrier()
        """
        assert told(body) == ["barrier rank pp tp"]

    def test_a_new_group_is_made_by_the_world(self) -> None:
        body = """
            def f(tp_rank):
                if tp_rank == 0:
                    return dist.new_group([0, 1])
        """
        assert told(body) == ["new_group rank tp"]

    def test_an_axis_is_made_of_others(self) -> None:
        body = """
            def f(x, attn_tp_rank, tp_group):
                if attn_tp_rank == 0:
                    dist.all_reduce(x, group=tp_group)
        """
        assert told(body, profile=SGLANG) == ["all_reduce tp attn_tp"]

    def test_a_part_is_behind_the_gate_of_the_other(self) -> None:
        body = """
            def f(x, attn_dp_rank, attn_tp_group):
                if attn_dp_rank == 0:
                    dist.all_reduce(x, group=attn_tp_group)
        """
        assert not told(body, profile=SGLANG)

    def test_a_rank_that_is_configured_is_a_warning(self) -> None:
        (one,) = audited("""
            def f(x, tp_rank, config, tp_group):
                if tp_rank == config.reporting:
                    dist.broadcast(x, 0, group=tp_group)
        """)
        assert one.level is Level.WARNING


class TestLibraries:
    @pytest.mark.parametrize(
        ("gate", "call", "axis"),
        [
            ("accelerator.is_main_process", "accelerator.wait_for_everyone()", "rank"),
            ("accelerator.is_main_process", "accelerator.gather(x)", "rank"),
            ("accelerator.is_local_main_process", "accelerator.wait_for_everyone()", "local_rank"),
            ("trainer.is_global_zero", "trainer.save_checkpoint(path)", "rank"),
            ("fabric.global_rank == 0", "fabric.barrier()", "rank"),
            ("trainer.global_rank == 0", "trainer.strategy.barrier()", "rank"),
        ],
    )
    def test_a_collective_in_a_call(self, gate: str, call: str, axis: str) -> None:
        body = f"""
            def f(accelerator, trainer, fabric, x, path):
                if {gate}:
                    {call}
        """
        (one,) = audited(body)
        assert one.facts["axes"] == [axis]
        assert not audited(body.replace(gate, "x is not None"))

    def test_a_decorator_is_a_gate(self) -> None:
        (one,) = audited("""
            class Callback:
                @rank_zero_only
                def on_end(self, trainer, path):
                    trainer.save_checkpoint(path)
        """)
        assert [str(label.span) for label in one.labels] == ["a.py:6:9", "a.py:4:6"]


class TestText:
    """A file is parsed only if something in it looks like it."""

    @pytest.mark.parametrize(
        "body",
        [
            "def f(x):\n    dist.barrier()\n",
            "def f(x, on):\n    if on:\n        dist.barrier()\n",
            "def f(rank):\n    if rank == 0:\n        print(rank)\n    dist.barrier()\n",
            "def f(rank):\n    if rank == 0:\n        return 1\n\ndef g():\n    dist.barrier()\n",
            "def f(x, lora_rank):\n    if lora_rank is not None:\n        dist.barrier()\n",
        ],
    )
    def test_what_no_gate_is_above_is_not_parsed(self, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def parse(self: Program, source: Source) -> None:
            raise AssertionError(source.name)

        monkeypatch.setattr(Program, "module", parse)
        assert not told(body)

    def test_a_script_without_functions(self) -> None:
        assert told("rank = dist.get_rank()\nif rank == 0:\n    dist.barrier()\n") == ["barrier rank rank"]

    def test_what_cannot_be_parsed_has_no_finding(self) -> None:
        assert not told("def f(rank):\n    if rank == 0:\n        dist.barrier()\n    (\n")


def test_without_the_others_both_branches_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps matching branches quiet is the search for the others, and nothing else."""
    pair = collective._pair
    monkeypatch.setattr(collective, "_pair", lambda gate, others, *rest: pair(gate, (), *rest))
    for name in ("both branches", "a return, and the others after it", "a helper in the other branch"):
        assert told(WHOLE[name]), name


def test_without_the_callers_a_split_pair_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective._Rule, "_answered", lambda *_: False)
    for name in ("the caller has the others join", "the others serve in a loop"):
        assert told(WHOLE[name]), name
