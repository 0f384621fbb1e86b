"""Two deployments never get one port, a dead one's are free, and whoever comes back gets its own again."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from rankbind.endpoint import MAX_PORT
from rankbind.errors import DirectoryError, PortError
from rankbind.runtime import allocator, record
from rankbind.runtime.allocator import Block, Lease, Table, allocate, kernel_range
from rankbind.runtime.directory import folder
from rankbind.runtime.process import Process
from rankbind.runtime.record import Record

from ..support import scripts


def window(size: int) -> tuple[int, int]:
    """`size` free ports outside the range from which the kernel draws, at random: tests run beside each other."""
    low, high = kernel_range()
    free = range(10000, low) if low > 20000 else range(high + 1, MAX_PORT + 1)
    if len(free) < 1000:
        pytest.skip(f"the kernel's range {low}-{high} leaves no ports to test with")
    while True:
        first = random.SystemRandom().randrange(free[0], free[-1] - size)
        with socket.socket() as probe:
            try:
                for port in range(first, first + size):
                    with socket.socket() as probe:
                        probe.bind(("", port))
            except OSError:
                continue
        return first, first + size - 1


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "runtime"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("RANKBIND_DIR", str(path))
    monkeypatch.delenv("RANKBIND_DEPLOYMENT", raising=False)
    yield path
    for block in tuple(allocator._held):
        block.release()


def table(directory: Path) -> Table:
    return Table(folder("ports", within=directory), Process.me().net_ns)


def bindable(port: int) -> bool:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
            other.listen()
        except OSError:
            return False
    return True


HOLDER = """
    import sys
    from rankbind.runtime.allocator import allocate
    name, deployment, count, first, last, hold = sys.argv[1:]
    block = allocate(int(count), name=name, deployment=deployment, within=(int(first), int(last)), hold=hold == "hold")
    print(block.base, flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process, which has a block."""

    def __init__(
        self,
        folder: Path,
        within: tuple[int, int],
        count: int,
        name: str = "n",
        deployment: str = "d",
        hold: str = "hold",
    ) -> None:
        script = scripts.write(folder, HOLDER, "holder.py")
        arguments = [name, deployment, *map(str, (count, *within)), hold]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, str(script), *arguments], stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout
        self.base = int(self.process.stdout.readline())

    def end(self, how: signal.Signals | None = None) -> None:
        if how is not None:
            self.process.send_signal(how)
        self.process.communicate(timeout=60)


def test_a_block_is_contiguous_and_held() -> None:
    within = window(16)
    with allocate(8, name="kv", within=within) as block:
        assert list(block.ports) == [block.base + at for at in range(8)]
        assert len(block) == 8
        assert within[0] <= block.ports[0] <= block.ports[-1] <= within[1]
        assert not any(bindable(port) for port in block.ports)
        with block.reservation(3).take() as listener:
            assert listener.getsockname() == ("127.0.0.1", block.base + 3)
    assert not block.held
    assert all(bindable(port) for port in block.ports)


def test_numbers_only_leave_the_ports_to_the_engine(tmp_path: Path) -> None:
    within = window(16)
    with allocate(8, name="kv", within=within, hold=False) as block:
        assert all(bindable(port) for port in block.ports)
        with pytest.raises(PortError, match="hold=True"):
            block.reservation(0)
        other = Holder(tmp_path, within, 8)
        assert not set(block.ports) & set(range(other.base, other.base + 8))
        other.end()


def test_what_is_in_use_is_avoided_on_any_address_of_either_family() -> None:
    within = window(12)
    uses = [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET6, "::1"), (socket.AF_INET, "0.0.0.0")]
    servers = []
    for at, (family, host) in enumerate(uses):
        server = socket.socket(family)
        server.bind((host, within[0] + at))
        server.listen()
        servers.append(server)
    try:
        with allocate(8, name="kv", within=within, hold=False) as block:
            assert block.base >= within[0] + 3
    finally:
        for server in servers:
            server.close()


def test_32_processes_at_once_get_disjoint_blocks(tmp_path: Path) -> None:
    count, size = 32, 8
    within = window(count * size * 2)
    code = """
        import os, sys
        from rankbind.runtime.allocator import allocate
        ready, go, index, first, last = map(int, sys.argv[1:])
        os.write(ready, b"r")
        os.read(go, 1)
        block = allocate(8, name=f"n{index}", within=(first, last), hold=index % 2 == 0)
        print(block.base, flush=True)
        sys.stdin.read()
    """
    script = scripts.write(tmp_path, code)
    are_ready, ready = os.pipe()
    going, go = os.pipe()
    pipe = subprocess.PIPE
    children = [
        subprocess.Popen(
            [sys.executable, str(script), *map(str, (ready, going, index, *within))],
            pass_fds=(ready, going),
            stdin=pipe,
            stdout=pipe,
            text=True,
        )
        for index in range(count)
    ]
    os.close(ready)
    os.close(going)
    for _ in children:
        assert os.read(are_ready, 1) == b"r"
    os.close(go)
    os.close(are_ready)
    bases = [int(child.stdout.readline()) for child in children if child.stdout]
    for child in children:
        child.communicate(timeout=60)
    assert len({port for base in bases for port in range(base, base + size)}) == count * size


def test_the_block_of_a_killed_holder_is_free(tmp_path: Path) -> None:
    within = window(8)
    holder = Holder(tmp_path, within, 8, hold="numbers")
    with pytest.raises(PortError, match=f"d/n, pid {holder.process.pid}"):
        allocate(8, name="other", within=within)
    holder.end(signal.SIGKILL)

    with allocate(8, name="other", within=within) as block:
        assert block.base == within[0]


@pytest.mark.parametrize("end", [None, signal.SIGKILL], ids=["released", "killed"])
@pytest.mark.parametrize("hold", ["hold", "numbers"])
def test_a_deployment_that_comes_back_gets_its_ports_again(
    end: signal.Signals | None, hold: str, tmp_path: Path
) -> None:
    within = window(64)
    before = [Holder(tmp_path, within, 8, name=f"n{index}", hold=hold) for index in range(3)]
    bases = [each.base for each in before]
    assert len(set(bases)) == 3
    for each in before:
        each.end(end)

    # In another order, and with somebody new between them.
    new = Holder(tmp_path, within, 8, name="new", hold=hold)
    again = {index: Holder(tmp_path, within, 8, name=f"n{index}", hold=hold) for index in (2, 0, 1)}
    assert [again[index].base for index in range(3)] == bases
    assert new.base not in bases
    for each in (new, *again.values()):
        each.end()


def test_it_gets_others_where_its_own_are_taken(tmp_path: Path) -> None:
    within = window(24)
    first = Holder(tmp_path, within, 8)
    first.end()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", first.base + 7))
        stranger.listen()
        second = Holder(tmp_path, within, 8)
        assert second.base > first.base + 7
        second.end()


def test_what_others_had_is_given_when_nothing_else_is_left(tmp_path: Path) -> None:
    within = window(8)
    Holder(tmp_path, within, 8, name="a").end(signal.SIGKILL)
    with allocate(8, name="b", within=within) as block:
        assert block.base == within[0]


def test_a_block_may_be_larger_than_last_time(tmp_path: Path) -> None:
    within = window(32)
    Holder(tmp_path, within, 4, name="a").end()
    other = Holder(tmp_path, within, 4, name="b")
    again = Holder(tmp_path, within, 8, name="a")
    assert not set(range(again.base, again.base + 8)) & set(range(other.base, other.base + 4))
    other.end()
    again.end()


def test_one_name_is_held_once(tmp_path: Path) -> None:
    within = window(32)
    other = Holder(tmp_path, within, 8, name="kv", deployment="default")
    with pytest.raises(PortError, match=rf"default/kv, pid {other.process.pid} .*\n?.*RANKBIND_DEPLOYMENT=default-2"):
        allocate(8, name="kv", within=within)
    with allocate(8, name="kv", deployment="default-2", within=within) as block:
        assert block.base != other.base
    other.end()


def test_an_exhausted_range_says_who_has_what(tmp_path: Path) -> None:
    within = window(12)
    other = Holder(tmp_path, within, 4, name="events", deployment="prod")
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", within[0] + 7))
        stranger.listen()
        with pytest.raises(PortError) as caught:
            allocate(5, name="kv", within=within)
    text = str(caught.value)
    assert f"{within[0]}-{within[1]} has no 5 contiguous free ports for default/kv" in text
    assert f"{other.base}-{other.base + 3}: prod/events, pid {other.process.pid} (" in text
    assert f"{within[0] + 7}: in use, {within[0] + 7} by pid {os.getpid()}" in text
    other.end()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"count": 0}, "0 ports is none"),
        ({"count": 9, "within": (20000, 20007)}, "20000-20007 has no 9 contiguous ports"),
        ({"count": 1, "within": (0, 7)}, "from 1 to 65535"),
        ({"count": 1, "within": (8, 7)}, "from 1 to 65535"),
        ({"count": 1, "within": (65000, 65536)}, "from 1 to 65535"),
    ],
)
def test_what_cannot_be_allocated(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PortError, match=says):
        allocate(name="kv", **arguments)


# The kernel's own range


@pytest.fixture
def sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sysctl"
    path.mkdir()
    monkeypatch.setattr(allocator, "_SYSCTL", path)
    return path


def test_ports_that_the_kernel_hands_out_are_left_alone(sysctl: Path) -> None:
    first, last = window(16)
    (sysctl / "ip_local_port_range").write_text(f"{first}\t{first + 7}\n")
    (sysctl / "ip_local_reserved_ports").write_text("\n")

    with allocate(8, name="kv", within=(first, last)) as block:
        assert block.base == first + 8
    with pytest.raises(PortError, match=rf"ip_local_reserved_ports={first}-{first + 8}\), or say ephemeral=True"):
        allocate(2, name="other", within=(first, first + 8))
    with allocate(8, name="third", within=(first, first + 7), ephemeral=True) as block:
        assert block.base == first


def test_ports_that_were_set_aside_are_safe_inside_it_and_left_to_others_outside(sysctl: Path) -> None:
    first, last = window(16)
    (sysctl / "ip_local_port_range").write_text(f"{first}\t{last}\n")
    (sysctl / "ip_local_reserved_ports").write_text(f"1,{first + 4}-{first + 7},{first + 9}\n")
    with allocate(4, name="kv", within=(first, last)) as block:
        assert block.base == first + 4

    (sysctl / "ip_local_port_range").write_text("40000\t60999\n")
    (sysctl / "ip_local_reserved_ports").write_text(f"{allocator.FIRST_PORT}-{first + 3}\n")
    with allocate(1, name="other", hold=False) as block:
        assert block.base > first + 3 or first < allocator.FIRST_PORT


def test_by_default_it_is_neither_ephemeral_nor_well_known() -> None:
    low, high = kernel_range()
    with allocate(4, name="kv", hold=False) as block:
        assert all(port >= 1024 and not low <= port <= high for port in block.ports)


def test_a_kernel_that_hands_out_everything_is_said(sysctl: Path) -> None:
    (sysctl / "ip_local_port_range").write_text("1024\t65535\n")
    with pytest.raises(PortError, match=r"draws ports for connections from 1024-65535. Say within="):
        allocate(4, name="kv")


# The table


def claim_record(process: Process, **more: Any) -> Record:
    return Record(deployment="d", resource="r", group={}, token=1, since=time.time(), process=process, host="h", **more)


@pytest.mark.parametrize(("state", "avoided"), [("held", True), ("released", False)])
def test_what_is_claimed_and_not_yet_bound_is_avoided(state: Any, avoided: bool, directory: Path) -> None:
    within = window(8)
    place = directory / "addresses" / str(Process.me().net_ns) / f"tcp-{within[0] + 1}"
    place.mkdir(parents=True)
    assert record.write(place / "x.json", claim_record(Process.me(), state=state))

    with allocate(2, name="kv", within=within, hold=False) as block:
        assert block.base == within[0] + (2 if avoided else 0)


GARBAGE = {
    "nothing": b"",
    "no json": b"\x00\xff garbage",
    "half": b'{"format": 1, "leases": [{"deplo',
    "a list": b"[]",
    "a number": b"7",
    "no leases": b'{"format": 1}',
    "leases of nothing": b'{"format": 1, "leases": [null, 1, "x", [], {}, {"process": {}}]}',
    "deep": b"[" * 100_000,
    "another format": b'{"format": 99, "leases": []}',
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_garbage_table_never_breaks_it(garbage: str, directory: Path, tmp_path: Path) -> None:
    within = window(16)
    holder = Holder(tmp_path, within, 4)
    table(directory).path.write_bytes(GARBAGE[garbage])

    with allocate(4, name="kv", within=within) as block:
        assert not set(block.ports) & set(range(holder.base, holder.base + 4))  # the sockets still say so
        assert [lease.name for lease in table(directory).read()] == ["kv"]
    holder.end()


def test_one_bad_entry_costs_that_entry(directory: Path) -> None:
    within = window(32)
    good = [allocate(4, name=f"n{index}", within=within, hold=False) for index in range(2)]
    path = table(directory).path
    found = json.loads(path.read_text())
    for change in ({"first": "x"}, {"first": 70000}, {"count": -1}, {"state": "?"}, {"since": "x"}, {"since": 1e400}):
        found["leases"].append({**found["leases"][0], "name": "bad", **change})
    path.write_text(json.dumps(found))

    assert sorted(lease.name for lease in table(directory).read()) == ["n0", "n1"]
    with allocate(4, name="kv", within=within, hold=False) as block:
        assert not set(block.ports) & {port for each in good for port in each.ports}


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_something_else_in_the_place_of_the_table_is_no_table(kind: str, directory: Path) -> None:
    path = table(directory).path
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/etc/passwd")
    within = window(8)
    if kind != "folder":
        with allocate(4, name="kv", within=within) as block:
            assert not path.is_symlink()
            assert path.is_file()
        return
    with pytest.warns(RuntimeWarning, match="the sockets alone keep others off"):
        block = allocate(4, name="kv", within=within)
    block.release()
    with pytest.raises(PortError, match=r"other deployments would be given .* too"):
        allocate(4, name="kv", within=within, hold=False)
    assert not list(path.parent.glob("*.tmp"))


def test_leases_of_an_earlier_boot_are_nobodys(directory: Path) -> None:
    within = window(8)
    process = replace(Process.me(), boot="another boot")
    old = Lease(deployment="d", name="n", first=within[0], count=8, since=time.time(), process=process)
    with table(directory).alone():
        table(directory).write([old])
    with allocate(8, name="kv", within=within) as block:
        assert block.base == within[0]


def test_leases_of_another_pid_namespace_are_kept(directory: Path) -> None:
    within = window(8)
    process = replace(Process.me(), pid_ns=1)
    other = Lease(deployment="d", name="n", first=within[0], count=8, since=time.time(), process=process)
    with table(directory).alone():
        table(directory).write([other])
    with pytest.raises(PortError, match="in another pid namespace"):
        allocate(8, name="kv", within=within)


def test_the_table_does_not_grow_for_ever(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_REMEMBERED", 5)
    within = window(32)
    with allocate(1, name="lasts", within=within, hold=False):
        for index in range(20):
            allocate(1, name=f"n{index}", within=within, hold=False).release()
        names = [lease.name for lease in table(directory).read()]
    assert "lasts" in names
    assert len(names) <= 7
    assert names[0] == "n19"


def test_nothing_is_left_but_the_table_and_its_lock(directory: Path) -> None:
    allocate(4, name="kv", within=window(8)).release()
    assert sorted(path.suffix for path in (directory / "ports").iterdir()) == [".json", ".lock"]


def test_a_forked_child_does_not_hold_and_does_not_release(directory: Path) -> None:
    with allocate(2, name="kv", within=window(8)) as block:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                block.release()
                status = int(block.held or block.reservation(0).held)
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert block.held
        assert [lease.live for lease in table(directory).read()] == [True]
        assert not bindable(block.base)


def test_a_block_that_is_dropped_stays_held_until_the_end_of_the_process(tmp_path: Path) -> None:
    code = """
        import gc
        from rankbind.runtime.allocator import allocate, Table
        from rankbind.runtime.process import Process
        from rankbind.runtime.directory import runtime_directory
        import sys
        first, last = map(int, sys.argv[1:])
        allocate(2, name="kv", within=(first, last))
        gc.collect()
        print([lease.live for lease in Table(runtime_directory() / "ports", Process.me().net_ns).read()])
    """
    within = window(8)
    (tmp_path / "runtime").chmod(0o700)
    assert scripts.run(tmp_path, code, *map(str, within)) == "[True]\n"
    (lease,) = table(tmp_path / "runtime").read()
    assert lease.state == "released"


def test_a_lease_survives_being_written() -> None:
    lease = Lease(deployment="d", name="n", first=1, count=2, since=3.5, process=Process.me(), program="p")
    assert Lease.from_json(json.loads(json.dumps(asdict(lease)))) == lease
    assert isinstance(lease.ports, range)
    assert not isinstance(lease, Block)


def test_a_directory_that_is_given_is_looked_at_too(tmp_path: Path) -> None:
    place = tmp_path / "of all"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(DirectoryError, match="other users can write it"):
        allocate(1, name="kv", directory=place)


STOPPED = """
    import os, signal, sys, time
    from rankbind.runtime import allocator
    from rankbind.runtime.allocator import Table
    from rankbind.runtime.directory import folder
    from rankbind.runtime.process import Process
    with Table(folder("ports"), Process.me().net_ns).alone():
        print("in", flush=True)
        sys.stdin.read()
"""


def test_who_is_stopped_in_between_is_named_and_holds_nobody_up_at_exit(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "_PATIENCE", 0.2)
    monkeypatch.setattr(allocator, "_AT_EXIT", 0.2)
    one, two = (allocate(1, name=name, within=window(4)) for name in ("one", "two"))
    script = scripts.write(tmp_path, STOPPED, "stopped.py")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        other.send_signal(signal.SIGSTOP)
        with pytest.raises(PortError, match=rf"pid {other.pid} \(.*`kill -CONT {other.pid}` wakes it\) has been alloc"):
            one.release()
        assert one.held
        began = time.monotonic()
        allocator._at_exit()
        assert time.monotonic() - began < 5
        other.send_signal(signal.SIGCONT)
        other.communicate()
    one.release()
    two.release()
    assert not one.held
    assert [lease.state for lease in table(directory).read()] == ["released"] * 2
