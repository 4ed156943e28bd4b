"""What a caller meets while it waits for a slot, and what is left of it when it goes."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPResponse
from typing import Any

import psutil
import pytest

from tests.acceptance.conftest import StartCluster, running
from tests.acceptance.wire import (
    body,
    events_of,
    expecting_short_answers,
    in_order,
    occupied,
    running_jobs,
    sent,
    text_of,
    user,
    waiting,
    waiting_jobs,
)
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance

BURSTS = 4

IMPATIENT = {"early_commit_s": 0.2, "ping_interval_s": 1, "heartbeat_interval_s": 2}
AGENT = {"x-agent-id": "patient"}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker with one slot; streams of identified agents are opened early."""
    folder = tmp_path_factory.mktemp("narrow") / "0"
    with running(folder, workers=1, slots=1, settings=IMPATIENT) as cluster:
        yield cluster


def nothing_left(cluster: Cluster) -> bool:
    """No job, stream, line or ticket of any request is left in the broker."""
    left = [*cluster.redis.scan_iter("corral:job:*"), *cluster.redis.scan_iter("corral:stream:*")]
    left += [*cluster.redis.scan_iter("corral:line:*"), *cluster.redis.scan_iter("llm.*")]
    return not left


def gone_at_once(cluster: Cluster) -> None:
    """The only waiting request leaves line and queue within a second."""
    wait_for(lambda: cluster.redis.zcard("corral:line:w1") == 0, "the line to be empty", timeout_s=1)
    wait_for(lambda: not list(cluster.redis.scan_iter("llm.*")), "its ticket to be gone", timeout_s=1)


def _until(answer: HTTPResponse, event: str) -> list[str]:
    lines: list[str] = []
    while not lines or lines[-1] != f"event: {event}":
        line = answer.readline()
        assert line, f"the stream ended before {event}: {lines}"
        lines.append(line.decode().rstrip("\n"))
    return lines


# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_without_identity_is_sent_away_after_its_limit(start_cluster: StartCluster, stream: bool) -> None:
    cluster = expecting_short_answers(start_cluster(workers=1, slots=1, settings={"wait_anonymous_s": 0.3}))
    with occupied(cluster, 1), closing(sent(cluster, body(user("say 3 words"), stream=stream))) as connection:
        answer = connection.getresponse()
        assert answer.status == 503
        assert b"no slot came free" in answer.read()
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        gone_at_once(cluster)
        wait_for(lambda: running_jobs(cluster) == 1, "the occupant alone")
    wait_for(lambda: nothing_left(cluster), "everything to be given back")


@pytest.mark.parametrize(("headers", "status"), [({}, 503), (AGENT, 529)], ids=["anonymous", "identified"])
def test_a_caller_whose_wait_would_be_too_long_is_refused_at_once(
    start_cluster: StartCluster, headers: dict[str, str], status: int
) -> None:
    """Nothing is known of answers yet, so they are expected to take some seconds."""
    limits = {"wait_anonymous_s": 1, "wait_identified_s": 1.5}
    cluster = start_cluster(workers=1, slots=1, settings=limits)
    with occupied(cluster, 1), closing(sent(cluster, body(user("say 3 words")), headers)) as connection:
        answer = connection.getresponse()
        assert answer.status == status
        assert b"a slot is expected in about" in answer.read()
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        line = cluster.wait_log(lambda line: line.get("event") == "request" and line.get("outcome") == "failed")
        assert line["took_ms"] < 1000  # before any limit
        assert line["retry_after_s"] == int(answer.headers["retry-after"])
        refused = cluster.status()["wait"]["refused"]
        assert refused == {"wait": 1, "full": 0}


def test_an_identified_caller_whose_stream_is_open_hears_of_its_limit_in_it(start_cluster: StartCluster) -> None:
    settings = {"early_commit_s": 0.2, "wait_identified_s": 0.5}
    cluster = expecting_short_answers(start_cluster(workers=1, slots=1, settings=settings))
    with occupied(cluster, 1), closing(sent(cluster, body(user("x"), stream=True), AGENT)) as connection:
        answer = connection.getresponse()
        assert answer.status == 200
        events = events_of(answer.read().decode().splitlines())
        assert [event["type"] for event in events] == ["message_start", "error"]
        assert "no slot came free within 0.5 s" in events[-1]["error"]["message"]
        gone_at_once(cluster)


