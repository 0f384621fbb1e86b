"""Gates about one thing that let different ranks pass, and what is recorded where nothing takes it."""

from __future__ import annotations

import textwrap

import pytest

from rankbind.audit.gates import conditions
from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Program
from rankbind.audit.rules.disagree import findings
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import SGLANG, VLLM, Profile, Vocabulary
from rankbind.finding import Finding, Level


def audited(profile: Profile | None = None, **modules: str) -> list[Finding]:
    sources = [Source(f"{name}.py", name, textwrap.dedent(body).encode()) for name, body in modules.items()]
    meaning = Meaning(Program(sources), Vocabulary(profile))
    return list(findings(meaning, conditions(meaning)))


def two(first: str, second: str, profile: Profile | None = None) -> list[Finding]:
    """What is found in two flags of one object."""
    return audited(
        profile,
        a=f"""
        class Scheduler:
            def __init__(self, args, ps, pp_rank, pp_size, tp_rank, attn_tp_rank, attn_cp_rank, attn_dp_rank):
                self.counts = {first}
                self.serves = {second}
        """,
    )


def told(found: list[Finding]) -> list[str]:
    return [f"{one.code} {' '.join(one.facts['axes'])}" for one in found]


class TestSitesThatDisagree:
    def test_the_finding_shows_both_gates_and_a_rank_that_passes_one(self) -> None:
        (one,) = two("args.kv_events and tp_rank == 0", "args.kv_events and tp_rank == 0 and pp_rank == 0")
        assert one.code == "RB702"
        assert one.level is Level.WARNING
        assert one.message == "counts and serves both ask for kv_events, and only the second pins pp"
        assert [(str(label.span), label.text) for label in one.labels] == [
            ("a.py:4:23", "pp not pinned: kv_events and (tp_rank == 0)"),
            ("a.py:5:23", "pinned: kv_events and (tp_rank == 0) and (pp_rank == 0)"),
        ]
        assert one.details == ("with pp=3: rank 1 (pp 1) passes the first and not the second",)
        assert one.fix is not None
        assert one.facts == {
            "axes": ["pp"],
            "options": ["kv_events"],
            "sites": ["counts", "serves"],
            "functions": ["Scheduler.__init__", "Scheduler.__init__"],
            "gates": ["kv_events and (tp_rank == 0)", "kv_events and (tp_rank == 0) and (pp_rank == 0)"],
        }

    @pytest.mark.parametrize(
        ("first", "second", "axes"),
        [
            ("args.kv_events and pp_rank == 0", "args.kv_events and pp_rank == 0 and tp_rank == 0", "tp"),
            ("args.kv_events and pp_rank == 0", "args.kv_events and pp_rank == pp_size - 1", "pp"),
            (
                "args.use_bus and (tp_rank == 0 or args.use_all)",
                "args.use_bus and ((tp_rank == 0 and pp_rank == 0) or args.use_all)",
                "pp",
            ),
        ],
    )
    def test_axes_that_one_of_them_pins(self, first: str, second: str, axes: str) -> None:
        assert told(two(first, second)) == [f"RB702 {axes}"]

    def test_the_wider_comes_first_wherever_it_stands(self) -> None:
        (one,) = two("args.kv_events and tp_rank == 0 and pp_rank == 0", "args.kv_events and tp_rank == 0")
        assert str(one.labels[0].span) == "a.py:5:23"

    def test_the_first_of_an_axis_and_the_first_of_its_parts(self) -> None:
        """SGLang issue 16030: recorded on tp 0, published on attn_tp 0."""
        found = two("args.kv_events and tp_rank == 0", "args.kv_events and attn_tp_rank == 0", SGLANG)
        assert told(found) == ["RB702 attn_dp attn_cp"]
        assert str(found[0].labels[0].span) == "a.py:5:23"

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (
                "args.kv_events and tp_rank == 0",
                "args.kv_events and attn_tp_rank == 0 and attn_cp_rank == 0 and attn_dp_rank == 0",
            ),
            ("args.kv_events and pp_rank == 0", "bool(args.kv_events and not pp_rank > 0)"),
            ("args.kv_events and pp_rank == 0", "ps.kv_events and pp_rank < 1"),
        ],
    )
    def test_one_gate_in_two_spellings(self, first: str, second: str) -> None:
        assert two(first, second, SGLANG) == []

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("tp_rank == 0", "tp_rank == 0 and pp_rank == 0"),
            ("args.kv_events and tp_rank == 0", "args.metrics_port and tp_rank == 0 and pp_rank == 0"),
            ("args.kv_events and tp_rank == 0", "args.kv_events and args.replay_port and pp_rank == 0"),
            ("args.debug and tp_rank == 0", "args.debug and pp_rank == 0 and tp_rank == 0"),
            ("args.kv_events", "args.kv_events and tp_rank == 0"),
            ("args.kv_events and tp_rank != 0", "args.kv_events and tp_rank == 0"),
            ("args.kv_events and ps.ready(1)", "args.kv_events and tp_rank == 0"),
        ],
        ids=["no option", "another", "one more", "a common word", "no rank", "the others", "something else"],
    )
    def test_what_need_not_agree(self, first: str, second: str) -> None:
        assert two(first, second) == []

    def test_an_if_counts_where_something_is_made_under_it(self) -> None:
        body = """
        class Recorder:
            def __init__(self, args, tp_rank, pp_rank):
                self.records = args.stats_port and tp_rank == 0 and pp_rank == 0

        class Reporter:
            def __init__(self, args, tp_rank):
                self.socket = None
                if args.stats_port and tp_rank == 0:
                    {}
        """
        assert told(audited(a=body.format("self.socket = connect(args.stats_port)"))) == ["RB702 pp"]
        assert audited(a=body.format("print(args.stats_port)")) == []

    def test_across_files_and_through_a_predicate(self) -> None:
        found = audited(
            a="""
            from b import publishes

            class Publisher:
                def __init__(self, args, tp_rank, pp_rank):
                    self.enabled = publishes(args.kv_events, tp_rank, pp_rank)
            """,
            b="def publishes(kv_events, tp_rank, pp_rank):\n    return kv_events and tp_rank == 0 and pp_rank == 0\n",
            c="def build(args, tp_rank):\n    return Cache(records=args.kv_events and tp_rank == 0)\n",
        )
        assert told(found) == ["RB702 pp"]
        assert [label.span.file for label in found[0].labels] == ["c.py", "a.py"]
        assert found[0].facts["sites"] == ["records", "enabled"]

    def test_the_place_is_where_the_condition_is_spelled_out(self) -> None:
        (one,) = audited(
            a="""
            class Link:
                def __init__(self, active):
                    self.active = active

            def start(args, tp_rank, pp_rank):
                Link(active=args.kv_events and tp_rank == 0)
                count(enabled=args.kv_events and tp_rank == 0 and pp_rank == 0)
            """
        )
        assert [label.span.line for label in one.labels] == [7, 8]

    def test_one_finding_for_each_site_that_is_too_wide(self) -> None:
        found = audited(
            a="""
            def start(args, tp_rank, pp_rank):
                first = args.kv_events and tp_rank == 0
                second = args.kv_events and pp_rank == 0 and tp_rank == 0
                third = args.kv_events and tp_rank == 0
            """
        )
        assert [str(one.labels[0].span) for one in found] == ["a.py:3:13"]

    def test_processes_of_different_kinds_need_not_agree(self) -> None:
        found = audited(
            VLLM,
            **{
                "vllm.v1.engine.core": "def f(args, dp_rank):\n    records = args.kv_events and dp_rank == 0\n",
                "vllm.v1.worker.gpu": "def g(args, tp_rank):\n    records = args.kv_events and tp_rank == 0\n",
            },
        )
        assert found == []


