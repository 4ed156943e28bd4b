"""Which waiting jobs a free slot is kept from, because of what it or another free slot holds.

Owns: what a slot's cache is worth waiting for, and who may push one out.
Never: the order of a line (`claiming`), or which slot is taken in the end (`eviction`).

With two or three living conversations a slot, a slot that is given away at once is an agent's that is back from its
tool in seconds, and then its whole context is prefilled anew. So a conversation that is expected back, or that waits
in this very line, keeps its slot from others until one of them has waited, its own prefill included, for WORTH times
the prefill that it costs to push the cheapest out: as with renting skis, neither side ever loses more than a multiple
of what it could have had. It is kept from no job of a more urgent level, and from none that waited LONGEST_STEPS of
ageing, or as many as make its own level the first if these are fewer.
"""

from collections.abc import Callable, Sequence

from scheduler.contract import StopReason
from scheduler.policy.line import Cached, Line, Rules, Waiting

WORTH = 2.0
LONGEST_STEPS = 2


def return_hold_ms(usual_gap_ms: float | None, rules: Rules) -> float:
    """How long a slot is kept for an agent in a tool call; `usual_gap_ms` is None until one has been seen."""
    return rules.return_hold_ms if usual_gap_ms is None else min(rules.return_hold_ms, 2.0 * usual_gap_ms)


def expected_for_ms(
    stop_reason: StopReason | None, usual_gap_ms: float | None, idle_ms: float, prefill_ms: float, rules: Rules
) -> float:
    """For how long a conversation keeps its slot that has had its last answer `idle_ms` ago; 0 if it does not.

    An empty slot costs time, too: it is kept for less time than the prefill takes, or not at all.
    """
    hold_ms = return_hold_ms(usual_gap_ms, rules)
    if stop_reason is not StopReason.TOOL_USE or hold_ms >= prefill_ms:
        return 0.0
    return max(0.0, hold_ms - idle_ms)


def longest_wait_ms(level: int, rules: Rules) -> float:
    """Who has waited so long takes a slot, even one that is kept for an agent in a tool call."""
    return rules.ageing_ms * min(LONGEST_STEPS, level + 1)


def barred_ms(line: Line, rules: Rules) -> Callable[[Waiting], float]:
    """For how long at most each job of the line is barred from the free slots; 0: it is not."""
    free = line.slots - len(line.running)
    running = {one.conversation for one in line.running}
    coming = {job.conversation for job in line.waiting}
    here = [one for one in line.cached if one.conversation not in running]
    living = [one for one in here if one.left_ms > 0.0 or one.conversation in coming]
    cached = {one.conversation for one in here}

    def barred(job: Waiting) -> float:
        guards = [one for one in living if one.level <= job.level]
        if len(guards) < max(1, free) or job.conversation in cached:
            return 0.0
        return _left_ms(job, guards, line.now_ms, rules)

    return barred


def _left_ms(job: Waiting, guards: Sequence[Cached], now_ms: float, rules: Rules) -> float:
    waited_ms = now_ms - job.arrival_ms
    worth_ms = WORTH * min(one.prefill_ms for one in guards) - job.prefill_ms
    own_ms = min(worth_ms, longest_wait_ms(job.level, rules)) - waited_ms
    if own_ms <= 0.0:
        return 0.0
    return min([own_ms, *(one.left_ms for one in guards if one.left_ms > 0.0)])
