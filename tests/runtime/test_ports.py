"""A reserved port is nobody else's, is given away once, and what is given is what was declared."""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from rankbind import Endpoint, RankbindError
from rankbind.endpoint import IPC_PATH_BYTES
from rankbind.errors import EndpointError, HandoverError, PortError
from rankbind.runtime.ports import Reservation, adopt, reserve

from ..support import scripts
from ..support.child import forked

SHARING = {"nothing": 0, "SO_REUSEADDR": socket.SO_REUSEADDR, "SO_REUSEPORT": socket.SO_REUSEPORT}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, whatever TMPDIR is: ipc paths have a limit."""
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as path:
        yield Path(path)


def try_to_listen(port: int, option: int = socket.SO_REUSEADDR, host: str = "127.0.0.1") -> int:
    """An errno, 0 if it worked."""
    with socket.socket() as other:
        if option:
            other.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            other.bind((host, port))
            other.listen()
        except OSError as error:
            return error.errno or -1
    return 0


def serves(endpoint: Endpoint, listener: socket.socket) -> bool:
    """Whether a client of `endpoint` is heard by `listener`."""
    family = socket.AF_UNIX if endpoint.transport == "ipc" else listener.family
    with socket.socket(family) as client:
        client.settimeout(10)
        client.connect(listener.getsockname())
        client.sendall(b"x")
        listener.settimeout(10)
        served, _ = listener.accept()
        with served:
            return served.recv(1) == b"x"


# What is held


@pytest.mark.parametrize("option", SHARING)
def test_nobody_else_gets_it_whatever_options_they_set(option: str) -> None:
    with reserve() as held:
        assert try_to_listen(held.port, SHARING[option]) == errno.EADDRINUSE
        assert try_to_listen(held.port, SHARING[option], "0.0.0.0") == errno.EADDRINUSE


@pytest.mark.parametrize(
    ("where", "real"),
    [
        ("127.0.0.1", "tcp://127.0.0.1:PORT"),
        ("localhost", "tcp://127.0.0.1:PORT"),
        ("lo", "tcp://127.0.0.1:PORT"),
        ("*", "tcp://0.0.0.0:PORT"),
        ("tcp://*:0", "tcp://0.0.0.0:PORT"),
        ("::1", "tcp://[::1]:PORT"),
        ("[::1]", "tcp://[::1]:PORT"),
        ("tcp://[::]:0", "tcp://[::]:PORT"),
        ("ipc://*", "ipc://@NAME"),
        ("ipc://@rankbind-test-NAME", "ipc://@rankbind-test-NAME"),
        ("ipc://FOLDER/x.sock", "ipc://FOLDER/x.sock"),
    ],
)
def test_the_endpoint_is_the_real_one_for_every_spelling(where: str, real: str, folder: Path) -> None:
    name = folder.name
    where, real = (text.replace("FOLDER", str(folder)) for text in (where, real))
    where = where.replace("NAME", name)

    with reserve(where) as held:
        assert re.fullmatch(
            re.escape(real.replace("NAME", name)).replace("PORT", "[1-9][0-9]+")
            if where != "ipc://*"
            else "ipc://@[0-9a-f]+",
            str(held.endpoint),
        )
        assert held.port == held.endpoint.first
        with held.take() as listener:
            assert serves(held.endpoint, listener)


def test_a_wildcard_with_ipv6_takes_ipv4_too() -> None:
    with reserve("*", ipv6=True) as held, held.take() as listener, socket.socket() as client:
        client.settimeout(10)
        client.connect(("127.0.0.1", held.port))
        assert listener.accept()[0].close() is None


def test_the_first_free_port_of_a_range_is_taken() -> None:
    with reserve() as taken:
        with reserve(ports=(taken.port, taken.port + 20)) as held:
            assert taken.port < held.port <= taken.port + 20
        with reserve(f"tcp://127.0.0.1:{taken.port}-{taken.port + 20}") as held:
            assert taken.port < held.port <= taken.port + 20


def test_a_taken_port_says_who_has_it() -> None:
    with reserve() as held, pytest.raises(PortError, match=rf"in use by pid {os.getpid()} \(.*this process") as caught:
        reserve("*", held.port)

    assert caught.value.errno == errno.EADDRINUSE
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value, RankbindError)


def test_a_full_range_says_so() -> None:
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(reserve())
        with contextlib.suppress(PortError):  # whoever has the next one, it is taken
            stack.enter_context(reserve(port=held.port + 1))
        with pytest.raises(PortError, match=f"all 2 ports are in use, {held.port} by pid {os.getpid()}"):
            reserve(ports=(held.port, held.port + 1))


def test_an_outgoing_connection_on_the_port_is_told_from_a_server() -> None:
    with reserve() as held, socket.create_connection(("127.0.0.1", held.port)) as client:
        port = client.getsockname()[1]
        with pytest.raises(PortError, match="not listening"):
            reserve("127.0.0.1", port)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        (["192.0.2.1"], {}, PortError, "no address of this host"),
        (["no-such-host.invalid"], {}, PortError, "no address is known for host"),
        (["127.0.0.1", 70000], {}, PortError, "ports end at 65535"),
        (["127.0.0.1", -1], {}, PortError, "ports end at 65535"),
        (["127.0.0.1"], {"ports": (0, 5)}, PortError, "first has to be 1"),
        (["127.0.0.1"], {"ports": (9, 5)}, PortError, "no less"),
        (["127.0.0.1", 5], {"ports": (5, 9)}, PortError, "one of them"),
        (["tcp://*:0", 5], {}, PortError, "leave out port="),
        (["inproc://x"], {}, PortError, "one libzmq context"),
        (["http://x"], {}, EndpointError, "unknown transport"),
        (["lo"], {"ipv6": True}, PortError, "write the one you mean"),
        (["127.0.0.1"], {"name": "a:b"}, PortError, "separates names by colons"),
        (["ipc:///no/such/folder/x"], {}, PortError, "No such file"),
        ([f"ipc:///tmp/{'x' * IPC_PATH_BYTES}"], {}, PortError, "unix sockets take 107"),
    ],
)
def test_what_cannot_be_reserved(
    arguments: list[object], options: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        reserve(*arguments, **options)  # type: ignore[arg-type]


def test_the_port_is_free_again_once_closed() -> None:
    held = reserve()
    held.close()
    held.close()

    assert not held.held
    assert try_to_listen(held.port) == 0
    with pytest.raises(HandoverError, match="is closed"):
        held.take()


@pytest.mark.parametrize("port", ["picked by the kernel", "given"])
def test_connections_of_the_dead_in_time_wait_do_not_keep_the_port(port: str) -> None:
    with reserve() as first:
        pass
    held = reserve() if port != "given" else reserve(port=first.port)
    with held.take() as listener, socket.create_connection(("127.0.0.1", held.port)) as client:
        served, _ = listener.accept()
        served.close()  # who closes first has the TIME_WAIT
        assert client.recv(1) == b""

    with reserve(port=held.port) as again:
        assert again.port == held.port


def test_a_program_that_is_run_does_not_inherit_it() -> None:
    held = reserve()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        held.close()
        assert try_to_listen(held.port) == 0
        child.communicate()


def test_more_may_wait_than_libzmq_lets() -> None:
    with reserve() as held:
        waiting = [socket.create_connection(("127.0.0.1", held.port), timeout=10) for _ in range(300)]
        with held.take() as listener:
            served = [listener.accept()[0] for _ in waiting]
        for each in (*waiting, *served):
            each.close()


# ipc paths, which the kernel does not guard


def test_a_socket_that_a_dead_process_left_is_replaced(folder: Path) -> None:
    path = folder / "x.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()

    with reserve(f"ipc://{path}") as held, held.take() as listener:
        assert serves(held.endpoint, listener)


def test_a_live_server_is_never_cut_off(folder: Path) -> None:
    path = folder / "x.sock"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen(0)
        waiting = []
        for _ in range(3):  # whether or not its backlog has room
            with pytest.raises(PortError, match=f"in use by pid {os.getpid()} ") as caught:
                reserve(f"ipc://{path}")
            assert caught.value.errno == errno.EADDRINUSE
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            client.connect_ex(str(path))
            waiting.append(client)
        for client in waiting:
            client.close()


def test_a_file_is_never_deleted(folder: Path) -> None:
    path = folder / "precious"
    path.write_text("data")

    with pytest.raises(PortError, match="is no socket"):
        reserve(f"ipc://{path}")
    assert path.read_text() == "data"


def test_the_path_goes_with_the_reservation_but_not_under_a_server(folder: Path) -> None:
    path = folder / "x.sock"
    with reserve(f"ipc://{path}"):
        assert path.exists()
    assert not path.exists()

    with reserve(f"ipc://{path}") as held:
        listener = held.take()
    with listener:
        assert serves(held.endpoint, listener)


def test_a_path_that_is_somebody_elses_by_now_stays(folder: Path) -> None:
    path = folder / "x.sock"
    with reserve(f"ipc://{path}"), socket.socket(socket.AF_UNIX) as thief:
        path.unlink()
        thief.bind(str(path))
    assert path.exists()


def test_of_many_who_find_a_dead_socket_one_gets_the_path(folder: Path) -> None:
    """Two that find it dead at once must not replace each other."""
    path = folder / "x.sock"
    code = """
        import sys, os
        from rankbind.errors import PortError
        from rankbind.runtime.ports import reserve
        path = sys.argv[1]
        ready, go = os.fdopen(int(sys.argv[2]), "wb"), os.fdopen(int(sys.argv[3]), "rb")
        ready.write(b"r"); ready.flush()
        go.read()
        try:
            held = reserve(f"ipc://{path}")
        except PortError:
            print("refused")
        else:
            print("held", flush=True)
            sys.stdin.read()
            os._exit(0)
    """
    script = scripts.write(folder, code)
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as dead:
            path.unlink(missing_ok=True)
            dead.bind(str(path))
        are_ready, ready = os.pipe()
        going, go = os.pipe()
        children = [
            subprocess.Popen(
                [sys.executable, str(script), str(path), str(ready), str(going)],
                pass_fds=[ready, going],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(8)
        ]
        os.close(ready)
        os.close(going)
        for _ in children:
            assert os.read(are_ready, 1) == b"r"
        os.close(go)
        os.close(are_ready)
        said = [child.stdout.readline().strip() for child in children if child.stdout]
        for child in children:
            child.communicate()
        assert sorted(said) == ["held", *["refused"] * 7]


# Once


def test_the_second_taker_is_told_who_was_first() -> None:
    with reserve(name="events") as held:
        held.take().close()

        with pytest.raises(
            HandoverError, match=rf"events.*once only, and was: by take\(\) at {re.escape(__file__)}:\d+"
        ):
            held.take_fd()
    assert not held.held


def test_of_many_threads_one_gets_it() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def attempt(held: Reservation) -> bool:
        try:
            held.take().close()
        except HandoverError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            with reserve() as held:
                assert sum(pool.map(attempt, [held] * 8)) == 1


def test_a_hand_over_that_fails_gives_nothing_away() -> None:
    with reserve() as held, zmq.Context() as context:
        closed = context.socket(zmq.PUB)
        closed.close()
        with pytest.raises(HandoverError, match="pyzmq does not take"):
            held.bind_zmq(closed)
        with pytest.raises(HandoverError, match="is no pyzmq socket"):
            held.bind_zmq(object())  # type: ignore[arg-type]

        assert held.held
        assert not held.given
        with held.take() as listener:
            assert serves(held.endpoint, listener)


def test_a_copy_or_a_plain_pickle_is_no_second_one() -> None:
    with reserve() as held:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(HandoverError, match="not copied or stored"):
                attempt(held)
        assert held.held


def test_one_that_is_forgotten_warns_and_lets_go() -> None:
    held = reserve()
    port = held.port
    with pytest.warns(ResourceWarning, match=rf"reserved at {re.escape(__file__)}:\d+, was garbage-collected"):
        del held
    assert try_to_listen(port) == 0


# Fork


def test_a_forked_child_does_not_have_it_and_does_not_keep_it(folder: Path) -> None:
    """The parent dies, its child lives on: the port has to be free."""
    code = """
        import os, signal, sys
        from rankbind.errors import HandoverError
        from rankbind.runtime.ports import reserve
        held = reserve()
        if os.fork() == 0:
            assert not held.held
            for attempt in (held.take, held.take_fd, held.parcel, held.take_back, lambda: held.bind_zmq(None)):
                try:
                    attempt()
                except HandoverError as error:
                    assert f"belongs to process {os.getppid()}" in str(error), error
                else:
                    os._exit(1)
            print(held.port, os.getpid(), flush=True)
            sys.stdin.read()
            os._exit(0)
        signal.pause()
    """
    script = scripts.write(folder, code)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout
        assert parent.stdin
        port, child = map(int, parent.stdout.readline().split())
        assert try_to_listen(port) == errno.EADDRINUSE
        parent.kill()
        parent.wait()
        descriptor = os.pidfd_open(child)
        try:
            assert try_to_listen(port) == 0
            assert not select.select([descriptor], [], [], 0)[0]
        finally:
            parent.stdin.close()
            os.close(descriptor)


# Descriptors that are not what they should be: libzmq would abort

WRONG = {
    "closed": ("number = 200", "is not open"),
    "a file": ("number = os.open(__file__, os.O_RDONLY)", "is a file, not a socket"),
    "a pipe": ("number = os.pipe()[0]", "is a pipe, not a socket"),
    "udp": ("made = socket.socket(type=socket.SOCK_DGRAM); made.bind(('127.0.0.1', 0))", "datagram"),
    "netlink": ("made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "neither TCP nor a unix socket"),
    "only bound": ("made = socket.socket(); made.bind(('127.0.0.1', 0))", "does not listen"),
    "connected": ("made, _other = socket.socketpair()", "does not listen"),
    "another port": ("made = listening(); expected = f'tcp://127.0.0.1:{made.getsockname()[1] + 1}'", "not on tcp"),
    "another address": ("made = listening(); expected = 'tcp://*:0'", r"not on tcp://\*:0"),
    "another family": ("made = listening(socket.AF_INET6, '::1'); expected = 'tcp://127.0.0.1:0'", "not on tcp"),
    "no tcp": ("made = listening(socket.AF_UNIX); expected = 'tcp://127.0.0.1:0'", "not on tcp"),
    "no ipc": ("made = listening(); expected = 'ipc://@x'", "not on ipc"),
    "one family of two": (
        "made = listening(socket.AF_INET6, '::', only=1); expected = 'tcp://[::]:0'",
        r"not on tcp://\[::\]:0",
    ),
}

WRONG_CODE = """
    import os, socket, sys
    import zmq
    from rankbind.errors import HandoverError
    from rankbind.runtime.ports import Reservation, adopt, reserve

    def listening(family=socket.AF_INET, host="127.0.0.1", only=0):
        made = socket.socket(family)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        made.bind("" if family == socket.AF_UNIX else (host, 0))
        made.listen()
        return made

    made = number = expected = None
    exec(sys.argv[1])
    number = made.fileno() if number is None else number
    for descriptor in (number, made) if made else (number,):
        try:
            adopt(descriptor, expected)
        except HandoverError as error:
            print(error)
        else:
            print("adopted")
    if made:
        made.fileno() >= 0 or sys.exit("it was taken all the same")
    # And where it goes wrong under a reservation's hands:
    if made and not expected:
        held = reserve()
        os.dup2(number, held._listener.fileno())
        with zmq.Context() as context, context.socket(zmq.PULL) as taker:
            for attempt in (lambda: held.bind_zmq(taker), held.take, held.take_fd, held.parcel):
                try:
                    attempt()
                except HandoverError as error:
                    print(error)
                else:
                    print("handed over")
        held.close()
    print("lives")
    os._exit(0)
