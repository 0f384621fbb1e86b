"""What a piece of source means: followed through locals, attributes, calls and modules."""

from __future__ import annotations

import ast
import textwrap
import time

import pytest

from rankbind.audit.expression import Expression, Given, Private, Unclear, text
from rankbind.audit.meaning import Meaning, Scope
from rankbind.audit.program import Class, Function, Program
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import Profile, Vocabulary
from rankbind.audit.walk import Visit


def program(body: str, **modules: str) -> Meaning:
    named = {"a": body} | modules
    sources = [Source(f"{name}.py", name, textwrap.dedent(source).encode()) for name, source in named.items()]
    return Meaning(Program(sources), Vocabulary(None))


def functions(meaning: Meaning) -> list[Function]:
    found = []
    for source in meaning.program.sources:
        module = meaning.program.module(source)
        assert module is not None
        found += module.functions
    return found


def the(meaning: Meaning, qualified: str) -> Function:
    return next(function for function in functions(meaning) if function.qualified == qualified)


def a_class(meaning: Meaning, name: str) -> Class:
    module = meaning.program.module(meaning.program.sources[0])
    assert module is not None
    found = module.names[name]
    assert isinstance(found, Class)
    return found


def the_go(meaning: Meaning) -> tuple[Function, Visit]:
    """The one call of ``go``."""
    (found,) = [
        (function, visit)
        for function in functions(meaning)
        for visit in function.walk.calls
        if isinstance(visit.node, ast.Call) and isinstance(visit.node.func, ast.Name) and visit.node.func.id == "go"
    ]
    return found


def argument(body: str, **modules: str) -> Expression:
    """What is handed to ``go``, with what callers give for parameters."""
    meaning = program(body, **modules)
    function, visit = the_go(meaning)
    assert isinstance(visit.node, ast.Call)
    return meaning.completed(meaning.evaluate(visit.node.args[0], Scope(function, visit.names)))


def condition(body: str, **modules: str) -> str:
    """When ``go`` is called."""
    meaning = program(body, **modules)
    function, visit = the_go(meaning)
    return text(meaning.completed(meaning.condition(visit.path, function)))


def shown(found: Expression) -> str:
    """As text, with a mark for what is private (!) and what is unclear (?)."""
    mark = {Private: "!", Unclear: "?"}.get(type(found), "")
    return f"{mark}{text(found)}"


