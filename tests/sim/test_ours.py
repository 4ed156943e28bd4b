"""Our policy in virtual time: what it promises whatever the load."""

from collections.abc import Sequence

import pytest

from scheduler.contract import Kind, Rates, StopReason
from tests.sim.cluster import Cluster, Fleet, simulate
from tests.sim.engine import Engine
from tests.sim.ours import RULES, Ours
from tests.sim.policy import Worker
from tests.sim.request import Request
from tests.sim.workloads import MIXED, WORKLOADS, Script, Shape, Workload

pytestmark = pytest.mark.unit

RATES = Rates(prefill_tokens_per_s=1000, decode_tokens_per_s=50)
SHORT = Shape(prompts=3, calls=4.0)


def short(agent: str, level: int, number: int) -> Request:
    """A request of one second."""
    return Request(
        agent, f"{agent}.{number}", Kind.MAIN, "none", 0, 500, 0, 25, StopReason.END_TURN, level=level, last=True
    )


def asking(agent: str, level: int, times: int) -> Script:
    for number in range(times):
        yield short(agent, level, number)


@pytest.mark.parametrize("level", [5, 9])
def test_nobody_waits_longer_than_its_level_allows_however_many_urgent_ones_come(level: int) -> None:
    workers = [Worker(Engine(0, 1, RATES, 100_000))]
    answered: list[Request] = []
    urgent = [(0.0, asking(f"urgent{number}", 0, 300)) for number in range(3)]
    Cluster(workers, Ours(workers), answered.append).run([*urgent, (5.0, asking("patient", level, 3))])
    waits_s = [one.begun_s - one.arrival_s for one in answered if one.agent == "patient"]
    bound_s = (level + 1) * RULES.ageing_ms / 1000
    longest_ahead_s = 4.0  # of those who have waited as long: one job each, and one that runs
    assert len(waits_s) == 3
    assert max(waits_s) <= bound_s + longest_ahead_s


def test_an_agent_with_twenty_requests_at_once_does_not_keep_a_single_line_waiting() -> None:
    def waits_s(crowd: Sequence[tuple[float, Script]]) -> float:
        workers = [Worker(Engine(0, 2, RATES, 100_000))]
        answered: list[Request] = []
        Cluster(workers, Ours(workers), answered.append).run([*crowd, (0.5, asking("single", 5, 20))])
        waits = [one.begun_s - one.arrival_s for one in answered if one.agent == "single"]
        return sum(waits) / len(waits)

    crowd = [(0.0, _together("many", 20, rounds=5))]
    assert waits_s([]) == 0.0
    assert waits_s(crowd) <= 1.0  # at most until one of the two slots is free


def _together(agent: str, count: int, rounds: int) -> Script:
    for turn in range(rounds):
        yield [_one(short(agent, 5, turn * count + number)) for number in range(count)]


def _one(request: Request) -> Script:
    yield request


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_request_is_moved_once_at_most(workload: Workload) -> None:
    answered: list[Request] = []
    simulate(Ours, workload, 1.3, Fleet(workers=3, slots=2), seed=2, shape=SHORT, watch=answered.append)
    assert max(one.moves for one in answered) <= 1


class Unbounded(Ours):
    """Every job may be moved as often as that seems to pay."""

    most_moves = 1_000_000


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_jobs_do_not_go_to_and_fro_even_where_that_is_allowed(workload: Workload) -> None:
    answered: list[Request] = []
    simulate(Unbounded, workload, 1.3, Fleet(workers=3, slots=2), seed=2, shape=SHORT, watch=answered.append)
    again = [one for one in answered if one.moves > 1]
    assert len(again) <= 0.07 * len(answered)
    assert max(one.moves for one in answered) <= 5


def test_a_faster_worker_serves_more() -> None:
    answered: list[Request] = []
    fleet = Fleet(workers=2, slots=3, speeds=(2.0, 0.5))
    simulate(Ours, MIXED, 0.7, fleet, seed=4, shape=SHORT, watch=answered.append)
    served = [one.worker for one in answered]
    assert served.count(0) > 2 * served.count(1)
