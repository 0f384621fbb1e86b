"""Lets SGLang start on a machine with no GPU, with a torch that has no triton and no torchvision.

The environments import this module at start-up (see environments.py). It stands in for both packages: whatever is
imported from them is there, decorators decorate, and a kernel that is launched raises, except for the two that SGLang
launches on the CPU as well, which are done in Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGES = frozenset({"triton", "torchvision"})


class _Named(type):
    """Classes of a package that is not there: their attributes are their names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Base(metaclass=_Named):
    def __init_subclass__(cls, **_: object) -> None:
        super().__init_subclass__()

    def __init__(self, *_: object, **__: object) -> None:
        pass


class _StandIn(ModuleType):
    """A module, function or object of a package that is not there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__file__ = __file__
        self.__version__ = "3.6.0"
        self.__spec__ = ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        if path == "triton.runtime.driver.active":
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        known: Any = sys.modules.get(path)
        value = known or (_Named(name, (_Base,), {}) if name[0].isupper() else _StandIn(path))
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], _StandIn):
            return args[0] if isinstance(args[0], type) else _Kernel(args[0])
        if self.__name__ == "triton.cdiv":
            return -(-args[0] // args[1])
        if self.__name__ == "triton.next_power_of_2":
            return 1 << max(args[0] - 1, 0).bit_length()
        return _StandIn(f"{self.__name__}()")

    def __getitem__(self, _: object) -> _StandIn:
        return _StandIn(f"{self.__name__}[]")

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (_Base,)

    def __or__(self, _: object) -> _StandIn:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Kernel:
    """A function under ``@triton.jit``: it can be defined, and only those in `_ON_CPU` can be launched."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __getitem__(self, _: object) -> Callable[..., Any]:
        def launch(*_: Any, **__: Any) -> None:
            raise RuntimeError(f"the triton kernel {self.__name__} was launched, and there is no GPU")

        return _ON_CPU.get(self.__name__, launch)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"kernel.{name}")


def _alloc_extend(
    prefix: Any, lengths: Any, last: Any, free: Any, out: Any, _batch: Any, page: int, *_: Any, **__: Any
) -> None:
    pages = int(((lengths + page - 1) // page - (prefix + page - 1) // page).sum())
    if pages > len(free):
        return
    for name in ("sglang.srt.mem_cache.allocator.paged", "sglang.srt.mem_cache.allocator"):
        naive = getattr(sys.modules.get(name), "alloc_extend_naive", None)
        if naive is not None:
            naive(prefix, lengths, last, free, out, page, out.device)
            return
    raise RuntimeError("this SGLang has no alloc_extend_naive")


def _alloc_decode(lengths: Any, last: Any, free: Any, out: Any, _batch: Any, page: int, *_: Any, **__: Any) -> None:
    opened = 0
    for row, (length, location) in enumerate(zip(lengths.tolist(), last.tolist(), strict=True)):
        if (length - 1) % page:
            out[row] = location + 1
        elif opened < len(free):
            out[row] = free[opened] * page
            opened += 1


_ON_CPU: dict[str, Callable[..., Any]] = {
    "alloc_extend_kernel": _alloc_extend,
    "alloc_decode_kernel": _alloc_decode,
}


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in PACKAGES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, _Finder())
