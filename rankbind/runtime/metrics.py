"""What is claimed on this host, for Prometheus (prometheus-client, the extra ``metrics``).

    registry.register(RankbindCollector())      beside what an engine exposes itself
    with serving(9464): ...                     or on a port of its own

Names of metrics and labels are addresses, too (field.md, R26): two exporters that show the same claims are two sources
of one series. `rankbind.exporter` is the one of a deployment on a host. It is apart from an engine's multiprocess mode:
its registry is its own. But prometheus_client looks for ``PROMETHEUS_MULTIPROC_DIR`` when it is first imported, so an
engine that sets that in Python has to have done so before anything here is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankbind.errors import RankbindError
from rankbind.runtime import registry
from rankbind.runtime.ports import reserve

if TYPE_CHECKING:
    from prometheus_client import Metric

_CLAIM = ("deployment", "resource", "group")
_HOLDER = (*_CLAIM, "rank", "host", "state")


class RankbindCollector:
    """Exposes the claims of this host's runtime directory, as they are at each scrape. It never raises.

    | metric | what |
    |---|---|
    | rankbind_registry_readable | 1, or 0 if the runtime directory cannot be used: there is nothing else then |
    | rankbind_claim_held | 1 while somebody holds it (alive, paused, or seen by the lock alone), else 0; by state |
    | rankbind_claim_token | the fencing token |
    | rankbind_claim_takeovers_total | how many owners died without releasing |
    | rankbind_claim_since_seconds | when it was claimed, in seconds since 1970 |

    The group is one label, ``attn_dp=0``, whatever axes there are.

    Args:
        deployment: only its claims; left out, those of all.
    """

    def __init__(self, deployment: str | None = None) -> None:
        self._deployment = deployment

    def describe(self) -> Iterable[Metric]:
        """The metrics without values: registering looks at nothing."""
        return self._families(None)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        try:
            found = registry.entries()
        except (RankbindError, OSError):
            return self._families(None)[:1]
        return self._families([entry for entry in found if entry.called(None, self._deployment)])

    def _families(self, found: list[registry.Entry] | None) -> list[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        readable = GaugeMetricFamily("rankbind_registry_readable", "Whether the runtime directory can be used.")
        readable.add_metric([], float(found is not None))
        held = GaugeMetricFamily("rankbind_claim_held", "Whether somebody holds the claim.", labels=_HOLDER)
        token = GaugeMetricFamily("rankbind_claim_token", "The fencing token of the claim.", labels=_CLAIM)
        takeovers = CounterMetricFamily(
            "rankbind_claim_takeovers", "Owners that died without releasing the claim.", labels=_CLAIM
        )
        since = GaugeMetricFamily(
            "rankbind_claim_since_seconds", "When it was claimed, in seconds since 1970.", labels=_CLAIM
        )
        told = set()
        for entry in found or ():
            read, key = entry.record, entry.key
            if key in told:
                # A record that was copied: one series twice would cost the whole scrape.
                continue
            told.add(key)
            group = ",".join(f"{axis}={index}" for axis, index in key.group.items())
            claim = [_printable(label) for label in (key.deployment, key.resource, group)]
            rank = "" if read is None or read.rank is None else str(read.rank)
            holder = [*claim, rank, _printable("" if read is None else read.host), entry.state]
            held.add_metric(holder, float(bool(entry.locked)))
            if read is not None:
                # As a double, which holds microseconds since 1970 exactly until the year 2255.
                token.add_metric(claim, float(read.token))
                takeovers.add_metric(claim, float(read.takeovers))
                since.add_metric(claim, float(read.since))
        return [readable, held, token, takeovers, since]


@contextmanager
def serving(port: int = 0, address: str = "0.0.0.0", deployment: str | None = None) -> Iterator[str]:
    """Serve the claims over HTTP inside the block, in a thread; gives what is bound: ``tcp://0.0.0.0:9464``.

    Args:
        port: 0 for one that the kernel picks.
        deployment: only its claims; left out, those of all.

    Raises:
        ImportError: there is no prometheus-client.
        PortError: it cannot be bound. It is an OSError.
    """
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
        from prometheus_client.exposition import ThreadingWSGIServer
    except ImportError as error:
        raise ImportError("metrics need prometheus-client: pip install 'rankbind[metrics]'") from error
    from threading import Thread
    from wsgiref.simple_server import WSGIRequestHandler

    class Silent(WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    own = CollectorRegistry()
    own.register(RankbindCollector(deployment))
    # Not start_http_server(): it asks the resolver for this host's name, which can take seconds (kernel.md).
    with reserve(address, port) as held, ThreadingWSGIServer(("", 0), Silent, bind_and_activate=False) as server:
        held.bind_server(server)
        server.set_app(make_wsgi_app(own))
        thread = Thread(target=server.serve_forever, daemon=True, name="rankbind-metrics")
        thread.start()
        try:
            yield str(held.endpoint)
        finally:
            server.shutdown()
            thread.join()


def _printable(label: str) -> str:
    return label.encode(errors="replace").decode()
