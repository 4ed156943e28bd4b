"""Events as bytes that every client splits in the same places."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol.sse import encode

pytestmark = pytest.mark.unit

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\r\n\x0b\x0c\x1c\x85\u2028\u2029"))


def test_an_event_is_its_name_and_one_line_of_data() -> None:
    assert encode({"type": "ping"}) == b'event: ping\ndata: {"type":"ping"}\n\n'


@given(st.dictionaries(texts, texts).map(lambda fields: fields | {"type": "ping"}))
def test_data_comes_back_whole_however_a_client_splits_lines(event: dict[str, str]) -> None:
    name, data, *rest = encode(event).decode().splitlines()
    assert name == "event: ping"
    assert json.loads(data.removeprefix("data: ")) == event
    assert rest == [""]
