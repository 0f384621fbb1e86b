"""``# rankbind: ignore[...]``: what it is about, what it takes away, and when it is wrong itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rankbind.audit.ignores import apply, find
from rankbind.audit.sources import Source
from rankbind.finding import Finding, Label, Level
from rankbind.source import Span


def source(text: str, name: str = "x.py") -> Source:
    return Source(name, "x", text.encode())


def at(*lines: int, code: str = "RB401", name: str = "x.py") -> Finding:
    return Finding(code, "wrong", labels=tuple(Label(Span(name, line, 5)) for line in lines))


def left(text: str, *findings: Finding) -> list[str]:
    kept, _ = apply(findings, [source(text)])
    return [f"{each.labels[0].span.line} {each.code}" for each in kept]


def told(text: str, *findings: Finding) -> list[str]:
    kept, _ = apply(findings, [source(text)])
    return [f"{each.level} {each.labels[0].span}: {each.message}" for each in kept if each.code == "RB707"]


IGNORE = "# rankbind: ignore[RB401] meant"

COVERED = [
    (f"bind()  {IGNORE}\n", 1),
    (f"{IGNORE}\nbind()\n", 2),
    (f"{IGNORE}\n# of two lines\nbind()\n", 3),
    (f"# of two lines\n{IGNORE}\nbind()\n", 3),
    (f"bind(\n    a,\n    b,  {IGNORE}\n)\n", 1),
    (f"bind(  {IGNORE}\n    a,\n    b,\n)\n", 3),
    (f"bind(\n    a,\n    b,\n)  {IGNORE}\n", 2),
    (f"bind(\n    a,\n    {IGNORE}\n    b,\n)\n", 1),
    (f"{IGNORE}\nbind(\n    a,\n    b,\n)\n", 4),
    (f"def f():\n    if a and \\\n            b:  {IGNORE}\n        bind()\n", 2),
    (f"def f():\n    {IGNORE}\n    bind()\n", 3),
    (f"if x: bind()  {IGNORE}\n", 1),
    (f'x = """\n{{bind()}}\n"""  {IGNORE}\n', 2),
    (f"bind()  {IGNORE}", 1),
    (f"bind()  # noqa: E501  {IGNORE}\n", 1),
    ("bind()  #rankbind:ignore[rb401]meant\n", 1),
    ("bind()  # rankbind: ignore[ RB402 , RB401 ] meant\n", 1),
    (f"\ufeffbind()  {IGNORE}\n", 1),
    (f"bind()  {IGNORE}\r\nother()\r\n", 1),
]


@pytest.mark.parametrize(("text", "line"), COVERED)
def test_it_is_about_its_statement_or_the_one_below(text: str, line: int) -> None:
    kept, ignored = apply([at(line)], [source(text)])

    assert [each for each in kept if each.code != "RB707"] == []
    assert ignored == 1


ELSEWHERE = [
    (f"other()  {IGNORE}\nbind()\n", 2),
    (f"bind()\n{IGNORE}\nother()\n", 1),
    (f"{IGNORE}\n\nbind()\n", 3),
    (f"if a:  {IGNORE}\n    bind()\n", 2),
    (f"{IGNORE}\nif a:\n    bind()\n", 3),
    (f"other(); bind()\n{IGNORE}\n", 1),
    (f"x = '{IGNORE}'; bind()\n", 1),
    (f'"""\n{IGNORE}\n"""\nbind()\n', 4),
    ("bind()  # rankbind: ignore[RB402] meant\n", 1),
    ("bind()  # rankbind: ignored[RB401] meant\n", 1),
    ("bind()  # rankbind: ignore RB401\n", 1),
    ("bind()  # ignore[RB401]\n", 1),
]


@pytest.mark.parametrize(("text", "line"), ELSEWHERE)
def test_and_about_nothing_else(text: str, line: int) -> None:
    kept, ignored = apply([at(line)], [source(text)])

    assert [each.code for each in kept if each.code != "RB707"] == ["RB401"]
    assert ignored == 0


def test_any_label_of_the_finding_counts_in_any_file() -> None:
    gate = source(f"if tp_rank == 0:  {IGNORE}\n    pass\n", "gate.py")
    finding = Finding("RB401", "wrong", labels=(Label(Span("x.py", 1, 1)), Label(Span("gate.py", 1, 4))))

    assert apply([finding], [source("bind()\n"), gate]) == ([], 1)


def test_a_file_that_cannot_be_audited_is_not_ignored() -> None:
    text = "bind()  # rankbind: ignore[RB901] it is old\n"

    assert left(text, at(1, code="RB901")) == ["1 RB901", "1 RB707"]
    assert told(text) == ["warning x.py:1:11: RB901 cannot be ignored: a file with it is not audited"]


@pytest.mark.parametrize(
    "data", [b"bind(  # rankbind: ignore[RB401] x\n", b"\0# rankbind: ignore[RB401]", b"  x\n y # rankbind: ignore"]
)
def test_what_is_no_python_is_no_error(data: bytes) -> None:
    find(Source("x.py", "x", data))


def test_everything_is_sorted_by_place() -> None:
    text = "bind()\nx = 1  # rankbind: ignore\nbind()\n"

    assert left(text, at(3), at(1)) == ["1 RB401", "2 RB707", "3 RB401"]


class TestWhatIsWrong:
    def test_no_reason_and_it_ignores_all_the_same(self) -> None:
        text = "bind()  # rankbind: ignore[RB401]\n"

        assert left(text, at(1)) == ["1 RB707"]
        assert told(text, at(1)) == ["warning x.py:1:11: an ignore comment without a reason"]

    @pytest.mark.parametrize("rest", ["  # noqa", " #noqa", " # type: ignore", " -", ":", "  # fmt: skip"])
    def test_another_comment_is_no_reason(self, rest: str) -> None:
        assert len(told(f"bind()  # rankbind: ignore[RB401]{rest}\n", at(1))) == 1

    @pytest.mark.parametrize("reason", ["meant", "- one stage", ": see #123", "日本"])
    def test_a_reason(self, reason: str) -> None:
        assert told(f"bind()  # rankbind: ignore[RB401] {reason}\n", at(1)) == []

    def test_no_code(self) -> None:
        assert told("bind()  # rankbind: ignore it is meant\n", at(1)) == [
            "warning x.py:1:11: an ignore comment that names no code ignores nothing"
        ]
        assert len(told("bind()  # rankbind: ignore[] it is meant\n", at(1))) == 1

    def test_a_code_there_is_not(self) -> None:
        kept, _ = apply([], [source("bind()  # rankbind: ignore[RB499] meant\n")])

        assert [(each.level, each.message) for each in kept] == [(Level.WARNING, "there is no code RB499 to ignore")]
        assert (kept[0].fix or "").startswith("did you mean RB4")

    def test_nothing_to_ignore_is_a_note(self) -> None:
        assert told("bind()  # rankbind: ignore[RB401, RB402] meant\n", at(1)) == [
            "note x.py:1:11: this comment ignores nothing: there is no RB402 here"
        ]

    def test_nothing_below(self) -> None:
        assert told(f"{IGNORE}\n\nbind()\n", at(3)) == [
            "note x.py:1:3: this comment ignores nothing: there is no statement below it"
        ]

    def test_its_span_is_in_characters(self) -> None:
        kept, _ = apply([], [source(f"x = '日本'  {IGNORE}\n")])

        assert kept[0].labels[0].span == Span("x.py", 1, 13, len(IGNORE) - 2)


def test_the_pages_are_not_read_while_every_comment_is_in_use() -> None:
    script = (
        "import sys\nfrom rankbind.audit.ignores import apply\nfrom rankbind.audit.sources import Source\n"
        "from rankbind.finding import Finding, Label\nfrom rankbind.source import Span\n"
        f"source = Source('x.py', 'x', b'bind()  {IGNORE}')\n"
        "print(apply([Finding('RB401', '', labels=(Label(Span('x.py', 1, 1)),))], [source]), 'pydantic' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert found.stdout == "([], 1) False\n"
