"""The benches run from nothing to figures on the stand-in engine, and leave no process behind."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.bench import house as houses
from infra.bench.costs import Broker
from infra.bench.latency import Load, Sides, first_token, throughput
from infra.bench.streams import waiting_streams
from infra.bench.where import stage_medians_ms
from tests.doubles.cluster import empty_model, standin_command

pytestmark = pytest.mark.integration

LOAD = Load("seed", 2_000, 8)


def living_children() -> set[int]:
    """Pids of this process's descendants; other tests of the session may own some."""
    return {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}


async def test_both_sides_are_measured_and_the_way_is_told(tmp_path: Path) -> None:
    engine = str(standin_command(tmp_path))
    changes: dict[str, Any] = {"llama_server": engine, "slots": 2, "context_tokens": 8192, "log_level": "debug"}
    before = living_children()
    with houses.started(str(empty_model(tmp_path)), **changes) as house:
        async with Sides(house, LOAD) as sides:
            first = await first_token(sides, 3)
            rate = await throughput(sides, 2, 4)
        assert house.logs is not None
        where = stage_medians_ms(house.logs)
    assert first["same_work"]["prompt_tokens"][0] == first["same_work"]["prompt_tokens"][1]
    assert len(rate["gateway_per_s"]) == len(rate["engine_per_s"]) == 2
    assert where["jobs"] > 0
    assert where["all of it"] > 0
    assert living_children() <= before


@pytest.mark.slow  # counting gives up on the engine that stands still only after ten seconds
async def test_waiting_streams_are_held_and_given_back(tmp_path: Path) -> None:
    engine = str(standin_command(tmp_path))
    changes: dict[str, Any] = {"llama_server": engine, "slots": 1, "context_tokens": 8192, "early_commit_s": 1}
    with houses.started(str(empty_model(tmp_path)), **changes) as house:
        broker = Broker(house.redis_url)
        figures = await waiting_streams(house, LOAD, 4)
        assert broker.queued_job_bytes("w1") == {}
        broker.close()
    assert figures["accepted"] == 4
    assert figures["queued_job_bytes"]["jobs"] >= 3
    assert figures["queued_job_bytes"]["total"] > 0
