"""Commands that start other commands: ``exec``, ``srun``, ``docker run``, ``bash -c`` and what else stands in front."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TypeAlias

from rankbind.launch.command import Publication
from rankbind.launch.sources import slurm
from rankbind.launch.sources.expand import Variables
from rankbind.launch.sources.found import Place, Shared
from rankbind.launch.sources.options import Options
from rankbind.launch.sources.placed import Text, joined
from rankbind.launch.sources.shell import Shell
from rankbind.launch.turn import Step

Environment: TypeAlias = dict[str, Text]
_DEEPEST = 30

# What only starts the rest of its words; how many words that are no options stand before it.
_PLAIN: dict[str, tuple[Options, int]] = {
    "exec": (Options(short_flags="cl"), 0),
    "nohup": (Options(), 0),
    "setsid": (Options("fork ctty wait", "fcw"), 0),
    "time": (Options("append portability verbose quiet", "apvq"), 0),
    "command": (Options(short_flags="p"), 0),
    "builtin": (Options(), 0),
    "nice": (Options(), 0),
    "ionice": (Options("ignore", "t"), 0),
    "stdbuf": (Options(), 0),
    "unbuffer": (Options(short_flags="p"), 0),
    "chrt": (
        Options(
            "all-tasks batch deadline fifo idle other rr reset-on-fork verbose",
            "abdfiorRv",
        ),
        1,
    ),
    "timeout": (Options("foreground preserve-status verbose", "fpv"), 1),
    "taskset": (Options("all-tasks cpu-list pid", "acp"), 1),
    "numactl": (Options("localalloc all hardware show", "laHs"), 0),
    "sudo": (
        Options(
            "background edit help set-home login non-interactive preserve-env preserve-groups stdin shell",
            "AbEHKknPSsi",
        ),
        0,
    ),
    "gosu": (Options(), 1),
    "su-exec": (Options(), 1),
    "tini": (Options(short_flags="sgvw"), 0),
    "dumb-init": (Options("single-child verbose rewrite", "cv"), 0),
    "catchsegv": (Options(), 0),
    "strace": (Options(short_flags="fFcCdhiqrtTvVxy"), 0),
}
_ENDING = frozenset({"wait", "kill", "pkill", "killall"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_RUN = Options(
    "rm detach interactive tty privileged init read-only no-healthcheck oom-kill-disable "
    "publish-all sig-proxy disable-content-trust replace quiet no-hosts tls-verify env-host",
    "ditPq",
    {
        "p": "publish",
        "e": "env",
        "w": "workdir",
        "v": "volume",
        "u": "user",
        "h": "hostname",
        "m": "memory",
        "l": "label",
    },
)
_EXEC = Options("detach interactive tty privileged", "dit", _RUN.names)
_SSH = Options(short_flags="46AaCfGgKkMNnqsTtVvXxYy")
_APPTAINER = Options(
    "nv rocm cleanenv contain containall fakeroot no-home writable writable-tmpfs compat userns "
    "pid ipc net no-init nvccli unsquash disable-cache",
    "ceCfuipW",
    {"B": "bind", "H": "home"},
)
_MPI = Options(
    "allow-run-as-root oversubscribe report-bindings display-map tag-output bind-to-none "
    "verbose v q quiet nolocal nooversubscribe disable-auto-cleanup l prepend-rank "
    "use-hwthread-cpus",
    "vql",
    {"n": "np", "H": "host", "N": "npernode", "ppn": "npernode", "f": "hostfile", "x": "x"},
    single_dash=True,
)
# Open MPI's options of two values.
_MPI_PAIRS = frozenset({"mca", "gmca", "genv", "env"})
_UV = Options(
    "no-project frozen locked isolated active no-sync quiet verbose offline exact no-cache",
    "qvn",
)
_CONDA = Options("no-capture-output live-stream verbose debug-wrapper-scripts dev", "v")
_TMUX = Options(short_flags="dADEPX")
_MAX_PORTS = 65536


def start(shared: Shared, words: Sequence[Text], environment: Mapping[str, Text], place: Place, depth: int) -> None:
    """Enter what `words` start, past all that merely starts something else."""
    environment = dict(environment)
    first = words
    for _ in range(_DEEPEST):
        if words is not first and place.bare:
            place = replace(place, bare=None)  # what starts it stands in front
        if not words:
            return
        shared.found.step()
        program = PurePosixPath(words[0].text).name if words[0].sure else ""
        if program in _ENDING and not any(word.text in ("-0", "-n", "-l") for word in words[1:]):
            shared.found.ended(place.path)
        rest = words[1:]
        if program in _PLAIN:
            options, skipped = _PLAIN[program]
            found, at = options.read(rest)
            if program == "command" and any(name in "vV" for name, _ in found):
                return
            words = rest[at + skipped :]
            if program == "sudo":
                words = _assigned(words, environment)
        elif program == "env":
            words = _env(rest, environment)
        elif program in _SHELLS:
            if not _script(shared, rest, environment, place, depth):
                shared.found.add(words, environment, place)
            return
        elif program in _STARTERS:
            following = _STARTERS[program](shared, words, environment, place, depth)
            if following is None:
                return
            words, environment, place = following
        else:
            shared.found.add(words, environment, place)
            return
    shared.found.note("commands that start commands, too deeply to be read", words[0])


def _assigned(words: Sequence[Text], environment: Environment) -> Sequence[Text]:
    """Take the assignments in front."""
    for at, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        if not equals or not name.isidentifier():
            return words[at:]
        environment[name] = word.part(len(name) + 1, len(word.text))
    return ()


def _env(words: Sequence[Text], environment: Environment) -> Sequence[Text]:
    found, at = Options("ignore-environment null debug", "i0v", {"u": "unset", "C": "chdir", "S": "split"}).read(words)
    for name, value in found:
        if name in ("i", "ignore-environment"):
            environment.clear()
        elif name == "unset":
            environment.pop(value.text, None)
    if words[at : at + 1] and words[at].text == "-":
        environment.clear()
        at += 1
    return _assigned(words[at:], environment)


def _script(shared: Shared, words: Sequence[Text], environment: Environment, place: Place, depth: int) -> bool:
    """``bash -c SCRIPT [NAME [ARGUMENT ...]]``; whether it is one."""
    at = 0
    script = False
    while at < len(words) and words[at].text[:1] in ("-", "+") and len(words[at].text) > 1:
        text = words[at].text
        at += 1
        if text == "--":
            break
        if text.startswith("--"):
            at += text in ("--rcfile", "--init-file")
            continue
        script |= text[0] == "-" and "c" in text
        at += text[-1] in "oO"
    if not script or at >= len(words):
        return False
    if not words[at].sure and words[at].opaque:
        return False
    variables = Variables(dict(environment), set(environment), list(words[at + 2 :]))
    if at + 1 < len(words):
        variables.values["0"] = words[at + 1]
    there = replace(place, bare=None, name=None if _by_line(place) else place.name)
    inner = Shell(shared, variables, there, depth + 1)
    inner.run(words[at])
    return True


def _by_line(place: Place) -> bool:
    return bool(re.fullmatch(r"line \d+", place.name or ""))


_Following: TypeAlias = tuple[Sequence[Text], Environment, Place] | None


def _each(shared: Shared, words: Sequence[Text], places: Sequence[tuple[Environment, Place]], depth: int) -> None:
    block = shared.found.block()
    for at, (environment, place) in enumerate(places):
        path = (*place.path, Step(block, at, "&"))
        start(shared, words, environment, replace(place, path=path), depth + 1)


def _srun(shared: Shared, words: Sequence[Text], environment: Environment, place: Place, depth: int) -> _Following:
    found, at = slurm.OPTIONS.read(words[1:])
    options = dict(found)
    if "multi-prog" in options:
        shared.found.note("what a file of --multi-prog starts is not looked at", options["multi-prog"])
        return None
    command = words[1 + at :]
    if not command or depth > _DEEPEST:
        return None
    copies, left_out = slurm.step(options, shared.allocation, words[0], shared.nodes)
    if left_out:
        shared.found.note(left_out, words[0])
    exported = options.get("export")
    if exported is not None and exported.sure:
        for item in re.finditer(r"([A-Za-z_]\w*)=([^,]*)", exported.text):
            environment[item[1]] = exported.part(item.start(2), item.end(2))
    image = options.get("container-image")
    block = shared.found.block()
    environment = {name: value for name, value in environment.items() if name not in slurm.OF_TASKS}
    for at, copy in enumerate(copies):
        path = (*place.path, Step(block, at, "&")) if len(copies) > 1 else place.path
        there = replace(place, host=copy.host, node=copy.node, path=path)
        if image is not None and image.sure:
            there = replace(there, image=image.text.replace("#", "/"))
        start(shared, command, environment | copy.environment, there, depth + 1)
    return None


def _mpirun(shared: Shared, words: Sequence[Text], environment: Environment, place: Place, depth: int) -> _Following:
    rest = list(words[1:])
    for at, word in reversed(list(enumerate(rest))):
        if word.text.lstrip("-") in _MPI_PAIRS and word.text.startswith("-"):
            if word.text.lstrip("-") in ("genv", "env") and at + 2 < len(rest):
                environment[rest[at + 1].text] = rest[at + 2]
            del rest[at : at + 3]
    found, at = _MPI.read(rest)
    command = rest[at:]
    options = {_MPI.names.get(name, name): value for name, value in found}
    for name, value in found:
        if name == "x" and "=" in value.text:
            key, _, _ = value.text.partition("=")
            environment[key] = value.part(len(key) + 1, len(value.text))
    tasks, per_node = (
        _count(options.get("np")),
        _count(options.get("npernode") or options.get("ppn") or options.get("npersocket")),
    )
    mapped = re.fullmatch(r"ppr:(\d{1,5}):node.*", options["map-by"].text) if "map-by" in options else None
    per_node = int(mapped[1]) if mapped else per_node
    hosts = options.get("host") or options.get("hosts")
    names = [part.partition(":") for part in hosts.text.split(",")] if hosts is not None and hosts.sure else []
    if per_node is None and names and all(slots.isdecimal() for _, _, slots in names):
        per_node = int(names[0][2])
    elif per_node is None and names:
        per_node = -(-tasks // len(names)) if tasks else 1
    tasks = tasks or (per_node or 1) * (len(names) or 1)
    if tasks > slurm.MOST:
        shared.found.note(
            f"{tasks} processes are more than rankbind writes out: the first {slurm.MOST} are looked at", words[0]
        )
    places = []
    for rank in range(min(tasks, slurm.MOST)):
        node, local = divmod(rank, per_node) if per_node else (None, rank)
        known = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": tasks, "OMPI_COMM_WORLD_LOCAL_RANK": local}
        host = place.host
        if node is not None and (node or names or tasks > (per_node or tasks)):
            host = names[node][0] if node < len(names) else slurm.node_name(node)
        values = {name: words[0].saying(str(value)) for name, value in known.items()}
        places.append((environment | values, replace(place, host=host, node=node)))
    if depth <= _DEEPEST:
        _each(shared, command, places, depth)
    return None


def _count(text: Text | None) -> int | None:
    known = text is not None and text.sure and text.text.isdecimal() and len(text.text) < 8
    return int(text.text) if known and text is not None and int(text.text) else None


def _container(shared: Shared, words: Sequence[Text], environment: Environment, place: Place, depth: int) -> _Following:
    """``docker run`` and ``docker exec``."""
    rest = list(words[1:])
    if rest and rest[0].text == "container":
        rest = rest[1:]
    if rest and rest[0].text in ("stop", "kill", "rm"):
        shared.found.ended(place.path)
    if not rest or rest[0].text not in ("run", "exec", "create"):
        return None
    verb = rest[0].text
    found, at = (_EXEC if verb == "exec" else _RUN).read(rest[1:])
    image, command = rest[1 + at : 2 + at], rest[2 + at :]
    if not image:
        return None
    outer, inner = environment, Environment()
    if {"d", "detach"} & {name for name, _ in found}:
        place = _behind(shared, place)
    for name, value in found:
        if name == "env":
            key, equals, _ = value.text.partition("=")
            if equals:
                inner[key] = value.part(len(key) + 1, len(value.text))
            elif key in outer:
                inner[key] = outer[key]
    if verb == "exec":
        return command, inner, replace(place, host=shared.containers.get(image[0].text, image[0].text))
    options = dict(found)
    called = options["name"].text if "name" in options else None
    network = options.get("network") or options.get("net")
    host: str | None = called or f"the container of {image[0].document.file}:{words[0].span.line}"
    if network is not None:
        mode, _, other = network.text.partition(":")
        if mode == "host":
            host = place.host
        elif mode == "container":
            host = shared.containers.get(other, other)
    if called is not None:
        shared.containers[called] = host
    published = []
    if network is None or network.text.partition(":")[0] not in ("host", "container"):
        for option, value in found:
            if option == "publish":
                published += publications(value, place.host)
    entrypoint = options.get("entrypoint")
    there = replace(
        place,
        host=host,
        image=image[0].text,
        name=called or place.name,
        published=(*place.published, *published),
    )
    if entrypoint is not None and entrypoint.text:
        return [entrypoint, *command], inner, there
    contained(shared, command, inner, replace(there, bare=image[0].span), depth)
    return None


def contained(shared: Shared, words: Sequence[Text], environment: Mapping[str, Text], place: Place, depth: int) -> None:
    """Enter what a container starts; without words it is the image's entrypoint alone."""
    if words:
        start(shared, words, environment, place, depth + 1)
    elif place.bare is not None:
        shared.found.add(words, environment, place)


