"""Four agents at once on one worker of the real engine: Corral beside the engine alone, in one run."""

from collections.abc import Callable

import pytest

from infra.bench import house as houses
from infra.bench import together
from infra.bench.together import CORRAL, DIRECT, Team
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
    house = houses.running(cluster.url, "", "", None)
    for _ in range(ATTEMPTS):
        figures = await together.measure(house, None, Team(output_tokens=ANSWER_TOKENS), rounds=3)
        for name, value in figures.items():
            record_property(name, value)
            print(name, value)
        assert figures[CORRAL]["tokens"][2] == figures[DIRECT]["tokens"][2] == ANSWER_TOKENS
        if figures["corral_to_direct"] <= MOST_RATIO:
            break
    assert figures["corral_to_direct"] <= MOST_RATIO
