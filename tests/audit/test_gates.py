"""Conditions about ranks, wherever they stand, and what they are about."""

from __future__ import annotations

import textwrap

import pytest

from rankbind.audit.gates import Gate, conditions, gates
from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Program
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import SGLANG, Profile, Vocabulary

NAMES = "args, pp_rank, pp_size, tp_rank, tp_size, dp_rank, rank, local_rank, ready, cache"


def meaning(profile: Profile | None = None, axes: dict[str, str] | None = None, **modules: str) -> Meaning:
    sources = [Source(f"{name}.py", name, textwrap.dedent(body).encode()) for name, body in modules.items()]
    return Meaning(Program(sources), Vocabulary(profile, axes))


def found(profile: Profile | None = None, axes: dict[str, str] | None = None, **modules: str) -> list[Gate]:
    return list(gates(meaning(profile, axes, **modules)))


def within(body: str) -> list[Gate]:
    """The gates of a function that knows where it stands."""
    return found(a=f"def start({NAMES}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n")


def kinds(body: str) -> list[tuple[str, str | None, str]]:
    return [(one.kind, one.target, one.text) for one in within(body)]


@pytest.mark.parametrize(
    ("condition", "axes", "pinned"),
    [
        ("tp_rank == 0", "tp", "tp"),
        ("0 == tp_rank", "tp", "tp"),
        ("not tp_rank", "tp", "tp"),
        ("tp_rank < 1", "tp", "tp"),
        ("tp_rank != 0", "tp", ""),
        ("tp_rank", "tp", ""),
        ("pp_rank == pp_size - 1", "pp", "pp"),
        ("tp_rank == 0 and pp_rank == 0", "tp pp", "tp pp"),
        ("tp_rank == 0 or pp_rank == 0", "tp pp", ""),
        ("tp_rank + pp_rank == 0", "tp pp", "tp pp"),
        ("(tp_rank, pp_rank) == (0, 0)", "tp pp", "tp pp"),
        ("args.metrics and (tp_rank == 0 or args.everyone)", "tp", ""),
        ("args.metrics and tp_rank == 0", "tp", "tp"),
        ("tp_rank in (0,)", "tp", "tp"),
        ("tp_rank in (0, 1)", "tp", ""),
        ("tp_rank == args.chosen", "tp", "tp"),
        ("all([tp_rank == 0, pp_rank == 0])", "tp pp", "tp pp"),
        ("rank == 0", "rank", "rank"),
        ("local_rank == 0", "local_rank", "local_rank"),
        ("dp_rank is None or dp_rank == 0", "dp", "dp"),
        ("pp_rank == 0 and pp_rank == pp_size - 1", "pp", ""),
    ],
)
def test_the_axes_of_a_condition(condition: str, axes: str, pinned: str) -> None:
    (one,) = within(f"if {condition}:\n    args.log()")
    assert " ".join(one.axes) == axes
    assert " ".join(one.pinned) == pinned


@pytest.mark.parametrize(
    "condition",
    [
        "ready",
        "args.tp_size > 1",
        "tp_rank is None",
        "tp_rank is not None",
        "tp_rank < 0",
        "tp_rank == ready.tp_rank",
        "tp_size != 1 or tp_rank < 0",
        "tp_rank in args.ranks()",
        "args.holds(tp_rank)",
        "'rank' in args.names",
    ],
)
def test_what_is_no_gate_about_the_rank_of_this_process(condition: str) -> None:
    assert within(f"if {condition}:\n    args.log()") == []


def test_where_a_condition_may_stand() -> None:
    assert kinds(
        """
        if tp_rank == 0:
            args.log()
        elif pp_rank == 0:
            args.log()
        while ready and tp_rank == 0:
            args.log()
        assert tp_rank == 0
        args.name = "a" if tp_rank == 0 else "b"
        match tp_rank:
            case 0:
                args.log()
        """
    ) == [
        ("if", None, "tp_rank == 0"),
        ("if", None, "pp_rank == 0"),
        ("while", None, "ready and (tp_rank == 0)"),
        ("assert", None, "tp_rank == 0"),
        ("ifexp", None, "tp_rank == 0"),
        ("match", None, "tp_rank == 0"),
    ]


def test_what_a_condition_may_become() -> None:
    assert kinds(
        """
        writes = tp_rank == 0
        args.writes = writes
        args.open(enabled=writes, both=writes and pp_rank == 0)
        args.close(not writes)
        if writes:
            args.log()
        return writes
        """
    ) == [
        ("assign", "writes", "tp_rank == 0"),
        ("assign", "args.writes", "tp_rank == 0"),
        ("keyword", "enabled", "tp_rank == 0"),
        ("keyword", "both", "(tp_rank == 0) and (pp_rank == 0)"),
        ("argument", None, "not (tp_rank == 0)"),
        ("if", None, "tp_rank == 0"),
        ("return", None, "tp_rank == 0"),
    ]


