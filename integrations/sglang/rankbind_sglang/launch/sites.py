"""The ranks that own what has no port: rank conditions of the engine that others rely on, or that were wrong once.

What a later release has corrected is promised (``once_per``), so that it is found in those before. The others are
stated and promised nothing: engines log and count by stage on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankbind.finding import Level
from rankbind_sglang.launch.deployment import Deployment, literal
from rankbind_sglang.launch.rules import ATTN_TP_ZERO, FIRST_GROUP, LAST_STAGE, RANK_ZERO


def state(d: Deployment) -> None:
    """State them all."""
    a, rules = d.lead, d.rules
    d.draft.resource(
        "ipc-rank-zero",
        owner=RANK_ZERO,
        once_per=["dp", "attn_dp"],
        about="who talks to the tokenizer, and writes the load snapshot: managers/scheduler.py",
    )
    if d.patch > 9:
        d.draft.resource(
            "stats-logging", owner=rules.log_gate, about="who logs the statistics of its stage: observability"
        )
    if a.value("--enable-metrics"):
        _metrics(d)
    if rules.forward_pass_metrics and a.value("--enable-forward-pass-metrics"):
        _forward_pass(d)


def _metrics(d: Deployment) -> None:
    a, rules = d.lead, d.rules
    words = a.words("--enable-metrics")
    every = bool(a.value("--enable-metrics-for-all-schedulers"))
    gate: Mapping[str, int] = {} if every else rules.log_gate
    corrected = {
        "RB1": "upgrade to SGLang 0.5.23: the ranks of one attention group count its load once each until then"
    }
    d.draft.resource(
        "scheduler-metrics",
        *words,
        owner=gate,
        once_per=None if every else ["dp", "pp", "attn_dp"],
        about="who exports the load of its stage: observability/metrics_collector.py",
        remedies=corrected,
    )
    if d.patch >= 12:
        d.draft.resource(
            "metrics-push",
            *words,
            owner={} if every else ATTN_TP_ZERO,
            about="who connects to the metrics address, which nobody in the engine binds: managers/scheduler.py",
        )
    if rules.imbalance:
        d.draft.resource(
            "dp-imbalance-ratio",
            *words,
            owner=FIRST_GROUP,
            about="who reports the imbalance between all KV caches: each stage does, pp is not asked for",
        )


def _forward_pass(d: Deployment) -> None:
    a = d.lead
    option = "--forward-pass-metrics-ipc-name"
    name, words = a.text(option), a.words(option, "--enable-forward-pass-metrics")
    dp_rank = d.sizes.cache_axis
    lone = d.lead.number("SGLANG_DP_RANK") or 0
    index = f"{{{dp_rank}}}" if dp_rank else str(lone)
    about = "forward-pass metrics, observability/forward_pass_metrics.py: the last stage publishes"
    if name is None:
        about += "\nat a temporary name of its own, which /server_info does not tell"
        d.draft.find(
            "RB215",
            f"forward-pass metrics are published at temporary names that nobody is told: a planner needs {option}",
            *words,
            level=Level.NOTE,
            fix=f"add {option} ipc:///run/NAME",
            resource="forward-pass-metrics",
        )
    d.draft.resource(
        "forward-pass-metrics",
        *words,
        owner=LAST_STAGE,
        once_per=["dp", "attn_dp"] if name else None,
        bind="ipc://*" if name is None else f"{literal(name)}.{index}",
        about=about,
        remedies=dict.fromkeys(("RB1", "RB201", "RB202"), _APART.format(option=option)),
    )


_APART = "leave {option} out: no release asks for cp, and without it each publishes at a name of its own"
