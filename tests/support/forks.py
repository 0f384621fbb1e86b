"""Processes that have torch imported already, which takes seconds: one imports it and forks the others.

A `Fork` runs a text of Python with what it prints in a file, and ends as a process of its own would.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE = 60.0

_NURSERY = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch.distributed as dist
import rankbind.runtime.store
for line in sys.stdin:
    told = json.loads(line)
    if "reap" in told:
        print(os.waitstatus_to_exitcode(os.waitpid(told["reap"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        out = os.open(told["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        exec(told["code"], {"__name__": "__main__", "dist": dist})
        sys.exit()
    print(pid, flush=True)
"""


SERVER = """
import signal
store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print("port", store.port, flush=True)
signal.pause()
"""
"""For `Nursery.fork`: the server of a TCPStore."""


def a_store(kind: str, folder: Path) -> Any:
    """A store of torch, for this process; a file's is one for all that name the same folder."""
    import torch.distributed as dist

    match kind:
        case "tcp":
            return dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        case "file":
            return dist.FileStore(str(folder / "store"))
        case "hash":
            return dist.HashStore()
        case _:
            return dist.PrefixStore("default_pg", a_store("tcp", folder))


class Fork:
    """One process."""

    def __init__(self, nursery: Nursery, code: str, out: Path) -> None:
        self._nursery, self._out, self.status = nursery, out, None
        self.pid = nursery.ask({"code": code, "out": str(out)})

    status: int | None

    def says(self, word: str) -> str:
        """Wait for a line that begins so; the rest of it."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for line in self.said.splitlines():
                if line.startswith(word):
                    return line.removeprefix(word).strip()
            time.sleep(0.005)
        raise AssertionError(f"it does not say {word}: {self.said}")

    @property
    def said(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            # Its threads are told one after the other.
            end = time.monotonic() + PATIENCE
            while any(b") T " not in each.read_bytes() for each in Path(f"/proc/{self.pid}/task").glob("*/stat")):
                assert time.monotonic() < end

    def reap(self) -> int:
        """Wait for its end; its exit status."""
        if self.status is None:
            self.status = self._nursery.ask({"reap": self.pid})
            self._nursery.forks.discard(self)
        return self.status

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.reap()


class Nursery:
    """What forks. At its end nothing is left of what it forked."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self.forks: set[Fork] = set()

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", _NURSERY]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.clear()
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def fork(self, code: str) -> Fork:
        self._count += 1
        made = Fork(self, code, self._folder / f"fork-{self._count}")
        self.forks.add(made)
        return made

    def clear(self) -> None:
        for each in tuple(self.forks):
            each.kill()

    def ask(self, what: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())
