"""Failures that Celery on Redis is known for, each as a test that it does not happen here.

Which test stands for which of the fifteen is said in `tests/contracts/test_known_failures.py`.
"""

import re
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra import keys
from infra.celery_app import build
from infra.config import Settings
from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.proxy import Proxy
from tests.doubles.services import wait_for
from tests.integration.workers.clients import (
    Asking,
    Stream,
    hurry,
    hurry_on,
    last,
    line,
    outcomes,
    running,
    text_of,
    tickets,
    wait_running,
    words,
)

pytestmark = pytest.mark.integration

LONG = "say 80 words at 10 tokens/s"
WHOLE = words(80)
SLOW = {"decode_tokens_per_s": 10}
ENDLESS = "say 400 words"  # of a SLOW engine: it ends when it is hurried
BACK_WITHIN_S = 5.0
HALF_OPEN_S = 60.0
NOTICED_WITHIN_S = 15.0
LEASE_S = 3.0
MOVED_WITHIN_S = 2.0
ODD = "tests.doubles.odd_worker"
GROWN_BYTES = 8 * 2**20


def worker_process(cluster: Cluster, name: str = "w1") -> psutil.Process:
    return psutil.Process(cluster.workers[name].pid)


def told_once(stream: Stream, whole: str) -> None:
    """The client saw one answer, from its first word to its end."""
    stream.answer.result()
    assert (stream.text, stream.last) == (whole, "message_stop")
    kinds = [event["type"] for event in stream.events]
    assert [kinds.count(kind) for kind in ("message_start", "content_block_start", "message_stop")] == [1, 1, 1]


def served(cluster: Cluster) -> str:
    """An answer, asked for again as long as it is refused for now: as a client does."""

    def answer() -> httpx.Response | None:
        found = cluster.messages("say 3 words")
        return None if found.status_code == httpx.codes.SERVICE_UNAVAILABLE else found

    return text_of(wait_for(answer, "a request to be taken", 60))


# --- the connection ---------------------------------------------------------------------------------------------------


@dataclass
class HalfOpen:
    """A cluster from whose broker nothing comes and to which nothing goes, since when, and the exit status of its w2,
    which is told to end once that is noticed."""

    cluster: Cluster
    proxy: Proxy
    since_s: float
    end_of_w2: Future[int]


@pytest.fixture(scope="module", autouse=True)
def half_open(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HalfOpen]:
    """The minute, and the end of w2, pass beside the other tests."""
    folder = tmp_path_factory.mktemp("half-open")
    (folder / "broker").mkdir()
    with (
        Broker(folder / "broker") as broker,
        Proxy(broker.port) as proxy,
        Cluster(folder, proxy.url, workers=2, slots=2, killed_at_end=True) as cluster,
    ):
        assert text_of(cluster.messages("say 3 words")) == words(3)
        proxy.lose()
        since_s = time.monotonic()
        nobody_waits = threading.Event()

        def end_w2() -> int:
            nobody_waits.wait(NOTICED_WITHIN_S)
            number = signal.SIGKILL if nobody_waits.is_set() else signal.SIGTERM
            return cluster.stop_worker("w2", number, 40)

        with ThreadPoolExecutor(1) as beside:
            yield HalfOpen(cluster, proxy, since_s, beside.submit(end_w2))
            nobody_waits.set()


def test_a_worker_with_running_tasks_outlives_restarts_of_its_broker_and_serves_soon_after_each(
    tmp_path: Path,
) -> None:
    """celery 5.7.0 exits when its broker is away while it holds a message that is not acknowledged; others stay
    connected and take nothing any more. Tickets are acknowledged before they are run."""
    for name in ("broker", "cluster"):
        (tmp_path / name).mkdir()
    with (
        Broker(tmp_path / "broker", keeps=True) as broker,
        Cluster(tmp_path / "cluster", broker.url, workers=1, slots=2, killed_at_end=True) as cluster,
        Asking(cluster) as asking,
    ):
        process = worker_process(cluster)
        stream = asking.stream(LONG, "long")
        assert stream.first_text.wait(30)
        took_s = []
        for _ in range(5):
            broker.kill()
            last(1.5)
            broker.start()
            began_s = time.monotonic()
            broker.client.client_kill_filter(_type="normal", skipme=True)
            assert served(cluster) == words(3)
            took_s.append(time.monotonic() - began_s)
        told_once(stream, WHOLE)
        assert statistics.median(took_s) < BACK_WITHIN_S
        assert process.is_running()
        assert cluster.workers["w1"].alive
        # Celery waits two seconds longer before each attempt, up to half a minute.
        log = cluster.worker_log("w1")
        assert "Trying again now" in log
        assert set(re.findall(r"Trying again in ([\d.]+) second", log)) <= {"1.00"}


