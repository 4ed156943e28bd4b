"""The Messages protocol as a client without a library speaks it.

Owns: bodies in short, reading a stream of events, and what every stream must obey.
Never: starts anything.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from select import select
from typing import Any

from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

Event = dict[str, Any]

BASH: dict[str, Any] = {
    "name": "Bash",
    "description": "Run a command.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
        "required": ["command"],
    },
}


def user(*content: Any) -> dict[str, Any]:
    """A user message: one string, or blocks."""
    return {"role": "user", "content": _content(content)}


def assistant(*content: Any) -> dict[str, Any]:
    """An assistant message: one string, or blocks."""
    return {"role": "assistant", "content": _content(content)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(call_id: str, command: str = "ls") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": command}}


def result(call_id: str, content: Any = "fine", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "any", "max_tokens": 512, "messages": list(messages), **fields}


def ask(
    cluster: Cluster, *messages: dict[str, Any], headers: Mapping[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    """The whole answer. Fails the test unless it is a 200."""
    answer = cluster.http.post("/v1/messages", json=body(*messages, **fields), headers=dict(headers or {}))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def stream(
    cluster: Cluster, *messages: dict[str, Any], headers: Mapping[str, str] | None = None, **fields: Any
) -> list[Event]:
    """The events of a streamed answer, already found in order. Fails the test unless it is a 200."""
    request = body(*messages, stream=True, **fields)
    with cluster.http.stream("POST", "/v1/messages", json=request, headers=dict(headers or {})) as answer:
        lines = list(answer.iter_lines())
    assert answer.status_code == 200, lines
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"  # else a proxy in between keeps events until it has many
    events = events_of(lines)
    in_order(events)
    return events


def events_of(lines: list[str]) -> list[Event]:
    """The events of a stream's lines; each is named once by its `event:` line and once by its type."""
    events: list[Event] = []
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == name
            events.append(event)
    return events


def in_order(events: list[Event]) -> None:
    """Fails unless the events are a well formed message: the rules that clients stumble over."""
    said = [event for event in events if event["type"] != "ping"]
    assert said[0]["type"] == "message_start"
    assert [event["type"] for event in said].count("message_start") == 1
    assert said[-1]["type"] in {"message_stop", "error"}
    open_block: int | None = None
    blocks = 0
    for event in said[1:]:
        match event["type"]:
            case "content_block_start":
                assert (open_block, event["index"]) == (None, blocks)
                open_block, blocks = blocks, blocks + 1
            case "content_block_delta":
                assert event["index"] == open_block
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
            case "message_delta" | "message_stop":
                assert open_block is None
    if said[-1]["type"] == "message_stop":
        assert said[-2]["type"] == "message_delta"
        assert said[-2]["delta"]["stop_reason"] is not None


def text_of(answer: dict[str, Any] | list[Event]) -> str:
    """The text of a whole answer or of a stream."""
    if isinstance(answer, dict):
        return "".join(block["text"] for block in answer["content"] if block["type"] == "text")
    return "".join(delta["text"] for delta in deltas(answer, "text_delta"))


def deltas(events: list[Event], kind: str) -> list[dict[str, Any]]:
    found = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return [delta for delta in found if delta["type"] == kind]


@contextmanager
def occupied(cluster: Cluster, count: int) -> Iterator[None]:
    """`count` slots of a stand-in are busy inside the block; then their clients hang up and they come free."""
    request = body(user("say 100000 words at 5 tokens/s"), max_tokens=2000, stream=True)
    with ExitStack() as streams:
        for number in range(count):
            headers = {"x-agent-id": f"occupant-{number}"}
            answer = streams.enter_context(cluster.http.stream("POST", "/v1/messages", json=request, headers=headers))
            assert answer.status_code == 200
        yield
    wait_for(lambda: running_jobs(cluster) == 0, "the occupied slots to come free")


def expecting_short_answers(cluster: Cluster) -> Cluster:
    """Answers so far had a token or two: a wait is expected to be short, whatever comes of it."""
    cluster.redis.hset("corral:lengths:all", mapping={"n": 100, "mean": 0, "m2": 0})
    return cluster


def sent(cluster: Cluster, request: dict[str, Any], headers: Mapping[str, str] | None = None) -> HTTPConnection:
    """A connection on which the request was sent; `getresponse` waits for its answer, `close` hangs up."""
    connection = HTTPConnection("127.0.0.1", cluster.ports[0], timeout=60)
    given = {"content-type": "application/json", **(headers or {})}
    connection.request("POST", "/v1/messages", json.dumps(request).encode(), given)
    return connection


@contextmanager
def waiting(cluster: Cluster) -> Iterator[HTTPConnection]:
    """A request waits in the line inside the block and hangs up at its end. The slots must be taken already.

    Raises AssertionError with the answer when it is answered instead.
    """
    with closing(sent(cluster, body(user("say 3 words")))) as connection:
        wait_for(lambda: waiting_jobs(cluster) == 1 or _is_answered(connection), "a waiting request")
        if _is_answered(connection):
            answer = connection.getresponse()
            raise AssertionError(f"answered at once: {answer.status} {answer.read().decode()}")
        yield connection


def _is_answered(connection: HTTPConnection) -> bool:
    return bool(select([connection.sock], [], [], 0)[0])


def running_jobs(cluster: Cluster) -> int:
    return sum(int(worker["running"]) for worker in cluster.status()["workers"])


def waiting_jobs(cluster: Cluster) -> int:
    return int(cluster.status()["waiting"])


def prompt_with(cluster: Cluster, word: str) -> str:
    """The prompt, as the stand-in's template wrote it, of the last request in which `word` stands."""
    return wait_for(lambda: next(reversed(_prompts_with(cluster, word)), ""), f"a request with {word} at an engine")


def turns_of(prompt: str) -> list[tuple[str, str]]:
    """Role and text of each turn of a prompt; the last one is the opened answer."""
    return [(role, said.strip()) for role, said in re.findall(r"<\|(\w+)\|>\n(.*?)(?:<\|end\|>|\Z)", prompt, re.DOTALL)]


def _prompts_with(cluster: Cluster, word: str) -> list[str]:
    lines = [line for name in cluster.workers for line in cluster.engine_requests(name) if "prompt" in line]
    return [line["prompt"] for line in sorted(lines, key=lambda line: line["time"]) if word in line["prompt"]]


def _content(parts: tuple[Any, ...]) -> Any:
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else list(parts)
