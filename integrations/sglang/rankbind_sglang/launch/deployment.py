"""The commands of one launch, and what they have in common: nodes, hosts, and the addresses that options say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import ip_address

from rankbind.launch.command import Word
from rankbind.launch.draft import Draft
from rankbind_sglang.launch.arguments import Arguments
from rankbind_sglang.launch.rules import Rules, number
from rankbind_sglang.launch.sizes import Sizes

_PLUGIN = "RANKBIND_SGLANG"
_PLUGINS_SINCE = 12
ANYWHERE = ("0.0.0.0", "::", "*")
"""Hosts that are every address of one's own."""


@dataclass(frozen=True)
class Port:
    """A port, and what to turn to move it.

    Attributes:
        flag: the option or the variable that says it, or says what it is counted from.
        value: what that says.
        words: where; none for a default.
        unknown: whether only the run time knows it, and whatever is counted from it: `number` is 0 then, as if the
            kernel chose one.
    """

    number: int
    flag: str
    value: int
    words: tuple[Word, ...] = ()
    unknown: bool = False

    def plus(self, by: int) -> Port:
        """The port that is so far away, and moves with this one."""
        return self if self.unknown else replace(self, number=self.number + by)


FREE = Port(0, "", 0)
"""Some port that is free: nothing moves it."""


@dataclass(frozen=True)
class Deployment:
    """One launch.

    Attributes:
        nodes: the arguments that each node is started with.
        hosts: the host that each runs on: two that are the same share their ports.
    """

    draft: Draft
    rules: Rules
    sizes: Sizes
    nodes: tuple[Arguments, ...]
    hosts: tuple[str, ...]
    _moves: dict[Port, list[tuple[str, str]]] = field(default_factory=dict)

    @property
    def lead(self) -> Arguments:
        """The arguments of node 0, which starts what there is once."""
        return self.nodes[0]

    @cached_property
    def plugged(self) -> bool:
        """Whether rankbind's plugin is known to be active: then the KV events are gated as they should be."""
        return self.lead.command.variable(_PLUGIN) == "on" and self.patch >= _PLUGINS_SINCE

    @property
    def patch(self) -> int:
        """The last number of the release."""
        return number(self.rules.release)[2]

    @cached_property
    def firsts(self) -> tuple[int | None, ...]:
        """The first rank of each node, beside which its other processes run; None for a node that starts none."""
        return tuple(next(iter(self.sizes.ranks(node)), None) for node in range(len(self.nodes)))

    def beside(self, nodes: Sequence[int]) -> Mapping[str, list[int]]:
        """The gate of what one process of each of `nodes` has."""
        return {"rank": [rank for node in nodes if (rank := self.firsts[node]) is not None]}

    # Ports

    def port(self, option: str, of: Arguments | None = None) -> Port | None:
        """The port that an option says, of node 0 unless it is that of other arguments; None where it says none."""
        a = of or self.lead
        number, words = a.value(option), a.words(option)
        if not a.known(option):
            return self._unknown(a, option, a.untold_of(option))
        return None if number is None else Port(number, option, number, words)

    def variable_port(self, name: str) -> Port | None:
        """The port that a variable says."""
        word = self.lead.command.environment.get(name)
        if word is not None and not word.certain:
            return self._unknown(self.lead, name, word)
        number = self.lead.number(name)
        return None if number is None else Port(number, name, number, self.lead.variable(name))

    @staticmethod
    def _unknown(arguments: Arguments, name: str, word: Word) -> Port:
        """A port that only the run time knows."""
        arguments.unsure(name, word, "taken for a port that nobody else has")
        return Port(0, name, 0, (word,), unknown=True)

    def moves(self, port: Port, resource: str, role: str = "bind") -> None:
        """The addresses of `resource` in that role, or one of them (``probe 2``), are at `port`, or counted from it."""
        if port.value:
            self._moves.setdefault(replace(port, number=port.value), []).append((resource, role))

    def knobs(self) -> None:
        """State what can be turned, once all has been said that moves."""
        for port, moves in self._moves.items():
            self.draft.knob(port.flag, port.value, *port.words, moves=moves)

    # Addresses

    @cached_property
    def rendezvous(self) -> tuple[str, Port] | None:
        """What ``--dist-init-addr`` says; None where it is not given, or no address."""
        text = self.lead.text("--dist-init-addr")
        found = None if text is None else address_of(text)
        if found is None:
            return None
        host, number = found
        return host, Port(number, "--dist-init-addr port", number, self.lead.words("--dist-init-addr"))

    @cached_property
    def outside(self) -> bool:
        """Whether the rendezvous is somebody else's."""
        return bool(self.lead.command.variable("SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"))

    @cached_property
    def public(self) -> str:
        """By what others know the host of node 0, where the HTTP server is."""
        host = self.lead.text("--host") or "127.0.0.1"
        if host not in ANYWHERE and not loopback(host):
            return host
        if self.rendezvous and not loopback(self.rendezvous[0]) and self.rendezvous[0] not in ANYWHERE:
            return self.rendezvous[0]
        if host not in ANYWHERE and len(self.nodes) == 1:
            return host
        # A bare number would be read as an address.
        return f"node-{self.hosts[0]}" if self.hosts[0].isdigit() else self.hosts[0]

    @property
    def addresses(self) -> tuple[str, ...]:
        """What else than its name stands for the host of node 0."""
        known = (self.rendezvous[0] if self.rendezvous else None, self.public)
        usable = (each for each in known if each and not loopback(each) and each not in (*ANYWHERE, self.hosts[0]))
        return tuple(dict.fromkeys(usable))


def address_of(text: str) -> tuple[str, int] | None:
    """``HOST:PORT`` or ``[IPV6]:PORT``, as the engine reads it; None for anything else."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest[1:] if bracket and rest.startswith(":") else ""
    else:
        host, _, port = text.rpartition(":")
        if ":" in host:
            return None
    # What a shell would put there cannot be told, and may look like anything.
    host = host.replace("{", "").replace("}", "")
    if not host or any(char.isspace() or char in "/()`" for char in host):
        host = "node-0" if "$" in text or "`" in text else ""
    return (host, int(port)) if host and port.isdecimal() else None


def loopback(host: str) -> bool:
    """Whether to dial `host` is to stay at home."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def port_of(endpoint: str | None, flag: str, words: tuple[Word, ...]) -> Port:
    """The port in a tcp endpoint; `FREE` where there is none."""
    scheme, _, rest = (endpoint or "").partition("://")
    number = rest.rpartition(":")[2]
    return Port(int(number), flag, int(number), words) if scheme == "tcp" and number.isdecimal() else FREE


def literal(text: str) -> str:
    """The template of a text that has no variables."""
    return text.replace("{", "{{").replace("}", "}}")


def tcp(host: str, port: int | str) -> str:
    """An endpoint at which a process listens or is dialled; `port` may be a template."""
    shown = literal(host)
    return f"tcp://[{shown}]:{port}" if ":" in shown else f"tcp://{shown}:{port}"
