"""When an engine's memory is said to grow without end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.growing import SPARE, WINDOW_S, Growth, Limits, Sample, free_ceiling, judge, kept

pytestmark = pytest.mark.unit
MIB = 2**20
EVERY_S = 60
HOUR = int(WINDOW_S) // EVERY_S
LIMITS = Limits(math.inf, 1024 * MIB)

sizes = st.integers(1, 2**40)
peaks = st.lists(st.integers(0, 2**34), min_size=HOUR + 1, max_size=HOUR + 1)


def row(*held_bytes: float) -> list[Sample]:
    """One sample each minute."""
    return [Sample(number * EVERY_S, int(held)) for number, held in enumerate(held_bytes)]


def verdict(samples: list[Sample], limits: Limits = LIMITS) -> Growth:
    return judge(samples, min((s.held_bytes for s in samples), default=0), limits)


@given(sizes, st.floats(1.01, 20), st.integers(0, 8), peaks)
def test_a_leak_above_the_limit_is_found_after_an_hour_whatever_peaks_there_are(
    start: int, times: float, every: int, above: list[int]
) -> None:
    """One sample in `every` is a peak; the least of a part of the hour is not."""
    step = LIMITS.growth_bytes * times / HOUR
    held = [start + minute * step for minute in range(HOUR + 1)]
    peaks_of = [peak if every and minute % (every + 1) else 0 for minute, peak in enumerate(above)]
    seen = [own + peak for own, peak in zip(held, peaks_of, strict=True)]
    quiet = row(*held)
    assert verdict(quiet[:-1]) is Growth.NONE
    assert verdict(quiet) is Growth.STEADY
    if every and times > 2:
        assert verdict(row(*seen)) is Growth.STEADY


@given(sizes, st.integers(0, 2**38), st.integers(0, HOUR), st.integers(0, HOUR))
def test_what_is_filled_once_is_no_leak_however_large(start: int, filled: int, begins: int, takes: int) -> None:
    """It takes half of the hour at most."""
    takes = min(takes, HOUR // 2)
    held = [start + filled * min(1.0, max(0.0, (m - begins) / max(1, takes))) for m in range(HOUR + 1)]
    assert verdict(row(*held)) is Growth.NONE


@given(st.lists(sizes, min_size=1, max_size=2 * HOUR))
def test_memory_that_only_shrinks_is_never_judged(held: list[int]) -> None:
    assert verdict(row(*sorted(held, reverse=True)), Limits(1, 1)) is Growth.NONE


@given(st.lists(sizes, min_size=1, max_size=2 * HOUR))
def test_with_both_limits_off_nothing_is_judged(held: list[int]) -> None:
    assert verdict(row(*held), Limits(math.inf, 0)) is Growth.NONE


@given(sizes, sizes, sizes)
def test_the_ceiling_counts_only_for_what_has_grown(base: int, grown: int, ceiling: int) -> None:
    found = verdict(row(base, base + grown), Limits(ceiling, 0))
    assert (found is Growth.CEILING) == (base + grown >= ceiling and grown >= 0.05 * ceiling)


@given(st.lists(sizes, min_size=1, max_size=3 * HOUR))
def test_what_is_kept_tells_as_much_as_all(held: list[int]) -> None:
    samples = row(*held)
    left = kept(samples)
    assert left == samples[-len(left) :]
    assert len(left) <= HOUR + 1
    assert verdict(left) is verdict(samples)


def test_an_hour_with_a_part_that_nobody_saw_says_nothing() -> None:
    samples = row(*(minute * 100 * MIB for minute in range(HOUR + 1)))
    assert verdict(samples[:16] + samples[32:]) is Growth.NONE
    assert judge([], 0, Limits(1, 1)) is Growth.NONE


def test_without_a_ceiling_it_is_what_the_machine_has_left() -> None:
    assert free_ceiling(30, 50, 100) == 30 + 50 - SPARE * 100


def test_of_an_hour_of_looks_a_few_are_kept_and_none_of_what_was_least() -> None:
    taken: list[Sample] = []
    for look in range(3 * 720):
        taken = kept([*taken, Sample(5.0 * look, 1000 + look % 12)])
    assert 55 < len(taken) < 65
    assert taken[-1] == Sample(5.0 * (3 * 720 - 1), 1011)
    assert {sample.held_bytes for sample in taken[:-2]} == {1000}
