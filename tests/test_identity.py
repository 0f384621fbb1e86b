"""Who am I: every source, their contradictions, and everything that must not become rank 0."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rankbind
from rankbind import Identity, IdentityError, RankbindError, Topology, View
from rankbind.identity import deployment, reset
from rankbind.launcher import number, pairs

PP_TP = {"pp": 2, "tp": 4}
SOURCES = re.compile(r"(RANKBIND|SLURM|OMPI|PMI)_|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$")


def torchrun(rank: int, size: int, local: int | None = None) -> dict[str, str]:
    env = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    if local is not None:
        env |= {
            "LOCAL_RANK": str(rank % local),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(rank // local),
            "GROUP_WORLD_SIZE": str(size // local),
        }
    return env


def slurm(rank: int, size: int, node: int = 0, per_node: str = "", gtids: str = "") -> dict[str, str]:
    env = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_NODEID": str(node),
    }
    if per_node:
        env |= {"SLURM_STEP_TASKS_PER_NODE": per_node}
    if gtids:
        env |= {"SLURM_GTIDS": gtids}
    return env


def open_mpi(rank: int, size: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)}


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if SOURCES.match(name)]:
        monkeypatch.delenv(name)
    reset()
    yield
    reset()


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> object:
    def set_all(*parts: Mapping[str, str]) -> None:
        for part in parts:
            for name, value in part.items():
                monkeypatch.setenv(name, value)

    return set_all


# Unknown


def test_unknown_is_an_error_that_says_three_ways() -> None:
    with pytest.raises(IdentityError) as caught:
        rankbind.identity()
    for way in ("rankbind.init(", "RANKBIND_AXES=pp=2,tp=4", "torchrun (RANK, WORLD_SIZE)", "srun", "mpirun"):
        assert way in str(caught.value)


def test_local_rank_says_nothing_about_the_world(env) -> None:
    env({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"})
    with pytest.raises(IdentityError, match="LOCAL_RANK=0, which counts within a host"):
        rankbind.identity()
    with pytest.raises(IdentityError, match="LOCAL_RANK=0"):
        rankbind.init(axes=PP_TP)


def test_rank_without_world_size_is_no_source(env) -> None:
    env({"RANK": "0"})
    with pytest.raises(IdentityError, match="RANK=0 without WORLD_SIZE"):
        rankbind.identity()


def test_slurm_batch_script_is_not_rank_0(env) -> None:
    # What sbatch really sets in the script that then runs torchrun: PROCID 0 of all tasks, and no step.
    env({"SLURM_JOB_ID": "200505", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    with pytest.raises(IdentityError, match="SLURM_PROCID=0 outside a step"):
        rankbind.identity()
    env(torchrun(3, 4))
    assert rankbind.identity().rank == 3


def test_own_rank_without_axes_is_not_enough(env) -> None:
    env({"RANKBIND_RANK": "3"})
    with pytest.raises(IdentityError, match="RANKBIND_RANK or RANKBIND_COORDINATES without"):
        rankbind.identity()


# Each source


@pytest.mark.parametrize(
    ("variables", "source"),
    [
        (torchrun(5, 8), "torchrun (RANK=5, WORLD_SIZE=8)"),
        (slurm(5, 8), "SLURM (SLURM_PROCID=5, SLURM_STEP_NUM_TASKS=8)"),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, "SLURM (SLURM_PROCID=5, SLURM_NTASKS=8)"),
        (open_mpi(5, 8), "Open MPI (OMPI_COMM_WORLD_RANK=5, OMPI_COMM_WORLD_SIZE=8)"),
        ({"RANKBIND_AXES": "pp=2,tp=4", "RANKBIND_RANK": "5"}, "RANKBIND_RANK=5"),
        ({"RANKBIND_AXES": "pp=2,tp=4", "RANKBIND_COORDINATES": "pp=1,tp=1"}, "RANKBIND_COORDINATES=pp=1,tp=1"),
    ],
)
def test_every_source_gives_rank_and_says_who(env, variables, source) -> None:
    env(variables)
    who = rankbind.identity()
    assert (who.rank, who.topology.size, who.source) == (5, 8, source)
    assert who.declared == ("RANKBIND_AXES" in variables)


def test_launcher_gives_the_rank_for_declared_axes(env) -> None:
    env(torchrun(6, 8, local=4))
    who = rankbind.init(axes=PP_TP)
    assert dict(who.coordinates) == {"pp": 1, "tp": 2}
    assert [host.ranks for host in who.topology.hosts] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert rankbind.identity() is who


def test_file_and_its_resources(env, tmp_path: Path) -> None:
    pytest.importorskip("rankbind.config")
    path = tmp_path / "topology.toml"
    path.write_text(
        "[axes]\npp = 2\ntp = 4\n[hosts]\ncount = 2\n"
        '[resources.kv-events]\nsingleton_per = { group = "pp" }\nbind = "tcp://*:{5557 + tp}"\n'
    )
    who = rankbind.init(path, rank=5)
    assert who.job is not None
    assert who.job.resource("kv-events").owner == rankbind.Scope("pp")
    assert dict(who.coordinates) == {"pp": 1, "tp": 1}
    reset()
    env({"RANKBIND_TOPOLOGY": str(path)}, torchrun(5, 8, local=4))
    assert rankbind.identity().rank == 5


def test_a_broken_file_is_a_config_error(env, tmp_path: Path) -> None:
    pytest.importorskip("rankbind.config")
    from rankbind.errors import ConfigError

    (tmp_path / "bad.toml").write_text("[axes\n")
    env({"RANKBIND_TOPOLOGY": str(tmp_path / "bad.toml"), "RANKBIND_RANK": "0"})
    with pytest.raises(ConfigError):
        rankbind.identity()


def test_partial_coordinates_leave_the_rank_unknown() -> None:
    who = rankbind.init(axes=PP_TP, coordinates={"pp": 0})
    assert who.rank is None
    assert dict(who.coordinates) == {"pp": 0}


def test_views_follow_from_the_rank() -> None:
    who = rankbind.init(axes=PP_TP, views={"attention": View("tp", {"attn_dp": 2, "attn_tp": 2})}, rank=7)
    assert dict(who.coordinates) == {"pp": 1, "tp": 3, "attn_dp": 1, "attn_tp": 1}


# Worlds: which source wins, and contradictions


def test_two_sources_of_one_world_that_disagree_show_both(env) -> None:
    env(torchrun(3, 8), slurm(5, 8))
    with pytest.raises(
        IdentityError, match=r"torchrun \(RANK=3, WORLD_SIZE=8\) says .* 3, SLURM \(SLURM_PROCID=5, .*=8\) says .* 5"
    ):
        rankbind.identity()


def test_init_against_the_launcher_of_the_same_world(env) -> None:
    env(torchrun(3, 8))
    with pytest.raises(IdentityError, match=r"init\(rank=5\) says rank 5, torchrun \(RANK=3.*says rank 3"):
        rankbind.init(axes=PP_TP, rank=5)
    with pytest.raises(IdentityError, match=r"init\(coordinates=.*says pp 1, torchrun \(RANK=3.*says pp 0"):
        rankbind.init(axes=PP_TP, coordinates={"pp": 1})


def test_own_variables_against_each_other_and_the_launcher(env) -> None:
    env({"RANKBIND_AXES": "pp=2,tp=4", "RANKBIND_RANK": "5", "RANKBIND_COORDINATES": "pp=1,tp=2"})
    with pytest.raises(IdentityError, match="RANKBIND_RANK=5 says tp 1, RANKBIND_COORDINATES=pp=1,tp=2 says tp 2"):
        rankbind.identity()
    env({"RANKBIND_COORDINATES": "pp=1,tp=1"}, torchrun(3, 8))
    with pytest.raises(IdentityError, match=r"RANKBIND_RANK=5 says rank 5, torchrun \(RANK=3"):
        rankbind.identity()


def test_srun_that_starts_torchrun_is_another_world(env) -> None:
    env(slurm(1, 2), torchrun(5, 8, local=4))
    assert rankbind.identity().rank == 5


def test_independent_slurm_tasks_are_worlds_of_their_own(env) -> None:
    env(slurm(3, 8))
    who = rankbind.init(axes={"dp": 1}, rank=0)
    assert who.rank == 0
    assert [host.ranks for host in who.topology.hosts] == [(0,)]


def test_world_size_must_be_the_topologys_when_the_rank_is_the_launchers(env) -> None:
    env(torchrun(3, 4), slurm(3, 8))
    with pytest.raises(IdentityError, match=r"torchrun \(RANK=3, WORLD_SIZE=4\) is a world of 4 ranks.*pp 2 x tp 4"):
        rankbind.init(axes=PP_TP)


def test_own_variables_of_another_world_do_not_concern_an_explicit_one(env) -> None:
    env({"RANKBIND_AXES": "pp=2,tp=4", "RANKBIND_RANK": "5"})
    assert rankbind.init(axes={"dp": 2}, rank=1).rank == 1
    reset()
    with pytest.raises(IdentityError, match="RANKBIND_RANK=5 says rank 5"):
        rankbind.init(axes={"dp": 8}, rank=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rankbind.init(axes=PP_TP, rank=8), "rank 8 does not exist"),
        (lambda: rankbind.init(axes=PP_TP, coordinates={"pp": 2, "tp": 0}), "pp 2 is outside"),
        (lambda: rankbind.init(axes=PP_TP, rank=-1), "rank -1 does not exist"),
    ],
)
def test_a_rank_that_the_topology_does_not_have(call, message) -> None:
    with pytest.raises(IdentityError, match=message):
        call()


def test_init_takes_numbers_and_one_topology() -> None:
    with pytest.raises(TypeError, match="variables are text"):
        rankbind.init(axes=PP_TP, rank="3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="variables are text"):
        rankbind.init(axes=PP_TP, coordinates={"pp": True})
    with pytest.raises(TypeError, match="not both"):
        rankbind.init("topology.toml", axes=PP_TP)


# Values are text


@pytest.mark.parametrize("text", ["abc", "", " 3 ", "-1", "3.0", "+3", "1_0", "\u0663", "0x1", "3\n", "9" * 40])
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_SIZE", "RANKBIND_RANK"])
def test_text_that_is_no_number_is_named_with_its_variable(env, name, text) -> None:
    env(torchrun(0, 8), slurm(0, 8), open_mpi(0, 8), {"RANKBIND_AXES": "pp=2,tp=4", "RANKBIND_RANK": "0"})
    env({name: text})
    with pytest.raises(IdentityError, match=re.escape(f"{name}={text!r} is not a number")):
        rankbind.identity()


def test_a_rank_outside_its_own_world(env) -> None:
    env(torchrun(8, 8))
    with pytest.raises(IdentityError, match=r"RANK=8, WORLD_SIZE=8"):
        rankbind.identity()
    env({"RANK": "0", "WORLD_SIZE": "0"})
    with pytest.raises(IdentityError, match="WORLD_SIZE=0"):
        rankbind.identity()


@pytest.mark.parametrize(
    "text", ["", "pp", "pp=", "pp=2,", "pp=2, tp=4", "pp=2,pp=4", "pp=-1", "=2", "pp:2", "pp=0", "rank=2", "pp_size=2"]
)
def test_axes_that_cannot_be_read(env, text) -> None:
    env({"RANKBIND_AXES": text, "RANKBIND_RANK": "0"})
    with pytest.raises(IdentityError, match=re.escape(f"RANKBIND_AXES={text!r}")):
        rankbind.identity()


def test_file_and_axes_are_one_too_many(env) -> None:
    env({"RANKBIND_AXES": "pp=2", "RANKBIND_TOPOLOGY": "t.toml"})
    with pytest.raises(IdentityError, match="unset one of them"):
        rankbind.identity()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_numbers_are_digits_or_an_identity_error(text: str) -> None:
    os.environ["RANKBIND_RANK"] = text
    try:
        assert number("RANKBIND_RANK") == int(text) >= 0
        assert re.fullmatch("[0-9]+", text)
    except IdentityError:
        assert not re.fullmatch("[0-9]{1,9}", text)
    finally:
        del os.environ["RANKBIND_RANK"]


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)


@given(st.dictionaries(NAMES, st.integers(0, 10**9 - 1), min_size=1), st.text("=,pt0 2", max_size=3))
def test_pairs_come_back_as_written_and_nothing_else_passes(axes: dict[str, int], junk: str) -> None:
    text = ",".join(f"{name}={size}" for name, size in axes.items())
    os.environ["RANKBIND_AXES"] = text
    try:
        assert pairs("RANKBIND_AXES") == axes
        os.environ["RANKBIND_AXES"] = text + junk
        try:
            found = pairs("RANKBIND_AXES")
        except IdentityError:
            return
        written = (part.split("=") for part in (text + junk).split(","))
        assert found == {name: int(size) for name, size in written}
    finally:
        del os.environ["RANKBIND_AXES"]


# Hosts


def hosts_of(who: Identity) -> list[tuple[int, ...]]:
    return [host.ranks for host in who.topology.hosts]


def test_torchrun_alone_knows_world_and_host(env) -> None:
    env(torchrun(5, 8, local=4))
    who = rankbind.identity()
    assert rankbind.Scope("world", 5).is_owner(who.topology, who.coordinates)
    assert rankbind.Scope("host", 1).is_owner(who.topology, who.coordinates)
    assert hosts_of(who) == [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize("wrong", [{"GROUP_RANK": "0"}, {"GROUP_WORLD_SIZE": "3"}, {"LOCAL_WORLD_SIZE": "3"}])
def test_torchrun_with_unequal_agents_does_not_guess_hosts(env, wrong) -> None:
    env(torchrun(5, 8, local=4), wrong)
    assert hosts_of(rankbind.identity()) == []


def test_slurm_uneven_nodes(env) -> None:
    env(slurm(4, 5, node=2, per_node="2(x2),1", gtids="4"))
    assert hosts_of(rankbind.identity()) == [(0, 1), (2, 3), (4,)]


def test_slurm_cyclic_distribution_does_not_pass_as_block(env) -> None:
    env(slurm(0, 8, node=0, per_node="4(x2)", gtids="0,2,4,6"))
    assert hosts_of(rankbind.identity()) == []


def test_open_mpi_knows_only_a_single_host(env) -> None:
    env(open_mpi(1, 4), {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert hosts_of(rankbind.identity()) == []
    reset()
    env({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert hosts_of(rankbind.identity()) == [(0, 1, 2, 3)]


def test_a_placement_that_the_launcher_contradicts(env) -> None:
    env(torchrun(5, 8, local=4))
    with pytest.raises(IdentityError, match=r"on 1 hosts, and torchrun \(.*LOCAL_WORLD_SIZE=4\) on 2 \(of 4, 4 ranks"):
        rankbind.init(Topology(PP_TP))
    assert hosts_of(rankbind.init(Topology(PP_TP), hosts=1)) == [tuple(range(8))]
    reset()
    env({"RANKBIND_HOSTS": "6,2"})
    assert hosts_of(rankbind.init(Topology(PP_TP))) == [(0, 1, 2, 3, 4, 5), (6, 7)]


def test_hosts_nobody_said_stay_unknown(env) -> None:
    who = rankbind.init(axes=PP_TP, rank=0)
    assert hosts_of(who) == []
    reset()
    env({"RANKBIND_HOSTS": "two"})
    with pytest.raises(IdentityError, match="RANKBIND_HOSTS='two'"):
        rankbind.init(axes=PP_TP, rank=0)


# Once said


def test_repeating_init_keeps_the_identity_and_changing_it_before_use_is_allowed() -> None:
    first = rankbind.init(axes=PP_TP, rank=1)
    assert rankbind.init(axes=PP_TP, rank=1) is first
    assert rankbind.init(axes=PP_TP, rank=2).rank == 2


def test_init_after_something_acted_is_too_late(env) -> None:
    env(torchrun(5, 8))
    gate = rankbind.singleton_per(group="world", name="tracker")
    assert not gate.owned
    with pytest.raises(IdentityError, match=r"too late: tracker \(declared at .*test_identity.py:\d+\) already acted"):
        rankbind.init(axes=PP_TP)
    assert rankbind.identity().rank == 5


def test_an_answer_about_the_owner_counts_as_acting() -> None:
    rankbind.init(axes=PP_TP, rank=1)
    assert rankbind.singleton_per(group="pp", name="tracker").owner == 1
    with pytest.raises(IdentityError, match="too late: tracker"):
        rankbind.init(axes=PP_TP, rank=2)


def test_use_is_for_one_thread_only() -> None:
    rankbind.init(axes=PP_TP, rank=0)
    seen: dict[int, int | None] = {}
    barrier = threading.Barrier(4)

    def be(rank: int) -> None:
        with rankbind.use(Topology(PP_TP), rank=rank):
            barrier.wait()
            seen[rank] = rankbind.identity().rank

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1: 1, 2: 2, 3: 3, 4: 4}
    assert rankbind.identity().rank == 0


def test_use_takes_no_second_rank_beside_an_identity() -> None:
    who = Identity.of(Topology(PP_TP), rank=1)
    with pytest.raises(TypeError, match="says its rank already"), rankbind.use(who, rank=2):
        pass


# Fork


def in_child(act) -> str:
    """What `act` returns, or raises, in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = str(act())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    return text


