"""The Prometheus exporter of a deployment on a host: a singleton itself.

    from rankbind.exporter import exporter

    exporter(9464)      # in every process; rank 0 of each host serves, the others get None

What it really bound stands in its claim: ``rankbind endpoints rankbind-metrics``.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankbind.once import current_claim
from rankbind.runtime.claim import Claim
from rankbind.runtime.metrics import serving
from rankbind.singleton import singleton_per

NAME = "rankbind-metrics"


@singleton_per(group="host", name=NAME)
def exporter(port: int = 0, address: str = "0.0.0.0") -> Iterator[str]:
    """Serve the claims of this deployment over HTTP until it is released; gives what is bound.

    Two deployments on one host have one each, on ports of their own: none shows what the other one shows.

    Args:
        port: 0 for one that the kernel picks.

    Raises:
        ImportError: there is no prometheus-client.
        PortError: it cannot be bound. It is an OSError.
        ClaimedError: another process of this deployment and host serves already.
    """
    claim = current_claim()
    held = claim if isinstance(claim, Claim) else None
    with serving(port, address, None if held is None else held.key.deployment) as endpoint:
        if held is not None:
            held.update(endpoints={"bind": endpoint})
        yield endpoint
