"""Hypothesis strategies: small topologies with views of every kind, placed in every way."""

from __future__ import annotations

from math import prod

from hypothesis import strategies as st

from rankbind.topology import Topology, View

MAX_WORLD = 96


@st.composite
def factors_of(draw: st.DrawFn, total: int, least: int = 1, most: int = 3) -> list[int]:
    """Sizes that multiply to `total`."""
    sizes = []
    for _ in range(draw(st.integers(least, most)) - 1):
        size = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
        sizes.append(size)
        total //= size
    return draw(st.permutations([*sizes, total]))


@st.composite
def topologies(draw: st.DrawFn, views: bool = True, sound: bool = True) -> Topology:
    """Up to 4 axes and 3 views: of one axis, of several (neighbours or not, in any order), of a view's own axes.

    With `sound` every rank is placed once, in equal, uneven or explicit blocks; without it some are left out.
    """
    axes: dict[str, int] = {}
    for name in draw(st.permutations(["dp", "pp", "cp", "tp"]))[: draw(st.integers(1, 4))]:
        room = MAX_WORLD // prod(axes.values())
        axes[name] = draw(st.integers(1, min(8, room)))
    cuts: dict[str, View] = {}
    if views:
        for number in range(draw(st.integers(0, 3))):
            pools = [list(axes), *(list(view.axes) for view in cuts.values())]
            pool = draw(st.sampled_from(pools))
            of = draw(st.permutations(pool))[: draw(st.integers(1, len(pool)))]
            known = axes | {name: size for view in cuts.values() for name, size in view.axes.items()}
            sizes = draw(factors_of(prod(known[name] for name in of)))
            names = (f"v{number}{letter}" for letter in "abc")
            cuts[f"view{number}"] = View(of, dict(zip(names, sizes, strict=False)))
    return Topology(axes, cuts, draw(placements(prod(axes.values()), sound)))


@st.composite
def placements(draw: st.DrawFn, size: int, sound: bool = True) -> int | list[int] | dict[str, list[int]]:
    kind = draw(st.sampled_from(["equal", "uneven", "explicit"] if sound else ["uneven", "explicit"]))
    if kind == "equal":
        return draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    ends = sorted(draw(st.sets(st.integers(1, max(1, size - 1)), max_size=4)) | ({size} if sound else set()))
    ends = [end for end in ends if end <= size]
    blocks = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if kind == "uneven":
        return blocks
    ranks = draw(st.permutations(range(size)))
    return {f"host{n}": list(ranks[end - block : end]) for n, (end, block) in enumerate(zip(ends, blocks, strict=True))}


def ranks(topology: Topology) -> st.SearchStrategy[int]:
    return st.integers(0, topology.size - 1)
