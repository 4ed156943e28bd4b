"""When a job that waits will be started.

Owns: what is left of a job's service, and when slots come free for what is ahead: list scheduling (Graham, 1966).
Never: the order of a line (`claiming`; `outlook` joins the two), who is refused (`admission`), reads anything.

How long an answer becomes is not known, only how it is distributed (`lengths`). With the mean of each, answers that run
side by side would all end at the same moment, and the first in line would be told too much by a factor of up to the
number of slots. So each job has SCENARIOS services of equal chance, spread over its distribution; the slots are
scheduled in each scenario at once, and a start is the median of them. A job's own name says which of its services it
has in which scenario, so what else waits never changes them: more work ahead never makes a start sooner, and more slots
never make it later.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace
from statistics import NormalDist, median
from zlib import crc32

from scheduler.policy.lengths import Length

SCENARIOS = 11  # a prime, so that the services of any two jobs meet in all combinations, near enough
FARTHEST_Z = 8.0  # an answer that is longer than its past makes believable is held for one so far off
_NORMAL = NormalDist()

Times = tuple[float, ...]  # milliseconds, one of each scenario


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job asks of a slot, `elapsed_ms` of it done: a prefill, then tokens that take `token_ms` each."""

    job: str
    prefill_ms: float
    token_ms: float
    length: Length
    elapsed_ms: float = 0.0


class Slots:
    """The slots of a worker in every scenario, from now on."""

    def __init__(self, count: int, running: Sequence[Times]) -> None:
        """More may run than `count`, while some slots are kept for others: these have to come free first."""
        self._free_at = [_free_at(count, [times[world] for times in running]) for world in range(SCENARIOS)]

    @property
    def next_ms(self) -> float:
        """When a slot is free for the next one; 0 when one is free now, inf when there is none."""
        return median(free_at[0] for free_at in self._free_at) if self._free_at[0] else math.inf

    def take(self, service: Times) -> None:
        """The next one takes the slot that is free first."""
        for free_at, ms in zip(self._free_at, service, strict=True):
            if free_at:
                heapreplace(free_at, free_at[0] + ms)


def remaining_ms(demand: Demand) -> Times:
    """What is left of it in each scenario; never negative."""
    prefill_ms = demand.prefill_ms - demand.elapsed_ms
    done_tokens = max(0.0, -prefill_ms) / demand.token_ms
    tokens = _shuffled(demand.job, _strata(demand.length, done_tokens))
    return tuple(max(0.0, prefill_ms) + max(0.0, count - done_tokens) * demand.token_ms for count in tokens)


def _free_at(count: int, ends: list[float]) -> list[float]:
    free_at = [0.0] * (count - len(ends)) + sorted(ends)[max(0, len(ends) - count) :]
    heapify(free_at)
    return free_at


def _shuffled(job: str, values: Times) -> Times:
    """The values in an order of the job's own; any two orders of different slope meet in all combinations."""
    number = crc32(job.encode())
    slope, offset = 1 + number % (SCENARIOS - 1), number // SCENARIOS
    return tuple(values[(slope * scenario + offset) % SCENARIOS] for scenario in range(SCENARIOS))


def _strata(length: Length, done: float) -> Times:
    """Means of the SCENARIOS equally likely parts of a length that is known to exceed `done` tokens."""
    if done < 1.0:
        scale = math.exp(length.mu)
        return tuple(scale * part for part in _unit_strata(round(length.sigma, 2)))
    mu = max(length.mu, math.log(done) - FARTHEST_Z * length.sigma)
    return _parts(mu, length.sigma, _upper((math.log(done) - mu) / length.sigma))


@lru_cache(1024)
def _unit_strata(sigma: float) -> Times:
    return _parts(0.0, sigma, 1.0)


def _parts(mu: float, sigma: float, tail: float) -> Times:
    """The part of a log-normal beyond the quantile whose upper tail is `tail`, cut into parts of equal chance."""
    cuts = [tail * (1 - part / SCENARIOS) for part in range(1, SCENARIOS)]
    first = math.inf if tail >= 1.0 else _NORMAL.inv_cdf(tail)
    # E[X; X > the cut of upper tail t] = mean * upper(z - sigma), with -z the normal quantile of t.
    beyond = [_upper(-z - sigma) for z in (first, *map(_NORMAL.inv_cdf, cuts))] + [0.0]
    mean = math.exp(mu + sigma * sigma / 2)
    return tuple(mean * (beyond[part] - beyond[part + 1]) * SCENARIOS / tail for part in range(SCENARIOS))


def _upper(z: float) -> float:
    """The chance that a normal number exceeds `z`."""
    return 0.5 * math.erfc(z / math.sqrt(2))
