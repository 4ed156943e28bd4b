"""Lengths of answers: what is learnt of them, and what follows for one that begins or runs."""

import math
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.lengths import LEAST_SIGMA, MOST_SAMPLES, UNKNOWN, Length, Samples, expected

pytestmark = pytest.mark.unit

answers = st.lists(st.integers(1, 20_000), min_size=1, max_size=int(MOST_SAMPLES))
distributions = st.builds(Length, st.floats(1, 9), st.floats(LEAST_SIGMA, 2.5))
tokens = st.floats(1, 50_000)


def learnt(lengths: list[int]) -> Samples:
    samples = Samples()
    for length in lengths:
        samples = samples.learnt(length)
    return samples


@given(answers)
def test_what_is_learnt_is_mean_and_variance_of_the_logarithms(lengths: list[int]) -> None:
    samples, logarithms = learnt(lengths), [math.log(length) for length in lengths]
    assert samples.n == len(lengths)
    assert samples.mean == pytest.approx(fmean(logarithms))
    assert samples.m2 / samples.n == pytest.approx(pvariance(logarithms), abs=1e-9)


def test_old_answers_fade_once_many_have_been_seen() -> None:
    samples = learnt([10] * 500 + [1000] * 500)
    assert samples.n == pytest.approx(MOST_SAMPLES)
    assert samples.mean == pytest.approx(math.log(1000), abs=0.05)


def test_an_empty_answer_is_learnt_as_one_token() -> None:
    assert learnt([0]) == learnt([1])


def test_nothing_known_is_what_is_usual() -> None:
    assert expected(Samples(), Samples()) == UNKNOWN
    assert UNKNOWN.quantile(0.5) == pytest.approx(200)


def test_few_samples_lean_on_those_of_all_and_many_do_not() -> None:
    everyone = learnt([100] * 50)
    few, many = expected(learnt([1000] * 2), everyone), expected(learnt([1000] * 60), everyone)
    assert 100 < few.quantile(0.5) < 400 < many.quantile(0.5) < 1000
    assert few.sigma > many.sigma > LEAST_SIGMA


def test_the_mean_is_that_of_a_log_normal() -> None:
    assert Length(5, 1.2).mean() == pytest.approx(math.exp(5 + 1.2**2 / 2))


@given(distributions, tokens, tokens)
def test_a_limit_cuts_the_mean_and_a_higher_one_less(length: Length, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= length.mean(low) <= length.mean(high) * (1 + 1e-9) <= length.mean() * (1 + 1e-9) + 1e-9
    assert length.mean(low) <= low * (1 + 1e-9)


@given(distributions, st.floats(0.0, 3.0), tokens)
def test_the_mean_is_what_has_come_and_the_chance_of_what_remains(length: Length, z: float, more: float) -> None:
    """An answer's mean = mean up to any point + chance to pass it x what remains from there; at any limit."""
    after = math.exp(length.mu + z * length.sigma)
    for limit in (after + more, math.inf):
        whole = length.mean(after) + length.longer(after) * length.remaining(after, limit)
        assert whole == pytest.approx(length.mean(limit), rel=1e-6)


@given(distributions, st.floats(0, 1e12), st.floats(1, 1e12))
def test_what_remains_is_never_negative_nor_more_than_the_limit_leaves(
    length: Length, after: float, limit: float
) -> None:
    assert 0 <= length.remaining(after, limit) <= max(0.0, limit - after)
    assert length.remaining(after) >= 0
    assert math.isfinite(length.remaining(after))


@given(distributions)
def test_far_out_an_answer_that_went_on_so_long_goes_on_longer(length: Length) -> None:
    """The tail of a log-normal is heavy; here the formulas change, and must meet."""
    points = [math.exp(length.mu + z * length.sigma) for z in (20, 25, 29.9, 30.1, 33)]
    remaining = [length.remaining(point) for point in points]
    assert remaining == sorted(remaining)
    assert remaining[3] == pytest.approx(remaining[2], rel=0.2 * length.sigma + 0.05)


@given(distributions, st.floats(0.01, 0.99))
def test_a_quantile_is_passed_by_the_rest(length: Length, share: float) -> None:
    assert length.longer(length.quantile(share)) == pytest.approx(1 - share)
    assert length.longer(0) == 1.0
