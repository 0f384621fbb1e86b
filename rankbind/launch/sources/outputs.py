"""What ``$(...)`` gives, for the few commands that give the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from rankbind.launch.sources import slurm
from rankbind.launch.sources.arithmetic import UnknownError, number
from rankbind.launch.sources.expand import Variables
from rankbind.launch.sources.placed import Text

_MOST = 4096


def of(
    words: Sequence[Text], here: Text, variables: Variables, nodes: int | None, calculate: Callable[[Text], int | None]
) -> Text | None:
    """The output of a command; None where only running it would tell.

    Args:
        here: where the output stands.
        nodes: how many nodes a SLURM allocation has, where that is known.
    """
    texts = [word.text for word in words]
    sure = all(word.sure for word in words)
    hostname = variables.values.get("HOSTNAME")
    match texts:
        case ["scontrol", "show", "hostnames" | "hostname", *_]:
            # Their names are known when they are allocated; that they are so many and in this order is known now.
            if nodes is None or nodes > _MOST:
                return None
            return here.saying("\n".join(map(slurm.node_name, range(nodes))), sure=False)
        case ["echo", "-n", *rest] | ["echo", *rest]:
            return here.saying(" ".join(rest), sure=sure)
        case ["hostname"] | ["hostname", "-s"] if isinstance(hostname, Text) and not hostname.opaque:
            return here.saying(hostname.text, sure=hostname.sure)
        case _ if not sure:
            return None
        case ["seq", *rest]:
            numbers = _sequence(rest)
            return None if numbers is None else here.saying("\n".join(map(str, numbers)))
        case ["expr", *rest]:
            value = calculate(here.saying(" ".join(rest)))
            return None if value is None else here.saying(str(value))
        case ["basename", path]:
            return here.saying(PurePosixPath(path).name)
        case ["dirname", path]:
            return here.saying(str(PurePosixPath(path).parent))
    return None


def filtered(text: Text, words: Sequence[str]) -> Text | None:
    """What ``head``, ``tail`` and ``sed -n Np`` leave of some lines."""
    lines = text.text.split("\n")
    arguments = "".join(words[1:])
    if words and words[0] in ("head", "tail"):
        count = arguments.removeprefix("-").removeprefix("n").removeprefix("-") or "10"
        if not count.isdecimal() or len(count) > 6:
            return None
        kept = lines[: int(count)] if words[0] == "head" else lines[max(len(lines) - int(count), 0) :]
    elif words and words[0] == "sed" and arguments.startswith("-n") and arguments.endswith("p"):
        line = arguments[2:-1]
        if not line.isdecimal() or len(line) > 6 or int(line) == 0:
            return None
        kept = lines[int(line) - 1 : int(line)]
    else:
        return None
    return text.saying("\n".join(kept), sure=text.sure)


def _sequence(words: Sequence[str]) -> range | None:
    """``seq [FIRST [STEP]] LAST``"""
    try:
        numbers = [number(word.lstrip("0") or "0") for word in words]
    except UnknownError:
        return None
    if not 1 <= len(numbers) <= 3:
        return None
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1
    if step == 0 or abs(numbers[-1] - first) // abs(step) > _MOST:
        return None
    return range(first, numbers[-1] + (1 if step > 0 else -1), step)
