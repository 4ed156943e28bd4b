"""Our policy against each baseline, in small tables. `python -m tests.sim` prints the large ones."""

from functools import cache

import pytest

from tests.sim.baselines import BASELINES, LeastLoaded
from tests.sim.cluster import Fleet, Making, simulate
from tests.sim.figures import Figures
from tests.sim.ours import Ours
from tests.sim.workloads import WORKLOADS, Workload

pytestmark = pytest.mark.unit

SEEDS = (1, 2)


@cache
def found(policy: Making, workload: Workload, load: float) -> tuple[Figures, ...]:
    return tuple(simulate(policy, workload, load, Fleet(), seed) for seed in SEEDS)


def mean_s(runs: tuple[Figures, ...]) -> float:
    return sum(run.mean_s for run in runs) / len(runs)


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_first_token_comes_sooner_than_with_each_baseline(workload: Workload, baseline: Making) -> None:
    assert mean_s(found(Ours, workload, 0.5)) < mean_s(found(baseline, workload, 0.5))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_work_ends_sooner_and_with_less_prefill_than_least_loaded(workload: Workload) -> None:
    ours, other = found(Ours, workload, 0.9), found(LeastLoaded, workload, 0.9)
    assert sum(run.wall_s for run in ours) < sum(run.wall_s for run in other)
    assert sum(run.prefilled_tokens for run in ours) < sum(run.prefilled_tokens for run in other)
