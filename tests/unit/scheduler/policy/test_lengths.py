"""Lengths of answers: what is learnt of them, and what is expected of the next one."""

import math
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.lengths import LEAST_SIGMA, MOST_SAMPLES, UNKNOWN, Length, Samples, expected

pytestmark = pytest.mark.unit

answers = st.lists(st.integers(1, 20_000), min_size=1, max_size=int(MOST_SAMPLES))


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
    assert math.exp(UNKNOWN.mu) == pytest.approx(200)


def test_few_samples_lean_on_those_of_all_and_many_do_not() -> None:
    everyone = learnt([100] * 50)
    few, many = expected(learnt([1000] * 2), everyone), expected(learnt([1000] * 60), everyone)
    assert 100 < math.exp(few.mu) < 400 < math.exp(many.mu) < 1000
    assert few.sigma > many.sigma > LEAST_SIGMA


def test_the_mean_is_that_of_a_log_normal() -> None:
    assert Length(5, 1.2).mean() == pytest.approx(math.exp(5 + 1.2**2 / 2))
