"""Declarations written in place of gates."""

from __future__ import annotations

import ast
import stat
import textwrap
from pathlib import Path

import pytest

from rankbind import audit
from rankbind.audit.fix import ChangedError, Edit, diff, fixes, write
from rankbind.audit.settings import Settings
from rankbind.audit.sources import Source, collect

SETTINGS = Settings()


def sources(**modules: str) -> list[Source]:
    return [Source(f"{name}.py", name, textwrap.dedent(body).encode()) for name, body in modules.items()]


def fixed(**modules: str) -> dict[str, str]:
    """What becomes of the files that are changed."""
    given = sources(**modules)
    found = audit.run(given, SETTINGS).findings
    assert any(one.code == "RB701" for one in found), "there is nothing to mend"
    return {edit.file: edit.after.decode() for edit in fixes(found, given, SETTINGS)}


def body(text: str) -> str:
    """The program around it: a worker of a model with stages."""
    return HEAD + textwrap.indent(textwrap.dedent(text), "        ")


HEAD = '''\
"""A worker."""

import os

import zmq


class Worker:
    def __init__(self, args, pp_rank, tp_rank, dp_rank):
        self.args, self.pp_rank, self.tp_rank, self.dp_rank = args, pp_rank, tp_rank, dp_rank
        context = zmq.Context.instance()
'''


def after(text: str) -> str:
    (found,) = fixed(a=body(text)).values()
    ast.parse(found)
    head = HEAD.replace("import zmq\n", "import zmq\nfrom rankbind import singleton_per\n")
    assert found.startswith(head)
    return textwrap.dedent(found.removeprefix(head))


def test_a_diff_has_the_lines_that_git_has() -> None:
    edit = Edit("a.py", b"'\xe2\x80\xa8'\nx\r\ny", b"'\xe2\x80\xa8'\nz\r\ny", ())

    assert diff([edit]) == (
        "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n '\u2028'\n-x\r\n+z\r\n y\n\\ No newline at end of file\n"
    )


def test_several_statements_go_into_a_function() -> None:
    assert after("""\
        self.bus = None
        # The bus of this replica.
        if tp_rank == 0:
            # Every reader may be late.
            self.bus = context.socket(zmq.PUB)
            self.bus.set_hwm(100)  # messages
            self.bus.bind(f"tcp://*:{args.port + dp_rank}")
        self.done = True
    """) == textwrap.dedent("""\
        self.bus = None
        # The bus of this replica.

        @singleton_per(group=("pp", "tp"), rank=0)
        def make_bus():
            # Every reader may be late.
            self.bus = context.socket(zmq.PUB)
            self.bus.set_hwm(100)  # messages
            self.bus.bind(f"tcp://*:{args.port + dp_rank}")
            return self.bus

        make_bus()
        self.done = True
    """)


def test_what_is_no_rank_stays_in_the_condition() -> None:
    assert after("""\
        bus = None
        if args.port and (tp_rank == 0) and not args.quiet:
            bus = context.socket(zmq.PUB)
            bus.bind(f"tcp://*:{args.port + dp_rank}")
        self.bus = bus
    """) == textwrap.dedent("""\
        bus = None

        @singleton_per(group=("pp", "tp"), rank=0)
        def make_bus():
            bus = context.socket(zmq.PUB)
            bus.bind(f"tcp://*:{args.port + dp_rank}")
            return bus

        if args.port and not args.quiet:
            bus = make_bus()
        self.bus = bus
    """)


SERVER = """\
    from prometheus_client import start_http_server

    class Metrics:
        def __init__(self, config, pp_rank, tp_rank, dp_rank):
            self.where = (pp_rank, tp_rank, dp_rank)
"""


@pytest.mark.parametrize(
    ("gate", "otherwise", "call", "rest"),
    [
        ("tp_rank == 0", "", "self.server = make_server()", ""),
        ("not tp_rank", "", "self.server = make_server()", ""),
        ("0 == tp_rank", "", "self.server = make_server()", ""),
        ("tp_rank == 0", "else:\n    self.server = None", "self.server = make_server()", ""),
        ("config.on and tp_rank == 0", "", "if config.on:\n    self.server = make_server()", ""),
        (
            "config.on and tp_rank == 0",
            "else:\n    self.server = None",
            "if config.on:\n    self.server = make_server()",
            "else:\n    self.server = None",
        ),
    ],
)
def test_one_assignment_becomes_one(gate: str, otherwise: str, call: str, rest: str) -> None:
    made = "    self.server = start_http_server(\n        config.port + dp_rank,  # one each\n    )\n"
    inner = f"if {gate}:\n{made}{otherwise}"
    (found,) = fixed(a=textwrap.dedent(SERVER) + textwrap.indent(inner, " " * 8) + "\n").values()
    ast.parse(found)
    wanted = f"""\
@singleton_per(group=("pp", "tp"), rank=0)
def make_server():
    return start_http_server(
        config.port + dp_rank,  # one each
    )

{call}
"""
    assert textwrap.indent(wanted + (f"{rest}\n" if rest else ""), " " * 8) in found
    assert found.rstrip().endswith((rest or call).splitlines()[-1])


