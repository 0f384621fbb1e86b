"""Whoever takes a reserved socket serves on it: libraries, children however they are started, programs that are run."""

from __future__ import annotations

import asyncio
import errno
import http.server
import os
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import urllib.request
import wsgiref.simple_server
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from rankbind.errors import HandoverError
from rankbind.runtime.ports import Parcel, Reservation, inherited, passing, reserve

from ..support import scripts

LIMIT = 20_000
"""Milliseconds in which anything happens that is going to."""


Make = Callable[[int], "zmq.Socket[bytes]"]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes pyzmq sockets, and closes them."""
    made = []
    with zmq.Context() as context:

        def make(kind: int) -> zmq.Socket[bytes]:
            made.append(context.socket(kind))
            made[-1].linger = 0
            return made[-1]

        yield make
        for each in made:
            each.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, whatever TMPDIR is: ipc paths have a limit."""
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as path:
        yield Path(path)


def try_to_listen(port: int) -> int:
    """An errno, 0 if it worked."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
            other.listen()
        except OSError as error:
            return error.errno or -1
    return 0


def echo(port: int) -> bytes:
    """What a server on `port` that answers once and closes has to say."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT / 1000) as client:
        return b"".join(iter(lambda: client.recv(100), b""))


# pyzmq


@pytest.mark.parametrize("where", ["127.0.0.1", "*", "[::1]", "tcp://[::]:0", "ipc://*", "ipc://FOLDER/x.sock"])
def test_a_pyzmq_socket_serves_on_it(where: str, make: Make, folder: Path) -> None:
    with reserve(where.replace("FOLDER", str(folder))) as held:
        pull, push = make(zmq.PULL), make(zmq.PUSH)
        push.ipv6 = True
        push.connect(str(held.endpoint).replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]"))
        push.send(b"early")
        held.bind_zmq(pull)
        push.send(b"late")

        assert pull.last_endpoint.decode().rstrip("\0") == str(held.endpoint)
        assert [pull.recv() for _ in range(2) if pull.poll(LIMIT)] == [b"early", b"late"]
        assert not held.held
        assert "pyzmq PULL" in held.given


def test_the_socket_may_bind_elsewhere_too(make: Make) -> None:
    with reserve() as first, reserve() as second:
        pull, push = make(zmq.PULL), make(zmq.PUSH)
        first.bind_zmq(pull)
        pull.bind("tcp://127.0.0.1:0")
        third = pull.last_endpoint.decode()
        second.bind_zmq(pull)
        for endpoint in (str(first.endpoint), third, str(second.endpoint)):
            push.connect(endpoint)
            push.send(b"x")
            assert pull.poll(LIMIT)
            pull.recv()
            push.disconnect(endpoint)


def test_an_asyncio_socket_serves_on_it() -> None:
    async def go() -> bytes:
        with (
            zmq.asyncio.Context() as context,
            context.socket(zmq.REP) as reply,
            context.socket(zmq.REQ) as request,
            reserve() as held,
        ):
            held.bind_zmq(reply)
            request.connect(str(held.endpoint))
            await request.send(b"?")
            await asyncio.wait_for(reply.recv(), LIMIT / 1000)
            await reply.send(b"!")
            return await asyncio.wait_for(request.recv(), LIMIT / 1000)

    assert asyncio.run(go()) == b"!"


def test_the_port_is_free_when_the_pyzmq_socket_is_closed() -> None:
    with reserve() as held:
        with zmq.Context() as context, context.socket(zmq.PULL) as pull:
            held.bind_zmq(pull)
            assert try_to_listen(held.port) == errno.EADDRINUSE
        assert try_to_listen(held.port) == 0


def test_a_context_that_cannot_bind_takes_nothing() -> None:
    with reserve() as held:
        with zmq.Context(io_threads=0) as context, context.socket(zmq.PULL) as pull:
            before = len(list(Path("/proc/self/fd").iterdir()))
            with pytest.raises(HandoverError, match="No thread available"):
                held.bind_zmq(pull)
            assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert held.held