"""


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_descriptor_is_an_error_and_the_process_lives(wrong: str, tmp_path: Path) -> None:
    code, says = WRONG[wrong]

    *errors, last = scripts.run(tmp_path, WRONG_CODE, code).splitlines()

    assert last == "lives"
    assert errors
    assert all(re.search(says, error) for error in errors), errors


@pytest.mark.parametrize("code", ["number = 200", "made = socket.socket(); made.bind(('127.0.0.1', 0))"])
def test_libzmq_itself_aborts_over_them(code: str, tmp_path: Path) -> None:
    """Else the checks above would not be needed."""
    bare = """
        import socket, sys, zmq
        made = number = None
        exec(sys.argv[1])
        socket_ = zmq.Context().socket(zmq.PULL)
        socket_.setsockopt(zmq.USE_FD, number or made.detach())
        socket_.bind("tcp://127.0.0.1:1")
        socket_.poll(10_000)
    """
    script = scripts.write(tmp_path, bare)
    done = subprocess.run([sys.executable, str(script), code], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGABRT


@pytest.mark.parametrize(
    ("expected", "family", "host"),
    [
        (None, socket.AF_INET, "127.0.0.1"),
        ("tcp://127.0.0.1:0", socket.AF_INET, "127.0.0.1"),
        ("tcp://localhost:PORT", socket.AF_INET, "127.0.0.1"),
        ("tcp://*:1-65535", socket.AF_INET, "0.0.0.0"),
        ("tcp://[::1]:PORT", socket.AF_INET6, "::1"),
        ("tcp://127.0.0.1:PORT", socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
def test_a_right_one_is_adopted(expected: str | None, family: socket.AddressFamily, host: str) -> None:
    made = socket.socket(family)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind((host, 0))
    made.listen()
    port = made.getsockname()[1]
    made.set_inheritable(True)

    with adopt(made, expected and expected.replace("PORT", str(port)), name="ours") as held:
        assert (held.port, held.name, made.fileno()) == (port, "ours", -1)
        with held.take() as listener:
            assert not listener.get_inheritable()
            assert serves(held.endpoint, listener) if host != "0.0.0.0" else True


def test_a_child_that_is_forked_while_a_port_is_reserved_keeps_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, between the socket and the reservation: it would hold the port when its parent is dead."""
    answers = []

    class Forking(socket.socket):
        def listen(self, *backlog: int) -> None:
            super().listen(*backlog)
            answers.append(forked(lambda: self.fileno()))

    monkeypatch.setattr(socket, "socket", Forking)
    with reserve(), reserve(f"ipc://{folder}/x"), reserve("ipc://*"):
        assert answers == ["-1"] * 3


def test_without_descriptors_it_says_so_and_leaves_none(folder: Path) -> None:
    script = """
        import os, resource, socket, sys, warnings
        from rankbind.errors import HandoverError, PortError
        from rankbind.runtime.ports import reserve
        warnings.simplefilter("error")
        reserve().close()
        where = ["127.0.0.1", f"ipc://{sys.argv[1]}/x", "ipc://*"]
        here = reserve()
        before = len(os.listdir("/proc/self/fd"))
        for spare in range(3):
            resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + spare, 4096))
            for each in where:
                try:
                    reserve(each).close()
                except PortError as error:
                    assert "raise `ulimit -n`" in str(error), error
            try:
                here.take().close()
                here = None
            except HandoverError as error:
                assert "Too many open files" in str(error), error
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
            here = here or reserve()
            assert len(os.listdir("/proc/self/fd")) == before, spare
        here.close()
        print("done")
    """
    assert scripts.run(folder, script, str(folder)) == "done\n"
