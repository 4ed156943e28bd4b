"""The rules of a line and the bounds of placing, from the settings.

Owns: which setting is which rule, and in which unit.
Never: reads settings (they are given), applies one (`policy.claiming`, `lua/admit.lua`).
"""

from infra.config import Settings
from scheduler.admitting import Limits
from scheduler.policy.claiming import Rules


def rules_of(settings: Settings) -> Rules:
    """What a claim obeys, and a forecast reckons with."""
    return Rules(
        ageing_ms=settings.ageing_s * 1000,
        half_life_ms=settings.fair_half_life_s * 1000,
        urgent_share=settings.urgent_share,
        return_hold_ms=settings.return_hold_s * 1000,
    )


def limits_of(settings: Settings) -> Limits:
    """The bounds within which a job is placed."""
    return Limits(
        queue=settings.queue_limit,
        home_ms=int(settings.home_lifetime_s * 1000),
        move_margin_ms=int(settings.move_margin_s * 1000),
        urgent_share=settings.urgent_share,
    )
