"""A Python process that does what it is told, a line at a time, and can be killed, stopped, or put in a namespace.

Run as a script it is that process: each line of its standard input is a JSON object with ``run`` (statements) and
``value`` (an expression); the answer is a line with ``value``, or ``error`` and ``message``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

WAIT = 30.0
"""Seconds after which something that should have happened has not: generous, as the machine may be busy."""


def end(pid: int) -> None:
    """Kill a process that is nobody's child here, and wait until the kernel has closed its files."""
    descriptor = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([descriptor], [], [], WAIT)[0], f"{pid} does not end"
    finally:
        os.close(descriptor)


class RefusedError(Exception):
    """What the statements raised in the child. `kind` is the name of its class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Child:
    """The process. `pid` is its own, as it sees itself; `process` is it, or a command that wraps it (``unshare``)."""

    def __init__(
        self, wrapped: Sequence[str] = (), env: Mapping[str, str] | None = None, cwd: Path | None = None, **more: Any
    ) -> None:
        self.process = subprocess.Popen(
            [*wrapped, sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            **more,
        )
        self.pid = int(self.ask("os.getpid()"))

    def run(self, statements: str) -> None:
        """Have it run `statements`. Raises `RefusedError`."""
        self.ask("None", statements)

    def ask(self, value: str, first: str = "") -> Any:
        """The value, by way of JSON, of an expression, after it has run some statements. Raises `RefusedError`."""
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps({"run": first, "value": value}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the child has ended: {self.process.wait(WAIT)}")
        answer = json.loads(line)
        if "error" in answer:
            raise RefusedError(answer["error"], answer["message"])
        return answer["value"]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it, and wait until it is gone. Of a wrapping command that forked, that has to be its business."""
        self.process.send_signal(number)
        self.process.wait(WAIT)

    def leave(self) -> int:
        """Have it end as a script ends, and give its exit status."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(WAIT)

    def close(self) -> None:
        """Leave nothing of it."""
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(WAIT / 3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(WAIT)


@contextmanager
def child(
    wrapped: Sequence[str] = (), env: Mapping[str, str] | None = None, cwd: Path | None = None, **more: Any
) -> Iterator[Child]:
    """A `Child`, gone afterwards."""
    found = Child(wrapped, env, cwd, **more)
    try:
        yield found
    finally:
        found.close()


def forked(ask: Callable[[], object]) -> str:
    """What `ask` comes to in a forked child of this process."""
    out, into = os.pipe()
    with warnings.catch_warnings():
        # The tests' own process has threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            try:
                answer = str(ask())
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}"
            os.write(into, answer.encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as answered:
        found = answered.read()
    os.waitpid(pid, 0)
    return found


def may(*command: str) -> bool:
    """Whether this user may run `command` (``unshare``) here."""
    try:
        return subprocess.run([*command, "true"], capture_output=True, timeout=WAIT, check=False).returncode == 0
    except OSError:
        return False


def main() -> None:
    from rankbind.runtime.claim import claim
    from rankbind.runtime.key import Key
    from rankbind.runtime.process import Process

    names: dict[str, Any] = {"os": os, "sys": sys, "signal": signal, "claim": claim, "Key": Key, "Process": Process}
    names["Path"] = Path
    out = sys.stdout
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            exec(asked["run"], names)
            answer = {"value": eval(asked["value"], names)}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
