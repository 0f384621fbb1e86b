"""Command lines, right and wrong, and what an engine's own parser makes of them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankbind.launch.command import Word, typed
from rankbind.launch.options import Option, Reading

ROOT = Path(__file__).resolve().parents[2]

GOOD = {
    "int": ["0", "8", "-1", "+3", " 7", "1_000"],
    "float": ["0.5", "1e3", "3", "-2", "-0.25"],
    "json": ['{"a": 1}', "[1, 2]", '"x"', "1", "null"],
    "bool": ["1", "", "no"],
    "str": ["abc", "/tmp/x", "a b", "", "-1", "tcp://*:5557", "None", "x=y", "a.b"],
}
BAD = {
    "int": ["x", "1.5", "", "0x10", "1 2", "-x"],
    "float": ["x", "1,5", ""],
    "json": ["{", "a", "{'a': 1}", "NaN x"],
    "str": ["-x", "--x", "--"],
}


def tool(engine: str) -> Any:
    """integrations/ENGINE/tools/options.py, as a module."""
    import importlib.util

    path = ROOT / "integrations" / engine / "tools" / "options.py"
    spec = importlib.util.spec_from_file_location(f"{engine}_options_tool", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def engines_own(engine: str, release: str, lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """What the parser of an engine's release answers to each line; skips the test where the release is not here."""
    made = tool(engine)
    path: str = f"integrations/{engine}/tools/options.py"
    if not made.is_here(release):
        pytest.skip(f"{engine} {release} is not installed: `python {path} --fetch {release}` gets it")
    told = subprocess.run(
        [made.PYTHON, made.__file__, "--parse"],
        env=made.environment(release),
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    answers = [json.loads(line) for line in told.stdout.splitlines() if line.startswith(('{"values"', '{"refused"'))]
    assert len(answers) == len(lines), told.stderr[-2000:]
    return answers


class Lines:
    """Command lines for the options of a release, the same for a seed at any time."""

    def __init__(
        self, seed: str, options: Sequence[Option], kinds: Mapping[str, Sequence[str]], odd: Sequence[str]
    ) -> None:
        self.random = random.Random(seed)
        self.options = [option for option in options if option.strings and option.action not in ("help", "refuse")]
        self.good = GOOD | {name: list(values) for name, values in kinds.items()}
        self.odd = odd

    def line(self) -> list[str]:
        """One, about half of the time without a thing wrong."""
        wrong = self.random.random() < 0.5
        chosen = [self.random.choice(self.options) for _ in range(self.random.randint(1, 5))]
        if self.random.random() < 0.2:
            chosen.append(chosen[0])
        words = [word for option in chosen for word in self.use(option)]
        if wrong:
            words = self.spoiled(words)
        return words

    def use(self, option: Option) -> list[str]:
        name = self.random.choice(option.strings)
        if self.random.random() < 0.15:
            name = self.shortened(name)
        values = self.values(option)
        if len(values) == 1 and self.random.random() < 0.3 and name in option.strings:
            return [f"{name}={values[0]}"]
        return [name, *values]

    def shortened(self, name: str) -> str:
        """An abbreviation of `name` that is one, if there is any."""
        everything = [string for option in self.options for string in option.strings]
        fitting = [
            name[:end]
            for end in range(3, len(name))
            if sum(string.startswith(name[:end]) for string in everything) == 1 and name.startswith("--")
        ]
        return self.random.choice(fitting) if fitting else name

    def values(self, option: Option) -> list[str]:
        if option.nargs == 0:
            return []
        least, most = {None: (1, 1), "?": (0, 1), "*": (0, 3), "+": (1, 3)}.get(option.nargs, (option.nargs,) * 2)
        return [self.value(option) for _ in range(self.random.randint(least, most))]

    def value(self, option: Option) -> str:
        if option.choices is not None:
            return str(self.random.choice(option.choices))
        return self.random.choice(self.good.get(option.kind, self.good["str"]))

    def spoiled(self, words: list[str]) -> list[str]:
        """With one thing that may be wrong."""
        at = self.random.randrange(len(words) + 1)
        option = self.random.choice(self.options)
        name = self.random.choice(option.strings)
        how = self.random.randrange(9)
        if how == 0:
            extra = [name[: self.random.randint(2, len(name))], *self.values(option)]
        elif how == 1:
            extra = [name.replace("-", "_").replace("__", "--", 1), *self.values(option)]
        elif how == 2:
            extra = [name]
        elif how == 3:
            extra = [name, self.random.choice(BAD.get(option.kind.removesuffix("?"), BAD["str"]))]
        elif how == 4:
            extra = [f"{name}={self.random.choice(BAD.get(option.kind.removesuffix('?'), ['x']))}"]
        elif how == 5:
            extra = [self.random.choice(["stray", "-1", "--", "-", "", "a b", "-z", "--no-such-option", "--no-such=1"])]
        elif how == 6 and option.choices:
            extra = [name, "nonsense"]
        else:
            extra = [self.random.choice(self.odd)]
            if not extra[0].strip():
                return words[:-1]
        return [*words[:at], *extra, *words[at:]]


def words_of(line: Sequence[str]) -> tuple[Word, ...]:
    return typed(["engine", *line]).words[1:]


def disagreement(
    reading: Reading, told: Mapping[str, Any], defaults: Mapping[str, Any], normal: Callable[[str, Any], Any]
) -> str | None:
    """What `reading` has other than the engine; None where they agree."""
    stops = bool(reading.refusals or reading.unknown or reading.given("help"))
    if "refused" in told:
        return None if stops else f"the engine refuses: {told['refused']}"
    if stops:
        return f"the engine accepts, we do not: {reading.refusals} {reading.unknown}"
    expected = {**defaults, **told["values"]}
    for dest, setting in reading.settings.items():
        if dest == "help" or dest not in expected:
            continue
        ours, theirs = normal(dest, setting.value), normal(dest, expected[dest])
        if isinstance(theirs, dict) and "=" in theirs:
            # One of the engine's objects: of those, what was said.
            if not setting.words or not isinstance(ours, dict):
                continue
            theirs = {key: value for key, value in theirs.items() if key in ours}
        if ours != theirs:
            return f"{dest}: {theirs!r} in the engine, {ours!r} here"
    return None
