"""One server a node: the first local rank of each, and nodes share no ports."""

import os

from filelock import FileLock
from prometheus_client import start_http_server

LOCAL_RANK = int(os.environ["LOCAL_RANK"])


def start_node_exporter(port: int) -> None:
    if LOCAL_RANK == 0:
        start_http_server(port)


def debug_port(base: int) -> int:
    return base + LOCAL_RANK


def download(snapshot, target: str) -> str:
    with FileLock("/tmp/download.lock"):
        return snapshot(target)
