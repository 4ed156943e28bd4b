"""Failures that Celery on Redis is known for, each as a test that it does not happen here.

A broker that dies, freezes or forgets under load is the subject of `test_broker_loss`; workers that die, of
`test_recovery`.
"""

import os
import signal
from pathlib import Path

import psutil
import pytest

from infra import keys
from infra.celery_app import build
from infra.config import Settings
from scheduler.contract import LEVELS
from scheduler.queue import Tickets
from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import Asking, line, running, text_of, tickets, words

pytestmark = pytest.mark.integration

LONG = "say 80 words at 10 tokens/s"
WHOLE = words(80)


def worker_process(cluster: Cluster, name: str = "w1") -> psutil.Process:
    return psutil.Process(cluster.workers[name].pid)


def test_a_worker_with_running_tasks_outlives_five_restarts_of_its_broker_and_consumes_after_each(
    tmp_path: Path,
) -> None:
    """celery 5.7.0 exits when its broker is away while it holds a message that is not acknowledged; others stay
    connected and take nothing any more. Tickets are acknowledged before they are run."""
    for name in ("broker", "cluster"):
        (tmp_path / name).mkdir()
    with (
        Broker(tmp_path / "broker", keeps=True) as broker,
        Cluster(tmp_path / "cluster", broker.url, workers=1, slots=2) as cluster,
        Asking(cluster) as asking,
    ):
        process = worker_process(cluster)
        stream = asking.stream(LONG, "long")
        assert stream.first_text.wait(30)
        for number in range(5):
            broker.kill()
            broker.start()
            broker.client.client_kill_filter(_type="normal", skipme=True)
            cluster.wait_ready(1)
            assert text_of(asking.ask("say 3 words", f"after-{number}").result()) == words(3)
        stream.answer.result()
        assert (stream.text, stream.last) == (WHOLE, "message_stop")
        assert process.is_running()
        assert cluster.workers["w1"].alive


def test_nothing_is_kept_unacknowledged_so_a_long_answer_is_not_made_twice(tmp_path: Path, broker: Broker) -> None:
    """What is not acknowledged runs again after the visibility timeout, or at once when the connection breaks."""
    with Cluster(tmp_path, broker.url, workers=1, slots=2) as cluster, Asking(cluster) as asking:
        stream = asking.stream("say 40 words at 20 tokens/s", "long")
        assert stream.first_text.wait(30)
        assert list(cluster.redis.scan_iter("unacked*")) == []
        cluster.redis.client_kill_filter(_type="normal", skipme=True)
        stream.answer.result()
        assert (stream.text, stream.last) == (words(40), "message_stop")
        assert text_of(asking.ask("say 3 words", "after").result()) == words(3)
        asked = [entry for entry in cluster.engine_requests("w1") if entry["event"] == "request"]
        assert len(asked) == 2


def test_after_twenty_reconnects_a_worker_takes_exactly_its_slots_from_its_own_queue(
    tmp_path: Path, broker: Broker
) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=2) as cluster, Asking(cluster) as asking:
        process = worker_process(cluster)
        threads = process.num_threads()
        for number in range(20):
            cluster.redis.client_kill_filter(_type="normal", skipme=True)
            assert text_of(asking.ask("say 1 words", f"between-{number}").result()) == words(1)
        app = build(Settings(redis_url=broker.url))
        try:
            queues = wait_for(lambda: app.control.inspect(timeout=1).active_queues(), "the worker's queues")
        finally:
            app.close()
        assert [[queue["name"] for queue in each] for each in queues.values()] == [[keys.queue("w1")]]
        running_now = [asking.stream("say 30 words at 10 tokens/s", f"running-{number}") for number in range(2)]
        assert all(stream.first_text.wait(30) for stream in running_now)
        waiting = [asking.ask("say 3 words", f"waiting-{number}") for number in range(3)]
        wait_for(lambda: line(cluster) == 3 and sum(tickets(cluster)) == 3, "three jobs to wait, each with its ticket")
        assert running(cluster) == 2
        assert [text_of(answer.result()) for answer in waiting] == [words(3)] * 3
        assert process.num_threads() <= threads + 4  # threads of slots and engine connections come when first needed


def test_a_ticket_that_a_frozen_worker_took_along_into_its_death_is_nobodys_loss(
    tmp_path: Path, broker: Broker
) -> None:
    """A message that is popped for a process which never reads it is in no list any more."""
    with Cluster(tmp_path, broker.url, workers=1, slots=2) as cluster, Asking(cluster) as asking:
        assert text_of(asking.ask("say 3 words", "before").result()) == words(3)
        os.kill(cluster.workers["w1"].pid, signal.SIGSTOP)
        taken = [asking.ask("say 3 words", f"taken-{number}") for number in range(3)]
        wait_for(lambda: line(cluster) == 3 and sum(tickets(cluster)) < 3, "a ticket to be popped by nobody")
        cluster.kill_worker("w1")
        cluster.add_worker("w1")
        assert [text_of(answer.result()) for answer in taken] == [words(3)] * 3


def test_a_worker_that_is_stopped_cold_does_not_wait_for_its_answers_and_they_go_on_elsewhere(
    tmp_path: Path, broker: Broker
) -> None:
    """Celery's own thread pool waits for its tasks whatever signal came, and has lost or doubled them then."""
    cluster = Cluster(tmp_path, broker.url, workers=2, slots=4, settings={"drain_s": 1})
    with cluster, Asking(cluster) as asking:
        streams = [asking.stream(LONG, f"agent-{number}") for number in range(4)]
        assert all(stream.first_text.wait(30) for stream in streams)
        wait_for(lambda: running(cluster) > 0, "some of them to run there")
        assert cluster.stop_worker("w1", signal.SIGQUIT, 15) >= 0  # not by force
        assert not any(stream.answer.done() for stream in streams)
        assert "NotImplementedError" not in cluster.worker_log("w1")
        for stream in streams:
            stream.answer.result()
            assert (stream.text, stream.last) == (WHOLE, "message_stop")


def test_each_of_the_ten_levels_has_a_list_of_its_own_that_all_who_count_agree_on(broker: Broker) -> None:
    """Steps or separators that differ between producer, worker and Flower leave whole levels unread."""
    app = build(Settings(redis_url=broker.url))
    sender = Tickets(app)
    try:
        for level in LEVELS:
            for _ in range(level + 1):
                sender.send("job", "agent", "w1", level)
        assert [broker.client.llen(keys.level_list("w1", level)) for level in LEVELS] == [level + 1 for level in LEVELS]
        with app.connection_for_read() as connection, connection.channel() as channel:
            assert channel.queue_declare(keys.queue("w1"), passive=True).message_count == sum(range(1, 11))
    finally:
        sender.close()
