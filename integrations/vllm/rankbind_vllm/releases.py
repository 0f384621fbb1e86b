"""What the plugin relies on in vLLM, and where it is: the same in every release from 0.11.0 to 0.33.0.

Read from the released wheels, every one. Later releases are taken to be the same; `lacking` finds out whether they are.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import Any

ENGINE_CORE = "vllm.v1.engine.core"
"""The module of the engine core. A process that has not imported it makes no publishers."""

KV_EVENTS_MODULE = "vllm.distributed.kv_events"


@dataclass(frozen=True)
class Target:
    """A method of the engine, and the parameters of it that a hook relies on."""

    module: str
    owner: str
    name: str
    parameters: tuple[str, ...]

    def found(self) -> tuple[Any, Any]:
        """The class, and its method as a function.

        Raises:
            ImportError, AttributeError: there is none.
        """
        owner = getattr(import_module(self.module), self.owner)
        method = getattr(owner, self.name)
        return owner, getattr(method, "__func__", method)

    def lacking(self) -> str | None:
        """What the running engine lacks of this target, in words; None if nothing."""
        try:
            _, function = self.found()
        except (ImportError, AttributeError):
            return f"there is no {self}"
        has = inspect.signature(function).parameters
        absent = [name for name in self.parameters if name not in has]
        return f"{self} takes no {', '.join(absent)}" if absent else None

    def __str__(self) -> str:
        return f"{self.module}.{self.owner}.{self.name}"


START = Target("vllm.v1.executor.abstract", "Executor", "__init__", ("self", "vllm_config"))
"""Where an engine core knows its ranks and its configuration, has loaded its plugins, and has no model yet."""

PUBLISHER = Target(KV_EVENTS_MODULE, "EventPublisherFactory", "create", ("config", "data_parallel_rank"))
"""Where the scheduler of an engine core makes its publisher, when the model is loaded."""

SOCKETS = Target(KV_EVENTS_MODULE, "ZmqEventPublisher", "_socket_setup", ("self",))
"""What binds, or connects, the sockets of a publisher."""

TARGETS = (START, PUBLISHER, SOCKETS)
