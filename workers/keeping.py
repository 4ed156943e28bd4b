"""What the free slots hold, as a claim wants to know it.

Owns: turning the slot table's books into what `scheduler.policy.keeping` decides on.
Never: decides who has to wait, takes a slot.
"""

from scheduler.policy.keeping import expected_for_ms
from scheduler.policy.line import Cached, Rules
from workers.caches import Caches
from workers.meter import Meter
from workers.slots import Held


def worth_keeping(caches: Caches | None, rules: Rules) -> tuple[Cached, ...]:
    """What each free slot holds and the prefill, at measured speed, that its loss would cost; nothing before the engine
    is ready, or where the rules keep no slot for who comes back."""
    if caches is None or not rules.return_hold_ms:
        return ()
    return tuple(_cached(held, idle_s, caches.meter, rules) for held, idle_s in caches.table.idle())


def _cached(held: Held, idle_s: float, meter: Meter, rules: Rules) -> Cached:
    prefill_ms = meter.prefill_s(held.tokens) * 1000
    gap_ms = held.gap_s * 1000 if held.gap_s is not None else None
    left_ms = expected_for_ms(held.stop_reason, gap_ms, idle_s * 1000, prefill_ms, rules)
    return Cached(held.conversation, held.level, prefill_ms, left_ms)