def publications(text: Text, host: str | None) -> list[Publication]:
    """``[ADDRESS:]PORT:TARGET[/tcp]``, also of ranges of ports; none for what docker chooses."""
    found = re.fullmatch(
        r"(?:(?P<address>\[[^\]]*\]|[^:]*):)?(?P<low>\d{1,5})(?:-(?P<high>\d{1,5}))?:(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?(?:/(?P<protocol>\w+))?",
        text.text,
    )
    if not found or not text.sure or (found["protocol"] or "tcp") != "tcp":
        return []
    low, first = int(found["low"]), int(found["first"])
    high, last = int(found["high"] or low), int(found["last"] or first)
    if high >= _MAX_PORTS or last >= _MAX_PORTS or high - low != last - first or high < low or low == 0:
        return []
    address = (found["address"] or "").strip("[]")
    return [Publication(address, low + step, first + step, host, text.span) for step in range(high - low + 1)]


def _behind(shared: Shared, place: Place) -> Place:
    """The same place, for what nobody waits for."""
    return replace(place, path=(*place.path, Step(shared.found.block(), 0, "&")))


def _ssh(shared: Shared, words: Sequence[Text], environment: Environment, place: Place, depth: int) -> _Following:
    del environment
    _, at = _SSH.read(words[1:])
    rest = words[1 + at :]
    # Options may stand behind the host as well.
    host, command = rest[:1], list(rest[1:])
    _, more = _SSH.read(command) if command and command[0].text.startswith("-") else ([], 0)
    command = command[more:]
    if not host or not command or depth > _DEEPEST:
        return None
    name = host[0].text.rpartition("@")[2]
    # ssh hands its words over as one line, to a shell.
    blank = words[0].saying(" ")
    line = joined([part for word in command for part in (word, blank)], command[0])
    there = replace(place, host=name, name=None if _by_line(place) else place.name)
    if line.opaque:
        return None
    Shell(shared, Variables(positional=[]), there, depth + 1).run(line.part(0, max(len(line.text) - 1, 0)))
    return None


