"""Clients that leave: what they held is given back at once, and nothing at all is left."""

from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import (
    Asking,
    hung_up,
    line,
    outcomes,
    running,
    text_of,
    tickets,
    wait_line,
    wait_running,
    words,
)

pytestmark = pytest.mark.integration

SLOW = "say 600 words at 5 tokens/s"
# What may stay: counters, books of the living, and what is remembered of conversations.
LASTING = (
    "corral:arrivals",
    "corral:layout",
    "corral:workers",
    "corral:apis",
    "corral:lease:",
    "corral:home",
    "corral:wake:",
    "corral:control:",
)
MISSES = "corral:misses"  # totals
EXPLAINING = ("corral:turn:", "corral:latest:", "corral:why:", "corral:whys:")
SCHEDULING = tuple(f"corral:{name}:" for name in ("attained", "lengths", "settled", "back", "urgent", "holding"))
PASSING = ("corral:lock:", "corral:apis", "corral:count:", "_kombu")


def left_behind(cluster: Cluster) -> list[str]:
    names: list[str] = list(cluster.redis.scan_iter(count=1000))
    return [
        name for name in names if not name.startswith((*LASTING, *EXPLAINING, *SCHEDULING, *PASSING)) and name != MISSES
    ]


def slots(cluster: Cluster) -> list[dict[str, object]]:
    return [slot for worker in cluster.status()["workers"] for slot in worker.get("info", worker)["slots"]]


def test_a_client_that_leaves_the_queue_takes_its_job_and_ticket_along(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=1) as cluster, Asking(cluster) as asking:
        with hung_up(cluster, SLOW, "busy", after_first_text=True):
            stays = asking.ask("say 3 words", "stays")
            wait_line(cluster, 1)
            with hung_up(cluster, SLOW, "waits", after_first_text=False):
                wait_line(cluster, 2)
                wait_for(lambda: sum(tickets(cluster)) == 2, "both tickets")
            wait_line(cluster, 1)
            wait_for(lambda: sum(tickets(cluster)) == 1, "its ticket to go")
        assert text_of(stays.result()) == words(3)


def test_a_client_that_leaves_its_answer_frees_the_engines_slot(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=1) as cluster, Asking(cluster) as asking:
        with hung_up(cluster, SLOW, "leaves", after_first_text=True):
            wait_running(cluster, 1)
        wait_for(lambda: outcomes(cluster) == ["cancelled"] or len(outcomes(cluster)) == 1, "the engine to notice")
        wait_running(cluster, 0)
        assert text_of(asking.ask("say 3 words", "next").result()) == words(3)


def test_a_client_that_leaves_during_a_long_prefill_frees_the_slot(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=1) as cluster, Asking(cluster) as asking:
        with hung_up(cluster, "slow start 60s say 3 words", "leaves", after_first_text=False):
            wait_running(cluster, 1)
        wait_running(cluster, 0)
        assert text_of(asking.ask("say 3 words", "next").result()) == words(3)


def test_a_hundred_streams_opened_and_dropped_leave_nothing(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=2, slots=2) as cluster:
        assert text_of(cluster.messages("say 3 words")) == words(3)
        processes = {name: psutil.Process(child.pid) for name, child in cluster.workers.items()}
        processes["api"] = psutil.Process(cluster.apis[0].pid)
        threads = {name: process.num_threads() for name, process in processes.items()}
        with ExitStack() as clients:
            for number in range(100):
                clients.enter_context(hung_up(cluster, SLOW, f"agent-{number}", after_first_text=False))
            wait_for(
                lambda: sum(line(cluster, w) + running(cluster, w) for w in ("w1", "w2")) == 100, "all hundred", 60
            )
        wait_for(lambda: left_behind(cluster) == [], "nothing but the living to be left", 30)
        for worker in ("w1", "w2"):
            assert (line(cluster, worker), running(cluster, worker), sum(tickets(cluster, worker))) == (0, 0, 0)
        wait_for(lambda: not any(slot["busy"] for slot in slots(cluster)), "free slots")
        assert len(slots(cluster)) == 4
        for name, process in processes.items():
            # Pools of threads and connections may have grown to their fixed sizes, and no further.
            assert process.num_threads() <= threads[name] + 8
        connections = len(processes["api"].net_connections(kind="tcp"))
        assert connections < 60
        forever = [
            name
            for name in cluster.redis.scan_iter()
            if name.startswith(("corral:wake:", "corral:control:", *EXPLAINING, *SCHEDULING))
        ]
        assert all(cluster.redis.ttl(name) > 0 for name in forever)
        assert text_of(cluster.messages("say 3 words")) == words(3)
