"""What is kept of tool lists must not show: neither in what comes back nor in what two lists have in common."""

import zlib
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scheduler import tool_lists
from scheduler.contract import GenerationRequest, Message, TextBlock, Tool
from scheduler.packing import PLAIN_BYTES, pack, pack_with_chain, unpack, unpack_with_chain
from scheduler.policy.chain import chain
from scheduler.tool_lists import KNOWN_LIST_BYTES, KNOWN_PACKED_BYTES, tool_list

pytestmark = pytest.mark.unit

tools = st.builds(
    Tool,
    name=st.text(min_size=1, max_size=5),
    description=st.text(max_size=20),
    input_schema=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)


def asked(*given_tools: Tool, system: str = "") -> GenerationRequest:
    return GenerationRequest(model="m", messages=(), system=system, tools=given_tools, max_tokens=1)


@given(st.lists(tools, max_size=4), st.booleans())
def test_a_request_and_its_chain_come_back_the_same_with_and_without_what_is_kept(
    given_tools: list[Tool], keep: bool
) -> None:
    request = asked(*given_tools)
    body = pack(request, tool_list(request.tools, keep=keep)).body
    assert body == pack(request).body
    for _ in range(2):
        assert unpack_with_chain(body) == (request, chain(request))


@given(st.lists(tools, max_size=2), st.lists(st.text(), max_size=3), st.text())
def test_a_chain_that_was_known_comes_back_as_it_would_be_made(
    given_tools: list[Tool], texts: list[str], system: str
) -> None:
    messages = tuple(Message(role="user", content=(TextBlock(text=text),)) for text in texts)
    request = asked(*given_tools, system=system).model_copy(update={"messages": messages})
    with_chain, _ = pack_with_chain(request, tool_list(request.tools, keep=True))
    assert unpack_with_chain(with_chain.body) == unpack_with_chain(pack(request).body) == (request, chain(request))
    assert unpack(with_chain.body) == request
    assert with_chain.json_bytes == pack(request).json_bytes


def test_a_chain_that_was_known_is_not_made_again() -> None:
    request = asked()
    packed, links = pack_with_chain(request, tool_list((), keep=False))
    other = replace(links, system="0" * len(links.system))
    assert unpack_with_chain(packed.body.replace(links.system.encode(), other.system.encode())) == (request, other)


@given(st.lists(tools, min_size=1, max_size=3), st.lists(tools, min_size=1, max_size=3))
def test_two_lists_are_never_taken_for_one_another(one: list[Tool], other: list[Tool]) -> None:
    first, second = (tool_list(tuple(given_tools), keep=True) for given_tools in (one, other))
    same = [tool.model_dump_json() for tool in one] == [tool.model_dump_json() for tool in other]
    assert (first.packed == second.packed) == same == (first.link == second.link)


def test_a_list_that_is_sent_again_is_read_once() -> None:
    body = pack(asked(Tool(name="once", input_schema={}))).body
    assert unpack(body).tools[0] is unpack(body).tools[0]


def test_a_list_that_is_too_large_to_keep_is_not_kept() -> None:
    noise = Random(1).randbytes(2 * KNOWN_PACKED_BYTES).hex()
    body = pack(asked(Tool(name="large", description=noise, input_schema={}))).body
    assert int.from_bytes(body[:4]) > KNOWN_PACKED_BYTES
    before = tool_lists._known.cache_info()
    assert unpack(body).tools == unpack(body).tools
    assert tool_lists._known.cache_info() == before


def test_a_list_that_is_small_only_when_packed_is_not_kept() -> None:
    body = pack(asked(Tool(name="shrinks", description="x" * (KNOWN_LIST_BYTES + 1), input_schema={}))).body
    assert int.from_bytes(body[:4]) < KNOWN_PACKED_BYTES
    assert unpack(body).tools == unpack(body).tools
    assert unpack(body).tools[0] is not unpack(body).tools[0]


def test_a_large_body_is_compressed_and_a_small_one_is_carried_as_it_is() -> None:
    small, large = asked(system="s" * 1000), asked(system="s" * (PLAIN_BYTES + 1))
    assert b"s" * 1000 in pack(small).body
    assert len(pack(large).body) < PLAIN_BYTES / 10
    assert [unpack(pack(request).body) for request in (small, large)] == [small, large]


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\1xj{}", b"\0\0\0\0j{}", b"\xff\xff\xff\xff"])
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises((zlib.error, ValidationError)):
        unpack(body)
