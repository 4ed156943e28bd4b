"""What the stand-in engine says to each instruction."""

import json
from typing import Any

import pytest

from tests.doubles.standin_script import DONE, Call, plan, render, render_answer, words

pytestmark = pytest.mark.unit

TOOLS = [{"type": "function", "function": {"name": "Bash", "parameters": {}}}]


def asked(text: str, *more: dict[str, Any], **fields: Any) -> Any:
    return plan({"messages": [{"role": "user", "content": text}, *more], "tools": TOOLS, **fields})


def content(text: str, *more: dict[str, Any]) -> str:
    return "".join(asked(text, *more).content)


def test_it_says_so_many_words() -> None:
    assert content("please say 3 words") == "w1 w2 w3"


def test_it_says_a_given_text() -> None:
    assert content('say "Hello,  you"') == "Hello,  you"


def test_the_last_user_text_counts() -> None:
    last = {"role": "user", "content": [{"type": "text", "text": "say 2 words"}]}
    assert content("say 9 words", {"role": "assistant", "content": "w1"}, last) == "w1 w2"


def test_without_an_instruction_it_says_eight_words() -> None:
    assert len(words(content("what a day"))) == 8


def test_each_line_of_calls_is_a_call() -> None:
    answer = asked('call Bash {"command": "a"}\ncall Read {"path": "b"}')
    assert answer.calls == (Call("Bash", '{"command": "a"}'), Call("Read", '{"path": "b"}'))


def test_text_may_come_before_a_call() -> None:
    answer = asked('say 2 words then call Bash {"command": "a"}')
    assert ("".join(answer.content), len(answer.calls)) == ("w1 w2", 1)


def test_without_tools_it_calls_none() -> None:
    assert asked('call Bash {"command": "a"}', tools=[]).calls == ()
    assert asked('call Bash {"command": "a"}', tool_choice="none").calls == ()


def test_after_a_tool_result_it_is_done() -> None:
    assert content('call Bash {"command": "a"}', {"role": "tool", "content": "x"}) == DONE


def test_it_thinks_first() -> None:
    answer = asked("think then say 2 words")
    assert ("".join(answer.reasoning), "".join(answer.content)) == ("First I think about it.", "w1 w2")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("fail 503", "fail_status", 503),
        ("fail after 4 tokens", "fail_after", 4),
        ("die after 5 tokens", "die_after", 5),
        ("drop after 0 tokens", "drop_after", 0),
        ("hang", "hang", True),
        ("hang at once", "hang_at_once", True),
        ("split emoji", "torn_bytes", True),
        ("slow start 3s say 2 words", "start_delay_s", 3.0),
        ("say 9 words at 2.5 tokens/s", "tokens_per_s", 2.5),
    ],
)
def test_faults_and_pace(text: str, field: str, value: object) -> None:
    assert getattr(asked(text), field) == value


def test_a_bad_call_is_no_json() -> None:
    [call] = asked("bad json call Bash").calls
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(call.arguments)


@pytest.mark.parametrize("cut", [2, 5, 7, 8])
def test_it_goes_on_where_it_was_cut(cut: int) -> None:
    whole = "w1 w2 w3"
    rest = content("say 3 words", {"role": "assistant", "content": whole[:cut]})
    assert whole[:cut] + rest == whole


def test_history_is_rendered_as_the_words_that_were_generated() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    generated = render({"messages": messages}) + render_answer("hm", "well", [Call("Bash", '{"a":1}')])
    call = {"function": {"name": "Bash", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "reasoning_content": "hm", "content": "well", "tool_calls": [call]}
    history = render({"messages": [*messages, message, {"role": "user", "content": "more"}]})
    assert history.startswith(generated)
