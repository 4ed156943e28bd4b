"""Four agents at once on one worker of the real engine: Corral beside the engine alone, in one run."""

from collections.abc import Callable

import pytest

from infra.bench import four
from infra.bench import house as houses
from infra.bench.address import Address
from infra.bench.asking import CHAT
from infra.bench.compare import ratios
from infra.bench.four import Arm, Team
from tests.acceptance.conftest import RealCluster
from tests.doubles.scripted_model import long_text

pytestmark = pytest.mark.acceptance

ANSWER_TOKENS = 500
# The scripted model's tokens cost next to nothing, so this is the gateway's own work beside an engine that has none.
MOST_RATIO = 2.0
ATTEMPTS = 3


async def test_four_agents_at_once_are_served_about_as_fast_as_by_the_engine_alone(
    real: RealCluster, record_property: Callable[[str, object], None]
) -> None:
    cluster = real(long_text(ANSWER_TOKENS))
    engine = houses.running(cluster.url, "", "", None).engine
    arms = {
        "engine": Arm(Address("engine", engine.url, engine.key, CHAT), 4),
        "corral": Arm(Address("corral", cluster.url), 4),
    }
    for _ in range(ATTEMPTS):
        runs = await four.measure(arms, Team(output_tokens=ANSWER_TOKENS), rounds=3)
        for name, rounds in runs.items():
            record_property(name, rounds)
            assert [run["failed"] for run in rounds] == [0, 0, 0], rounds
            assert [run["output_tokens"] for run in rounds] == [ANSWER_TOKENS] * 3
        ratio = ratios(runs)["corral"]["mean_ms"][0]
        if ratio <= MOST_RATIO:
            break
    assert ratio <= MOST_RATIO
