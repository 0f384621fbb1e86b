"""What the types of SGLang's options make of a value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_READABLE = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(sorted(_UNITS, key=len, reverse=True))})")
_PHASES = ("decode", "prefill")


def _readable(text: str) -> int:
    text = text.strip()
    match = _READABLE.fullmatch(text)
    if match is None:
        return int(text)
    number, unit = match.groups()
    return int(number) * _UNITS[unit] if unit.endswith("i") else int(Decimal(number) * _UNITS[unit])


def _strict(text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def _lora(text: str) -> Any:
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return text
    found = json.loads(text)
    if not {"lora_path", "lora_name"} <= found.keys():
        raise ValueError(text)
    return found


def _graphs(text: str) -> Any:
    # The keys of a phase are SGLang's to check: they come and go, and nothing here looks at them.
    found = json.loads(text)
    if not found.keys() <= set(_PHASES) or not all(isinstance(settings, dict) for settings in found.values()):
        raise ValueError(text)
    return found


def _graph(text: str) -> str:
    # Retired in 0.5.22, with the first release that has this type for the two options; before it was a choice.
    if text == "tc_piecewise":
        raise ValueError(text)
    return text


KINDS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "human_readable_int": _readable,
        "json_list_type": _strict,
        "nullable_str": lambda text: None if text in ("", "None") else text,
        "lora": _lora,
        "parse_cuda_graph_config_arg": _graphs,
        "parse_cuda_graph_backend_arg": _graph,
    }
)
"""By the names of the table of options."""
