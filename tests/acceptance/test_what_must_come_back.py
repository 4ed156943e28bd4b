"""What clients rely on in an answer: order, ids, stop reasons, usage, counts and names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RealCluster, StartCluster
from tests.acceptance.wire import (
    BASH,
    Event,
    ask,
    assistant,
    body,
    deltas,
    occupied,
    result,
    stream,
    text,
    text_of,
    user,
    waiting,
)
from tests.doubles import scripted_model as scripts
from tests.doubles.bodies import claude_body, claude_headers
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import Script
from tests.doubles.standin_script import EMOJI

pytestmark = pytest.mark.acceptance

SCRIPTS = [script for script in scripts.ALL if script is not scripts.KV_HEAVY]


def kinds(events: list[Event]) -> list[str]:
    """The kinds of the blocks, in order."""
    return [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]


def said(events: list[Event]) -> list[str]:
    return [event["type"] for event in events if event["type"] != "ping"]


def stop_of(events: list[Event]) -> tuple[str, str | None]:
    delta = events[-2]["delta"]
    return delta["stop_reason"], delta["stop_sequence"]


def whole_prompt(usage: dict[str, int]) -> int:
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


# --- order --------------------------------------------------------------------------------------------------------


def offered(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": f"{name} something.", "input_schema": schema}


# As the scripts call them: the grammar lets no other call through, and a model kept from its script says anything.
AGENT = offered("Agent", description="string", prompt="string", subagent_type="string")
EDIT = offered("Edit", path="string", edits="array", count="integer", dry="boolean", note="null")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
@pytest.mark.parametrize("tools", [[BASH, AGENT, EDIT], []], ids=["tools", "no tools"])
def test_every_script_comes_as_a_well_formed_stream(
    real: RealCluster, script: Script, tools: list[dict[str, Any]]
) -> None:
    events = stream(real(script), user("go"), tools=tools, max_tokens=1500)
    assert len(kinds(events)) >= 1
    assert stop_of(events)[0] == ("tool_use" if "tool_use" in kinds(events) else "end_turn")


INSTRUCTIONS = [
    "say 1 words",
    "say 200 words",
    "think then say 4 words",
    "empty",
    "split emoji",
    "bad json call Bash",
    "garbage call name",
    'call Bash {"command": "ls"}',
    'say 2 words then call Bash {"command": "ls"}',
    'call Bash {"command": "a"}\ncall Bash {"command": "b"}',
    "fail after 2 tokens",
    "drop after 2 tokens",
]


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_every_kind_of_answer_is_a_well_formed_stream_and_the_same_when_whole(
    standin: Cluster, instruction: str
) -> None:
    events = stream(standin, user(instruction), tools=[BASH])
    if events[-1]["type"] == "error":
        return
    whole = ask(standin, user(instruction), tools=[BASH])
    assert [block["type"] for block in whole["content"]] == kinds(events)
    assert text_of(whole) == text_of(events)
    assert whole["stop_reason"] == stop_of(events)[0]
    assert whole["usage"]["output_tokens"] == events[-2]["usage"]["output_tokens"]


def test_message_start_is_first_even_where_the_engine_says_nothing(standin: Cluster) -> None:
    events = stream(standin, user("empty"))
    assert said(events) == ["message_start", "message_delta", "message_stop"]
    assert stop_of(events) == ("end_turn", None)


def test_a_code_point_is_never_split(standin: Cluster) -> None:
    events = stream(standin, user("split emoji"))
    pieces = [delta["text"] for delta in deltas(events, "text_delta")]
    assert "".join(pieces) == "".join(EMOJI)
    assert not any("\ufffd" in piece for piece in pieces)


def test_text_may_come_before_a_call_and_thinking_before_text(standin: Cluster) -> None:
    assert kinds(stream(standin, user('say 2 words then call Bash {"command": "ls"}'), tools=[BASH])) == [
        "text",
        "tool_use",
    ]
    assert kinds(stream(standin, user("think then say 4 words"))) == ["thinking", "text"]


# --- calls --------------------------------------------------------------------------------------------------------


def test_a_call_begins_empty_and_its_fragments_add_up(real: RealCluster) -> None:
    events = stream(real(scripts.TWO_PARALLEL_CALLS), user("go"), tools=[BASH])
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [(block["name"], block["input"]) for block in blocks] == [("Bash", {}), ("Bash", {})]
    assert len({block["id"] for block in blocks}) == 2
    for index in range(2):
        parts = [e["delta"] for e in events if e["type"] == "content_block_delta" and e["index"] == index]
        arguments = json.loads("".join(part["partial_json"] for part in parts))
        assert set(arguments) == {"command", "description"}
    assert stop_of(events) == ("tool_use", None)


def test_ids_differ_from_turn_to_turn(real: RealCluster) -> None:
    cluster = real(scripts.TOOL_THEN_TEXT)
    ids = [ask(cluster, user("go"), tools=[BASH])["content"][0]["id"] for _ in range(3)]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("limit", range(1, 30, 4))
def test_a_call_that_is_cut_off_is_not_presented_as_complete(real: RealCluster, limit: int) -> None:
    whole = scripts.TOOL_THEN_TEXT
    answer = ask(real(whole), user("go"), tools=[BASH], max_tokens=limit)
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    if calls:
        assert calls[0]["input"] == {"command": "echo tool-ran", "description": "run echo"}
    else:
        assert answer["stop_reason"] == "max_tokens"


def test_bad_json_is_mended_or_said(standin: Cluster) -> None:
    answer = ask(standin, user("bad json call Bash"), tools=[BASH])
    assert answer["content"][0] | {"id": ""} == {
        "type": "tool_use",
        "id": "",
        "name": "Bash",
        "input": {"command": "ls"},
    }
    unknown = ask(standin, user("garbage call name"), tools=[BASH])
    assert (unknown["stop_reason"], [block["type"] for block in unknown["content"]]) == ("end_turn", ["text"])
    assert "no such tool!" in text_of(unknown)


def test_json_that_is_spaced_otherwise_is_a_call_all_the_same(real: RealCluster) -> None:
    answer = ask(real(scripts.SPACED_JSON), user("go"), tools=[BASH])
    assert answer["content"][0]["input"] == {"command": "echo spaced", "description": "run echo"}


# --- thinking -----------------------------------------------------------------------------------------------------


def test_thinking_is_signed_before_it_stops(real: RealCluster) -> None:
    events = stream(real(scripts.THINKING_THEN_TEXT), user("go"))
    first = [event for event in events if event.get("index") == 0]
    assert [event["delta"]["type"] for event in first[1:-1]][-1] == "signature_delta"
    assert "".join(delta["thinking"] for delta in deltas(events, "thinking_delta")).strip() == "First I weigh it up."


def test_a_turn_with_thinking_and_a_call_comes_back_as_the_same_tokens(standin: Cluster) -> None:
    who = {"x-agent-id": "thinker"}
    for instruction in ("think then say 4 words", 'say 2 words then call Bash {"command": "ls"}'):
        first = ask(standin, user(instruction), tools=[BASH], headers=who)
        calls = [block["id"] for block in first["content"] if block["type"] == "tool_use"]
        after = [result(call_id) for call_id in calls] or [text("go on")]
        turns = [user(instruction), {"role": "assistant", "content": first["content"]}, user(*after)]
        second = ask(standin, *turns, tools=[BASH], headers=who)
        generated = whole_prompt(first["usage"]) + first["usage"]["output_tokens"]
        assert second["usage"]["cache_read_input_tokens"] >= generated - 2


@pytest.mark.parametrize("script", [scripts.THINKING_THEN_TEXT, scripts.TOOL_THEN_TEXT], ids=lambda s: s.name)
def test_replayed_history_is_found_in_the_cache_of_the_real_engine(real: RealCluster, script: Script) -> None:
    who = {"x-claude-code-session-id": f"replay-{script.name}"}
    cluster = real(script)
    first = ask(cluster, user("go " * 200), tools=[BASH], headers=who)
    calls = [block["id"] for block in first["content"] if block["type"] == "tool_use"]
    after = [result(call_id) for call_id in calls] or [text("go on")]
    turns = [user("go " * 200), {"role": "assistant", "content": first["content"]}, user(*after)]
    second = ask(cluster, *turns, tools=[BASH], headers=who)
    # All of the first turn but its last token, which was sampled and never read.
    assert (
        second["usage"]["cache_read_input_tokens"] >= whole_prompt(first["usage"]) + first["usage"]["output_tokens"] - 1
    )


# --- stop reasons -------------------------------------------------------------------------------------------------


def test_end_turn_and_tool_use(real: RealCluster) -> None:
    cluster = real(scripts.TOOL_THEN_TEXT)
    assert stop_of(stream(cluster, user("go"))) == ("end_turn", None)
    assert stop_of(stream(cluster, user("go"), tools=[BASH])) == ("tool_use", None)


def test_max_tokens(real: RealCluster) -> None:
    answer = ask(real(scripts.LONG_TEXT), user("go"), max_tokens=7)
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 7)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_stop_sequence_ends_the_answer_before_it_and_is_told(real: RealCluster, streamed: bool) -> None:
    cluster = real(scripts.LONG_TEXT)
    fields: dict[str, Any] = {"stop_sequences": ["nowhere", "step0005", "p0009"]}
    if streamed:
        events = stream(cluster, user("go"), **fields)
        assert stop_of(events) == ("stop_sequence", "step0005")
        assert text_of(events).split() == [f"step000{number}" for number in range(1, 5)]
        return
    answer = ask(cluster, user("go"), **fields)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "step0005")
    assert text_of(answer).split() == [f"step000{number}" for number in range(1, 5)]


def test_a_stop_sequence_frees_the_slot_for_the_next_one(real: RealCluster) -> None:
    cluster = real(scripts.LONG_TEXT)
    who = {"x-agent-id": "stopper"}
    answers = [ask(cluster, user("go"), stop_sequences=["step0003"], headers=who) for _ in range(5)]
    assert {text_of(answer).strip() for answer in answers} == {"step0001 step0002"}


def test_a_full_window_is_told_by_its_own_reason(
    start_cluster: StartCluster, model_path: Callable[[Script], Path]
) -> None:
    model = model_path(scripts.LONG_TEXT)
    settings = {"overflow_reserve_tokens": 0}
    cluster = start_cluster(workers=1, slots=1, engine="embedded", model=model, context_tokens=512, settings=settings)
    room = 512 - cluster.messages("x " * 400, max_tokens=1).json()["usage"]["input_tokens"]
    answer = cluster.messages("x " * 400, max_tokens=4000).json()
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert answer["usage"]["output_tokens"] in {room, room - 1}


def test_no_room_for_an_answer_is_said_in_numbers(
    start_cluster: StartCluster, model_path: Callable[[Script], Path]
) -> None:
    model = model_path(scripts.LONG_TEXT)
    settings = {"overflow_reserve_tokens": 0}
    cluster = start_cluster(workers=1, slots=1, engine="embedded", model=model, context_tokens=512, settings=settings)
    used = cluster.messages("x " * 400, max_tokens=1).json()["usage"]["input_tokens"]
    fill = "x " * (400 + (508 - used))
    answer = cluster.messages(fill, max_tokens=4000)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("input length and `max_tokens` exceed context limit: ")


# --- usage and counts ---------------------------------------------------------------------------------------------


def test_usage_tells_cached_and_fresh_tokens_apart(real: RealCluster) -> None:
    cluster = real(scripts.TEXT_ONLY)
    who = {"x-claude-code-session-id": "usage"}
    request = user("many words " * 300)
    first, second = (stream(cluster, request, headers=who) for _ in range(2))
    assert first[-2]["usage"]["cache_read_input_tokens"] < first[-2]["usage"]["input_tokens"]
    assert second[-2]["usage"]["input_tokens"] == 1
    assert whole_prompt(first[-2]["usage"]) == whole_prompt(second[-2]["usage"])
    assert second[0]["message"]["usage"]["cache_read_input_tokens"] == second[-2]["usage"]["cache_read_input_tokens"]


def test_an_answer_to_a_given_beginning_counts_and_holds_the_rest_only(real: RealCluster) -> None:
    words = scripts.LONG_TEXT.answer.split(" ")
    given = " ".join(words[:150])
    events = stream(real(scripts.LONG_TEXT), user("go"), assistant(given), max_tokens=500)
    assert text_of(events).split() == words[150:]
    assert events[-2]["usage"]["output_tokens"] in range(50, 53)


def test_counting_is_exact_for_a_real_client_s_body(real: RealCluster) -> None:
    cluster = real(scripts.TOOL_THEN_TEXT)
    request = claude_body(turns=3, stream=False)
    headers = claude_headers("counted")
    counted = cluster.http.post("/v1/messages/count_tokens", json=request, headers=headers).json()
    usage = cluster.http.post("/v1/messages", json=request, headers=headers).json()["usage"]
    assert counted == {"input_tokens": whole_prompt(usage)}


def test_fifty_counts_pass_by_a_full_line(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1, slots=1)
    with occupied(cluster, 1), waiting(cluster):
        for number in range(50):
            request = body(user(f"count number {number}"))
            count = cluster.http.post("/v1/messages/count_tokens", json=request, timeout=5)
            assert set(count.json()) == {"input_tokens"}


# --- names --------------------------------------------------------------------------------------------------------


def test_served_names_are_kept_by_the_client_s_discovery(real: RealCluster) -> None:
    answer = real(scripts.TEXT_ONLY).http.get("/v1/models", timeout=3).json()
    assert [model["id"] for model in answer["data"]] == ["anthropic-text-only"]
    assert answer["has_more"] is False


def test_the_client_s_first_looks_are_answered(real: RealCluster) -> None:
    http = real(scripts.TEXT_ONLY).http
    looks = [http.head("/"), http.head("/api/hello"), http.get("/api/hello"), http.post("/api/event_logging/batch")]
    assert [look.status_code for look in looks] == [200] * 4


def test_every_answer_says_where_it_was_made(real: RealCluster) -> None:
    cluster = real(scripts.TEXT_ONLY)
    headers = cluster.messages("go").headers
    assert headers["request-id"].startswith("req_")
    assert headers["x-corral-worker"] in {"w1", "w2"}
    numbers = ("slot", "attempt", "queue-ms", "prompt-tokens", "cached-tokens")
    assert all(int(headers[f"x-corral-{name}"]) >= 0 for name in numbers)
