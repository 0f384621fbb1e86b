"""rankbind: say once, in the terms of the topology, who owns a resource; everything else follows.

The map of this package; each imports only from those before it:

    topology   ranks on axes, views, hosts              \
    scope      who owns                                  |  the model: pure values,
    template   text with arithmetic over coordinates     |  the standard library alone
    endpoint   where, and what collides                  |
    resource   what, and the job it belongs to          /
    source     where in a file a value stands
    config     the topology file
    launcher   what torchrun, SLURM, Open MPI, a DeviceMesh and our own variables say of this process
    identity   who am I, when all of them are heard
    once       making a thing once for each identity, and tearing it down
    singleton  the decorator
    check      findings and rules, a module each family
    report     findings as text and json
    cli        the command
"""

from __future__ import annotations

from rankbind.endpoint import Endpoint, overlaps
from rankbind.errors import IdentityError, RankbindError
from rankbind.identity import Identity, identity, init, use
from rankbind.once import release_all, release_all_async
from rankbind.scope import Gate, Scope
from rankbind.singleton import singleton_per
from rankbind.topology import Host, Topology, View

__version__ = "0.1.0"

__all__ = [
    "Endpoint",
    "Gate",
    "Host",
    "Identity",
    "IdentityError",
    "RankbindError",
    "Scope",
    "Topology",
    "View",
    "__version__",
    "identity",
    "init",
    "overlaps",
    "release_all",
    "release_all_async",
    "singleton_per",
    "use",
]
