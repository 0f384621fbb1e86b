"""One scheduler process of an engine in miniature: a cache that records events and a publisher that sends them.

Run by demo.py, one process a rank: ``worker.py by-hand|declared``, with RANKBIND_TOPOLOGY and torchrun's RANK and
WORLD_SIZE in the environment. What it says goes to stdout, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque

import zmq

import rankbind
from rankbind import singleton_per

EVENTS = 50


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def bind(endpoint: str) -> zmq.Socket[bytes]:
    # XPUB tells when somebody has subscribed: events sent before that would be lost.
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.XPUB)
    socket.bind(endpoint)
    return socket


# --- the way of SGLang 0.5.14: every site has its own gate ------------------------------------------------------------


def by_hand() -> tuple[zmq.Socket[bytes] | None, deque[int] | None]:
    me = rankbind.identity()
    attn_tp_rank = me.coordinates["attn_tp"]
    publisher = bind(me.address("kv-events")) if attn_tp_rank == 0 else None
    recorded: deque[int] | None = deque() if attn_tp_rank == 0 else None
    return publisher, recorded


# --- the declared way: the topology file says who, the code says what -------------------------------------------------


@singleton_per("kv-events")
def open_publisher() -> zmq.Socket[bytes]:
    return bind(rankbind.identity().address("kv-events"))


@singleton_per("cache-events")
def open_event_queue() -> deque[int]:
    return deque()


def declared() -> tuple[zmq.Socket[bytes] | None, deque[int] | None]:
    return open_publisher(), open_event_queue()


def main() -> None:
    rank = int(os.environ["RANK"])
    try:
        publisher, recorded = {"by-hand": by_hand, "declared": declared}[sys.argv[1]]()
    except zmq.ZMQError as error:
        say(rank=rank, failed=f"zmq.error.ZMQError: {error}")
        sys.exit(1)
    except rankbind.ClaimedError as error:
        say(rank=rank, failed=str(error))
        sys.exit(1)
    say(rank=rank, bound=publisher is not None)
    if not sys.stdin.readline():  # the launcher lets all go at once, or gives up
        return

    if publisher is not None:
        publisher.recv()
    for block in range(EVENTS):
        if recorded is not None:
            recorded.append(block)  # the cache stores a block, on every stage
        if publisher is not None and recorded is not None:
            publisher.send_multipart(
                [b"kv-events", block.to_bytes(8, "big"), json.dumps({"block": recorded.popleft()}).encode()]
            )
    say(rank=rank, waiting=len(recorded or ()))
    if publisher is not None:
        publisher.close(linger=5000)
        zmq.Context.instance().term()


if __name__ == "__main__":
    main()