def test_a_forked_child_is_nobody_until_it_says_so(env) -> None:
    env(torchrun(0, 8))
    assert rankbind.identity().rank == 0
    assert "IdentityError" in (answer := in_child(rankbind.identity))
    assert "forked and only inherited" in answer
    assert in_child(lambda: rankbind.init(axes={"dp": 1}, rank=0).rank) == "0"
    assert in_child(lambda: (os.environ.update(RANK="3"), rankbind.identity().rank)[1]) == "3"
    assert rankbind.identity().rank == 0


def test_a_fork_before_the_parent_knew_inherits_no_rank_either(env) -> None:
    env(torchrun(0, 8))
    assert "IdentityError" in in_child(rankbind.identity)


def test_init_without_a_rank_does_not_make_a_forked_child_its_parent(env) -> None:
    env(torchrun(0, 8))
    rankbind.init(axes=PP_TP)
    assert "forked and only inherited" in in_child(lambda: rankbind.init(axes=PP_TP))
    assert in_child(lambda: (os.environ.update(RANK="3"), rankbind.init(axes=PP_TP).rank)[1]) == "3"


def test_a_forked_child_leaves_the_use_block() -> None:
    with rankbind.use(Topology(PP_TP), rank=3):
        assert "IdentityError" in in_child(rankbind.identity)