def test_a_function_that_does_nothing_else_is_decorated() -> None:
    found = fixed(
        a="""
        import zmq

        class Worker:
            def __init__(self, port, pp_rank, tp_rank):
                self.port, self.pp_rank, self.tp_rank = port, pp_rank, tp_rank

            def start(self):
                \"\"\"Serve.\"\"\"
                if self.tp_rank == 0:
                    # Anybody may ask.
                    self.bus = zmq.Context().socket(zmq.REP)
                    self.bus.bind(f"tcp://*:{self.port}")
        """
    )
    assert (
        '    @singleton_per(group=("pp", "tp"), rank=0)\n'
        "    def start(self):\n"
        '        """Serve."""\n'
        "        # Anybody may ask.\n"
        "        self.bus = zmq.Context().socket(zmq.REP)\n"
        '        self.bus.bind(f"tcp://*:{self.port}")\n'
    ) in found["a.py"]


def test_an_early_return_goes() -> None:
    found = fixed(
        a="""
        import zmq

        def open_bus(config, pp_rank, tp_rank):
            if tp_rank != 0:
                return None

            bus = zmq.Context().socket(zmq.REP)
            bus.bind(f"tcp://*:{config.port}")
            return bus

        def open_log(config, pp_rank, tp_rank):
            if not config.log or tp_rank != 0:
                return None
            log = zmq.Context().socket(zmq.REP)
            log.bind(f"tcp://*:{config.log}")
            return log
        """
    )
    assert found["a.py"] == textwrap.dedent("""
        import zmq
        from rankbind import singleton_per

        @singleton_per(group=("pp", "tp"), rank=0)
        def open_bus(config, pp_rank, tp_rank):
            bus = zmq.Context().socket(zmq.REP)
            bus.bind(f"tcp://*:{config.port}")
            return bus

        @singleton_per(group=("pp", "tp"), rank=0)
        def open_log(config, pp_rank, tp_rank):
            if not config.log:
                return None
            log = zmq.Context().socket(zmq.REP)
            log.bind(f"tcp://*:{config.log}")
            return log
        """)


def test_a_function_of_our_own_is_decorated_where_it_stands() -> None:
    found = fixed(
        a="""
        import b

        class Worker:
            def __init__(self, port, pp_rank, tp_rank):
                self.bus = None
                self.where = pp_rank, tp_rank
                if tp_rank == 0:
                    self.bus = b.open_bus(port)
        """,
        b="""
        import zmq

        def open_bus(port):
            bus = zmq.Context().socket(zmq.REP)
            bus.bind(f"tcp://*:{port}")
            return bus
        """,
    )
    assert "        self.where = pp_rank, tp_rank\n        self.bus = b.open_bus(port)\n" in found["a.py"]
    assert "singleton_per" not in found["a.py"]
    assert '\n@singleton_per(group=("pp", "tp"), rank=0)\ndef open_bus(port):\n' in found["b.py"]


BIND = """\
    self.bus = context.socket(zmq.PUB)
    self.bus.bind(f'tcp://*:{args.port + dp_rank}')
"""
PLAIN = f"if tp_rank == 0:\n{BIND}"


@pytest.mark.parametrize(
    "text",
    [
        f"if tp_rank == 0 or args.all:\n{BIND}",
        f"if (args.port or tp_rank == 0) and tp_rank == 0:\n{BIND}",
        f"{PLAIN}else:\n    self.bus = context.socket(zmq.SUB)",
        f"if args.quiet:\n    pass\nelif tp_rank == 0:\n{BIND}",
    ],
    ids=["everyone sometimes", "more than one thing", "the others do something", "elif"],
)
def test_gates_that_say_more_are_left_alone(text: str) -> None:
    assert fixed(a=body(text)) == {}


@pytest.mark.parametrize(
    "text",
    [
        "if tp_rank == 0:\n    port = args.port + dp_rank\n    context.socket(zmq.PUB).bind(f'tcp://*:{port}')\nprint(port)",
        f"{PLAIN}    return",
        "if tp_rank == 0: self.bus = context.socket(zmq.PUB).bind(f'tcp://*:{args.port + dp_rank}')",
        f"if tp_rank == 0:\n    self.words = super().words\n{BIND}",
    ],
    ids=["a name is read after it", "return", "one line", "super"],
)
def test_statements_that_mean_another_thing_in_a_function_are_left_alone(text: str) -> None:
    assert fixed(a=body(text)) == {}


