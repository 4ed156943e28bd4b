"""Which job of its line a worker takes next.

Owns: the order inside a line (level, ageing, fair share, kind), and the slots that are kept for others.
Never: knows a clock, a store or an engine; times and loads are given.

`lua/claim.lua` says the same where the store decides; a property test holds them equal.

The jobs of a line form pairs of a level and an agent. Each pair offers its best job, and the best pair's is taken:

1. The level counts first. A pair rises one level for each `ageing_ms` that its oldest job has waited, below 0 too, so
   that no newcomer passes one that waited (level + 1) x ageing.
2. Then the service that the key has had lately over its weight, then the agent's: least attained service.
3. Then the arrival of its oldest job, so that equals go first in, first out.

Inside a pair main goes before subagent, side call and warm-up; a job rises one such rank per `ageing_ms`.

Free slots may be kept from a job: for the urgent levels, for agents that have none and are about to be back, and for
conversations whose caches they hold (`keeping`).
"""

import math
from dataclasses import dataclass, replace
from operator import attrgetter

from scheduler.policy.keeping import barred_ms, longest_wait_ms
from scheduler.policy.line import (
    Cached,
    Line,
    Occupied,
    Returning,
    Rules,
    Service,
    Waiting,
    agent_name,
    pair_name,
)
from scheduler.policy.standing import Books, Pair

__all__ = [
    "Cached",
    "Choice",
    "Line",
    "Occupied",
    "Returning",
    "Rules",
    "Service",
    "Taking",
    "Waiting",
    "agent_name",
    "choose",
    "order",
    "pair_name",
]

MOST_URGENT_LEVEL = 2  # levels up to this one may count on the slots that are kept for them


@dataclass(frozen=True, slots=True)
class Choice:
    """The job to take. None with `held_ms` 0: nobody waits; else the free slot is kept for so long at most."""

    job: str | None
    held_ms: float = 0.0


def choose(line: Line, rules: Rules) -> Choice:
    """The job that a free slot takes now."""
    barred = barred_ms(line, rules)
    barred_for = {job.id: barred(job) for job in line.waiting}
    holds = [ms for ms in barred_for.values() if ms]
    able = replace(line, waiting=[job for job in line.waiting if not barred_for[job.id]])
    for pair in sorted(Books(able, rules).pairs, key=attrgetter("rank")):
        kept_ms = _kept_ms(pair, line, rules)
        if kept_ms <= 0.0:
            return Choice(pair.head.id)
        holds.append(kept_ms)
    return Choice(None, min(holds, default=0.0))


def order(line: Line, rules: Rules) -> tuple[Waiting, ...]:
    """All that wait, in the order in which claims will take them if nobody else comes and no time passes."""
    taking, jobs = Taking(line, rules), []
    while (job := taking.take(line.now_ms)) is not None:
        jobs.append(job)
    return tuple(jobs)


class Taking:
    """A line as claims will take it, one job after the other, each charged its expected service.

    Slots that are kept for others are left out of account: no one waits long for these.
    """

    def __init__(self, line: Line, rules: Rules) -> None:
        self._books = Books(line, rules)

    def take(self, now_ms: float) -> Waiting | None:
        """The next job, taken at `now_ms`, which never goes back; None when none is left."""
        books = self._books
        books.go_to(now_ms)
        if not books.pairs:
            return None
        return books.claim(min(books.pairs, key=attrgetter("rank")))


def _kept_ms(pair: Pair, line: Line, rules: Rules) -> float:
    """For how long at most the free slot is kept from this pair; 0: it may have it."""
    if pair.level > MOST_URGENT_LEVEL and line.urgent_until_ms > line.now_ms:
        kept = math.floor(rules.urgent_share * line.slots)
        background = sum(job.level > MOST_URGENT_LEVEL for job in line.running)
        if kept and background >= line.slots - kept:
            return line.urgent_until_ms - line.now_ms
    running = [agent_name(job.key, job.agent) for job in line.running]
    back = [one for one in line.returning if one.until_ms > line.now_ms]
    waiting = [agent_name(job.key, job.agent) for job in line.waiting]
    here = {*running, *waiting, *(agent_name(one.key, one.agent) for one in back)}
    if running.count(pair.agent) < math.ceil(line.slots / len(here)):
        return 0.0
    # Its share is reached: it leaves a slot for each that would come before it, or beside it, and has none.
    awaited = [one for one in back if one.level <= pair.level and agent_name(one.key, one.agent) not in running]
    count = len({agent_name(one.key, one.agent) for one in awaited})
    if not count or line.slots - len(running) - 1 >= count:
        return 0.0
    left_ms = longest_wait_ms(pair.level, rules) - (line.now_ms - pair.oldest.arrival_ms)
    return min(left_ms, min(one.until_ms for one in awaited) - line.now_ms)
