"""What names mean: ``pp_rank`` a coordinate, ``tp_size`` a size, ``attn_tp_cpu_group`` the group along an axis.

Names are the field's; a profile adds what is particular to an engine: which axes its processes stand on, how they
factor, and which processes exist once for which of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

from rankbind.audit.expression import Apply, Constant, Coordinate, Expression, Size
from rankbind.audit.ranks import Layout

_AXES: Final[Mapping[str, str]] = {
    "tp": "tp",
    "tensor_parallel": "tp",
    "tensor_model_parallel": "tp",
    "model_parallel": "tp",
    "pp": "pp",
    "pipeline": "pp",
    "pipeline_parallel": "pp",
    "pipeline_model_parallel": "pp",
    "pipe_parallel": "pp",
    "dp": "dp",
    "data_parallel": "dp",
    "cp": "cp",
    "context_parallel": "cp",
    "ep": "ep",
    "expert_parallel": "ep",
    "expert_model_parallel": "ep",
    "attn_tp": "attn_tp",
    "attention_tp": "attn_tp",
    "attn_dp": "attn_dp",
    "attention_dp": "attn_dp",
    "attn_cp": "attn_cp",
    "attention_cp": "attn_cp",
    "attn_tensor_model_parallel": "attn_tp",
    "attn_context_model_parallel": "attn_cp",
    "attn_data_parallel": "attn_dp",
    "moe_tp": "moe_tp",
    "moe_dp": "moe_dp",
    "moe_ep": "moe_ep",
    "dcp": "dcp",
    "decode_context_parallel": "dcp",
    "decode_context_model_parallel": "dcp",
    "pcp": "pcp",
    "prefill_context_parallel": "pcp",
    "prefill_context_model_parallel": "pcp",
    "world": "rank",
    "global": "rank",
    "torch": "rank",
    "node": "node",
}
_BOOLEANS: Final[Mapping[str, Expression]] = {
    "is_main_process": Apply("==", (Coordinate("rank"), Constant(0))),
    "is_local_main_process": Apply("==", (Coordinate("local_rank"), Constant(0))),
    "is_global_zero": Apply("==", (Coordinate("rank"), Constant(0))),
    "is_pipeline_first_stage": Apply("==", (Coordinate("pp"), Constant(0))),
    "is_pipeline_last_stage": Apply("==", (Coordinate("pp"), Apply("-", (Size("pp"), Constant(1))))),
}
AUXILIARY: Final = frozenset({"ep", "moe_tp", "moe_dp", "moe_ep", "dcp", "node", "rank", "local_rank"})
"""Axes that cut others, or ranks on a host: never axes of their own among those that make up the ranks."""

_COORDINATE: Final = re.compile(r"(?P<axis>[a-z][a-z_]*?)_(?:rank|rank_in_group)(?P<local>_local)?")
_INDEX: Final = re.compile(r"(?P<axis>dp|data_parallel)_(?:index|idx)")
_LOCAL: Final = re.compile(r"(?:local_(?P<a>[a-z_]+?)_rank|(?P<b>[a-z_]+?)_local_rank)")
_SIZE: Final = re.compile(r"(?P<axis>[a-z][a-z_]*?)_(?:world_)?size")
_GROUP: Final = re.compile(
    r"(?:get_)?(?P<axis>[a-z][a-z_]*?)(?:_cpu|_device|_gloo|_nccl|_process|_parallel)*_(?:group|comm|coordinator|mesh)"
)
_ROLE: Final = re.compile(
    r"(?:^|_)(?:leader|owner|master|main|primary|chief|driver|head|rank|ranks|rank0|zero|coordinator|writer|"
    r"first|last|entry|root|source|src|who|whoami|my|own|this)(?:_|$)"
    r"|(?:^|_)(?:worker|process|proc|replica|shard|actor|member|partition|slot)_?(?:id|idx|index|num|no|number)$"
)
_MANY: Final = re.compile(r"(?:for_)?(?:all|each|every|per|num|n|max|min)_(?:ranks?|schedulers)")
"""What is about all ranks tells none apart."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What is particular to an engine.

    Attributes:
        packages: top-level packages that are the engine.
        layout: the axes of its workers.
        names: names that mean something of their own there.
        roles: which axes the processes that run a piece of code stand on, by ``module:function`` pattern; the first
            that fits counts. Code that fits none is judged by the axes it names itself.
    """

    name: str
    packages: tuple[str, ...] = ()
    layout: Layout | None = None
    names: Mapping[str, Expression] = field(default_factory=dict)
    roles: tuple[tuple[str, tuple[str, ...]], ...] = ()


_ATTENTION: Final = (
    ("tp", ("attn_dp", "attn_cp", "attn_tp")),
    ("cp", ("attn_cp",)),
)
SGLANG: Final = Profile(
    "sglang",
    ("sglang",),
    Layout(
        ("dp", "pp", "attn_dp", "attn_cp", "attn_tp"),
        _ATTENTION,
        # validation_hook.check_server_args refuses both (0.5.23); to 0.5.20 they are one option.
        (frozenset({"dp", "attn_dp"}),),
        outside=("dp",),
    ),
    {
        # The argument a scheduler is started with: the attention's under DP attention, else the replica's.
        "dp_rank": Apply("if", (Apply(">", (Size("attn_dp"), Constant(1))), Coordinate("attn_dp"), Coordinate("dp"))),
        "num_dp_ranks": Apply("*", (Size("dp"), Size("attn_dp"))),
    },
    (
        ("*data_parallel_controller:*", ()),
        ("*tokenizer*:*", ()),
        # What it calls dp is in its world.
        ("sglang.multimodal_gen.*:*", ("pp", "attn_dp", "attn_cp", "attn_tp")),
        # One process for each rank of one replica and stage: no server starts them.
        ("sglang.bench*:*", ("attn_dp", "attn_cp", "attn_tp")),
        ("sglang.srt.entrypoints.*:*", ()),
        ("sglang.srt.grpc.*:*", ()),
        ("sglang.srt.disaggregation.enc*:*", ()),
        ("sglang.srt.multimodal*:*", ()),
    ),
)
_WORKERS: Final = ("dp", "pp", "pcp", "tp")
VLLM: Final = Profile(
    "vllm",
    ("vllm", "vllm_ascend", "aphrodite"),
    Layout(_WORKERS),
    {},
    (
        ("*:*Scheduler*", ("dp",)),
        ("*:*Worker*", _WORKERS),
        ("*scheduler*:*", ("dp",)),
        ("*.v1.engine.core_client:*", ()),
        ("*.v1.engine.async_llm:*", ()),
        ("*.v1.engine.llm_engine:*", ()),
        ("*.v1.engine.utils:*", ()),
        ("*.v1.engine.coordinator:*", ()),
        ("*.multimodal.*:*", ()),
        ("*.distributed.elastic_ep.external*:*", ("dp",)),
        ("*.v1.core.*:*", ("dp",)),
        ("*.v1.engine.*:*", ("dp",)),
        ("*.v1.kv_offload.*:*", ("dp",)),
        ("*.v1.executor.*:*", ("dp",)),
        ("*.entrypoints.*:*", ()),
        ("*.v1.worker.*:*", _WORKERS),
        ("*kv_transfer.*:*", _WORKERS),
        ("*ec_transfer.*:*", _WORKERS),
    ),
)
MEGATRON: Final = Profile("megatron", ("megatron",), Layout(("pp", "dp", "cp", "tp")))
TORCH: Final = Profile("torch", ("torch",))
PROFILES: Final[Mapping[str, Profile]] = {profile.name: profile for profile in (SGLANG, VLLM, MEGATRON, TORCH)}


class Vocabulary:
    """What the names of one program mean.

    Args:
        profile: of the engine, if it is one.
        axes: further names of coordinates, or of axes, with the axis each means.
        order: the axes outermost first, instead of the profile's.
    """

    def __init__(
        self, profile: Profile | None = None, axes: Mapping[str, str] | None = None, order: Iterable[str] = ()
    ) -> None:
        self.profile = profile or TORCH
        self.order = tuple(order)
        self._axes = {**_AXES, **(axes or {})}
        self._more = dict(axes or {})
        self.auxiliary = AUXILIARY - frozenset(self._more.values())
        """Axes that are none of their own here."""
        self._layout = self.profile.layout
        self.coordinate = cache(self._coordinate)
        self.size = cache(self._size)

    @property
    def named(self) -> Mapping[str, str]:
        """The names that this program has of its own, each with its axis."""
        return self._more

    def within(self, words: Callable[[str], bool]) -> None:
        """Leave out the axes that a program has no word for: a release of an engine that does not know them yet."""
        if self._layout is None:
            return
        spelled = [f"{name}{end}" for name in self._axes for end in ("_rank", "_size", "_world_size", "_group")]
        known = {
            axis
            for name in spelled
            if (axis := self._axes.get(re.sub(r"(?:_rank|_world_size|_size|_group)$", "", name))) and words(name)
        }
        known |= {
            part for whole, parts in self._layout.whole if whole in known and not known & set(parts) for part in parts
        }
        order = tuple(axis for axis in self._layout.order if axis in known)
        whole = tuple((name, tuple(part for part in parts if part in order)) for name, parts in self._layout.whole)
        self._layout = Layout(order, whole, self._layout.exclusive, self._layout.outside)

    def axis(self, name: str) -> str | None:
        """The axis that goes by `name`."""
        return self._axes.get(name)

    def _coordinate(self, name: str) -> Expression | None:
        """The coordinate that a variable, an attribute or a function of this name holds; None for any other name.

        Names that say whose rank it is, if not this process's (``remote_tp_rank``), are none.
        """
        own = self._own(name)
        if own is not None:
            return Coordinate(own)
        bare = name.lstrip("_").lower()
        bare = bare.removeprefix("get_").removeprefix("my_")
        if bare in self.profile.names:
            return self.profile.names[bare]
        if bare in {"local_rank", "local_process_index"}:
            return Coordinate("local_rank")
        if bare == "process_index":
            return Coordinate("rank")
        if (found := _COORDINATE.fullmatch(bare)) and (axis := self._axes.get(found["axis"])):
            return Coordinate(axis, found["local"] is not None)
        if (found := _LOCAL.fullmatch(bare)) and (axis := self._axes.get(found["a"] or found["b"])):
            return Coordinate(axis, axis not in {"rank", "node"}) if axis != "rank" else Coordinate("local_rank")
        if found := _INDEX.fullmatch(bare):
            return Coordinate("dp")
        return None

    def _own(self, name: str) -> str | None:
        """The axis of a name that the settings tell of: as it is, or by a pattern for the end of a dotted name."""
        bare = name.lstrip("_")
        for pattern, axis in self._more.items():
            end = pattern.rpartition(".")[2]
            if fnmatchcase(name, end) or fnmatchcase(bare, end):
                return axis
        return None

    def weak(self, name: str) -> Expression | None:
        """What a name means where nothing defines it: ``rank`` is the one in the world."""
        return Coordinate("rank") if name.lstrip("_").lower().removeprefix("get_") == "rank" else _BOOLEANS.get(name)

    def _size(self, name: str) -> Expression | None:
        """The size that goes by this name."""
        bare = name.lstrip("_").lower().removeprefix("get_")
        if bare in self.profile.names:
            return self.profile.names[bare]
        if bare == "world_size":
            return Size("rank")
        if (found := _SIZE.fullmatch(bare)) and (axis := self._axes.get(found["axis"])):
            return Size(axis)
        return None

    def group(self, name: str) -> str | None:
        """The axis along which a process group of this name runs; ``rank`` for the world."""
        found = _GROUP.fullmatch(name.lstrip("_").lower())
        if found is None:
            return None
        longer = f"{found['axis']}_parallel"
        if longer in name.lower() and longer != "model_parallel":
            # Megatron's model parallel group is that of two axes.
            return self._axes.get(longer)
        return self._axes.get(found["axis"])

    def member(self, group: str, name: str) -> Expression | None:
        """An attribute of a process group along `group`: ``rank_in_group``, ``is_first_rank``, ``world_size``."""
        here = Coordinate(group)
        match name:
            case "rank" | "rank_in_group" | "local_rank" | "get_rank" | "get_local_rank" | "group_rank":
                return here
            case "is_first_rank":
                return Apply("==", (here, Constant(0)))
            case "is_last_rank":
                return Apply("==", (here, Apply("-", (Size(group), Constant(1)))))
            case "world_size" | "size":
                return Size(group)
        return None

    def role(self, name: str) -> bool:
        """Whether a name sounds as if it told ranks apart, in a way that is not known here."""
        return _ROLE.search(_MANY.sub("", name.lower())) is not None

    def layout(self, evident: Iterable[str]) -> Layout:
        """The axes that make up the ranks, of code that names the axes `evident`."""
        if self._layout is not None and not self.order:
            return self._layout
        named = [axis for axis in (*self.order, *sorted(evident)) if axis not in self.auxiliary]
        whole: tuple[tuple[str, tuple[str, ...]], ...] = ()
        if any(axis.startswith("attn_") for axis in named):
            named = [axis for axis in named if axis not in {"tp", "cp"}]
            whole = _ATTENTION
            named += [axis for axis in ("attn_dp", "attn_cp", "attn_tp") if axis not in named]
        rank = {axis: place for place, axis in enumerate(self.order or _CANONICAL)}
        ordered = sorted(dict.fromkeys(named), key=lambda axis: rank.get(axis, len(rank)))
        return Layout(tuple(ordered) or ("rank",), whole)

    def role_of(self, module: str, function: str, *, by_class: bool = False) -> tuple[str, ...] | None:
        """The axes that the processes which run a function stand on, where the profile says so.

        Args:
            by_class: ask only what is said of certain classes, which holds for what they call, too.
        """
        return self._role_of(module, function, by_class)

    @cache  # noqa: B019 - one for each audit, which lives as long
    def _role_of(self, module: str, function: str, by_class: bool) -> tuple[str, ...] | None:
        where = f"{module}:{function}"
        return next(
            (
                axes
                for pattern, axes in self.profile.roles
                if (not by_class or not pattern.endswith(":*")) and fnmatchcase(where, pattern)
            ),
            None,
        )


_CANONICAL: Final = ("pp", "dp", "cp", "pcp", "attn_dp", "attn_cp", "attn_tp", "tp")


def profile_of(packages: Iterable[str]) -> Profile:
    """The profile of the engine that one of these top-level packages is; torch's where none is."""
    present = set(packages)
    return next((profile for profile in PROFILES.values() if present & set(profile.packages)), TORCH)