EXPRESSIONS = {
    # constants and operators
    "1 + 2 * 3": "7",
    "-5": "-5",
    "7 // 2 - 7 % 2": "2",
    "not (tp_rank == 0)": "not (tp_rank == 0)",
    "tp_rank == 0 and pp_rank == 0": "(tp_rank == 0) and (pp_rank == 0)",
    "0 <= tp_rank < 2": "(0 <= tp_rank) and (tp_rank < 2)",
    "-tp_rank": "-tp_rank",
    "1 if tp_rank == 0 else 2": "(1 if tp_rank == 0 else 2)",
    "tp_rank in (0, 1)": "(tp_rank == 0) or (tp_rank == 1)",
    "tp_rank not in [0]": "not (tp_rank == 0)",
    "(5, tp_rank)[1]": "tp_rank",
    "(5, tp_rank)[-2]": "5",
    "tp_rank ^ 1": "BitXor(tp_rank, 1)",
    # texts
    "f'tcp://*:{5000 + dp_rank}'": "tcp://*:{5000 + dp_rank}",
    "'tcp://*:{}'.format(dp_rank)": "tcp://*:{}{dp_rank}",
    "'tcp://*:' + str(dp_rank)": "tcp://*:{dp_rank}",
    "'tcp://{host}'.format(**kwargs)": "?'tcp://{host}'.format(**kwargs)",
    # names
    "tp_rank": "tp_rank",
    "self.tp_rank": "tp_rank",
    "ps.attn_tp_rank": "attn_tp_rank",
    "tp_size": "tp_size",
    "rank": "rank",
    "args.port": "args.port",
    "port": "port",
    # whose rank it is cannot be told
    "req.dp_rank": "?req.dp_rank",
    "peer_info.tp_rank": "?peer_info.tp_rank",
    "x.tp_rank": "?x.tp_rank",
    "info['tp_rank']": "?info['tp_rank']",
    "config['tp_rank']": "tp_rank",
    "is_leader": "?is_leader",
    "self.is_owner()": "?self.is_owner()",
    # processes
    "os.getpid()": "!os.getpid",
    "uuid.uuid4().hex": "!uuid.uuid4",
    "tempfile.mkdtemp()": "!tempfile.mkdtemp",
    "get_free_port()": "!get_free_port",
    "gpu_id": "!gpu_id",
    "time.time()": "!time.time",
    # groups and what is asked
    "dist.get_rank()": "rank",
    "torch.distributed.get_rank()": "rank",
    "dist.get_rank(None)": "rank",
    "dist.get_rank(tp_group)": "tp_rank",
    "dist.get_rank(group=get_pp_group().device_group)": "pp_rank",
    "dist.get_rank(self.group)": "?dist.get_rank(self.group)",
    "dist.get_world_size(tp_group)": "tp_size",
    "dist.get_world_size()": "rank_size",
    "get_tp_group().rank_in_group": "tp_rank",
    "get_pp_group().is_last_rank": "pp_rank == (pp_size - 1)",
    "get_pp_group().is_first_rank": "pp_rank == 0",
    "get_tensor_model_parallel_rank()": "tp_rank",
    "mpu.get_pipeline_model_parallel_rank()": "pp_rank",
    "mesh.get_local_rank('tp')": "tp_rank",
    "mesh['tp'].get_local_rank()": "tp_rank",
    "accelerator.is_main_process": "rank == 0",
    "dist.is_initialized()": "True",
    # the environment
    "int(os.environ['RANK'])": "rank",
    "int(os.environ.get('LOCAL_RANK', 0))": "local_rank",
    "os.getenv('WORLD_SIZE')": "rank_size",
    "os.environ['NODE_RANK']": "node_rank",
    "os.environ['PORT']": "$PORT",
    "os.environ[name]": "a variable of the environment",
    # built-in functions
    "bool(tp_rank == 0)": "tp_rank == 0",
    "max(tp_rank, 1)": "max(tp_rank, 1)",
    "all([tp_rank == 0, pp_rank == 0])": "(tp_rank == 0) and (pp_rank == 0)",
    "any((tp_rank == 0, pp_rank == 0))": "(tp_rank == 0) or (pp_rank == 0)",
    "getattr(self, 'tp_rank', 0)": "tp_rank",
    "isinstance(tp_rank, int)": "isinstance(tp_rank, int)",
    # what is not in sight
    "unseen(args.port)": "unseen(args.port)",
    "unseen(tp_rank)": "unseen(tp_rank)",
    "[r for r in ranks if r == tp_rank]": "?[r for r in ranks if r == tp_rank]",
    "ports[tp_rank]": "ports[tp_rank]",
    "ports[0]": "ports[0]",
    "(y := tp_rank)": "tp_rank",
}


@pytest.mark.parametrize(("source", "expected"), EXPRESSIONS.items(), ids=EXPRESSIONS)
def test_what_an_expression_is(source: str, expected: str) -> None:
    assert shown(argument(f"def f(self, **kwargs):\n    go({source})")) == expected


