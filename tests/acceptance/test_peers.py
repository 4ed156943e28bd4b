"""The comparison with peers, for those that need no package: Corral and the engine itself, on the real engine."""

from pathlib import Path

import psutil
import pytest

from infra.bench.four import Team
from infra.bench.latency import Load
from infra.bench.peers import one_engine
from infra.bench.peers.several import BROKEN, WHOLE, Ground, Grounds, killed
from infra.bench.peers.sides import CORRAL, LLAMA_SERVER, Side
from tests.doubles import scripted_model

pytestmark = pytest.mark.acceptance


def living_children() -> set[int]:
    """Pids of this process's descendants; other tests of the session may own some."""
    return {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}


def told(_: str) -> None:
    """Nobody listens."""


def test_an_answer_outlives_its_engine_with_corral_and_not_without(tmp_path: Path) -> None:
    before = living_children()
    model = str(scripted_model.write(scripted_model.long_text(2_000), tmp_path))
    found = killed(Grounds(Ground(model, 2, 2, 8192, tmp_path / "ground"), {}), "seed", told)
    assert {name: side.get("answer") for name, side in found.items()} == {CORRAL: WHOLE, LLAMA_SERVER: BROKEN}, found
    assert living_children() <= before


async def test_rows_on_one_engine_are_filled_and_a_side_that_is_away_leaves_with_its_error(tmp_path: Path) -> None:
    model = str(scripted_model.write(scripted_model.long_text(20), tmp_path))
    grounds = Grounds(Ground(model, 1, 4, 8192, tmp_path / "ground"), {})
    grounds.commands()
    with grounds.opened(LLAMA_SERVER) as engine:
        sides = [
            Side(LLAMA_SERVER, engine.url, engine.key),
            Side(CORRAL, engine.url, engine.key, (psutil.Process().pid,)),
            Side("away", "http://127.0.0.1:9", ""),
        ]
        load = Load("seed", 2_000, 8)
        first = await one_engine.first_token(sides, load, 3, told)
        rate = await one_engine.throughput(sides, load, 2, 4, told)
        four = await one_engine.at_once(sides, Team(2, 20, 40, 8), "seed", 1, told)
        memory = one_engine.memory(sides, {engine.engines[0].pid})
    assert {"added_p50_ms", "added_p95_ms"} <= first[CORRAL].keys()
    assert "added_p50_ms" not in first[LLAMA_SERVER]
    assert rate[LLAMA_SERVER]["of_engine"] == 1
    assert rate[CORRAL]["per_s"] > 0
    assert four[CORRAL]["output_tokens"] == 8
    assert memory[CORRAL]["mb"] > 0
    assert all("error" in row["away"] for row in (first, rate, four))
