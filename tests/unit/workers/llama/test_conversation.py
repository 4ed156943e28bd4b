"""Each kind of message is said to the engine in one stable way."""

from typing import Any

import pytest

from scheduler.contract import Block, ImageBlock, Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from workers.llama.conversation import (
    ERROR_MARK,
    MOVED_IMAGE_NOTE,
    NO_VISION_NOTE,
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


def rendered(*messages: Message, system: str = "", vision: bool = False, call_joint: str = "") -> list[dict[str, Any]]:
    return list(said(system, messages, vision=vision, call_joint=call_joint))


def test_the_system_text_comes_first_and_only_if_there_is_one() -> None:
    assert rendered(user(text("hi")), system="S")[0] == {"role": "system", "content": "S"}
    assert rendered(user(text("hi"))) == [{"role": "user", "content": "hi"}]


def test_texts_of_one_message_of_the_user_are_paragraphs() -> None:
    assert rendered(user(text("one"), text("two"))) == [{"role": "user", "content": "one\n\ntwo"}]


def test_thinking_calls_and_text_of_the_assistant_are_one_message() -> None:
    turn = assistant(ThinkingBlock(thinking="Hm."), text("Look: "), CALL_A, text("there"))

    message = rendered(user(text("hi")), turn, user(result("a")))[1]

    assert message["content"] == "Look: there"
    assert message["reasoning_content"] == "Hm."
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "Bash", "arguments": '{"z": 1, "a": [2]}'}}
    ]


@pytest.mark.parametrize(
    ("joint", "words", "expected"),
    [("\n", "Look.\n", "Look."), ("\n", "Look.\n\n", "Look.\n"), ("\n", "Look.", "Look."), ("", "Look.\n", "Look.\n")],
)
def test_what_the_template_writes_between_text_and_calls_is_not_written_twice(
    joint: str, words: str, expected: str
) -> None:
    turn = rendered(user(text("hi")), assistant(text(words), CALL_A), user(result("a")), call_joint=joint)[1]
    assert turn["content"] == expected


def test_text_without_calls_keeps_its_end() -> None:
    assert (
        rendered(user(text("hi")), assistant(text("Well.\n")), user(text("b")), call_joint="\n")[1]["content"]
        == "Well.\n"
    )


def test_each_result_is_a_message_of_its_own_before_the_text() -> None:
    messages = rendered(
        user(text("hi")), assistant(CALL_A, CALL_B), user(result("a", text("A")), result("b", text("B")), text("and?"))
    )

    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": "A"},
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "user", "content": "and?"},
    ]


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


def test_integers_of_any_size_are_carried() -> None:
    call = ToolUseBlock(id="a", name="Bash", input={"n": 10**30})

    message = rendered(user(text("hi")), assistant(call), user(result("a")))[1]

    assert message["tool_calls"][0]["function"]["arguments"] == f'{{"n": {10**30}}}'
