"""The settings that a claim obeys, in its units."""

import pytest

from infra.config import Settings
from scheduler.policy.claiming import Rules
from scheduler.rules import rules_of

pytestmark = pytest.mark.unit


def test_each_rule_is_its_setting_in_milliseconds() -> None:
    settings = Settings(ageing_s=7, fair_half_life_s=60, urgent_share=0.5, return_hold_s=1.5)
    assert rules_of(settings) == Rules(ageing_ms=7000, half_life_ms=60_000, urgent_share=0.5, return_hold_ms=1500)


def test_what_is_not_set_is_what_the_policy_takes_for_usual() -> None:
    assert rules_of(Settings()) == Rules()