@pytest.mark.parametrize(
    "text",
    [
        "for port in args.ports:\n    if tp_rank == 0:\n        context.socket(zmq.PUB).bind(f'tcp://*:{port}')",
        f"if tp_rank == 0 and pp_rank == 0:\n{BIND.replace(' + dp_rank', '')}",
        f"if (\n    args.port  # the base\n    and tp_rank == 0\n):\n{BIND}",
        f"singleton_per = 1\n{PLAIN}",
    ],
    ids=["a loop", "replicas want one each", "a comment would be lost", "the name is taken"],
)
def test_what_takes_thought_is_left_alone(text: str) -> None:
    assert fixed(a=body(text)) == {}


def test_files_that_are_written_again_and_again_are_left_alone() -> None:
    text = "if tp_rank == 0:\n    open(f'{args.folder}/trace-{dp_rank}.json', 'w').write('')"
    assert fixed(a=body(text)) == {}


def test_two_gates_of_one_file_are_mended_together() -> None:
    given = sources(a=body("".join(PLAIN.replace("bus", name).replace("port", name) for name in ("one", "two"))))
    (edit,) = fixes(audit.run(given, SETTINGS).findings, given, SETTINGS)
    assert len(edit.findings) == 2
    assert edit.after.count(b"from rankbind import singleton_per") == 1
    assert b"make_one()" in edit.after
    assert b"make_two()" in edit.after


def test_only_what_is_asked_for_is_mended() -> None:
    given = sources(a=body(PLAIN))
    assert fixes([], given, SETTINGS) == []


PLAIN = (
    "if tp_rank == 0:\n    self.bus = context.socket(zmq.PUB)\n    self.bus.bind(f'tcp://*:{args.port + dp_rank}')\n"
)


@pytest.mark.parametrize("import_", ["from rankbind import singleton_per", "from rankbind import singleton_per, init"])
def test_an_import_that_is_there_is_enough(import_: str) -> None:
    found = fixed(a=body(PLAIN).replace("import zmq", f"import zmq\n{import_}"))["a.py"]
    assert found.count("import singleton_per") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os\nimport zmq\n", "import os\nimport zmq\nfrom rankbind import singleton_per\n"),
        ("from zmq import Context\n", "from rankbind import singleton_per\nfrom zmq import Context\n"),
        (
            "import os\n\nfrom . import other\n",
            "import os\n\nfrom rankbind import singleton_per\n\nfrom . import other\n",
        ),
        (
            "from __future__ import annotations\n",
            "from __future__ import annotations\n\nfrom rankbind import singleton_per\n",
        ),
        ('"""Words."""\n', '"""Words."""\n\nfrom rankbind import singleton_per\n'),
    ],
)
def test_the_import_stands_where_imports_stand(before: str, after: str) -> None:
    program = (
        "\n\ndef start(zmq, port, pp_rank, tp_rank):\n    if tp_rank != 0:\n        return None\n"
        "    bus = zmq.socket()\n    bus.bind(f'tcp://*:{port}')\n    return bus\n"
    )
    assert fixed(a=before + program)["a.py"].startswith(after)


def test_line_ends_and_letters_stay() -> None:
    text = body("# größer\n" + PLAIN).replace("\n", "\r\n")
    given = [Source("a.py", "a", text.encode())]
    (edit,) = fixes(audit.run(given, SETTINGS).findings, given, SETTINGS)
    assert edit.after.count(b"\n") == edit.after.count(b"\r\n")
    assert "größer".encode() in edit.after


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("worker.py")
    path.write_text(body(PLAIN))
    return path


def edits(file: Path) -> list[Edit]:
    given, _ = collect([file], SETTINGS)
    return fixes(audit.run(given, SETTINGS).findings, given, SETTINGS)


def test_the_diff_says_what_is_written(file: Path) -> None:
    found = edits(file)
    lines = diff(found).splitlines()
    assert lines[:2] == ["--- a/worker.py", "+++ b/worker.py"]
    assert "+from rankbind import singleton_per" in lines
    assert "-        if tp_rank == 0:" in lines
    assert '+        @singleton_per(group=("pp", "tp"), rank=0)' in lines
    file.chmod(0o754)
    write(found)
    assert file.read_bytes() == found[0].after
    assert stat.S_IMODE(file.stat().st_mode) == 0o754
    assert [path.name for path in Path().iterdir()] == ["worker.py"]
    assert edits(file) == []


def test_a_file_that_has_changed_is_not_written(file: Path) -> None:
    found = edits(file)
    file.write_text(body(PLAIN) + "# mine\n")
    with pytest.raises(ChangedError, match=r"worker\.py has changed"):
        write(found)
    assert file.read_text().endswith("# mine\n")


def test_a_link_stays_one(file: Path) -> None:
    file.rename("real.py")
    file.symlink_to("real.py")
    write(edits(file))
    assert file.is_symlink()
    assert "make_bus()" in Path("real.py").read_text()
