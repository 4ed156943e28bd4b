"""What a line will do: the order of its claims, and where a newcomer would come in."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import Kind
from scheduler.policy.claiming import Line, Occupied, Rules, Service, Waiting, order
from scheduler.policy.outlook import Outlook
from scheduler.policy.waiting import SCENARIOS, Times

pytestmark = pytest.mark.unit

NOW_MS = 1_000_000.0
RULES = Rules()
WORK_MS = 1000.0


def same_ms(milliseconds: float) -> Times:
    return (milliseconds,) * SCENARIOS


def job(
    name: str, level: int = 5, *, agent: str = "a", key: str = "k", ago_ms: float = 0.0, **fields: object
) -> Waiting:
    arrival = int(NOW_MS - ago_ms) * 100 + int(name)
    made = Waiting(name, level, key, agent, Kind.MAIN, arrival, NOW_MS - ago_ms, WORK_MS)
    return replace(made, **fields)  # type: ignore[arg-type]


def outlook(*waiting: Waiting, slots: int = 1, running: int = 1, queued: int = 0, **line: object) -> Outlook:
    """Every job takes a second; those that run end in one, too."""
    occupied = tuple(Occupied(5, "k", f"r{number}") for number in range(running))
    made = replace(Line(NOW_MS, slots, waiting, occupied), **line)  # type: ignore[arg-type]
    services = {one.id: same_ms(one.expected_ms) for one in waiting}
    return Outlook(made, RULES, [same_ms(WORK_MS)] * running, services, queued)


agents = st.sampled_from("abc")
ages = st.integers(0, 120_000).map(float)
waiting_jobs = st.lists(st.tuples(st.integers(0, 9), agents, ages, st.sampled_from(list(Kind))), max_size=12).map(
    lambda rows: [
        job(str(number), level, agent=agent, ago_ms=ago_ms, kind=kind)
        for number, (level, agent, ago_ms, kind) in enumerate(rows)
    ]
)
slot_counts = st.integers(1, 4)


def test_a_free_slot_means_now() -> None:
    assert outlook(slots=2).start_ms(job("9")) == 0.0
    assert outlook(slots=2).free_for(0)


def test_behind_a_running_job_it_is_what_is_left_of_that() -> None:
    assert outlook().start_ms(job("9")) == WORK_MS


def test_without_a_slot_nothing_is_ever_started() -> None:
    assert outlook(job("1"), slots=0, running=0).start_ms(job("9")) == math.inf


def test_equals_go_first_in_first_out() -> None:
    made = outlook(job("1", ago_ms=20, agent="b"), job("2", ago_ms=10, agent="c"))
    assert [(step.job.id, step.start_ms) for step in made.steps] == [("1", 1000.0), ("2", 2000.0)]
    assert made.start_ms(job("9")) == 3000.0


def test_a_more_urgent_newcomer_comes_first_and_a_less_urgent_one_last() -> None:
    made = outlook(job("1", ago_ms=20, agent="b"), job("2", ago_ms=10, agent="c"))
    assert made.start_ms(job("9", 4)) == 1000.0
    assert made.start_ms(job("9", 6)) == 3000.0


def test_one_of_another_agent_passes_the_second_of_one_that_asks_for_many() -> None:
    made = outlook(*(job(str(number), agent="many", ago_ms=20 - number) for number in range(8)))
    assert made.start_ms(job("9", agent="one")) == 2000.0
    assert made.start_ms(job("9", agent="many")) == 9000.0


def test_service_had_puts_an_agent_behind_those_that_had_none() -> None:
    had = {"k:greedy": Service(60_000.0, NOW_MS)}
    made = outlook(*(job(str(number), agent="b") for number in range(3)), agents=had)
    assert made.start_ms(job("9", agent="greedy")) == 4000.0
    assert made.start_ms(job("9", agent="new")) == 2000.0


def test_a_slot_kept_for_the_urgent_is_none_for_the_others() -> None:
    made = outlook(slots=4, running=3, urgent_until_ms=NOW_MS + 60_000)
    assert [made.free_for(level) for level in (2, 3)] == [True, False]
    assert [made.start_ms(job("9", level)) for level in (2, 3)] == [0.0, WORK_MS]
    full = outlook(job("1"), slots=4, running=3, urgent_until_ms=NOW_MS + 60_000)
    assert full.start_ms(job("9", 5, agent="b")) == WORK_MS
    assert full.start_ms(job("9", 0, agent="b")) == 0.0


def test_a_part_of_a_long_line_stands_for_all_of_it() -> None:
    waiting = [job(str(number), agent="b") for number in range(10)]
    assert outlook(*waiting, queued=30).start_ms(job("99", 9)) == pytest.approx(33_000)


@given(waiting_jobs, slot_counts)
def test_the_claims_to_come_are_all_jobs_in_the_order_of_claims(waiting: list[Waiting], slots: int) -> None:
    made = outlook(*waiting, slots=slots, running=slots)
    assert sorted(step.job.id for step in made.steps) == sorted(one.id for one in waiting)
    starts = [step.start_ms for step in made.steps]
    assert starts == sorted(starts)
    first = order(made.line, replace(RULES, ageing_ms=1e12))[:1]
    if all(one.arrival_ms == NOW_MS for one in waiting):
        assert tuple(step.job for step in made.steps[:1]) == first


@given(waiting_jobs, slot_counts, st.integers(0, 9), st.sampled_from("abcd"), st.sampled_from(list(Kind)))
def test_a_newcomer_starts_when_it_would_as_a_part_of_the_line(
    waiting: list[Waiting], slots: int, level: int, agent: str, kind: Kind
) -> None:
    """Its place is found without running through the line once more."""
    others = [one for one in waiting if (one.level, one.agent) != (level, agent)]
    found_ms, real_ms = both_ways(others, slots, job("99", level, agent=agent, kind=kind, arrival=10**12))
    assert found_ms == real_ms


@given(waiting_jobs, slot_counts, st.integers(0, 9), st.sampled_from("abcd"))
def test_so_it_does_behind_others_of_its_own(waiting: list[Waiting], slots: int, level: int, agent: str) -> None:
    """Of one kind, that is: a side call that waits long comes before a main line's newcomer in the end."""
    mains = [replace(one, kind=Kind.MAIN) for one in waiting]
    found_ms, real_ms = both_ways(mains, slots, job("99", level, agent=agent, arrival=10**12))
    assert found_ms == real_ms