VALUES = {
    "a local": ("def f(tp_rank):\n  x = tp_rank == 0\n  go(x)", "tp_rank == 0"),
    "a local that a branch changes": (
        "def f(tp_rank, port):\n  if tp_rank == 1:\n    port = 5\n  go(port)",
        "(5 if tp_rank == 1 else port)",
    ),
    "a tuple, unpacked": ("def f(tp_rank):\n  x, y = tp_rank, 1\n  go(x + y)", "tp_rank + 1"),
    "a tuple that a call gives": (
        "def pair(tp_rank, pp_rank):\n  return tp_rank, pp_rank\ndef f(tp_rank):\n  a, b = pair(tp_rank, 0)\n  go(b)",
        "0",
    ),
    "named as it is unpacked": ("def f():\n  tp_rank, x = unseen()\n  go(tp_rank)", "tp_rank"),
    "a list that grows": ("def f(tp_rank):\n  x = []\n  x.append(tp_rank)\n  go(x)", "changed(, tp_rank)"),
    "a loop over ranks": ("def f(ranks):\n  for rank in ranks:\n    go(rank)", "?rank"),
    "a loop over names": ("def f(names):\n  for name in names:\n    go(name)", "each name"),
    "a constant of the module": ("PORT = 5000\ndef f(tp_rank):\n  go(PORT + tp_rank)", "5000 + tp_rank"),
    "a name of the module that means a rank": ("RANK = 0\nmy = 1\ndef f():\n  go(my)", "1"),
    "an attribute": (
        "class A:\n  def __init__(self, tp_rank):\n    self.first = tp_rank == 0\n  def f(self):\n    go(self.first)",
        "tp_rank == 0",
    ),
    "an attribute by another name": (
        (
            "class A:\n  def __init__(self, rank, port):\n    self.where = port + rank\n"
            "  def f(self):\n    go(self.where)\ndef main(tp_rank):\n  A(tp_rank, 5000).f()"
        ),
        "5000 + tp_rank",
    ),
    "an attribute set in a branch": (
        (
            "class A:\n  def __init__(self, tp_rank):\n    self.on = False\n"
            "    if tp_rank == 0:\n      self.on = True\n"
            "  def f(self):\n    go(self.on)"
        ),
        "(True if tp_rank == 0 else False)",
    ),
    "an attribute of a mixin": (
        (
            "class M:\n  def f(self):\n    go(self.first)\n"
            "class A(M):\n  def __init__(self, tp_rank):\n    self.first = tp_rank == 0"
        ),
        "tp_rank == 0",
    ),
    "an attribute of a base": (
        (
            "class B:\n  def __init__(self, tp_rank):\n    self.first = tp_rank == 0\n"
            "class A(B):\n  def f(self):\n    go(self.first)"
        ),
        "tp_rank == 0",
    ),
    "an attribute just set": (
        "class A:\n  def f(self, tp_rank):\n    self.x = tp_rank + 1\n    go(self.x)",
        "tp_rank + 1",
    ),
    "a property": (
        "class A:\n  @property\n  def first(self):\n    return self.tp_rank == 0\n  def f(self):\n    go(self.first)",
        "tp_rank == 0",
    ),
    "a cached property": (
        (
            "class A:\n  @functools.cached_property\n  def first(self):\n    return self.pp_rank == 0\n"
            "  def f(self):\n    go(self.first)"
        ),
        "pp_rank == 0",
    ),
    "a field of a data class, by keyword": (
        (
            "@dataclass\nclass C:\n  first: bool = False\n"
            "class A:\n  def __init__(self, c: C):\n    self.c = c\n  def f(self):\n    go(self.c.first)\n"
            "def main(tp_rank):\n  A(C(first=tp_rank == 0)).f()"
        ),
        "tp_rank == 0",
    ),
    "a field of a data class, by position": (
        (
            "@dataclass\nclass C:\n  port: int\n  first: bool\ndef f(c: C):\n  go(c.first)\n"
            "def main(tp_rank):\n  f(C(5000, tp_rank == 0))"
        ),
        "tp_rank == 0",
    ),
    "a field of a data class, left out": (
        (
            "@dataclass\nclass C:\n  port: int\n  first: bool = True\ndef f(c: C):\n  go(c.first)\n"
            "def main():\n  f(C(5000))"
        ),
        "True",
    ),
    "a predicate": ("def first(tp_rank):\n  return tp_rank == 0\ndef f():\n  go(first(dist.get_rank()))", "rank == 0"),
    "a predicate of several returns": (
        "def first():\n  if not enabled():\n    return False\n  return dist.get_rank() == 0\ndef f():\n  go(first())",
        "(False if not enabled() else rank == 0)",
    ),
    "a predicate that is a method": (
        "class A:\n  def first(self):\n    return self.tp_rank == 0\n  def f(self):\n    go(self.first())",
        "tp_rank == 0",
    ),
    "a default": ("def port(base=5000, tp_rank=0):\n  return base + 1\ndef f():\n  go(port())", "5000 + 1"),
    "a static method": (
        "class A:\n  @staticmethod\n  def port(n):\n    return n + 1\ndef f(tp_rank):\n  go(A.port(tp_rank))",
        "tp_rank + 1",
    ),
    "an object made with arguments": (
        (
            "class Address:\n  def __init__(self, host, port):\n    self.host, self.port = host, port\n"
            "  def to_tcp(self):\n    return f'tcp://{self.host}:{self.port}'\n"
            "def f(dp_rank):\n  go(Address('*', 5000 + dp_rank).to_tcp())"
        ),
        "tcp://*:{5000 + dp_rank}",
    ),
    "an object of a data class made with arguments": (
        (
            "@dataclass\nclass Address:\n  host: str\n  port: int\n"
            "  def to_tcp(self):\n    return f'tcp://{self.host}:{self.port}'\n"
            "def f(dp_rank):\n  a = Address(port=5000 + dp_rank, host='*')\n  go(a.to_tcp())"
        ),
        "tcp://*:{5000 + dp_rank}",
    ),
    "an object kept in an attribute": (
        (
            "@dataclass\nclass Address:\n  port: int\n  def to_tcp(self):\n    return f'tcp://*:{self.port}'\n"
            "class A:\n  def __init__(self, dp_rank):\n    self.at = Address(dp_rank + 1)\n"
            "  def f(self):\n    go(self.at.to_tcp())"
        ),
        "tcp://*:{dp_rank + 1}",
    ),
    "what others set from outside": (
        (
            "class A:\n  def __init__(self):\n    self.first = None\n  def f(self):\n    go(self.first)\n"
            "def main(tp_rank):\n  a = A()\n  a.first = tp_rank == 0\n  a.f()"
        ),
        "tp_rank == 0",
    ),
    "what is set at some time": (
        (
            "class A:\n  def __init__(self):\n    self.bus = None\n"
            "  def start(self, tp_rank):\n    self.bus = tp_rank + 1\n"
            "  def f(self):\n    go(self.bus)"
        ),
        "(tp_rank + 1 if bus is set else None)",
    ),
    "what a handler sets where there is no group": (
        (
            "class A:\n  def __init__(self):\n    try:\n      self.rank = dist.get_rank() + 0\n"
            "    except Exception:\n      self.rank = 0\n  def f(self):\n    go(self.rank)"
        ),
        "rank + 0",
    ),
    "a parameter": ("def f(port):\n  go(port)\ndef main(tp_rank):\n  f(5000 + tp_rank)", "5000 + tp_rank"),
    "a parameter, by keyword": ("def f(port):\n  go(port)\ndef main(tp_rank):\n  f(port=tp_rank)", "tp_rank"),
    "a parameter that callers do not agree about": (
        "def f(port):\n  go(port)\ndef main():\n  f(1)\ndef other():\n  f(2)",
        "(1 if port of call 1 else 2)",
    ),
    "a parameter of nobody": ("def f(port):\n  go(port)", "port"),
    "a parameter that may be a rank": ("def f(idx):\n  go(idx)", "?idx"),
    "a rank by its name, whoever calls": ("def f(tp_rank):\n  go(tp_rank)\ndef main():\n  f(0)", "tp_rank"),
    "a parameter through several functions": (
        "def f(port):\n  go(port)\ndef g(port):\n  f(port)\ndef h(pp_rank):\n  g(pp_rank + 1)",
        "pp_rank + 1",
    ),
    "a closure": ("def f(tp_rank):\n  x = tp_rank + 1\n  def inner():\n    go(x)\n  inner()", "tp_rank + 1"),
    "an awaited call": ("async def x():\n  return tp_rank + 1\nasync def f():\n  go(await x())", "tp_rank + 1"),
    "a variable of the environment whose name is given": (
        "def env(name):\n  return int(os.environ[name])\ndef f():\n  go(env('RANK'))",
        "rank",
    ),
    "any keyword": ("def f(**kwargs):\n  go(kwargs.get('port'))", "?kwargs.get('port')"),
    "a group that is kept": (
        "class A:\n  def f(self):\n    g = get_tp_group()\n    go(dist.get_rank(g.device_group))",
        "tp_rank",
    ),
    "an object that may know its rank": ("class A:\n  def f(self):\n    go(find(self))", "?find(self)"),
    "a configuration": (
        (
            "class ServerArgs:\n  def __init__(self, tp_rank):\n    self.port = tp_rank\n"
            "class A:\n  def f(self, server_args: ServerArgs):\n    go(server_args.port)"
        ),
        "server_args.port",
    ),
    "a configuration of a part": (
        (
            "@dataclass\nclass BusConfig:\n  port: int\ndef f(config: BusConfig):\n  go(config.port)\n"
            "def main(dp_rank):\n  f(BusConfig(port=5000 + dp_rank))"
        ),
        "5000 + dp_rank",
    ),
}


