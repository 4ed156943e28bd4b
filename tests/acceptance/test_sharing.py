"""Identical requests that overlap: one generation, and the whole answer for everybody who asked."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.acceptance.conftest import StartCluster, running
from tests.acceptance.wire import body, events_of, in_order, occupied, sent, text_of, user, waiting_jobs
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance

LINGER_S = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two keys, a worker with two slots, and a short wait for clients that come back."""
    settings = {"api_keys": "one:secret-one,two:secret-two", "linger_s": LINGER_S}
    folder: Path = tmp_path_factory.mktemp("sharing") / "0"
    with running(folder, workers=1, slots=2, settings=settings, standin={"note_prompts": 1}) as started:
        yield started


def slow(words: int = 30, **fields: Any) -> dict[str, Any]:
    """A streamed request of its own text, answered with temperature 0 at 20 words a second."""
    text = f"{uuid4().hex} say {words} words at 20 tokens/s"
    return body(user(text), **{"stream": True, "temperature": 0, **fields})


def key(name: str = "one", **headers: str) -> dict[str, str]:
    return {"x-api-key": f"secret-{name}", **headers}


@contextmanager
def streaming(
    cluster: Cluster, request: dict[str, Any], headers: Mapping[str, str]
) -> Iterator[tuple[HTTPConnection, HTTPResponse]]:
    """An answer whose stream has been opened; closing its connection hangs up."""
    with closing(sent(cluster, request, headers)) as connection:
        answer = connection.getresponse()
        assert answer.status == 200
        yield connection, answer


def read(answer: HTTPResponse) -> str:
    """The whole text of a stream, found in order."""
    events = events_of(answer.read().decode().splitlines())
    in_order(events)
    return text_of(events)


def hang_up(connection: HTTPConnection, answer: HTTPResponse) -> None:
    answer.close()
    connection.close()


def shared(answer: HTTPResponse) -> bool:
    return answer.headers.get("x-corral-shared") == "1"


def assert_generated(cluster: Cluster, request: dict[str, Any], times: int) -> None:
    """Fails unless the engine was asked for it so often; it notes a request at its end."""
    text = request["messages"][0]["content"]

    def asked() -> int:
        return sum(text in line.get("prompt", "") for line in cluster.engine_requests("w1"))

    wait_for(lambda: asked() >= times, f"{times} generations")
    assert asked() == times


def runs(cluster: Cluster) -> int:
    """Jobs that run now; what the API says of it may be half a second old."""
    return int(cluster.redis.hlen("corral:running:w1"))


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(1, count + 1))


# --- many at once -------------------------------------------------------------------------------------------------


async def _ask(client: httpx.AsyncClient, request: dict[str, Any]) -> tuple[bool, float, str]:
    """Whether another's answer came, when its first byte did, and its text."""
    async with client.stream("POST", "/v1/messages", json=request, headers=key()) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        first = [await anext(lines)]
        came_s = perf_counter()
        events = events_of(first + [line async for line in lines])
        in_order(events)
        return answer.headers.get("x-corral-shared") == "1", came_s, text_of(events)


async def test_fifty_identical_requests_at_once_are_one_generation(cluster: Cluster) -> None:
    request = slow()
    limits = httpx.Limits(max_connections=None)
    before = counted(cluster)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60, limits=limits, trust_env=False) as client:
        answers = await asyncio.gather(*(_ask(client, request) for _ in range(50)))
    assert [text for _, _, text in answers] == [words(30)] * 50
    assert sorted(joined for joined, _, _ in answers) == [False] + [True] * 49
    assert_generated(cluster, request, 1)
    assert cluster.status()["coalesced"] >= 49
    lines = [line for line in cluster.log_lines() if line.get("event") == "request" and line.get("shared")]
    assert len({line["request_id"] for line in lines}) >= 49
    wait_for(lambda: counted(cluster)[0] - before[0] == 50, "all to be counted")
    grown = [after - first for first, after in zip(before, counted(cluster), strict=True)]
    assert grown == [50, lines[0]["prompt_tokens"], lines[0]["output_tokens"], 1], (
        "what the engine did once counts once"
    )


