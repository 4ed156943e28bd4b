"""An engine that hangs, flaps or babbles: its answers go on or end with an error, and its worker says what is wrong."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from scheduler.attempts import MOST_ATTEMPTS
from tests.acceptance.conftest import running
from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import (
    Asking,
    body,
    engine_pid,
    events_of,
    headers,
    hung_up,
    outcomes,
    text_of,
    wait_running,
    words,
)

pytestmark = pytest.mark.integration


def one_slot(folder: Path, broker: Broker, **settings: object) -> Cluster:
    return Cluster(folder, broker.url, workers=1, slots=1, settings={"hang_s": 1, **settings}, killed_at_end=True)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker with one slot, which leaves an engine that is silent alone."""
    settings = {"hang_s": 600, "repeat_limit_tokens": 50}
    folder = tmp_path_factory.mktemp("patient")
    with running(folder, workers=1, slots=1, settings=settings, killed_at_end=True) as cluster:
        yield cluster


def worker_of(cluster: Cluster, name: str = "w1") -> dict[str, Any]:
    return next(worker for worker in cluster.status()["workers"] if worker["name"] == name)


def is_ready(cluster: Cluster) -> bool:
    """Whether w1 is ready with the engine that was started last."""
    worker = worker_of(cluster)
    pid = engine_pid(cluster)
    return bool(worker["state"] == "ready" and worker["engine_pid"] == pid and psutil.pid_exists(pid))


def ended(cluster: Cluster) -> list[str]:
    """Why the engine of w1 was restarted, each time."""
    lines = cluster.worker_log_lines("w1")
    return [line["reason"] for line in lines if line.get("event") == "engine.state" and line["state"] == "failing"]


def show_pace(cluster: Cluster) -> None:
    """An engine that has prefilled no prompt of some length yet is taken for a slow one, and left alone for longer."""
    assert text_of(cluster.messages(f"{words(1000)}: say 3 words")) == words(3)


def test_an_engine_that_hangs_in_an_answer_is_restarted_and_the_answer_goes_on(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster, Asking(cluster) as asking:
        show_pace(cluster)
        cut = asking.stream("say 30 words at 10 tokens/s", "cut")
        assert cut.first_text.wait(30)
        os.kill(engine_pid(cluster), signal.SIGSTOP)
        cut.answer.result()
        assert (cut.text, cut.last) == (words(30), "message_stop")
        (reason,) = ended(cluster)
        assert "made no progress" in reason


@pytest.mark.parametrize("after", [0, 3], ids=["in the prefill", "in the answer"])
def test_an_engine_that_hangs_though_its_health_answers_is_restarted(
    tmp_path: Path, broker: Broker, after: int
) -> None:
    """It hangs in each attempt; here its client leaves after the first."""
    with one_slot(tmp_path, broker) as cluster:
        show_pace(cluster)
        with hung_up(cluster, f"freeze after {after} tokens", "cut", after_first_text=after > 0):
            wait_for(lambda: ended(cluster), "the engine to be restarted", 60)
        assert "made no progress" in ended(cluster)[0]


def test_an_engine_that_hangs_in_every_attempt_ends_the_answer_with_an_error(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker, hang_s=600, first_token_timeout_s=0.5, between_tokens_timeout_s=0.5) as cluster:
        answer = cluster.messages("hang")
        assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "true")
        assert outcomes(cluster) == ["cancelled"] * MOST_ATTEMPTS
        assert ended(cluster) == []
        assert text_of(cluster.messages("say 3 words")) == words(3)


def asked(cluster: Cluster, text: str, limits: dict[str, str], *, stream: bool = False) -> httpx.Response:
    sent = {"json": body(text, stream=stream), "headers": headers("agent") | limits}
    return httpx.post(f"{cluster.url}/v1/messages", timeout=60, trust_env=False, **sent)  # type: ignore[arg-type]