def test_a_rank_that_is_handed_on_is_no_condition() -> None:
    assert kinds("mine = tp_rank\nargs.open(tp_rank, rank=pp_rank)\nreturn dp_rank or 0") == []


def test_a_condition_is_followed_into_the_attribute_the_predicate_and_the_parameter() -> None:
    said = found(
        a="""
        from b import Writer

        class Engine:
            def __init__(self, tp_rank, pp_rank):
                self.leads = tp_rank == 0
                self.pp_rank = pp_rank
                self.writer = Writer(self.serves())

            def serves(self):
                return self.leads and self.pp_rank == 0

            def step(self):
                if self.leads:
                    self.work()
        """,
        b="""
        class Writer:
            def __init__(self, enabled):
                self.enabled = enabled

            def write(self, text):
                if not self.enabled:
                    return
                self.file.write(text)
        """,
    )
    both = "(tp_rank == 0) and (pp_rank == 0)"
    assert [(one.function, one.kind, one.target, one.text) for one in said] == [
        ("Engine.__init__", "assign", "self.leads", "tp_rank == 0"),
        ("Engine.__init__", "argument", "enabled", both),
        ("Engine.serves", "return", None, both),
        ("Engine.step", "if", None, "tp_rank == 0"),
        ("Writer.__init__", "assign", "self.enabled", both),
        ("Writer.write", "if", None, f"not ({both})"),
    ]


def test_a_predicate_that_answers_in_several_returns() -> None:
    said = found(
        a="""
        def owns(tp_rank):
            if tp_rank != 0:
                return False
            return True

        def start(tp_rank):
            if owns(tp_rank):
                serve()
        """
    )
    assert [(one.function, one.kind, one.pinned) for one in said] == [("owns", "if", ()), ("start", "if", ("tp",))]


def test_the_field_of_a_data_class_holds_what_it_is_made_with() -> None:
    said = found(
        a="""
        from dataclasses import dataclass

        @dataclass
        class Channels:
            leading: bool

            def open(self):
                if self.leading:
                    self.socket = bind()

        def start(tp_rank):
            return Channels(leading=tp_rank == 0)
        """
    )
    assert [(one.function, one.kind, one.target) for one in said] == [
        ("Channels.open", "if", None),
        ("start", "keyword", "leading"),
    ]


def test_a_name_counts_where_its_value_is_out_of_sight() -> None:
    (one,) = within("pp_rank = args.stage()\nif pp_rank == 0:\n    args.log()")
    assert one.axes == ("pp",)


def test_the_rank_in_a_group_that_is_not_known() -> None:
    (one,) = found(
        a="""
        import torch.distributed as dist

        def send(group):
            if dist.get_rank(group) == 0:
                dist.broadcast(group=group)
        """
    )
    assert (one.axes, one.pinned, one.text) == ((), (), "dist.get_rank(group) == 0")


def test_an_axis_that_is_the_product_of_others_is_one_of_its_own() -> None:
    (one,) = found(SGLANG, a="def f(tp_rank, attn_cp_rank):\n    return tp_rank == 0 and attn_cp_rank == 0\n")
    assert one.axes == ("tp", "attn_cp")


def test_names_that_the_settings_add() -> None:
    (one,) = found(axes={"my_stage": "pp"}, a="def f(my_stage):\n    if my_stage == 0:\n        serve()\n")
    assert one.pinned == ("pp",)


def test_the_span_is_the_condition() -> None:
    (one,) = found(a="def f(tp_rank):\n    ready = (\n        tp_rank == 0\n    )\n")
    assert str(one.span) == "a.py:3:9"


def test_they_come_in_the_order_of_the_lines_each_once() -> None:
    said = found(
        b="def g(self, tp_rank):\n    self.a = tp_rank == 0\n    if self.a:\n        pass\n",
        a="def f(tp_rank):\n    while tp_rank == 0:\n        if tp_rank == 0:\n            break\n",
    )
    assert [str(one.span) for one in said] == ["a.py:2:11", "a.py:3:12", "b.py:2:14", "b.py:3:8"]


def test_modules_that_name_no_rank_are_not_parsed() -> None:
    program = meaning(a="x = (", b="def f(tp_rank):\n    return tp_rank == 0\n")
    assert len(conditions(program)) == 1
    assert program.program.broken == {}


def test_only_some_modules() -> None:
    program = meaning(a="def f(tp_rank):\n    return tp_rank == 0\n", b="def g(pp_rank):\n    return pp_rank == 0\n")
    module = program.program.module(program.program.sources[1])
    assert module is not None
    assert [one.function for one in gates(program, [module])] == ["g"]


def test_a_condition_with_what_it_becomes() -> None:
    (one, _) = conditions(
        meaning(a="def f(tp_rank):\n    g(on=tp_rank == 0)\n\ndef g(on):\n    if on:\n        serve()\n")
    )
    assert one.into is not None
    assert (one.into.name, one.function.qualified, one.gate.target) == ("on", "f", "on")