# --- the early commit ---------------------------------------------------------------------------------------------


def test_the_stream_of_an_identified_caller_is_opened_early_and_shows_signs_of_life(narrow: Cluster) -> None:
    with occupied(narrow, 1):
        connection = sent(narrow, body(user("say 3 words"), stream=True), AGENT)
        answer = connection.getresponse()
        lines = [line for _ in range(2) for line in _until(answer, "message_delta")]
    with closing(connection):
        lines += answer.read().decode().splitlines()
    events = events_of(lines)
    in_order(events)
    assert text_of(events) == "w1 w2 w3"
    kinds = [event["type"] for event in events]
    before = kinds[: kinds.index("content_block_start")]
    assert before[0] == "message_start"
    assert {"ping", "message_delta"} <= set(before)
    beats = [event for event in events[:-2] if event["type"] == "message_delta"]
    assert all(event["delta"]["stop_reason"] is None for event in beats)
    assert answer.headers["x-corral-worker"] == "w1"


def test_the_usage_of_an_early_stream_is_right_from_its_beginning(narrow: Cluster) -> None:
    with occupied(narrow, 1):
        connection = sent(narrow, body(user("say 3 words"), stream=True), AGENT)
        lines = _until(answer := connection.getresponse(), "ping")
    with closing(connection):
        lines += answer.read().decode().splitlines()
    events = events_of(lines)
    first, last = events[0]["message"]["usage"], events[-2]["usage"]
    assert first["input_tokens"] == last["input_tokens"] + last["cache_read_input_tokens"]
    assert last["output_tokens"] == 3


def test_a_prompt_that_is_too_long_is_a_status_code_even_where_streams_open_early(narrow: Cluster) -> None:
    with occupied(narrow, 1), closing(sent(narrow, body(user("word " * 9000), stream=True), AGENT)) as connection:
        answer = connection.getresponse()
        assert answer.status == 400
        assert b"prompt is too long: " in answer.read()
        gone_at_once(narrow)


def test_the_wait_is_told_in_the_status_and_beside_the_real_one_in_the_answer(narrow: Cluster) -> None:
    with occupied(narrow, 1):
        connection = sent(narrow, body(user("say 3 words")), {"x-agent-id": "curious", "x-priority": "3"})
        line = wait_for(lambda: narrow.status()["workers"][0]["line"], "the request to be seen in its line")
    with closing(connection):
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read()
    assert [(one["agent"], one["level"], one["place"]) for one in line] == [("curious", 3, 1)]
    assert line[0]["expected_s"] > 0
    assert int(answer.headers["x-corral-eta-ms"]) > 0
    assert int(answer.headers["x-corral-queue-ms"]) > 0
    assert narrow.status()["wait"]["waits"] >= 1
    logged = narrow.wait_log(lambda line: line.get("agent") == "curious")
    assert logged["eta_ms"] == int(answer.headers["x-corral-eta-ms"])


def test_who_need_not_wait_is_told_so(narrow: Cluster) -> None:
    answer = narrow.messages("say 3 words", headers=AGENT)
    assert answer.headers["x-corral-eta-ms"] == "0"


def test_a_whole_answer_is_never_opened_early(narrow: Cluster) -> None:
    with occupied(narrow, 1):
        connection = sent(narrow, body(user("say 3 words")), AGENT)
        wait_for(lambda: waiting_jobs(narrow) == 1, "the request to wait")
    with closing(connection):
        answer = connection.getresponse()
        assert answer.status == 200
        assert b"w1 w2 w3" in answer.read()


# --- full lines ---------------------------------------------------------------------------------------------------


