"""The bytes of a body as a JSON object, or a refusal."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol.body import MAX_DEPTH, clean_text, read_object
from infra.errors import BadRequest

pytestmark = pytest.mark.unit

# Every kind of code point that JSON written by a careless client may hold.
wild_text = st.text(st.characters(codec=None, exclude_categories=()) | st.sampled_from("\x00\\u\ud83d\ude00d0"))
wild_json = st.recursive(
    wild_text | st.integers(-(2**53), 2**53) | st.booleans() | st.none(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(wild_text, children, max_size=3),
    max_leaves=8,
)


def harmless(value: Any) -> Any:
    """What a tree should be after cleaning, by another way: character by character."""
    if isinstance(value, str):
        joined = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return joined.replace("\x00", "")
    if isinstance(value, list):
        return [harmless(item) for item in value]
    if isinstance(value, dict):
        return {harmless(key): harmless(item) for key, item in value.items()}
    return value


@given(st.dictionaries(wild_text, wild_json, max_size=4))
def test_any_escaped_json_is_read_without_nul_and_lone_surrogates(value: dict[str, Any]) -> None:
    assert read_object(json.dumps(value).encode()) == harmless(value)


@given(st.dictionaries(st.text(), st.text()))
def test_text_that_any_client_may_send_comes_through_unchanged(value: dict[str, str]) -> None:
    expected = {key.replace("\x00", ""): text.replace("\x00", "") for key, text in value.items()}
    assert read_object(json.dumps(value, ensure_ascii=False).encode()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb'{"a":"\ud83d\ude00"}', "\N{GRINNING FACE}"),
        (rb'{"a":"x\ud83dy"}', "x\ufffdy"),
        (rb'{"a":"\ude00\ud83d"}', "\ufffd\ufffd"),
        (rb'{"a":"\ud83d\ud83d\ude00"}', "\ufffd\N{GRINNING FACE}"),
        (rb'{"a":"\\ud83d"}', "\\ud83d"),
        (rb'{"a":"\\\ud83d"}', "\\\ufffd"),
        (rb'{"a":"\\u0000"}', "\\u0000"),
        (rb'{"a":"\\\u0000b\u0000"}', "\\b"),
        (b'{"a":"\xed\xa0\xbd"}', "\ufffd"),
    ],
)
def test_surrogates_and_nul_are_replaced_where_they_stand(text: bytes, expected: str) -> None:
    assert read_object(text) == {"a": expected}


def test_keys_are_cleaned_like_values() -> None:
    assert read_object(rb'{"a\u0000b":{"\ud83d":1}}') == {"ab": {"\ufffd": 1}}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a":}',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":"\xff"}',
        b'{"a":"\x00"}',
        b"\xef\xbb\xbf{}",
        b"\x1f\x8b\x08",
    ],
)
def test_what_is_no_json_is_refused_with_its_place(raw: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^body: not valid JSON: .+"):
        read_object(raw)


@pytest.mark.parametrize("raw", [b"[]", b"null", b'"text"', b"3"])
def test_json_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^body: must be a JSON object"):
        read_object(raw)


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_nesting_is_allowed_up_to_the_limit() -> None:
    orjson.dumps({"room": {"for": read_object(nested(MAX_DEPTH))}})


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 300, 1_500, 100_000])
def test_deeper_nesting_is_refused(levels: int) -> None:
    with pytest.raises(BadRequest, match=r"^body: (nested deeper than 200 levels|not valid JSON: depth)"):
        read_object(nested(levels))


def test_deep_nesting_beside_a_lone_surrogate_is_refused_too() -> None:
    with pytest.raises(BadRequest, match=r"^body: "):
        read_object(rb'{"x":"\ud83d","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_cleaned_text_can_be_written_and_valid_text_is_untouched(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert cleaned == text
