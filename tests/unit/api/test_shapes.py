"""The shape of a request holds what a replay needs and nothing that a person wrote."""

import secrets
from contextlib import ExitStack
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol.request import Call, parse
from api.shapes import MOST_LISTENERS, Shapes
from infra.bench.shaping import Shaping
from infra.bench.trace import line_of
from infra.errors import Refused

pytestmark = pytest.mark.unit

WINDOW = 8
# Letters that none of our own words is made of, so that whatever is found was a person's.
texts = st.text("GHJKLMNPQRSTUVWXYZ äöü漢字😀-", min_size=WINDOW, max_size=60)
SALT = bytes(range(16))


def call(system: str, said: list[str], agent: str = "", tools: tuple[str, ...] = ()) -> Call:
    roles = ("user", "assistant")
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 5,
        "system": system,
        "messages": [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)],
        "tools": [
            {"name": f"T{number}", "description": words, "input_schema": {}} for number, words in enumerate(tools)
        ],
    }
    headers = {"x-agent-id": agent} if agent else {}
    return parse(orjson.dumps(body), headers, key_name="KEYNAME-", models=["m"], default_level=5)


def fields(tokens: int = 1000, **changes: Any) -> dict[str, Any]:
    told = {"request_id": "req_1", "outcome": "done", "stop_reason": "end_turn", "level": 5, "took_ms": 100}
    told |= {"prompt_tokens": tokens, "cached_tokens": 10, "output_tokens": 3, "queue_ms": 1, "first_ms": 50}
    return told | changes


async def heard(shapes: Shapes, salt: bytes, *calls: Call) -> list[dict[str, Any]]:
    with shapes.listening(salt) as listener:
        for one in calls:
            shapes.ended(one, fields())
        return [shape for _ in calls if (shape := await listener.next()) is not None]


@given(system=texts, said=st.lists(texts, min_size=1, max_size=5), tool=texts, agent=st.text("GHJKLMNP-", min_size=8))
async def test_no_eight_letters_of_a_prompt_a_tool_or_a_name_are_in_a_shape_or_a_trace(
    system: str, said: list[str], tool: str, agent: str
) -> None:
    agent = agent[:64]
    (shape,) = await heard(Shapes(), secrets.token_bytes(16), call(system, said, agent, (tool,)))
    request = Shaping(0.0).request(shape)
    assert request is not None
    told = orjson.dumps(shape).decode() + line_of(request).decode()
    for text in (system, *said, tool, agent, "KEYNAME-"):
        pieces = {text[at : at + WINDOW] for at in range(len(text) - WINDOW + 1)}
        assert not [piece for piece in pieces if piece in told or orjson.dumps(piece)[1:-1].decode() in told]


async def test_a_turn_begins_with_the_pieces_of_the_one_before_it() -> None:
    first, second = await heard(Shapes(), SALT, call("base", ["a"]), call("base", ["a", "b", "c"]))
    assert second["pieces"][:2] == first["pieces"]
    assert len(second["pieces"]) == 4
    assert second["conversation"] == first["conversation"]
    assert [size > 0 for _, size in second["pieces"]] == [True] * 4


async def test_another_salt_gives_other_names_and_the_same_salt_the_same() -> None:
    one, same, other = [
        (await heard(Shapes(), salt, call("base", ["a"])))[0] for salt in (SALT, SALT, secrets.token_bytes(16))
    ]
    named = ("session", "agent", "conversation")
    assert [one[name] for name in named] == [same[name] for name in named]
    assert {name for name, _ in one["pieces"]}.isdisjoint(name for name, _ in other["pieces"])
    assert [size for _, size in one["pieces"]] == [size for _, size in other["pieces"]]


async def test_whether_there_were_tools_is_told() -> None:
    shapes = await heard(Shapes(), SALT, call("base", ["a"]), call("base", ["a"], tools=("a tool",)))
    assert [shape["tools"] for shape in shapes] == [False, True]


def test_while_nobody_listens_nothing_is_made_of_a_request() -> None:
    Shapes().ended(call("base", ["a"]), {})  # what is missing here would be an error


def test_a_request_that_was_never_understood_has_no_shape() -> None:
    shapes = Shapes()
    with shapes.listening(SALT):
        shapes.ended(None, {})


async def test_a_recorder_that_does_not_read_costs_a_bounded_amount_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Long prompts cost more than short ones, so pieces are counted."""
    monkeypatch.setattr("api.shapes.EVERY_S", 0.01)
    monkeypatch.setattr("api.shapes.MOST_WAITING", 10)
    shapes, short, long = Shapes(), call("base", ["a"]), call("base", ["a", "b", "c", "d"])
    with shapes.listening(SALT) as listener:
        for one in (short, long, long, short, short):  # 2, 5, 5, 2 and 2 pieces
            shapes.ended(one, fields())
        assert listener.dropped == 2
        for _ in range(3):
            assert await listener.next() is not None
        assert await listener.next() is None
        shapes.ended(long, fields())
        assert await listener.next() is not None
        assert listener.dropped == 2


def test_one_recorder_too_many_is_refused_until_another_has_left() -> None:
    shapes = Shapes()
    with ExitStack() as others:
        for _ in range(MOST_LISTENERS - 1):
            others.enter_context(shapes.listening(SALT))
        with shapes.listening(SALT), pytest.raises(Refused, match="end one of them"), shapes.listening(SALT):
            pass
        with shapes.listening(SALT):
            pass
