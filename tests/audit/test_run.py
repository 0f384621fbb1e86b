"""The audit of programs that nobody would write: whatever they are, it ends soon, and says what it could not read."""

from __future__ import annotations

import random
import re
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankbind.audit import Audit, run
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source

CASES = Path(__file__).parent / "cases"
SECONDS = 20.0
"""Many times what any of these takes, on however slow a machine; what grows exponentially takes longer."""


def audited(**files: str) -> Audit:
    start = time.monotonic()
    found = run([Source(f"{name}.py", name, text.encode()) for name, text in files.items()], Settings(), listing=True)
    assert time.monotonic() - start < SECONDS
    return found


def worker(statements: str) -> str:
    """A function that statements stand in, which knows its ranks."""
    return "def f(a, tp_rank, pp_rank, s):\n" + textwrap.indent(statements, "    ")


def gated(test: str, address: str = '"tcp://*:1"') -> str:
    return worker(f"if {test}:\n    s = zmq.Context().socket(zmq.PUB)\n    s.bind({address})\n")


def repeated(text: str, times: int) -> str:
    return "".join(text.replace("<n>", str(number)) for number in range(times))


def nested(text: str, last: str, levels: int) -> str:
    """`last` in so many levels of `text`."""
    lines = [" " * level + text.replace("<n>", str(level)) for level in range(levels)]
    return "\n".join([*lines, " " * levels + last, ""])


class TestTooDeep:
    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("x = " + "(" * 5000, id="open brackets"),
            pytest.param("x = " + "(" * 5000 + ")" * 5000, id="brackets"),
            pytest.param("x = " + "+".join("1" * 100_000), id="a sum of 100,000"),
            pytest.param(gated("tp_rank == 0", "a" + ".a" * 3000), id="attributes"),
            pytest.param(gated("tp_rank == 0", "+".join(["a.p"] * 3000)), id="a sum in an address"),
            pytest.param(gated("tp_rank == 0", "+".join(["a.p"] * 900)), id="a sum that can just be parsed"),
            pytest.param(gated("not " * 800 + "tp_rank"), id="nots that can just be parsed"),
        ],
    )
    def test_it_is_named_in_one_line_and_the_rest_is_audited(self, text: str) -> None:
        found = audited(a=text, b=gated("tp_rank == 0"))

        assert found.files == 2
        (broken,) = (finding for finding in found.findings if finding.labels[0].span.file == "a.py")
        assert broken.code == "RB901"
        assert broken.message.startswith("cannot read a.py: line 1: ")
        assert "\n" not in broken.message
        assert "RB701" in {finding.code for finding in found.findings}

    def test_what_is_no_python(self) -> None:
        found = audited(a="x = 1\n\ndef f(:\n", b="x = 1\0", c="await x\nreturn 1\nbreak\n", d="return = 1")

        assert [finding.code for finding in found.findings] == ["RB901"] * 3
        assert [finding.labels[0].span.line for finding in found.findings] == [3, 1, 1]
        assert found.findings[0].message == "cannot read a.py: line 3: invalid syntax"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(nested("if tp_rank == <n>:", "s.bind('tcp://*:1')", 95), id="nested ifs"),
        pytest.param(nested("def f<n>(tp_rank, s):", "s.bind('tcp://*:1')", 95), id="nested functions"),
        pytest.param(nested("class C<n>:", "tp_rank = 0", 95), id="nested classes"),
        pytest.param(nested("for i<n> in range(a.n<n>):", "s.bind(f'tcp://*:{i0 + tp_rank}')", 19), id="nested loops"),
        pytest.param("x = " + "lambda tp_rank: " * 80 + "s.bind('tcp://*:1')\n", id="nested lambdas"),
        pytest.param(gated(" and ".join(["tp_rank == 0"] * 3000)), id="and"),
        pytest.param(gated(" or ".join(f"tp_rank == {number}" for number in range(300))), id="or"),
        pytest.param(gated(repeated("a.x<n> and a.y<n> or ", 60) + "tp_rank == 0"), id="questions"),
        pytest.param(gated("tp_rank == 0", "f'" + "{a.x}" * 3000 + "'"), id="an f-string"),
        pytest.param(
            worker("if tp_rank == 0:\n    x = 1\n" + repeated("elif tp_rank == <n>:\n    s.bind('tcp://*:1')\n", 600)),
            id="elifs",
        ),
        pytest.param(
            worker("x = 0\n" + repeated("if a.f<n>:\n    x = x + pp_rank\n", 300) + "s.bind('tcp://*:' + str(x))"),
            id="a local that may be many",
        ),
        pytest.param(
            worker(repeated("if a.f<n> and tp_rank == <n>:\n    return\n", 300) + "s.bind('tcp://*:1')"), id="returns"
        ),
        pytest.param(
            worker("match tp_rank:\n" + repeated("    case <n> if a.b<n>:\n        s.bind('tcp://*:<n>')\n", 100)),
            id="match",
        ),
        pytest.param(
            worker(repeated("try:\n    x = a.b\nexcept E:\n    x = pp_rank\nfinally:\n    y = x\n", 300) + "s.bind(y)"),
            id="try",
        ),
        pytest.param(
            worker("x = tp_rank\n" + "x = x + x\n" * 200 + "if x == 0:\n    s.bind('tcp://*:%s' % x)"), id="doubled"
        ),
        pytest.param(
            worker(
                "x0 = tp_rank\n"
                + "".join(f"x{number} = x{number - 1} + 1\n" for number in range(1, 3000))
                + "if x2999 == 0:\n    s.bind('tcp://*:1')\n"
            ),
            id="a chain of locals",
        ),
        pytest.param(
            "def h0(a, tp_rank):\n    return tp_rank == 0 or a.x\n"
            + "".join(
                f"def h{n}(a, tp_rank):\n    return h{n - 1}(a, tp_rank) or h{n - 1}(a.b, tp_rank)\n"
                for n in range(1, 30)
            )
            + gated("h29(a, tp_rank)"),
            id="helpers that call helpers twice",
        ),
        pytest.param(
            repeated("def g<n>(tp_rank, s, x):\n    if tp_rank == 0:\n        g<n>1(tp_rank, s, x + 1)\n", 30)
            + "".join(f"def g{n}1(tp_rank, s, x):\n    g{n + 1}(tp_rank, s, x)\n    s.bind(x)\n" for n in range(30)),
            id="callers of callers",
        ),
    ],
)
def test_large_ones_take_no_longer(text: str) -> None:
    found = audited(a=text)

    assert not [finding for finding in found.findings if finding.code == "RB901"]


