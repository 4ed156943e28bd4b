"""An answer that loses its engine, worker or record goes on from where it was, and its client sees one answer.

On the real engine with a long answer, and on the stand-in for each shape of answer, each cut in its middle.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import WINDOW_TOKENS, RealCluster, running
from tests.acceptance.wire import BASH, Event, ask, assistant, body, deltas, events_of, in_order, text_of, user
from tests.doubles import scripted_model as scripts
from tests.doubles.cluster import SOON, Cluster
from tests.doubles.scripted_model import Script

pytestmark = pytest.mark.acceptance

LONG = scripts.long_text(1500)
Kill = Callable[[Cluster, str], None]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory, model_path: Callable[[Script], Path]) -> Iterator[Cluster]:
    """Two workers on the real engine that answer with 1,500 words."""
    folder = tmp_path_factory.mktemp("going-on") / "0"
    options: dict[str, Any] = {"engine": "embedded", "context_tokens": WINDOW_TOKENS, "workers": 2, "slots": 2}
    with running(folder, model=model_path(LONG), settings=SOON, **options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(long: Cluster) -> dict[str, Any]:
    """What those answer when nothing dies."""
    return ask(long, user("go"), max_tokens=20_000)


def kill_worker(cluster: Cluster, name: str) -> None:
    cluster.kill_worker(name)


def kill_engine(cluster: Cluster, name: str) -> None:
    os.kill(engine_pid(cluster, name), signal.SIGKILL)


def forget(cluster: Cluster, _: str) -> None:
    """The broker loses everything: the record, what stands of the answer, and who is alive."""
    cluster.redis.flushall()


def restart(cluster: Cluster) -> None:
    """Both workers are ready again.

    One whose engine was killed starts anew: its own pause grows with each of these failures, until it rests as sick.
    What it said last goes with it, or it would be taken for ready, and sent requests, until its lease has run out.
    """
    for name, state in cluster.worker_states().items():
        if name not in cluster.stopped and state != "ready":
            cluster.kill_worker(name)
            cluster.redis.delete(f"corral:lease:{name}")
    for name in tuple(cluster.stopped):
        cluster.start_worker(name)
    cluster.wait_ready(2)


def engine_pid(cluster: Cluster, name: str) -> int:
    workers = cluster.status()["workers"]
    return int(next(worker["engine_pid"] for worker in workers if worker["name"] == name))


def cut(
    cluster: Cluster, kill: Kill, after: int | str, *messages: dict[str, Any], **fields: Any
) -> tuple[list[Event], httpx.Headers]:
    """A streamed answer whose worker or engine is killed once `after` events of content, or this word, have come."""
    request = body(*(messages or (user("go"),)), stream=True, **{"max_tokens": 20_000, **fields})
    lines: list[str] = []
    with cluster.http.stream("POST", "/v1/messages", json=request, timeout=120) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            if isinstance(after, str):
                due, after = after in line, 0 if after in line else after
            else:
                due = line == "event: content_block_delta" and after == 1
                after -= line == "event: content_block_delta"
            if due:
                kill(cluster, answer.headers["x-corral-worker"])
    events = events_of(lines)
    in_order(events)
    return events, answer.headers


@pytest.mark.parametrize("kill", [kill_worker, kill_engine, forget])
@pytest.mark.parametrize("after", [1, 7, 30])
def test_the_client_sees_one_whole_answer(long: Cluster, undisturbed: dict[str, Any], kill: Kill, after: int) -> None:
    whole = undisturbed
    events, headers = cut(long, kill, after)
    restart(long)
    assert text_of(events) == text_of(whole)
    assert events[-1]["type"] == "message_stop", headers
    assert events[-2]["usage"]["output_tokens"] == pytest.approx(whole["usage"]["output_tokens"], abs=3)
    assert events[-2]["usage"]["input_tokens"] + events[-2]["usage"]["cache_read_input_tokens"] == sum(
        whole["usage"][name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )


def numbered(word: str, count: int) -> str:
    return " ".join(f"{word}{number:04}" for number in range(1, count + 1))


THOUGHTS, COMMAND = numbered("thought", 300), numbered("aim", 600)
CALL = scripts.call("Bash", {"command": COMMAND, "description": "first"})
SHAPED = Script("shaped", "All done.", f"<think>\n{THOUGHTS}\n</think>\n\n{scripts.long_text(2000).answer}\n{CALL}")


@pytest.mark.parametrize("word", ["thought0050", "step0010"])
def test_thoughts_text_and_call_of_a_real_engine_are_told_once(pair: RealCluster, word: str) -> None:
    cluster = pair(SHAPED)
    fields: dict[str, Any] = {"tools": [BASH], "temperature": 0, "max_tokens": 20_000}
    fields["thinking"] = {"type": "enabled", "budget_tokens": 10_000}
    whole = ask(cluster, user("go"), **fields)
    events, _ = cut(cluster, kill_engine, word, user("go"), **fields)
    restart(cluster)
    thoughts = [block["thinking"] for block in whole["content"] if block["type"] == "thinking"]
    assert ["".join(delta["thinking"] for delta in deltas(events, "thinking_delta"))] == thoughts
    assert text_of(events) == text_of(whole)
    assert stop_of(events) == ("tool_use", None)
    arguments = "".join(delta["partial_json"] for delta in deltas(events, "input_json_delta"))
    assert json.loads(arguments)["command"] == COMMAND
    assert events[-2]["usage"]["output_tokens"] == pytest.approx(whole["usage"]["output_tokens"], abs=10)


# --- each shape of answer, on the stand-in ----------------------------------------------------------------------------

TWO_CALLS = 'at 4 tokens/s\ncall Bash {"command": "a"}\ncall Bash {"command": "b c d e f g h i j k"}'


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers on the stand-in."""
    with running(tmp_path_factory.mktemp("shapes") / "0", workers=2, slots=2, settings=SOON) as cluster:
        yield cluster


