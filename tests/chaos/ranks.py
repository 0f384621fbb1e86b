"""The processes of a job that share a store: ``python -m tests.chaos.ranks SETUP`` forks them when it is told to.

One process imports torch; what it forks has it. It reads one JSON object a line and answers each with one:

    {"do": "server", "host": 0}             a process that serves a TCPStore
    {"do": "rank", "rank": 3, "host": 1, "at": [ADDRESS, PORT]}
    {"do": "reap", "pid": 17}               wait for its end
    {"do": "cut", "host": 1}, {"do": "restore", "host": 1}

At the end of its input it kills whatever it has forked. `host`: of `Hosts`, where SETUP says that there are some.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..support.namespaces import Hosts
from .history import Event, Log, now


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all ranks of a run have in common.

    Attributes:
        log: the file of the history.
        consumer: path of the socket that takes the acts.
        lease, timeout: for `stand_by_in_store`.
        hosts: how many namespaces; 0: none.
        wrong: "clock": owners do not stop when their lease is over.
    """

    log: str
    consumer: str
    resources: tuple[str, ...]
    lease: float
    timeout: float
    hosts: int = 0
    wrong: str = ""


def main() -> None:
    setup = Setup(**json.loads(sys.argv[1]))
    hosts = Hosts(setup.hosts) if setup.hosts else None
    warnings.simplefilter("ignore")
    import torch.distributed  # noqa: F401

    import rankbind.runtime.store  # noqa: F401

    children: set[int] = set()
    answer({"ready": [hosts.address(each) for each in range(setup.hosts)] if hosts else ["127.0.0.1"]})
    try:
        for line in sys.stdin:
            told = json.loads(line)
            host = told.get("host")
            match told["do"]:
                case "server" | "rank":
                    here, there = os.pipe()
                    pid = os.fork()
                    if pid == 0:
                        child(told, setup, hosts, there)
                    os.close(there)
                    children.add(pid)
                    with os.fdopen(here) as said:
                        answer({"pid": pid, "start": start_of(pid), "port": int(said.readline() or 0)})
                case "reap":
                    children.discard(told["pid"])
                    answer({"status": os.waitstatus_to_exitcode(os.waitpid(told["pid"], 0)[1])})
                case "cut":
                    assert hosts is not None
                    hosts.cut(host)
                    answer({})
                case "restore":
                    assert hosts is not None
                    hosts.restore(host)
                    answer({})
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def child(told: dict[str, Any], setup: Setup, hosts: Hosts | None, ready: int) -> None:
    """What a forked process does; it does not return."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    status = 1
    try:
        if hosts is not None:
            hosts.enter(told["host"])
        if told["do"] == "server":
            serve(ready)
        else:
            rank = Rank(told, setup)
            os.write(ready, b"0\n")  # with a connection of its own, as every rank of a job has
            os.close(ready)
            rank.run()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        if status == 0:
            import atexit

            atexit._run_exitfuncs()
        os._exit(status)


def serve(ready: int) -> None:
    from torch.distributed import TCPStore

    store = TCPStore("0.0.0.0", 0, None, is_master=True, wait_for_workers=False)
    os.write(ready, f"{store.port}\n".encode())
    os.close(ready)
    signal.pause()


class Rank:
    """Claims, acts, releases, until SIGTERM or the end of the store; each act is `check`, a while, and then the act."""

    def __init__(self, told: dict[str, Any], setup: Setup) -> None:
        from torch.distributed import TCPStore

        from rankbind.runtime import store

        # All ranks are on one host in truth; each is to see the others as on another.
        store._seen_dead = lambda holder: False
        self.over = threading.Event()
        faulthandler.register(signal.SIGUSR1)
        signal.signal(signal.SIGTERM, lambda *_: self.over.set())
        self.setup, self.told = setup, told
        self.me = {"pid": os.getpid(), "start": start_of(os.getpid())}
        self.log = Log(Path(setup.log))
        self.random = random.Random(told["rank"])
        self.consumer = socket.socket(socket.AF_UNIX)
        self.consumer.connect(setup.consumer)
        self.mutex = threading.Lock()
        self.store = TCPStore(*told["at"], is_master=False, timeout=timedelta(seconds=60))

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self.own_once(self.random.choice(self.setup.resources))
            except GoneError:
                return

    def own_once(self, resource: str) -> None:
        from rankbind.errors import DeposedError, StoreGoneError
        from rankbind.runtime.store import stand_by_in_store

        began, asked = now(), time.monotonic()
        losses: list[str] = []
        try:
            claim = stand_by_in_store(
                resource,
                deployment="chaos",
                store=self.store,
                lease=self.setup.lease,
                timeout=self.setup.timeout,
                cancel=self.over,
                rank=self.told["rank"],
                lost=lambda error: self.tell(lost=resource, times=losses.append("") or len(losses), error=str(error)),
            )
        except StoreGoneError as error:
            self.tell(gone=time.monotonic() - asked, error=str(error))
            if "is gone" in str(error):
                raise GoneError from None
            return
        at = now()
        if claim is None or not claim.held:
            return
        self.log.write(self.event("acquire", resource, claim.token, at, began))
        for _ in range(self.random.randrange(5, 400)):
            checked = now()
            try:
                if self.setup.wrong != "clock":
                    claim.check()
            except DeposedError as error:
                self.tell(deposed=resource, error=str(error))
                break
            time.sleep(self.random.random() * 0.01)
            accepted = self.tell(act=resource, token=claim.token, checked=checked)
            if not accepted and self.setup.wrong == "clock":
                break
            if self.over.is_set():
                break
        self.log.write(self.event("release", resource, claim.token, now(), 0))
        try:
            claim.release()
        except StoreGoneError as error:
            self.tell(gone=0.0, error=str(error))

    def event(self, kind: Any, resource: str, token: int, at: int, began: int) -> Event:
        return Event(kind=kind, resource=resource, token=token, at=at, began=began, **self.me)

    def tell(self, **what: Any) -> bool:
        """Tell the consumer, and wait until it has taken it; whether it accepted."""
        with self.mutex:
            self.consumer.sendall(json.dumps({**what, **self.me}).encode() + b"\n")
            return self.consumer.recv(1) == b"1"


class GoneError(Exception):
    """There is no store any more."""


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def answer(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
