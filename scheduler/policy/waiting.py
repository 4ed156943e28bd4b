"""When a job that waits will be started.

Owns: what is left of a job's service, and the start of each job of a line: list scheduling (Graham, 1966) of the slots
over what runs and what is ahead.
Never: the order of a line (`claiming`), who is refused (`refusals`), reads anything.

How long an answer becomes is not known, only how it is distributed: log-normal. With the mean of each, answers that
run side by side would all end at the same moment, and the first in line would be told too much by a factor of up to
the number of slots. So each job has SCENARIOS services of equal chance, spread over its distribution; the line is
scheduled once in each scenario, and a start is the median of them. A job's own name says which of its services it has
in which scenario, so what else waits never changes them: more work ahead never makes a start sooner, and more slots
never make it later.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace
from statistics import NormalDist, median
from zlib import crc32

SCENARIOS = 11  # a prime, so that the services of any two jobs meet in all combinations, near enough
LEAST_SIGMA = 0.05
FARTHEST_Z = 8.0  # an answer that is longer than its past makes believable is held for one so far off
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Service:
    """What a job asks of a slot, `elapsed_ms` of it done: a prefill, then tokens that take `token_ms` each.

    The natural logarithm of their number has mean `mu` and standard deviation `sigma`.
    """

    job: str
    prefill_ms: float
    token_ms: float
    mu: float
    sigma: float
    elapsed_ms: float = 0.0


Times = tuple[float, ...]  # milliseconds, one of each scenario


def remaining_ms(service: Service) -> Times:
    """What is left of it in each scenario; never negative."""
    prefill_ms = service.prefill_ms - service.elapsed_ms
    done_tokens = max(0.0, -prefill_ms) / service.token_ms
    tokens = _shuffled(service.job, _strata(service.mu, max(LEAST_SIGMA, service.sigma), done_tokens))
    return tuple(max(0.0, prefill_ms) + max(0.0, count - done_tokens) * service.token_ms for count in tokens)


def starts_ms(slots: int, running: Sequence[Times], ahead: Sequence[Times]) -> list[float]:
    """When each job of `ahead` is started, and as the last entry, when one that comes after them would be.

    Milliseconds from now; inf without a slot. More may run than `slots` while some of them are kept for others.
    """
    if slots <= 0:
        return [math.inf] * (len(ahead) + 1)
    worlds = [_scheduled(slots, [times[s] for times in running], [t[s] for t in ahead]) for s in range(SCENARIOS)]
    return [median(starts) for starts in zip(*worlds, strict=True)]


def _scheduled(slots: int, running: list[float], ahead: list[float]) -> list[float]:
    free_at = [0.0] * (slots - len(running)) + sorted(running)[max(0, len(running) - slots) :]
    heapify(free_at)
    starts = []
    for service in ahead:
        starts.append(free_at[0])
        heapreplace(free_at, free_at[0] + service)
    return [*starts, free_at[0]]


def _shuffled(job: str, values: Times) -> Times:
    """The values in an order of the job's own; any two orders of different slope meet in all combinations."""
    number = crc32(job.encode())
    slope, offset = 1 + number % (SCENARIOS - 1), number // SCENARIOS
    return tuple(values[(slope * scenario + offset) % SCENARIOS] for scenario in range(SCENARIOS))


def _strata(mu: float, sigma: float, done: float) -> Times:
    """Means of the SCENARIOS equally likely parts of a log-normal number that is known to exceed `done`."""
    if done < 1.0:
        scale = math.exp(mu)
        return tuple(scale * part for part in _unit_strata(round(sigma, 2)))
    mu = max(mu, math.log(done) - FARTHEST_Z * sigma)
    return _parts(mu, sigma, _upper((math.log(done) - mu) / sigma))


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
    return tuple(mean * (beyond[i] - beyond[i + 1]) * SCENARIOS / tail for i in range(SCENARIOS))


def _upper(z: float) -> float:
    """The chance that a normal number exceeds `z`."""
    return 0.5 * math.erfc(z / math.sqrt(2))
