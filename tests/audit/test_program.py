"""Modules, the names at their top, and what those refer to in others."""

from __future__ import annotations

import ast
import textwrap

import pytest

from rankbind.audit.program import Class, Function, Module, Program, depth, handed_on, occurrences, uses
from rankbind.audit.sources import Source


def program(**modules: str) -> Program:
    """Files by their dotted names, with ``__`` for the dots; a package ends in ``__``."""
    sources = []
    for name, body in modules.items():
        dotted = name.removesuffix("__").replace("__", ".")
        path = dotted.replace(".", "/") + ("/__init__.py" if name.endswith("__") else ".py")
        sources.append(Source(path, dotted, textwrap.dedent(body).encode()))
    return Program(sources)


def module(found: Program, dotted: str) -> Module:
    source = found.named(dotted)
    assert source is not None
    parsed = found.module(source)
    assert parsed is not None
    return parsed


def resolved(found: Program, dotted: str, written: str) -> str:
    """What an expression at the top of a module refers to."""
    node = ast.parse(written, mode="eval").body
    match found.resolve(module(found, dotted), node):
        case Function() as function:
            return f"function {function.qualified} of {function.module.source.module}"
        case Class() as owner:
            return f"class {owner.name} of {owner.module.source.module}"
        case Module() as inner:
            return f"module {inner.source.module}"
        case str() as elsewhere:
            return f"elsewhere {elsewhere}"
        case None:
            return "nothing"
        case expression:
            return f"value {ast.unparse(expression)}"


DEFINED = "def g(): pass\nclass C:\n    def m(self): pass\nX = 1\n"
REFERS = {
    "defined here": ("def g(): pass", "g", "function g of p.a"),
    "by name": ("from p.b import g", "g", "function g of p.b"),
    "by another name": ("from p.b import g as h", "h", "function g of p.b"),
    "from beside": ("from .b import g", "g", "function g of p.b"),
    "a module from beside": ("from . import b", "b.g", "function g of p.b"),
    "a module": ("import p.b", "p.b.g", "function g of p.b"),
    "a module by another name": ("import p.b as x", "x.C", "class C of p.b"),
    "a value": ("from p.b import X", "X", "value 1"),
    "a method": ("from p.b import C", "C.m", "function C.m of p.b"),
    "re-exported": ("from p import g", "g", "function g of p.b"),
    "in a try": ("try:\n    from p.b import g\nexcept ImportError:\n    g = None", "g", "function g of p.b"),
    "under an if": ("if TYPE_CHECKING:\n    from p.b import C", "C", "class C of p.b"),
    "as text": ("from p.b import C", "'C'", "class C of p.b"),
    "with a parameter": ("from p.b import C", "C[int]", "class C of p.b"),
    "elsewhere": ("import zmq", "zmq.PUB", "elsewhere zmq.PUB"),
    "by name, elsewhere": ("from zmq import PUB", "PUB", "elsewhere zmq.PUB"),
    "not there": ("from p.b import nothing", "nothing", "elsewhere p.b.nothing"),
    "nowhere": ("", "g", "nothing"),
    "a call": ("", "f()", "nothing"),
    "no expression": ("", "'a b'", "nothing"),
}


@pytest.mark.parametrize(("body", "written", "expected"), REFERS.values(), ids=REFERS)
def test_what_a_name_refers_to(body: str, written: str, expected: str) -> None:
    assert resolved(program(p__="from p.b import g", p__b=DEFINED, p__a=body), "p.a", written) == expected


def test_imports_from_further_up() -> None:
    found = program(p__="", p__b="def g(): pass", p__q__="from ..b import g", p__q__a="from ..b import g as h")
    assert resolved(found, "p.q", "g") == "function g of p.b"
    assert resolved(found, "p.q.a", "h") == "function g of p.b"


def test_modules_that_import_from_each_other_have_an_end() -> None:
    found = program(a="from b import x", b="from a import x")
    assert resolved(found, "a", "x").startswith("elsewhere ")


