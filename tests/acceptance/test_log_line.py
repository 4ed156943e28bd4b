"""One log line for each request, with all its numbers; and no word of any prompt anywhere."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import StartCluster, running
from tests.acceptance.wire import BASH, assistant, body, occupied, result, sent, text, user, waiting_jobs
from tests.doubles.cluster import Cluster
from tests.doubles.processes import Child, base_environment, python
from tests.doubles.services import free_port, wait_for

pytestmark = pytest.mark.acceptance

FIELDS = {
    "request_id",
    "job",
    "attempt",
    "agent",
    "conversation",
    "kind",
    "level",
    "worker",
    "slot",
    "queue_ms",
    "prefill_ms",
    "decode_ms",
    "prompt_tokens",
    "cached_tokens",
    "source",
    "restored_tokens",
    "restore_ms",
    "miss",
    "reuse_expected_tokens",
    "lost_tokens",
    "normalised_tokens",
    "output_tokens",
    "stop_reason",
    "model",
    "model_hash",
    "engine_bytes",
}
SECRET = "xylophone7731"
WHO = {"x-agent-id": "reviewer", "x-priority": "2"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Everything is logged that can be logged, but by the stand-in engine, which is none of ours."""
    settings = {"log_level": "debug", "queue_limit": 1}
    with running(tmp_path_factory.mktemp("log") / "0", workers=1, slots=1, settings=settings) as cluster:
        yield cluster


def line_of(cluster: Cluster, request_id: str) -> dict[str, Any]:
    return cluster.wait_log(lambda line: line.get("event") == "request" and line.get("request_id") == request_id)


def test_the_line_says_what_the_normaliser_saved(cluster: Cluster) -> None:
    attribution = "x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli;"
    answers = [cluster.messages("say 3 words", system=words) for words in ("Be brief.", f"{attribution}\nBe brief.")]
    plain, attributed = (line_of(cluster, answer.headers["request-id"]) for answer in answers)
    assert plain["normalised_tokens"] == 0
    assert 0 < attributed["normalised_tokens"] < 60
    assert attributed["prompt_tokens"] == plain["prompt_tokens"]


@pytest.mark.parametrize("stream", [True, False])
def test_the_line_of_an_answer_has_every_field(cluster: Cluster, stream: bool) -> None:
    answer = cluster.messages("say 3 words", headers=WHO, stream=stream)
    line = line_of(cluster, answer.headers["request-id"])
    assert set(line) >= FIELDS
    assert (line["outcome"], line["agent"], line["level"], line["kind"]) == ("done", "reviewer", 2, "main")
    assert (line["worker"], line["slot"], line["attempt"]) == ("w1", 0, 1)
    assert (line["output_tokens"], line["stop_reason"]) == (3, "end_turn")
    assert line["prompt_tokens"] > line["cached_tokens"] >= 0
    assert len(line["model_hash"]) >= 12
    assert line["engine_bytes"] > 1_000_000
    assert all(line[name] >= 0 for name in ("queue_ms", "prefill_ms", "decode_ms"))


@pytest.mark.parametrize(
    ("instruction", "outcome", "reason"),
    [("fail 500", "failed", "engine_refused"), ("word " * 9000, "failed", "prompt_too_long")],
    ids=["engine fails", "too long"],
)
def test_the_line_of_a_failure_says_where_and_why(
    cluster: Cluster, instruction: str, outcome: str, reason: str
) -> None:
    answer = cluster.messages(instruction, headers=WHO)
    line = line_of(cluster, answer.headers["request-id"])
    assert (line["outcome"], line["reason"], line["agent"], line["worker"]) == (outcome, reason, "reviewer", "w1")
    assert line["job"]


def test_the_line_of_a_request_that_was_never_placed_says_why(cluster: Cluster) -> None:
    answer = cluster.messages("x", max_tokens=-1)
    line = line_of(cluster, answer.headers["request-id"])
    assert (line["outcome"], line["reason"]) == ("failed", "bad_request")


