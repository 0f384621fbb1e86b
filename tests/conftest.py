"""Sets hypothesis up: for machines of any speed, and with the same examples in every CI run of one commit.

Gives the session, each worker of xdist its own, a runtime directory that is removed at its end: no test touches the
claims of whoever runs it, nor sees theirs.
"""

import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rankbind",
    deadline=None,
    max_examples=int(os.environ.get("RANKBIND_EXAMPLES", "150")),
    print_blob=True,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rankbind")

# Short, as there are sockets in it. Child processes inherit it; forked ones must leave it to us.
_OWNER, _DIRECTORY = os.getpid(), tempfile.mkdtemp(prefix="rankbind-test-", dir="/tmp")
os.environ["RANKBIND_DIR"] = _DIRECTORY


def pytest_unconfigure() -> None:
    if os.getpid() == _OWNER:
        shutil.rmtree(_DIRECTORY, ignore_errors=True)