# A subscriber that is early


def await_subscription(publisher: zmq.Socket[bytes], subscriber: zmq.Socket[bytes]) -> None:
    poller = zmq.Poller()
    poller.register(publisher, zmq.POLLIN)
    # Polled as well: after a reconnect libzmq subscribes anew when the subscriber's own thread comes by.
    poller.register(subscriber, zmq.POLLIN)
    assert poller.poll(LIMIT) == [(publisher, zmq.POLLIN)]
    assert publisher.recv() == b"\1"


class Stream:
    """A publisher that knows when it is heard, and a subscriber."""

    def __init__(self, make: Make) -> None:
        self.publisher, self.subscriber = make(zmq.XPUB), make(zmq.SUB)
        self.subscriber.rcvhwm = self.publisher.sndhwm = 0
        self.subscriber.subscribe(b"")

    def hears(self, count: int) -> list[int]:
        """Publish 0, 1, ... once the subscription has arrived; what came of them."""
        await_subscription(self.publisher, self.subscriber)
        for number in range(count):
            self.publisher.send(b"%d" % number)
        return [int(self.subscriber.recv()) for _ in range(count) if self.subscriber.poll(LIMIT)]


@pytest.mark.parametrize("handshake", [30_000, 50], ids=["waits", "gives up and connects again"])
def test_an_early_subscriber_hears_what_it_would_have_heard(handshake: int, make: Make) -> None:
    """Beside an ordinary socket, bound from the start: the same messages."""
    with reserve() as held:
        late, ordinary = Stream(make), Stream(make)
        ordinary.publisher.bind("tcp://127.0.0.1:0")
        for stream, endpoint in ((late, str(held.endpoint)), (ordinary, ordinary.publisher.last_endpoint.decode())):
            stream.subscriber.handshake_ivl = handshake
            monitor = stream.subscriber.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED)
            stream.subscriber.connect(endpoint)
            # Connected while nobody serves; in the other case, given up once and connected again.
            for _ in range(1 if handshake > 1000 or stream is ordinary else 3):
                assert monitor.poll(LIMIT)
                monitor.recv_multipart()
            stream.subscriber.disable_monitor()
            monitor.close()

        held.bind_zmq(late.publisher)

        assert late.hears(2000) == ordinary.hears(2000) == list(range(2000))


def test_more_early_subscribers_than_libzmq_would_let_wait(make: Make) -> None:
    with reserve() as held:
        publisher = make(zmq.XPUB)
        publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        subscribers = [make(zmq.SUB) for _ in range(150)]
        for subscriber in subscribers:
            subscriber.subscribe(b"")
            subscriber.connect(str(held.endpoint))
        held.bind_zmq(publisher)
        for _ in subscribers:
            assert publisher.poll(LIMIT)
            publisher.recv()
        publisher.send(b"x")
        assert all(subscriber.poll(LIMIT) and subscriber.recv() == b"x" for subscriber in subscribers)


def test_what_was_pushed_early_arrives(make: Make) -> None:
    with reserve() as held:
        pull, push = make(zmq.PULL), make(zmq.PUSH)
        push.connect(str(held.endpoint))
        for number in range(500):
            push.send(b"%d" % number)
        held.bind_zmq(pull)
        assert [int(pull.recv()) for _ in range(500) if pull.poll(LIMIT)] == list(range(500))


# Servers of the standard library


def test_asyncio_serves_on_it() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def go(held: Reservation) -> bytes:
        async with await asyncio.start_server(answer, sock=held.take()):
            return await asyncio.to_thread(echo, held.port)

    with reserve() as held:
        assert asyncio.run(go(held)) == b"hello"


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002  # so in the base
        pass


class HelloPlain(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"hello")


def hello(environment: dict[str, Any], start: Any) -> list[bytes]:
    assert environment["SERVER_PORT"] != "0"
    start("200 OK", [])
    return [b"hello"]