# torch itself: two gloo ranks, a DeviceMesh, process groups; and no torch unless it is given

TORCH = """
import sys
import torch.distributed as dist
import torch.multiprocessing as mp
import rankbind
from rankbind.identity import deployment, reset


def main(rank, path):
    dist.init_process_group("gloo", store=dist.FileStore(path, 4), rank=rank, world_size=4)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    who = rankbind.init(device_mesh=mesh, hosts=1)
    assert (who.rank, dict(who.coordinates)) == (rank, {"pp": rank // 2, "tp": rank % 2}), who
    assert dict(who.topology.axes) == {"pp": 2, "tp": 2}
    assert rankbind.singleton_per(group="pp", rank=-1).owned == (rank >= 2)
    reset()
    crossed = dist.device_mesh.DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("tp", "pp"))
    who = rankbind.init(device_mesh=crossed)
    assert (who.rank, dict(who.coordinates)) == (rank, {"pp": rank // 2, "tp": rank % 2}), who
    reset()
    groups = {"tp": mesh.get_group("tp"), "pp": mesh.get_group("pp")}
    who = rankbind.init(process_groups=groups)
    assert (who.rank, list(who.topology.axes.items())) == (rank, [("pp", 2), ("tp", 2)]), who
    reset()
    who = rankbind.init(rankbind.Topology({"pp": 2, "tp": 2}), device_mesh=mesh)
    assert who.rank == rank
    reset()
    for wrong in (
        dict(device_mesh=dist.device_mesh.DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",))),
        dict(process_groups={"tp": groups["tp"]}),
        dict(device_mesh=mesh, rank=(rank + 1) % 4),
        dict(source=rankbind.Topology({"pp": 4, "tp": 2}), device_mesh=mesh),
        dict(source=rankbind.Topology({"pp": 4, "tp": 1}), device_mesh=mesh),
    ):
        try:
            print(rankbind.init(**wrong), wrong)
        except rankbind.IdentityError as error:
            continue
        raise SystemExit(f"no error for {wrong}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(main, args=(sys.argv[1],), nprocs=4, start_method="fork")
"""


