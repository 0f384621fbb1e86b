"""rankbind: say once, in the terms of the topology, who owns a resource; everything else follows."""

from __future__ import annotations

from rankbind.endpoint import Endpoint, overlaps
from rankbind.errors import RankbindError
from rankbind.scope import Gate, Scope
from rankbind.topology import Host, Topology, View

__version__ = "0.1.0"

__all__ = ["Endpoint", "Gate", "Host", "RankbindError", "Scope", "Topology", "View", "__version__", "overlaps"]