@pytest.mark.parametrize("kind", ["http.server", "http.server, threads", "wsgiref", "socketserver"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_server_of_the_standard_library_serves_on_it(kind: str, host: str) -> None:
    def make() -> socketserver.TCPServer:
        if kind == "wsgiref":
            handler = type("Quiet", (wsgiref.simple_server.WSGIRequestHandler,), {"log_message": Hello.log_message})
            server = wsgiref.simple_server.WSGIServer(("", 0), handler, bind_and_activate=False)
            server.set_app(hello)
            return server
        if kind == "socketserver":
            return socketserver.TCPServer(("", 0), HelloPlain, bind_and_activate=False)
        maker = http.server.ThreadingHTTPServer if "threads" in kind else http.server.HTTPServer
        return maker(("", 0), Hello, bind_and_activate=False)

    with reserve(host) as held, make() as server:
        held.bind_server(server)
        assert server.server_address[:2] == (host, held.port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            if kind == "socketserver":
                with socket.create_connection((host, held.port), timeout=LIMIT / 1000) as client:
                    assert client.recv(5) == b"hello"
            else:
                url = str(held.endpoint).replace("tcp", "http")
                with urllib.request.urlopen(url, timeout=LIMIT / 1000) as answer:
                    assert answer.read() == b"hello"
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_is_bound_already_is_refused() -> None:
    with reserve() as held, http.server.HTTPServer(("127.0.0.1", 0), Hello) as server:
        with pytest.raises(HandoverError, match="bind_and_activate=False"):
            held.bind_server(server)
        with pytest.raises(HandoverError, match="no socket that could be replaced"):
            held.bind_server(object())  # type: ignore[arg-type]
        assert held.held


# uvicorn and TCPStore, in processes of their own: they have signal handlers and warnings


@pytest.mark.parametrize("how", ["fd", "sockets"])
def test_uvicorn_serves_on_it(how: str, tmp_path: Path) -> None:
    code = """
        import asyncio, sys, urllib.request, uvicorn
        from rankbind.runtime.ports import reserve

        async def app(scope, receive, send):
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"hello"})

        async def go(held):
            url = f"http://127.0.0.1:{held.port}"
            if sys.argv[1] == "fd":
                config = uvicorn.Config(app, fd=held.take_fd(), lifespan="off", log_level="warning")
                sockets = None
            else:
                config = uvicorn.Config(app, lifespan="off", log_level="warning")
                sockets = [held.take()]
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=sockets))
            answer = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=20).read())
            server.should_exit = True
            await serving
            return answer

        with reserve() as held:
            print(asyncio.run(go(held)))
    """
    path = scripts.write(tmp_path, code)
    # Without -W error: whether uvicorn closes all it opens is its own affair.
    done = subprocess.run([sys.executable, str(path), how], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "b'hello'\n"), done.stderr


def test_tcpstore_serves_on_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
        import os, socket
        from datetime import timedelta
        from torch.distributed import TCPStore
        from rankbind.runtime.ports import reserve

        for libuv in (True, False):
            with reserve(keep=True) as held:
                options = dict(world_size=1, timeout=timedelta(seconds=20), use_libuv=libuv)
                store = TCPStore("127.0.0.1", held.port, is_master=True, master_listen_fd=held.take_fd(), **options)
                other = TCPStore("127.0.0.1", held.port, is_master=False, **options)
                other.set("a", "b")
                assert (store.get("a"), store.port) == (b"b", held.port)
                del store, other
                held.take_back()
                assert held.take().getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        print("served", flush=True)
        os._exit(0)
    """
    path = scripts.write(tmp_path, code)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr


# Children of multiprocessing, and forks


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_child_gets_it_as_an_argument(method: str, kept: bool, tmp_path: Path) -> None:
    code = """
        import multiprocessing, os, socket, sys
        from rankbind.errors import HandoverError
        from rankbind.runtime.ports import reserve

        def child(held, parent, told):
            assert held.held and not held.keep and os.getpid() != parent
            listener = held.take()
            told.send(held.port)
            connection, _ = listener.accept()
            connection.sendall(b"%d" % os.getpid())

        if __name__ == "__main__":
            of = multiprocessing.get_context(sys.argv[1])
            keep = sys.argv[2] == "True"
            held = reserve(keep=keep)
            told, tell = of.Pipe(duplex=False)
            process = of.Process(target=child, args=(held, os.getpid(), tell))
            process.start()
            assert told.recv() == held.port
            assert held.held is keep
            with socket.create_connection(("127.0.0.1", held.port)) as client:
                assert client.recv(99) == b"%d" % process.pid
            for attempt in (held.take, held.parcel):
                try:
                    attempt()
                except HandoverError as error:
                    assert f"opened by process {process.pid}" in str(error), error
                else:
                    sys.exit("given twice")
            process.join()
            with socket.socket() as other:  # what the dead child had is gone, what was kept is not
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                assert (other.connect_ex(("127.0.0.1", held.port)) == 0) is keep
            if keep:
                held.take_back()
                held.take().close()
            held.close()
            print(process.exitcode)
    """
    assert scripts.run(tmp_path, code, method, str(kept)) == "0\n"


@pytest.mark.parametrize("what", ["reservation", "parcel"])
@pytest.mark.parametrize("through", ["pipe", "queue"])
def test_a_running_child_gets_it_through(through: str, what: str, tmp_path: Path) -> None:
    code = """
        import multiprocessing, socket, sys
        from rankbind.runtime.ports import Parcel, reserve

        def child(receive):
            found = receive()
            held = found.open() if isinstance(found, Parcel) else found
            connection, _ = held.take().accept()
            connection.sendall(held.name.encode())

        if __name__ == "__main__":
            of = multiprocessing.get_context("spawn")
            if sys.argv[1] == "pipe":
                receiver, sender = of.Pipe(duplex=False)
                receive, send = receiver.recv, sender.send
            else:
                queue = of.Queue()
                receive, send = queue.get, queue.put
            process = of.Process(target=child, args=(receive,))
            process.start()
            held = reserve(name="ours")
            with socket.create_connection(("127.0.0.1", held.port)) as client:
                send(held.parcel() if sys.argv[2] == "parcel" else held)
                assert client.recv(99) == b"ours"
            process.join()
            held.close()
            print(process.exitcode)
    """
    assert scripts.run(tmp_path, code, through, what) == "0\n"


def in_children(count: int, function: Any) -> list[int]:
    """Fork `count` children that run `function`; their exit statuses: what it returned, 99 if it raised."""
    children = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            status = 99
            try:
                status = function()
            finally:
                os._exit(status)
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def test_of_many_forked_children_one_opens_the_parcel() -> None:
    def child(parcel: Parcel) -> int:
        try:
            held = parcel.open()
        except HandoverError as error:
            return 1 if "taken out already" in str(error) else 98
        connection, _ = held.take().accept()
        connection.sendall(b"hello")
        return 0

    for _ in range(5):
        with reserve() as held:
            parcel = held.parcel()
            assert try_to_listen(held.port) == errno.EADDRINUSE
            with socket.create_connection(("127.0.0.1", held.port)) as client:
                assert sorted(in_children(8, lambda parcel=parcel: child(parcel))) == [0, *[1] * 7]
                assert client.recv(5) == b"hello"
            assert "opened by process" in held.given
            with pytest.raises(HandoverError, match="no copy was kept"):
                held.take_back()
            with pytest.raises(HandoverError, match="taken out already"):
                parcel.open()
        assert try_to_listen(held.port) == 0


def test_a_parcel_that_nobody_opened_is_to_be_had_back() -> None:
    with reserve() as held:
        parcel = held.parcel()
        assert in_children(1, lambda: 0) == [0]
        assert not held.held

        held.take_back()

        assert held.held
        assert not held.given
        with pytest.raises(HandoverError, match="taken out already"):
            parcel.open()
        with held.take() as listener:
            assert listener.getsockname()[1] == held.port


def test_a_parcel_that_is_dropped_lets_go_of_the_port() -> None:
    held = reserve()
    parcel = held.parcel()
    assert try_to_listen(held.port) == errno.EADDRINUSE
    held.close()
    assert try_to_listen(held.port) == 0
    with pytest.raises(HandoverError, match="closed the reservation"):
        parcel.open()
    with pytest.raises(HandoverError, match="closed the reservation"):
        ForkingPickler.dumps(parcel)


# systemd's convention

CHILD = """
    import json, os, signal, sys
    from rankbind.runtime.ports import inherited
    listen = {name: text for name, text in os.environ.items() if name.startswith("LISTEN_")}
    pid = os.getpid()
    blocked = int(open("/proc/self/status").read().partition("SigIgn:")[2].split()[0], 16)
    found = inherited()
    told = {
        "pid": pid, "listen": listen, "found": [[str(each.endpoint), each.name] for each in found],
        "again": len(inherited()), "left": [name for name in os.environ if name.startswith("LISTEN_")],
        "environment": sorted(os.environ), "arguments": sys.argv[1:],
        "inheritable": [os.get_inheritable(3 + at) for at in range(len(found))],
    }
    print(json.dumps(told), flush=True)
    for each in found:
        connection, _ = each.take().accept()
        connection.sendall(b"%d" % os.getpid())
        connection.close()
"""


def told_by(arguments: list[str], options: dict[str, Any], **more: Any) -> tuple[subprocess.Popen[str], Any]:
    import json

    child = subprocess.Popen(arguments, **options, stdout=subprocess.PIPE, text=True, **more)
    assert child.stdout
    return child, json.loads(child.stdout.readline())


def test_a_program_finds_them_where_systemd_would_put_them(tmp_path: Path) -> None:
    script = scripts.write(tmp_path, CHILD)
    with reserve(name="http") as first, reserve("::1") as second:
        # As handed over: the second, with the higher descriptor, first.
        with passing([sys.executable, script, "--flag"], second, first) as (arguments, options):
            child, told = told_by(arguments, options, env={"PATH": os.environ["PATH"], "MINE": "1"})
        with child:
            assert told["pid"] == child.pid
            names = "unknown:http"
            assert told["listen"] == {"LISTEN_PID": str(child.pid), "LISTEN_FDS": "2", "LISTEN_FDNAMES": names}
            assert told["found"] == [[str(second.endpoint), ""], [str(first.endpoint), "http"]]
            assert (told["again"], told["left"], told["arguments"]) == (0, [], ["--flag"])
            assert not any(told["inheritable"])
            assert not first.held
            assert not second.held
            assert str(sys.executable) in first.given
            with socket.create_connection(("::1", second.port)) as client:
                assert client.recv(99) == b"%d" % child.pid
            assert echo(first.port) == b"%d" % child.pid
        assert child.returncode == 0
        assert try_to_listen(first.port) == 0


def test_the_program_gets_the_environment_and_signals_it_would_have_had() -> None:
    show = ["sh", "-c", "env; grep SigIgn /proc/$$/status"]
    bare = subprocess.run(show, env={"A": "1"}, capture_output=True, text=True, check=True).stdout
    with reserve() as held, passing(show, held) as (arguments, options):
        passed = subprocess.run(arguments, **options, env={"A": "1"}, capture_output=True, text=True, check=True).stdout

    assert [line for line in passed.splitlines() if not line.startswith("LISTEN_")] == bare.splitlines()


def test_a_program_that_is_not_there_takes_nothing() -> None:
    with reserve() as held:
        with pytest.raises(HandoverError, match="no program 'no-such-program'"), passing(["no-such-program"], held):
            pass
        with pytest.raises(HandoverError, match="no command"), passing([], held):
            pass
        with pytest.raises(OSError, match="nowhere"), passing(["cat"], held) as (arguments, options):
            subprocess.Popen(arguments, **options, cwd="/nowhere")
        assert held.held
        with passing(["/no/such/program"], held) as (arguments, options):
            done = subprocess.run(arguments, **options, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (
            127,
            "rankbind: cannot run /no/such/program: No such file or directory\n",
        )


def test_a_descriptor_that_is_in_the_way_is_not_overwritten() -> None:
    """The child was passed 3 for something else."""
    code = """
        import os, subprocess
        from rankbind.runtime.ports import passing, reserve
        blocker = os.dup2(os.open("/dev/null", os.O_RDONLY), 3)
        with reserve() as held, passing(["cat"], held) as (arguments, options):
            options["pass_fds"] += (3,)
            done = subprocess.run(arguments, **options, capture_output=True, text=True)
            print(done.returncode, done.stderr, end="")
    """
    with tempfile.TemporaryDirectory() as path:
        assert scripts.run(Path(path), code).startswith("1 rankbind: LISTEN_FDS needs descriptor 3, which is passed")


def test_one_cannot_be_passed_twice() -> None:
    with reserve() as held, pytest.raises(HandoverError, match="once only"), passing(["cat"], held, held):
        pass
    with reserve() as held:
        with passing(["true"], held) as (arguments, options):
            subprocess.run(arguments, **options, check=True)
        with pytest.raises(HandoverError, match="once only, and was: to true at"), passing(["true"], held):
            pass


def test_nothing_is_inherited_by_whom_it_was_not_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inherited() == []
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", str(os.getppid()))
    assert inherited() == []


@pytest.mark.parametrize(
    ("fds", "names", "says"),
    [
        ("x", None, "not a number of descriptors"),
        ("", None, "not a number of descriptors"),
        ("1", "a:b", "2 names"),
        ("100000", None, "LISTEN_FDS=100000 was passed"),
    ],
)
def test_variables_that_cannot_be_are_errors(
    fds: str, names: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LISTEN_FDS", fds)
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    if names:
        monkeypatch.setenv("LISTEN_FDNAMES", names)
    with pytest.raises(HandoverError, match=says):
        inherited()
    assert os.environ["LISTEN_FDS"] == fds


# A supervisor that keeps a copy


def test_a_client_of_a_killed_server_is_served_by_the_next(tmp_path: Path) -> None:
    script = scripts.write(tmp_path, CHILD)
    command = [sys.executable, str(script)]
    with reserve(keep=True) as held:
        with passing(command, held) as (arguments, options):
            child, _ = told_by(arguments, options)
        child.send_signal(signal.SIGKILL)
        child.communicate()

        assert try_to_listen(held.port) == errno.EADDRINUSE
        with socket.create_connection(("127.0.0.1", held.port), timeout=LIMIT / 1000) as client:
            with pytest.raises(HandoverError, match=r"take_back\(\) says that it is gone"), passing(command, held):
                pass
            held.take_back()
            with passing(command, held) as (arguments, options):
                child, _ = told_by(arguments, options)
            assert client.recv(99) == b"%d" % child.pid
        child.communicate()
        assert held.held
    assert try_to_listen(held.port) == 0


def test_a_subscriber_goes_on_hearing_a_publisher_that_is_restarted(make: Make) -> None:
    """Without anybody taking the port in between."""
    subscriber = make(zmq.SUB)
    subscriber.subscribe(b"")
    with reserve(keep=True) as held:
        subscriber.connect(str(held.endpoint))
        for number in range(3):
            with zmq.Context() as other, other.socket(zmq.XPUB) as publisher:
                held.bind_zmq(publisher)
                await_subscription(publisher, subscriber)
                publisher.send(b"%d" % number)
                assert subscriber.poll(LIMIT)
                assert subscriber.recv() == b"%d" % number
            assert try_to_listen(held.port) == errno.EADDRINUSE
            held.take_back()