def stop_of(events: list[Event]) -> tuple[str | None, str | None]:
    assert events[-1]["type"] == "message_stop", events[-1]
    return events[-2]["delta"]["stop_reason"], events[-2]["delta"]["stop_sequence"]


def count_of(events: list[Event], kind: str) -> int:
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    return starts.count(kind)


def words(count: int, first: int = 1) -> str:
    return " ".join(f"w{number}" for number in range(first, count + 1))


def attempts(cluster: Cluster, headers: httpx.Headers) -> int:
    """The last attempt's number in the log line of a request; after a loss of the record they count from 11."""
    name = headers["request-id"]
    found = cluster.wait_log(lambda line: line.get("event") == "request" and line.get("request_id") == name)
    return int(found["attempt"])


@pytest.mark.parametrize("kill", [kill_worker, kill_engine, forget])
def test_an_answer_that_was_cut_in_its_thoughts_is_thought_once(shapes: Cluster, kill: Kill) -> None:
    events, headers = cut(shapes, kill, 2, user("think then say 4 words at 3 tokens/s"), temperature=0)
    restart(shapes)
    assert "".join(delta["thinking"] for delta in deltas(events, "thinking_delta")) == "First I think about it."
    assert (text_of(events), stop_of(events)) == (words(4), ("end_turn", None))
    assert (count_of(events, "thinking"), count_of(events, "text")) == (1, 1)
    assert events[-2]["usage"]["output_tokens"] == 9
    assert attempts(shapes, headers) == (11 if kill is forget else 2)


def test_an_answer_that_was_cut_after_its_thoughts_goes_on_in_its_text(shapes: Cluster) -> None:
    events, _ = cut(shapes, kill_engine, 8, user("think then say 9 words at 4 tokens/s"))
    restart(shapes)
    assert "".join(delta["thinking"] for delta in deltas(events, "thinking_delta")) == "First I think about it."
    assert (text_of(events), stop_of(events)) == (words(9), ("end_turn", None))
    assert (count_of(events, "thinking"), count_of(events, "text")) == (1, 1)


@pytest.mark.parametrize("kill", [kill_worker, kill_engine, forget])
def test_a_call_that_was_told_is_the_end_and_is_not_made_again(shapes: Cluster, kill: Kill) -> None:
    events, headers = cut(shapes, kill, 1, user(TWO_CALLS), tools=[BASH])
    restart(shapes)
    assert stop_of(events) == ("tool_use", None)
    assert count_of(events, "tool_use") == 1
    assert [delta["partial_json"] for delta in deltas(events, "input_json_delta") if delta["partial_json"]] == [
        '{"command": "a"}'
    ]
    assert events[-2]["usage"]["output_tokens"] > 0
    assert attempts(shapes, headers) == (11 if kill is forget else 2)


def test_a_call_that_was_being_written_is_written_again(shapes: Cluster) -> None:
    order = 'at 5 tokens/s\nsay 4 words then call Bash {"command": "b c d e f g h i j k"}'
    events, _ = cut(shapes, kill_engine, 4, user(order), tools=[BASH])
    restart(shapes)
    assert (text_of(events), stop_of(events)) == (words(4), ("tool_use", None))
    assert count_of(events, "tool_use") == 1


def test_a_cut_inside_of_what_looks_like_one_sign_has_no_seam(shapes: Cluster) -> None:
    whole = text_of(ask(shapes, user("split emoji")))
    for after in (2, 3, 6):
        events, _ = cut(shapes, kill_engine, after, user("split emoji at 4 tokens/s"))
        restart(shapes)
        assert (text_of(events), stop_of(events)) == (whole, ("end_turn", None))


def test_the_limit_counts_what_was_told_before_the_cut(shapes: Cluster) -> None:
    events, _ = cut(shapes, kill_engine, 4, user("say 40 words at 5 tokens/s"), max_tokens=11)
    restart(shapes)
    assert (text_of(events), stop_of(events)) == (words(11), ("max_tokens", None))
    assert events[-2]["usage"]["output_tokens"] == 11


@pytest.mark.parametrize("after", [2, 4, 5])
def test_a_stop_sequence_is_met_wherever_the_cut_is(shapes: Cluster, after: int) -> None:
    """While the answer may be in the middle of one, nothing of it is told."""
    asked = user("say 40 words at 4 tokens/s")
    events, _ = cut(shapes, kill_engine, after, asked, stop_sequences=[" w6 w7 w8"])
    restart(shapes)
    assert (text_of(events), stop_of(events)) == (words(5), ("stop_sequence", " w6 w7 w8"))


def test_a_beginning_that_the_client_gave_and_what_was_told_are_one(shapes: Cluster) -> None:
    asked = (user("say 13 words at 5 tokens/s"), assistant("w1 w2"))
    events, _ = cut(shapes, kill_engine, 4, *asked)
    restart(shapes)
    assert (text_of(events).strip(), stop_of(events)) == (words(13, first=3), ("end_turn", None))


def test_everybody_who_shares_an_answer_that_is_cut_hears_all_of_it(shapes: Cluster) -> None:
    asked = user("say 22 words at 5 tokens/s, shared")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cut, shapes, kill_engine, 12, asked, temperature=0)
        second = pool.submit(cut, shapes, kill_engine, 0, asked, temperature=0)
        told = [first.result(), second.result()]
    restart(shapes)
    assert [text_of(events) for events, _ in told] == [words(22)] * 2
    assert [headers.get("x-corral-shared") for _, headers in told].count("1") == 1
