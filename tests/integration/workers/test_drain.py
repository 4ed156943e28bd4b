"""A worker that is drained and taken back: its line goes to others, no answer is lost, and everybody is told."""

import signal
from pathlib import Path

import httpx
import pytest

from infra.cli import drain as command
from infra.errors import CorralError, NotFound
from scheduler.attempts import MOST_ATTEMPTS
from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import (
    Asking,
    Stream,
    hurry,
    hurry_on,
    line,
    running,
    text_of,
    tickets,
    wait_line,
    wait_running,
    words,
)

pytestmark = pytest.mark.integration
LONG = "say 400 words"
ENDLESS_S = 60.0


def house(folder: Path, broker: Broker, workers: int = 2, **settings: object) -> Cluster:
    """Its engines take 40 s for a LONG answer: it ends when they are hurried."""
    pace = {"decode_tokens_per_s": 10}
    return Cluster(folder, broker.url, workers=workers, slots=1, settings=settings, standin=pace, killed_at_end=True)


def drain(cluster: Cluster, worker: str, timeout_s: float) -> httpx.Response:
    return cluster.http.post(f"/v1/workers/{worker}/drain", json={"timeout_s": timeout_s})


def undrain(cluster: Cluster, worker: str) -> httpx.Response:
    return cluster.http.delete(f"/v1/workers/{worker}/drain")


def whole(stream: Stream) -> bool:
    """The client saw one answer, from its first word to its end."""
    stream.answer.result()
    starts = [event["type"] for event in stream.events].count("message_start")
    return (stream.text, stream.last, starts) == (words(400), "message_stop", 1)