def _apptainer(shared: Shared, words: Sequence[Text], environment: Environment, place: Place, depth: int) -> _Following:
    rest = words[1:]
    if not rest or rest[0].text not in ("exec", "run"):
        return None
    found, at = _APPTAINER.read(rest[1:])
    for name, value in found:
        if name == "env":
            environment |= {
                item[1]: value.part(item.start(2), item.end(2))
                for item in re.finditer(r"([A-Za-z_]\w*)=([^,]*)", value.text)
            }
    image, command = rest[1 + at : 2 + at], rest[2 + at :]
    if not image:
        return None
    there = replace(place, image=image[0].text.removeprefix("docker://"))
    if rest[0].text == "run":
        contained(shared, command, environment, replace(there, bare=image[0].span), depth)
        return None
    return command, environment, there


def _runner(options: Options, *verbs: str) -> Callable[..., _Following]:
    """``uv run COMMAND`` and its kin."""

    def follow(shared: Shared, words: Sequence[Text], environment: Environment, place: Place, depth: int) -> _Following:
        if [word.text for word in words[1 : 1 + len(verbs)]] != [*verbs]:
            return None
        _, at = options.read(words[1 + len(verbs) :])
        return words[1 + len(verbs) + at :], environment, place

    return follow


def _tmux(shared: Shared, words: Sequence[Text], environment: Environment, place: Place, depth: int) -> _Following:
    """``tmux new-session -d -s NAME COMMAND`` and ``tmux send-keys -t NAME COMMAND Enter``."""
    rest = words[1:]
    if not rest or rest[0].text not in (
        "new-session",
        "new",
        "new-window",
        "neww",
        "split-window",
        "send-keys",
        "send",
    ):
        return None
    _, at = _TMUX.read(rest[1:])
    command = [word for word in rest[1 + at :] if word.text not in ("Enter", "C-m")]
    if not command or depth > _DEEPEST:
        return None
    place = _behind(shared, place)
    if len(command) > 1:
        return command, environment, place
    Shell(shared, Variables(dict(environment), set(environment)), place, depth + 1).run(command[0])
    return None


_STARTERS: dict[str, Callable[[Shared, Sequence[Text], Environment, Place, int], _Following]] = {
    "srun": _srun,
    "mpirun": _mpirun,
    "mpiexec": _mpirun,
    "orterun": _mpirun,
    "docker": _container,
    "podman": _container,
    "nerdctl": _container,
    "ssh": _ssh,
    "apptainer": _apptainer,
    "singularity": _apptainer,
    "uv": _runner(_UV, "run"),
    "poetry": _runner(Options(), "run"),
    "conda": _runner(_CONDA, "run"),
    "mamba": _runner(_CONDA, "run"),
    "micromamba": _runner(_CONDA, "run"),
    "nsys": _runner(Options(), "profile"),
    "tmux": _tmux,
}
