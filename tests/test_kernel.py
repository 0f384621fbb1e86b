"""`overlaps` against the kernel: pairs of endpoints are really bound, by libzmq, in two processes.

500 pairs, or RANKBIND_KERNEL_PAIRS of them; RANKBIND_KERNEL_SEED repeats a run. Every ordered pair of spellings on one
port comes first, then random ones. Not asked, because the model cannot know it: a relative against an absolute ipc
path (no working directory), a path through a link, a name that only this machine resolves.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from rankbind.endpoint import EPHEMERAL_PORTS, IPC_PATH_BYTES, MAX_PORT, Endpoint, overlaps

PAIRS = int(os.environ.get("RANKBIND_KERNEL_PAIRS", "500"))
SEED = int(os.environ.get("RANKBIND_KERNEL_SEED") or random.SystemRandom().randrange(10**9))
SHARES = {"ipv4": 0.25, "ipv6": 0.57, "ranges": 0.06, "ipc": 0.12}

BINDER = Path(__file__).parent / "support" / "binder.py"
ATTEMPTS = 4


@dataclass(frozen=True)
class Spelling:
    """A host as libzmq spells it, and the socket that binds it."""

    host: str
    ipv6: bool = False
    v6only: bool = False
    plain: bool = False

    def endpoint(self, first: int, last: int | None = None) -> Endpoint:
        ports = f"{first}" if last is None else f"{first}-{last}"
        return Endpoint.parse(f"tcp://{self.host}:{ports}", ipv6=self.ipv6, v6only=self.v6only)


IPV4 = [
    *(Spelling(host) for host in ("*", "0.0.0.0", "127.0.0.1", "127.0.0.2", "localhost", "lo")),
    *(Spelling(host) for host in ("[::ffff:127.0.0.1]", "0", "127.1")),
    Spelling("0.0.0.0", plain=True),
]
IPV6 = [
    *(Spelling(host, ipv6=True) for host in ("*", "[::]", "[::1]", "[::ffff:127.0.0.1]", "127.0.0.1", "lo")),
    Spelling("[::]", ipv6=True, plain=True),
    Spelling("[::]", ipv6=True, v6only=True, plain=True),
    Spelling("[::1]", ipv6=True, v6only=True, plain=True),
]


class Binder:
    """The process of support/binder.py, and the questions put to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, **command: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def bind(self, spelling: Spelling, *ports: int) -> list[int]:
        found: list[int] = self.ask(
            bind=[f"tcp://{spelling.host}:{port}" for port in ports],
            ipv6=spelling.ipv6,
            v6only=spelling.v6only,
            plain=spelling.plain,
        )
        return found


@dataclass(frozen=True)
class Kernel:
    """Two processes that bind, in one folder of their own, and ports that nobody should be using."""

    first: Binder
    second: Binder
    folder: Path
    ports: Iterator[int]

    def close(self) -> None:
        self.first.ask(close=True)
        self.second.ask(close=True)

    def fresh(self, count: int) -> list[int]:
        """Consecutive ports, used by no pair before: closing a libzmq socket takes its time."""
        while True:
            found = list(itertools.islice(self.ports, count))
            if found[-1] - found[0] == count - 1:
                return found


Answer: TypeAlias = tuple[bool, bool | None]
"""What the model says and what the kernel says; None: somebody else was in the way of the first bind."""

