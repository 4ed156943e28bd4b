"""The simulator itself: one seed gives one result, and every request is answered once."""

from collections import Counter

import pytest

from scheduler.contract import Kind, Rates, StopReason
from tests.sim.__main__ import POLICIES
from tests.sim.baselines import FirstCome
from tests.sim.cluster import Cluster, Fleet, Making, simulate
from tests.sim.engine import Engine
from tests.sim.figures import Figures, jain
from tests.sim.policy import Worker
from tests.sim.request import Request
from tests.sim.timeline import Timeline
from tests.sim.workloads import BURSTS, MIXED, SESSIONS, WORKLOADS, Script, Shape, Workload, agents_for, alone

pytestmark = pytest.mark.unit

SMALL = Fleet(workers=2, slots=3)
SHORT = Shape(prompts=2, calls=4.0)
RATES = Rates(prefill_tokens_per_s=1000, decode_tokens_per_s=50)


def figures(found: Figures) -> tuple[object, ...]:
    return found.requests, found.wall_s, found.mean_s, found.prefilled_tokens, found.fairness, found.quantile_s(0.9)


def request(conversation: str, prompt: int, kept: int = 0, output: int = 50) -> Request:
    return Request(
        conversation, conversation, Kind.MAIN, "base", 1000, prompt, kept, output, StopReason.END_TURN, last=True
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_one_seed_gives_one_result_and_another_seed_another(policy: Making, workload: Workload) -> None:
    once = figures(simulate(policy, workload, 0.9, SMALL, seed=3, shape=SHORT))
    assert figures(simulate(policy, workload, 0.9, SMALL, seed=3, shape=SHORT)) == once
    assert figures(simulate(policy, workload, 0.9, SMALL, seed=4, shape=SHORT)) != once


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_answered_once_and_no_slot_serves_two(policy: Making) -> None:
    answered: list[Request] = []
    simulate(policy, MIXED, 1.3, SMALL, seed=5, shape=SHORT, watch=answered.append)
    asked = sum(one.requests for one in agents_for(1.3, 6, SMALL.rates, MIXED, 5, SHORT))
    assert sorted(one.number for one in answered) == list(range(1, asked + 1))
    assert all(one.arrival_s <= one.begun_s < one.ended_s for one in answered)
    changes = Counter[tuple[float, int, int]]()
    for one in answered:
        changes[one.begun_s, 1, one.worker] += 1
        changes[one.ended_s, 0, one.worker] -= 1
    busy = Counter[int]()
    for (_, _, worker), change in sorted(changes.items()):
        busy[worker] += change
        assert 0 <= busy[worker] <= SMALL.slots


def test_the_same_is_asked_whatever_the_policy() -> None:
    asked = []
    for policy in POLICIES:
        answered: list[Request] = []
        simulate(policy, BURSTS, 0.9, SMALL, seed=6, shape=SHORT, watch=answered.append)
        asked.append(sorted((one.conversation, one.prompt_tokens, one.output_tokens) for one in answered))
    assert all(one == asked[0] for one in asked)


def test_a_slot_that_serves_is_not_taken_twice() -> None:
    engine = Engine(0, 1, RATES, 100_000)
    engine.begin(request("one", 2000), 0.0)
    with pytest.raises(ValueError, match="empty"):
        engine.begin(request("two", 2000), 1.0)


def test_what_is_cached_is_not_prefilled_again_until_another_takes_the_slot() -> None:
    engine = Engine(0, 1, RATES, 100_000)
    first, second, other = request("one", 2000), request("one", 3000, kept=2050), request("two", 1500)
    assert engine.begin(first, 0.0) == pytest.approx(2.0 + 1.0)
    engine.end(first, 3.0)
    assert engine.begin(second, 5.0) == pytest.approx(0.95 + 1.0)
    engine.end(second, 7.0)
    assert engine.begin(other, 8.0) == pytest.approx(0.5 + 1.0)  # the base is there
    engine.end(other, 10.0)
    assert engine.cached_tokens(request("one", 4000, kept=3050)) == 1000


def test_an_agent_alone_takes_what_its_script_asks_for() -> None:
    def script() -> Script:
        yield request("one", 2000)
        yield 4.0
        yield [child("two"), child("three")]

    def child(name: str) -> Script:
        yield request(name, 1500, kept=1000)

    found = alone(script(), RATES)
    assert (found.service_s, found.lasts_s) == pytest.approx((5.0, 7.5))
    assert found.requests == 3


def test_the_load_is_what_the_agents_ask_for_over_the_slots() -> None:
    agents = agents_for(0.9, 8, RATES, SESSIONS, 1, SHORT)
    assert sum(one.service_s / one.lasts_s for one in agents) >= 0.9 * 8
    assert sum(one.service_s / one.lasts_s for one in agents[:-1]) < 0.9 * 8


def test_what_happens_later_happens_in_the_order_of_time_then_of_promise() -> None:
    time, seen = Timeline(), list[str]()
    time.at(2.0, lambda what: time.at(1.0, seen.append, what), "late")
    time.at(1.0, seen.append, "first")
    time.at(1.0, seen.append, "second")
    time.run()
    assert (seen, time.now_s) == (["first", "second", "late"], 2.0)


def test_a_line_is_served_by_level_then_arrival() -> None:
    engine = Engine(0, 1, RATES, 100_000)
    workers, begun = [Worker(engine)], list[str]()
    levels = {"busy": 5, "late": 9, "one": 5, "two": 5, "urgent": 0}

    def script(name: str) -> Script:
        asked = request(name, 1500)
        asked.level = levels[name]
        yield asked

    cluster = Cluster(workers, FirstCome(workers), lambda one: begun.append(one.agent))
    cluster.run([(0.1 * number, script(name)) for number, name in enumerate(levels)])
    assert begun == ["busy", "urgent", "one", "two", "late"]


def test_jain_is_one_for_equals_and_one_over_n_for_one_who_has_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([0.0, 0.0, 0.0, 8.0]) == pytest.approx(0.25)