@pytest.mark.parametrize(("body", "expected"), VALUES.values(), ids=VALUES)
def test_where_a_value_comes_from(body: str, expected: str) -> None:
    assert shown(argument(body)) == expected


CONDITIONS = {
    "an early return": ("def f(tp_rank):\n  if tp_rank != 0:\n    return\n  go()", "not (tp_rank != 0)"),
    "either of two ways": (
        "def f(tp_rank, on):\n  if on:\n    if tp_rank != 0:\n      return\n  go()",
        "(on and (not (tp_rank != 0))) or (not on)",
    ),
    "a flag": ("def f(tp_rank):\n  on = tp_rank == 0\n  if on:\n    go()", "tp_rank == 0"),
    "an object that is there on one rank": (
        (
            "class A:\n  def __init__(self, tp_rank):\n    self.bus = Publisher(tp_rank) if tp_rank == 0 else None\n"
            "  def f(self):\n    if self.bus is not None:\n      go()"
        ),
        "tp_rank == 0",
    ),
    "no group, one process": (
        "def f():\n  if not dist.is_initialized() or dist.get_rank() == 0:\n    go()",
        "rank == 0",
    ),
    "a match": ("def f(pp_rank):\n  match pp_rank:\n    case 0:\n      go()", "pp_rank == 0"),
}


