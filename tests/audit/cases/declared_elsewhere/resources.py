"""What exists once in each replica."""

import rankbind
from prometheus_client import start_http_server

per_replica = rankbind.singleton_per(group=("pp", "cp", "tp"))


@per_replica
def exporter(port: int):
    server, _ = start_http_server(port)
    return server
