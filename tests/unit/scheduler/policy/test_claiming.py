"""The order of a line: levels, ageing, fair share, kinds, and the slots that are kept for others."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import Kind
from scheduler.policy.claiming import (
    Choice,
    Line,
    Occupied,
    Returning,
    Service,
    Taking,
    Waiting,
    agent_name,
    choose,
    order,
    pair_name,
)
from tests.unit.scheduler.policy.lines import AGEING_MS, NOW_MS, RULES, line, lines, waiting

pytestmark = pytest.mark.unit
HALF_LIFE_MS = RULES.half_life_ms


def ids(*jobs: Waiting) -> list[str]:
    return [job.id for job in order(line(*jobs), RULES)]


def later(before: Line, now_ms: float, job_id: str) -> Line:
    """The line after a claim, as the store keeps it."""
    job = next(job for job in before.waiting if job.id == job_id)
    name = agent_name(job.key, job.agent)
    key, agent = before.keys.get(job.key, Service()), before.agents.get(name, Service())
    return replace(
        before,
        now_ms=now_ms,
        waiting=[other for other in before.waiting if other is not job],
        keys={**before.keys, job.key: key.charged(job.expected_ms, now_ms, HALF_LIFE_MS)},
        agents={**before.agents, name: agent.charged(job.expected_ms, now_ms, HALF_LIFE_MS)},
    )


def free(made: Line) -> Line:
    """The same line with slots for all."""
    return replace(made, running=(), returning=(), urgent_until_ms=0.0, cached=())


# --- the order ----------------------------------------------------------------------------------------------------


def test_nobody_waits_in_an_empty_line() -> None:
    assert choose(line(), RULES) == Choice(None, 0.0)
    assert order(line(), RULES) == ()


@given(lines())
def test_while_nobody_has_waited_long_a_lower_level_goes_first(made: Line) -> None:
    young = [replace(job, arrival_ms=NOW_MS) for job in made.waiting]
    levels = [job.level for job in order(replace(made, waiting=young), RULES)]
    assert levels == sorted(levels)


@given(st.lists(st.integers(0, 9), min_size=1))
def test_equals_of_a_level_go_first_in_first_out(levels: list[int]) -> None:
    jobs = [waiting(number, level, f"agent-{number}") for number, level in enumerate(levels)]
    expected = sorted(range(len(levels)), key=lambda number: (levels[number], number))
    assert ids(*jobs) == [f"job-{number}" for number in expected]


def test_inside_an_agent_main_goes_before_subagent_side_call_and_warm_up() -> None:
    kinds = [Kind.WARM, Kind.SIDE, Kind.SUBAGENT, Kind.MAIN]
    jobs = [waiting(number, kind=kind) for number, kind in enumerate(kinds)]
    assert ids(*jobs) == ["job-3", "job-2", "job-1", "job-0"]


def test_a_side_call_that_waited_two_steps_goes_before_a_main_that_came_later() -> None:
    side = waiting(0, kind=Kind.SIDE, waited_ms=2 * AGEING_MS)
    assert ids(side, waiting(1)) == ["job-0", "job-1"]
    assert ids(replace(side, arrival_ms=side.arrival_ms + 1), waiting(1)) == ["job-1", "job-0"]


def test_a_level_is_risen_for_each_step_of_ageing() -> None:
    old = waiting(0, 7, "old", waited_ms=3 * AGEING_MS)
    assert ids(old, waiting(1, 5, "new")) == ["job-0", "job-1"]
    assert ids(replace(old, arrival_ms=old.arrival_ms + 1), waiting(1, 4, "new")) == ["job-1", "job-0"]


def test_jobs_age_also_while_others_of_their_agent_are_served() -> None:
    jobs = [waiting(number, 7, "old", waited_ms=3 * AGEING_MS) for number in range(3)]
    served = later(line(*jobs, waiting(9, 5, "new")), NOW_MS, "job-0")
    assert choose(served, RULES).job == "job-1"


def test_least_attained_service_goes_first_the_key_s_before_the_agent_s() -> None:
    made = line(waiting(0, agent="a", key="k"), waiting(1, agent="b", key="k"), waiting(2, agent="c", key="l"))
    had = {"k:a": Service(3000, NOW_MS), "k:b": Service(2000, NOW_MS), "l:c": Service(9000, NOW_MS)}
    assert choose(replace(made, agents=had), RULES).job == "job-1"
    assert choose(replace(made, agents=had, keys={"k": Service(1, NOW_MS)}), RULES).job == "job-2"


def test_service_fades_by_half_in_each_half_life() -> None:
    assert Service(1000, 0).faded(HALF_LIFE_MS, HALF_LIFE_MS) == 500
    assert Service(1000, 0).faded(3 * HALF_LIFE_MS, HALF_LIFE_MS) == 125
    assert Service(1000, 50).faded(0, HALF_LIFE_MS) == 1000


def test_what_was_used_takes_the_place_of_what_was_charged() -> None:
    charged = Service(1000, 0).charged(4000, 100, HALF_LIFE_MS)
    settled = charged.settled(700, Service(4000, 100), 50_000, HALF_LIFE_MS)
    assert settled.ms == pytest.approx(Service(1000, 0).faded(50_000, HALF_LIFE_MS) + 700)
    assert Service(0, 0).settled(0, Service(4000, 100), 200, HALF_LIFE_MS).ms == 0


# --- what follows from it -----------------------------------------------------------------------------------------


def test_twenty_jobs_of_one_agent_get_no_more_than_the_one_line_of_another() -> None:
    many = [waiting(number, agent="many") for number in range(20)]
    single = [waiting(20 + number, agent="single") for number in range(10)]
    taken = [job.agent for job in order(line(*many, *single), RULES)][:20]
    assert all(one != other for one, other in pairwise(taken))


@given(st.lists(st.integers(0, 90_000), min_size=20, max_size=20), st.integers(0, 9))
def test_of_two_equal_agents_that_wait_neither_is_ever_two_claims_ahead(steps_ms: list[int], level: int) -> None:
    jobs = [waiting(number, level, "b" if number % 5 else "a", waited_ms=0) for number in range(60)]
    made, ahead = line(*jobs), 0
    for step_ms in steps_ms:
        made = replace(made, now_ms=made.now_ms + step_ms)
        job_id = choose(made, RULES).job
        assert job_id is not None
        ahead += 1 if int(job_id[4:]) % 5 else -1
        made = later(made, made.now_ms, job_id)
        if not any(job.agent == "a" for job in made.waiting):
            return
        assert abs(ahead) <= 1


def test_an_agent_of_twice_the_weight_gets_twice_the_claims() -> None:
    jobs = [waiting(n, agent="ab"[n % 2], weight=2.0 if n % 2 else 1.0) for n in range(80)]
    taken = [job.agent for job in order(line(*jobs), RULES)][:39]
    assert (taken.count("a"), taken.count("b")) == (13, 26)


# Time passes (ms), jobs come (level, agent, expected service in s), a slot is free; more come than are taken.
steps = st.tuples(
    st.sampled_from([0, 3000, 11_000, 25_000]),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcd"), st.sampled_from([1, 30])), min_size=1, max_size=2),
)


@given(st.lists(steps, min_size=15, max_size=40))
def test_who_waited_level_plus_one_steps_is_passed_by_no_newcomer(
    history: list[tuple[int, list[tuple[int, str, int]]]],
) -> None:
    """So nobody starves: who came later than that is never served while it waits, unless an older one of its own is."""
    for made, name in played(history):
        chosen_ms = made.now_ms - age_ms(made, name)
        for job in made.waiting:
            if pair_name(job.level, job.key, job.agent) != name:
                assert chosen_ms < job.arrival_ms + (job.level + 1) * AGEING_MS


def played(history: list[tuple[int, list[tuple[int, str, int]]]]) -> Iterator[tuple[Line, str]]:
    """The line before each claim, and the pair that is claimed."""
    made, number = line(), 0
    for passes_ms, come in history:
        made = replace(made, now_ms=made.now_ms + passes_ms)
        for level, agent, expected_s in come:
            job = waiting(number, level, agent, expected_ms=1000 * expected_s)
            made = replace(made, waiting=[*made.waiting, replace(job, arrival_ms=made.now_ms)])
            number += 1
        job_id = choose(made, RULES).job
        assert job_id is not None
        job = next(job for job in made.waiting if job.id == job_id)
        yield made, pair_name(job.level, job.key, job.agent)
        made = later(made, made.now_ms, job_id)


def age_ms(made: Line, name: str) -> float:
    return made.now_ms - min(job.arrival_ms for job in made.waiting if pair_name(job.level, job.key, job.agent) == name)


@given(lines())
def test_the_order_told_ahead_is_the_one_that_claims_take(made: Line) -> None:
    made, taken = free(made), []
    told = [job.id for job in order(made, RULES)]
    while (job_id := choose(made, RULES).job) is not None:
        taken.append(job_id)
        made = later(made, made.now_ms, job_id)
    assert told == taken


@given(lines(), st.lists(st.integers(0, 40_000), min_size=24, max_size=24))
def test_it_is_told_right_also_while_time_passes(made: Line, steps_ms: list[int]) -> None:
    made = free(made)
    taking, now_ms = Taking(made, RULES), made.now_ms
    for step_ms in steps_ms:
        now_ms += step_ms
        made = replace(made, now_ms=now_ms)
        told = taking.take(now_ms)
        assert (told.id if told else None) == choose(made, RULES).job
        if told is None:
            return
        made = later(made, now_ms, told.id)


# --- slots that are kept for others -------------------------------------------------------------------------------


def four_slots(level: int, *running: int, agent: str = "x") -> Line:
    made = line(waiting(0, level, agent), slots=4)
    others = [Occupied(level, "k", f"other-{number}") for number, level in enumerate(running)]
    return replace(made, running=others, urgent_until_ms=NOW_MS + 7000.0)


def test_background_work_leaves_the_urgent_share_free_while_urgent_requests_come() -> None:
    assert choose(four_slots(5, 5, 5, 5), RULES) == Choice(None, 7000.0)
    assert choose(four_slots(2, 5, 5, 5), RULES).job == "job-0"
    assert choose(four_slots(5, 5, 5), RULES).job == "job-0"
    assert choose(four_slots(5, 5, 5, 2), RULES).job == "job-0"
    assert choose(replace(four_slots(5, 5, 5, 5), urgent_until_ms=0.0), RULES).job == "job-0"


def test_of_so_few_slots_that_the_share_is_none_none_is_kept() -> None:
    made = replace(four_slots(5), slots=1)
    assert choose(made, RULES).job == "job-0"
    assert choose(replace(made, slots=3, running=[Occupied(5, "k", "y")] * 2), RULES).job == "job-0"


def test_one_job_that_may_not_have_the_slot_does_not_stop_another_that_may() -> None:
    made = four_slots(5, 5, 5, 5)
    old = waiting(0, 5, "old", waited_ms=9 * AGEING_MS)
    assert choose(replace(made, waiting=[old, waiting(1, 2, "urgent")]), RULES).job == "job-1"


def two_slots(level: int, *returning: Returning, running: tuple[str, ...] = ("many",)) -> Line:
    made = line(waiting(0, level, "many"), slots=2)
    return replace(made, running=[Occupied(level, "k", agent) for agent in running], returning=returning)


BACK = Returning(5, "k", "single", NOW_MS + 3000.0)


def test_an_agent_over_its_share_leaves_a_slot_for_one_in_a_tool_call() -> None:
    assert choose(two_slots(5, BACK), RULES) == Choice(None, 3000.0)
    assert choose(two_slots(5), RULES).job == "job-0"
    assert choose(two_slots(5, replace(BACK, until_ms=NOW_MS)), RULES).job == "job-0"


def test_an_agent_within_its_share_takes_any_slot() -> None:
    assert choose(two_slots(5, BACK, running=()), RULES).job == "job-0"


def test_a_slot_is_not_kept_for_one_that_has_another_or_for_a_lower_one() -> None:
    assert choose(replace(two_slots(5, BACK, running=("many", "single")), slots=3), RULES).job == "job-0"
    assert choose(two_slots(4, BACK), RULES).job == "job-0"
    assert choose(two_slots(6, BACK), RULES).job is None


def test_as_many_slots_are_left_as_agents_are_awaited() -> None:
    also = replace(BACK, agent="also", until_ms=NOW_MS + 1000.0)
    made = replace(two_slots(5, BACK, also, running=("many", "many")), slots=5)
    assert choose(made, RULES).job == "job-0"
    assert choose(replace(made, slots=4), RULES) == Choice(None, 1000.0)


def test_an_agent_that_is_awaited_at_two_levels_is_one() -> None:
    made = replace(two_slots(5, BACK, replace(BACK, level=4), running=("many", "many")), slots=4)
    assert choose(made, RULES).job == "job-0"


def test_the_agent_that_is_awaited_takes_the_slot_at_once() -> None:
    made = two_slots(5, BACK)
    came = waiting(1, 5, "single")
    assert choose(replace(made, waiting=[*made.waiting, came]), RULES).job == "job-1"


@given(lines())
def test_what_is_kept_is_kept_for_a_while_only_and_never_from_an_idle_worker(made: Line) -> None:
    made = replace(made, cached=())
    choice = choose(made, RULES)
    if choice.job is None and made.waiting:
        assert 0 < choice.held_ms <= 600_000
        assert made.running
    lapsed = replace(made, now_ms=NOW_MS + 600_001)
    assert (choose(lapsed, RULES).job is None) is (not made.waiting)


def test_who_waited_two_steps_takes_a_slot_also_when_an_agent_is_awaited() -> None:
    made = two_slots(5, BACK)
    old = replace(made.waiting[0], arrival_ms=NOW_MS - 2 * AGEING_MS + 100)
    assert choose(replace(made, waiting=[old]), RULES) == Choice(None, 100.0)
    assert choose(replace(made, now_ms=NOW_MS + 100, waiting=[old]), RULES).job == "job-0"