def both_ways(waiting: list[Waiting], slots: int, newcomer: Waiting) -> tuple[float, float]:
    within = outlook(*waiting, newcomer, slots=slots, running=slots)
    real_ms = next(step.start_ms for step in within.steps if step.job.id == newcomer.id)
    return outlook(*waiting, slots=slots, running=slots).start_ms(newcomer), real_ms


@given(waiting_jobs, st.integers(1, 4), st.integers(0, 9))
def test_more_slots_are_never_later(waiting: list[Waiting], slots: int, level: int) -> None:
    """With ageing out of the way: an order that changes with time may differ for a sooner start."""
    made = [
        Outlook(
            replace(outlook(*waiting, slots=count, running=4).line),
            replace(RULES, ageing_ms=1e12),
            [same_ms(WORK_MS)] * 4,
            {one.id: same_ms(WORK_MS) for one in waiting},
        )
        for count in (slots, slots + 1)
    ]
    newcomer = job("99", level, agent="d", arrival=10**12)
    assert made[1].start_ms(newcomer) <= made[0].start_ms(newcomer)


@given(waiting_jobs, st.integers(0, 9))
def test_a_far_start_breaks_no_arithmetic(waiting: list[Waiting], level: int) -> None:
    made = outlook(*(replace(one, expected_ms=1e9) for one in waiting))
    assert made.start_ms(job("99", level, arrival=10**12)) >= 0