def test_a_consumer_that_takes_nothing_is_found_by_its_missing_claims_and_its_worker_ends(
    tmp_path: Path, broker: Broker
) -> None:
    """Its lease, its pings and its connection are all well. Whoever started it starts it again."""
    settings = {"drain_s": 1}
    cluster = Cluster(
        tmp_path, broker.url, workers=1, slots=2, settings=settings, standin=SLOW, worker_module=ODD, killed_at_end=True
    )
    with cluster, Asking(cluster) as asking:
        cut = asking.stream(ENDLESS, "cut")
        assert cut.first_text.wait(30)
        cluster.workers["w1"].send(signal.SIGUSR2)
        stuck = [asking.ask("say 3 words", f"stuck-{number}") for number in range(3)]
        # What it asked for before may still come.
        wait_for(lambda: line(cluster) > 0 and running(cluster) == 1, "jobs that nobody takes")
        assert cluster.worker_states() == {"w1": "ready"}
        cluster.add_worker("w2", decode_tokens_per_s=500)
        cluster.stopped.add("w1")
        assert cluster.workers["w1"].wait(60) == 0
        assert "no_tickets_taken" in cluster.worker_log("w1")
        assert [text_of(answer.result()) for answer in stuck] == [words(3)] * 3
        told_once(cut, words(400))


def test_an_answer_longer_than_the_visibility_timeout_is_made_once(tmp_path: Path, broker: Broker) -> None:
    """What is not acknowledged runs again after that time, though it still runs: here five seconds."""
    with (
        Cluster(tmp_path, broker.url, workers=1, slots=2, worker_module=ODD, killed_at_end=True) as cluster,
        Asking(cluster) as asking,
    ):
        stream = asking.stream(LONG, "long")
        assert stream.first_text.wait(30)
        assert list(broker.client.scan_iter("unacked*")) == []
        told_once(stream, WHOLE)
        assert outcomes(cluster) == ["done"]
        assert "redelivered" not in cluster.worker_log("w1")


def test_connections_that_break_under_answers_make_nothing_twice(tmp_path: Path, broker: Broker) -> None:
    """What is not acknowledged runs again when the connection breaks, beside the first."""
    cluster = Cluster(tmp_path, broker.url, workers=1, slots=4, standin=SLOW, killed_at_end=True)
    with cluster, Asking(cluster) as asking:
        streams = [asking.stream(ENDLESS, f"long-{number}") for number in range(2)]
        assert all(stream.first_text.wait(30) for stream in streams)
        for number in range(3):
            broker.client.client_kill_filter(_type="normal", skipme=True)
            assert text_of(asking.ask("say 3 words", f"after-{number}").result()) == words(3)
        assert not any(stream.answer.done() for stream in streams)
        hurry(cluster)
        for stream in streams:
            told_once(stream, words(400))
        wait_for(lambda: len(outcomes(cluster)) >= 5, "every answer to be in the engine's log")
        assert outcomes(cluster) == ["done"] * 5


def test_after_twenty_reconnects_a_worker_takes_exactly_its_slots_and_has_not_grown(
    tmp_path: Path, broker: Broker
) -> None:
    cluster = Cluster(tmp_path, broker.url, workers=1, slots=2, killed_at_end=True)
    with cluster, Asking(cluster) as asking:
        process = worker_process(cluster)
        for number in range(25):
            if number == 5:  # what is made once has been made
                threads, rss_bytes = process.num_threads(), process.memory_info().rss
            cluster.redis.client_kill_filter(_type="normal", skipme=True)
            assert text_of(asking.ask("say 1 words", f"between-{number}").result()) == words(1)
        assert process.num_threads() <= threads + 4
        assert process.memory_info().rss - rss_bytes < GROWN_BYTES
        app = build(Settings(redis_url=broker.url))
        try:
            queues = wait_for(lambda: app.control.inspect(timeout=1).active_queues(), "the worker's queues")
        finally:
            app.close()
        assert [[queue["name"] for queue in each] for each in queues.values()] == [[keys.queue("w1")]]
        running_now = [asking.stream("say 100 words at 10 tokens/s", f"running-{number}") for number in range(2)]
        assert all(stream.first_text.wait(30) for stream in running_now)
        waiting = [asking.ask("say 3 words", f"waiting-{number}") for number in range(3)]
        wait_for(lambda: line(cluster) == 3, "three jobs to wait")
        said = len(running_now[0].events)
        wait_for(lambda: len(running_now[0].events) > said + 8, "more words, while nothing else is taken")
        assert (line(cluster), sum(tickets(cluster)), running(cluster)) == (3, 3, 2)
        hurry(cluster)
        assert [text_of(answer.result()) for answer in waiting] == [words(3)] * 3


