"""The foretold wait, against an oracle that knows how the lengths of answers are distributed."""

import pytest

from tests.sim.cluster import Fleet
from tests.sim.prediction import errors
from tests.sim.workloads import WORKLOADS, Workload

pytestmark = pytest.mark.unit

MOST = 1.3  # times the oracle's median error


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_wait_is_foretold_nearly_as_well_as_by_an_oracle(workload: Workload) -> None:
    found = errors(workload, 0.9, Fleet(), seed=1)
    assert found.waits > 300
    assert found.ours_median_s <= MOST * found.oracle_median_s
