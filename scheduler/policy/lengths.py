"""How long an answer will be, told by how long the past ones were.

Owns: the log-normal distribution of output tokens: learning it, blending few samples with many, and what follows from
it for an answer that begins or runs.
Never: a store, a clock, a rate; how long tokens take is the worker's to say.

Lengths of answers are heavy-tailed: their logarithm is near enough to normal. `lua/settle.lua` learns as `learnt` does.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

PRIOR_WEIGHT = 3.0  # as many samples of its own outweigh what is known of all
USUAL_TOKENS = 200.0  # of an answer while none has been seen
USUAL_SIGMA = 1.0
LEAST_SIGMA = 0.05  # equal lengths so far do not make the next one certain
MOST_SAMPLES = 100.0  # older ones fade: habits change
FARTHEST = 30.0  # deviations from the mean beyond which the tail's own limit is exact enough


@dataclass(frozen=True, slots=True)
class Samples:
    """Lengths seen: how many, and mean and sum of squared deviations (Welford) of their logarithms."""

    n: float = 0.0
    mean: float = 0.0
    m2: float = 0.0

    def learnt(self, tokens: int) -> "Samples":
        """With one more answer of `tokens` output tokens; an empty one counts as one token."""
        kept = min(1.0, (MOST_SAMPLES - 1) / self.n) if self.n else 1.0
        n, seen = self.n * kept + 1.0, math.log(max(1, tokens))
        mean = self.mean + (seen - self.mean) / n
        return Samples(n, mean, self.m2 * kept + (seen - self.mean) * (seen - mean))


@dataclass(frozen=True, slots=True)
class Length:
    """Output tokens of one answer: their logarithm has the mean `mu` and the deviation `sigma` (> 0)."""

    mu: float = math.log(USUAL_TOKENS)
    sigma: float = USUAL_SIGMA

    def mean(self, limit: float = math.inf) -> float:
        """Expected tokens of an answer that is cut at `limit`."""
        whole = math.exp(self.mu + self.sigma**2 / 2)
        if limit <= 0:
            return 0.0
        if limit == math.inf:
            return whole
        z = self._deviations(limit)
        return whole * _below(z - self.sigma) + limit * _above(z)

    def remaining(self, after: float, limit: float = math.inf) -> float:
        """Expected tokens still to come of an answer that has `after` already and is cut at `limit`."""
        if after <= 0:
            return self.mean(limit)
        if after >= limit:
            return 0.0
        z = self._deviations(after)
        if z > FARTHEST:
            return min(after * self.sigma / z, limit - after)
        # Tail over tail, for the difference of two means would lose every digit.
        whole = math.exp(self.mu + self.sigma**2 / 2)
        tail = whole * (_above(z - self.sigma) - self._cut(limit)) + (0.0 if limit == math.inf else self._beyond(limit))
        return min(max(0.0, tail / _above(z) - after), limit - after)

    def longer(self, tokens: float) -> float:
        """The chance that it has more than `tokens`."""
        return 1.0 if tokens <= 0 else _above(self._deviations(tokens))

    def quantile(self, share: float) -> float:
        """The tokens that `share` of such answers, between 0 and 1, do not exceed."""
        return math.exp(NormalDist(self.mu, self.sigma).inv_cdf(share))

    def _cut(self, limit: float) -> float:
        return 0.0 if limit == math.inf else _above(self._deviations(limit) - self.sigma)

    def _beyond(self, limit: float) -> float:
        return limit * _above(self._deviations(limit))

    def _deviations(self, tokens: float) -> float:
        return (math.log(tokens) - self.mu) / self.sigma


UNKNOWN = Length()


def expected(own: Samples, everyone: Samples) -> Length:
    """What is likely of the next answer of those that `own` are samples of; `everyone` are all there are."""
    return _blended(own, _blended(everyone, UNKNOWN))


def _blended(seen: Samples, prior: Length) -> Length:
    """As if `prior` had been seen PRIOR_WEIGHT times before; a normal with unknown mean and variance."""
    n, weight = seen.n, PRIOR_WEIGHT
    mu = (n * seen.mean + weight * prior.mu) / (n + weight)
    apart = n * weight / (n + weight) * (seen.mean - prior.mu) ** 2
    variance = (seen.m2 + weight * prior.sigma**2 + apart) / (n + weight)
    return Length(mu, max(LEAST_SIGMA, math.sqrt(variance)))


def _above(z: float) -> float:
    """The standard normal's upper tail, with all its digits."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def _below(z: float) -> float:
    return _above(-z)
