"""A body is read the same with and without what is known of its tools."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol import known_tools
from api.protocol.body import MAX_DEPTH
from api.protocol.known_tools import KnownTools
from api.protocol.request import Call, parse, parse_count
from infra.errors import BadRequest
from scheduler.packing import unpack
from scheduler.tool_lists import KNOWN_LIST_BYTES, KNOWN_LISTS
from tests.doubles.bodies import claude_body

pytestmark = pytest.mark.unit

HELLO = [{"role": "user", "content": "hello"}]


def parsed(raw: bytes, known: KnownTools) -> Call:
    return parse(raw, {}, key_name="k", models=["m"], default_level=5, known_tools=known)


def outcome(raw: bytes, known: KnownTools) -> Call | tuple[str, str | None]:
    """What comes of it, or what is refused and which field is blamed."""
    try:
        return parsed(raw, known)
    except BadRequest as refusal:
        return refusal.message, refusal.field


def written(body: Any) -> bytes:
    """As Claude Code writes it."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def tool(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "description": f"\u00e9 \U0001f600 \\ {name}", "input_schema": {"type": "object", **schema}}


SCHEMA = {"enum": ["\u2028\x7f\x01\n", '"tools":[', 1, 0.5, -0.0, 2**63, None, "\\u0000", "\\ud83d"]}
LISTS: list[list[Any]] = [
    [tool("a"), tool("b", **SCHEMA)],
    [tool("a"), tool("b", **SCHEMA), tool("c")],
    [tool("n", tools=[tool("a")]), {"type": "web_search_20250305", "name": "w"}],
    [{"type": "web_search_20250305"}],
]
# Numbers that orjson writes in another way than the client did.
REWRITTEN = [tool("a", enum=[1e22, 1e-7, 2**70])]
REFUSED: list[Any] = [[tool("a"), tool("a")], [{"input_schema": {}}], ["a"], [{"name": ""}], {}, "", 3]
texts = st.text(max_size=6) | st.sampled_from(['"tools":[]', '\\"tools":', "\ud83d", "\x00", "\\u0000"])
values = st.sampled_from([*LISTS, REWRITTEN, *REFUSED, [], None])

# A value written by hand may have blanks, escapes, a key twice, or be cut.
WRITINGS: list[Callable[[Any], bytes]] = [
    lambda value: json.dumps(value).encode(),
    lambda value: json.dumps(value, separators=(",", ":")).encode(),
    lambda value: written(value)[:-1],
]
KEYS = [b'"tools": ', b'"tools" :', rb'"a\"tools":', rb'"t\u006fols":', b'"x":{"tools":', b'"x":']


@st.composite
def calls(draw: st.DrawFn) -> bytes:
    """Messages with a call whose arguments hold the key `tools`."""
    call = {"type": "tool_use", "id": "1", "name": "n", "input": {"tools": draw(values), "text": draw(texts)}}
    return b'"messages":' + json.dumps([{"role": "assistant", "content": [call]}], separators=(",", ":")).encode()


@st.composite
def tool_fields(draw: st.DrawFn) -> bytes:
    key = draw(st.just(b'"tools":') | st.sampled_from(KEYS))
    write = draw(st.just(written) | st.sampled_from(WRITINGS))
    return key + write(draw(st.sampled_from(LISTS[:3]) | values)) + (b"}" if b"{" in key else b"")


OTHERS = [
    b'"messages":' + written(HELLO),
    b'"messages":[{"role":"user","content":"\\u0000 \\ud83d \xc3\xa9"}]',
    b'"messages":[{"role":"user","content":"\xed\xa0\xbd"}]',
    b'"messages":[{"role":"user","content":"\xff"}]',
    b'"messages":[{"role":"user","content":[{"type":"odd"}]}]',
    b'"system":"s"',
    b'"tool_choice":{"type":"tool","name":"b"}',
    b'"tool_choice":{"type":"tool","name":"none"}',
    b'"max_tokens":0',
    b'"x":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1),
    b'"x":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
    b'"x":"',
    b'"x":"\\',
    b"",
]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    messages = draw(st.just(OTHERS[0]) | calls())
    odd = draw(st.lists(st.sampled_from(OTHERS) | tool_fields() | calls(), max_size=2))
    fields = draw(st.permutations([messages, draw(tool_fields()), *odd]))
    before, between = draw(st.sampled_from([(b"{", b","), (b"{", b","), (b" {", b", "), (b"[{", b",")]))
    return before + between.join(fields) + b"}"


