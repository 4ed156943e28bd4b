"""The wire between the API and the workers."""

import json
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scheduler.contract import (
    CONTRACT_VERSION,
    Delta,
    Failed,
    Finished,
    GenerationRequest,
    ImageBlock,
    Message,
    Started,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolResultBlock,
    WorkerInfo,
    WorkerState,
    decode_deltas,
    encode_deltas,
)
from scheduler.membership import parse_lease
from scheduler.packing import pack, unpack

pytestmark = pytest.mark.unit

numbers = st.integers(0, 2**53)
# Every text that JSON can carry, lone surrogates apart: an engine's bytes never decode to one.
texts = st.text(st.characters(exclude_categories=["Cs"]))
one_delta = st.one_of(
    st.builds(Started, texts, numbers, numbers, numbers, numbers, numbers),
    st.builds(TextDelta, texts),
    st.builds(ThinkingDelta, texts),
    st.builds(ToolCall, texts, texts, texts),
    st.builds(
        Finished,
        st.sampled_from(StopReason),
        st.none() | texts,
        numbers,
        numbers,
        numbers,
        numbers,
        numbers,
        texts,
        numbers,
    ),
    st.builds(Failed, texts, texts, st.none() | numbers, st.none() | numbers),
)


@given(st.lists(one_delta))
def test_deltas_come_back_as_they_went(deltas: list[Delta]) -> None:
    assert decode_deltas(encode_deltas(deltas)) == deltas


def test_every_kind_of_delta_has_been_tried() -> None:
    assert {type(d) for d in decode_deltas(encode_deltas(_one_of_each()))} == set(get_args(Delta))


def test_a_stop_reason_comes_back_as_one() -> None:
    (last,) = decode_deltas(encode_deltas([_one_of_each()[4]]))
    assert isinstance(last, Finished)
    assert isinstance(last.stop_reason, StopReason)


@pytest.mark.parametrize("raw", [b"", b"{", b"[[]]", b'[["unknown"]]', b'[["text"]]', b'[["text","a","b"]]', b"[1]"])
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, IndexError)):
        decode_deltas(raw)


@given(texts, st.dictionaries(texts, texts), st.lists(texts, max_size=3))
def test_a_packed_request_comes_back_equal_in_the_clients_own_order(
    text: str, schema: dict[str, str], stops: list[str]
) -> None:
    request = GenerationRequest.model_validate(
        {
            "model": "m",
            "system": text,
            "max_tokens": 1,
            "stop_sequences": stops,
            "tools": [{"name": "t", "input_schema": schema}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": text}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "t", "input": schema}]},
            ],
        }
    )
    packed = pack(request)
    whole_bytes = len(request.model_dump_json().encode())
    assert packed.model == "m"
    assert whole_bytes - len('"tools":,') <= packed.json_bytes <= whole_bytes
    back = unpack(packed.body)
    assert back == request
    assert list(back.tools[0].input_schema) == list(schema)


def test_the_file_of_an_image_does_not_make_its_prompt_look_long() -> None:
    """A mebibyte would be taken for 300,000 tokens: no window would fit, and who stands behind it would be refused."""

    def with_image(size: int) -> GenerationRequest:
        image = ImageBlock(url=f"data:image/png;base64,{'x' * size}")
        result = ToolResultBlock(tool_use_id="t", content=(image,))
        return GenerationRequest(model="m", messages=(Message(role="user", content=(image, result)),), max_tokens=1)

    sizes = [pack(with_image(size)).json_bytes for size in (10, 2**20, 2 * 2**20)]
    assert sizes[0] < sizes[1] == sizes[2] < 10_000


def test_two_equal_requests_are_packed_to_equal_bytes() -> None:
    first = GenerationRequest(model="m", messages=(), max_tokens=1)
    assert pack(first) == pack(GenerationRequest(max_tokens=1, messages=(), model="m"))


@pytest.mark.parametrize("kind", [GenerationRequest, WorkerInfo])
def test_a_field_that_is_not_known_is_refused(kind: type[GenerationRequest | WorkerInfo]) -> None:
    with pytest.raises(ValidationError, match="surprise"):
        kind.model_validate_json(json.dumps({"surprise": 1}))


@pytest.mark.parametrize("kind", [GenerationRequest, WorkerInfo])
def test_what_another_version_wrote_is_refused(kind: type[GenerationRequest | WorkerInfo]) -> None:
    with pytest.raises(ValidationError, match="version"):
        kind.model_validate_json(json.dumps({"version": CONTRACT_VERSION + 1}))


def test_a_worker_of_another_version_is_not_seen() -> None:
    info = WorkerInfo(name="w1", incarnation="i", state=WorkerState.READY)
    assert parse_lease(info.model_dump_json().encode()) == info
    other = info.model_dump(mode="json") | {"version": CONTRACT_VERSION + 1}
    assert parse_lease(json.dumps(other).encode()) is None


def _one_of_each() -> list[Delta]:
    values: list[Delta] = [Started("w", 0, 1, 2, 3, 4), TextDelta("t"), ThinkingDelta("t"), ToolCall("i", "n", "{}")]
    last = Finished(StopReason.END_TURN, None, 1, 2, 3, 4, 5, "h", 6)
    assert len(fields(last)) == 9
    return [*values, last, Failed("c", "m")]
