"""The gate between the line and the engine: never more than the slots, never nothing while a slot is free."""

import os
import signal
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

from scheduler.attempts import MOST_ATTEMPTS
from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import (
    Asking,
    engine_pid,
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


def test_exactly_as_many_run_as_there_are_slots_and_the_next_starts_when_one_ends(
    tmp_path: Path, broker: Broker
) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=2, killed_at_end=True) as cluster, Asking(cluster) as asking:
        first = asking.stream("say 30 words at 30 tokens/s", "first")
        second = asking.stream("say 120 words at 10 tokens/s", "second")
        assert first.first_text.wait(30)
        assert second.first_text.wait(30)
        third = asking.stream("say 6 words at 2 tokens/s", "third")
        wait_line(cluster, 1)
        wait_for(lambda: sum(tickets(cluster)) == 1, "its ticket")
        assert running(cluster) == 2
        first.answer.result()
        assert third.first_text.wait(30)
        assert running(cluster) == 2
        third.answer.result()
        assert third.text == words(6)
        second.answer.result()


def test_after_a_killed_engine_what_ran_goes_on_and_what_waits_is_kept(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=2, killed_at_end=True) as cluster, Asking(cluster) as asking:
        cut = [asking.stream("say 60 words at 10 tokens/s", f"cut-{number}") for number in range(2)]
        assert all(stream.first_text.wait(30) for stream in cut)
        queued = [asking.ask("say 3 words", f"queued-{number}") for number in range(8)]
        wait_line(cluster, 8)
        os.kill(engine_pid(cluster), signal.SIGKILL)
        for stream in cut:
            stream.answer.result()
            assert (stream.text, stream.last) == (words(60), "message_stop")
        assert [answer.result().status_code for answer in queued] == [200] * 8
        assert [text_of(answer.result()) for answer in queued] == [words(3)] * 8


def test_a_job_that_comes_while_the_engine_is_down_waits_for_it(tmp_path: Path, broker: Broker) -> None:
    with (
        Cluster(tmp_path, broker.url, workers=1, slots=2, standin={"load_s": 1}, killed_at_end=True) as cluster,
        Asking(cluster) as asking,
    ):
        os.kill(engine_pid(cluster), signal.SIGKILL)
        answers = [asking.ask("say 3 words", f"agent-{number}") for number in range(6)]
        for answer in answers:
            # The gateway may have heard of it already and say so; what it took, it serves.
            assert answer.result().status_code in {200, 503}
            if answer.result().status_code == 200:
                assert text_of(answer.result()) == words(3)
        assert "engine_lost" not in cluster.api_log()


def test_one_dropped_connection_does_not_close_the_gate(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=1, killed_at_end=True) as cluster, Asking(cluster) as asking:
        assert asking.ask("drop after 2 tokens", "dropped").result().status_code == 502
        assert outcomes(cluster) == ["dropped"] * MOST_ATTEMPTS
        assert text_of(asking.ask("say 3 words", "next").result()) == words(3)


def test_thirty_jobs_of_all_levels_run_by_level_and_arrival(tmp_path: Path, broker: Broker) -> None:
    levels = [(7 * number) % 10 for number in range(30)]
    with Cluster(tmp_path, broker.url, workers=1, slots=1, killed_at_end=True) as cluster, Asking(cluster) as asking:
        blocker = asking.stream("say 60 words at 6 tokens/s", "blocker")
        assert blocker.first_text.wait(30)
        answers = []
        for number, level in enumerate(levels):
            answers.append(asking.ask(f'say "job-{number}"', f"agent-{number}", level=level))
            wait_line(cluster, number + 1)
        wait_for(lambda: tickets(cluster) == [levels.count(level) for level in range(10)], "tickets at each level")
        assert [text_of(answer.result()) for answer in answers] == [f"job-{number}" for number in range(30)]
        blocker.answer.result()
        order = [line["agent"] for line in cluster.log_lines() if line.get("outcome") == "done"]
        expected = sorted(range(30), key=lambda number: (levels[number], number))
        assert order == ["blocker", *(f"agent-{number}" for number in expected)]
        assert outcomes(cluster).count("done") >= 30
        assert line(cluster) == 0


def test_the_next_job_starts_as_soon_after_a_broken_connection_as_before(tmp_path: Path, broker: Broker) -> None:
    """One after another on one slot: a worker that sleeps between two takes ten times as long."""
    with Cluster(tmp_path, broker.url, workers=1, slots=1, killed_at_end=True) as cluster, Asking(cluster) as asking:

        def seconds() -> float:
            began_s = perf_counter()
            answers = [asking.ask("say 1 words", f"agent-{number}") for number in range(12)]
            assert [text_of(answer.result()) for answer in answers] == [words(1)] * 12
            return perf_counter() - began_s

        before_s = [seconds() for _ in range(4)]
        cluster.redis.client_kill_filter(_type="normal", skipme=True)
        assert text_of(asking.ask("say 1 words", "first").result()) == words(1)
        after_s = [seconds() for _ in range(4)]
        assert median(after_s) < 4 * median(before_s), (before_s, after_s)


def test_a_worker_keeps_exact_count_after_the_broker_cut_its_connections(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=2, killed_at_end=True) as cluster, Asking(cluster) as asking:
        streams = [asking.stream("say 60 words at 30 tokens/s", f"agent-{number}") for number in range(2)]
        assert all(stream.first_text.wait(30) for stream in streams)
        cluster.redis.client_kill_filter(_type="normal", skipme=True)
        later = [asking.ask("say 20 words at 50 tokens/s", f"later-{number}") for number in range(6)]
        wait_for(lambda: line(cluster) > 0, "jobs to wait")
        assert running(cluster) == 2
        assert [text_of(answer.result()) for answer in later] == [words(20)] * 6
        for stream in streams:
            stream.answer.result()
            assert (stream.text, stream.last) == (words(60), "message_stop")
        wait_running(cluster, 0)