BINDS = "        if self.tp_rank == 0 and self.g():\n            self.s.bind('tcp://*:%d' % self.h.port)\n"


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"a": f"class A(A):\n    def f(self):\n{BINDS}"}, id="its own base"),
        pytest.param(
            {
                "a": f"from b import B\nclass A(B):\n    def f(self):\n{BINDS}",
                "b": "from a import A\nclass B(A): pass\n",
            },
            id="bases in a ring",
        ),
        pytest.param(
            {
                "a": "class A:\n    def __init__(self, tp_rank, s):\n        self.a = self.a.b\n"
                "        self.r = self.r.to('cpu')\n        if self.r == 0: s.bind(self.a.c)\n"
            },
            id="an attribute of itself",
        ),
        pytest.param(
            {
                "a": "class A:\n    def __init__(self, tp_rank, s):\n        self.a = self.b\n        self.b = self.c\n"
                "        self.c = self.a + tp_rank\n        if self.a == 0: s.bind(self.b)\n"
            },
            id="attributes in a ring",
        ),
        pytest.param(
            {
                "a": "def f(x, tp_rank, s):\n    if tp_rank == 0: s.bind(g(x))\n    h(x, tp_rank, s)\n"
                "def g(x): return g(x) + h(x, 0, 0)\n"
                "def h(x, tp_rank, s):\n    if tp_rank == 0: f(x + 1, tp_rank, s)\n    return g(x)\n"
            },
            id="functions in a ring",
        ),
        pytest.param(
            {
                "a": "from b import x, g\ny = x\ndef f(tp_rank, s):\n    if g(tp_rank): s.bind(y)\n",
                "b": "from a import y, f\nx = y\ng = f\n",
            },
            id="imports in a ring",
        ),
        pytest.param(
            {
                "a": "from a import *\nfrom b import *\ndef f(tp_rank, s):\n    if g(tp_rank): s.bind(y)\n",
                "b": "if x:\n    from c import *\nelse:\n    from a import *\n",
                "c": "from a import *\nfrom b import *\n",
            },
            id="import * in a ring",
        ),
        pytest.param({"a": "import a\nfrom a import a, f as g, g as f\na.a.a(tp_rank).bind(g(f))\n"}, id="itself"),
        pytest.param(
            {"a": "@f(f)\ndef f(tp_rank, f=f):\n    class f(f, metaclass=f): f = f\n    if tp_rank == f(f): f.bind(f)"},
            id="one name for all",
        ),
    ],
)
def test_what_refers_to_itself(files: Mapping[str, str]) -> None:
    found = audited(**files)

    assert not [finding for finding in found.findings if finding.code == "RB901"]


