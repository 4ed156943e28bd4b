"""Measured speeds forget slowly, never divide by nothing, and a budget of writes is never overdrawn for long."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import Rates, Tallies
from scheduler.policy.swap import Speeds
from workers.meter import BURST_S, LEAST_PREFILL_TOKENS, Meter, WriteBudget

pytestmark = pytest.mark.unit
SPEEDS = Speeds(1000, 2e9, 4e9, 1e5)

sizes = st.integers(0, 10**12)
counts = st.integers(0, 10**7)
times_ms = st.floats(0, 1e7)


def test_speeds_are_known_once_each_has_been_measured() -> None:
    meter = Meter()
    assert meter.speeds is None
    meter.prefilled(1000, 1000)
    meter.saved(10_000, 100, 10)
    assert meter.speeds is None
    meter.restored(10_000, 5)
    assert meter.speeds == Speeds(1000, 1e6, 2e6, 100)


def test_what_an_earlier_start_measured_holds_until_it_is_measured_anew() -> None:
    meter = Meter()
    meter.begin(SPEEDS)
    assert meter.speeds == SPEEDS
    meter.prefilled(2000, 1000)
    speeds = meter.speeds
    assert speeds is not None
    assert 1000 < speeds.prefill_tokens_per_s < 2000


def test_drafts_are_added_up_for_the_lease() -> None:
    meter = Meter()
    meter.drafted(12, 5)
    meter.drafted(0, 0)
    meter.drafted(8, 8)
    assert meter.tallies(evictions=3) == Tallies(evictions=3, drafted_tokens=20, accepted_tokens=13)


def test_a_short_prefill_measures_the_overhead_and_is_left_out() -> None:
    meter = Meter()
    meter.begin(SPEEDS)
    meter.prefilled(LEAST_PREFILL_TOKENS - 1, 10_000)
    assert meter.speeds == SPEEDS


@given(st.lists(st.tuples(sizes, counts, times_ms)), st.lists(st.tuples(counts, times_ms)))
def test_whatever_is_measured_the_speeds_stay_greater_than_nothing(
    moves: list[tuple[int, int, float]], prefills: list[tuple[int, float]]
) -> None:
    meter = Meter()
    for size_bytes, tokens, took_ms in moves:
        meter.saved(size_bytes, tokens, took_ms)
        meter.restored(size_bytes, took_ms)
    for tokens, took_ms in prefills:
        meter.prefilled(tokens, took_ms)
        meter.prompt(4 * tokens, tokens)
    assert meter.characters_per_token > 0
    assert meter.prefill_s(1000) >= 0
    speeds = meter.speeds
    if speeds is not None:
        measured = (speeds.prefill_tokens_per_s, speeds.save_bytes_per_s, speeds.restore_bytes_per_s)
        assert all(speed > 0 and math.isfinite(speed) for speed in (*measured, speeds.bytes_per_token))


def test_what_was_done_is_counted_and_told() -> None:
    meter = Meter()
    meter.begin(SPEEDS)
    meter.saved(10_000, 100, 10)
    meter.restored(10_000, 5)
    meter.failed()
    meter.failed()
    info = meter.info("", 77)
    assert (info.saves, info.restores, info.failures, info.used_bytes, info.off) == (1, 1, 2, 77, "")


def test_an_early_prefill_time_is_nothing_while_nothing_is_known() -> None:
    meter = Meter()
    assert meter.prefill_s(1000) == 0.0
    meter.prefilled(1000, 500)
    assert meter.prefill_s(1000) == 0.5


# --- the budget -----------------------------------------------------------------------------------------------------


def test_a_budget_is_full_at_first_and_fills_again() -> None:
    now = [0.0]
    budget = WriteBudget(10.0, clock=lambda: now[0])
    assert budget.allows(10.0 * BURST_S)
    assert not budget.allows(10.0 * BURST_S + 1)
    budget.spend(10.0 * BURST_S)
    assert not budget.allows(1)
    now[0] += 5
    assert budget.allows(50)
    assert not budget.allows(51)


def test_a_budget_that_nobody_used_does_not_grow_without_end() -> None:
    now = [0.0]
    budget = WriteBudget(10.0, clock=lambda: now[0])
    now[0] += 100 * BURST_S
    assert not budget.allows(10.0 * BURST_S + 1)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 2000)), max_size=200))
def test_over_any_time_no_more_is_written_than_the_rate_and_one_burst_allow(turns: list[tuple[float, float]]) -> None:
    now = [0.0]
    budget = WriteBudget(10.0, clock=lambda: now[0])
    written = 0.0
    for waited_s, size_bytes in turns:
        now[0] += waited_s
        if budget.allows(size_bytes):
            budget.spend(size_bytes)
            written += size_bytes
    assert written <= 10.0 * (BURST_S + now[0]) + 1e-6


def test_rates_are_a_middling_cards_until_answers_show_better() -> None:
    meter = Meter()
    assert meter.rates == Rates()
    assert meter.prefill_tokens_per_s == meter.rates.prefill_tokens_per_s
    meter.prefilled(2000, 1000)
    assert meter.prefill_tokens_per_s == 2000
    meter.decoded(100, 1000)
    meter.decoded(1, 1)  # too short to tell
    assert meter.rates == Rates(prefill_tokens_per_s=2000, decode_tokens_per_s=100)