def test_names_of_modules_are_followed_through_a_few_others_only() -> None:
    chain = {f"m{n}": f"from m{n + 1} import g" for n in range(20)}
    found = program(**chain, m20="def g(): pass")
    assert resolved(found, "m18", "g") == "function g of m20"
    assert resolved(found, "m0", "g").startswith("elsewhere ")


# ---- what a module has

BODY = """
    @decorated(1)
    def f(a, /, b=1, *, c=2, d):
        def inner():
            pass
        if a:
            def other(): pass
    class C:
        x: int = 1
        y = 2
        def m(self):
            self.z, self.w = 1, 2
            self.v: int = 3
            if self.u == 1: self.t += 1
        @staticmethod
        def s(a): pass
        @classmethod
        def c(cls): pass
        class D:
            def m(self): pass
"""


def test_the_functions_of_a_module_are_all_there() -> None:
    found = module(program(a=BODY), "a")
    names = ["<module>", "f", "f.inner", "f.other", "C.m", "C.s", "C.c", "D.m"]
    assert [function.qualified for function in found.functions] == names
    assert len({function.key for function in found.functions}) == len(names)
    assert [function.bound for function in found.functions] == [False] * 4 + [True, False, True, True]


def test_parameters_and_their_defaults() -> None:
    function = module(program(a=BODY), "a").functions[1]
    assert function.parameters == ("a", "b", "c", "d")
    defaults = {name: function.default(name) for name in (*function.parameters, "e")}
    assert {name: node and ast.unparse(node) for name, node in defaults.items()} == {
        "a": None,
        "b": "1",
        "c": "2",
        "d": None,
        "e": None,
    }
    assert function.decorators == ("decorated",)
    parameter = function.parameter("c")
    assert parameter is not None
    assert parameter.arg == "c"
    assert function.parameter("e") is None
    assert function.text.startswith(b"def f(")
    assert function.text.endswith(b"def other(): pass\n")


def test_the_statements_of_a_module_are_a_function_without_parameters() -> None:
    body = module(program(a="x = 1"), "a").body
    assert body.parameters == ()
    assert body.parameter("x") is None
    assert body.default("x") is None
    assert body.decorators == ()
    assert body.text == b"x = 1"


def test_a_class_knows_which_methods_assign_its_attributes() -> None:
    found = module(program(a=BODY), "a").names["C"]
    assert isinstance(found, Class)
    assert list(found.fields) == ["x", "y"]
    assert set(found.stores) == {"z", "w", "v", "t"}
    assert [method.name for method in found.stores["w"]] == ["m"]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("@dataclass\nclass C: pass", True),
        ("@dataclasses.dataclass(frozen=True)\nclass C: pass", True),
        ("class C(BaseModel): pass", True),
        ("class C(msgspec.Struct): pass", True),
        ("class C(NamedTuple): pass", True),
        ("class C(Base): pass", False),
        ("@final\nclass C: pass", False),
    ],
)
def test_data_classes(head: str, expected: bool) -> None:
    found = module(program(a=head), "a").names["C"]
    assert isinstance(found, Class)
    assert found.is_dataclass is expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_whatever_ends_them(end: str) -> None:
    found = Program([Source("a.py", "a", end.join(["x = 1", "def f():", "    return 2", ""]).encode())])
    parsed = module(found, "a")
    assert parsed.functions[1].text.split() == [b"def", b"f():", b"return", b"2"]
    assert parsed.line_of(parsed.source.data.index(b"return")) == 3
    starts, inner = parsed.places
    assert starts == [2]
    assert [(last, one.name) for last, one in inner] == [(3, "f")]


# ---- classes and their heirs


def test_heirs_are_found_in_other_modules_and_through_others() -> None:
    found = program(
        a="class A:\n    def m(self): pass",
        b="from a import A\nclass B(A): pass\nclass Alone: pass",
        c="import b\nclass C(b.B, Alone): pass",
        d="class A: pass\nclass D(A): pass",
    )
    base = module(found, "a").names["A"]
    assert isinstance(base, Class)
    assert [heir.name for heir in found.heirs(base)] == ["B", "C"]
    last = module(found, "c").names["C"]
    assert isinstance(last, Class)
    assert [one.name for one in found.bases(last)] == ["C", "B", "A"]
    method = found.method(last, "m")
    assert method is not None
    assert method.owner is base
    assert found.method(last, "n") is None


