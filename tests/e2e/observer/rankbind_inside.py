"""What the tests look at and break inside a scheduler of real SGLang."""

from __future__ import annotations

import ctypes
import socket
import time
from collections.abc import Iterator
from itertools import count
from typing import Any


def cached(cache: Any, page: int) -> list[int]:
    """The hashes of all blocks in a cache's tree, as events have them."""
    from sglang.srt.mem_cache.utils import hash_str_to_int64

    core = getattr(cache, "tree_core", cache)
    found: list[str] = []
    if hasattr(core, "_binding"):
        found += _hashes_of_rust(core._binding)
    else:
        to_do = list(core.root_node.children.values())
        while to_do:
            node = to_do.pop()
            found += node.hash_value
            to_do += node.children.values()
    size = cache.total_size()
    assert len(found) * page == (size if isinstance(size, int) else size[0]), "not all blocks were found"
    return [hash_str_to_int64(each) for each in found]


def _hashes_of_rust(tree: Any) -> Iterator[str]:
    """A tree of Rust, the default in 0.5.23, says nothing of its nodes but by their numbers."""
    missed = 0
    for node in count(1):
        try:
            yield from tree.get_hash_values(node)
            missed = 0
        except KeyError:
            missed += 1
        if missed > 10_000:
            return


def hurt(publisher: Any, how: str) -> None:
    """Let something happen to a publisher, where it really happens: in its own thread.

    ``idle``: its thread is ended as it waits, by an exception from outside. The others happen while the next batch is
    being sent: ``sending``: the thread ends; ``halfway``: it ends when a part of the message is sent; ``PUB``,
    ``ROUTER``, ``both``: these sockets are closed; ``always``: the thread ends, and so does each that comes after it;
    ``taken``: its socket is closed, and another binds its address.
    """
    if how == "idle":
        # What was received was sent, and is not at once in the buffer for replays.
        while publisher._buffer and repr(publisher._seq_gen) != f"count({publisher._buffer[-1][0] + 1})":
            time.sleep(0.001)
        ended = ctypes.c_ulong(publisher._thread.ident), ctypes.py_object(SystemExit)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(*ended) == 1
        publisher._thread.join()
    elif how == "always":
        type(publisher)._publisher_thread = lambda _: None
        hurt(publisher, "sending")
    else:
        publisher._pack = Mishap(publisher, publisher._pack, how)


class Mishap:
    """An encoder of events to which something happens once."""

    def __init__(self, publisher: Any, encoder: Any, how: str) -> None:
        self.publisher, self.encoder, self.how = publisher, encoder, how

    def encode(self, batch: Any) -> bytes:
        """Encode, in the publisher's thread."""
        how, self.how = self.how, ""
        if how in ("PUB", "both", "taken"):
            self.publisher._pub.close(linger=0)
        if how in ("ROUTER", "both"):
            self.publisher._replay.close(linger=0)
        if how == "taken":
            port = self.publisher._endpoint.rpartition(":")[2]
            while True:
                try:
                    self.thief = socket.create_server(("", int(port)))
                    break
                except OSError:
                    continue
        if how == "halfway":
            import zmq

            self.publisher._pub.send(self.publisher._topic_bytes, zmq.SNDMORE)
        if how in ("sending", "halfway"):
            raise SystemExit
        encoded: bytes = self.encoder.encode(batch)
        return encoded