@contextmanager
def flower(cluster: Cluster) -> Iterator[httpx.Client]:
    """Flower on the cluster's broker, as `corral up` runs it."""
    port = free_port()
    settings = {"redis_url": cluster.broker_url, "flower_port": port, "data_dir": cluster.folder / "data"}
    environment = base_environment(cluster.folder) | {f"CORRAL_{k.upper()}": str(v) for k, v in settings.items()}
    environment["FLOWER_UNAUTHENTICATED_API"] = "true"
    command = python("-m", "infra.flower_app")
    with (
        Child(command, cluster.folder / "flower.log", environment, cluster.folder),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as client,
    ):
        wait_for(lambda: _answers(client), "Flower")
        yield client


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthcheck").status_code == 200
    except httpx.TransportError:
        return False


def test_no_word_of_a_prompt_is_in_a_log_a_key_a_message_or_flower(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1, slots=1, settings={"log_level": "debug"})
    with flower(cluster) as shown:
        for request in secrets():
            answer = cluster.http.post("/v1/messages", json=request, headers=WHO)
            assert answer.headers["request-id"]
        with occupied(cluster, 1), closing(sent(cluster, secrets()[0], WHO)):
            wait_for(lambda: waiting_jobs(cluster) == 1 and lists(cluster), "the request and its ticket to wait")
            assert SECRET not in in_redis(cluster)
        tasks = wait_for(lambda: shown.get("/api/tasks").json(), "Flower to show tasks")
        pages = [shown.get(path).text for path in ("/tasks", "/broker", "/workers", "/api/tasks", "/api/workers")]
        pages += [shown.get(f"/task/{task}").text for task in tasks]
    assert "reviewer" in "".join(pages)
    assert SECRET not in "".join(pages)
    searched = [path for path in cluster.folder.rglob("*") if path.is_file() and not is_standin(path)]
    assert {"api0.log", "w1.log"} <= {path.name for path in searched}
    assert [path.name for path in searched if SECRET.encode() in path.read_bytes()] == []


def secrets() -> list[dict[str, Any]]:
    """The secret in every place of a request, in answers, in errors."""
    turns = [user(f"{SECRET} go"), assistant(text(SECRET), used()), user(result("t1", SECRET), text("say 2 words"))]
    named = {**BASH, "description": SECRET, "input_schema": {"type": "object", "title": SECRET, "properties": {}}}
    metadata = {"user_id": f"user_{SECRET}", "note": SECRET}
    thought = {"type": "thinking", "thinking": SECRET}
    return [
        body(*turns, system=SECRET, tools=[named], metadata=metadata),
        body(user("go"), assistant(thought, text(SECRET)), user(f'say "{SECRET}"'), stop_sequences=[SECRET]),
        body(user(f'say "{SECRET} is said"')),
        body(user(f'call Bash {{"command": "{SECRET}"}}'), tools=[named]),
        body(user(f"{SECRET} bad json call Bash"), tools=[named]),
        body(user(f"{SECRET} garbage call name"), tools=[named]),
        body(user(f"{SECRET} fail 500")),
        body(user(f"{SECRET} drop after 2 tokens")),
        body(user(f"{SECRET} " * 9000)),
        body(user({"type": SECRET})),
        body(user("x"), temperature=SECRET),
        {"messages": SECRET},
    ]


def used() -> dict[str, Any]:
    return {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": SECRET}}


def lists(cluster: Cluster) -> list[str]:
    """The lists that hold Celery's messages."""
    return [name for name in cluster.redis.scan_iter("llm.*") if cluster.redis.type(name) == "list"]


def in_redis(cluster: Cluster) -> str:
    """Every key's name, and the value of every list, which is where Celery's messages are."""
    names = list(cluster.redis.scan_iter())
    messages = [message for name in lists(cluster) for message in cluster.redis.lrange(name, 0, -1)]
    assert messages
    return json.dumps([names, messages])


def is_standin(path: Path) -> bool:
    """The double's own record of what it was asked, not a log of ours."""
    return path.suffix == ".jsonl"