def on(cluster: Cluster, records: list[str]) -> set[str]:
    """The workers that have these jobs."""
    return {str(cluster.redis.hget(record, "worker")) for record in records}


def eight_ends(cluster: Cluster) -> list[dict[str, Any]] | None:
    ended = [entry for entry in cluster.log_lines() if entry.get("event") == "request"]
    return ended if len(ended) >= 8 else None


# --- the worker -------------------------------------------------------------------------------------------------------


def test_a_killed_workers_jobs_are_taken_by_another_within_a_lease_and_two_seconds(
    tmp_path: Path, broker: Broker
) -> None:
    """The lease is the broker's to end; the two seconds are ours. The better of two times, on a busy machine."""
    settings = {"lease_lifetime_s": LEASE_S}
    cluster = Cluster(tmp_path, broker.url, workers=2, slots=2, settings=settings, standin=SLOW, killed_at_end=True)
    with cluster, Asking(cluster) as asking:
        took_s = []
        for here, there in (("w1", "w2"), ("w2", "w1")):
            cluster.wait_ready(2)
            streams = [asking.stream(ENDLESS, f"{here}-{number}") for number in range(4)]
            assert all(stream.first_text.wait(30) for stream in streams)
            lost = [f"corral:job:{job!s}" for job in cluster.redis.hkeys(f"corral:running:{here}")]
            assert len(lost) == 2
            cluster.kill_worker(here)
            wait_for(lambda here=here: not cluster.redis.exists(f"corral:lease:{here}"), "its lease to end")  # type: ignore[misc]
            began_s = time.monotonic()
            wait_for(lambda lost=lost, there=there: on(cluster, lost) == {there}, "its jobs to be another's")  # type: ignore[misc]
            took_s.append(time.monotonic() - began_s)
            hurry_on(cluster, there, streams)
            for stream in streams:
                told_once(stream, words(400))
            if took_s[-1] < MOVED_WITHIN_S:
                break
            cluster.start_worker(here)
        assert min(took_s) < MOVED_WITHIN_S


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGTERM], ids=["cold", "warm"])
def test_a_worker_that_is_stopped_waits_no_longer_than_its_drain_and_each_answer_ends_once(
    tmp_path: Path, broker: Broker, number: signal.Signals
) -> None:
    """Celery's own thread pool waits for its tasks whatever signal came, and has lost or doubled them then."""
    settings = {"drain_s": 1}
    cluster = Cluster(tmp_path, broker.url, workers=2, slots=2, settings=settings, standin=SLOW, killed_at_end=True)
    with cluster, Asking(cluster) as asking:
        streams = [asking.stream(ENDLESS, f"agent-{number}") for number in range(4)]
        assert all(stream.first_text.wait(30) for stream in streams)
        queued = [asking.ask("say 3 words", f"queued-{number}") for number in range(4)]
        wait_for(lambda: line(cluster, "w1") + line(cluster, "w2") == 4, "four jobs to wait")
        wait_running(cluster, 2)
        assert cluster.stop_worker("w1", number, 15) >= 0  # not by force
        assert not any(stream.answer.done() for stream in streams)
        assert "NotImplementedError" not in cluster.worker_log("w1")
        hurry_on(cluster, "w2", streams)
        assert [text_of(answer.result()) for answer in queued] == [words(3)] * 4
        for stream in streams:
            told_once(stream, words(400))
        ended = wait_for(lambda: eight_ends(cluster), "the log line of each request")
        assert sorted((entry["agent"], entry["outcome"]) for entry in ended) == sorted(
            (f"{kind}-{which}", "done") for kind in ("agent", "queued") for which in range(4)
        )
        assert (line(cluster), running(cluster), sum(tickets(cluster))) == (0, 0, 0)


def test_a_worker_ends_when_it_is_told_to_though_its_network_carries_nothing(
    half_open: HalfOpen,
) -> None:
    """Celery tries to send its sign of life for ever, and hears no signal meanwhile."""
    assert half_open.end_of_w2.result() == 0


def test_a_network_that_carried_nothing_for_a_minute_is_noticed_and_used_again_soon(
    half_open: HalfOpen,
) -> None:
    """A connection that is half open says nothing, neither that it is broken nor that it is not."""
    cluster = half_open.cluster
    process = worker_process(cluster)
    last(half_open.since_s + HALF_OPEN_S - time.monotonic())
    half_open.proxy.mend()
    began_s = time.monotonic()
    assert served(cluster) == words(3)
    assert time.monotonic() - began_s < NOTICED_WITHIN_S
    assert process.is_running()
