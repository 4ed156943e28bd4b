"""The bench asks both sides the same: what the gateway makes of its body is the body that the engine is sent."""

from collections import Counter

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol.request import parse
from infra.bench.bodies import TOOL_COUNT, WORDS, Conversation, even_words
from scheduler.packing import unpack
from workers.llama.render import render

pytestmark = pytest.mark.unit

SLOT = 3
WINDOW_TOKENS = 40_960


@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("size_bytes", [2_000, 80_000])
def test_both_sides_are_asked_the_same(turns: int, size_bytes: int) -> None:
    talk = Conversation("seed", "agent", size_bytes)
    raw = talk.messages_body(turns, "go on")
    call = parse(raw, talk.headers, key_name="key", models=["model"], default_level=5)
    rendered = render(unpack(call.request.body), slot=SLOT, stop=("stop",), vision=False, context_tokens=WINDOW_TOKENS)
    assert orjson.loads(talk.chat_body(turns, "go on", SLOT, ("stop",))) == orjson.loads(orjson.dumps(rendered))


def test_schemas_reach_the_engine_in_the_order_of_their_keys() -> None:
    talk = Conversation("seed", "agent")
    call = parse(talk.messages_body(0, "go"), talk.headers, key_name="key", models=["model"], default_level=5)
    rendered = render(unpack(call.request.body), slot=SLOT, stop=(), vision=False, context_tokens=WINDOW_TOKENS)
    sent = orjson.loads(talk.chat_body(0, "go", SLOT))
    assert orjson.dumps(sent["tools"]) == orjson.dumps(rendered["tools"])


def test_a_large_body_has_the_size_asked_for_and_most_of_it_is_tools() -> None:
    body = Conversation("seed", "agent", 80_000).messages_body(0, "go")
    tools = orjson.loads(body)["tools"]
    assert 70_000 < len(body) < 84_000
    assert len(tools) == TOOL_COUNT
    assert len(orjson.dumps(tools)) > 0.8 * len(body)


@given(size_bytes=st.integers(1_200, 34_000))
def test_a_small_body_has_the_size_asked_for_too(size_bytes: int) -> None:
    body = Conversation("seed 8c1f02aa corral", "client99", size_bytes).messages_body(0, "3 request 000001")
    assert len(body) == pytest.approx(size_bytes, abs=150)


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    talk = Conversation("seed", "agent")
    shorter, longer = (orjson.loads(talk.messages_body(turns, "go"))["messages"] for turns in (2, 3))
    assert longer[: len(shorter) - 1] == shorter[:-1]


def test_another_seed_gives_other_text_and_the_same_seed_the_same() -> None:
    body = Conversation("one", "agent").messages_body(1, "go")
    assert body == Conversation("one", "agent").messages_body(1, "go")
    tools = [orjson.loads(Conversation(seed, "agent").messages_body(1, "go"))["tools"] for seed in ("one", "two")]
    assert tools[0] != tools[1]


def test_agents_share_tools_and_system_but_not_their_task() -> None:
    first, second = (orjson.loads(Conversation("seed", name).chat_body(0, "go", SLOT)) for name in ("a", "b"))
    assert first["tools"] == second["tools"]
    assert first["messages"][0] == second["messages"][0]
    assert first["messages"][1] != second["messages"][1]


@given(count=st.integers(1, 500))
def test_even_words_are_as_many_as_asked_for_and_come_equally_often(count: int) -> None:
    found = even_words("seed", count).split()
    assert len(found) == count
    assert even_words("seed", count) != even_words("other", count) or count < 3
    often = Counter(found).values()
    assert max(often) - min(often) <= 1
    assert len(often) == min(count, WORDS)
