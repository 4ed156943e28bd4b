"""The complete message: the same as the stream adds up to."""

import json

import pytest
from hypothesis import given

from api.protocol.events import EventBuilder
from api.protocol.whole import whole_message
from scheduler.contract import Delta, Failed, StopReason, TextDelta, ThinkingDelta, ToolCall
from tests.unit.api.protocol.deltas import STARTED, answers, finished
from tests.unit.api.protocol.transcript import Transcript

pytestmark = pytest.mark.unit


@given(answers())
def test_a_whole_message_is_what_the_stream_adds_up_to(answer: list[Delta]) -> None:
    built, transcript = EventBuilder("msg_1", "m"), Transcript()
    for delta in answer:
        for event in built.feed(delta):
            transcript.take(event)
    assert whole_message("msg_1", "m", answer) == transcript.message


def test_a_message_with_every_kind_of_block() -> None:
    call = ToolCall(id="t1", name="Bash", arguments='{"b": 1, "a": "\\u00e9"}')
    deltas = (STARTED, ThinkingDelta("t"), TextDelta("a"), TextDelta("b"), call, finished(StopReason.TOOL_USE))
    message = whole_message("msg_1", "anthropic-m", deltas)
    signature = message["content"][0].pop("signature")
    assert message == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "anthropic-m",
        "content": [
            {"type": "thinking", "thinking": "t"},
            {"type": "text", "text": "ab"},
            {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"b": 1, "a": "\u00e9"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 40,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 60,
            "output_tokens": 7,
        },
    }
    assert signature
    assert json.dumps(message["content"][2]["input"]) == '{"b": 1, "a": "\\u00e9"}'


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "null"])
def test_arguments_that_are_no_object_are_shown_and_not_lost(arguments: str) -> None:
    (block,) = whole_message("msg_1", "m", [ToolCall("t1", "Bash", arguments), finished()])["content"]
    assert block["input"] == {"unreadable_arguments": arguments}


def test_an_answer_without_an_end_has_no_stop_reason() -> None:
    message = whole_message("msg_1", "m", [TextDelta("a"), Failed("engine_lost", "gone")])
    assert (message["stop_reason"], message["content"]) == (None, [{"type": "text", "text": "a"}])
    assert whole_message("msg_1", "m", [])["content"] == []