Case: TypeAlias = Callable[[Kernel], Answer]


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    # Short, whatever TMPDIR is: ipc paths have a limit.
    folder = Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))
    (folder / "x").mkdir()
    command = [sys.executable, str(BINDER)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": folder}
    try:
        with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as other:
            yield Kernel(Binder(one), Binder(other), folder, _ports())
        assert (one.returncode, other.returncode) == (0, 0)
    finally:
        shutil.rmtree(folder)


def _ports() -> Iterator[int]:
    """Ports outside the range from which the kernel draws for others, from a random one on, round and round."""
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        low, high = (int(port) for port in text.split())
    except OSError:
        low, high = EPHEMERAL_PORTS
    free = range(10000, low) if low > 20000 else range(high + 1, MAX_PORT + 1)
    if len(free) < 100:
        pytest.skip(f"the ephemeral range {low}-{high} leaves no ports to test with")
    start = random.SystemRandom().randrange(len(free))
    return itertools.cycle([*free[start:], *free[:start]])


def _own_ipv4() -> list[Spelling]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it asks for the route
        except OSError:
            return []
        host: str = probe.getsockname()[0]
    return [] if host.startswith("127.") else [Spelling(host)]


@cache
def _no_ipv6() -> str:
    """Why there is no IPv6 here; empty where there is."""
    if Path("/proc/sys/net/ipv6/bindv6only").exists() and Path("/proc/sys/net/ipv6/bindv6only").read_text() != "0\n":
        return "net.ipv6.bindv6only is set: [::] leaves IPv4 alone here"
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return f"no IPv6 on this machine: binding [::1] says {error}"
    return ""


def _need_ipv6() -> None:
    reason = _no_ipv6()
    if reason:
        pytest.skip(reason)


def _count(family: str) -> int:
    share = SHARES[family]
    if family == "ipv4" and _no_ipv6():
        share += SHARES["ipv6"]
    return round(PAIRS * share)


def _dice(family: str) -> random.Random:
    print(f"RANKBIND_KERNEL_SEED={SEED} repeats these pairs")
    return random.Random(f"{SEED} {family}")


def _taken(answers: list[int]) -> bool:
    assert set(answers) <= {0, errno.EADDRINUSE}, [errno.errorcode.get(answer, answer) for answer in answers]
    return errno.EADDRINUSE in answers


def _hold(kernel: Kernel, family: str, cases: list[tuple[str, Case]]) -> None:
    """Put every case to the model and the kernel.

    A bind that is refused against the model is tried again on other ports: a stranger may have held that one.
    """
    disagreements = []
    for description, case in cases:
        for _ in range(ATTEMPTS):
            try:
                model, real = case(kernel)
            finally:
                kernel.close()
            if real is not None and (model == real or not real):
                break
        if model != real:
            disagreements.append(f"{description}: overlaps says {model}, the kernel {real}")
    assert len(cases) == _count(family)
    assert not disagreements, f"seed {SEED}, {len(disagreements)} of {len(cases)}:\n" + "\n".join(disagreements)


def _tcp(kernel: Kernel, a: Spelling, b: Spelling, relation: str) -> Answer:
    one, other = kernel.fresh(2)
    first, second = {"same": (one, one), "different": (one, other), "first 0": (0, one), "both 0": (0, 0)}[relation]
    model = overlaps(a.endpoint(first), b.endpoint(second))
    if _taken(kernel.first.bind(a, first)):
        return model, None
    return model, _taken(kernel.second.bind(b, second))


def _tcp_cases(family: str, pairs: list[tuple[Spelling, Spelling]]) -> list[tuple[str, Case]]:
    dice, count = _dice(family), _count(family)
    dice.shuffle(pairs)
    chosen = [(a, b, "same") for a, b in pairs[:count]]
    while len(chosen) < count:
        chosen.append((*dice.choice(pairs), dice.choice(["same", "same", "different", "first 0", "both 0"])))
    return [(f"{a}, then {b}, ports: {how}", partial(_tcp, a=a, b=b, relation=how)) for a, b, how in chosen]


def _ranges(kernel: Kernel, a: Spelling, b: Spelling, width: int, gap: int, other_width: int) -> Answer:
    """Both take every port of their ranges, as nobody does, so that two ranges that share a port show it."""
    port = kernel.fresh(max(width, gap + other_width) + 1)[0]
    model = overlaps(a.endpoint(port, port + width), b.endpoint(port + gap, port + gap + other_width))
    if _taken(kernel.first.bind(a, *range(port, port + width + 1))):
        return model, None
    return model, _taken(kernel.second.bind(b, *range(port + gap, port + gap + other_width + 1)))


def _ipc(kernel: Kernel, a: str, b: str) -> Answer:
    """An abstract name is refused twice; of a path both binds succeed, and then the first is deaf."""
    model = overlaps(Endpoint.parse(a), Endpoint.parse(b))
    assert not _taken(kernel.first.ask(bind=[a]))
    if _taken(kernel.second.ask(bind=[b])):
        return model, True
    kernel.first.ask(send=a, text=a)
    heard: dict[str, list[str]] = {"first": [], "second": []}
    deadline = time.monotonic() + 10
    while not any(heard.values()):
        assert time.monotonic() < deadline, f"nobody heard a message to {a}"
        heard = {"first": kernel.first.ask(receive=2), "second": kernel.second.ask(receive=2)}
    assert sum(map(len, heard.values())) == 1
    return model, heard["second"] == [a]


def _ipc_spellings(folder: Path, name: str) -> list[list[str]]:
    """Ways to spell addresses called `name`; within each list any two can be compared without knowing the folder."""
    absolute = [
        f"{folder}/{name}",
        f"{folder}/./{name}",
        f"{folder}//{name}",
        f"{folder}/x/../{name}",
        f"/{folder}/{name}",
    ]
    relative = [name, f"./{name}", f"x/../{name}", f".//{name}", f"./@{name}"]
    abstract = [f"@{folder.name}-{name}", f"@./{folder.name}-{name}", f"@{folder}/{name}"]
    return [[*absolute, *abstract], [*relative, *abstract, f"@{name}-{folder.name}"]]


def test_ipv4_spellings(kernel: Kernel) -> None:
    spellings = [*IPV4, *_own_ipv4()]
    _hold(kernel, "ipv4", _tcp_cases("ipv4", list(itertools.product(spellings, spellings))))


def test_ipv6_spellings_against_both_families(kernel: Kernel) -> None:
    _need_ipv6()
    spellings = [*IPV4, *_own_ipv4(), *IPV6]
    pairs = [pair for pair in itertools.product(spellings, spellings) if set(pair) & set(IPV6)]
    _hold(kernel, "ipv6", _tcp_cases("ipv6", pairs))


def test_ranges(kernel: Kernel) -> None:
    dice = _dice("ranges")
    spellings = [each for each in IPV4 + ([] if _no_ipv6() else IPV6) if each.host != "lo"]
    cases: list[tuple[str, Case]] = []
    for _ in range(_count("ranges")):
        a, b = dice.choices(spellings, k=2)
        shape = {"width": dice.randint(0, 3), "gap": dice.randint(0, 5), "other_width": dice.randint(0, 3)}
        cases.append((f"{a}, then {b}, {shape}", partial(_ranges, a=a, b=b, **shape)))
    _hold(kernel, "ranges", cases)


def test_ipc_names(kernel: Kernel) -> None:
    dice, cases = _dice("ipc"), []
    for number in range(_count("ipc")):
        spellings = dice.choice(_ipc_spellings(kernel.folder, f"s{number}"))
        a = dice.choice(spellings)
        # One in four is of another name altogether.
        b = dice.choice(spellings if dice.randrange(4) else _ipc_spellings(kernel.folder, f"t{number}")[0])
        cases.append((f"ipc://{a}, then ipc://{b}", partial(_ipc, a=f"ipc://{a}", b=f"ipc://{b}")))
    _hold(kernel, "ipc", cases)


def test_localhost_is_ipv4_also_with_ipv6_on(kernel: Kernel) -> None:
    _need_ipv6()
    found = socket.getaddrinfo("localhost", None, socket.AF_INET6, socket.SOCK_STREAM, flags=socket.AI_V4MAPPED)
    if found[0][4][0] == "::1":
        pytest.skip("this machine calls ::1 localhost (/etc/hosts): with IPv6 on libzmq binds that instead")
    for other, taken in (("127.0.0.1", True), ("::1", False)):
        port = kernel.fresh(1)[0]
        one, two = Spelling("localhost", ipv6=True), Spelling(f"[{other}]", ipv6=True)
        assert overlaps(one.endpoint(port), two.endpoint(port)) == taken
        assert not _taken(kernel.first.bind(one, port))
        assert _taken(kernel.second.bind(two, port)) == taken
        kernel.close()


def test_an_ipv6_literal_without_zmq_ipv6_is_refused(kernel: Kernel) -> None:
    for host in ("[::]", "[::1]", "::1", "[::ffff:127.0.0.1]", "127.0.0.1"):
        spelling, port = Spelling(host), kernel.fresh(1)[0]
        answer = kernel.first.bind(spelling, port)
        assert answer == [errno.ENODEV if spelling.endpoint(port).needs_ipv6 else 0], host
    kernel.close()


def test_the_longest_ipc_path(kernel: Kernel) -> None:
    for prefix in ("@", f"{kernel.folder}/", ""):
        for letter in ("x", "\u00e9"):
            name = kernel.folder.name if prefix == "@" else ""
            room = IPC_PATH_BYTES - len((prefix + name).encode())
            fits = prefix + name + letter * (room // len(letter.encode()))
            for path in (fits, fits + letter):
                answer = kernel.first.ask(bind=[f"ipc://{path}"])
                assert answer == [
                    errno.ENAMETOOLONG if Endpoint.parse(f"ipc://{path}").path_bytes > IPC_PATH_BYTES else 0
                ], path
            kernel.close()


def test_the_port_after_the_last_is_refused(kernel: Kernel) -> None:
    """What comes after that libzmq wraps around (70000 listens on 4464), so that no answer of ours could agree."""
    assert kernel.first.bind(Spelling("*"), MAX_PORT + 1) == [errno.EINVAL]
    assert not overlaps(Endpoint.parse(f"tcp://*:{MAX_PORT + 1}"), Endpoint.parse(f"tcp://*:{MAX_PORT + 1}"))


def test_the_shares_make_the_whole() -> None:
    assert sum(SHARES.values()) == pytest.approx(1)
    assert PAIRS >= 100
    assert sum(map(_count, SHARES)) == pytest.approx(PAIRS * (1 + (SHARES["ipv6"] if _no_ipv6() else 0)), abs=2)