class Heard:
    """What commands have said so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._said = ""
        self.warned = ""

    def said(self) -> str:
        told = self._capsys.readouterr()
        self._said += told.out
        self.warned += told.err
        return self._said


def test_a_drained_worker_ends_its_answers_hands_over_its_line_and_works_again_when_taken_back(
    tmp_path: Path, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    with house(tmp_path, broker) as cluster, Asking(cluster) as asking:
        command.drain("w2", ENDLESS_S, url=cluster.url)
        ending = asking.stream(LONG, "ending")
        assert ending.first_text.wait(30)
        queued = [asking.ask("say 3 words", f"queued-{number}") for number in range(3)]
        wait_line(cluster, 3)
        command.undrain("w2", url=cluster.url)
        draining = asking.pool.submit(command.drain, "w1", ENDLESS_S, cluster.url)
        assert [answer.result().headers["x-corral-worker"] for answer in queued] == ["w2"] * 3
        heard = Heard(capsys)
        wait_for(lambda: "w1: 1 answer running" in heard.said(), "the command to tell of the answer")
        assert cluster.worker_states() == {"w1": "draining", "w2": "ready"}
        assert not ending.answer.done()
        hurry(cluster)
        draining.result()
        assert cluster.worker_states() == {"w1": "drained", "w2": "ready"}
        assert (line(cluster), running(cluster), sum(tickets(cluster))) == (0, 0, 0)
        assert whole(ending)
        assert "w1 is drained. Stop it, or take it back with `corral undrain w1`" in heard.said()
        assert heard.warned == ""
        assert cluster.messages("say 3 words").headers["x-corral-worker"] == "w2"
        command.drain("w1", ENDLESS_S, url=cluster.url)  # once more changes nothing
        command.undrain("w1", url=cluster.url)
        cluster.wait_worker("w1", "ready")
        cluster.stop_worker("w2")
        assert cluster.messages("say 3 words").headers["x-corral-worker"] == "w1"


def test_answers_longer_than_the_drain_go_on_elsewhere_however_often_that_happens(
    tmp_path: Path, broker: Broker
) -> None:
    """It is the house that moves them, so it is no attempt of theirs that failed."""
    with house(tmp_path, broker) as cluster, Asking(cluster) as asking:
        cut = asking.stream(LONG, "cut")
        assert cut.first_text.wait(30)
        here, there = ("w1", "w2") if running(cluster, "w1") else ("w2", "w1")
        for _ in range(MOST_ATTEMPTS + 1):
            assert drain(cluster, here, 0).status_code == httpx.codes.OK
            wait_running(cluster, 1, there)
            cluster.wait_worker(here, "drained")
            assert undrain(cluster, here).status_code == httpx.codes.OK
            cluster.wait_worker(here, "ready")
            here, there = there, here
        hurry_on(cluster, here, [cut])
        assert whole(cut)
        request = cluster.wait_log(lambda line: line.get("event") == "request")
        assert (request["attempt"], request["outcome"]) == (MOST_ATTEMPTS + 2, "done")


def test_where_no_other_worker_is_left_it_is_said_and_what_waits_goes_on_when_it_is_taken_back(
    tmp_path: Path, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    with house(tmp_path, broker, workers=1) as cluster, Asking(cluster) as asking:
        cut = asking.stream(LONG, "cut")
        assert cut.first_text.wait(30)
        queued = asking.ask("say 3 words", "queued")
        wait_line(cluster, 1)
        command.drain("w1", 0, url=cluster.url)
        told = capsys.readouterr()
        assert "w1 is drained; 2 requests waiting for another worker" in told.out
        assert "no other worker serves" in told.err
        refused = cluster.messages("say 3 words")
        assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert "drained or being stopped" in refused.json()["error"]["message"]
        assert "retry-after" in refused.headers
        command.undrain("w1", url=cluster.url)
        hurry_on(cluster, "w1", [cut])
        assert text_of(queued.result()) == words(3)
        assert whole(cut)


def test_a_drain_outlives_a_crash_and_ends_with_the_worker(tmp_path: Path, broker: Broker) -> None:
    with house(tmp_path, broker, lease_lifetime_s=3) as cluster:
        drain(cluster, "w1", 5)
        cluster.wait_worker("w1", "drained")
        cluster.kill_worker("w1")
        cluster.start_worker("w1")
        pid = cluster.workers["w1"].pid
        wait_for(lambda: pid_of(cluster, "w1") == pid, "the new process", 60)
        cluster.wait_worker("w1", "drained")
        cluster.stop_worker("w1", signal.SIGTERM)
        cluster.add_worker("w1")
        assert not list(cluster.redis.scan_iter("corral:drain:*"))


def pid_of(cluster: Cluster, name: str) -> int:
    return next((worker["pid"] for worker in cluster.status()["workers"] if worker["name"] == name), 0)


def test_an_unknown_worker_is_refused_by_name_and_whoever_watches_hears_that_one_was_taken_back(
    tmp_path: Path, broker: Broker
) -> None:
    with house(tmp_path, broker) as cluster, Asking(cluster) as asking:
        unknown = "worker: w9 is not known; there are w1, w2"
        with pytest.raises(NotFound, match=unknown):
            command.drain("w9", url=cluster.url)
        with pytest.raises(NotFound, match=unknown):
            command.undrain("w9", url=cluster.url)
        answer = cluster.http.post("/v1/workers/w1/drain", json={"timeout_s": -1})
        assert answer.status_code == httpx.codes.BAD_REQUEST
        assert answer.json()["error"]["message"].startswith("timeout_s: ")
        assert cluster.worker_states() == {"w1": "ready", "w2": "ready"}
        command.undrain("w1", url=cluster.url)
        stream = asking.stream(LONG, "runs")
        assert stream.first_text.wait(30)
        busy = "w1" if running(cluster, "w1") else "w2"
        watching = asking.pool.submit(command.drain, busy, ENDLESS_S, cluster.url)
        cluster.wait_worker(busy, "draining")
        command.undrain(busy, url=cluster.url)
        with pytest.raises(CorralError, match=f"{busy} was taken back"):
            watching.result()
        hurry(cluster, busy)
        assert whole(stream)
