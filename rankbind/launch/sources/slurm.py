"""How many copies of a command SLURM starts, on which nodes, and what it tells each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankbind.launch.sources.options import Options
from rankbind.launch.sources.placed import Text

MOST = 4096
"""No step is written out for more copies than these."""

_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")
_SHORT = {"N": "nodes", "n": "ntasks", "w": "nodelist", "r": "relative", "c": "cpus-per-task"}
_SIZES = re.compile(
    r"(?:-N\s*|--nodes[=\s]\s*)(?P<nodes>\d+)|(?:-n\s*|--ntasks[=\s]\s*)(?P<ntasks>\d+)|--ntasks-per-node[=\s]\s*(?P<per_node>\d+)"
)
OPTIONS = Options(
    flags="overlap exact exclusive label unbuffered pty no-kill quiet verbose kill-on-bad-exit "
    "overcommit oversubscribe contiguous spread-job use-min-nodes disable-status no-container-mount-home "
    "container-mount-home container-remap-root no-container-remap-root container-writable "
    "container-readonly multi-prog preserve-env propagate no-allocate debugger-test "
    "parallel het-group-all",
    short_flags="luOsvQkKXbZEH",
    names=_SHORT,
)


_SET = (
    "NODEID",
    "PROCID",
    "LOCALID",
    "NNODES",
    "NTASKS",
    "NPROCS",
    "NTASKS_PER_NODE",
    "STEP_NUM_NODES",
    "STEP_NUM_TASKS",
)
OF_TASKS = frozenset(f"SLURM_{name}" for name in _SET)
"""What SLURM sets anew for every task."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an allocation or a step has. None: not said."""

    nodes: int | None = None
    ntasks: int | None = None
    per_node: int | None = None


def directives(text: str) -> Sizes | None:
    """What the ``#SBATCH`` lines of a script say; None where it has none."""
    found: dict[str, int] = {}
    batch = False
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            break
        directive = _DIRECTIVE.match(line)
        if directive:
            batch = True
            for size in _SIZES.finditer(directive[1].partition(" #")[0]):
                found |= {name: int(value) for name, value in size.groupdict().items() if value and len(value) < 8}
    return Sizes(**found) if batch else None


@dataclass(frozen=True, slots=True)
class Copy:
    """One task of a step.

    Attributes:
        host: the node it runs on; None: not known.
        node: the index of that node in the allocation; None: not known.
        environment: what SLURM sets for it.
    """

    host: str | None
    node: int | None
    environment: dict[str, Text]


def step(
    options: dict[str, Text], allocation: Sizes | None, at: Text, before: dict[str, int]
) -> tuple[list[Copy], str | None]:
    """The tasks that ``srun`` with `options` starts, and what had to be left out or cannot be told.

    Args:
        before: how many steps got some node of the allocation, by the place of their ``srun``; counted on.
    """
    outer = allocation or Sizes()
    nodes, ntasks, per_node = (_size(options.get(name)) for name in ("nodes", "ntasks", "ntasks-per-node"))
    names = _hosts(options.get("nodelist"))
    # What cannot be told is not what the allocation says.
    unsaid = any(name in options and value is None for name, value in (("nodes", nodes), ("ntasks", ntasks)))
    total_nodes = nodes or (len(names) if names else None) or (None if "nodes" in options else outer.nodes)
    if total_nodes is None and not unsaid and (ntasks == 1 or allocation is None) and not per_node:
        total_nodes = 1 if ntasks in (None, 1) else None
    if total_nodes is None:
        return [Copy(None, None, {})], "how many nodes and tasks this step has is known when it runs"
    if not ntasks and not per_node and "ntasks" not in options:
        ntasks, per_node = outer.ntasks, outer.per_node
    tasks = ntasks or (per_node or 1) * total_nodes
    total_nodes = min(total_nodes, tasks)
    left_out = None
    if tasks > MOST:
        left_out = f"{tasks} tasks are more than rankbind writes out: the first {MOST} are looked at"
    hosts = _places(total_nodes, names, outer, options, at, before)
    if left_out is None and hosts(0)[1] is None and not names:
        left_out = "which nodes of the allocation this step gets is known when it runs"
    copies: list[Copy] = []
    quotient, more = divmod(tasks, total_nodes)
    for index in range(total_nodes):
        host, node = hosts(index)
        for local in range(quotient + (index < more)):
            if len(copies) == MOST:
                return copies, left_out
            known = {
                "SLURM_NODEID": index,
                "SLURM_PROCID": len(copies),
                "SLURM_LOCALID": local,
                "SLURM_NNODES": total_nodes,
                "SLURM_STEP_NUM_NODES": total_nodes,
                "SLURM_NTASKS": tasks,
                "SLURM_NPROCS": tasks,
                "SLURM_STEP_NUM_TASKS": tasks,
            }
            if outer.nodes or not allocation:
                known["SLURM_JOB_NUM_NODES"] = outer.nodes or total_nodes
            copies.append(Copy(host, node, {name: at.saying(str(value)) for name, value in known.items()}))
    return copies, left_out


