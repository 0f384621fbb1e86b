"""The parallel sizes that follow from arguments, what the engine refuses of them, and which node starts which ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rankbind.launch.command import Word
from rankbind.launch.draft import Draft
from rankbind.topology import MAX_RANKS
from rankbind_sglang.launch.arguments import Arguments
from rankbind_sglang.launch.rules import number

_Refuse: TypeAlias = Callable[..., None]

SIZES = (
    *("--tp-size", "--pp-size", "--dp-size", "--attn-dp-size", "--attn-cp-size", "--moe-dp-size"),
    *("--ep-size", "--dcp-size", "--dwdp-size", "--nnodes"),
)
"""The options that say sizes."""

_EXPERTS_EVERYWHERE = frozenset({"deepep", "mooncake", "nixl", "ascend_fuseep", "flashinfer", "mori", "megamoe"})
"""Backends of ``--moe-a2a-backend`` that spread the experts over all of tp, whatever ``--ep-size`` says."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of one launch.

    Attributes:
        replicas: of pure data parallelism, each a torch world of its own; dp.
        attn_tp: what is left of tp for each attention group.
        ep: how many parts the experts are cut into.
        dcp: how many parts each sequence's cache is cut into while decoding.
    """

    replicas: int
    pp: int
    tp: int
    attn_dp: int
    attn_cp: int
    moe_dp: int
    ep: int
    dcp: int
    nnodes: int

    @property
    def attn_tp(self) -> int:
        """How many ranks of tp are left for each attention group."""
        return self.tp // self.attn_dp // self.attn_cp

    @property
    def moe_tp(self) -> int:
        """How many ranks of tp share each part of the experts."""
        return self.tp // self.ep // self.moe_dp

    @property
    def world(self) -> int:
        """The ranks of a replica."""
        return self.pp * self.tp

    @property
    def caches(self) -> int:
        """How many KV caches there are; what ``/server_info`` calls dp_size."""
        return self.replicas * self.attn_dp

    @property
    def dp_attention(self) -> bool:
        """Whether attention is data parallel, and so processes talk over ports."""
        return self.attn_dp > 1

    @property
    def cache_axis(self) -> str | None:
        """The axis that counts the KV caches, where there are several."""
        return "attn_dp" if self.attn_dp > 1 else "dp" if self.replicas > 1 else None

    # Placement, with the engine's floors

    @property
    def pp_per_node(self) -> int:
        """How many stages a node starts."""
        return max(self.pp // self.nnodes, 1)

    @property
    def nodes_per_stage(self) -> int:
        """How many nodes a stage is spread over."""
        return max(self.nnodes // self.pp, 1)

    @property
    def tp_per_node(self) -> int:
        """How many ranks of a stage a node starts."""
        return self.tp // self.nodes_per_stage

    def started(self, node: int) -> Iterator[tuple[int, int]]:
        """The pp and tp of what a node starts in each replica; some may be of no rank."""
        first_pp = self.pp_per_node * (node // self.nodes_per_stage)
        first_tp = self.tp_per_node * (node % self.nodes_per_stage)
        for pp in range(first_pp, first_pp + self.pp_per_node):
            for tp in range(first_tp, first_tp + self.tp_per_node):
                yield pp, tp

    def ranks(self, node: int) -> list[int]:
        """The ranks that a node starts, in the order in which it does."""
        started = [(pp, tp) for pp, tp in self.started(node) if pp < self.pp and tp < self.tp]
        return [(dp * self.pp + pp) * self.tp + tp for dp in range(self.replicas) for pp, tp in started]


def sizes_of(arguments: Arguments, draft: Draft) -> Sizes | None:
    """The sizes that `arguments` come to; None where none come of them. What the engine refuses goes to `draft`."""
    a = arguments
    given = {option: int(a.value(option) if a.value(option) is not None else 1) for option in SIZES if a.has(option)}
    small = [option for option, size in given.items() if size < 1 and option != "--dwdp-size"]
    for option in small:
        draft.refuse("RB606", f"{option} is {given[option]}: there is at least 1", *a.words(option), flag=option)
    if small:
        return None
    tp, pp, dp = given["--tp-size"], given["--pp-size"], given["--dp-size"]
    attn_dp = given.get("--attn-dp-size", 1)
    cp, moe_dp, ep = given.get("--attn-cp-size", 1), given.get("--moe-dp-size", 1), given["--ep-size"]
    wide = attn_dp
    if a.value("--enable-dp-attention") and attn_dp == 1:
        attn_dp, dp = dp, 1
    if not a.rules.attn_dp_option:
        wide = attn_dp * dp
    elif attn_dp > 1 and dp > 1:
        draft.refuse(
            "RB606",
            f"--dp-size {dp} with --attn-dp-size {attn_dp}: SGLang {a.rules.release} has no replicas of data-parallel "
            "attention",
            *a.words("--dp-size"),
            *a.words("--attn-dp-size"),
            fix="leave --dp-size out: --attn-dp-size alone says how many KV caches there are",
        )
        return None
    dwdp = given.get("--dwdp-size", 1)
    if dwdp > 1:
        if dwdp != tp or pp != 1:
            message = f"--dwdp-size {dwdp} takes --tp-size {dwdp} and --pp-size 1, not {tp} and {pp}"
            draft.refuse("RB606", message, *a.words("--dwdp-size"), *a.words("--tp-size"))
            return None
        attn_dp, dp, ep, moe_dp = dwdp, 1, dwdp, 1
    if a.value("--moe-a2a-backend") in _EXPERTS_EVERYWHERE:
        ep = tp
    sizes = Sizes(dp, pp, tp, attn_dp, cp, moe_dp, ep, given.get("--dcp-size", 1), given["--nnodes"])
    if dp * pp * tp > MAX_RANKS:
        draft.refuse("RB606", f"{dp * pp * tp} ranks are more than rankbind looks at", *a.words("--tp-size"))
        return None
    return sizes if _hold(sizes, max(wide, attn_dp), a, draft) else None


def _hold(sizes: Sizes, wide: int, a: Arguments, draft: Draft) -> bool:
    """Whether the sizes make a launch at all: the engine's preconditions, and those it does not look at."""
    before = len(draft.findings)
    tp, cp = sizes.tp, sizes.attn_cp

    def refuse(message: str, *words: Word, fix: str | None = None) -> None:
        draft.refuse("RB606", message, *words, fix=fix)

    tp_words, dp_words = a.words("--tp-size"), a.words("--attn-dp-size", "--dp-size")
    if tp % sizes.attn_dp:
        refuse(
            f"data-parallel attention cuts tp {tp} into {sizes.attn_dp} groups, which does not go", *tp_words, *dp_words
        )
    elif cp > 1 and tp % (max(wide, 1) * cp):
        refuse(
            f"tp {tp} does not divide into {wide} x {cp} (dp x --attn-cp-size)", *tp_words, *a.words("--attn-cp-size")
        )
    if sizes.moe_dp > 1:
        _experts(sizes, a, refuse)
    if cp != sizes.moe_dp and sizes.moe_dp != 1:
        refuse(
            f"--moe-dp-size {sizes.moe_dp} has to be 1 or that of --attn-cp-size, {cp}",
            *a.words("--moe-dp-size"),
            *a.words("--attn-cp-size"),
        )
    if tp % sizes.dcp:
        refuse(f"--dcp-size {sizes.dcp} does not divide tp {tp}", *a.words("--dcp-size"), *tp_words)
    sound = len(draft.findings) == before
    _nodes(sizes, a, refuse)
    _speculation(sizes, a, refuse)
    for option, least in (("--base-gpu-id", 0), ("--gpu-id-step", 1)):
        if a.value(option, least) < least:
            refuse(f"{option} is {a.value(option)}: it is at least {least}", *a.words(option))
    return sound


