"""rankbind: say once, in the terms of the topology, who owns a resource; everything else follows.

The map of this package; each imports only from those before it:

    site       where in somebody's code rankbind was called
    topology   ranks on axes, views, hosts              \
    scope      who owns                                  |  the model: pure values,
    template   text with arithmetic over coordinates     |  the standard library alone
    endpoint   where, and what collides                  |
    resource   what, and the job it belongs to          /
    source     where in a file a value stands
    python     where Python code stands, and which files a folder has of it
    config     the topology file
    launcher   what torchrun, SLURM, Open MPI, a DeviceMesh and our own variables say of this process
    identity   who am I, when all of them are heard
    runtime    claims, elections, ports, and who holds what: a package of its own
    court      where it is decided who holds a resource
    tenure     what this process has of it
    once       making a thing once for each identity, and tearing it down
    singleton  the decorator
    exporter   the claims of a host for Prometheus, itself declared so
    check      findings and rules, a module each family
    rehearse   a topology tried with real processes and sockets
    audit      gates about ranks in code, read and never run
    report     all of it as text and json
    cli        the command
"""

from __future__ import annotations

from rankbind.endpoint import Endpoint, overlaps
from rankbind.errors import ClaimedError, ClaimError, IdentityError, RankbindError
from rankbind.identity import Identity, identity, init, use
from rankbind.once import current_claim, release_all, release_all_async
from rankbind.runtime.claim import Claim, claim
from rankbind.scope import Gate, Scope
from rankbind.singleton import singleton_per
from rankbind.tenure import Takeover
from rankbind.topology import Host, Topology, View
from rankbind.version import __version__

__all__ = [
    "Claim",
    "ClaimError",
    "ClaimedError",
    "Endpoint",
    "Gate",
    "Host",
    "Identity",
    "IdentityError",
    "RankbindError",
    "Scope",
    "Takeover",
    "Topology",
    "View",
    "__version__",
    "claim",
    "current_claim",
    "identity",
    "init",
    "overlaps",
    "release_all",
    "release_all_async",
    "singleton_per",
    "use",
]