class TestWhatIsMadeElsewhere:
    BODY = """
    class Trainer:
        def __init__(self, args, rank, world_size):
            self.rank = rank
            self.world_size = world_size
            self.writer = None
            if args.tensorboard_dir and rank == {made}:
                self.writer = SummaryWriter(args.tensorboard_dir)

        def log(self, seconds):
            if self.writer {there} and self.rank == {asked}:
                self.writer.add_scalar("time", seconds)
    """

    @pytest.mark.parametrize("there", ["", "is not None"])
    def test_asked_for_on_another_rank_than_the_one_that_makes_it(self, there: str) -> None:
        """Megatron-LM issue 129: made on the last rank, asked for on the first."""
        (one,) = audited(a=self.BODY.format(made="world_size - 1", there=there, asked=0))
        assert (one.code, one.level, one.facts["axes"]) == ("RB702", Level.WARNING, ["rank"])
        assert one.message == "no rank passes: what is asked for is made on another rank than the one that asks"
        assert [label.span.line for label in one.labels] == [11, 7]

    @pytest.mark.parametrize(("made", "asked"), [("0", "0"), ("world_size - 1", "self.world_size - 1")])
    def test_asked_for_where_it_is(self, made: str, asked: str) -> None:
        assert audited(a=self.BODY.format(made=made, there="", asked=asked)) == []

    def test_on_any_axis(self) -> None:
        (one,) = audited(
            a=self.BODY.replace("world_size", "pp_size")
            .replace("rank", "pp_rank")
            .format(made="pp_size - 1", there="", asked=0)
        )
        assert one.facts["axes"] == ["pp"]

    def test_the_first_and_last_of_an_axis_are_one_where_there_is_one(self) -> None:
        assert (
            audited(a="def f(pp_rank, pp_size):\n    if pp_rank == 0 and pp_rank == pp_size - 1:\n        g()\n") == []
        )


