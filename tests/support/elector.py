"""A process that stands for election, and does what it is told on its standard input, a line at a time.

    python elector.py RANK              # of four ranks on one host; RANKBIND_DIR says where
    python elector.py RANK STORE        # of two ranks on two hosts, in a gloo job whose store is the file STORE

It answers with one JSON list a line: what happened, its rank, and more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import rankbind
from rankbind import Takeover, singleton_per

RANK = int(sys.argv[1])


def say(*what: object) -> None:
    print(json.dumps(what), flush=True)


def told(takeover: Takeover) -> None:
    before = takeover.before
    say("took over", RANK, takeover.claim.token, None if before is None else before.rank)


once = singleton_per(group="world", rank="any", name="collector", on_takeover=told, lease=1.0)


@once
def collector(port: int) -> Iterator[int]:
    claim = rankbind.current_claim()
    say("made", RANK, None if claim is None else claim.token, port)
    yield port
    say("torn down", RANK)


def main() -> None:
    if len(sys.argv) > 2:
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=RANK, world_size=2)
        rankbind.init(axes={"dp": 2}, rank=RANK, hosts=2)
    else:
        rankbind.init(axes={"dp": 4}, rank=RANK, hosts=1)
    say("called", RANK, collector(5557))
    for line in sys.stdin:
        if line.strip() == "release":
            collector.release()
            say("released", RANK)
        else:
            say("value", RANK, collector(5557), once.owned)


if __name__ == "__main__":
    main()
