"""Network interfaces of this host, as libzmq lets them stand for an address: ``tcp://eth0:5557``."""

from __future__ import annotations

import fcntl
import os
import socket

_SIOCGIFADDR, _LONGEST = 0x8915, 15
"""netdevice(7); IFNAMSIZ counts the closing NUL."""


def is_interface(name: str) -> bool:
    """Whether there is one of that name."""
    return any(name == each for _, each in socket.if_nameindex())


def ipv4_of(name: str) -> str | None:
    """The IPv4 address of an interface; None if there is no such one, or it has none."""
    try:
        encoded = os.fsencode(name)
        if len(encoded) > _LONGEST:
            return None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            answer = fcntl.ioctl(asked, _SIOCGIFADDR, encoded.ljust(40, b"\0"))
    except (OSError, UnicodeError):
        return None
    return socket.inet_ntoa(answer[20:24])
