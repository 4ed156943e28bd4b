"""The rules of a line, from the settings.

Owns: which setting is which rule, and in which unit.
Never: reads settings (they are given), applies a rule (`policy.claiming`).
"""

from infra.config import Settings
from scheduler.policy.claiming import Rules


def rules_of(settings: Settings) -> Rules:
    """What a claim obeys, and a forecast reckons with."""
    return Rules(
        ageing_ms=settings.ageing_s * 1000,
        half_life_ms=settings.fair_half_life_s * 1000,
        urgent_share=settings.urgent_share,
        return_hold_ms=settings.return_hold_s * 1000,
    )