def _experts(sizes: Sizes, a: Arguments, refuse: _Refuse) -> None:
    tp, ep, moe_dp = sizes.tp, sizes.ep, sizes.moe_dp
    words = (*a.words("--moe-dp-size"), *a.words("--ep-size"), *a.words("--tp-size"))
    if tp % moe_dp:
        refuse(f"--moe-dp-size {moe_dp} does not divide tp {tp}", *words)
    elif ep * moe_dp > tp or (ep > 1 and ep * moe_dp != tp):
        refuse(f"--ep-size {ep} x --moe-dp-size {moe_dp} has to be tp {tp}", *words)
    if sizes.pp > 1:
        refuse(f"--moe-dp-size {moe_dp} takes --pp-size 1", *words, *a.words("--pp-size"))


def _nodes(sizes: Sizes, a: Arguments, refuse: _Refuse) -> None:
    if sizes.world % sizes.nnodes:
        refuse(
            f"{sizes.world} ranks (tp {sizes.tp} x pp {sizes.pp}) do not divide over {sizes.nnodes} nodes",
            *a.words("--nnodes"),
            *a.words("--tp-size"),
        )
    if sizes.replicas > 1 and sizes.nnodes > 1:
        refuse(
            f"{sizes.replicas} replicas on {sizes.nnodes} nodes: pure data parallelism stays on one",
            *a.words("--dp-size"),
            *a.words("--nnodes"),
            fix="add --enable-dp-attention, or start one server on each node",
        )


def _speculation(sizes: Sizes, a: Arguments, refuse: _Refuse) -> None:
    """Speculative decoding in a pipeline: the later the release, the more it can do."""
    algorithm = a.text("--speculative-algorithm")
    if sizes.pp == 1 or algorithm is None:
        return
    words = (*a.words("--speculative-algorithm"), *a.words("--pp-size"))
    if number(a.rules.release) < (0, 5, 20):
        refuse("a pipeline (--pp-size) takes no speculative decoding in this release", *words)
        return
    allowed = {"EAGLE", "DSPARK"} if number(a.rules.release) >= (0, 5, 21) else {"EAGLE"}
    eagle_anywhere = a.flag("SGLANG_ENABLE_PP_SPEC") and algorithm.upper() == "EAGLE"
    if algorithm.upper() not in allowed:
        refuse(f"a pipeline (--pp-size) does not take --speculative-algorithm {algorithm}", *words)
    elif a.value("--disaggregation-mode") != "prefill" and not eagle_anywhere:
        refuse("a pipeline (--pp-size) speculates with --disaggregation-mode prefill alone", *words)
