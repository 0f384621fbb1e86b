"""A network namespace for each host, all on one bridge: network_namespaces(7), user_namespaces(7), veth(4).

Made in a user namespace of its own, so that it takes no privilege where the kernel lets users have these. It is gone
with the last process in it. The namespace of the bridge is that of whoever is on none of the hosts.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path

from rankbind.errors import NetworkError

INTERFACE = "eth0"
"""What the link of a host is called there."""

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_OWN = "/proc/thread-self/ns/net"


class Network:
    """The namespaces. Only a process of one thread can make it; it is then in the namespace of the bridge.

    Args:
        hosts: for each host its addresses, besides its first: that of `address`.
        network: IPv4, of 16 bits or more.

    Raises:
        NetworkError: the kernel, or the lack of iproute2, does not let it be made.
    """

    def __init__(self, hosts: Sequence[Sequence[str]], network: str) -> None:
        if shutil.which("ip") is None:
            raise NetworkError("there is no ip command (iproute2)")
        _unshare()
        self._bridge = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        self._hosts: list[int] = []
        length = ip_network(network).prefixlen
        here = ["link set lo up", "link add bridge type bridge", "link set bridge up"]
        here += [f"addr add {address(network, None)}/{length} dev bridge", "route add default dev bridge"]
        _ip(here)
        for node, others in enumerate(hosts):
            _call("unshare", _CLONE_NEWNET)
            self._hosts.append(os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC))
            self.enter(None)
            # From within the host: there is no other way to say which namespace the link's near end is for.
            _ip(
                [
                    "link set lo up",
                    f"link add {INTERFACE} type veth peer name host{node} netns {os.getpid()}",
                    f"link set {INTERFACE} up",
                    f"addr add {address(network, node)}/{length} dev {INTERFACE}",
                    *(f"addr add {other}/32 dev {INTERFACE}" for other in others if ":" not in other),
                    # Whatever address a host was given is found by asking on the bridge.
                    f"route add default dev {INTERFACE}",
                ],
                self._hosts[-1],
            )
            six = [f"-6 addr add {other}/128 dev {INTERFACE} nodad" for other in others if ":" in other]
            for line in (*six, f"-6 route add default dev {INTERFACE}") if six else ():
                _ip([line.removeprefix("-6 ")], self._hosts[-1], "-6")
        _ip([f"link set host{node} master bridge up" for node in range(len(hosts))])

    def enter(self, node: int | None) -> None:
        """Be on a host; None: on the bridge."""
        _call("setns", self._bridge if node is None else self._hosts[node], _CLONE_NEWNET)


def address(network: str, node: int | None) -> str:
    """The first address of a host; None: that of the bridge."""
    found = ip_network(network)
    return str(found[node + 1] if node is not None else found[-2])


def free_network(taken: Sequence[str], hosts: int) -> str:
    """A network in which none of `taken` is, large enough for so many hosts."""
    addresses = [ip_address(each) for each in taken]
    # The first is meant for measuring networks (RFC 2544) and so least likely to be somebody's.
    for candidate in ("198.18.0.0/15", "10.0.0.0/8", "172.16.0.0/12"):
        network = ip_network(candidate)
        if network.num_addresses > hosts + 2 and not any(each in network for each in addresses):
            return candidate
    raise NetworkError(f"no private network is left for {hosts} hosts")


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/thread-self", name).write_text(text)
    except OSError as error:
        raise NetworkError(f"this user may not make network namespaces: {error.strerror}") from None


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(lines: Sequence[str], namespace: int | None = None, *options: str) -> None:
    """Run commands of ip(8), in another namespace if one is given."""

    def there() -> None:
        if namespace is not None:
            _call("setns", namespace, _CLONE_NEWNET)

    done = subprocess.run(
        ["ip", *options, "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        preexec_fn=there,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise NetworkError(f"ip cannot set the links up: {said[0]}")
