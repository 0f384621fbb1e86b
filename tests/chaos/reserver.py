"""One of the processes of test_ports.py: `grab`, or `reserve N` and `probe N`, which go on when told so on stdin.

Half of the ports are served by pyzmq in the end, the others by plain sockets, and each is asked by a client.
"""

from __future__ import annotations

import contextlib
import errno
import json
import random
import select
import socket
import struct
import sys
import time
from collections import Counter, deque
from typing import Any

import zmq

from rankbind.errors import RankbindError
from rankbind.runtime.allocator import kernel_range
from rankbind.runtime.ports import reserve

LIMIT = 60
GRABBED = 2000


def grab() -> None:
    """Listen on a port the kernel picks, on one picked by hand, and connect from one, until stdin ends.

    At most `GRABBED` at a time, and none left in TIME_WAIT: the range must not run out.
    """
    kept: deque[socket.socket] = deque()
    low, high = kernel_range()
    target = socket.socket()
    target.bind(("127.0.0.1", 0))
    target.listen(4096)
    print("grabbing", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for index in range(60):
            made = socket.socket()
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            kept.append(made)
            if index % 3 == 0:
                made.connect_ex(target.getsockname())
            else:
                with contextlib.suppress(OSError):
                    made.bind(("", 0 if index % 3 == 1 else random.randint(low, high)))
                    made.listen(1)
            if len(kept) > GRABBED:
                kept.popleft().close()
    for each in (target, *kept):
        each.close()


class Own:
    """The ports of this process: first only had, then served on."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.context = zmq.Context()
        self.context.max_sockets = 60_000
        self.had: list[Any] = []

    def reserve(self) -> None:
        self.had.append(reserve())

    def probe(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.had.append(probe.getsockname()[1])

    def ports(self) -> list[int]:
        return [had if isinstance(had, int) else had.port for had in self.had]

    def serve(self, had: Any, with_zmq: bool) -> bool:
        port = had if isinstance(had, int) else had.port
        if with_zmq:
            with self.context.socket(zmq.PULL) as pull, self.context.socket(zmq.PUSH) as push:
                if isinstance(had, int):
                    pull.bind(f"tcp://127.0.0.1:{port}")
                else:
                    had.bind_zmq(pull)
                push.linger = 0
                push.connect(f"tcp://127.0.0.1:{port}")
                push.send(b"%d" % port)
                return bool(pull.poll(LIMIT * 1000)) and pull.recv() == b"%d" % port
        if isinstance(had, int):
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            listener = had.take()
        with listener:
            if isinstance(had, int):
                listener.bind(("127.0.0.1", port))
                listener.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as client:
                served, _ = listener.accept()
                with served:
                    client.sendall(b"%d" % port)
                    return served.recv(99) == b"%d" % port

    def count(self, error: Exception) -> None:
        number = getattr(error, "errno", None)
        self.errors[errno.errorcode.get(number, str(number)) if number else f"{type(error).__name__}: {error}"] += 1


def tell(**what: Any) -> None:
    """Say it, and go on when all the others have said it."""
    print(json.dumps(what), flush=True)
    sys.stdin.readline()


def main() -> None:
    how, *count = sys.argv[1:]
    if how == "grab":
        return grab()
    own, served = Own(), 0
    tell(ready=True)
    start = time.monotonic()
    for _ in range(int(count[0])):
        try:
            own.probe() if how == "probe" else own.reserve()
        except (OSError, RankbindError) as error:
            own.count(error)
    tell(ports=own.ports(), seconds=time.monotonic() - start)
    for index, had in enumerate(own.had):
        try:
            served += own.serve(had, with_zmq=index % 2 == 0)
        except (OSError, RankbindError, zmq.ZMQError) as error:
            own.count(error)
    own.context.term()
    tell(served=served, errors=own.errors)
    return None


if __name__ == "__main__":
    main()
