"""A running cluster grows and shrinks while agents work, and each engine sees only its own cards."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.acceptance.conftest import StartCluster
from tests.doubles.cluster import Cluster

pytestmark = pytest.mark.acceptance

AGENTS = [f"agent-{number}" for number in range(4)]


def ask(cluster: Cluster, agent: str) -> str:
    """One short answer for `agent`; the worker that gave it."""
    answer = cluster.messages("say 3 words", headers={"x-agent-id": agent})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-corral-worker"]


def keep_asking(cluster: Cluster, agent: str, over: Event) -> set[str]:
    """Ask for `agent` again and again; every worker that answered."""
    seen = set()
    while not over.is_set():
        seen.add(ask(cluster, agent))
    return seen


def test_a_third_worker_takes_new_conversations_and_no_home_moves(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=2, slots=4)
    homes = {agent: ask(cluster, agent) for agent in AGENTS}
    over = Event()
    with ThreadPoolExecutor(len(AGENTS)) as agents:
        running = {agent: agents.submit(keep_asking, cluster, agent, over) for agent in AGENTS}
        try:
            cluster.add_worker("w3")
            new = [ask(cluster, f"new-{number}") for number in range(30)]
            assert cluster.stop_worker("w3", signal.SIGTERM) == 0
            cluster.wait_worker("w3", "gone")
            after = [ask(cluster, f"new-{number}") for number in range(30)]
        finally:
            over.set()
        seen = {agent: future.result(timeout=30) for agent, future in running.items()}
    assert seen == {agent: {home} for agent, home in homes.items()}
    assert 5 <= new.count("w3") <= 15, "about a third of the new conversations"
    assert "w3" not in after
    assert all(before == now for before, now in zip(new, after, strict=True) if before != "w3")


@pytest.mark.parametrize(("gpu", "visible"), [("0,1", "0,1"), ("1", "1"), ("none", "")])
def test_an_engine_sees_only_the_cards_of_its_worker(start_cluster: StartCluster, gpu: str, visible: str) -> None:
    cluster = start_cluster(workers=1, settings={"gpu": gpu})
    pid = cluster.status()["workers"][0]["engine_pid"]
    environment = dict(
        entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry
    )
    assert environment["CUDA_VISIBLE_DEVICES"] == visible
    assert environment["HIP_VISIBLE_DEVICES"] == visible