def counted(cluster: Cluster) -> list[float]:
    """Requests, tokens of prompts and of answers, and starts, as /metrics tells them."""
    told = cluster.http.get("/metrics", headers=key()).text
    lines = (
        "requests_total{.*}",
        'tokens_total{.*part="prompt".*}',
        'tokens_total{.*part="output".*}',
        "queue_seconds_count{.*}",
    )
    return [sum(map(float, re.findall(f"^corral_{line} (\\S+)$", told, re.MULTILINE))) for line in lines]


def test_each_has_a_message_id_of_its_own(cluster: Cluster) -> None:
    request = slow()
    with streaming(cluster, request, key()) as (_, first), streaming(cluster, request, key()) as (_, second):
        ids = [events_of(answer.read().decode().splitlines())[0]["message"]["id"] for answer in (first, second)]
    assert shared(second)
    assert len(set(ids)) == 2


def test_a_whole_and_a_streamed_answer_share_one_generation(cluster: Cluster) -> None:
    request = slow()
    with streaming(cluster, request, key()) as (_, answer):
        with closing(sent(cluster, {**request, "stream": False}, key())) as connection:
            whole = connection.getresponse()
            assert text_of(json.loads(whole.read())) == words(30)
        assert shared(whole)
        assert read(answer) == words(30)
    assert_generated(cluster, request, 1)


# --- leaving ------------------------------------------------------------------------------------------------------


def test_the_first_hangs_up_and_the_others_are_answered(cluster: Cluster) -> None:
    request = slow()
    with ExitStack() as clients:
        first = clients.enter_context(streaming(cluster, request, key()))
        others = [clients.enter_context(streaming(cluster, request, key())) for _ in range(3)]
        hang_up(*first)
        wait_for(lambda: cluster.wait_log(lambda line: line.get("outcome") == "left"), "the first to be gone")
        assert [read(answer) for _, answer in others] == [words(30)] * 3
        assert all(shared(answer) for _, answer in others)
    assert_generated(cluster, request, 1)


def test_the_last_to_leave_takes_the_job_along(cluster: Cluster) -> None:
    request = slow(2000, max_tokens=4000)
    with ExitStack() as clients:
        both = [clients.enter_context(streaming(cluster, request, key())) for _ in range(2)]
        hang_up(*both[0])
        with streaming(cluster, request, key()) as third:
            assert shared(third[1])  # it runs on, for the second
            hang_up(*both[1])
            hang_up(*third)
    wait_for(lambda: runs(cluster) == 0, "the slot to come free", timeout_s=5)


# --- the retry of a client that hung up ---------------------------------------------------------------------------


def test_a_retry_joins_the_answer_that_its_client_hung_up_on(cluster: Cluster) -> None:
    request = slow(60, temperature=0.7)
    headers = key(**{"x-claude-code-session-id": "retries"})
    with streaming(cluster, request, headers) as first:
        asked = first[1].headers["request-id"]
        hang_up(*first)
    # A client pauses before it asks again: by then its hang-up has been seen.
    cluster.wait_log(lambda line: line.get("request_id") == asked and line.get("outcome") == "left")
    with streaming(cluster, request, headers) as (_, second):
        assert shared(second)
        assert read(second) == words(60)
    assert_generated(cluster, request, 1)


def test_an_answer_that_ended_meanwhile_is_there_for_the_retry(cluster: Cluster) -> None:
    request = slow(10)
    headers = key(**{"x-claude-code-session-id": "quick"})
    with streaming(cluster, request, headers) as first:
        hang_up(*first)
    wait_for(lambda: runs(cluster) == 0, "the answer to end")
    with streaming(cluster, request, headers) as (_, second):
        assert read(second) == words(10)
    assert_generated(cluster, request, 1)


def test_a_retry_that_comes_too_late_starts_anew(cluster: Cluster) -> None:
    request = slow(2000, max_tokens=4000)
    headers = key(**{"x-claude-code-session-id": "late"})
    with streaming(cluster, request, headers) as first:
        hang_up(*first)
    wait_for(lambda: runs(cluster) == 0, "the job to be given up", timeout_s=LINGER_S + 5)
    with streaming(cluster, request, headers) as (_, second):
        assert not shared(second)


def test_an_agent_that_goes_on_is_not_waited_for(cluster: Cluster) -> None:
    headers = key(**{"x-claude-code-session-id": "goes-on"})
    first = slow(2000, max_tokens=4000)
    with streaming(cluster, first, headers) as one:
        hang_up(*one)
    with streaming(cluster, slow(5), headers) as (_, second):
        assert read(second) == words(5)
    with streaming(cluster, first, headers) as (_, third):
        assert not shared(third)


