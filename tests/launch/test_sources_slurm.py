"""What SLURM starts where, and what it tells each copy."""

from __future__ import annotations

import pytest

from rankbind.launch import sources
from rankbind.launch.command import Command


def commands(text: str) -> tuple[Command, ...]:
    return sources.commands("a.sbatch", text).commands


def places(text: str) -> list[tuple[str | None, int | None]]:
    return [(command.host, command.node) for command in commands(text) if command.texts[0] == "x"]


def test_a_step_has_a_copy_for_each_task_with_its_own_variables() -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2\nexport A=1\nsrun x $SLURM_NODEID\n"
    found = commands(text)

    names = (
        "SLURM_NODEID",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NNODES",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NTASKS",
        "A",
    )
    assert [[command.variable(name) for name in names] for command in found] == [
        ["0", "0", "0", "2", "2", "4", "1"],
        ["0", "1", "1", "2", "2", "4", "1"],
        ["1", "2", "0", "2", "2", "4", "1"],
        ["1", "3", "1", "2", "2", "4", "1"],
    ]
    # The batch shell, on node 0, has expanded this.
    assert {command.texts for command in found} == {("x", "0")}
    assert all(one.beside(other) for one in found for other in found)


PLACES = {
    "#SBATCH -N 2\nx": [("node0", None)],
    "#SBATCH -N 2\nsrun x": [("node0", 0), ("node1", 1)],
    "#SBATCH -N2 # two\nsrun x": [("node0", 0), ("node1", 1)],
    "#SBATCH --nodes 2\n#SBATCH --ntasks 2\nsrun x": [("node0", 0), ("node1", 1)],
    "#SBATCH --nodes=2-4\nsrun x": [("node0", 0), ("node1", 1)],
    "#SBATCH -N 2 -n 3\nsrun x": [("node0", 0), ("node0", 0), ("node1", 1)],
    "#SBATCH -N 4\nsrun -n 2 -N 2 -r 2 x": [("node2", 2), ("node3", 3)],
    "#SBATCH -N 2\nsrun -N 1 -n 1 -w node1 x": [("node1", 1)],
    "#SBATCH -N 2\nsrun -N 1 -n 1 --nodelist=gpu-a x": [("gpu-a", None)],
    "#SBATCH -N 2\nsrun --nodelist=gpu-[01-02] x": [("gpu-01", None), ("gpu-02", None)],
    "#SBATCH -N 2\nH=($(scontrol show hostnames $L))\nsrun -N1 -n1 -w ${H[1]} x": [("node1", 1)],
    "#SBATCH -N 2\nmapfile -t H < <(scontrol show hostnames $L)\nfor h in ${H[@]}; do srun -N1 -n1 -w $h x; done": [
        ("node0", 0), ("node1", 1),
    ],
    "#SBATCH -N 2\nfor h in $(scontrol show hostnames); do ssh $h x & done": [("node0", None), ("node1", None)],
    "#SBATCH -N 2\nH=$(scontrol show hostnames | tail -n 1)\nsrun -N1 -n1 -w $H x": [("node1", 1)],
    "#SBATCH -N 2\nH=$(scontrol show hostnames | sed -n 2p)\nsrun -N1 -n1 -w $H x": [("node1", 1)],
    "#SBATCH -N 2\nsrun -N1 -n1 x\nsrun -N1 -n1 x": [("a node for a.sbatch:2", None), ("a node for a.sbatch:3", None)],
    "#SBATCH -N 2\nsrun -n 1 x": [("a node for a.sbatch:2", None)],
    "#SBATCH -N 1\nsrun x": [("node0", 0)],
    "#SBATCH -J a\nsrun x": [(None, None)],
    "#SBATCH -N 2\nsrun -N $U x": [(None, None)],
    "#SBATCH -N 2\nsrun -n $U x": [("node0", 0), ("node1", 1)],
    "srun x": [("node0", 0)],
    "srun --container-writable x": [("node0", 0)],
    "srun --no-container-mount-home x": [("node0", 0)],
    "srun -N 2 x": [("node0", 0), ("node1", 1)],
    "srun -n 2 x": [(None, None)],
    "x\n#SBATCH -N 2\nsrun x": [(None, None), ("node0", 0)],
    "mpirun -np 2 x": [(None, None), (None, None)],
    "mpirun -np 4 -N 2 x": [("node0", 0), ("node0", 0), ("node1", 1), ("node1", 1)],
    "mpirun -np 4 --map-by ppr:2:node x": [("node0", 0), ("node0", 0), ("node1", 1), ("node1", 1)],
    "mpirun -H a:1,b:1 -np 2 x": [("a", 0), ("b", 1)],
}  # fmt: skip


@pytest.mark.parametrize("text", PLACES)
def test_where_copies_run(text: str) -> None:
    assert places(text) == PLACES[text]


def test_names_of_nodes_are_known_when_they_are_allocated() -> None:
    (command,) = commands("#SBATCH -N 2\nM=$(scontrol show hostnames $L | head -n1)\nx $M:5000\n")

    assert [(word.text, word.certain) for word in command.words] == [("x", True), ("node0:5000", False)]


def test_a_step_of_unknown_size_forgets_what_the_batch_shell_was_told() -> None:
    found = sources.commands("a.sbatch", "#SBATCH -N 2\nsrun -N $U bash -c 'x $SLURM_NODEID'\n")

    assert [(word.text, word.certain) for word in found.commands[0].words] == [("x", True), ("$SLURM_NODEID", False)]
    assert [finding.code for finding in found.findings] == ["RB609"]


@pytest.mark.parametrize(
    "text",
    ["srun -N1 -n1 x a &\nsrun -N1 -n1 x b &\nwait", "for i in a b; do\n  srun -N1 -n1 x $i &\ndone\nwait"],
)
def test_which_node_a_smaller_step_gets_is_remarked(text: str) -> None:
    found = sources.commands("a.sbatch", f"#SBATCH -N 2\n{text}\n")

    steps = [command for command in found.commands if command.texts[0] == "x"]
    assert len({command.host for command in steps}) == 2
    assert {command.node for command in steps} == {None}
    assert {finding.code for finding in found.findings} == {"RB609"}
    assert {"which nodes of the allocation this step gets is known when it runs"} == {
        finding.message for finding in found.findings
    }


@pytest.mark.parametrize("text", ["srun x", "srun -N1 -n1 -w node1 x", "srun -N1 -n1 -r 1 x"])
def test_a_step_whose_node_is_known_has_no_remark(text: str) -> None:
    assert not sources.commands("a.sbatch", f"#SBATCH -N 2\n{text}\n").findings


def test_exported_variables_and_images() -> None:
    (command,) = commands("srun --export=ALL,A=1,B=2 --container-image=docker://r#i:1 --mpi=none x\n")

    assert {"A": "1", "B": "2"}.items() <= {name: word.text for name, word in command.environment.items()}.items()
    assert command.image == "docker://r/i:1"


def test_what_is_not_written_out() -> None:
    found = sources.commands("a.sbatch", "srun --multi-prog a.conf\nsrun -N 9999 x\n")

    assert len(found.commands) == 4096
    assert [finding.labels[0].span.line for finding in found.findings] == [1, 2]
