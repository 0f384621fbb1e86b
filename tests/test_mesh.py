"""What torch's meshes and process groups are found to be: gloo ranks, and torch's fake backend for many shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankbind
from rankbind import mesh
from rankbind.errors import TopologyError
from rankbind.topology import Topology

from .support import scripts
from .support.gloo import LIMIT, alone, job

# Shapes: every rank of every mesh of up to three dimensions, in every order, without a network


def test_meshes_of_up_to_three_dimensions_in_any_order(tmp_path: Path) -> None:
    code = """
    from itertools import permutations, product
    names = ("pp", "dp", "tp")
    shapes = [shape for count in (1, 2, 3) for shape in product((1, 2, 3, 4), repeat=count)]
    seen = 0
    for world in (1, 2, 6, 8):
        with fake(world - 1, world):
            for shape in shapes:
                if torch.Size(shape).numel() != world:
                    continue
                for order in permutations(range(len(shape))):
                    ranks = torch.arange(world).reshape([shape[dim] for dim in order])
                    ranks = ranks.permute([order.index(dim) for dim in range(len(shape))])
                    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=names[:len(shape)])
                    topology = Topology.from_device_mesh(mesh)
                    assert topology.size == world and not topology.views, topology
                    assert dict(topology.axes) == dict(zip(names, shape)), topology
                    if order == tuple(range(len(shape))):
                        assert topology == Topology(dict(zip(names, shape)), hosts={}), topology
                    for dim, name in enumerate(names[:len(shape)]):
                        assert groups_of(topology, name) == lines(ranks, dim), (topology, ranks)
                        assert Topology.from_device_mesh(mesh[name]) == topology
                    for name, index in zip(names, mesh.get_coordinate()):
                        assert topology.coordinates(world - 1)[name] == index
                    seen += 1
    assert seen == 118, seen
    """
    alone(tmp_path, code)


FLATTENED = """
import itertools
with fake(5, 24):
    mesh = init_device_mesh("cpu", (2, 3, 4), mesh_dim_names=("dp", "cp", "tp"))
    ranks, dims = mesh.mesh, ("dp", "cp", "tp")
    for pair in itertools.permutations(dims, 2):
        part = mesh[pair]._flatten() if pair == tuple(sorted(pair, key=dims.index)) else None
        if part is None:
            continue
        topology = Topology.from_device_mesh(mesh)
        name = "_".join(pair)
        assert topology.views[name] == View(pair, {name: 24 // ranks.shape[dims.index((set(dims) - set(pair)).pop())]})
        assert groups_of(topology, name) == groups_of(topology, *pair)
        assert part.mesh.tolist() in groups_of(topology, name)
        assert Topology.from_device_mesh(part) == topology == Topology.from_device_mesh(mesh["tp"])
    mesh._flatten("all")
    topology = Topology.from_device_mesh(mesh["dp", "tp"])
    assert dict(topology.axes) == {"dp": 2, "cp": 3, "tp": 4} and topology.views["all"] == View(dims, {"all": 24})
    assert topology.sizes["dp_tp"] == 8 and len(topology.views) == 4, topology
    who = rankbind.init(device_mesh=mesh["dp", "cp"]._flatten())
    assert who.rank == 5 and who.coordinates["dp_cp"] == mesh["dp_cp"].get_local_rank() == 1, who
"""


def test_flattened_dimensions_are_views(tmp_path: Path) -> None:
    alone(tmp_path, FLATTENED)


def test_unflattened_dimensions_are_axes_of_a_flat_mesh_and_views_of_others(tmp_path: Path) -> None:
    code = """
    if hasattr(DeviceMesh, "_unflatten"):
        with fake(9, 16):
            world = init_device_mesh("cpu", (16,), mesh_dim_names=("world",))
            mesh = world._unflatten(0, (2, 2, 4), ("pp", "dp", "tp"))
            assert Topology.from_device_mesh(mesh) == Topology({"pp": 2, "dp": 2, "tp": 4}, hosts={})
            refused(lambda: Topology.from_device_mesh(world), "ranks 0 and 1 are at one place")
            # torch does not keep the mesh between a slice and its root: what is left says too little.
            refused(lambda: Topology.from_device_mesh(mesh["tp"]), "ranks 0 and 4 are at one place (tp 0)")
            flat = init_device_mesh("cpu", (16,), mesh_dim_names=("ranks",))
            topology = Topology.from_device_mesh(flat._unflatten(0, (2, 8), ("pp", "tp")))
            assert topology == Topology({"pp": 2, "tp": 8}, {"ranks": View(("pp", "tp"), {"ranks": 16})}, hosts={})
            mesh = init_device_mesh("cpu", (2, 8), mesh_dim_names=("pp", "tp"))
            finer = mesh["tp"]._unflatten(0, (2, 4), ("attn_dp", "attn_tp"))
            expected = Topology(
                {"pp": 2, "tp": 8}, {"attn_dp": View("tp", {"attn_dp": 2, "attn_tp": 4})}, hosts={}
            )
            assert Topology.from_device_mesh(finer) == expected, Topology.from_device_mesh(finer)
            one = Topology.from_device_mesh(finer["attn_tp"])
            assert groups_of(one, "attn_tp") == groups_of(expected, "attn_tp")
    """
    alone(tmp_path, code)


def test_a_mesh_in_no_order_is_refused_or_has_parts(tmp_path: Path) -> None:
    code = """
    with fake(1, 8):
        mesh = DeviceMesh("cpu", [[0, 1, 4, 5], [2, 3, 6, 7]], mesh_dim_names=("dp", "tp"))
        topology = Topology.from_device_mesh(mesh)
        assert topology.axes == {"tp_0": 2, "dp": 2, "tp_1": 2}
        assert groups_of(topology, "tp") == [[0, 1, 4, 5], [2, 3, 6, 7]]
        for ranks, said in {
            ((0, 1, 2, 3), (4, 5, 7, 6)): "ranks 2 and 7 cannot be in it so",
            ((7, 6, 5, 4), (3, 2, 1, 0)): "ranks 7 and 3 cannot be in it so",
            ((0, 2, 1, 3), (4, 6, 5, 7)): None,
            ((0, 1, 2, 5), (4, 3, 6, 7)): "cannot be in it so",
        }.items():
            mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"))
            if said is None:
                topology = Topology.from_device_mesh(mesh)
                assert [list(group.members) for group in Scope("tp").groups(topology)] == [list(row) for row in ranks]
                assert topology.views["tp"] == View(("tp_0", "tp_1"), {"tp": 4})
            else:
                refused(lambda: Topology.from_device_mesh(mesh), said)
                refused(lambda: rankbind.init(device_mesh=mesh), said, kind=IdentityError)
    """
    alone(tmp_path, code)


def test_names_and_ranks_that_are_missing(tmp_path: Path) -> None:
    code = """
    with fake(1, 8):
        bare = DeviceMesh("cpu", torch.arange(8).reshape(2, 4))
        refused(lambda: Topology.from_device_mesh(bare), "2 dimensions, and their names are not known")
        assert Topology.from_device_mesh(bare, names=("pp", "tp"), hosts=2) == Topology({"pp": 2, "tp": 4}, hosts=2)
        refused(lambda: Topology.from_device_mesh(bare, names=("tp",)), "['tp']")
        refused(lambda: Topology.from_device_mesh(bare, names=("tp", "tp")), "['tp', 'tp']")
        named = init_device_mesh("cpu", (2, 4), mesh_dim_names=("rank", "tp"))
        refused(lambda: Topology.from_device_mesh(named), "'rank' is reserved")
        assert Topology.from_device_mesh(named, names=("pp", "tp")).axes == {"pp": 2, "tp": 4}
        refused(lambda: Topology.from_device_mesh(named["tp"], names=("pp", "tp")), "names are for a whole mesh")
        half = DeviceMesh("cpu", torch.arange(4).reshape(2, 2), mesh_dim_names=("pp", "tp"))
        refused(lambda: Topology.from_device_mesh(half), "the ranks [0, 1, 2, 3]", "rank 4 has no place")
        refused(lambda: Topology.from_device_mesh(half["tp"]), "rank 4 has no place")
        refused(lambda: rankbind.init(device_mesh=half), "rank 4 has no place", kind=IdentityError)
        other = DeviceMesh("cpu", torch.arange(4, 8).reshape(2, 2), mesh_dim_names=("pp", "tp"))
        refused(lambda: Topology.from_device_mesh(other), "the ranks [4, 5, 6, 7]", "rank 0 has no place")
    alone = DeviceMesh("cpu", torch.arange(4).reshape(2, 2), mesh_dim_names=("pp", "tp"), _init_backend=False, _rank=0)
    assert Topology.from_device_mesh(alone) == Topology({"pp": 2, "tp": 2}, hosts={})
    refused(lambda: Topology.from_process_groups({"tp": None}), "call init_process_group first")
    refused(gather_hosts, "call init_process_group first")
    refused(lambda: rankbind.init(device_mesh=alone), "call init_process_group first", kind=IdentityError)
    """
    alone(tmp_path, code)


def test_a_mesh_of_meta_devices_and_in_a_fake_tensor_mode(tmp_path: Path) -> None:
    code = """
    from torch._subclasses.fake_tensor import FakeTensorMode
    with fake(1, 8):
        with torch.device("meta"):
            mesh = init_device_mesh("meta", (2, 4), mesh_dim_names=("pp", "tp"))
            assert Topology.from_device_mesh(mesh["tp"]) == Topology({"pp": 2, "tp": 4}, hosts={})
        with FakeTensorMode():
            refused(lambda: Topology.from_device_mesh(mesh), "cannot be read here")
    """
    alone(tmp_path, code)


# gloo


@pytest.mark.parametrize(
    ("shape", "names"),
    [((2,), ("tp",)), ((2, 2), ("pp", "tp")), ((3, 2), ("dp", "tp")), ((2, 2, 2), ("pp", "dp", "tp"))],
    ids=str,
)
def test_slices_flattened_dimensions_and_process_groups_of_gloo_ranks(
    shape: tuple[int, ...], names: tuple[str, ...], tmp_path: Path
) -> None:
    world = 1
    for size in shape:
        world *= size
    code = f"""
    shape, names = {shape}, {names}
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    topology = Topology.from_device_mesh(mesh)
    assert topology == Topology(dict(zip(names, shape)), hosts={{}})
    at = dict(zip(names, mesh.get_coordinate()))
    for name in names:
        assert dist.get_process_group_ranks(mesh.get_group(name)) in groups_of(topology, name)
        who = rankbind.init(device_mesh=mesh[name])
        assert (who.rank, dict(who.coordinates), who.topology.axes) == (rank, at, topology.axes), who
        owned = rankbind.singleton_per(group=name, rank=-1).owned
        assert owned == (mesh.get_local_rank(name) == mesh.size(names.index(name)) - 1)
        reset()
    groups = {{name: mesh.get_group(name) for name in names}}
    found = Topology.from_process_groups(groups)
    assert (dict(found.axes), list(found.axes)) == (dict(topology.axes), list(names))
    assert [host.ranks for host in found.hosts] == [tuple(range(world))], found.hosts
    assert gather_hosts() == {{host.name: host.ranks for host in found.hosts}}
    assert Topology.from_process_groups(groups, hosts=world).hosts == Topology({{"all": world}}, hosts=world).hosts
    if len(names) > 1:
        first, last = names[0], names[-1]
        flat = mesh[first, last]._flatten("flat")
        flattened = Topology.from_device_mesh(flat)
        assert flattened == Topology.from_device_mesh(mesh) == Topology.from_device_mesh(mesh[first])
        assert flattened.axes == topology.axes and flattened.views["flat"].of == (first, last)
        assert groups_of(flattened, "flat") == groups_of(topology, first, last)
        assert dist.get_process_group_ranks(flat.get_group()) in groups_of(flattened, "flat")
        for device_mesh in (flat, mesh["flat"], mesh):
            who = rankbind.init(device_mesh=device_mesh, hosts=1)
            assert (who.rank, who.coordinates["flat"]) == (rank, flat.get_local_rank()), who
            reset()
        gathered = Topology.from_process_groups({{**groups, "flat": flat.get_group()}}, hosts={{}})
        assert gathered == flattened, gathered
        who = rankbind.init(process_groups={{**groups, "flat": flat.get_group()}})
        assert (who.rank, who.coordinates["flat"]) == (rank, flat.get_local_rank()), who
        assert who.topology.views == flattened.views
        reset()
        assert Topology.from_process_groups(dict(reversed(groups.items())), hosts={{}}) == topology
        refused(lambda: Topology.from_process_groups({{first: groups[first]}}), "are at one place")
        refused(lambda: rankbind.init(process_groups={{first: groups[first]}}), "are at one place", kind=IdentityError)
    assert set(every(rank, world, repr(found), "found")) == {{repr(found)}}
    """
    job(tmp_path, world, code)


def test_a_crossed_mesh_of_eight_ranks_and_the_groups_of_an_engine(tmp_path: Path) -> None:
    """SGLang's way: groups made one by one, those of attention and of experts over the same tp."""
    code = """
    model = Topology(
        {"pp": 2, "tp": 4},
        {"a": View("tp", {"attn_dp": 2, "attn_tp": 2}), "m": View(("pp", "tp"), {"moe_dp": 2, "moe_ep": 4})},
    )
    mine = {}
    for name in model.sizes:
        for members in groups_of(model, name):
            group = dist.new_group(members)
            if rank in members:
                mine[name] = group
    found = Topology.from_process_groups(mine)
    assert found.axes == model.axes
    for name in model.sizes:
        assert groups_of(found, name) == groups_of(model, name)
    assert groups_of(found, "attn_dp", "attn_tp") == groups_of(model, "attn_dp", "attn_tp")
    who = rankbind.init(found, rank=rank)
    assert (who.rank, who.coordinates["attn_dp"]) == (rank, rank % 4 // 2), who
    reset()
    crossed = DeviceMesh("cpu", torch.arange(8).reshape(2, 2, 2).permute(2, 0, 1), mesh_dim_names=("tp", "dp", "cp"))
    topology = Topology.from_device_mesh(crossed)
    assert list(topology.axes) == ["dp", "cp", "tp"]
    who = rankbind.init(device_mesh=crossed["tp"], hosts=2)
    assert dict(who.coordinates) == dict(zip(("tp", "dp", "cp"), crossed.get_coordinate())), who
    assert rankbind.singleton_per(group="host").owned == (rank % 4 == 0)
    """
    job(tmp_path, 8, code)


def test_what_one_rank_does_wrong_is_an_error_on_all_and_nobody_hangs(tmp_path: Path) -> None:
    code = """
    tp = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pp = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    right = {"tp": tp[rank // 2], "pp": pp[rank % 2]}
    assert Topology.from_process_groups(right).axes == {"pp": 2, "tp": 2}
    for number, (wrong, *said) in enumerate((
        ({"tp": tp[0], "pp": pp[rank % 2]}, "rank 2"),
        (right if rank != 3 else {"tp": tp[1]}, "rank 3 gives process groups for tp, and rank 0 for tp, pp"),
        (right if rank != 1 else {"tp": dist.GroupMember.NON_GROUP_MEMBER, "pp": pp[1]}, "rank 1 "),
        (right if rank != 2 else None, "no attribute"),
        ({"tp": right["pp" if rank == 1 else "tp"], "pp": right["pp"]}, "ranks 0 and 1 do not agree on their tp group"),
    )):
        message = refused(lambda: Topology.from_process_groups(wrong), *said)
        assert every(rank, world, message, number) == [message] * 4
    if rank != 2:
        message = refused(lambda: Topology.from_process_groups(right, timeout=1.0), "rank 2 has not said what it knows")
        refused(lambda: gather_hosts(timeout=1.0), "rank 2 has not said what it knows")
    """
    job(tmp_path, 4, code)


# Hosts


def test_hosts_are_network_namespaces_in_local_rank_order() -> None:
    def hosts(*said: tuple[str, str, int, int]) -> dict[str, tuple[int, ...]]:
        return mesh._hosts(said)

    assert hosts(("a", "boot", 1, 0), ("a", "boot", 1, 1)) == {"a": (0, 1)}
    assert hosts(("a", "boot", 1, 1), ("b", "other", 1, 0), ("a", "boot", 1, 0)) == {"a": (2, 0), "b": (1,)}
    assert hosts(("a", "boot", 1, -1), ("a", "boot", 2, -1), ("a", "other", 1, -1)) == {
        "a": (0,),
        "a-2": (1,),
        "a-3": (2,),
    }
    name, boot, network, local = mesh._here()
    assert (name, local) == (os.uname().nodename, -1 if "LOCAL_RANK" not in os.environ else local)
    assert boot
    assert network


# torchrun

TORCHRUN = """
import os, sys, warnings
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import rankbind
from rankbind import Topology
from rankbind.identity import reset

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
rank, agents = dist.get_rank(), int(os.environ["GROUP_WORLD_SIZE"])
who = rankbind.init(device_mesh=mesh["tp"])
assert (who.rank, list(who.coordinates.values())) == (rank, list(mesh.get_coordinate())), who
blocks = [host.ranks for host in who.topology.hosts]
assert blocks == [tuple(range(4))] if agents == 1 else blocks == [(0, 1), (2, 3)], blocks
assert rankbind.singleton_per(group="host").owned == (os.environ["LOCAL_RANK"] == "0")
reset()
topology = Topology.from_device_mesh(mesh)
assert rankbind.init(topology).topology == who.topology
assert rankbind.identity().rank == int(os.environ["RANK"])
reset()
groups = {name: mesh.get_group(name) for name in ("pp", "tp")}
assert rankbind.init(process_groups=groups).topology == who.topology
reset()
found = Topology.from_process_groups(groups)
assert len(found.hosts) == 1
if agents == 1:
    assert rankbind.init(found).topology == found
else:
    # Two agents on one machine: what torchrun says of hosts is not what is the case, and somebody has to decide.
    try:
        raise SystemExit(f"{rankbind.init(found)} instead of an error")
    except rankbind.IdentityError as error:
        assert "torchrun" in str(error), error
    assert rankbind.init(found, hosts=1).topology.hosts[0].ranks == (0, 1, 2, 3)
dist.destroy_process_group()
open(os.path.join(sys.argv[1], str(rank)), "w").close()
"""


@pytest.mark.parametrize("agents", [1, 2])
def test_torchrun_with_one_agent_and_with_two(agents: int, tmp_path: Path) -> None:
    script = scripts.write(tmp_path, TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={agents}", f"--nproc-per-node={4 // agents}"]
    command += ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-endpoint={tmp_path / 'rendezvous'}"]
    command += ["--local-addr=127.0.0.1", str(script), str(tmp_path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RANKBIND_DIR": str(tmp_path / "runtime")}
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        for _ in range(agents)
    ]
    try:
        said = [process.communicate(timeout=LIMIT)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * agents, "\n".join(said)
    assert all((tmp_path / str(rank)).exists() for rank in range(4))


# Without torch


def test_without_torch_there_are_no_process_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    with pytest.raises(TopologyError, match="call init_process_group first"):
        Topology.from_process_groups({})
    with pytest.raises(rankbind.IdentityError, match=r"process_groups: .* call init_process_group first"):
        rankbind.init(process_groups={})
