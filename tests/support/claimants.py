"""Claimants in processes of their own, for tests of what others see of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("claimant.py")


class Claimant:
    """One such process; `pid` is its pid. All that it started is gone after the with-block."""

    def __init__(self, directory: Path, *before: str) -> None:
        self.left: list[int] = []
        self._process = subprocess.Popen(
            [*before, sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANKBIND_DIR": str(directory)},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def claim(self, resource: str, **told: Any) -> int:
        return int(self.tell(claim=resource, **told))

    def leave(self, key: str) -> int:
        """Have a child keep the lock by force; its pid."""
        self.left.append(int(self.tell(leave=key)))
        return self.left[-1]

    def tell(self, **told: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(30)

    def close(self) -> None:
        self.kill()
        for pid in self.left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


@contextmanager
def claimant(directory: Path, *before: str) -> Iterator[Claimant]:
    """A process that claims in `directory`.

    Args:
        before: a command that starts it, as ``unshare --pid``.
    """
    one = Claimant(directory, *before)
    try:
        yield one
    finally:
        one.close()