def filled() -> KnownTools:
    known = KnownTools()
    for tools in LISTS:
        parsed(written({"messages": HELLO, "tools": tools}), known)
    return known


@given(st.lists(bodies(), min_size=1, max_size=4))
def test_every_body_is_read_the_same_whatever_is_known(raws: list[bytes]) -> None:
    known = filled()
    for raw in raws:
        fresh = outcome(raw, KnownTools())
        assert outcome(raw, known) == fresh
        assert outcome(raw, known) == fresh  # of which it may have learned


@given(st.lists(st.sampled_from(LISTS), min_size=1), st.booleans())
def test_lists_in_alternation_are_each_read_once(lists: list[list[Any]], last: bool) -> None:
    known = KnownTools()
    for number, tools in enumerate(lists):
        said = {"messages": [{"role": "user", "content": str(number)}]}
        raw = written({**said, "tools": tools} if last else {"tools": tools, **said})
        assert (known.find(raw) is None) is (tools not in lists[:number])
        assert parsed(raw, known) == parsed(raw, KnownTools())


def test_a_later_turn_of_claude_code_hands_on_the_same_objects() -> None:
    known = KnownTools()
    first, later = (written(claude_body(turns=turns)) for turns in (1, 2))
    parsed(first, known)
    before, now = known.find(first), known.find(later)
    assert before
    assert now
    assert before.tools is now.tools
    assert now.rest == {key: value for key, value in json.loads(later).items() if key != "tools"}
    assert parsed(later, known) == parsed(later, KnownTools())
    assert unpack(parse_count(later, models=["m"], known_tools=known).body) == unpack(parsed(later, known).request.body)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":MESSAGES,"x":{"tools":TOOLS}}',
        b'{"messages":MESSAGES,"tools":TOOLS,"tools":[]}',
        b'{"messages":MESSAGES,"tools":TOOLS,"tools":null}',
        b'{"messages":MESSAGES,"x":{"tools":TOOLS},"tools":TOOLS}',
        rb'{"messages":MESSAGES,"a\"tools":TOOLS}',
        b'{"messages":MESSAGES,"tools": TOOLS}',
        b'{"messages":MESSAGES,"tools":TOOLS',
        b'[{"messages":MESSAGES,"tools":TOOLS}]',
    ],
)
def test_a_known_list_in_another_place_is_not_taken_for_the_tools(raw: bytes) -> None:
    sent = raw.replace(b"MESSAGES", written(HELLO)).replace(b"TOOLS", written(LISTS[0]))
    known = filled()
    assert known.find(sent) is None
    assert outcome(sent, known) == outcome(sent, KnownTools())


def test_of_two_keys_the_last_counts() -> None:
    raw = b'{"messages":%s,"tools":%s,"tools":%s}' % tuple(map(written, (HELLO, LISTS[0], LISTS[1])))
    assert parsed(raw, filled()) == parsed(raw, KnownTools())
    assert parsed(raw, filled()) == parsed(written({"messages": HELLO, "tools": LISTS[1]}), KnownTools())


def test_nothing_is_learned_of_tools_that_are_refused_or_too_deep() -> None:
    deep = b'[{"name":"a","input_schema":{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}}]"
    known = KnownTools()
    for tools in (deep, *map(written, REFUSED)):
        raw = b'{"messages":%s,"tools":%s}' % (written(HELLO), tools)
        assert outcome(raw, known) == outcome(raw, known)
        assert known.find(raw) is None


def test_what_is_known_is_bounded_in_number_and_in_size() -> None:
    known = KnownTools()
    sizes = [*range(KNOWN_LISTS + 1), KNOWN_LIST_BYTES]
    raws = [written({"messages": HELLO, "tools": [tool("a", title="x" * size)]}) for size in sizes]
    for raw in raws:
        parsed(raw, known)
    assert [known.find(raw) is not None for raw in raws] == [False, *[True] * KNOWN_LISTS, False]


def test_what_would_not_be_found_again_or_is_known_takes_no_place() -> None:
    known = filled()
    for number in range(KNOWN_LISTS):
        parsed(json.dumps({"messages": HELLO, "tools": [tool(str(number))]}).encode(), known)
        parsed(written({"messages": HELLO, "x": {"tools": LISTS[0]}, "tools": LISTS[0]}), known)
    assert all(known.find(written({"messages": HELLO, "tools": tools})) for tools in LISTS)


def test_the_mark_is_no_word_that_a_client_could_send() -> None:
    assert len(known_tools._MARK) >= 32