# --- what is never shared -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"temperature": 0.5}, {"max_tokens": 511}, {"top_k": 3}, {"stop_sequences": ["x"]}])
def test_different_sampling_does_not_join(cluster: Cluster, other: dict[str, Any]) -> None:
    request = slow(10)
    with (
        streaming(cluster, request, key()) as (_, first),
        streaming(cluster, {**request, **other}, key()) as (_, second),
    ):
        assert not shared(second)
        assert read(first) == read(second) == words(10)
    assert_generated(cluster, request, 2)


def test_two_samples_that_one_agent_asks_for_at_once_are_two_answers(cluster: Cluster) -> None:
    request = slow(11, temperature=1)
    agent = key(**{"x-agent-id": "sampler"})
    with streaming(cluster, request, agent) as (_, first), streaming(cluster, request, agent) as (_, second):
        assert not shared(second)
        assert read(first) == read(second) == words(11)
    assert_generated(cluster, request, 2)


def test_sampled_requests_of_two_agents_do_not_join(cluster: Cluster) -> None:
    request = slow(10, temperature=1)
    agents = [key(**{"x-agent-id": name}) for name in ("a", "b")]
    with streaming(cluster, request, agents[0]) as (_, first), streaming(cluster, request, agents[1]) as (_, second):
        assert not shared(second)
        assert read(first) == read(second) == words(10)


def test_two_keys_do_not_join(cluster: Cluster) -> None:
    request = slow(10)
    with streaming(cluster, request, key("one")) as (_, first), streaming(cluster, request, key("two")) as (_, second):
        assert not shared(second)
        assert read(first) == read(second) == words(10)
    assert_generated(cluster, request, 2)


def test_nothing_is_shared_when_it_is_switched_off(start_cluster: StartCluster) -> None:
    off = start_cluster(workers=1, slots=2, settings={"coalesce": False}, standin={"note_prompts": 1})
    request = slow(10)
    with streaming(off, request, {}) as (_, first), streaming(off, request, {}) as (_, second):
        assert not shared(second)
        assert read(first) == read(second) == words(10)
    assert_generated(off, request, 2)


# --- the line and the end -----------------------------------------------------------------------------------------


def test_a_more_urgent_follower_raises_the_job_and_the_first_may_leave_the_line(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1, slots=1, standin={"note_prompts": 1})
    wanted = body(user("wanted say 3 words"), temperature=0)
    with ExitStack() as clients:
        with occupied(cluster, 1):
            first = clients.enter_context(closing(sent(cluster, wanted, {"x-priority": "9"})))
            wait_for(lambda: waiting_jobs(cluster) == 1, "the first to wait")
            before = clients.enter_context(
                closing(sent(cluster, body(user("before say 3 words")), {"x-priority": "4"}))
            )
            wait_for(lambda: waiting_jobs(cluster) == 2, "another to wait")
            second = clients.enter_context(closing(sent(cluster, wanted, {"x-priority": "1"})))
            wait_for(lambda: len(tickets(cluster, 1)) == 1, "the job to be raised")
            assert not tickets(cluster, 9)
            first.close()
        answers = [json.loads(connection.getresponse().read()) for connection in (second, before)]
        assert [text_of(answer) for answer in answers] == [words(3)] * 2
    asked = [line["prompt"] for line in cluster.engine_requests("w1") if "say 3" in line.get("prompt", "")]
    assert ["wanted" in prompt for prompt in asked] == [True, False]


def tickets(cluster: Cluster, level: int) -> list[str]:
    found: list[str] = cluster.redis.lrange(f"llm.w1\x06\x16{level}", 0, -1)  # type: ignore[assignment]
    return found


def test_a_stopped_api_waits_for_no_client_to_come_back(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1, slots=1, settings={"linger_s": 60})
    request = slow(2000, max_tokens=4000)
    with streaming(cluster, request, {"x-agent-id": "left"}) as first:
        hang_up(*first)
    cluster.wait_log(lambda line: line.get("outcome") == "left")
    assert runs(cluster) == 1
    cluster.stopped.add("api0")
    cluster.apis[0].send(15)
    assert cluster.apis[0].wait(timeout_s=10) == 0
    # The record of an answer that was cut goes with its worker's last word.
    wait_for(lambda: not cluster.redis.keys("corral:job:*"), "its record to go")
