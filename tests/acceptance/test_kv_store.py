"""Saved caches on the real engine: conversations swap through few slots, survive restarts, move, and share bases.

The model keeps a few bytes of cache a token, so moving it is nearly free; what a heavy one gains is the bench's matter.
"""

import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import StartCluster
from tests.doubles import scripted_model as scripts
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import Script
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance
WINDOW_TOKENS = 16384
TOOL = {"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}


def words(seed: object, count: int) -> str:
    dice = random.Random(str(seed))
    return " ".join(str(dice.randrange(1000, 10_000)) for _ in range(count))


class Agent:
    """A conversation that grows: its own base unless one is given, and the answers as they came."""

    def __init__(self, cluster: Cluster, name: str, base: str | None = None, **headers: str) -> None:
        self.cluster, self.name = cluster, name
        self.base = base or f"You are {name}. {words(name, 2000)}"
        self.headers = {"x-claude-code-session-id": name, **headers}
        self.messages: list[dict[str, Any]] = []
        self.prompt = self.cached = 0

    def turn(self, text: str | None = None, tools: bool = True) -> "Turn":
        said = text or words((self.name, len(self.messages)), 60)
        self.messages.append({"role": "user", "content": said})
        body: dict[str, Any] = {"model": "m", "max_tokens": 64, "system": self.base, "messages": self.messages}
        answer = self.cluster.http.post(
            "/v1/messages", json=body | ({"tools": [TOOL]} if tools else {}), headers=self.headers
        )
        assert answer.status_code == 200, answer.text
        self.messages.append({"role": "assistant", "content": answer.json()["content"]})
        number = {name: int(answer.headers[f"x-corral-{name}-tokens"]) for name in ("prompt", "cached")}
        turn = Turn(number["prompt"], number["cached"], self.prompt, answer.headers["x-corral-worker"])
        self.prompt = turn.prompt
        return turn


class Turn:
    def __init__(self, prompt: int, cached: int, before: int, worker: str) -> None:
        self.prompt, self.cached, self.before, self.worker = prompt, cached, before, worker

    @property
    def reused(self) -> float:
        """Of the prompt of the turn before, what was not prefilled again."""
        return self.cached / self.before


def store(cluster: Cluster, worker: str = "w1") -> dict[str, Any]:
    [found] = [told for told in cluster.status()["workers"] if told["name"] == worker]
    return dict(found["store"])


@pytest.fixture
def text_only(model_path: Callable[[Script], Path]) -> Path:
    return model_path(scripts.TEXT_ONLY)


@pytest.fixture
def small(start_cluster: StartCluster, text_only: Path) -> Cluster:
    """One worker with two slots."""
    return start_cluster(workers=1, slots=2, model=text_only, engine="embedded", context_tokens=WINDOW_TOKENS)


def test_six_conversations_swap_through_two_slots_and_lose_hardly_a_token(small: Cluster) -> None:
    assert store(small)["off"] == ""
    agents = [Agent(small, f"agent-{number}") for number in range(6)]
    for agent in agents:
        agent.turn()
    later = [agent.turn().reused for _ in range(3) for agent in agents]
    assert min(later) >= 0.95, later
    wait_for(lambda: store(small)["restores"] >= 18, "the lease to tell of the restores", 10)
    assert store(small)["failures"] == 0


def test_a_new_agent_on_a_known_base_prefills_its_own_part_only(small: Cluster) -> None:
    base = words("shared", 1500)
    first = Agent(small, "first", base).turn()
    assert first.cached < 100
    for number in range(4):  # more than there are slots
        turn = Agent(small, f"later-{number}", base).turn()
        assert turn.prompt - turn.cached < 600, turn.__dict__


def test_a_restarted_worker_goes_on_from_the_store(small: Cluster) -> None:
    agents = [Agent(small, f"agent-{number}") for number in range(4)]
    for _ in range(2):
        for agent in agents:
            agent.turn()
    small.stop_worker("w1")
    small.start_worker("w1")
    small.wait_ready(1)
    assert min(agent.turn().reused for agent in agents) >= 0.95


def test_a_conversation_moves_to_another_worker_with_its_cache(small: Cluster) -> None:
    agents = [Agent(small, f"agent-{number}") for number in range(3)]
    for agent in agents:
        agent.turn()
    small.start_worker("w2")
    small.wait_ready(2)
    small.stop_worker("w1")
    turns = [agent.turn() for agent in agents]
    assert {turn.worker for turn in turns} == {"w2"}
    assert min(turn.reused for turn in turns) >= 0.95


def test_a_killed_worker_costs_what_was_not_saved_yet(small: Cluster) -> None:
    agent = Agent(small, "agent")
    agent.turn()
    wait_for(lambda: store(small)["saves"] >= 2, "the base and the conversation to be saved", 20)
    small.kill_worker("w1")
    small.start_worker("w1")
    small.wait_ready(1)
    assert agent.turn().reused >= 0.95


def test_an_older_cache_does_not_take_the_place_of_a_newer_one(small: Cluster) -> None:
    """The conversation went on elsewhere; the worker that has the older turn saves last, as it is stopped."""
    agent = Agent(small, "agent")
    agent.turn()
    small.start_worker("w2")
    small.wait_ready(2)
    small.workers["w1"].send(signal.SIGSTOP)
    wait_for(lambda: small.worker_states().get("w1") != "ready", "w1 to be taken for dead", 20)
    assert {agent.turn().worker, agent.turn().worker} == {"w2"}
    small.stop_worker("w2")
    small.workers["w1"].send(signal.SIGCONT)
    small.wait_worker("w1", "ready")
    small.stop_worker("w1")
    small.start_worker("w3")
    small.wait_ready(1)
    assert agent.turn().reused >= 0.95


def test_a_restart_under_load_costs_hardly_a_token(start_cluster: StartCluster, text_only: Path) -> None:
    """Each worker is restarted once while four agents go on; where their turns meet it they go to the other one."""
    cluster = start_cluster(workers=2, slots=4, model=text_only, engine="embedded", context_tokens=WINDOW_TOKENS)
    agents = [Agent(cluster, f"agent-{number}") for number in range(4)]
    for agent in agents:
        agent.turn()
    over = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(_turns_until, agent, over) for agent in agents]
        try:
            for name in ("w1", "w2"):
                cluster.stop_worker(name)
                cluster.start_worker(name)
                cluster.wait_ready(2)
        finally:
            over.set()
        turns = [turn for future in asking for turn in future.result()]
    assert len({turn.worker for turn in turns}) == 2
    assert min(turn.reused for turn in turns) >= 0.95, sorted(turn.reused for turn in turns)[:5]


def _turns_until(agent: Agent, over: threading.Event) -> list[Turn]:
    turns: list[Turn] = []
    while not over.wait(0.2) and agent.prompt < WINDOW_TOKENS - 2000:
        turns.append(agent.turn(words(len(turns), 20)))
    return [*turns, agent.turn()]
