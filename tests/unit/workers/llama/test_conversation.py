"""Each kind of message is said to the engine in one stable way."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import Block, ImageBlock, Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from workers.llama.conversation import (
    ERROR_MARK,
    LOST_CALL_MARK,
    MOVED_IMAGE_NOTE,
    NO_RESULT_NOTE,
    NO_VISION_NOTE,
    joined_turns,
    said,
)

pytestmark = pytest.mark.unit

IMAGE = ImageBlock(url="data:image/png;base64,AAAA")
CALL_A = ToolUseBlock(id="a", name="Bash", input={"z": 1, "a": [2]})
CALL_B = ToolUseBlock(id="b", name="Read", input={})


def text(words: str) -> TextBlock:
    return TextBlock(text=words)


def user(*blocks: Block) -> Message:
    return Message(role="user", content=blocks)


def assistant(*blocks: Block) -> Message:
    return Message(role="assistant", content=blocks)


def result(identity: str, *content: TextBlock | ImageBlock, is_error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(tool_use_id=identity, content=content, is_error=is_error)


def rendered(*messages: Message, system: str = "", vision: bool = False) -> list[dict[str, Any]]:
    return list(said(system, joined_turns(messages), vision=vision))


def test_the_system_text_comes_first_and_only_if_there_is_one() -> None:
    assert rendered(user(text("hi")), system="S")[0] == {"role": "system", "content": "S"}
    assert rendered(user(text("hi"))) == [{"role": "user", "content": "hi"}]


def test_neighbours_of_one_role_are_joined_and_blank_messages_left_out() -> None:
    messages = rendered(user(text("one")), assistant(), assistant(text(" ")), user(text("two")))

    assert messages == [{"role": "user", "content": "one\n\ntwo"}]


def test_thinking_calls_and_text_of_the_assistant_are_one_message() -> None:
    turn = assistant(ThinkingBlock(thinking="Hm."), text("Look: "), CALL_A, text("there"))

    message = rendered(user(text("hi")), turn, user(result("a")))[1]

    assert message["content"] == "Look: there"
    assert message["reasoning_content"] == "Hm."
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "Bash", "arguments": '{"z": 1, "a": [2]}'}}
    ]


def test_results_come_first_in_the_order_of_their_calls_then_the_text() -> None:
    messages = rendered(
        user(text("hi")), assistant(CALL_A, CALL_B), user(text("and?"), result("b", text("B")), result("a", text("A")))
    )

    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": "A"},
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "user", "content": "and?"},
    ]


def test_a_missing_result_is_said_so() -> None:
    messages = rendered(user(text("hi")), assistant(CALL_A, CALL_B), user(result("b", text("B"))))

    assert [message["content"] for message in messages[2:]] == [NO_RESULT_NOTE, "B"]


def test_calls_at_the_very_end_get_a_result_too_because_the_engine_refuses_them_otherwise() -> None:
    assert rendered(user(text("hi")), assistant(CALL_A))[-1] == {
        "role": "tool",
        "tool_call_id": "a",
        "content": NO_RESULT_NOTE,
    }


def test_a_result_without_its_call_becomes_user_text() -> None:
    (message,) = rendered(user(result("gone", text("old")), text("go on")))

    assert message == {"role": "user", "content": f"{LOST_CALL_MARK}\nold\n\ngo on"}


def test_an_error_is_marked() -> None:
    messages = rendered(user(text("hi")), assistant(CALL_A), user(result("a", text("no such file"), is_error=True)))

    assert messages[-1]["content"] == f"{ERROR_MARK}\nno such file"


def test_without_vision_an_image_is_a_note() -> None:
    messages = rendered(user(IMAGE, text("what?")), assistant(CALL_A), user(result("a", text("shot"), IMAGE)))

    assert messages[0]["content"] == f"{NO_VISION_NOTE}\n\nwhat?"
    assert messages[2]["content"] == f"shot\n{NO_VISION_NOTE}"


def test_with_vision_images_are_parts_and_those_of_results_follow_them() -> None:
    messages = rendered(
        user(IMAGE, text("what?")), assistant(CALL_A), user(result("a", text("shot"), IMAGE)), vision=True
    )

    image = {"type": "image_url", "image_url": {"url": IMAGE.url}}
    assert messages[0]["content"] == [image, {"type": "text", "text": "what?"}]
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": f"shot\n{MOVED_IMAGE_NOTE}"},
        {"role": "user", "content": [image]},
    ]


def test_a_given_beginning_loses_its_trailing_blanks_but_history_does_not() -> None:
    assert rendered(user(text("hi")), assistant(text("Sure: \n")))[-1]["content"] == "Sure:"
    assert rendered(user(text("hi")), assistant(text("Sure: \n")), user(text("x")))[1]["content"] == "Sure: \n"


def test_integers_of_any_size_are_carried() -> None:
    call = ToolUseBlock(id="a", name="Bash", input={"n": 10**30})

    message = rendered(user(text("hi")), assistant(call), user(result("a")))[1]

    assert message["tool_calls"][0]["function"]["arguments"] == f'{{"n": {10**30}}}'


USER_BLOCKS: list[Block] = [text("x"), text(" "), IMAGE, result("a", text("A")), result("b"), result("c", IMAGE)]
ASSISTANT_BLOCKS: list[Block] = [text("y"), text(""), ThinkingBlock(thinking="t"), CALL_A, CALL_B]
conversations = st.lists(
    st.lists(st.sampled_from(USER_BLOCKS), max_size=4).map(lambda blocks: user(*blocks))
    | st.lists(st.sampled_from(ASSISTANT_BLOCKS), max_size=4).map(lambda blocks: assistant(*blocks)),
    max_size=8,
)


@given(conversations, st.booleans())
def test_every_call_is_followed_by_its_result_and_nothing_else(messages: list[Message], vision: bool) -> None:
    out = rendered(*messages, vision=vision)

    for number, message in enumerate(out):
        wanted = [call["id"] for call in message.get("tool_calls", [])]
        following = out[number + 1 : number + 1 + len(wanted)]
        assert [one.get("tool_call_id") for one in following] == wanted
    assert sum(message["role"] == "tool" for message in out) == sum(len(m.get("tool_calls", [])) for m in out)


@given(conversations)
def test_a_longer_conversation_begins_with_the_shorter_one(messages: list[Message]) -> None:
    history = [*messages, user(text("first"))]

    shorter = rendered(*history)
    longer = rendered(*history, assistant(text("answer")), user(text("second")))

    assert longer[: len(shorter)] == shorter
