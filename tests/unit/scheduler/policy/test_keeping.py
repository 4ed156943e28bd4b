"""Whom a free slot is kept from, because of the conversation whose cache it holds."""

from dataclasses import replace

import pytest
from hypothesis import given

from scheduler.contract import StopReason
from scheduler.policy.claiming import Cached, Choice, Line, Occupied, Rules, choose
from scheduler.policy.keeping import LONGEST_STEPS, WORTH, expected_for_ms, longest_wait_ms, return_hold_ms
from tests.unit.scheduler.policy.lines import AGEING_MS, NOW_MS, RULES, cached_lines, line, waiting

pytestmark = pytest.mark.unit

MINE = Cached("mine", 5, 10_000.0, 3000.0)


def one_slot(*jobs: int, cached: Cached = MINE, level: int = 5) -> Line:
    """Jobs that waited so long, before one free slot."""
    made = [waiting(n, level, f"a{n}", conversation=f"c{n}", waited_ms=ms) for n, ms in enumerate(jobs)]
    return replace(line(*made), cached=[cached])


def test_a_slot_is_kept_for_a_conversation_in_a_tool_call_until_it_is_due() -> None:
    assert choose(one_slot(0), RULES) == Choice(None, 3000.0)
    assert choose(one_slot(0, cached=replace(MINE, left_ms=0.0)), RULES).job == "job-0"


def test_who_waited_for_twice_the_prefill_that_is_lost_takes_the_slot() -> None:
    due_ms = int(WORTH * MINE.prefill_ms)
    assert choose(one_slot(due_ms), RULES).job == "job-0"
    assert choose(one_slot(due_ms - 200), RULES) == Choice(None, 200.0)


def test_its_own_prefill_counts_as_waiting() -> None:
    made = one_slot(int(WORTH * MINE.prefill_ms) - 4000)
    long = [replace(made.waiting[0], prefill_ms=4000.0)]
    assert choose(replace(made, waiting=long), RULES).job == "job-0"


def test_of_two_that_hold_something_the_cheaper_counts() -> None:
    other = Cached("other", 5, 1000.0, 3000.0)
    made = replace(one_slot(2000), slots=2, cached=[MINE, other])
    assert choose(made, RULES).job == "job-0"


def test_the_conversation_itself_takes_its_slot_at_once_before_one_that_would_push_it_out() -> None:
    made = one_slot(5000)
    mine = waiting(1, 5, "mine", conversation="mine")
    back = replace(made, waiting=[*made.waiting, mine], cached=[replace(MINE, left_ms=0.0)])
    assert choose(back, RULES).job == "job-1"


def test_a_free_slot_beside_is_taken() -> None:
    assert choose(replace(one_slot(0), slots=2), RULES).job == "job-0"
    made = replace(one_slot(0), slots=2, running=[Occupied(5, "k", "x", "busy")])
    assert choose(made, RULES).job is None


def test_a_conversation_that_runs_meanwhile_keeps_no_slot() -> None:
    """The worker's look is older than the store's."""
    made = replace(one_slot(0), slots=2, running=[Occupied(5, "k", "x", "mine")])
    assert choose(made, RULES).job == "job-0"


def test_no_slot_is_kept_from_a_more_urgent_level() -> None:
    assert choose(one_slot(0, level=4), RULES).job == "job-0"
    assert choose(one_slot(0, level=6), RULES).job is None


@pytest.mark.parametrize(("level", "steps"), [(0, 1), (1, LONGEST_STEPS), (9, LONGEST_STEPS)])
def test_nobody_is_barred_for_longer_than_some_steps_of_ageing(level: int, steps: int) -> None:
    assert longest_wait_ms(level, RULES) == steps * AGEING_MS
    huge = Cached("mine", 0, 1e6, 3000.0)
    made = one_slot(steps * AGEING_MS, cached=huge, level=level)
    assert choose(made, RULES).job == "job-0"
    assert choose(replace(made, now_ms=NOW_MS - 1), RULES).job is None


@given(cached_lines())
def test_what_is_kept_lapses_and_somebody_is_served(made: Line) -> None:
    choice = choose(made, RULES)
    if choice.job is None and made.waiting:
        assert 0 < choice.held_ms <= LONGEST_STEPS * AGEING_MS
    later = replace(made, now_ms=NOW_MS + LONGEST_STEPS * AGEING_MS)
    assert (choose(later, RULES).job is None) is (not made.waiting)


def test_a_slot_is_kept_twice_the_usual_gap_and_no_longer_than_the_limit() -> None:
    assert return_hold_ms(None, RULES) == 5000
    assert return_hold_ms(400, RULES) == 800
    assert return_hold_ms(60_000, RULES) == 5000
    assert return_hold_ms(None, Rules(return_hold_ms=0)) == 0


@pytest.mark.parametrize(
    ("reason", "gap_ms", "idle_ms", "prefill_ms", "left_ms"),
    [
        (StopReason.TOOL_USE, None, 1000, 6000, 4000),
        (StopReason.TOOL_USE, 1000, 500, 6000, 1500),
        (StopReason.TOOL_USE, 1000, 3000, 6000, 0),
        (StopReason.TOOL_USE, None, 1000, 5000, 0),
        (StopReason.END_TURN, None, 1000, 60_000, 0),
        (None, None, 1000, 60_000, 0),
    ],
)
def test_only_a_tool_call_that_ends_before_its_prefill_would_is_waited_for(
    reason: StopReason | None, gap_ms: float | None, idle_ms: float, prefill_ms: float, left_ms: float
) -> None:
    assert expected_for_ms(reason, gap_ms, idle_ms, prefill_ms, RULES) == left_ms
