"""The next port that is free: whoever comes second takes another."""

import socket


def bind_first_free(base: int, tries: int = 64) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    for port in range(base, base + tries):
        try:
            listener.bind(("127.0.0.1", port))
            return listener
        except OSError:
            continue
    raise RuntimeError(f"no free port from {base} on")


class Channel:
    def __init__(self, args, tp_rank: int, pp_rank: int):
        self.name = f"pp{pp_rank}-tp{tp_rank}"
        self.listener = bind_first_free(args.channel_port)
        self.listener.listen()
