"""Sets hypothesis up: for machines of any speed, and with the same examples in every CI run of one commit."""

import os

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
