"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A deadline in milliseconds measures how busy the machine is, not whether a property holds.
settings.register_profile("umbel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("umbel")