@pytest.mark.parametrize(("body", "expected"), CONDITIONS.values(), ids=CONDITIONS)
def test_the_condition_for_a_call(body: str, expected: str) -> None:
    assert condition(body) == expected


# ---- other modules

MODULES = {
    "a predicate": ("from b import first\ndef f():\n  go(first())", "def first():\n  return dist.get_rank() == 0"),
    "a module": ("import b\ndef f():\n  go(b.first())", "def first():\n  return dist.get_rank() == 0"),
    "by another name": ("import b as x\ndef f():\n  go(x.first())", "def first():\n  return dist.get_rank() == 0"),
    "within the function": (
        "def f():\n  from b import first\n  go(first())",
        "def first():\n  return dist.get_rank() == 0",
    ),
    "a constant": ("from b import FIRST\ndef f():\n  go(FIRST)", "FIRST = dist.get_rank() == 0"),
    "an object": (
        "from b import B\nclass A:\n  def __init__(self):\n    self.b = B()\n  def f(self):\n    go(self.b.first)",
        "class B:\n  def __init__(self):\n    self.first = dist.get_rank() == 0",
    ),
    "a base": (
        "import b\nclass A(b.B):\n  def f(self):\n    go(self.first)",
        "class B:\n  def __init__(self):\n    self.first = dist.get_rank() == 0",
    ),
    "super": (
        (
            "from b import B\nclass A(B):\n  def first(self):\n    return super().first()\n"
            "  def f(self):\n    go(self.first())"
        ),
        "class B:\n  def first(self):\n    return dist.get_rank() == 0",
    ),
    "an annotation as text": (
        "from b import B\ndef f(x: 'B | None'):\n  go(x.first())",
        "class B:\n  def first(self):\n    return dist.get_rank() == 0",
    ),
    "an optional annotation": (
        "from b import B\ndef f(x: Optional[B]):\n  go(x.first())",
        "class B:\n  def first(self):\n    return dist.get_rank() == 0",
    ),
    "what a call is said to give": (
        "from b import make\ndef f():\n  go(make().first())",
        "class B:\n  def first(self):\n    return dist.get_rank() == 0\ndef make() -> B:\n  return unseen()",
    ),
    "a caller": ("def f(on):\n  go(on)", "from a import f\ndef main():\n  f(dist.get_rank() == 0)"),
}


@pytest.mark.parametrize(("body", "other"), MODULES.values(), ids=MODULES)
def test_through_another_module(body: str, other: str) -> None:
    assert shown(argument(body, b=other)) == "rank == 0"


# ---- callers

