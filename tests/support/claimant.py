"""A process that claims what it is told, and does with it what it is told: one JSON object a line on stdin.

    {"claim": "kv-events", "group": {"dp": 0}, ...}   the arguments of `claim`; answers its token
    {"update": {"endpoints": {...}}}                  those of `Claim.update`
    {"release": "default/kv-events[dp=0]"}
    {"leave": "default/kv-events[dp=0]"}              starts a child that keeps the lock by force; answers its pid
    {"forget": "default/kv-events[dp=0]"}             lets go of the lock without a word in the record

It ends when stdin does, without releasing anything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rankbind.runtime.claim import Claim, claim

held: dict[str, Claim] = {}


def _descriptor(one: Claim) -> int:
    for file in Path("/proc/self/fd").iterdir():
        if file.is_symlink() and str(file.readlink()).endswith(f"/claims/{one.key.file_name}.lock"):
            return int(file.name)
    raise LookupError(str(one.key))


def _answer(told: dict[str, Any]) -> Any:
    if "claim" in told:
        made = claim(told.pop("claim"), **told)
        held[str(made.key)] = made
        return made.token
    if "update" in told:
        (one,) = held.values()
        return one.update(**told["update"])
    if "release" in told:
        return held.pop(told["release"]).release()
    if "leave" in told:
        number = _descriptor(held[told["leave"]])
        keeper = subprocess.Popen(["sleep", "600"], pass_fds=[number], start_new_session=True)
        return keeper.pid
    if "forget" in told:
        os.close(_descriptor(held[told["forget"]]))
        return None
    raise ValueError(told)


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
