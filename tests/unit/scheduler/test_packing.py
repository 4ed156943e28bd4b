"""What is written once for a request's bytes and its chain must be what each would have written for itself."""

import zlib
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import (
    GenerationRequest,
    ImageBlock,
    Limits,
    Message,
    TextBlock,
    Thinking,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from scheduler.packing import PLAIN_BYTES, pack, pack_with_chain, unpack, unpack_with_chain
from scheduler.policy.chain import chain, fingerprint
from scheduler.tool_lists import tool_list

pytestmark = pytest.mark.unit

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(['"messages":[]', "\\", "\x00"])
shown = st.builds(TextBlock, text=texts) | st.builds(ImageBlock, url=texts)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)
anything: st.SearchStrategy[dict[str, Any]] = st.dictionaries(texts, texts | numbers | st.none(), max_size=2)
blocks = st.one_of(
    shown,
    st.builds(ThinkingBlock, thinking=texts),
    st.builds(ToolUseBlock, id=texts, name=texts, input=anything),
    st.builds(ToolResultBlock, tool_use_id=texts, content=st.lists(shown, max_size=2).map(tuple)),
)
messages = st.builds(
    Message, role=st.sampled_from(["user", "assistant"]), content=st.lists(blocks, max_size=3).map(tuple)
)
requests = st.builds(
    GenerationRequest,
    model=texts,
    system=texts,
    messages=st.lists(messages, max_size=4).map(tuple),
    tools=st.lists(st.builds(Tool, name=texts, input_schema=anything), max_size=2).map(tuple),
    tool_choice=st.builds(ToolChoice, name=st.none() | texts),
    max_tokens=st.integers(1, 99),
    stop_sequences=st.lists(texts, max_size=2).map(tuple),
    temperature=st.none() | st.floats(0, 2),
    thinking=st.builds(Thinking, enabled=st.none() | st.booleans()),
    limits=st.builds(Limits, total_s=st.none() | st.floats(0, 9)),
)


@given(requests)
def test_the_bytes_and_the_chain_are_those_that_each_would_be_alone(request_: GenerationRequest) -> None:
    tools = tool_list(request_.tools, keep=False)
    packed, links = pack_with_chain(request_, tools)
    text = request_.model_dump_json(exclude={"tools"}).encode()
    chained = orjson.dumps([links.system, links.messages, links.characters])
    lengths = len(tools.packed).to_bytes(4) + len(chained).to_bytes(4)
    assert packed.body == lengths + tools.packed + chained + b"j" + text
    assert packed.digest == sha256(packed.body).digest()
    plain = pack(request_)
    assert plain.body == len(tools.packed).to_bytes(4) + bytes(4) + tools.packed + b"j" + text
    assert packed == replace(plain, body=packed.body, digest=packed.digest)
    assert links == chain(request_)
    assert links.messages == tuple(fingerprint(message.model_dump_json()) for message in request_.messages)
    assert unpack_with_chain(packed.body) == (request_, links)


def test_a_large_one_is_compressed_and_has_the_same_chain() -> None:
    said = Message(role="user", content=(TextBlock(text="x" * PLAIN_BYTES),))
    large = GenerationRequest(model="m", messages=(said,), max_tokens=1)
    packed, links = pack_with_chain(large, tool_list((), keep=False))
    assert zlib.decompress(packed.body.partition(b"]z")[2]) == large.model_dump_json(exclude={"tools"}).encode()
    assert (unpack(packed.body), links) == (large, chain(large))