CALLERS: dict[str, tuple[str, list[tuple[str, dict[str, str], bool]]]] = {
    "a call": ("def f(p, q=2): pass\ndef main():\n  f(1)", [("main", {"p": "1", "q": "2"}, False)]),
    "a thread": (
        "def f(p, q): pass\ndef main():\n  Thread(target=f, args=(1,), kwargs={'q': 3})",
        [("main", {"p": "1", "q": "3"}, False)],
    ),
    "a process": ("def f(p): pass\ndef main():\n  mp.Process(target=f, args=(1,))", [("main", {"p": "1"}, True)]),
    "a pool": ("def f(p): pass\ndef main():\n  pool.submit(f, 1)", [("main", {"p": "1"}, False)]),
    "a partial call": ("def f(p, q): pass\ndef main():\n  partial(f, 1, q=2)", [("main", {"p": "1", "q": "2"}, False)]),
    "a method": ("class A:\n  def f(self, p): pass\n  def g(self):\n    self.f(1)", [("A.g", {"p": "1"}, False)]),
    "a method of an heir": (
        "class B:\n  def f(self, p): pass\nclass A(B):\n  def g(self):\n    self.f(1)",
        [("A.g", {"p": "1"}, False)],
    ),
    "a constructor": ("class f:\n  def __init__(self, p): pass\ndef main():\n  f(1)", [("main", {"p": "1"}, False)]),
    "any number": ("def f(p, q): pass\ndef main(xs):\n  f(*xs)", [("main", {}, False)]),
    "a name that is another's": ("def f(p): pass\ndef main(f):\n  f(1)", []),
    "mentioned only": ("def f(p): pass\ndef main():\n  'f(1)'  # f(2)", []),
    "itself": ("def f(p):\n  f(p)", [("f", {"p": "p"}, False)]),
}


@pytest.mark.parametrize(("body", "expected"), CALLERS.values(), ids=CALLERS)
def test_who_calls_a_function_with_what(body: str, expected: list[tuple[str, dict[str, str], bool]]) -> None:
    meaning = program(body)
    wanted = next(
        function
        for function in functions(meaning)
        if function.name == "f" or (function.owner is not None and function.owner.name == "f")
    )
    found = [
        (caller.function.qualified, {hole.name: text(given) for hole, given in caller.values.items()}, caller.starts)
        for caller in meaning.callers(wanted)
    ]
    assert found == expected


def test_an_heir_without_a_constructor_of_its_own_makes_its_base() -> None:
    meaning = program("""
        class B:
            def __init__(self, p): pass
        class C(B): pass
        class D(B):
            def __init__(self, q):
                super().__init__(q + 1)
        def main():
            B(1)
            C(2)
            D(3)
    """)
    found = meaning.constructions(a_class(meaning, "B"))
    assert [(caller.function.qualified, [text(given) for given in caller.values.values()]) for caller in found] == [
        ("main", ["1"]),
        ("main", ["2"]),
        ("D.__init__", ["q + 1"]),
    ]


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("REGISTRY = {'a': A}", True),
        ("register(A)", True),
        ("made = A", True),
        ("A()", False),
        ("class B(A): pass", False),
        ("isinstance(x, A)", False),
        ("def f(x: A) -> A: pass", False),
    ],
)
def test_a_class_that_is_put_somewhere_may_be_called_from_there(use: str, expected: bool) -> None:
    meaning = program(f"class A: pass\n{use}\n")
    assert meaning.handed_out(a_class(meaning, "A")) is expected


# ---- groups, types, sockets

GROUP: dict[str, str | None] = {
    "tp_group": "tp",
    "self.tp_group": "tp",
    "self.tp_group.device_group": "tp",
    "get_world_group().cpu_group": "rank",
    "mesh.get_group('dp')": "dp",
    "mesh['pp']": "pp",
    "kept": "pp",
    "self.group": None,
    "1": None,
}


@pytest.mark.parametrize(("source", "expected"), GROUP.items(), ids=GROUP)
def test_the_axis_of_a_process_group(source: str, expected: str | None) -> None:
    meaning = program(f"def f(self):\n    kept = get_pp_group()\n    go({source})")
    function, visit = the_go(meaning)
    assert isinstance(visit.node, ast.Call)
    assert meaning.group(visit.node.args[0], Scope(function, visit.names)) == expected


