"""How Hypothesis runs here.

Owns: the profile of the API's property tests.
Never: a limit on time; a busy machine must not fail a test.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("no-clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no-clock")
