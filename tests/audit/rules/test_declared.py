"""What is declared with singleton_per, and gated by hand as well."""

from __future__ import annotations

import textwrap

import pytest

from rankbind.audit.declarations import declared, gate
from rankbind.audit.expression import text
from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Program
from rankbind.audit.rules.declared import findings
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import Vocabulary
from rankbind.finding import Finding, Level


def meaning(**modules: str) -> Meaning:
    sources = [Source(f"{name}.py", name, textwrap.dedent(body).encode()) for name, body in modules.items()]
    return Meaning(Program(sources), Vocabulary())


def audited(declaration: str, use: str = "", body: str = "return open_bus(port)") -> list[Finding]:
    """What is found in a use of ``bus``, which is declared so."""
    program = f"from rankbind import singleton_per\n\n{declaration}\ndef bus(port):\n{textwrap.indent(body, '    ')}\n"
    return list(findings(meaning(a=program + textwrap.dedent(use))))


PP_TP = '@singleton_per(group=("pp", "tp"), rank=0)'


def under(gate: str, declaration: str = PP_TP) -> list[Finding]:
    return audited(
        declaration,
        f"""
        def start(args, pp_rank, pp_size, tp_rank, tp_size, dp_rank, rank, local_rank, ready):
            if {gate}:
                return bus(args.port)
        """,
    )


@pytest.mark.parametrize(
    ("gate", "level"),
    [
        ("tp_rank == 0 and pp_rank == 0", Level.NOTE),
        ("not (tp_rank != 0 or pp_rank != 0)", Level.NOTE),
        ("args.port and tp_rank == 0 and pp_rank == 0", Level.NOTE),
        ("tp_rank == 0", Level.WARNING),
        ("tp_rank == 0 or args.everywhere", Level.WARNING),
        ("pp_rank == pp_size - 1", Level.ERROR),
        ("tp_rank == 1 and pp_rank == 0", Level.ERROR),
        ("tp_rank == 0 and pp_rank == 0 and dp_rank == 0", Level.ERROR),
        ("tp_rank != 0", Level.ERROR),
    ],
)
def test_a_gate_by_hand_is_compared_with_the_declaration(gate: str, level: Level) -> None:
    (one,) = under(gate)
    assert one.code == "RB706"
    assert one.level is level


@pytest.mark.parametrize("gate", ["args.port", "ready()", "args.tp_size > 1", "True"])
def test_what_is_the_same_on_every_rank_is_no_gate(gate: str) -> None:
    assert under(gate) == []


def test_the_finding_shows_the_call_the_gate_the_declaration_and_a_rank() -> None:
    (one,) = under("pp_rank == pp_size - 1")
    assert one.message == (
        "bus is declared (rank 0 of each (pp, tp) group) and gated by pp_rank as well: its owner does not get there"
    )
    assert [(str(label.span), label.text) for label in one.labels] == [
        ("a.py:9:16", "bus is asked for here"),
        ("a.py:8:8", "the gate: pp_rank == (pp_size - 1)"),
        ("a.py:3:2", "the declaration"),
    ]
    assert one.details == ("with pp=3 x tp=3: rank 0 (pp 0, tp 0) owns bus and does not pass the gate",)
    assert one.facts["axes"] == ["pp"]
    assert one.facts["declared"] == {"group": ["pp", "tp"], "rank": 0}
    assert one.fix is not None
    assert "take pp_rank out of the condition" in one.fix


@pytest.mark.parametrize(
    ("declaration", "gate", "level"),
    [
        ('@singleton_per(group="tp", rank=-1)', "tp_rank == tp_size - 1", Level.NOTE),
        ('@singleton_per(group="tp", rank=-1)', "tp_rank == 0", Level.ERROR),
        ('@singleton_per(group="tp", rank=1)', "tp_rank == 1", Level.NOTE),
        ('@singleton_per(group="tp", rank=-2)', "tp_rank == tp_size - 2", Level.NOTE),
        ('@singleton_per(group="world")', "rank == 0", Level.NOTE),
        ('@singleton_per(group="world")', "local_rank == 0", Level.WARNING),
        ('@singleton_per(group="host")', "local_rank == 0", Level.NOTE),
        ('@singleton_per(group="host")', "local_rank == 1", Level.ERROR),
        ('@singleton_per(group="host")', "tp_rank == 0", Level.WARNING),
        ('@singleton_per("kv-events")', "tp_rank == 0", Level.WARNING),
        ("@singleton_per(group=axes())", "tp_rank == 0", Level.WARNING),
        ('@singleton_per(group="tp", rank="any", name="bus")', "tp_rank != 0", Level.WARNING),
        ('@singleton_per(group="tp", rank="any", name="bus")', "dp_rank == 0", Level.ERROR),
    ],
)
def test_every_form_of_declaration(declaration: str, gate: str, level: Level) -> None:
    (one,) = under(gate, declaration)
    assert one.level is level


