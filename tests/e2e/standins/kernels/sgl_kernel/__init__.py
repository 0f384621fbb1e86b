"""Stands in for sgl_kernel, SGLang's CUDA kernels: can be imported from, cannot be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.0.0"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{name} was called, and there is no GPU")

    kernel.__name__ = name
    return kernel
