"""Another process that listens on an address, for tests of what is said of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HOLDER = """
import json, socket, sys
family, *address = json.loads(sys.argv[1])
held = socket.socket(family)
held.bind(address[0] if len(address) == 1 else tuple(address))
held.listen()
print("listens", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(family: int, *address: str | int) -> Iterator[int]:
    """Such a process: its pid.

    Args:
        address: host and port, or the name of a unix socket.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, json.dumps([family, *address])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        yield process.pid
    finally:
        process.communicate()