def test_a_gate_may_stand_anywhere_on_the_way() -> None:
    found = audited(
        PP_TP,
        """
        class Worker:
            def __init__(self, tp_rank, port):
                self.is_leader = tp_rank == 0
                self.port = port

            def run(self):
                if not self.is_leader:
                    return
                self.start()

            def start(self):
                self.bus = bus(self.port)
        """,
    )
    assert [one.facts["axes"] for one in found] == [["tp"]]


@pytest.mark.parametrize(
    "body",
    [
        "if tp_rank() != 0:\n    return None\nreturn open_bus(port)",
        '"""One bus."""\nimport zmq\nif parallel.tp_rank == 0:\n    return zmq.Bus(port)',
        "if parallel.tp_rank == 0:\n    return open_bus(port)\nreturn None",
    ],
)
def test_a_gate_may_be_the_first_thing_inside(body: str) -> None:
    found = audited(PP_TP, body=body.replace("tp_rank()", "get_tp_rank()"))
    assert [(one.level, one.labels[0].text) for one in found] == [(Level.WARNING, "the gate by hand")]


def test_what_is_done_by_rank_inside_is_no_gate() -> None:
    assert audited(PP_TP, body="if parallel.pp_rank == 1:\n    port += 1\nreturn open_bus(port)") == []


@pytest.mark.parametrize(
    "use",
    [
        "record = bus.owned and parallel.tp_rank == 0",
        "if bus.owned and parallel.tp_rank == 0:\n    record()",
        "if parallel.tp_rank == 0:\n    if bus.owned:\n        record()",
    ],
)
def test_owned_is_enough_by_itself(use: str) -> None:
    found = audited(PP_TP, f"\ndef start():\n{textwrap.indent(use, '    ')}\n")
    assert [(one.level, one.labels[0].text) for one in found] == [(Level.WARNING, "bus is asked for here")]
    assert audited(PP_TP, "\ndef start(args):\n    return args.port and bus.owned\n") == []


def test_classes_methods_and_declarations_that_have_a_name() -> None:
    found = list(
        findings(
            meaning(
                a="""
                    import rankbind

                    per_stage = rankbind.singleton_per(group="tp")

                    @rankbind.singleton_per(group="tp")
                    class Bus:
                        def __init__(self, port):
                            self.port = port
                    """,
                b="""
                    from a import Bus, per_stage

                    class Worker:
                        @per_stage
                        def listen(self):
                            return serve()

                        def start(self, pp_rank):
                            if pp_rank == 0:
                                self.bus = Bus(5557)
                                self.listen()
                    """,
            )
        )
    )
    assert sorted((one.facts["resource"], str(one.labels[0].span)) for one in found) == [
        ("Bus", "b.py:11:24"),
        ("listen", "b.py:12:13"),
    ]


def test_others_decorators_are_nobodys_declaration() -> None:
    program = meaning(a="@singleton(group='tp')\ndef bus(): ...\n", b="@once\nclass Bus: ...\n")
    assert list(declared(program)) == []


def test_a_declaration_is_a_condition() -> None:
    program = meaning(
        a="""
            from rankbind import singleton_per as once_in

            @once_in(group=("pp", "tp"))
            class Bus:
                def listen(self): ...

            @once_in(group="tp", rank=2)
            def other(): ...

            def nothing(): ...
            """
    )
    (module,) = (program.program.module(source) for source in program.program.sources)
    assert module is not None
    assert {one.name: text(gate(program, one)) for one in module.functions[1:]} == {
        "listen": "(pp_rank == 0) and (tp_rank == 0)",
        "other": "tp_rank == 2",
        "nothing": "True",
    }
