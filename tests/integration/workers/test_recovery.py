"""What happens when parts die, freeze, come back or are stopped: no work is lost and nobody is left waiting."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import (
    Asking,
    line,
    running,
    text_of,
    tickets,
    wait_line,
    wait_running,
    words,
)

pytestmark = pytest.mark.integration

SLOW = "say 600 words at 5 tokens/s"


def one_slot(folder: Path, broker: Broker, **settings: object) -> Cluster:
    return Cluster(folder, broker.url, workers=1, slots=1, settings=settings)


def test_a_killed_workers_queued_jobs_move_and_its_running_one_ends_with_an_error(
    tmp_path: Path, broker: Broker
) -> None:
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.stream(SLOW, "cut")
        assert cut.first_text.wait(30)
        queued = [asking.ask("say 3 words", f"queued-{number}") for number in range(4)]
        wait_line(cluster, 4)
        cluster.add_worker("w2")
        cluster.kill_worker("w1")
        assert [text_of(answer.result()) for answer in queued] == [words(3)] * 4
        assert {answer.result().headers["x-corral-worker"] for answer in queued} == {"w2"}
        cut.answer.result()
        assert cut.last == "api_error"
        assert "worker died" in cut.events[-1]["error"]["message"]
        assert (line(cluster), running(cluster), sum(tickets(cluster))) == (0, 0, 0)


def test_an_answer_cut_before_its_first_word_is_a_status_code_to_be_retried(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.ask("slow start 60s say 3 words", "cut")
        wait_running(cluster, 1)
        cluster.kill_worker("w1")
        answer = cut.result()
        assert answer.status_code >= 500
        assert answer.headers["x-should-retry"] == "true"
        assert answer.json()["error"]["type"] == "api_error"


def test_a_killed_worker_that_comes_back_serves_its_own_line(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.stream(SLOW, "cut")
        assert cut.first_text.wait(30)
        queued = [asking.ask("say 3 words", f"queued-{number}") for number in range(3)]
        wait_line(cluster, 3)
        cluster.kill_worker("w1")
        cluster.start_worker("w1")
        assert [text_of(answer.result()) for answer in queued] == [words(3)] * 3
        cut.answer.result()
        assert cut.last == "api_error"


def tickets_sent(cluster: Cluster) -> int:
    """How many messages Celery has put into any list of this broker; a ticket may be popped and held at once."""
    stats: dict[str, dict[str, int]] = cluster.redis.info("commandstats")
    return stats.get("cmdstat_lpush", {}).get("calls", 0)


def test_a_frozen_broker_kills_nobody_and_costs_no_answer(tmp_path: Path, own_broker: Broker) -> None:
    with Cluster(tmp_path, own_broker.url, workers=2, slots=1) as cluster, Asking(cluster) as asking:
        streams = [asking.stream("say 100 words at 8 tokens/s", f"agent-{number}") for number in range(2)]
        assert all(stream.first_text.wait(30) for stream in streams)
        before = tickets_sent(cluster)
        queued = asking.ask("say 3 words", "queued")
        wait_for(lambda: line(cluster, "w1") + line(cluster, "w2") == 1, "the job to wait")
        # A broker that freezes between the record and the ticket takes none: that request is refused, and rightly.
        wait_for(lambda: tickets_sent(cluster) > before, "its ticket")
        own_broker.freeze()
        # The freeze itself is the subject: longer than a lease, measured by nothing.
        subprocess.run(["sleep", "8"], check=True)
        own_broker.thaw()
        for stream in streams:
            stream.answer.result()
            assert (stream.text, stream.last) == (words(100), "message_stop")
        assert text_of(queued.result()) == words(3)
        log = "".join(path.read_text() for path in cluster.folder.glob("api*.log"))
        assert "job_lost_with_worker" not in log
        assert "job_moved" not in log


def test_lost_tickets_are_replaced(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        first = asking.stream("say 20 words at 20 tokens/s", "first")
        assert first.first_text.wait(30)
        queued = [asking.ask("say 3 words", f"queued-{number}", level=number) for number in range(3)]
        wait_line(cluster, 3)
        for key in list(cluster.redis.scan_iter("llm.*")):
            cluster.redis.delete(key)
        assert [text_of(answer.result()) for answer in queued] == [words(3)] * 3


def test_a_worker_that_is_stopped_ends_its_answers_hands_over_its_line_and_exits_well(
    tmp_path: Path, broker: Broker
) -> None:
    with one_slot(tmp_path, broker, drain_s=20) as cluster, Asking(cluster) as asking:
        ending = asking.stream("say 80 words at 10 tokens/s", "ending")
        assert ending.first_text.wait(30)
        queued = [asking.ask("say 3 words", f"queued-{number}") for number in range(3)]
        wait_line(cluster, 3)
        cluster.add_worker("w2")
        assert cluster.stop_worker("w1") == 0
        assert [answer.result().headers["x-corral-worker"] for answer in queued] == ["w2"] * 3
        ending.answer.result()
        assert (ending.text, ending.last) == (words(80), "message_stop")
        cluster.wait_worker("w1", "gone")


def test_a_worker_that_leaves_at_once_loses_nothing_of_its_line(tmp_path: Path, broker: Broker) -> None:
    """Its engine is down, so its jobs wait and nothing keeps it from leaving."""
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        dying = asking.ask("die after 0 tokens", "dying")
        queued = asking.ask("slow start 1s say 3 words", "queued")
        dying.result()
        cluster.start_worker("w2")
        cluster.stop_worker("w1")
        assert text_of(queued.result()) == words(3)


def test_answers_longer_than_the_drain_end_with_a_proper_error(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker, drain_s=1) as cluster, Asking(cluster) as asking:
        cut = asking.stream(SLOW, "cut")
        assert cut.first_text.wait(30)
        assert cluster.stop_worker("w1") == 0
        cut.answer.result()
        assert cut.last == "api_error"
        assert "the worker was stopped" in cut.events[-1]["error"]["message"]


def test_a_second_worker_of_one_name_refuses_to_start_and_harms_nobody(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster:
        first = cluster.workers["w1"]
        second = cluster.start_worker("w1", settings={"data_dir": tmp_path / "other"})
        assert second.wait(30) == 1
        cluster.workers["w1"] = first
        log = first.log.read_text()
        assert "error: worker: a worker named w1 is running; choose another --name" in log
        assert "Traceback" not in log
        assert text_of(cluster.messages("say 3 words")) == words(3)


def test_a_worker_whose_process_hangs_loses_its_jobs_and_may_come_back(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=1) as cluster, Asking(cluster) as asking:
        cut = asking.stream("say 2000 words at 200 tokens/s", "cut")
        assert cut.first_text.wait(30)
        os.kill(cluster.workers["w1"].pid, signal.SIGSTOP)
        cut.answer.result()
        assert cut.last == "api_error"
        os.kill(cluster.workers["w1"].pid, signal.SIGCONT)
        cluster.wait_worker("w1", "ready")
        assert text_of(cluster.messages("say 3 words")) == words(3)


def test_a_worker_that_was_forgotten_may_come_back(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster:
        assert text_of(cluster.messages("say 3 words")) == words(3)
        cluster.kill_worker("w1")
        wait_for(lambda: not cluster.redis.exists("corral:workers"), "the worker to be forgotten", 30)
        assert not list(cluster.redis.scan_iter("*w1*"))
        cluster.add_worker("w1")
        assert text_of(cluster.messages("say 3 words")) == words(3)
