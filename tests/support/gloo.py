"""Jobs of real gloo ranks, and of ranks that torch's fake backend plays, with a part of a script run on each."""

from __future__ import annotations

import textwrap
from pathlib import Path

from . import scripts

_HEAD = """
import sys, warnings
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import torch
import torch.distributed as dist
import torch.fx.experimental.proxy_tensor  # slicing a mesh needs it: once, and not in each rank
import torch.multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
import rankbind
from rankbind import IdentityError, Scope, Topology, View
from rankbind.errors import TopologyError
from rankbind.identity import reset
from rankbind.mesh import gather_hosts


def refused(ask, *parts, kind=TopologyError):
    try:
        found = ask()
    except kind as error:
        assert all(part in str(error) for part in parts), error
        return str(error)
    raise AssertionError(f"{found} instead of an error that says {parts}")


def groups_of(topology, *names):
    return sorted(list(group.members) for group in Scope(names).groups(topology))


def lines(ranks, dim):
    return sorted(ranks.movedim(dim, -1).reshape(-1, ranks.shape[dim]).tolist())


def every(rank, world, value, name):
    # all_gather_object needs numpy, which is not there.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"test/{name}/{rank}", value)
    return [store.get(f"test/{name}/{each}").decode() for each in range(world)]
"""

_REAL = """

def main(rank, path, world):
    dist.init_process_group("gloo", store=dist.FileStore(path, world), rank=rank, world_size=world)
    on_rank(rank, world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    world = int(sys.argv[2])
    mp.start_processes(main, args=(sys.argv[1], world), nprocs=world, start_method="fork")
    print("ended")
"""

LIMIT = 100.0
"""Seconds for a job, which takes a few on a machine with nothing else to do."""


def job(folder: Path, world: int, code: str) -> None:
    """Run `code`, the body of ``on_rank(rank, world)``, on each of `world` gloo ranks; all have to come to its end."""
    body = f"def on_rank(rank, world):\n{textwrap.indent(textwrap.dedent(code), '    ')}"
    assert scripts.run(folder, _HEAD + "\n" + body + _REAL, str(folder / "store"), str(world), limit=LIMIT).endswith(
        "ended\n"
    )


def alone(folder: Path, code: str) -> None:
    """Run `code` in one process. Its ``fake(rank, world)`` is a job in which nobody else is there."""
    head = """
from contextlib import contextmanager
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake(rank, world):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()

"""
    assert scripts.run(folder, _HEAD + head + textwrap.dedent(code) + "\nprint('ended')\n", limit=LIMIT).endswith(
        "ended\n"
    )
