"""What a template writes between text and calls is read from a prompt that it rendered."""

import pytest

from workers.llama.joint import QUESTION, call_joint

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("prompt", "joint"),
    [
        ("corral_tool is a tool\ncorral-text\n<tool_call>corral_tool", "\n"),
        ("corral-text\n\n  <tool_call>\n{corral_tool}", "\n\n  "),
        ("corral-text[TOOL_CALLS]corral_tool", ""),
        ("corral_tool is a tool\ncorral-text\nno call follows", ""),
        ("nothing of it", ""),
    ],
)
def test_the_blanks_before_a_call_are_found(prompt: str, joint: str) -> None:
    assert call_joint(prompt) == joint


def test_the_question_holds_a_text_and_a_call_with_its_result() -> None:
    assert [message["role"] for message in QUESTION["messages"]] == ["user", "assistant", "tool"]