def test_device_mesh_and_process_groups_of_real_gloo_ranks(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(TORCH)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr + done.stdout


def test_torchrun_itself(tmp_path: Path) -> None:
    script = tmp_path / "who.py"
    script.write_text(
        "import sys, rankbind\n"
        "who = rankbind.identity()\n"
        "assert 'torch' not in sys.modules\n"
        "owned = [rankbind.singleton_per(group=group).owned for group in ('world', 'host')]\n"
        f"open(r'{tmp_path}/' + str(who.rank), 'w').write(f'{{who.rank}} {{owned}} {{who.topology.hosts}}')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    hosts = "(Host(name='0', ranks=(0, 1)),)"
    assert (tmp_path / "0").read_text() == f"0 [True, True] {hosts}"
    assert (tmp_path / "1").read_text() == f"1 [False, False] {hosts}"


# The deployment

DEPLOYED = """deployment = "of the file"
[axes]
pp = 2
"""


def test_the_deployment_is_inits_then_the_variables_then_the_files_then_default(env, tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(DEPLOYED)
    assert rankbind.init(axes=PP_TP, rank=0).deployment == "default"
    reset()
    assert rankbind.init(file, rank=0).deployment == "of the file"
    reset()
    env({"RANKBIND_DEPLOYMENT": "of the variable"})
    assert rankbind.init(file, rank=0).deployment == "of the variable"
    reset()
    assert rankbind.init(file, rank=0, deployment="of init").deployment == "of init"
    assert deployment() == "of init"


def test_the_deployment_is_known_where_nobody_said_the_rank(env) -> None:
    assert deployment() == "default"
    env({"RANKBIND_DEPLOYMENT": "blue"})
    assert deployment() == "blue"
    env({"RANKBIND_AXES": "pp=2", "RANKBIND_RANK": "1"})
    assert rankbind.identity().deployment == "blue"


def test_a_process_that_is_only_played_belongs_to_no_deployment(env) -> None:
    env({"RANKBIND_DEPLOYMENT": "blue"})
    with rankbind.use(Topology(PP_TP), rank=0) as who:
        assert who.deployment is None
    assert Identity.of(Topology(PP_TP), 0).deployment is None


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\x1b[2J"])
def test_a_deployment_whose_name_cannot_be_seen(env, name: str) -> None:
    with pytest.raises(IdentityError, match=r"init calls the deployment .*, which is no name: use letters and digits"):
        rankbind.init(axes=PP_TP, rank=0, deployment=name)
    env({"RANKBIND_DEPLOYMENT": name})
    with pytest.raises(IdentityError, match="RANKBIND_DEPLOYMENT calls the deployment"):
        rankbind.init(axes=PP_TP, rank=0)
    with pytest.raises(IdentityError, match="RANKBIND_DEPLOYMENT calls the deployment"):
        deployment()


def test_another_deployment_comes_too_late_once_something_was_decided() -> None:
    rankbind.init(axes=PP_TP, rank=0)
    assert rankbind.init(axes=PP_TP, rank=0, deployment="blue").deployment == "blue"
    rankbind.singleton_per(group="pp", rank=0)(lambda: 1)()
    with pytest.raises(IdentityError, match="too late"):
        rankbind.init(axes=PP_TP, rank=0, deployment="green")


def test_an_address_that_the_file_does_not_have(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(
        "[axes]\ntp = 2\n"
        "[resources.log]\nowner = { tp = 0 }\nname = 'log-{tp}'\n[resources.queue]\nowner = { tp = 0 }\n"
    )
    me = rankbind.init(file, rank=1)
    assert me.address("log", role="name") == "log-1"
    for resource, message in {
        "log": "'log' of the topology file has no bind: it has name (ask with role='name')",
        "queue": "'queue' of the topology file has no bind: it has no address",
        "logs": "the topology file has no resource 'logs': it has log, queue",
    }.items():
        with pytest.raises(RankbindError, match=re.escape(message)):
            me.address(resource)
