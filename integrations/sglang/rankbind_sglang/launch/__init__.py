"""SGLang's launch commands, read as if they were topology files.

rules       what differs from release to release: a table of facts
arguments   a command taken apart: options, `--config` files, variables
sizes       the parallel sizes that follow, what the engine refuses of them, which node starts which ranks
deployment  the commands of one launch, and what they have in common
kv_events   the KV event publisher's endpoints: who binds, who connects, what is advertised
sites       the ranks that own what exists once for each KV cache, stage or server
sockets     everything that listens
reader      all of it together: the engine that rankbind's entry point names
"""

from rankbind_sglang.launch.reader import ENGINE

__all__ = ["ENGINE"]
