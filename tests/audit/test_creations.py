"""Which calls make something that one process can have, at which address, and which only look as if they did."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import pytest

from rankbind.audit.creations import ROWS, Made, made
from rankbind.audit.expression import Private, text
from rankbind.audit.meaning import Meaning
from rankbind.audit.program import Program
from rankbind.audit.sources import Source
from rankbind.audit.vocabulary import Vocabulary


def found_in(body: str, more: Mapping[str, str] | None = None) -> list[Made]:
    source = Source("a.py", "a", textwrap.dedent(body).encode())
    meaning = Meaning(Program([source]), Vocabulary())
    module = meaning.program.module(source)
    assert module is not None
    return [one for function in module.functions for one in made(meaning, function, more or {})]


def told(statements: str, more: Mapping[str, str] | None = None) -> list[str]:
    """What statements of a function make, as ``kind: address``; ``!`` where the address is private."""
    body = "def f(self, host, port, path, name, on, sock, context, address):\n" + textwrap.indent(statements, "    ")
    return [
        f"{one.row.kind}: {'!' if isinstance(one.address, Private) else ''}{text(one.address)}"
        for one in found_in(body, more)
    ]


MADE = {
    "sock.bind(address)": "socket: address",
    "sock.bind((host, port))": "socket: host, port",
    "self.publisher.bind(f'tcp://*:{port}')": "socket: tcp://*:{port}",
    "s.bind(address)": "socket: address",
    "context.socket(zmq.PUB).bind(address)": "socket: address",
    "make_zmq_socket(context, path, zmq.PUSH, bind=True)": "socket: path",
    "make_zmq_socket(context, path, zmq.PUSH, True)": "socket: path",
    "zmq_socket_ctx(path, zmq.PUSH, bind=True)": "socket: path",
    "get_zmq_socket(context, zmq.PUSH, path, True)": "socket: path",
    "start_http_server(port)": "metrics server: port",
    "prometheus_client.start_http_server(port, addr=host)": "metrics server: port, host",
    "start_wsgi_server(port)": "metrics server: port",
    "uvicorn.run(app, host=host, port=port)": "HTTP server: host, port",
    "uvicorn.Config(app, uds=path)": "HTTP server: path",
    "HTTPServer((host, port), Handler)": "HTTP server: host, port",
    "http.server.ThreadingHTTPServer((host, port), Handler)": "HTTP server: host, port",
    "socketserver.TCPServer((host, port), Handler)": "TCP server: host, port",
    "ThreadingTCPServer((host, port), Handler)": "TCP server: host, port",
    "UnixStreamServer(path, Handler)": "unix socket server: path",
    "make_server(host, port, app)": "HTTP server: host, port",
    "TCPSite(runner, host, port)": "HTTP server: host, port",
    "web.run_app(app, host=host, port=port)": "HTTP server: host, port",
    "asyncio.start_server(handler, host, port)": "TCP server: host, port",
    "asyncio.start_unix_server(handler, path)": "unix socket server: path",
    "socket.create_server((host, port))": "TCP server: host, port",
    "loop.create_server(factory, host, port)": "TCP server: host, port",
    "server.add_insecure_port(address)": "gRPC server: address",
    "server.add_secure_port(address, credentials)": "gRPC server: address",
    "Listener(address)": "listener: address",
    "multiprocessing.connection.Listener(address)": "listener: address",
    "TCPStore(host, port, 2, True)": "TCPStore server: host, port",
    "dist.TCPStore(host_name=host, port=port, is_master=True)": "TCPStore server: host, port",
    "PublisherFactory.create(path, name)": "publisher: path, name",
    "SharedMemory(name, create=True)": "shared memory: name",
    "shared_memory.SharedMemory(name=name, create=True)": "shared memory: name",
    "sqlite3.connect('trace.db')": "database: trace.db",
    "profiler.setFilename(path)": "profiler database: path",
    "p.export_chrome_trace(path)": "trace file: path",
    "p.export_memory_timeline(path)": "trace file: path",
    "p.export_stacks(path)": "trace file: path",
    "torch.cuda.memory._dump_snapshot(path)": "memory snapshot: path",
    "FileLock(path, timeout=0)": "lock file: path",
    "FileLock(path, blocking=False)": "lock file: path",
    "open('server.pid', 'w')": "file: server.pid",
    "open(path, 'x')": "file: path",
    "gzip.open('trace.json.gz', mode='wb')": "file: trace.json.gz",
    # private: nobody can meet there
    "sock.bind((host, 0))": "socket: !a port that the kernel chooses",
    "sock.bind('tcp://*:0')": "socket: !a port that the kernel chooses",
    "sock.bind('tcp://127.0.0.1:*')": "socket: !a port that the kernel chooses",
    "start_http_server(0)": "metrics server: !a port that the kernel chooses",
    "for port in ports:\n  try:\n    sock.bind(address)\n    break\n  except OSError:\n    pass": (
        "socket: !the first that can be had"
    ),
}


@pytest.mark.parametrize(("statements", "expected"), MADE.items(), ids=MADE)
def test_what_is_made(statements: str, expected: str) -> None:
    assert told(statements) == [expected]


NOT_MADE = [
    # another function of that name
    "inspect.signature(f).bind(name)",
    "signature.bind(*args, **kwargs)",
    "sock.bind(host, port)",
    "sock.bind(address=address)",
    "widget.bind(name)",
    "s.bind(on)",
    "bind(address)",
    "subprocess.run(host=host, port=port)",
    "models.Config(host=host)",
    "factory.create(path)",
    "server.create_server((host, port))",
    "sched.start_server(handler, host, port)",
    "requests.Listener(address)",
    "client.connect('trace.db')",
    "sqlite3.connect('users.db')",
    # it uses what another made
    "sock.connect(address)",
    "make_zmq_socket(context, path, zmq.PUSH, bind=False)",
    "make_zmq_socket(context, path, zmq.PUSH)",
    "make_zmq_socket(context, path, zmq.PUSH, False)",
    "zmq_socket_ctx(path, zmq.PUSH)",
    "TCPStore(host, port, 2, False)",
    "TCPStore(host, port, 2)",
    "TCPStore(host_name=host, port=port, is_master=False)",
    "SharedMemory(name)",
    "SharedMemory(name, create=False)",
    "FileLock(path)",
    "FileLock(path, timeout=5)",
    "open('server.pid')",
    "open('server.pid', 'r')",
    "open('notes.txt', 'w')",
    "open('server.pid', on)",
    "os.open('server.pid', 'w')",
    # there is no address
    "uvicorn.Config(app)",
    "HTTPServer(*arguments)",
    "SharedMemory(None, create=True)",
    "sock.bind(None)",
    # who comes second takes what is there
    "try:\n  SharedMemory(name, create=True)\nexcept FileExistsError:\n  SharedMemory(name)",
    # a socket that is bound to see whether it can be
    "s = socket.socket()\ns.bind((host, port))\ns.close()",
    "with socket.socket() as s:\n  s.bind((host, port))\n  return s.getsockname()[1]",
]


@pytest.mark.parametrize("statements", NOT_MADE)
def test_what_makes_nothing(statements: str) -> None:
    assert told(statements) == []


KEPT = [
    "s = socket.socket()\ns.bind((host, port))\ns.listen()",
    "s = socket.socket()\ns.bind((host, port))\nreturn s",
    "s = socket.socket()\ns.bind((host, port))\nself.s = s",
    "s = socket.socket()\ns.bind((host, port))\nserve(s)",
]


@pytest.mark.parametrize("statements", KEPT)
def test_a_socket_that_is_kept_is_made(statements: str) -> None:
    assert told(statements) == ["socket: host, port"]


def test_who_fails_where_a_file_is_there_makes_it() -> None:
    statements = "try:\n  SharedMemory(name, create=True)\nexcept FileExistsError:\n  raise"
    assert told(statements) == ["shared memory: name"]


@pytest.mark.parametrize("name", ["is_port_available", "find_free_port", "get_open_port", "wait_for_port", "probe"])
def test_a_function_that_only_tries_a_port_makes_nothing(name: str) -> None:
    assert found_in(f"def {name}(sock, port):\n    sock.bind(('', port))") == []
    assert len(found_in("def start(sock, port):\n    sock.bind(('', port))")) == 1


def test_every_row_of_the_table_is_tried_here() -> None:
    """A new sort of creation has its line above."""
    for word in ROWS:
        assert any(f"{word}(" in statements for statements in MADE), word


# ---- when


def gates(statements: str) -> list[str]:
    body = "def f(self, tp_rank, sock, port, on):\n" + textwrap.indent(statements, "    ")
    return [text(one.gate) for one in found_in(body)]


def test_the_gate_is_the_path_and_the_argument_that_says_whether_anything_is_made() -> None:
    assert gates("if tp_rank == 0:\n  sock.bind(f'tcp://*:{port}')") == ["tp_rank == 0"]
    assert gates("TCPStore('h', port, 2, tp_rank == 0)") == ["tp_rank == 0"]
    assert gates("if on:\n  TCPStore('h', port, is_master=tp_rank == 0)") == ["on and (tp_rank == 0)"]
    assert gates("sock.bind(f'tcp://*:{port}')") == ["True"]


# ---- one's own


OWN = {
    "by a keyword": ("MyBus(endpoint=address)", {"MyBus": "endpoint"}, ["MyBus: address"]),
    "by position": ("open_bus(1, address)", {"open_bus": "1"}, ["open_bus: address"]),
    "the first, where nothing better is known": ("MyBus(address)", {"MyBus": "endpoint"}, ["MyBus: address"]),
    "by a dotted name": ("bus.open(address)", {"bus.open": "0"}, ["open: address"]),
    "by another dotted name": ("tin.open(address)", {"bus.open": "0"}, []),
    "none": ("MyBus()", {"MyBus": "endpoint"}, []),
}


@pytest.mark.parametrize(("statements", "more", "expected"), OWN.values(), ids=OWN)
def test_creations_of_ones_own(statements: str, more: dict[str, str], expected: list[str]) -> None:
    assert told(statements, more) == expected


def test_a_creation_of_ones_own_whose_parameter_is_in_sight() -> None:
    body = """
        class MyBus:
            def __init__(self, name, endpoint): pass
            def open(self, name, endpoint): pass
        def open_bus(name, endpoint): pass
        def f(address):
            open_bus("x", address)
    """
    (one,) = found_in(body, {"open_bus": "endpoint"})
    assert text(one.address) == "address"


def test_a_function_of_an_engine_that_is_in_sight_says_more_than_the_table() -> None:
    body = """
        def make_zmq_socket(context, path, kind, bind):
            context.socket(kind).bind(path)
        def f(context):
            make_zmq_socket(context, "tcp://*:1", 1, bind=True)
    """
    assert [one.function.name for one in found_in(body)] == ["make_zmq_socket"]
