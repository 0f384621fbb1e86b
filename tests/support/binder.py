"""A process that binds what it is told: one JSON command a line on stdin, one answer a line on stdout.

    {"bind": ["tcp://*:20000"], "ipv6": false, "v6only": false, "plain": false}   an errno for each, 0 if bound
    {"send": "ipc://name", "text": "x"}                                           0
    {"receive": 50}                                     what came within so many ms on any of the bound sockets
    {"close": true}                                                               0

It ends when stdin does. libzmq sockets are PULL; a plain one is a listening socket of Python's.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import zmq


class Binder:
    def __init__(self) -> None:
        self.context = zmq.Context()
        self.bound: list[zmq.Socket[bytes]] = []
        self.others: list[Any] = []

    def bind(self, endpoint: str, ipv6: bool, v6only: bool, plain: bool) -> int:
        try:
            if plain:
                self.listen(endpoint, v6only)
                return 0
            pull = self.context.socket(zmq.PULL)
            pull.linger = 0
            pull.ipv6 = ipv6
            self.bound.append(pull)
            pull.bind(endpoint)
        except OSError as error:  # ZMQError is none, but has an errno too
            return error.errno or -1
        except zmq.ZMQError as error:
            self.bound.pop().close()
            return error.errno
        return 0

    def listen(self, endpoint: str, v6only: bool) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        plain = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.others.append(plain)
        if v6only:
            plain.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        plain.bind((host.strip("[]"), int(port)))
        plain.listen()

    def send(self, endpoint: str, text: str) -> None:
        push = self.context.socket(zmq.PUSH)
        push.linger = 0
        self.others.append(push)
        push.connect(endpoint)
        push.send_string(text)

    def receive(self, milliseconds: int) -> list[str]:
        poller = zmq.Poller()
        for pull in self.bound:
            poller.register(pull, zmq.POLLIN)
        return [pull.recv_string() for pull, _ in poller.poll(milliseconds)]

    def close(self) -> None:
        for each in (*self.bound, *self.others):
            each.close()
        self.bound, self.others = [], []

    def answer(self, command: dict[str, Any]) -> Any:
        if "bind" in command:
            options = {name: command.get(name, False) for name in ("ipv6", "v6only", "plain")}
            return [self.bind(endpoint, **options) for endpoint in command["bind"]]
        if "send" in command:
            return self.send(command["send"], command["text"])
        if "receive" in command:
            return self.receive(command["receive"])
        return self.close()


def main() -> None:
    binder = Binder()
    for line in sys.stdin:
        print(json.dumps(binder.answer(json.loads(line))), flush=True)
    binder.close()
    binder.context.term()


if __name__ == "__main__":
    main()
