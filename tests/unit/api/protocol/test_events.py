"""Deltas to events: whatever the worker sends, the client gets a valid order."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol.events import EventBuilder, joined
from scheduler.contract import Delta, Failed, StopReason, TextDelta, ThinkingDelta, ToolCall
from tests.unit.api.protocol.deltas import STARTED, answers, finished, middles
from tests.unit.api.protocol.transcript import Transcript

pytestmark = pytest.mark.unit

BASH = ToolCall(id="t1", name="Bash", arguments='{ "command": "ls" }')


def builder() -> EventBuilder:
    return EventBuilder("msg_1", "anthropic-m")


def events_of(*deltas: Delta) -> list[dict[str, Any]]:
    built = builder()
    return [event for delta in deltas for event in built.feed(delta)]


def types_of(*deltas: Delta) -> list[str]:
    return [event["type"] for event in events_of(*deltas)]


def message_of(*deltas: Delta) -> dict[str, Any]:
    transcript = Transcript()
    for event in events_of(*deltas):
        transcript.take(event)
    transcript.check_ended_well()
    return transcript.message


# --- whatever comes -----------------------------------------------------------------------------------------------


@given(answers())
def test_any_answer_is_a_valid_transcript(answer: list[Delta]) -> None:
    message_of(*answer)


@given(st.lists(middles, max_size=8), st.sampled_from(["fail", "nothing"]), st.booleans())
def test_pings_and_heartbeats_fit_in_anywhere(middle: list[Delta], end: str, early: bool) -> None:
    built, transcript = builder(), Transcript()
    events = built.start(5, 0) if early else []
    for delta in middle:
        events += [built.ping(), built.heartbeat(), *built.feed(delta), built.heartbeat()]
    if end == "fail":
        events += built.fail("api_error", "the worker went away", "req_1")
    for event in events:
        transcript.take(event)
    assert built.done == transcript.ended == (end == "fail")


@given(answers())
def test_a_text_comes_through_but_for_blanks_around_blocks(answer: list[Delta]) -> None:
    sent = "".join(delta.text for delta in answer if isinstance(delta, TextDelta | ThinkingDelta))
    blocks = message_of(*answer)["content"]
    shown = "".join(block.get("text", block.get("thinking", "")) for block in blocks)
    assert "".join(readable(shown).split()) == "".join(readable(sent).split())


def readable(text: str) -> str:
    """What is left when surrogates, joined or lone, and their replacement are taken out."""
    return "".join(c for c in text if c != "\ufffd" and not "\ud800" <= c <= "\udfff" and ord(c) < 0x10000)


@given(answers())
def test_what_came_together_leaves_as_one_and_says_the_same(answer: list[Delta]) -> None:
    together = joined(answer)
    assert message_of(*together) == message_of(*answer)
    neighbours = pairwise(together)
    assert not any(type(one) is type(two) and isinstance(one, TextDelta | ThinkingDelta) for one, two in neighbours)


def test_calls_side_by_side_stay_two() -> None:
    assert joined([TextDelta("a"), TextDelta("b"), BASH, BASH]) == [TextDelta("ab"), BASH, BASH]


@given(answers(), st.lists(middles, max_size=3))
def test_nothing_comes_after_the_end(answer: list[Delta], late: list[Delta]) -> None:
    built = builder()
    for delta in answer:
        built.feed(delta)
    assert built.done
    assert [event for delta in late for event in built.feed(delta)] == []
    assert built.fail("api_error", "late", "req_1") == built.start(1, 1) == []
    assert built.heartbeat() == {"type": "ping"}


# --- the order ----------------------------------------------------------------------------------------------------


def test_text_then_thinking_then_a_call_are_three_blocks() -> None:
    deltas = (STARTED, TextDelta("a"), TextDelta("b"), ThinkingDelta("c"), BASH, finished(StopReason.TOOL_USE))
    assert types_of(*deltas) == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"],
        *["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"],
        *["content_block_start", "content_block_delta", "content_block_stop"],
        "message_delta",
        "message_stop",
    ]
    assert [block["type"] for block in message_of(*deltas)["content"]] == ["text", "thinking", "tool_use"]


def test_a_message_starts_first_even_when_text_overtakes_started() -> None:
    assert types_of(TextDelta("a"), STARTED) == ["message_start", "content_block_start", "content_block_delta"]


def test_an_answer_committed_early_starts_once_and_ends_with_the_engines_numbers() -> None:
    built = builder()
    (start,) = built.start(90, 0)
    assert start["message"]["usage"]["input_tokens"] == 90
    assert built.start(90, 0) == built.feed(STARTED) == []
    assert built.heartbeat()["usage"]["input_tokens"] == 40
    final = built.feed(finished())[0]
    assert final["usage"] == {
        "input_tokens": 40,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 60,
        "output_tokens": 7,
    }


def test_a_call_is_one_start_one_delta_one_stop_and_its_text_is_the_models_own() -> None:
    start, delta, stop = events_of(STARTED, BASH)[1:]
    assert start["content_block"] == {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    assert delta["delta"] == {"type": "input_json_delta", "partial_json": BASH.arguments}
    assert (start["index"], delta["index"], stop) == (0, 0, {"type": "content_block_stop", "index": 0})


def test_parallel_calls_are_blocks_of_their_own() -> None:
    other = ToolCall(id="t2", name="Read", arguments="{}")
    assert [block["id"] for block in message_of(STARTED, BASH, other, finished())["content"]] == ["t1", "t2"]


def test_thinking_is_signed_before_it_stops() -> None:
    (block,) = message_of(STARTED, ThinkingDelta("t"), finished())["content"]
    assert block == {"type": "thinking", "thinking": "t", "signature": block["signature"]}
    assert block["signature"]


# --- text ---------------------------------------------------------------------------------------------------------


def test_a_code_point_split_over_two_deltas_is_sent_whole() -> None:
    (block,) = message_of(TextDelta("a\ud83d"), TextDelta("\ude00b"), finished())["content"]
    assert block["text"] == "a\N{GRINNING FACE}b"


def test_half_a_code_point_at_the_end_is_replaced() -> None:
    (block,) = message_of(TextDelta("a\ud83d"), finished())["content"]
    assert block["text"] == "a\ufffd"


def test_blanks_ahead_of_text_are_kept_and_blanks_without_text_make_no_block() -> None:
    blocks = message_of(TextDelta("\n"), TextDelta(" a"), BASH, TextDelta("\n"), BASH, TextDelta(" "), finished())[
        "content"
    ]
    assert [block.get("text") for block in blocks] == ["\n a", None, None]


def test_an_answer_of_nothing_has_no_block() -> None:
    built = builder()
    assert [event["type"] for event in built.feed(finished())] == ["message_start", "message_delta", "message_stop"]


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("called", "said", "told"),
    [
        (True, StopReason.END_TURN, "tool_use"),
        (True, StopReason.TOOL_USE, "tool_use"),
        (True, StopReason.MAX_TOKENS, "max_tokens"),
        (False, StopReason.TOOL_USE, "end_turn"),
        (False, StopReason.MAX_TOKENS, "max_tokens"),
        (False, StopReason.WINDOW, "model_context_window_exceeded"),
    ],
)
def test_tool_use_is_said_exactly_when_a_call_was_sent(called: bool, said: StopReason, told: str) -> None:
    deltas: list[Delta] = [STARTED, BASH] if called else [STARTED, TextDelta("a")]
    assert message_of(*deltas, finished(said))["stop_reason"] == told


def test_the_stop_sequence_is_told_only_when_it_stopped_the_answer() -> None:
    assert message_of(finished(StopReason.STOP_SEQUENCE, "END"))["stop_sequence"] == "END"
    assert message_of(finished(StopReason.END_TURN, "END"))["stop_sequence"] is None


def test_an_error_ends_the_stream_and_leaves_its_block_open() -> None:
    built = builder()
    for delta in (STARTED, TextDelta("half a")):
        built.feed(delta)
    assert built.fail("api_error", "the engine stopped \ud83d", "req_1") == [
        {
            "type": "error",
            "error": {"type": "api_error", "message": "the engine stopped \ufffd"},
            "request_id": "req_1",
        }
    ]
    assert built.done


def test_a_failed_delta_is_left_to_the_caller() -> None:
    built = builder()
    assert built.feed(Failed("engine_lost", "gone")) == []
    assert not built.done


def test_a_heartbeat_opens_no_block_and_ends_nothing() -> None:
    built = builder()
    assert built.heartbeat() == {"type": "ping"}
    built.feed(STARTED)
    assert built.heartbeat() == {
        "type": "message_delta",
        "delta": {"stop_reason": None, "stop_sequence": None},
        "usage": {
            "input_tokens": 40,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 60,
            "output_tokens": 0,
        },
    }
