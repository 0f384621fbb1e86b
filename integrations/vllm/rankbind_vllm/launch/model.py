"""Whether a model is a mixture of experts, which decides how vLLM lays out data parallelism."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Under these names the configurations of models say how many experts they have.
_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
# A few families whose names say it, for models that are not on this machine's disk.
_NAMED = re.compile(
    r"mixtral|deepseek-?(v2|v3|v4|r1)|qwen[\d.]*-?moe|-a\d+(\.\d+)?b\b|gpt-oss|kimi-k2|glm-?4\.[5-9]|llama-4|minimax-?m|dbrx"
    r"|jamba|olmoe|ernie-4\.5-.*-a\d+b|grok|moe",
    re.IGNORECASE,
)
_DENSE = re.compile(
    r"llama-?[23]|qwen[23]?(\.5)?-\d+(\.\d+)?b(-|$)|opt-\d|gemma|distill|phi-?[1234](-|$)|mistral-7b", re.IGNORECASE
)


def is_moe(model: str, config_path: str | None = None) -> bool | None:
    """Whether `model` has experts: by the ``config.json`` in its folder, else by its name; None: cannot be told."""
    for folder in (config_path, model):
        config = _config(folder) if folder else None
        if config is not None:
            return any(_experts(part) for part in (config, config.get("text_config")) if isinstance(part, Mapping))
    name = model.rstrip("/").rpartition("/")[2]
    if _NAMED.search(name) and "distill" not in name.lower():
        return True
    return False if _DENSE.search(name) else None


def _experts(config: Mapping[str, Any]) -> bool:
    for key in _KEYS:
        found = config.get(key)
        if isinstance(found, list):
            found = max(found, default=0)
        if isinstance(found, int) and found > 0:
            return True
    return False


def _config(folder: str) -> dict[str, Any] | None:
    try:
        found = json.loads((Path(folder) / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
