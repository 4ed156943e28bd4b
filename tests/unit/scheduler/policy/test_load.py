"""What a job has to wait for in a line."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.load import LOOKED_AT, Ahead, Load, expected_wait_ms, kept_slots, left_ms
from tests.unit.scheduler.policy.sites import agents, busy, loads

pytestmark = pytest.mark.unit


def wait(load: Load, slots: int = 2, level: int = 5, agent: str = "k:me") -> float:
    return expected_wait_ms(load, slots, level, agent)


def test_with_a_free_slot_nobody_waits() -> None:
    assert wait(busy(running=1)) == 0
    assert wait(busy(running=2)) > 0


def test_full_slots_are_waited_for_side_by_side() -> None:
    assert wait(busy(running=2)) == 5_000
    assert wait(busy(running=2, queued=1)) == 10_000
    assert wait(busy(running=4, queued=1), slots=4) == 5_000


def test_a_slot_that_is_kept_for_the_urgent_levels_is_waited_for_by_nobody_else() -> None:
    load = replace(busy(running=3), kept=1)
    assert wait(load, slots=4, level=2) == 0
    assert wait(load, slots=4, level=3) == 10_000 / 3
    assert wait(replace(busy(running=2), kept=1), slots=4, level=3) == 0


@given(st.floats(0, 0.999), st.integers(1, 256), st.integers(0, 256))
def test_never_all_slots_are_kept(share: float, slots: int, urgent: int) -> None:
    assert 0 <= kept_slots(share, slots, urgent) < slots


def test_only_what_is_claimed_before_counts() -> None:
    assert wait(busy(running=2, queued=9, level=6)) == wait(busy(running=2))
    assert wait(busy(running=2, queued=9, level=4)) > wait(busy(running=2))


def test_of_an_agent_with_twenty_jobs_one_is_ahead_of_another_agents_first() -> None:
    crowd = tuple(Ahead(5, "k:crowd", 10_000) for _ in range(20))
    load = Load((10_000.0,) * 2, crowd, 20)
    assert wait(load) == 10_000
    assert wait(load, agent="k:crowd") == 105_000


@given(loads, st.integers(1, 8), st.integers(0, 9), agents)
def test_a_wait_is_never_negative_and_more_slots_never_make_it_longer(
    load: Load, slots: int, level: int, agent: str
) -> None:
    waits = [wait(load, count, level, f"k:{agent}") for count in (slots, slots + 1)]
    assert waits[0] >= waits[1] >= 0


@given(loads, st.integers(1, 8))
def test_among_jobs_of_one_length_a_more_urgent_one_never_waits_longer(load: Load, slots: int) -> None:
    line = tuple(Ahead(job.level, job.agent, 1000) for job in load.line[:LOOKED_AT])
    even = Load((1000.0,) * len(load.running), line, len(line))
    assert all(earlier <= later for earlier, later in pairwise(wait(even, slots, level) for level in range(10)))


def test_a_long_line_is_taken_to_go_on_as_it_begins() -> None:
    lines = [busy(running=2, queued=count) for count in (LOOKED_AT, 4 * LOOKED_AT)]
    assert wait(lines[1]) == pytest.approx(4 * wait(lines[0]), rel=0.1)


def test_of_a_running_answer_the_prefill_goes_by_and_the_rest_stays_as_uncertain() -> None:
    assert left_ms(10_000, 2_000, 0, 2.0) == 10_000
    assert left_ms(10_000, 2_000, 3_000, 2.0) == 7_000
    assert left_ms(10_000, 2_000, 60_000, 2.0) == 6_000
    assert left_ms(1_000, 2_000, 60_000, 2.0) == 0, "its record was reckoned for a faster worker"