def batch(allocation: Sizes, at: Text) -> dict[str, Text]:
    """What SLURM sets for the script itself, which runs on the first node."""
    known = {"SLURM_NODEID": 0, "SLURM_PROCID": 0, "SLURM_LOCALID": 0}
    nodes = allocation.nodes
    if nodes:
        known |= {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    tasks = allocation.ntasks or (allocation.per_node * nodes if allocation.per_node and nodes else None)
    if tasks:
        known |= {"SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks}
    if allocation.per_node:
        known["SLURM_NTASKS_PER_NODE"] = allocation.per_node
    return {name: at.saying(str(value)) for name, value in known.items()}


def node_name(index: int) -> str:
    """What a node of an allocation is called here: its name is known when it is allocated."""
    return f"node{index}"


def _places(
    nodes: int, names: Sequence[str], outer: Sizes, options: dict[str, Text], at: Text, before: dict[str, int]
) -> Callable[[int], tuple[str | None, int | None]]:
    """Where the nodes of a step are: their host and their index in the allocation."""
    relative = _size(options.get("relative"))
    # Some node of the allocation: it shares none with a step beside it, nor with itself in another round of a loop.
    some = f"a node for {at.document.file}:{at.span.line}"
    if not names and relative is None and outer.nodes is not None and nodes < outer.nodes:
        before[some] = before.get(some, 0) + 1
        some += f", {before[some]}" if before[some] > 1 else ""

    def place(index: int) -> tuple[str | None, int | None]:
        if names:
            name = names[index] if index < len(names) else f"{names[0]}+{index}"
            found = re.fullmatch(r"node(\d{1,6})", name)
            return name, int(found[1]) if found and outer.nodes and int(found[1]) < outer.nodes else None
        if relative is not None:
            return node_name(relative + index), relative + index
        if outer.nodes is None or nodes >= outer.nodes:
            return node_name(index), index
        return some + (f" #{index}" if nodes > 1 else ""), None

    return place


def _size(text: Text | None) -> int | None:
    if text is None or not text.sure:
        return None
    first = text.text.partition("-")[0]  # --nodes=2-4: at least two
    return int(first) if first.isdecimal() and 0 < len(first) < 8 else 0 if first == "0" else None


def _hosts(text: Text | None) -> list[str]:
    """The nodes of ``--nodelist``; none where they are not known."""
    if text is None or text.opaque or (not text.sure and not re.fullmatch(r"node\d+(,node\d+)*", text.text)):
        return []
    found: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\])?[^,\[\]]*", text.text):
        head, bracket, rest = part.partition("[")
        inside, _, tail = rest.partition("]")
        for item in inside.split(",") if bracket else [""]:
            low, dash, high = item.partition("-")
            if dash and low.isdecimal() and high.isdecimal() and 0 <= int(high) - int(low) < MOST:
                found += [f"{head}{value:0{len(low)}d}{tail}" for value in range(int(low), int(high) + 1)]
            else:
                found.append(head + item + tail)
    return found[:MOST]
