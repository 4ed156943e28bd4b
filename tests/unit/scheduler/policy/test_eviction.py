"""Eviction: what is lost costs least, and the stop reason says who comes back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import Kind, StopReason
from scheduler.policy.eviction import WORTHLESS_TOKENS, Holding, chance, learnt_gap_s, value, victim

pytestmark = pytest.mark.unit

times = st.floats(0, 1e6)
holdings = st.builds(
    Holding,
    slot=st.integers(0, 63),
    kind=st.sampled_from(Kind),
    tokens=st.integers(0, 1_000_000),
    stop_reason=st.none() | st.sampled_from(StopReason),
    idle_s=times,
    gap_s=st.none() | times,
)
MAIN = Holding(0, Kind.MAIN, 30_000, StopReason.TOOL_USE, idle_s=1.0)


@given(st.lists(holdings, min_size=1, unique_by=lambda holding: holding.slot))
def test_nothing_cheaper_could_have_been_taken(held: list[Holding]) -> None:
    values = {holding.slot: value(holding) for holding in held}
    assert values[victim(held)] == min(values.values())


@given(st.lists(holdings, min_size=1, unique_by=lambda holding: holding.slot), st.randoms())
def test_the_order_in_which_slots_are_told_does_not_matter(held: list[Holding], dice: object) -> None:
    assert victim(held) == victim(held[::-1])


uses = st.dictionaries(st.integers(0, 63), st.integers(0, 1_000_000))


@given(st.lists(holdings, min_size=1, unique_by=lambda holding: holding.slot), uses)
def test_a_beginning_of_use_to_the_new_one_never_costs_a_conversation_that_is_worth_more(
    held: list[Holding], of_use: dict[int, int]
) -> None:
    values = {holding.slot: value(holding) for holding in held}
    assert values[victim(held, of_use)] <= max(WORTHLESS_TOKENS, min(values.values()))


@given(st.lists(holdings, min_size=1, unique_by=lambda holding: holding.slot), uses)
def test_of_those_worth_nothing_the_one_of_most_use_goes_first(held: list[Holding], of_use: dict[int, int]) -> None:
    worthless = [holding.slot for holding in held if value(holding) <= WORTHLESS_TOKENS]
    if worthless:
        taken = victim(held, of_use)
        assert taken in worthless
        assert of_use.get(taken, 0) == max(of_use.get(slot, 0) for slot in worthless)


@given(holdings, times, st.floats(0.1, 1e6), st.floats(0.1, 1e6))
def test_the_further_one_looks_the_likelier_is_a_return(
    held: Holding, idle_s: float, one_s: float, other_s: float
) -> None:
    near_s, far_s = sorted((one_s, other_s))
    assert chance(held, near_s) <= chance(held, far_s)


@given(st.lists(times, min_size=1))
def test_a_learnt_gap_lies_among_those_that_were_seen(gaps_s: list[float]) -> None:
    learnt: float | None = None
    for gap_s in gaps_s:
        learnt = learnt_gap_s(learnt, gap_s)
    assert learnt == pytest.approx(sorted([min(gaps_s), learnt or 0.0, max(gaps_s)])[1])


@given(holdings, times)
def test_the_chance_is_one_and_falls_with_silence(held: Holding, longer_s: float) -> None:
    later = replace(held, idle_s=held.idle_s + longer_s)
    assert 0 < chance(later) <= chance(held) <= 1


@given(holdings, st.integers(0, 1_000_000))
def test_more_tokens_are_never_worth_less(held: Holding, more: int) -> None:
    assert value(replace(held, tokens=held.tokens + more)) >= value(held)


def test_one_that_runs_a_tool_is_kept_before_one_that_waits_for_a_human() -> None:
    waits = replace(MAIN, slot=1, stop_reason=StopReason.END_TURN)
    assert victim([MAIN, waits]) == 1


def test_a_finished_subagent_goes_before_any_conversation_that_may_return() -> None:
    finished = replace(MAIN, slot=1, kind=Kind.SUBAGENT, stop_reason=StopReason.END_TURN)
    human = replace(MAIN, slot=2, stop_reason=StopReason.END_TURN, idle_s=250.0, tokens=5_000)
    assert victim([MAIN, finished, human]) == 1


def test_a_subagent_that_runs_a_tool_is_alive() -> None:
    assert chance(replace(MAIN, kind=Kind.SUBAGENT)) == chance(MAIN)


def test_a_side_call_never_comes_back() -> None:
    side = replace(MAIN, slot=1, kind=Kind.SIDE)
    assert victim([MAIN, side]) == 1


def test_a_slow_tool_lowers_the_chance() -> None:
    assert chance(replace(MAIN, gap_s=600.0)) < chance(replace(MAIN, gap_s=2.0))


def test_gaps_are_learnt_and_recent_ones_count_more() -> None:
    assert learnt_gap_s(None, 4.0) == 4.0
    assert 4.0 < learnt_gap_s(4.0, 14.0) < 14.0
