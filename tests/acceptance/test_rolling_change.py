"""Workers are changed one by one under load: no request fails, and what agents had said is not read again.

The model keeps a few bytes of cache a token, so that on a machine of two cores it is not its size that is judged.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.cli import drain as command
from tests.acceptance.conftest import StartCluster
from tests.acceptance.test_kv_store import Agent, Turn, words
from tests.doubles import scripted_model as scripts
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import Script

pytestmark = pytest.mark.acceptance
AGENTS = 8
WINDOW_TOKENS = 16384
LONGEST_TOKENS = 14_000
REUSED = 0.9


@pytest.fixture
def pair(start_cluster: StartCluster, model_path: Callable[[Script], Path]) -> Cluster:
    model = model_path(scripts.TEXT_ONLY)
    return start_cluster(workers=2, slots=AGENTS, model=model, engine="embedded", context_tokens=WINDOW_TOKENS)


def goes_on(agent: Agent, over: threading.Event) -> list[Turn]:
    """Its turns until `over`, one at least after each pause as a tool's call makes one; each must be answered."""
    turns: list[Turn] = []
    while not over.wait(0.3):
        if agent.prompt < LONGEST_TOKENS:
            turns.append(agent.turn(words((agent.name, len(turns)), 10)))
    return turns


def changed(cluster: Cluster, name: str) -> None:
    """As the README says a worker is changed."""
    command.drain(name, 5, url=cluster.url)
    assert cluster.worker_states()[name] == "drained"
    assert cluster.stop_worker(name) == 0
    cluster.add_worker(name)


def test_two_workers_are_changed_under_eight_agents_without_a_failed_request(pair: Cluster) -> None:
    agents = [Agent(pair, f"agent-{number}", words(("base", number), 1000)) for number in range(AGENTS)]
    for agent in agents:
        agent.turn()
    over = threading.Event()
    with ThreadPoolExecutor(AGENTS) as threads:
        asking = [threads.submit(goes_on, agent, over) for agent in agents]
        try:
            changed(pair, "w1")
            changed(pair, "w2")
        finally:
            over.set()
        during = [turn for future in asking for turn in future.result()]  # raises when one was not answered
    turns = [*during, *(agent.turn() for agent in agents)]
    reused = [min(1.0, turn.reused) for turn in turns]
    assert {turn.worker for turn in during} == {"w1", "w2"}
    assert sum(reused) / len(reused) >= REUSED, sorted(reused)[:AGENTS]
    assert not list(pair.redis.scan_iter("corral:drain:*"))
