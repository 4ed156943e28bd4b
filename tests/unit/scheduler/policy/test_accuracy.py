"""How far predictions were off: the figures that are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.accuracy import AT_ONCE_MS, MOST_WAITS, Accuracy, Error

pytestmark = pytest.mark.unit

milliseconds = st.floats(0, 1e7)


def learnt(*waits: tuple[float, float]) -> Error:
    accuracy = Accuracy()
    for predicted, real in waits:
        accuracy.learn(predicted, real)
    return accuracy.error()


def test_of_nothing_there_is_no_error() -> None:
    assert learnt() == Error(0, 0, 0, 0.0)


def test_a_job_that_started_at_once_as_told_is_not_counted() -> None:
    assert learnt((0, AT_ONCE_MS)).waits == 0
    assert learnt((0, AT_ONCE_MS + 1)).waits == 1
    assert learnt((1, 0)).waits == 1


def test_the_figures() -> None:
    waits = [(1000.0, 1000.0 + 100 * off) for off in range(10)]
    assert learnt(*waits) == Error(waits=10, median_ms=500, p90_ms=900, ratio=0.69)


@given(st.lists(st.tuples(milliseconds, milliseconds), max_size=30))
def test_the_median_is_below_the_90th_percentile(waits: list[tuple[float, float]]) -> None:
    error = learnt(*waits)
    assert 0 <= error.median_ms <= error.p90_ms
    assert error.ratio >= 0


def test_old_waits_are_forgotten() -> None:
    waits = [(1.0, 1e6)] * 3 + [(1000.0, 1000.0)] * MOST_WAITS
    assert learnt(*waits) == Error(MOST_WAITS, 0, 0, 1.0)
