"""What several tests share. Importing it sets hypothesis up for machines of any speed."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rankbind", deadline=None, max_examples=150, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rankbind")
