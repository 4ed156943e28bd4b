"""How long an answer will be, told by how long the past ones were.

Owns: the log-normal distribution of output tokens: learning it, and blending few samples with many.
Never: a store, a clock, a rate; how long tokens take is the worker's to say, what is left of an answer that runs
`waiting`'s.

Lengths of answers are heavy-tailed: their logarithm is near enough to normal. `lua/settle.lua` learns as `learnt` does.
"""

import math
from dataclasses import dataclass

PRIOR_WEIGHT = 3.0  # as many samples of its own outweigh what is known of all
USUAL_TOKENS = 200.0  # of an answer while none has been seen
USUAL_SIGMA = 1.0
LEAST_SIGMA = 0.05  # equal lengths so far do not make the next one certain
MOST_SAMPLES = 100.0  # older ones fade: habits change


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

    def mean(self) -> float:
        """Expected tokens of an answer."""
        return math.exp(self.mu + self.sigma**2 / 2)


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
