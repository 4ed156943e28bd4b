"""Misses explained in whole clusters on the stand-in engine: each cause is made to happen, then named."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import running
from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

pytestmark = pytest.mark.integration

Account = dict[str, Any]
BASH = {"name": "Bash", "description": "Run it.", "input_schema": {"type": "object", "properties": {}}}
LONG = "a word " * 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker with one slot, which saves no caches."""
    with running(tmp_path_factory.mktemp("why"), workers=1, slots=1, settings={"store_dir": "off"}) as cluster:
        yield cluster


def ask(cluster: Cluster, agent: str, *texts: str, **fields: Any) -> str:
    """One turn of an agent: its texts, each answered by `w1` but the last. Returns the request's id."""
    messages: list[dict[str, str]] = []
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "w1"}]
    body = {"model": "m", "max_tokens": 9, "system": LONG, "tools": [BASH], "messages": messages[:-1], **fields}
    answer = cluster.http.post("/v1/messages", json=body, headers={"x-agent-id": agent})
    assert answer.status_code == 200, answer.text
    return str(answer.headers["request-id"])


def account(cluster: Cluster, request: str) -> Account:
    """Waits until it is kept, which happens after the answer has ended."""
    wait_for(lambda: cluster.http.get(f"/v1/why/{request}").status_code == 200, f"the account of {request}")
    [found] = cluster.http.get(f"/v1/why/{request}").json()["requests"]
    return dict(found)


def told(cluster: Cluster, agent: str, *texts: str, **fields: Any) -> Account:
    return account(cluster, ask(cluster, agent, *texts, **fields))


FIRST = "say 1 words " + LONG


def engine(cluster: Cluster) -> tuple[int, str]:
    [worker] = cluster.status()["workers"]
    return worker["engine_pid"], worker["state"]


def test_a_conversation_that_grows_loses_nothing(cluster: Cluster) -> None:
    assert told(cluster, "grows", FIRST)["cause"] == "first_turn"
    second = told(cluster, "grows", FIRST, "say 1 words")
    assert (second["cause"], second["source"]) == ("none", "own")
    assert second["cached_tokens"] >= second["reuse_expected_tokens"] - 1


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"system": "other " + LONG}, "system_changed"),
        ({"tools": [BASH, {**BASH, "name": "Read"}]}, "tools_changed"),
    ],
)
def test_a_changed_prefix_is_named(cluster: Cluster, changes: dict[str, Any], cause: str) -> None:
    told(cluster, cause, FIRST)
    found = told(cluster, cause, FIRST, "say 1 words", **changes)
    assert found["cause"] == cause
    assert found["lost_tokens"] == found["reuse_expected_tokens"] - found["cached_tokens"] > 0


def test_a_rewritten_message_is_named_by_its_place(cluster: Cluster) -> None:
    told(cluster, "rewrites", "say 1 words", LONG, "say 1 words")
    found = told(cluster, "rewrites", "say 1 words", "short", "say 1 words", LONG)
    assert (found["cause"], found["where"]) == ("history_rewritten", "messages[2]")


def test_a_slot_taken_by_another_is_an_eviction(cluster: Cluster) -> None:
    told(cluster, "evicted", FIRST)
    told(cluster, "evictor", "say 1 words")
    found = told(cluster, "evicted", FIRST, "say 1 words")
    assert (found["cause"], found["worker"]) == ("evicted", "w1")
    assert "took its slot on worker w1" in found["sentence"]


def test_an_engine_that_was_started_anew_has_lost_its_caches(cluster: Cluster) -> None:
    told(cluster, "restarted", FIRST)
    before = engine(cluster)
    assert cluster.messages("die after 1 tokens").status_code >= 500
    wait_for(lambda: engine(cluster)[0] != before[0] and engine(cluster)[1] == "ready", "another engine")
    found = told(cluster, "restarted", FIRST, "say 1 words")
    assert found["cause"] == "restarted"


def test_an_answer_that_was_hung_up_on_has_left_its_prompt(cluster: Cluster) -> None:
    body = {"model": "m", "max_tokens": 99, "stream": True, "system": LONG, "tools": [BASH]}
    body["messages"] = [{"role": "user", "content": "say 99 words at 20 tokens/s"}]
    request = cluster.http.build_request("POST", "/v1/messages", json=body, headers={"x-agent-id": "hangs-up"})
    with closing(cluster.http.send(request, stream=True)) as answer:
        assert answer.status_code == 200, answer.read()
        seen = []
        for line in answer.iter_lines():
            seen.append(line)
            if "content_block_delta" in line:
                break
        assert "content_block_delta" in seen[-1], seen
    assert account(cluster, answer.headers["request-id"])["cause"] == "first_turn"
    found = told(cluster, "hangs-up", "say 99 words at 20 tokens/s", "say 1 words")
    assert found["compared_with"] == answer.headers["request-id"]
    assert found["cause"] == "none"


def test_the_log_line_of_a_request_says_the_same(cluster: Cluster) -> None:
    found = told(cluster, "logged", FIRST)
    line = cluster.wait_log(lambda line: line.get("request_id") == found["request"])
    for name in ("reuse_expected_tokens", "lost_tokens", "source", "restored_tokens", "restore_ms"):
        assert line[name] == found[name]
    assert line["miss"] == found["cause"]


def test_an_agents_late_requests_come_newest_first(cluster: Cluster) -> None:
    requests = [ask(cluster, "team/one agent", FIRST), ask(cluster, "team/one agent", FIRST, "say 1 words")]
    account(cluster, requests[-1])
    found = cluster.http.get("/v1/why/team%2Fone%20agent").json()["requests"]
    assert [why["request"] for why in found] == requests[::-1]


def test_a_name_that_nobody_has_is_not_found(cluster: Cluster) -> None:
    answer = cluster.http.get("/v1/why/nobody")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith("nobody: no request or agent of that name")


def test_the_status_counts_misses_by_cause_and_shows_each_store(cluster: Cluster) -> None:
    ask(cluster, "counted", FIRST)
    ask(cluster, "counted", "say 1 words", system="all other " + LONG)
    wait_for(lambda: cluster.status()["misses"].get("first_turn", {}).get("count", 0) >= 2, "the misses")
    [worker] = cluster.status()["workers"]
    assert worker["store"]["off"]


def test_a_worker_that_is_stopped_makes_its_conversations_move(cluster: Cluster) -> None:
    told(cluster, "moves", FIRST)
    cluster.add_worker("w2")
    cluster.stop_worker("w1")
    found = told(cluster, "moves", FIRST, "say 1 words")
    assert (found["cause"], found["worker"]) == ("moved", "w2")
    assert "moved from worker w1 to w2" in found["sentence"]


def test_only_a_known_key_is_told_why(own_broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    settings = {"api_keys": "me:secret"}
    with Cluster(tmp_path / "cluster", own_broker.url, workers=1, settings=settings) as cluster:
        assert cluster.http.get("/v1/why/nobody").status_code == 401
        assert cluster.http.get("/v1/why/nobody", headers={"x-api-key": "secret"}).status_code == 404
