"""What placing a job is given, and the bounds on it."""

import pytest

from infra.config import Settings
from scheduler.admitting import Limits, limits_of

pytestmark = pytest.mark.unit


def test_placement_is_bound_by_the_settings() -> None:
    settings = Settings(queue_limit=7, home_lifetime_s=60, move_margin_s=2.5, urgent_share=0.5)
    assert limits_of(settings) == Limits(queue=7, home_ms=60_000, move_margin_ms=2500, urgent_share=0.5)