LATE = [
    ("X-Corral-Timeout", "hang", "false"),
    ("X-Corral-Timeout", "say 900 words at 5 tokens/s", "false"),
    ("X-Corral-First-Token-Timeout", "hang at once", "true"),
    ("X-Corral-First-Token-Timeout", "hang", "true"),
]


def test_no_client_is_held_past_the_limits_of_its_headers(patient: Cluster) -> None:
    before = ended(patient)
    for name, text, retry in LATE:
        answer = asked(patient, text, {name: "1"})
        assert (answer.status_code, answer.headers["x-should-retry"]) == (504, retry), (name, text, answer.text)
        assert answer.json()["error"]["type"] == "api_error"
        wait_running(patient, 0)
    assert text_of(patient.messages("say 3 words")) == words(3)
    assert ended(patient) == before


def test_a_stream_is_not_held_past_its_limits_either(patient: Cluster) -> None:
    for name in ("X-Corral-Timeout", "X-Corral-Between-Tokens-Timeout"):
        text = asked(patient, "freeze after 3 tokens", {name: "2"}, stream=True).text
        assert " w3" in text
        assert text.count("event: error") == 1
        wait_running(patient, 0)
        pid = engine_pid(patient)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: engine_pid(patient) != pid and is_ready(patient), "the next engine", 30)  # type: ignore[misc]


def test_an_answer_that_goes_on_has_begun_in_time_however_late_its_engine_dies(tmp_path: Path, broker: Broker) -> None:
    """A limit for the first token is over when that was told, and not counted again for what is left."""
    with one_slot(tmp_path, broker) as cluster:
        late = headers("late") | {"X-Corral-First-Token-Timeout": "2"}
        sent = {"json": body("say 38 words at 10 tokens/s"), "headers": late, "timeout": 60}
        text, killed = "", False
        with httpx.stream("POST", f"{cluster.url}/v1/messages", trust_env=False, **sent) as response:  # type: ignore[arg-type]
            for event in events_of(response):
                text += event.get("delta", {}).get("text", "")
                if not killed and text.count("w") > 25:
                    os.kill(engine_pid(cluster), signal.SIGKILL)
                    killed = True
        assert (text, event["type"]) == (words(38), "message_stop")


def test_a_limit_that_is_none_is_refused_and_named(patient: Cluster) -> None:
    for text in ("0", "soon", "-3"):
        answer = asked(patient, "say 3 words", {"X-Corral-First-Token-Timeout": text})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("X-Corral-First-Token-Timeout: must be")


def test_a_worker_whose_engine_flaps_is_sick_says_why_and_gets_no_jobs(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker, sick_after=2) as cluster, Asking(cluster) as asking:
        cluster.add_worker("w2", settings={"sick_after": 99})
        killed = {0}
        for _ in range(2):  # a lease may still tell of the engine that was killed
            wait_for(lambda: is_ready(cluster) and engine_pid(cluster) not in killed, "its next engine", 30)
            pid = engine_pid(cluster)
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: worker_of(cluster)["state"] == "sick", "it to be sick", 30)
        assert "failed 2 times in a row" in worker_of(cluster)["reason"]
        answers = [asking.ask("say 3 words", f"agent-{number}") for number in range(4)]
        assert {answer.result().headers["x-corral-worker"] for answer in answers} == {"w2"}


def test_one_token_for_ever_ends_with_an_error_and_restarts_an_engine_that_says_nothing_else(patient: Cluster) -> None:
    before, pid = len(ended(patient)), engine_pid(patient)
    for _ in range(3):
        answer = patient.messages("repeat G")
        assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "true")
        assert "repeated one token more than 50 times" in answer.json()["error"]["message"]
    wait_for(lambda: ended(patient)[before:], "the engine to be restarted", 30)
    assert "repeated one token again and again" in ended(patient)[before]
    wait_for(lambda: engine_pid(patient) != pid and is_ready(patient), "the next engine", 30)
    assert text_of(patient.messages("say 60 words")) == words(60)
