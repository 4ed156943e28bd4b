"""Who gets how much, and who waits how long, when agents ask for twice what there is.

The engines are stand-ins with a fixed pace, so that service can be reckoned from what an answer used. Every figure is a
ratio within one run.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import pytest

from infra.bench import shares
from infra.bench.asking import MESSAGES, Target
from infra.bench.fairness_mix import BACKGROUND, REVIEW, Mix
from infra.bench.lines import Line, Run, Served
from infra.bench.shares import Pace
from tests.acceptance.conftest import StartCluster
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance

PACE = Pace(prefill=1000, decode=50)
STANDIN = {"prefill_tokens_per_s": PACE.prefill, "decode_tokens_per_s": PACE.decode}
AGENTS, WORKERS, SLOTS, OVERLOAD = 12, 2, 2, 2.0


@asynccontextmanager
async def run_on(cluster: Cluster) -> AsyncIterator[Run]:
    """A run with text of its own on the cluster's API."""
    target = Target(cluster.url, "", MESSAGES)
    try:
        yield Run(target, uuid.uuid4().hex[:8])
    finally:
        await target.close()


def paced(start_cluster: StartCluster, workers: int, slots: int, **settings: Any) -> Cluster:
    """A cluster whose engines are stand-ins at the pace that the figures are reckoned with."""
    return start_cluster(workers=workers, slots=slots, standin=STANDIN, settings=settings)


def show(record: Callable[[str, object], None], **figures: Any) -> None:
    """Keep figures for the report, and print them beside a failure."""
    for name, value in figures.items():
        record(name, value)
        print(name, value)


# --- shares and levels --------------------------------------------------------------------------------------------


async def shared_out(
    cluster: Cluster, unit_s: float, seconds: float, ageing_s: float, record: Callable[[str, object], None]
) -> None:
    """Twelve unequal agents at twice what there is, a review agent and a background agent beside them."""
    mix = Mix(AGENTS, WORKERS * SLOTS, OVERLOAD, unit_s, PACE)
    async with run_on(cluster) as run:
        served = await run.for_seconds([*mix.lines, *mix.extras], seconds)
    attained = shares.attained_s(served, PACE)
    equals = {line.agent for line in mix.lines}
    fairness = shares.jain(attained.get(agent, 0.0) for agent in equals)
    waits = shares.waits(served)
    review = shares.latency_ratio(served, [REVIEW], mix.peers)
    assert review is not None
    show(
        record,
        jain=round(fairness, 3),
        review_ratio=round(review, 3),
        attained={agent: round(seconds, 1) for agent, seconds in sorted(attained.items())},
        waits=waits,
        prediction=shares.prediction(one.outcome for one in served),
    )
    assert shares.failures(served) == []
    assert fairness >= 0.95
    assert review <= 0.5
    assert attained[BACKGROUND] > 0
    for level in (0, 5, 9):
        assert waits[f"level {level}"]["longest_wait_s"] <= (level + 1) * ageing_s


async def test_unequal_agents_get_equal_shares_and_levels_are_kept(
    start_cluster: StartCluster, record_property: Callable[[str, object], None]
) -> None:
    cluster = paced(start_cluster, WORKERS, SLOTS, ageing_s=3, move_margin_s=0.2, early_commit_s=60)
    await shared_out(cluster, 0.8, 36, 3, record_property)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_shares_and_levels_hold_for_minutes_with_the_default_settings(
    start_cluster: StartCluster, record_property: Callable[[str, object], None]
) -> None:
    cluster = paced(start_cluster, WORKERS, SLOTS)
    await shared_out(cluster, 3.0, 180, 20, record_property)


async def test_an_agent_of_twice_the_weight_gets_about_twice_as_much(
    start_cluster: StartCluster, record_property: Callable[[str, object], None]
) -> None:
    heavy, light = ["heavy0", "heavy1"], ["light0", "light1"]
    cluster = paced(start_cluster, WORKERS, SLOTS, agent_weights="heavy0=2,heavy1=2")
    mix = Mix(1, 1, 1, 1, PACE)
    lines = [mix.line(agent, number, 0.5, 0.0) for agent in (*heavy, *light) for number in range(4)]
    async with run_on(cluster) as run:
        served = await run.for_seconds(lines, 15)
    attained = shares.attained_s(served, PACE)
    ratio = shares.ratio_of_weights(attained, heavy, light)
    show(record_property, ratio=round(ratio, 2), attained={name: round(s, 1) for name, s in attained.items()})
    assert shares.failures(served) == []
    assert 1.6 <= ratio <= 2.5


# --- an agent with many subagents ---------------------------------------------------------------------------------

SINGLE = Line("single", "main", fresh_tokens=400, output_tokens=15, pause_s=0.3)
SWARM = [
    Line("swarm", f"sub{number}", fresh_tokens=200, output_tokens=40, pause_s=0.2, subagent=True)
    for number in range(20)
]


async def beside_a_swarm(cluster: Cluster, rounds: int, turns: int, record: Callable[[str, object], None]) -> None:
    """A line of tool turns alone and beside twenty subagents of another agent, A B A B."""
    slots = sum(len(worker["slots"]) for worker in cluster.status()["workers"])
    single = replace(SINGLE, turns=turns)
    alone: list[Served] = []
    beside: list[Served] = []
    async with run_on(cluster) as run:
        for number in range(rounds):
            alone += await run.some(single, 2 * number * turns, turns)
            async with run.at_work(SWARM):
                await all_busy(cluster, slots)
                beside += await run.some(single, (2 * number + 1) * turns, turns)
            wait_for(lambda: running(cluster) == 0, "the swarm to be gone")
    first = {name: [one.waited_s for one in side] for name, side in (("alone", alone), ("beside", beside))}
    ratio = fmean(first["beside"]) / fmean(first["alone"])
    show(
        record,
        ratio=round(ratio, 2),
        ratio_of_medians=round(median(first["beside"]) / median(first["alone"]), 2),
        first_s={name: [round(s, 2) for s in values] for name, values in first.items()},
        prediction=shares.prediction(one.outcome for one in beside),
    )
    assert shares.failures(run.served) == []
    assert ratio <= 1.5


async def all_busy(cluster: Cluster, slots: int) -> None:
    """Until every slot is taken and others wait."""
    await asyncio.to_thread(
        wait_for, lambda: running(cluster) == slots and cluster.status()["waiting"] > 0, "every slot to be busy"
    )


def running(cluster: Cluster) -> int:
    return sum(int(worker["running"]) for worker in cluster.status()["workers"])


async def test_a_single_line_is_hardly_slower_beside_twenty_subagents(
    start_cluster: StartCluster, record_property: Callable[[str, object], None]
) -> None:
    cluster = paced(start_cluster, 1, 4)
    await beside_a_swarm(cluster, 2, 7, record_property)


@pytest.mark.slow
async def test_a_single_line_is_hardly_slower_beside_subagents_on_every_worker(
    start_cluster: StartCluster, record_property: Callable[[str, object], None]
) -> None:
    cluster = paced(start_cluster, 2, 2)
    await beside_a_swarm(cluster, 3, 12, record_property)
