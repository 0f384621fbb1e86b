"""What a call costs once the thing is made, beside a plain function and a plain functools.wraps wrapper.

All take turns in short slices, and a ratio is the median of the ratios of slices that were neighbours in time, so that
a change of the machine's speed hits both sides alike. Exits 1 when one costs more than LIMITS times its wrapper.
`make benchmark`.
"""

from __future__ import annotations

import functools
import statistics
import sys
import timeit
from collections.abc import Callable
from typing import Any

import rankbind
from rankbind import Topology, singleton_per
from rankbind.identity import reset

LIMITS = {
    "rankbind, owner": 1.10,
    "rankbind, other rank": 1.10,
    "rankbind, owner, arguments": 1.50,  # they are compared with those of the first call
    "rankbind, other rank, arguments": 1.25,
    "rankbind, method": 3.50,  # the instance is asked whether what it keeps is its own, or came with a copy
}
ROUNDS, CALLS = 400, 2_000
TOPOLOGY = Topology({"pp": 2, "tp": 4})
THING = object()


def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    """The least that a decorator written in Python does."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapped


def plain() -> object:
    return THING


def with_arguments(port: int, host: str = "*") -> object:
    return THING


class Engine:
    @wrapper
    def wrapped(self) -> object:
        return THING

    @singleton_per(group="pp", otherwise=THING)
    def owned(self) -> object:
        return THING


def rank_zero(owner: bool) -> Callable[[], object] | None:
    """Lightning's rank_zero_only, which holds one rank for the whole process: a copy of it for each rank."""
    try:
        from lightning_utilities.core import rank_zero as original
    except ImportError:
        return None
    import importlib.util

    spec = importlib.util.find_spec(original.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.rank_zero_only.rank = 0 if owner else 1
    return module.rank_zero_only(plain)  # type: ignore[no-any-return]


def cases() -> dict[str, tuple[Callable[[], timeit.Timer], str]]:
    """Each case, with the wrapper that it is compared with. Shortcuts are taken as in a process with one identity."""

    def timer(statement: str, **names: Any) -> Callable[[], timeit.Timer]:
        return lambda: timeit.Timer(statement, globals=names)

    engine = Engine()
    reset()
    rankbind.init(TOPOLOGY, rank=0)
    owner, other = (singleton_per(group="pp", rank=rank)(plain) for rank in (0, 1))
    argued, argued_other = (singleton_per(group="pp", rank=rank)(with_arguments) for rank in (0, 1))
    for call in (owner, other, engine.owned):
        call()
    for argued_call in (argued, argued_other):
        argued_call(5557, host="*")
    found: dict[str, tuple[Callable[[], timeit.Timer], str]] = {
        "plain function": (timer("f()", f=plain), "functools.wraps"),
        "functools.wraps": (timer("f()", f=wrapper(plain)), "functools.wraps"),
        "rankbind, owner": (timer("f()", f=owner), "functools.wraps"),
        "rankbind, other rank": (timer("f()", f=other), "functools.wraps"),
        "functools.wraps, arguments": (
            timer("f(5557, host='*')", f=wrapper(with_arguments)),
            "functools.wraps, arguments",
        ),
        "rankbind, owner, arguments": (timer("f(5557, host='*')", f=argued), "functools.wraps, arguments"),
        "rankbind, other rank, arguments": (timer("f(5557, host='*')", f=argued_other), "functools.wraps, arguments"),
        "functools.wraps, method": (timer("e.wrapped()", e=engine), "functools.wraps, method"),
        "rankbind, method": (timer("e.owned()", e=engine), "functools.wraps, method"),
        "rankbind, .owned": (timer("f.owned", f=owner), "functools.wraps"),
    }
    for name, is_owner in (("owner", True), ("other rank", False)):
        lightning = rank_zero(is_owner)
        if lightning is not None:
            found[f"rank_zero_only, {name}"] = timer("f()", f=lightning), "functools.wraps"
    return found


def main() -> int:
    table = {name: (make(), base) for name, (make, base) in cases().items()}
    times: dict[str, list[float]] = {name: [] for name in table}
    for _ in range(ROUNDS):
        for name, (timer, _) in table.items():
            times[name].append(timer.timeit(CALLS) / CALLS * 1e9)
    medians = {name: statistics.median(found) for name, found in times.items()}
    ratios = {
        name: statistics.median(one / other for one, other in zip(times[name], times[base], strict=True))
        for name, (_, base) in table.items()
    }
    print(f"{'':34}{'median':>10}{'ratio':>8}  to")
    for name, (_, base) in table.items():
        print(f"{name:34}{medians[name]:7.1f} ns{ratios[name]:8.2f}  {base}")
    late = [name for name, limit in LIMITS.items() if ratios[name] > limit]
    for name in late:
        print(f"too slow: {name} costs more than {LIMITS[name]} x {table[name][1]}", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
