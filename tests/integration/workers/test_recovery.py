"""What happens when parts die, freeze, come back or are stopped: no work is lost and nobody is left waiting."""

import os
import signal
from pathlib import Path

import pytest

from scheduler.attempts import MOST_ATTEMPTS
from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import (
    Asking,
    Stream,
    engine_pid,
    hurry,
    hurry_on,
    last,
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

LONG = "say 200 words"
WHOLE = words(200)
SLOW = {"decode_tokens_per_s": 10}
FAST = 500
LEASE_S = 3.0
FROZEN_S = 8
LOOKED_AFTER_S = 3  # after a freeze: more than one sweep of the API


def one_slot(folder: Path, broker: Broker, **settings: object) -> Cluster:
    """Its one worker takes 20 s for a LONG answer: it is in the middle of it whatever happens meanwhile. Whoever comes
    after it may be FAST."""
    settings = {"lease_lifetime_s": LEASE_S, **settings}
    return Cluster(folder, broker.url, workers=1, slots=1, settings=settings, standin=SLOW, killed_at_end=True)


def told_once(stream: Stream, whole: str) -> None:
    """The client saw one answer, from its first word to its end."""
    stream.answer.result()
    assert (stream.text, stream.last) == (whole, "message_stop")
    assert [event["type"] for event in stream.events].count("message_start") == 1
    assert [event["type"] for event in stream.events].count("content_block_start") == 1


def attempt_of(cluster: Cluster, agent: str) -> dict[str, object]:
    """The log line of an agent's one request."""
    return cluster.wait_log(lambda line: line.get("event") == "request" and line.get("agent") == agent)


def test_a_killed_workers_queued_jobs_move_and_its_running_one_goes_on_elsewhere(
    tmp_path: Path, broker: Broker
) -> None:
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.stream(LONG, "cut")
        assert cut.first_text.wait(30)
        queued = [asking.ask("say 3 words", f"queued-{number}") for number in range(4)]
        wait_line(cluster, 4)
        cluster.add_worker("w2", decode_tokens_per_s=FAST)
        cluster.kill_worker("w1")
        assert [text_of(answer.result()) for answer in queued] == [words(3)] * 4
        assert {answer.result().headers["x-corral-worker"] for answer in queued} == {"w2"}
        told_once(cut, WHOLE)
        request = attempt_of(cluster, "cut")
        assert (request["attempt"], request["worker"], request["outcome"]) == (2, "w2", "done")
        assert (line(cluster), running(cluster), sum(tickets(cluster))) == (0, 0, 0)


@pytest.mark.parametrize(("text", "pace"), [("slow start 2s say 3 words", 10), ("say 3 words", 1)])
def test_a_whole_answer_that_was_cut_is_given_whole(tmp_path: Path, broker: Broker, text: str, pace: float) -> None:
    cluster = one_slot(tmp_path, broker)
    cluster.standin["decode_tokens_per_s"] = pace
    with cluster, Asking(cluster) as asking:
        cut = asking.ask(text, "cut")
        wait_running(cluster, 1)
        told = 1 if text.startswith("slow") else 2  # its start, and then its first word

        def begun() -> bool:
            return any(cluster.redis.xlen(name) >= told for name in cluster.redis.scan_iter("corral:stream:*"))

        wait_for(begun, "the answer to have begun")
        cluster.start_worker("w2", decode_tokens_per_s=FAST)
        cluster.kill_worker("w1")
        answer = cut.result()
        assert text_of(answer) == words(3)
        assert (answer.headers["x-corral-attempt"], answer.headers["x-corral-worker"]) == ("2", "w2")
        assert answer.json()["usage"]["output_tokens"] == 3
        assert answer.json()["stop_reason"] == "end_turn"


def test_an_answer_that_loses_every_engine_ends_with_an_honest_error(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.stream("die after 3 tokens", "cut")
        cut.answer.result()
        assert cut.last == "api_error"
        assert "engine" in cut.events[-1]["error"]["message"]
        assert cut.text == words(3 * MOST_ATTEMPTS)  # each attempt went on where the last one was cut
        assert outcomes(cluster) == ["died"] * MOST_ATTEMPTS
        assert attempt_of(cluster, "cut")["attempt"] == MOST_ATTEMPTS


def test_an_answer_that_loses_every_worker_ends_with_an_honest_error(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.stream("say 600 words at 5 tokens/s", "cut")
        assert cut.first_text.wait(30)
        for attempt in range(1, MOST_ATTEMPTS + 1):
            wait_running(cluster, 1)
            cluster.kill_worker("w1")
            if attempt < MOST_ATTEMPTS:
                cluster.start_worker("w1")
                wait_attempt(cluster, attempt + 1)
        cut.answer.result()
        assert cut.last == "api_error"
        assert "worker died" in cut.events[-1]["error"]["message"]
        assert cut.text == words(len(cut.text.split()))


def wait_attempt(cluster: Cluster, attempt: int) -> None:
    """Until that attempt at the one job is being made."""
    (name,) = cluster.redis.scan_iter("corral:job:*")
    wait_for(
        lambda: cluster.redis.hmget(name, "state", "attempt") == ["running", str(attempt)], f"attempt {attempt}", 30
    )


def test_a_killed_worker_that_comes_back_serves_its_own_line(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.stream(LONG, "cut")
        assert cut.first_text.wait(30)
        queued = [asking.ask("say 3 words", f"queued-{number}") for number in range(3)]
        wait_line(cluster, 3)
        cluster.kill_worker("w1")
        cluster.start_worker("w1", decode_tokens_per_s=FAST)
        assert [text_of(answer.result()) for answer in queued] == [words(3)] * 3
        told_once(cut, WHOLE)


def test_a_frozen_broker_kills_nobody_and_costs_no_answer(tmp_path: Path, own_broker: Broker) -> None:
    cluster = Cluster(tmp_path, own_broker.url, workers=2, slots=1, standin=SLOW, killed_at_end=True)
    with cluster, Asking(cluster) as asking:
        streams = [asking.stream("say 400 words", f"agent-{number}") for number in range(2)]
        assert all(stream.first_text.wait(30) for stream in streams)
        before = own_broker.messages_sent()
        queued = asking.ask("say 3 words", "queued")
        wait_for(lambda: line(cluster, "w1") + line(cluster, "w2") == 1, "the job to wait")
        # A broker that freezes between the record and the ticket takes none: that request is refused, and rightly.
        wait_for(lambda: own_broker.messages_sent() > before, "its ticket")
        own_broker.freeze()
        said = max(len(stream.text.split()) for stream in streams)
        # The freeze itself is the subject: longer than a lease, measured by nothing.
        last(FROZEN_S)
        own_broker.thaw()
        meanwhile = said + 10 * (FROZEN_S + LOOKED_AFTER_S)
        for stream in streams:
            wait_for(lambda stream=stream: len(stream.text.split()) > meanwhile, "words of after the freeze")  # type: ignore[misc]
        assert not any(stream.answer.done() for stream in streams)
        for worker in cluster.workers:
            hurry(cluster, worker)
        for stream in streams:
            stream.answer.result()
            assert (stream.text, stream.last) == (words(400), "message_stop")
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
        ending = asking.stream(LONG, "ending")
        assert ending.first_text.wait(30)
        queued = [asking.ask("say 3 words", f"queued-{number}") for number in range(3)]
        wait_line(cluster, 3)
        cluster.add_worker("w2", decode_tokens_per_s=FAST)
        cluster.workers["w1"].send(signal.SIGTERM)
        cluster.stopped.add("w1")
        cluster.wait_worker("w1", "draining", 10)
        assert [answer.result().headers["x-corral-worker"] for answer in queued] == ["w2"] * 3
        assert not ending.answer.done()
        hurry(cluster)
        ending.answer.result()
        assert (ending.text, ending.last) == (WHOLE, "message_stop")
        assert cluster.workers["w1"].wait(10) == 0
        cluster.wait_worker("w1", "gone")


def test_a_worker_that_leaves_at_once_loses_nothing_of_its_line(tmp_path: Path, broker: Broker) -> None:
    """Its engine is down, so its jobs wait and nothing keeps it from leaving."""
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.stream(LONG, "cut")
        assert cut.first_text.wait(30)
        queued = asking.ask("slow start 1s say 3 words", "queued")
        wait_line(cluster, 1)
        os.kill(engine_pid(cluster), signal.SIGKILL)
        cluster.start_worker("w2", decode_tokens_per_s=FAST)
        cluster.stop_worker("w1")
        assert text_of(queued.result()) == words(3)
        told_once(cut, WHOLE)


def test_answers_longer_than_the_drain_go_on_elsewhere(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker, drain_s=1) as cluster, Asking(cluster) as asking:
        cut = asking.stream(LONG, "cut")
        assert cut.first_text.wait(30)
        cluster.add_worker("w2", decode_tokens_per_s=FAST)
        assert cluster.stop_worker("w1") == 0
        told_once(cut, WHOLE)
        assert attempt_of(cluster, "cut")["worker"] == "w2"


def test_an_answer_that_is_cut_by_the_drain_of_the_only_worker_waits_for_the_next(
    tmp_path: Path, broker: Broker
) -> None:
    with one_slot(tmp_path, broker, drain_s=1) as cluster, Asking(cluster) as asking:
        cut = asking.stream(LONG, "cut")
        assert cut.first_text.wait(30)
        assert cluster.stop_worker("w1") == 0
        cluster.start_worker("w2", decode_tokens_per_s=FAST)
        told_once(cut, WHOLE)


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


def test_a_worker_whose_process_hangs_may_go_on_with_its_own_job_when_it_comes_back(
    tmp_path: Path, broker: Broker
) -> None:
    """It has not noticed that it was taken for dead: for a moment it makes two attempts at one job."""
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.stream(LONG, "cut")
        assert cut.first_text.wait(30)
        os.kill(cluster.workers["w1"].pid, signal.SIGSTOP)
        wait_line(cluster, 1)
        os.kill(cluster.workers["w1"].pid, signal.SIGCONT)
        wait_attempt(cluster, 2)
        hurry_on(cluster, "w1", [cut])
        told_once(cut, WHOLE)
        assert attempt_of(cluster, "cut")["attempt"] == 2
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
