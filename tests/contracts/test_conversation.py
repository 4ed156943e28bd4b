"""What the API's normaliser guarantees of a conversation is all that the renderer needs: it repairs nothing."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import TextBlock
from tests.unit.api.protocol.conversations import Entry, assistant, entries, normal, user
from workers.llama.conversation import is_prefilled, said

pytestmark = pytest.mark.contracts

Part = dict[str, Any]


def told(conversation: list[Entry], *, vision: bool) -> list[Part]:
    """Any client's entries, normalised and said in the engine's words."""
    return list(said("", normal(*conversation), vision=vision))


@given(entries, st.booleans())
def test_every_call_is_followed_by_its_result_and_nothing_else(conversation: list[Entry], vision: bool) -> None:
    out = told(conversation, vision=vision)

    for number, message in enumerate(out):
        wanted = [call["id"] for call in message.get("tool_calls", [])]
        following = out[number + 1 : number + 1 + len(wanted)]
        assert [one.get("tool_call_id") for one in following] == wanted
    assert sum(message["role"] == "tool" for message in out) == sum(len(m.get("tool_calls", [])) for m in out)


@given(entries, st.booleans())
def test_no_two_messages_of_one_role_follow_each_other(conversation: list[Entry], vision: bool) -> None:
    out = told(conversation, vision=vision)

    assert out[0]["role"] == "user"
    assert [pair for pair in pairwise(message["role"] for message in out) if pair[0] == pair[1] != "tool"] == []


@given(entries, st.booleans())
def test_a_longer_conversation_begins_with_the_shorter_one(conversation: list[Entry], vision: bool) -> None:
    shorter = told([*conversation, user("next")], vision=vision)
    longer = told([*conversation, user("next"), assistant("answer "), user("second")], vision=vision)

    assert longer[: len(shorter)] == shorter


@given(entries)
def test_a_given_beginning_holds_no_calls_and_ends_without_blanks(
    conversation: list[Entry],
) -> None:
    messages = normal(*conversation)
    last = list(said("", messages, vision=False))[-1]

    assert is_prefilled(messages) == (last["role"] == "assistant")
    if is_prefilled(messages):
        assert "tool_calls" not in last
        assert last["content"] == last["content"].rstrip()
        texts = [block.text for block in messages[-1].content if isinstance(block, TextBlock)]
        assert last["content"] == "".join(texts)
