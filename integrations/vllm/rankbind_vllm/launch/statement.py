"""The draft of one deployment being written, and words for who owns what in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankbind.launch.command import Word
from rankbind.launch.draft import Draft
from rankbind_vllm.launch.arguments import Port
from rankbind_vllm.launch.deployment import Deployment, Host
from rankbind_vllm.launch.layout import LOOPBACK, Node

_ODD = re.compile(r"[\s/]")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+\Z")


@dataclass(frozen=True)
class Said:
    """What one node says of a resource: its keys, the words they come from, the port that moves it."""

    keys: Mapping[str, Any]
    words: tuple[Word, ...]
    port: Port | None = None


class Statement:
    """One deployment and its draft."""

    def __init__(self, draft: Draft, deployment: Deployment) -> None:
        self.draft, self.deployment = draft, deployment
        self.head, self.sizes, self.release = deployment.head, deployment.sizes, deployment.release
        self._pcp = {"pcp": 0} if self.release.has("pcp") else {}
        self._moved: dict[Port, list[tuple[str, str]]] = {}

    @property
    def engine(self) -> dict[str, int]:
        """The rank beside each engine core: the first worker of its replica."""
        return {"pp": 0, **self._pcp, "tp": 0}

    @property
    def first(self) -> dict[str, int]:
        """The rank beside the head's own processes."""
        return {"dp": 0, **self.engine}

    @property
    def placed(self) -> bool:
        """Whether the head runs rank 0, beside which its processes are stated."""
        return 0 in self.head.ranks

    def meets(self, address: str) -> bool:
        """Whether everybody can dial `address`; where not, `deployment.check` says so."""
        return len(self.deployment.hosts) == 1 or address not in LOOPBACK

    def dialled(self, host: Host) -> str | None:
        """How others dial a host; None: its name is none that an endpoint can hold."""
        if len(self.deployment.hosts) == 1:
            return "localhost"
        return host.name if _PLAIN.match(host.name) else None

    # Owners that a node has

    def server_rank(self, node: Node) -> Sequence[int]:
        """Beside the front end of a node."""
        return () if node.headless else node.ranks[:1]

    def engine_ranks(self, node: Node) -> Sequence[int]:
        """Beside each of its engine cores."""
        return [index * self.sizes.world for index in node.engines if 0 <= index < self.sizes.dp]

    def front_ranks(self, node: Node) -> Sequence[int]:
        """Beside each of its front ends: under a supervisor there is one for each replica."""
        return self.engine_ranks(node) if node.multi_port else self.server_rank(node)

    # Ports that can be moved

    def moves(self, port: Port, name: str, role: str = "bind") -> None:
        """Note that an address of a resource moves with `port`; where the kernel picks, nothing does."""
        if port.number:
            self._moved.setdefault(port, []).append((name, role))

    @property
    def numbers(self) -> Sequence[int]:
        """Those noted so far, smallest first."""
        return sorted(port.number for port in self._moved)

    def state_knobs(self) -> None:
        """Put what was noted into the draft: what says one port in several commands is turned in all of them."""
        for port, moves in self._moved.items():
            self.draft.knob(port.flag, port.number, *port.words, moves=moves)

    # Resources

    def spread(
        self,
        name: str,
        of: Callable[[Node], Said | None],
        owners: Callable[[Node], Iterable[int]],
        gate: Mapping[str, int] | None = None,
    ) -> None:
        """A resource that each node says for itself: one for all that say the same.

        Args:
            owners: the ranks that own it on a node.
            gate: whom the engine lets through, where every node says the same.
        """
        found: list[tuple[Said, list[int]]] = []
        everybody: list[int] = []
        for node in self.deployment.nodes:
            ranks = list(owners(node))
            everybody += ranks
            said = of(node) if ranks else None
            if said is None:
                continue
            same = next((at for other, at in found if (other.keys, other.port) == (said.keys, said.port)), None)
            if same is None:
                found.append((said, ranks))
            else:
                same.extend(ranks)
        for number, (said, ranks) in enumerate(found):
            owner = dict(gate) if gate is not None and len(ranks) == len(everybody) else {"rank": listed(ranks)}
            called = name if number == 0 else f"{name}-{number + 1}"
            self.draft.resource(called, *said.words, owner=owner, **said.keys)
            if said.port is not None:
                self.moves(said.port, called)


def listed(ranks: Iterable[int]) -> int | list[int]:
    """Ranks as a gate takes them."""
    distinct = sorted(set(ranks))
    return distinct[0] if len(distinct) == 1 else distinct


def escaped(text: str) -> str:
    """A text as a template that is nothing but it."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown.replace("{", "{{").replace("}", "}}")


def tcp(host: str | None, port: object) -> dict[str, Any]:
    """The keys of a TCP listener at a host as people write it; none stands for all addresses.

    It is the engine's own: none of its ZMQ sockets and stores asks who is there.
    """
    host = _ODD.sub("-", host or "")
    if not host:
        return {"bind": f"tcp://*:{port}", "authenticated": False}
    if ":" in host:
        return {"bind": f"tcp://[{escaped(host.strip('[]'))}]:{port}", "ipv6": True, "authenticated": False}
    return {"bind": f"tcp://{escaped(host)}:{port}", "authenticated": False}


def at_home(node: Node, port: object) -> dict[str, Any]:
    """The same at the node's own address, whose spelling is known only where VLLM_HOST_IP says it."""
    host = node.arguments.address_variable("VLLM_HOST_IP", "")
    return tcp(host, port) if host else {"bind": f"tcp://*:{port}"}
