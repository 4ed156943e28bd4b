"""Same meaning, same bytes: order, completeness and stability of the messages."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol import normalise
from api.protocol.schema import validated
from infra.errors import BadRequest
from scheduler.contract import ImageBlock, Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from tests.unit.api.protocol.conversations import (
    IMAGE,
    Entry,
    assistant,
    call,
    entries,
    normal,
    result,
    system,
    text,
    thinking,
    user,
)

pytestmark = pytest.mark.unit


def outline(messages: tuple[Message, ...]) -> list[tuple[str, list[str]]]:
    """Roles and, per block, its words or ids."""
    return [(message.role, [_outline(block) for block in message.content]) for message in messages]


def _outline(block: Any) -> str:
    match block:
        case TextBlock(text=words):
            return words
        case ThinkingBlock(thinking=words):
            return f"thinking {words}"
        case ToolUseBlock(id=call_id):
            return f"call {call_id}"
        case ToolResultBlock(tool_use_id=call_id, content=content, is_error=is_error):
            words = "+".join(_outline(part) for part in content)
            return f"{'error' if is_error else 'result'} {call_id}: {words}"
    return "image"


# --- text and roles -----------------------------------------------------------------------------------------------


def test_string_and_block_content_are_the_same() -> None:
    assert normal({"role": "user", "content": "a"}) == normal(user("a"))


def test_moving_cache_marks_and_signatures_change_nothing() -> None:
    marked = {**text("a"), "cache_control": {"type": "ephemeral"}}
    assert normal(user(marked), assistant(thinking("t"), "b")) == normal(
        user("a"), assistant({"type": "thinking", "thinking": "t", "signature": ""}, "b")
    )


def test_neighbours_of_one_role_become_one_turn() -> None:
    assert outline(normal(user("a"), user("b"), assistant("c"), assistant("d"), user("e"))) == [
        ("user", ["a", "b"]),
        ("assistant", ["c", "d"]),
        ("user", ["e"]),
    ]


def test_blank_text_is_dropped_and_other_text_kept_to_the_letter() -> None:
    assert outline(normal(user("", "  a\n", " \n\t"))) == [("user", ["  a\n"])]


def test_a_system_entry_stays_in_place_as_a_marked_user_turn() -> None:
    assert outline(normal(user("a"), system("rule"), assistant("b"), system("more"))) == [
        ("user", ["a", "<system-reminder>\nrule\n</system-reminder>"]),
        ("assistant", ["b"]),
        ("user", ["<system-reminder>\nmore\n</system-reminder>"]),
    ]


def test_a_system_entry_that_is_marked_already_is_not_marked_twice() -> None:
    marked = "<system-reminder>\nrule\n</system-reminder>"
    assert outline(normal(user("a"), system(marked))) == [("user", ["a", marked])]


def test_an_emptied_user_turn_is_held_open_only_where_nothing_else_stands() -> None:
    assert outline(normal(user(""), user("a"), assistant("b"), user(" "), assistant("c"), user())) == [
        ("user", ["a"]),
        ("assistant", ["b"]),
        ("user", ["(no content)"]),
        ("assistant", ["c"]),
        ("user", ["(no content)"]),
    ]


def test_an_empty_assistant_turn_is_dropped() -> None:
    empty = assistant("", thinking(" "), {"type": "redacted_thinking", "data": "x"})
    assert outline(normal(user("a"), empty, user("b"))) == [("user", ["a", "b"])]


def test_a_conversation_begins_with_the_user() -> None:
    assert outline(normal(assistant("a"))) == [("user", ["(no content)"]), ("assistant", ["a"])]


def test_a_repeated_assistant_message_is_said_once() -> None:
    again = assistant(thinking("t"), "a", call("1"))
    assert outline(normal(user("q"), again, again, again, user(result("1")))) == [
        ("user", ["q"]),
        ("assistant", ["thinking t", "a", "call 1"]),
        ("user", ["result 1: done"]),
    ]


def test_a_repeated_assistant_message_stays_where_merging_is_off() -> None:
    told = normal(user("q"), assistant("a"), assistant("a"), user("r"), merge_repeated=False)
    assert outline(told) == [("user", ["q"]), ("assistant", ["a", "a"]), ("user", ["r"])]


def test_an_assistant_message_that_differs_in_anything_is_no_repetition() -> None:
    told = normal(user("q"), assistant("a"), assistant("a", thinking("t")), assistant("a"), user("r"))
    assert outline(told)[1] == ("assistant", ["a", "a", "thinking t", "a"])


def test_what_repetitions_would_have_cost_is_counted() -> None:
    def repeated_characters(*later: Entry, merge_repeated: bool = True) -> int:
        entries = validated({"messages": [user("q"), assistant("a"), *later]}).messages
        return normalise.messages(entries, merge_repeated=merge_repeated)[1]

    words = "\u00e9" * 1000
    assert repeated_characters(assistant("b")) == 0
    assert 0 < repeated_characters(assistant("a")) < 100
    assert 1000 < repeated_characters(assistant(words), assistant(words)) < 1100
    assert repeated_characters(assistant("a"), merge_repeated=False) == 0


def test_the_same_answer_in_two_turns_is_kept_twice() -> None:
    assert len(normal(user("q"), assistant("a"), user("q"), assistant("a"), user("q"))) == 5


def test_a_prefill_is_kept_without_the_blanks_at_its_end() -> None:
    assert outline(normal(user("q"), assistant("a ", "The answer is \n"))) == [
        ("user", ["q"]),
        ("assistant", ["a ", "The answer is"]),
    ]
    assert outline(normal(user("q"), assistant("The answer is \n", thinking("t"))))[1] == (
        "assistant",
        ["The answer is", "thinking t"],
    )


def test_thinking_comes_back_to_the_letter_and_redacted_thinking_goes() -> None:
    turn = assistant(thinking(" a\n"), {"type": "redacted_thinking", "data": "x"}, "b")
    assert outline(normal(user("q"), turn, user("r")))[1] == ("assistant", ["thinking  a\n", "b"])


# --- calls and results --------------------------------------------------------------------------------------------


def test_results_come_first_and_in_the_order_of_the_calls() -> None:
    asked = assistant(call("1"), call("2"))
    assert outline(normal(user("q"), asked, user("and", result("2", "two"), "more", result("1", "one"))))[2] == (
        "user",
        ["result 1: one", "result 2: two", "and", "more"],
    )


def test_a_system_entry_between_call_and_result_moves_behind_the_result() -> None:
    assert outline(normal(user("q"), assistant(call("1")), system("rule"), user(result("1"))))[2] == (
        "user",
        ["result 1: done", "<system-reminder>\nrule\n</system-reminder>"],
    )


def test_calls_of_two_entries_find_their_results() -> None:
    assert outline(
        normal(user("q"), assistant(call("1")), assistant(call("2")), user(result("1")), user(result("2")))
    ) == [
        ("user", ["q"]),
        ("assistant", ["call 1", "call 2"]),
        ("user", ["result 1: done", "result 2: done"]),
    ]


def test_a_missing_result_is_an_error_result() -> None:
    assert outline(normal(user("q"), assistant(call("1"), call("2")), user(result("2"), "go on")))[2] == (
        "user",
        ["error 1: no result was recorded", "result 2: done", "go on"],
    )


def test_a_call_at_the_end_is_answered_too() -> None:
    assert outline(normal(user("q"), assistant(call("1"))))[2:] == [("user", ["error 1: no result was recorded"])]


def test_a_result_that_answers_no_call_is_told_as_text() -> None:
    orphan = result("9", [text("late"), IMAGE])
    assert outline(normal(user(orphan, "a"), assistant(call("1")), user(orphan, result("1")))) == [
        ("user", ["[result of a tool call that is not here: 9]", "late", "image", "a"]),
        ("assistant", ["call 1"]),
        ("user", ["result 1: done", "[result of a tool call that is not here: 9]", "late", "image"]),
    ]


def test_a_second_result_for_one_call_is_told_as_text() -> None:
    assert outline(normal(user("q"), assistant(call("1")), user(result("1", "a"), result("1", "b"))))[2] == (
        "user",
        ["result 1: a", "[result of a tool call that is not here: 1]", "b"],
    )


def test_repeated_ids_in_one_turn_are_told_apart_in_order() -> None:
    turn = assistant(call("1", n=1), call("1", n=2), call("1-2"))
    assert outline(normal(user("q"), turn, user(result("1", "a"), result("1", "b"), result("1-2", "c"))))[1:] == [
        ("assistant", ["call 1", "call 1-2", "call 1-2-2"]),
        ("user", ["result 1: a", "result 1-2: b", "result 1-2-2: c"]),
    ]


def test_an_id_used_again_in_a_later_turn_gets_a_new_name() -> None:
    turns = [entry for _ in range(3) for entry in (assistant("x", call("1")), user(result("1")))]
    assert [line[1][-1] for line in outline(normal(user("q"), *turns))[1::2]] == ["call 1", "call 1-2", "call 1-3"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [("a", "a"), ("", ""), (" ", ""), ([], ""), (None, ""), ([text("a"), IMAGE, text("")], "a+image")],
)
def test_a_result_may_hold_text_images_or_nothing(content: Any, expected: str) -> None:
    told = normal(user("q"), assistant(call("1")), user(result("1", content, is_error=True)))
    assert outline(told)[2] == ("user", [f"error 1: {expected}"])


def test_the_order_of_arguments_is_the_clients() -> None:
    (block,) = normal(user("q"), assistant(call("1", z=1, a={"y": 1, "b": 2})), user(result("1")))[1].content
    assert isinstance(block, ToolUseBlock)
    assert list(block.input) == ["z", "a"]
    assert list(block.input["a"]) == ["y", "b"]


def test_images_are_carried_for_users_and_noted_for_assistants() -> None:
    told = normal(user(IMAGE), assistant(IMAGE), user("q"))
    assert told[0].content == (ImageBlock(url="data:image/png;base64,aGk="),)
    assert outline(told)[1] == ("assistant", ["[image left out: only a user can show one]"])


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (user("a", call("1")), "messages[1].content[1].type"),
        (user(thinking("t")), "messages[1].content[0].type"),
        (assistant(result("1")), "messages[1].content[0].type"),
        ({"role": "system", "content": [call("1")]}, "messages[1].content[0].type"),
    ],
    ids=["call by user", "thinking by user", "result by assistant", "call by system"],
)
def test_a_block_in_a_role_that_cannot_hold_it_is_named(entry: Entry, field: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        normal(user("q"), entry)
    assert refusal.value.field == field


# --- whatever comes -----------------------------------------------------------------------------------------------


def is_blank(block: Any) -> bool:
    return isinstance(block, TextBlock) and not block.text.strip()


@given(entries)
def test_turns_alternate_begin_with_the_user_and_hold_something(conversation: list[Entry]) -> None:
    told = normal(*conversation)
    assert told[0].role == "user"
    assert all(one.role != other.role for one, other in pairwise(told))
    assert all(message.content and not any(map(is_blank, message.content)) for message in told)


@given(entries)
def test_every_call_has_one_result_in_order_and_ahead_of_all_else(conversation: list[Entry]) -> None:
    told = normal(*conversation)
    seen: list[str] = []
    for before, message in pairwise(told):
        made = [block.id for block in before.content if isinstance(block, ToolUseBlock)]
        kinds = [isinstance(block, ToolResultBlock) for block in message.content]
        given_ids = [block.tool_use_id for block in message.content if isinstance(block, ToolResultBlock)]
        assert given_ids == made
        assert kinds == sorted(kinds, reverse=True)
        seen += made
    assert len(seen) == len(set(seen))
    assert not any(isinstance(block, ToolUseBlock) for block in told[-1].content)


def as_sent(message: Message) -> Entry:
    """A normalised message as a client would send it back."""
    return {"role": message.role, "content": [_as_sent(block.model_dump()) for block in message.content]}


def _as_sent(block: Entry) -> Entry:
    if block["type"] == "image":
        return IMAGE
    if block["type"] == "tool_result":
        return block | {"content": [_as_sent(part) for part in block["content"]]}
    return block


@given(entries)
def test_what_is_normal_stays_as_it_is(conversation: list[Entry]) -> None:
    told = normal(*conversation)
    assert normal(*map(as_sent, told)) == told


@given(entries, entries, st.booleans())
def test_a_conversation_that_goes_on_keeps_its_beginning(
    conversation: list[Entry], later: list[Entry], merge_repeated: bool
) -> None:
    beginning = normal(*conversation, user("next"), merge_repeated=merge_repeated)
    whole = normal(*conversation, user("next"), assistant("answer"), *later, merge_repeated=merge_repeated)
    assert whole[: len(beginning)] == beginning