@pytest.mark.parametrize(
    "address",
    [
        "9 ** 9 ** 9 ** 9 + 1 << 10 ** 9",
        "'x' * 10 ** 10",
        "1 // 0 + tp_rank % 0",
        "'%d %s' % ('a',)",
        "'{0.x[1]} {} {y'.format(1)",
        "f'{tp_rank:{tp_rank}!r}'",
        r"b'\xff'",
        r"'\ud800'",
        "1j",
        "...",
        "*a, **a",
        "",
        "[][0]",
        "{}[tp_rank]",
        "-'x'",
        "(yield)",
        "(tp_rank := tp_rank)",
        "'a' + 1",
        "[1] < 3",
    ],
)
def test_what_would_fail_or_never_end_if_it_ran(address: str) -> None:
    audited(a=gated("tp_rank == 0", address), b=gated(f"tp_rank == ({address.strip('*') or 0})"))


def test_the_axes_of_a_mesh_may_be_called_anything() -> None:
    found = audited(
        a="from torch.distributed.device_mesh import init_device_mesh\n"
        "mesh = init_device_mesh('cuda', (2, 2), mesh_dim_names=('0', 'my-dim'))\n"
        "def f(s):\n    if mesh.get_local_rank('my-dim') == 0:\n"
        "        s = zmq.Context().socket(zmq.PUB)\n        s.bind('tcp://*:1')\n"
    )

    assert [finding.code for finding in found.findings] == ["RB701"]


def programs() -> list[list[Source]]:
    """Those of the cases, each as its files."""
    return [
        [
            Source(file.name, file.relative_to(CASES).with_suffix("").as_posix().replace("/", "."), file.read_bytes())
            for file in ([path] if path.suffix == ".py" else sorted(path.rglob("*.py")))
        ]
        for path in sorted(CASES.iterdir())
        if path.suffix == ".py" or path.is_dir()
    ]


PIECES = (
    b"self",
    b"None",
    b"tp_rank",
    b"[]",
    b"{}",
    b"lambda: 0",
    b"*a",
    b"x[1:2]",
    b"not x",
    b"'0'",
    b"(a := tp_rank)",
)


def mutated(data: bytes, others: list[bytes], choice: random.Random) -> bytes:
    """A program with some lines gone, doubled, moved or taken from another, or some words put for others."""
    lines = data.split(b"\n")
    for _ in range(choice.randint(1, 4)):
        here, there = choice.randrange(len(lines)), choice.randrange(len(lines))
        match choice.randrange(5):
            case 0 if len(lines) > 1:
                del lines[here]
            case 1:
                lines.insert(here, lines[there])
            case 2:
                lines[here], lines[there] = lines[there], lines[here]
            case 3:
                lines.insert(here, choice.choice(others))
            case _:
                words = [*re.finditer(rb"\w+", lines[here])]
                if words:
                    word, pieces = choice.choice(words), [*PIECES, *re.findall(rb"\w+", choice.choice(others))]
                    lines[here] = lines[here][: word.start()] + choice.choice(pieces) + lines[here][word.end() :]
    return b"\n".join(lines)


@pytest.mark.parametrize("seed", range(4))
def test_programs_that_were_broken_by_hand(seed: int) -> None:
    known = programs()
    lines = [line for sources in known for source in sources for line in source.data.split(b"\n") if line.strip()]
    choice = random.Random(seed)
    for _ in range(200):
        sources = choice.choice(known)
        broken = [
            Source(source.name, source.module, mutated(source.data, lines, choice)) if choice.random() < 0.7 else source
            for source in sources
        ]
        found = run(broken, Settings(), listing=True)

        assert found.files == len(broken)
        assert all(finding.labels for finding in found.findings)
