"""Chains: equal beginnings are found, different ones are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import GenerationRequest, ImageBlock, Message, TextBlock, Tool
from scheduler.policy.chain import IMAGE_CHARACTERS, chain, common_messages, common_tokens, fingerprint, tokens_of

pytestmark = pytest.mark.unit
TEXTS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=8)
BASE = "You are a coding agent. " * 10


def request(texts: list[str], system: str = BASE, tools: tuple[Tool, ...] = ()) -> GenerationRequest:
    messages = tuple(
        Message(role="assistant" if number % 2 else "user", content=(TextBlock(text=text),))
        for number, text in enumerate(texts)
    )
    return GenerationRequest(model="m", system=system, messages=messages, tools=tools, max_tokens=1)


@given(TEXTS, TEXTS)
def test_the_common_beginning_is_what_the_texts_have_in_common(one: list[str], other: list[str]) -> None:
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    assert common_messages(chain(request(one)), chain(request(other))) == same


@given(TEXTS, st.text(min_size=1))
def test_a_conversation_that_grows_keeps_all_of_its_chain(texts: list[str], more: str) -> None:
    before, after = chain(request(texts)), chain(request([*texts, more]))
    assert common_messages(before, after) == len(texts)
    assert common_tokens(before, 1000, after) == 1000


@pytest.mark.parametrize("changed", [{"system": "Another."}, {"tools": (Tool(name="T", input_schema={}),)}])
def test_another_base_has_nothing_in_common(changed: dict[str, object]) -> None:
    before, after = chain(request(["a"])), chain(request(["a"]).model_copy(update=changed))
    assert common_messages(before, after) == -1
    assert common_tokens(before, 1000, after) == 0
    assert before.base != after.base


@given(TEXTS, st.integers(0, 200_000))
def test_tokens_are_shared_out_in_order(texts: list[str], total: int) -> None:
    prompt = chain(request(texts))
    shares = [tokens_of(prompt, count, total) for count in range(-1, len(texts) + 1)]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == total


def test_an_image_counts_as_a_picture_not_as_its_text() -> None:
    picture = Message(role="user", content=(ImageBlock(url="data:image/png;base64," + "A" * 900_000),))
    prompt = chain(request(["a"]).model_copy(update={"messages": (picture,)}))
    assert prompt.characters[1] - prompt.characters[0] < 2 * IMAGE_CHARACTERS


def test_parts_are_kept_apart() -> None:
    assert fingerprint("ab", "c") != fingerprint("a", "bc")
    assert fingerprint("\ud800") != fingerprint("?")  # half a character, as a client's JSON may hold one
