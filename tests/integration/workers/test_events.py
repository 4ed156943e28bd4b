"""What Flower hears of a worker's tasks: everything, and not one by one."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import Asking, text_of, words

pytestmark = pytest.mark.integration
JOBS = 12
EVENTS = {"task-received", "task-started", "task-succeeded"}


class Heard:
    """The messages of task events that were published, each a list of events."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub
        self.messages: list[list[dict[str, Any]]] = []

    def kinds(self) -> list[str]:
        """The kind of each event so far."""
        while message := self._pubsub.get_message(timeout=0.1):
            if message["type"] == "pmessage":
                body = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
                if isinstance(body, list):
                    self.messages.append(body)
        return [event["type"] for events in self.messages for event in events]


@contextmanager
def hearing(cluster: Cluster) -> Iterator[Heard]:
    with cluster.redis.pubsub() as pubsub:  # type: ignore[no-untyped-call]
        pubsub.psubscribe("*celeryev*")
        yield Heard(pubsub)


def test_the_events_of_tasks_that_run_together_come_together(tmp_path: Path, broker: Broker) -> None:
    with (
        Cluster(tmp_path, broker.url, workers=1, slots=4) as cluster,
        hearing(cluster) as heard,
        Asking(cluster) as asking,
    ):
        answers = [asking.ask("say 3 words", f"agent-{number}") for number in range(JOBS)]
        assert [text_of(answer.result()) for answer in answers] == [words(3)] * JOBS
        wait_for(lambda: heard.kinds().count("task-succeeded") == JOBS, "the end of each task")
        assert sorted(heard.kinds()) == sorted(kind for kind in EVENTS for _ in range(JOBS))
        assert len(heard.messages) <= JOBS  # one by one there are three times as many


def test_a_worker_that_stops_sends_what_it_has_gathered(tmp_path: Path, broker: Broker) -> None:
    with (
        Cluster(tmp_path, broker.url, workers=1, slots=1) as cluster,
        hearing(cluster) as heard,
        Asking(cluster) as asking,
    ):
        assert text_of(asking.ask("say 3 words", "only").result()) == words(3)
        cluster.stop_worker("w1")
        assert set(heard.kinds()) == EVENTS


def test_events_go_on_after_a_broken_connection(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=1) as cluster, Asking(cluster) as asking:
        assert text_of(asking.ask("say 3 words", "before").result()) == words(3)
        cluster.redis.client_kill_filter(_type="normal", skipme=True)
        with hearing(cluster) as heard:
            assert text_of(asking.ask("say 3 words", "after").result()) == words(3)
            wait_for(lambda: "task-succeeded" in heard.kinds(), "the end of the task")
