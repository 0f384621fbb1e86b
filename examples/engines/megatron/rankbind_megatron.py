"""Reads ``torchrun ... pretrain_gpt.py ...``, as Megatron-LM is started. The rules are those of megatron-core 0.16."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType

from rankbind.launch.command import Command
from rankbind.launch.draft import Draft
from rankbind.launch.options import Option, OptionTable, Reading

COUNTS = ["tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"]
COUNTS += ["expert_model_parallel_size", "nnodes", "nproc_per_node"]
DEFAULTS = dict.fromkeys(COUNTS, 1) | {"expert_tensor_parallel_size": None, "node_rank": 0, "master_port": 29500}
TEXTS = {"master_addr": "127.0.0.1", "save": None, "tensorboard_dir": None}
OPTIONS = [
    Option(name, ("--" + name.replace("_", "-"), "--" + name), kind="str" if name in TEXTS else "int", default=default)
    for name, default in (DEFAULTS | TEXTS).items()
]


class Megatron:
    name, title, versions = "megatron", "Megatron-LM", ("0.16",)
    entrypoints: Mapping[str, Sequence[str]] = MappingProxyType({})
    table = OptionTable(versions, {"0.16": OPTIONS})

    def starts(self, words: Sequence[str]) -> bool:
        names = [PurePosixPath(word).name for word in words]
        by_torchrun = names[:1] == ["torchrun"] or "torch.distributed.run" in names[:3]
        return by_torchrun and any(name.startswith("pretrain_") and name.endswith(".py") for name in names)

    def read(self, commands: Sequence[Command], version: str | None) -> Sequence[Draft]:
        jobs: dict[tuple[str, ...], tuple[Reading, list[Command]]] = {}
        for command in commands:
            reading = self.table.read(command.words[1:], "0.16")
            # The commands of one job differ in what follows --node-rank alone.
            same = tuple(word.text for word in command.words if word not in reading.words("node_rank"))
            jobs.setdefault(same, (reading, []))[1].append(command)
        return [self.draft(reading, job) for reading, job in jobs.values()]

    def draft(self, reading: Reading, commands: Sequence[Command]) -> Draft:
        draft = Draft(f"{self.title} 0.16", commands, commands[0].name)
        for refusal in reading.refusals:
            draft.refuse("RB605", refusal.message, refusal.word)
        draft.ignored += [(word, "it is not known here") for word in reading.unknown if word.text.startswith("--")]
        tp, pp, cp, ep, nodes, local = (reading.value(name) for name in COUNTS)
        etp, world = reading.value("expert_tensor_parallel_size") or tp, nodes * local
        words = [word for name in COUNTS for word in reading.words(name)]
        if world % (tp * cp * pp) or world % (etp * ep * pp):
            draft.refuse("RB606", f"{world} ranks are not a multiple of {tp * cp * pp} and of {etp * ep * pp}", *words)
        if draft.refused:
            return draft
        # Megatron counts tp-cp-ep-dp-pp, innermost first; a rank has another place among those that share experts.
        for axis, size in {"pp": pp, "dp": world // (tp * cp * pp), "cp": cp, "tp": tp}.items():
            draft.axis(axis, size, *words)
        experts = {"expert_dp": world // (etp * ep * pp), "ep": ep, "expert_tp": etp}
        draft.view("experts", ["dp", "cp", "tp"], experts, *words)
        for node in range(nodes):
            draft.host(f"node{node}", range(node * local, (node + 1) * local))
        if not any(word.text.startswith(("--rdzv", "--standalone")) for word in reading.unknown):
            draft.resource(
                "store",
                *reading.words("master_port"),
                *reading.words("master_addr"),
                owner={"rank": 0},
                bind=f"tcp://*:{reading.value('master_port')}",
                connect=f"tcp://{reading.value('master_addr')}:{reading.value('master_port')}",
                process="torchrun",
                remedies={"RB210": "give --master-addr, an address of the first node"},
            )
        draft.resource("gpu", owner={}, device="gpu {local_rank}")
        for name, rank, file in (("save", 0, "/latest_checkpointed_iteration.txt"), ("tensorboard_dir", -1, "")):
            if reading.given(name):
                path = reading.value(name).replace("{", "{{").replace("}", "}}") + file
                draft.resource(name, *reading.words(name), owner={"rank": rank}, path=path, scope="shared", once_per=[])
        return draft


ENGINE = Megatron()
