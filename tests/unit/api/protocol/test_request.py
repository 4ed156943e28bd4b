"""Bytes and headers to what the scheduler takes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol.request import Call, Reading, parse, parse_count
from infra.errors import BadRequest
from scheduler.contract import GenerationRequest, Kind, Message, TextBlock, Thinking
from scheduler.packing import unpack, unpack_with_chain
from scheduler.policy.chain import chain
from tests.doubles.bodies import claude_body, claude_headers, session_id

pytestmark = pytest.mark.unit


def parsed(body: Any, headers: dict[str, str] | None = None, models: tuple[str, ...] = ("anthropic-m",)) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(raw, headers or {}, key_name="key", models=models, default_level=5)


def requested(body: Any, headers: dict[str, str] | None = None) -> GenerationRequest:
    return unpack(parsed(body, headers).request.body)


def hello(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], **fields}


def test_the_least_body_gets_all_defaults() -> None:
    call = parsed(hello())
    assert unpack(call.request.body) == GenerationRequest(
        model="anthropic-m", messages=(Message(role="user", content=(TextBlock(text="hello"),)),), max_tokens=4096
    )
    assert (call.level, call.stream, call.identity.agent) == (5, False, "key")
    assert call.asked_model == "anthropic-m"


def test_every_field_is_carried() -> None:
    fields = {
        "model": "claude-of-any-name",
        "max_tokens": 7,
        "stop_sequences": ["b", "", "a", "b"],
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 40,
        "stream": True,
    }
    call = parsed(hello(**fields), {"x-priority": "2"})
    request = unpack(call.request.body)
    assert (request.model, request.max_tokens, request.stop_sequences) == ("anthropic-m", 7, ("b", "a"))
    assert (request.temperature, request.top_p, request.top_k) == (1.0, 0.5, 40)
    assert (call.level, call.stream, call.asked_model) == (2, True, "claude-of-any-name")


def test_a_worker_finds_the_chain_that_the_placement_went_by() -> None:
    call = parsed(claude_body(), claude_headers())
    request, links = unpack_with_chain(call.request.body)
    assert links == call.chain == chain(request)


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("anthropic-b", "anthropic-b"),
        ("anthropic-a", "anthropic-a"),
        ("claude-opus", "anthropic-a"),
        (None, "anthropic-a"),
    ],
)
def test_a_served_name_means_itself_and_any_other_the_first(asked: str | None, served: str) -> None:
    models = ("anthropic-a", "anthropic-b")
    body = hello(model=asked)
    assert parsed(body, models=models).request.model == served
    assert parse_count(json.dumps(body).encode(), models=models).model == served
    assert parsed(body, models=models).asked_model == (asked or served)


def test_while_no_model_is_served_the_request_names_none() -> None:
    assert parsed(hello(model="a"), models=()).request.model == ""


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (None, Thinking()),
        ({"type": "adaptive", "display": "omitted"}, Thinking(enabled=True)),
        ({"type": "enabled", "budget_tokens": 31_999}, Thinking(enabled=True, budget_tokens=31_999)),
        ({"type": "disabled"}, Thinking(enabled=False)),
    ],
)
def test_every_form_of_thinking_is_carried(sent: Any, expected: Thinking) -> None:
    assert requested(hello(thinking=sent)).thinking == expected


def test_removed_tools_are_told_in_the_system_text() -> None:
    request = requested(hello(system="s", tools=[{"type": "web_search_20250305", "name": "web_search"}]))
    assert request.tools == ()
    assert request.system.startswith("s\n\nThese tools are not available here")
    assert "web_search" in request.system


def test_a_count_sees_the_same_prompt_and_needs_no_max_tokens() -> None:
    body = claude_body(turns=2)
    asked = requested(body, claude_headers())
    del body["max_tokens"]
    counted = parse_count(json.dumps(body).encode(), models=["anthropic-m"])
    assert unpack(counted.body) == asked.model_copy(update={"max_tokens": 4096})


def test_a_body_of_claude_code_is_understood_whole() -> None:
    call = parsed(claude_body(turns=3, agent="two"), claude_headers("two", level=1))
    assert call.identity.session == session_id("two")
    assert (call.identity.kind, call.level, call.stream) == (Kind.MAIN, 1, True)
    request = unpack(call.request.body)
    assert "billing" not in request.system
    assert len(request.tools) == 24
    assert [message.role for message in request.messages] == ["user", "assistant"] * 3 + ["user"]
    assert request.thinking.enabled


def test_a_growing_conversation_of_claude_code_keeps_its_prefix_and_its_name() -> None:
    short, long = (parsed(claude_body(turns=turns), claude_headers()) for turns in (2, 5))
    assert long.identity == short.identity
    before, now = unpack(short.request.body), unpack(long.request.body)
    assert now.messages[: len(before.messages)] == before.messages
    assert (now.system, now.tools) == (before.system, before.tools)


def test_attribution_does_not_part_two_conversations_of_one_prefix() -> None:
    body = claude_body()
    other = json.loads(json.dumps(body).replace("cc_version=2.1.197", "cc_version=9.9.9"))
    assert requested(other) == requested(body)


def test_a_lone_surrogate_and_nul_do_not_stop_a_request() -> None:
    raw = rb'{"messages":[{"role":"user","content":"a\ud83d\u0000b"}],"metadata":{"user_id":"\udc00"}}'
    (message,) = requested(raw).messages
    assert message.content == (TextBlock(text="a\ufffdb"),)


def test_the_deepest_body_that_is_taken_can_be_stored() -> None:
    value: dict[str, Any] = {}
    for _ in range(190):
        value = {"a": value}
    call = {"type": "tool_use", "id": "1", "name": "n", "input": value}
    request = requested({"messages": [{"role": "assistant", "content": [call]}]})
    assert GenerationRequest.model_validate_json(request.model_dump_json()) == request


@pytest.mark.parametrize("messages", [1_000, 10_000])
def test_a_long_conversation_of_one_repeated_id_is_taken(messages: int) -> None:
    turn = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call", "name": "n", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call", "content": "a"}]},
    ]
    request = requested({"messages": [{"role": "user", "content": "q"}, *turn * (messages // 2)]})
    assert len(request.messages) == messages + 1


def test_three_hundred_tools_and_ten_megabytes_are_taken() -> None:
    tools = [{"name": f"t{number}", "input_schema": {"type": "object"}} for number in range(300)]
    request = requested({"messages": [{"role": "user", "content": "\u00e9\n" * 3_500_000}], "tools": tools})
    assert len(request.tools) == 300


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"messages":', b'{"messages":[]}'])
@pytest.mark.parametrize("counting", [False, True])
def test_what_is_malformed_is_refused_by_both(raw: bytes, counting: bool) -> None:
    with pytest.raises(BadRequest, match=r"^(body|messages): "):
        parse_count(raw, models=["m"]) if counting else parsed(raw)


def test_a_wrong_header_is_named_before_the_body_is_read() -> None:
    with pytest.raises(BadRequest, match=r"^X-Priority: "):
        parsed(b"not json", {"x-priority": "banana"})


def image(url: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": url}}


@pytest.mark.parametrize("fetched", [False, True])
@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "HTTPS://example.org/a.png"])
@pytest.mark.parametrize("in_result", [False, True])
def test_no_engine_is_asked_to_open_an_address_unless_that_is_allowed(url: str, fetched: bool, in_result: bool) -> None:
    blocks: list[Any] = [image(url), {"type": "text", "text": "what is it?"}]
    messages = [{"role": "user", "content": blocks}]
    if in_result:
        call = {"type": "tool_use", "id": "1", "name": "n", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": blocks}
        messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    raw = json.dumps({"messages": messages}).encode()
    both = [parse(raw, {}, key_name="k", models=["m"], default_level=5, reading=Reading(image_urls=fetched)).request]
    both.append(parse_count(raw, models=["m"], reading=Reading(image_urls=fetched)))
    for packed in both:
        said = unpack(packed.body).model_dump_json()
        assert (url in said) is fetched
        assert ("images at an address are not fetched here" in said) is not fetched


def test_an_image_sent_along_is_always_carried() -> None:
    url = "data:image/png;base64,aGk="
    call = parsed({"messages": [{"role": "user", "content": [image(url)]}]})
    assert url in unpack(call.request.body).model_dump_json()


EVERY_BLOCK = [
    {"type": "text", "text": "a"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
    {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}]}, "title": "t"},
    {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]},
    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a"}], "is_error": True},
]
ANSWER = [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "1", "name": "n", "input": {"a": 1}}]
WHOLE_BODY = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": EVERY_BLOCK},
    ],
    "system": [{"type": "text", "text": "s"}],
    "tools": [{"name": "n", "description": "d", "input_schema": {}}, {"type": "web_search_1", "name": "w"}],
    "tool_choice": {"type": "tool", "name": "n", "disable_parallel_tool_use": True},
    "max_tokens": 5,
    "stop_sequences": ["a"],
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "metadata": {"user_id": {"session_id": "s"}},
    "stream": True,
}

any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "a"]), inner),
    max_leaves=6,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a tree with each key or index in it."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


@given(st.data(), any_json, st.booleans())
def test_a_body_with_anything_anywhere_is_served_or_refused_by_name(
    data: st.DataObject, odd: Any, left_out: bool
) -> None:
    body = json.loads(json.dumps(WHOLE_BODY))
    holder, key = data.draw(st.sampled_from(list(places(body))))
    if left_out:
        del holder[key]
    else:
        holder[key] = odd
    outcome = request_or_field(body)
    assert outcome
    if isinstance(outcome, GenerationRequest):
        assert GenerationRequest.model_validate_json(outcome.model_dump_json()) == outcome


def request_or_field(body: Any) -> GenerationRequest | str | None:
    try:
        return requested(body)
    except BadRequest as refusal:
        return refusal.field


@given(st.binary())
def test_bytes_that_are_no_request_are_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        parsed(raw)


def test_what_was_dropped_is_told_with_the_call() -> None:
    attribution = "x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli;"
    turns = [{"role": role, "content": "same words"} for role in ("user", "assistant", "assistant", "user")]
    body = {"messages": turns, "system": [{"type": "text", "text": attribution}, {"type": "text", "text": "You help."}]}
    raw = json.dumps(body).encode()
    merged, whole = (
        parse(raw, {}, key_name="k", models=["m"], default_level=5, reading=Reading(merge_repeated=merge))
        for merge in (True, False)
    )
    assert merged.dropped.attribution_characters == whole.dropped.attribution_characters == len(attribution)
    assert merged.dropped.repeated_characters > len("same words") > whole.dropped.repeated_characters == 0
    assert merged.request.json_bytes < whole.request.json_bytes
    counted = parse_count(raw, models=["m"], reading=Reading(merge_repeated=False)), parse_count(raw, models=["m"])
    assert [unpack(one.body) for one in counted] == [unpack(call.request.body) for call in (whole, merged)]