def test_a_full_line_refuses_and_takes_the_refused_one_when_there_is_room(start_cluster: StartCluster) -> None:
    """It asks the same again: the place that comes free was promised to it, and any other would wait behind it."""
    cluster = expecting_short_answers(start_cluster(workers=1, slots=1, settings={"queue_limit": 1}))
    with occupied(cluster, 1):
        with waiting(cluster), closing(sent(cluster, body(user("say 3 words")))) as connection:
            refused = connection.getresponse()
            assert refused.status == 529
            assert json.load(refused)["error"]["type"] == "overloaded_error"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        wait_for(lambda: waiting_jobs(cluster) == 0, "room in the line")
        with closing(sent(cluster, body(user("say 4 words")))) as connection:
            assert connection.getresponse().status in (503, 529)  # for want of time, or of room
        with waiting(cluster):  # a status may be a look old, so this is all that can be asked
            pass
        assert cluster.status()["wait"]["promises_kept"] == 1


# --- hanging up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"stream": True}, {}], ids=["stream", "whole"])
@pytest.mark.parametrize("headers", [{}, {"x-agent-id": "leaving"}], ids=["anonymous", "identified"])
def test_hanging_up_in_the_line_takes_the_request_out_of_it(
    start_cluster: StartCluster, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    cluster = start_cluster(workers=1, slots=1)
    with occupied(cluster, 1):
        connection = sent(cluster, body(user("say 3 words"), **fields), headers)
        wait_for(lambda: waiting_jobs(cluster) == 1, "the request to wait")
        connection.close()
        gone_at_once(cluster)
    wait_for(lambda: nothing_left(cluster), "everything to be given back")
    assert cluster.wait_log(lambda line: line.get("outcome") == "left")


def test_hanging_up_after_the_stream_was_opened_early_takes_the_request_out_of_the_line(narrow: Cluster) -> None:
    with occupied(narrow, 1):
        connection = sent(narrow, body(user("say 3 words"), stream=True), AGENT)
        answer = connection.getresponse()
        _until(answer, "message_start")
        answer.close()
        connection.close()
        gone_at_once(narrow)
    wait_for(lambda: nothing_left(narrow), "everything to be given back")


@pytest.mark.parametrize("words", ["say 5000 words at 50 tokens/s", "hang", "hang at once"])
@pytest.mark.parametrize("fields", [{"stream": True}, {}], ids=["stream", "whole"])
def test_hanging_up_while_the_engine_works_frees_the_slot(standin: Cluster, words: str, fields: dict[str, Any]) -> None:
    connection = sent(standin, body(user(words), max_tokens=5000, **fields))
    wait_for(lambda: running_jobs(standin) == 1, "the request to run")
    connection.close()
    wait_for(lambda: running_jobs(standin) == 0, "the slot to come free", timeout_s=5)
    assert standin.messages("say 3 words").status_code == 200
    wait_for(lambda: nothing_left(standin), "everything to be given back")


# --- the reserve --------------------------------------------------------------------------------------------------


def test_only_a_session_that_met_the_window_may_use_the_reserve(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1, slots=1, context_tokens=4096, settings={"overflow_reserve_tokens": 1000})
    long = "word " * 3500
    headers = {"x-claude-code-session-id": "full"}
    assert cluster.messages(long, headers=headers).status_code == 400
    assert cluster.messages(long, headers={"x-claude-code-session-id": "other"}).status_code == 400
    compaction = cluster.messages(f"{long} say 3 words", headers=headers)
    assert compaction.status_code == 200, compaction.text


def test_a_compaction_that_has_to_wait_may_use_the_reserve_too(start_cluster: StartCluster) -> None:
    """Its stream is opened early, after its prompt has been counted."""
    settings = {"overflow_reserve_tokens": 1000, "early_commit_s": 0.2}
    cluster = start_cluster(workers=1, slots=1, context_tokens=4096, settings=settings)
    long = user("word " * 3500 + "say 3 words")
    headers = {"x-claude-code-session-id": "full"}
    with occupied(cluster, 1):
        for told, status in ((400, "met"), (200, "compacts")):
            with closing(sent(cluster, body(long, stream=True), headers)) as connection:
                assert connection.getresponse().status == told, status
        with closing(sent(cluster, body(user("word " * 4500), stream=True), headers)) as connection:
            refused = connection.getresponse()
            assert (refused.status, b"> 4096 maximum" in refused.read()) == (400, True)


# --- stopping the API ---------------------------------------------------------------------------------------------


def test_a_stopped_api_lets_running_answers_end_and_refuses_those_that_wait(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1, slots=1)
    with closing(sent(cluster, body(user("say 100 words at 30 tokens/s"), stream=True))) as first:
        answer = first.getresponse()
        assert answer.status == 200
        with waiting(cluster) as second:
            cluster.stopped.add("api0")
            cluster.apis[0].send(signal.SIGTERM)
            refused = second.getresponse()
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) >= 1
        events = events_of(answer.read().decode().splitlines())
    in_order(events)
    assert text_of(events).endswith("w99 w100")
    assert cluster.apis[0].wait() == 0