def test_a_class_that_inherits_from_itself_has_no_more_bases() -> None:
    found = program(a="class A(A): pass")
    base = module(found, "a").names["A"]
    assert isinstance(base, Class)
    assert found.bases(base) == [base]


# ---- files

BROKEN = {
    "no Python": (b"x = 1\ndef f(:\n", 2),
    "a NUL": (b"x = \0", 1),
    "an indentation": (b"if x:\npass\n", 2),
    "too deep": (b"x = " + b"(" * 5000 + b")" * 5000, 1),
}


@pytest.mark.parametrize(("data", "line"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_parsed_is_named_with_its_line(data: bytes, line: int) -> None:
    source = Source("a.py", "a", data)
    found = Program([source])
    assert found.module(source) is None
    assert found.module(source) is None
    assert list(found.broken) == ["a.py"]
    assert found.broken["a.py"][1] == line
    assert depth(source) == 0


def test_how_deep_a_file_is() -> None:
    assert depth(Source("a.py", "a", b"x")) < depth(Source("a.py", "a", b"x = (1 + (2 + 3))"))


def test_while_it_is_sealed_no_further_file_is_parsed() -> None:
    found = program(a="x = 1", b="y = 1")
    first, second = found.sources
    assert found.module(first) is not None
    with found.sealed():
        assert found.module(first) is not None
        assert found.module(second) is None
        assert found.parsed(first)
        assert not found.parsed(second)
    assert found.module(second) is not None
    assert found.broken == {}


def test_files_by_the_words_in_them() -> None:
    found = program(a="tp_rank = port", b="# port", c="ports")
    assert [source.module for source in found.mentioning("port")] == ["a", "b"]
    assert [source.module for source in found.mentioning("port", "tp_rank")] == ["a"]
    assert found.mentioning("rank") == []
    assert found.mentions("ports")
    assert not found.mentions("por")
    assert found.by_name("a.py") is found.sources[0]
    assert found.by_name("z.py") is None
    assert found.named("z") is None


def test_of_a_large_program_only_files_about_ranks_or_addresses_are_worth_it() -> None:
    large = Source("big.py", "big", b"#" * (5 << 20))
    plain, telling = Source("a.py", "a", b"x = 1"), Source("b.py", "b", b"rank = 1")
    found = Program([large, plain, telling])
    assert not found.small
    assert not found.worth(plain)
    assert found.worth(telling)
    found.module(plain)
    assert found.worth(plain)
    assert Program([plain]).worth(plain)


# ---- by the looks of it


def test_where_a_word_stands() -> None:
    assert list(occurrences(b"bind unbind bind_all x.bind", b"bind")) == [0, 23]
    assert list(occurrences(b"", b"bind")) == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("f(1)", True),
        ("f (1)", True),
        ("run(f, 1)", True),
        ("run(f)", True),
        ("[f]", True),
        ("x = f\n", True),
        ("def f(x): pass", False),
        ("class f(x): pass", False),
        ("import f\n", False),
        ("f.x", False),
        ("f = 1", False),
        ("ff(1)", False),
    ],
)
def test_what_is_called_or_handed_on(data: str, expected: bool) -> None:
    assert uses(data.encode(), b"f") is expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("x = C\n", True),
        ("x = {'a': C}", True),
        ('x = {"a": C,\n}', True),
        ("register(C)", True),
        ("register(1, C)", True),
        ("return C", True),
        ("[C]", True),
        ("C()", False),
        ("C.x", False),
        ("class D(C): pass", False),
        ("from a import C\n", False),
        ("from a import (\n    B,\n    C,\n)\n", False),
        ("isinstance(x, C)", False),
        ("except (A, C):", False),
        ("def f(x: C): pass", False),
        ("def f() -> Union[A, C]: pass", False),
        ("x: dict[str, C]", False),
    ],
)
def test_what_is_used_as_a_value(data: str, expected: bool) -> None:
    assert handed_on(data.encode(), b"C") is expected