CACHE = """
    class Cache:
        def __init__(self, record_events):
            self.record_events = record_events
            self.events = []

        def insert(self, key):
            if self.record_events:
                self.events.append(key)
"""


def recorded(records: str, step: str, cache: str = CACHE) -> list[Finding]:
    """What is found where an engine makes a cache that `records`, and does `step` after each step."""
    return audited(
        cache=cache,
        engine=f"""
        from cache import Cache

        class Engine:
            def __init__(self, args, tp_rank, pp_rank):
                self.cache = Cache(record_events={records})
                self.publishes = args.kv_events and tp_rank == 0 and pp_rank == 0
                self.socket = None
                if self.publishes:
                    self.socket = connect(args.kv_events)

            def step(self):
{textwrap.indent(textwrap.dedent(step).strip(), " " * 16)}
        """,
    )


SEND = "events, self.cache.events = self.cache.events, []\n    self.socket.send(events)"


class TestWhatNothingTakes:
    def test_the_finding_shows_the_switch_the_taker_and_the_container(self) -> None:
        (one,) = recorded("args.kv_events and tp_rank == 0", f"if self.publishes:\n    {SEND}")
        assert one.code == "RB703"
        assert one.level is Level.ERROR
        assert (
            one.message
            == "Cache.events grows on ranks on which nothing takes what is recorded: pp is pinned there, not here"
        )
        assert [(str(label.span), label.text) for label in one.labels] == [
            ("engine.py:6:42", "recording is switched on: tp_rank == 0"),
            ("engine.py:14:21", "what is recorded is taken: (tp_rank == 0) and (pp_rank == 0)"),
            ("cache.py:9:13", "recorded here"),
        ]
        assert one.details == ("with pp=3: rank 1 (pp 1) records, and takes nothing",)
        assert one.facts["axes"] == ["pp"]

    @pytest.mark.parametrize(
        "step",
        [
            f"if self.socket is not None:\n    {SEND}",
            f"if self.socket:\n    {SEND}",
            f"if self.socket is None:\n    return\n{SEND.replace('    ', '')}",
            f"if not self.publishes:\n    return\n{SEND.replace('    ', '')}",
            "if self.publishes:\n    self.socket.send(list(self.cache.events))\n    self.cache.events.clear()",
            "while self.publishes:\n    self.socket.send(self.cache.events.pop())",
        ],
    )
    def test_ways_to_take_it_on_the_owner_alone(self, step: str) -> None:
        assert told(recorded("args.kv_events", step)) == ["RB703 pp tp"]

    def test_a_method_that_takes_is_followed_to_who_calls_it(self) -> None:
        take = "def take(self):\n    events, self.events = self.events, []\n    return events\n"
        cache = CACHE + "\n" + textwrap.indent(take, " " * 8)
        gated = "if self.publishes:\n    self.socket.send(self.cache.take())"
        assert told(recorded("args.kv_events", gated, cache)) == ["RB703 pp tp"]
        assert recorded("args.kv_events", f"self.cache.take()\n{gated}", cache) == []

    @pytest.mark.parametrize(
        ("records", "step"),
        [
            ("args.kv_events and tp_rank == 0 and pp_rank == 0", f"if self.publishes:\n    {SEND}"),
            ("args.kv_events", "events, self.cache.events = self.cache.events, []\nprint(events)"),
            (
                "args.kv_events",
                f"if self.publishes:\n    {SEND}\nif len(self.cache.events) > 9:\n    self.cache.events.clear()",
            ),
            ("args.kv_events", "print(self.cache.events)"),
        ],
        ids=["on the same ranks", "each rank takes its own", "what is too much is dropped", "nobody takes it at all"],
    )
    def test_what_does_not_pile_up_on_some_ranks(self, records: str, step: str) -> None:
        assert [one for one in recorded(records, step) if one.code == "RB703"] == []

    @pytest.mark.parametrize("made", ["deque(maxlen=100)", "Queue(maxsize=8)"])
    def test_a_container_that_is_bounded(self, made: str) -> None:
        cache = CACHE.replace("self.events = []", f"self.events = {made}")
        assert recorded("args.kv_events", f"if self.publishes:\n    {SEND}", cache) == []

    def test_the_same_is_not_said_twice(self) -> None:
        found = recorded("args.kv_events and tp_rank == 0", f"if self.publishes:\n    {SEND}")
        assert [one.code for one in found] == ["RB703"]