SOCKETS = {
    "context.socket(zmq.PUB)": True,
    "local": True,
    "self.kept": True,
    "self.other": False,
    "port": False,
}


@pytest.mark.parametrize(("source", "expected"), SOCKETS.items(), ids=SOCKETS)
def test_what_is_a_socket(source: str, expected: bool) -> None:
    meaning = program(f"""
        class A:
            def __init__(self, context, port):
                self.kept = context.socket(zmq.PUB)
                self.other = port
            def f(self, context, port):
                local = context.socket(zmq.SUB)
                go({source})
    """)
    function, visit = the_go(meaning)
    assert isinstance(visit.node, ast.Call)
    assert meaning.is_socket(visit.node.args[0], Scope(function, visit.names)) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("self", False), ("ps", False), ("parallel_info", False), ("req", True), ("self_req", True), ("k", True)],
)
def test_whose_attribute_may_be_of_another_process(name: str, expected: bool) -> None:
    assert Meaning.foreign(name) is expected


# ---- what has no end

ENDLESS = {
    "a function that calls itself": "def f(p):\n  return f(p + 1)\ndef g():\n  go(f(tp_rank))",
    "two functions that call each other": "def a():\n  return b()\ndef b():\n  return a()\ndef g():\n  go(a())",
    "an attribute made of itself": "class A:\n  def f(self):\n    self.x = self.x + 1\n  def g(self):\n    go(self.x)",
    "two attributes made of each other": (
        "class A:\n  def f(self):\n    self.x = self.y\n    self.y = self.x\n  def g(self):\n    go(self.x)"
    ),
    "a property that asks for itself": (
        "class A:\n  @property\n  def x(self):\n    return self.x\n  def g(self):\n    go(self.x)"
    ),
    "a name of the module made of itself": "x = x + 1\ndef g():\n  go(x)",
    "two names of the module made of each other": "x = y\ny = x\ndef g():\n  go(x)",
    "a class that inherits from itself": "class A(A):\n  def g(self):\n    go(self.x)",
    "two classes that inherit from each other": "class A(B): pass\nclass B(A):\n  def g(self):\n    go(self.x)",
    "an import of itself": "from a import x\ndef g():\n  go(x)",
    "callers in a ring": "def f(p):\n  go(p)\n  g(p)\ndef g(p):\n  f(p)",
    "an attribute whose type is its own": (
        "class A:\n  def __init__(self):\n    self.b = self.b.b\n  def g(self):\n    go(self.b.b.c)"
    ),
}


@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
def test_what_goes_round_in_circles_ends(body: str) -> None:
    assert isinstance(argument(body), Expression)


def test_a_chain_of_branches_is_no_tree_of_them() -> None:
    lines = "".join(f"    if a{n} == tp_rank:\n        x = x + {n}\n" for n in range(60))
    start = time.monotonic()
    assert isinstance(argument(f"def f(x):\n{lines}    go(x)"), Expression)
    assert time.monotonic() - start < 10


def test_what_an_expression_is_asked_for_twice_is_the_same() -> None:
    meaning = program("def f(tp_rank):\n    x = [tp_rank + 1]\n    go(x)")
    function, visit = the_go(meaning)
    assert isinstance(visit.node, ast.Call)
    scope = Scope(function, visit.names)
    assert meaning.evaluate(visit.node.args[0], scope) is meaning.evaluate(visit.node.args[0], scope)


def test_where_a_coordinate_is_read_is_kept() -> None:
    found = argument("def f(self):\n    go(self.tp_rank)")
    assert found.at is not None
    assert found.at.file == "a.py"
    assert getattr(found.at.node, "lineno", None) == 2


def test_a_profile_gives_names_a_meaning() -> None:
    profile = Profile("mine", names={"column": Given("the column")})
    source = Source("a.py", "a", b"def f():\n    go(column)")
    meaning = Meaning(Program([source]), Vocabulary(profile))
    function, visit = the_go(meaning)
    assert isinstance(visit.node, ast.Call)
    assert meaning.evaluate(visit.node.args[0], Scope(function, visit.names)) == Given("the column")
    assert the(meaning, "f") is function
