"""When a waiting job starts: never sooner for more work ahead, never later for more slots."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.lengths import Length
from scheduler.policy.waiting import SCENARIOS, Demand, Slots, Times, remaining_ms

pytestmark = pytest.mark.unit

amounts = st.floats(0, 1e6)
demands = st.builds(
    Demand,
    job=st.text(max_size=8),
    prefill_ms=amounts,
    token_ms=st.floats(0.01, 1000),
    length=st.builds(Length, mu=st.floats(0, 10), sigma=st.floats(0.05, 3)),
    elapsed_ms=st.floats(0, 1e9),
)
lines = st.lists(demands.map(remaining_ms), max_size=12)
slots = st.integers(1, 8)


def same_ms(milliseconds: float) -> tuple[float, ...]:
    return (milliseconds,) * SCENARIOS


def starts_ms(count: int, running: Sequence[Times], ahead: Sequence[Times]) -> list[float]:
    """When each of `ahead` is started by `count` slots, and last, when one that comes after them is; ms from now."""
    slots, starts = Slots(count, running), []
    for service in ahead:
        starts.append(slots.next_ms)
        slots.take(service)
    return [*starts, slots.next_ms]


def answer(job: str, *, sigma: float = 1.0, elapsed_ms: float = 0.0, prefill_ms: float = 500.0) -> Demand:
    return Demand(job, prefill_ms, token_ms=33.0, length=Length(math.log(200), sigma), elapsed_ms=elapsed_ms)


# --- what is left -------------------------------------------------------------------------------------------------


@given(demands)
def test_what_is_left_of_a_job_is_never_negative(demand: Demand) -> None:
    left = remaining_ms(demand)
    assert len(left) == SCENARIOS
    assert all(0 <= time < math.inf for time in left)


@given(st.floats(0.05, 2), st.text(max_size=8))
def test_what_is_left_at_the_start_is_the_expected_service(sigma: float, job: str) -> None:
    left = remaining_ms(answer(job, sigma=sigma))
    expected_ms = 500 + 33 * 200 * math.exp(sigma**2 / 2)
    assert sum(left) / SCENARIOS == pytest.approx(expected_ms, rel=0.02)


def test_a_prefill_that_goes_on_is_known_to_the_millisecond() -> None:
    before, after = (sum(remaining_ms(answer("a", elapsed_ms=ms))) / SCENARIOS for ms in (100.0, 400.0))
    assert before - after == pytest.approx(300)


def test_an_answer_that_is_already_long_is_expected_to_go_on() -> None:
    """A log-normal number has no end in sight: what has come says that more will."""
    means = [sum(remaining_ms(answer("a", elapsed_ms=ms))) / SCENARIOS for ms in (10_000.0, 100_000.0, 1e8)]
    assert means == sorted(means)
    assert means[-1] < 1e8


# --- starts -------------------------------------------------------------------------------------------------------


@given(slots)
def test_an_empty_line_starts_now(count: int) -> None:
    assert starts_ms(count, [], []) == [0.0]


@given(st.lists(demands.map(remaining_ms), min_size=1, max_size=8))
def test_a_free_slot_means_now_whatever_runs(running: list[tuple[float, ...]]) -> None:
    assert starts_ms(len(running) + 1, running, []) == [0.0]


def test_without_a_slot_nothing_starts() -> None:
    assert starts_ms(0, [], [same_ms(1.0)]) == [math.inf, math.inf]


@given(slots, lines, lines)
def test_more_slots_are_never_later(
    count: int, running: list[tuple[float, ...]], ahead: list[tuple[float, ...]]
) -> None:
    fewer, more = starts_ms(count, running, ahead), starts_ms(count + 1, running, ahead)
    assert all(later <= sooner * (1 + 1e-9) for later, sooner in zip(more, fewer, strict=True))


@given(slots, lines, lines, demands.map(remaining_ms), st.integers(0, 12))
def test_more_work_ahead_is_never_sooner(
    count: int,
    running: list[tuple[float, ...]],
    ahead: list[tuple[float, ...]],
    another: tuple[float, ...],
    place: int,
) -> None:
    longer = [*ahead[:place], another, *ahead[place:]]
    assert starts_ms(count, running, longer)[-1] >= starts_ms(count, running, ahead)[-1] * (1 - 1e-9)
    if len(running) < 12:
        assert starts_ms(count, [*running, another], ahead)[-1] >= starts_ms(count, running, ahead)[-1] * (1 - 1e-9)


@given(slots, lines, lines)
def test_starts_are_in_the_order_of_the_line(
    count: int, running: list[tuple[float, ...]], ahead: list[tuple[float, ...]]
) -> None:
    starts = starts_ms(count, running, ahead)
    assert starts == sorted(starts)


def test_slots_that_are_kept_for_others_have_to_be_free_first() -> None:
    running = [same_ms(ms) for ms in (100.0, 200.0, 300.0)]
    assert starts_ms(2, running, [])[-1] == 200.0


def test_known_services_are_scheduled_one_after_the_other() -> None:
    assert starts_ms(2, [same_ms(100.0), same_ms(250.0)], [same_ms(100.0)] * 3) == [100.0, 200.0, 250.0, 300.0]


def test_the_first_of_many_answers_ends_sooner_than_each_of_them_would() -> None:
    """Four answers side by side: the soonest of them is what the next one waits for."""
    one = starts_ms(1, [remaining_ms(answer("job-0"))], [])[-1]
    four = starts_ms(4, [remaining_ms(answer(f"job-{number}")) for number in range(4)], [])[-1]
    assert four < one * 0.6