def test_an_api_stopped_beyond_its_limit_says_so_in_each_answer_and_takes_its_jobs_along(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(workers=1, slots=16, settings={"drain_s": 1})
    with ExitStack() as clients:
        request = body(user("say 100000 words at 5 tokens/s"), max_tokens=3000)
        whole = clients.enter_context(closing(sent(cluster, request, {"x-agent-id": "whole"})))
        streams = [sent(cluster, {**request, "stream": True}, {"x-agent-id": f"agent-{n}"}) for n in range(15)]
        answers = [clients.enter_context(closing(stream)).getresponse() for stream in streams]
        wait_for(lambda: running_jobs(cluster) == 16, "all to run")
        cluster.stopped.add("api0")
        cluster.apis[0].send(signal.SIGTERM)
        for answer in answers:
            events = events_of(answer.read().decode().splitlines())
            in_order(events)
            assert "the gateway is being stopped" in events[-1]["error"]["message"]
        refused = whole.getresponse()
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) >= 1
    assert cluster.apis[0].wait() == 0
    # The record of an answer that was cut goes with its worker's last word.
    wait_for(lambda: not cluster.redis.keys("corral:job:*"), "the records to go")
    assert cluster.redis.hlen("corral:running:w1") == 0
    assert "Traceback" not in cluster.api_log()


# --- many ---------------------------------------------------------------------------------------------------------


def test_a_hundred_streams_opened_and_dropped_leave_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=2, slots=4)
    api, workers = psutil.Process(cluster.apis[0].pid), [psutil.Process(w.pid) for w in cluster.workers.values()]
    drop_streams(cluster, 100)
    kept = resources(api, *workers)
    for _ in range(BURSTS):  # a pool keeps what its busiest moment needed, and a later burst may have a busier one
        drop_streams(cluster, 100)
        if came_back_to(kept, api, *workers):
            break
        kept = resources(api, *workers)
    else:
        raise AssertionError(f"connections and threads grow with each burst, to {kept}")
    assert cluster.messages("say 3 words").status_code == 200


def came_back_to(kept: list[int], *processes: psutil.Process) -> bool:
    """Whether connections and threads are no more than `kept`, once those of the last burst have been closed."""
    try:
        wait_for(lambda: not above(resources(*processes), kept), "connections and threads to be given back", 15)
    except AssertionError:
        return False
    return True


def drop_streams(cluster: Cluster, count: int) -> None:
    """Open streams of as many agents at once, hang up at once, and wait until everything is given back."""
    request = body(user("say 500 words at 100 tokens/s"), max_tokens=500, stream=True)
    streams = [sent(cluster, request, {"x-agent-id": f"agent-{number}"}) for number in range(count)]
    wait_for(lambda: running_jobs(cluster) > 0, "some to run")
    for connection in streams:
        connection.close()
    wait_for(lambda: running_jobs(cluster) == 0 and nothing_left(cluster), "everything to be given back", timeout_s=30)


def resources(*processes: psutil.Process) -> list[int]:
    """Open connections, then threads, of all."""
    return [sum(len(p.net_connections()) for p in processes), sum(p.num_threads() for p in processes)]


def above(now: list[int], before: list[int]) -> bool:
    return any(a > b for a, b in zip(now, before, strict=True))
