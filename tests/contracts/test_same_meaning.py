"""Two requests that mean the same give the same bytes, on the way to a worker and on the way to its engine."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol.request import Call, parse
from scheduler.packing import unpack
from tests.unit.api.protocol.conversations import Entry, entries
from workers.llama.render import render

pytestmark = pytest.mark.contracts

Body = dict[str, Any]
Rewrite = Callable[[Body, random.Random], None]

ATTRIBUTION = "x-anthropic-billing-header: cc_version=2.1.{}; cc_entrypoint=cli;"
MARK = {"type": "ephemeral", "ttl": "1h"}
SCHEMA = {
    "type": "object",
    "properties": {"z": {"type": "string"}, "a": {"enum": ["\u65e5", "b/c"]}},
    "required": ["z"],
}
TOOLS = [
    {"name": "Read", "description": "Read \u00e9 & <more>.", "input_schema": SCHEMA},
    {"name": "Bash", "input_schema": {"type": "object"}},
]

bodies = st.fixed_dictionaries(
    {
        "messages": entries,
        "system": st.sampled_from([None, [], [{"type": "text", "text": "You help \U0001f600.\n"}]]),
        "tools": st.sampled_from([[], TOOLS]),
    }
)


def blocks_of(body: Body) -> list[Entry]:
    """Every block of the messages, those inside results too."""
    found: list[Entry] = []
    for message in body["messages"]:
        if isinstance(message["content"], list):
            found += message["content"]
    inner = [block["content"] for block in found if isinstance(block.get("content"), list)]
    return found + [block for content in inner for block in content]


def strings_for_single_texts(body: Body, chance: random.Random) -> None:
    for holder in [*body["messages"], *blocks_of(body)]:
        content = holder.get("content")
        if isinstance(content, list) and len(content) == 1 and content[0]["type"] == "text" and chance.random() < 0.5:
            holder["content"] = content[0]["text"]


def marks_anywhere(body: Body, chance: random.Random) -> None:
    for block in [*blocks_of(body), *body["tools"], *(body["system"] or [])]:
        if chance.random() < 0.4:
            block["cache_control"] = MARK


def another_attribution(body: Body, chance: random.Random) -> None:
    block = {"type": "text", "text": ATTRIBUTION.format(chance.randrange(1000))}
    body["system"] = [*[block] * chance.randrange(2), *(body["system"] or [])]


def a_system_string(body: Body, chance: random.Random) -> None:
    texts = [block["text"] for block in body["system"] or [] if not block["text"].startswith("x-")]
    if texts and chance.random() < 0.5:
        (words,) = texts
        body["system"] = f"{ATTRIBUTION.format(1)}\n{words}" if chance.random() < 0.5 else words


def blank_texts(body: Body, chance: random.Random) -> None:
    for message in body["messages"]:
        if isinstance(message["content"], list):
            place = chance.randrange(len(message["content"]) + 1)
            message["content"].insert(place, {"type": "text", "text": chance.choice(["", " ", "\n\t"])})


def split_users(body: Body, chance: random.Random) -> None:
    """An assistant's message is not split: of two equal neighbours one is a repetition."""
    parted: list[Entry] = []
    for message in body["messages"]:
        if message["role"] == "user" and isinstance(message["content"], list):
            place = chance.randrange(len(message["content"]) + 1)
            halves = message["content"][:place], message["content"][place:]
            parted += [message | {"content": half} for half in halves]
        else:
            parted.append(message)
    body["messages"] = parted


def other_signatures(body: Body, chance: random.Random) -> None:
    for block in blocks_of(body):
        if block["type"] == "thinking":
            block["signature"] = chance.choice(["", "another"])


def unread_fields(body: Body, chance: random.Random) -> None:
    body |= {"metadata": {"user_id": f"u{chance.random()}"}, "context_management": {"edits": []}, "max_tokens": 4096}
    for part in [*body["tools"], *body["messages"]]:
        part["of_tomorrow"] = chance.random()


def another_order_of_fields(body: Body, chance: random.Random) -> None:
    """Of the protocol's own objects; what stands in an input or a schema is the client's to order."""
    for part in [body, *body["messages"], *blocks_of(body), *body["tools"]]:
        fields = list(part.items())
        chance.shuffle(fields)
        part.clear()
        part.update(fields)


# Strings last: the others look for blocks.
REWRITES: tuple[Rewrite, ...] = (
    blank_texts,
    split_users,
    marks_anywhere,
    another_attribution,
    other_signatures,
    unread_fields,
    another_order_of_fields,
    a_system_string,
    strings_for_single_texts,
)


def reworded(body: Body, rewrites: list[Rewrite], chance: random.Random) -> Body:
    """The body in other words of the protocol."""
    body = copy.deepcopy(body)
    for rewrite in REWRITES:
        if rewrite in rewrites:
            rewrite(body, chance)
    return body


def as_json(body: Body, chance: random.Random) -> bytes:
    """The body as JSON, in one of its many spellings."""
    separators = chance.choice([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
    indent = chance.choice([None, None, 3])
    raw = json.dumps(body, ensure_ascii=chance.random() < 0.5, separators=separators, indent=indent)
    return (raw.replace("/", "\\/") if chance.random() < 0.5 else raw).encode()


def parsed(raw: bytes, headers: dict[str, str] | None = None) -> Call:
    return parse(raw, headers or {}, key_name="k", models=["m"], default_level=5)


def engine_bytes(call: Call) -> bytes:
    request = unpack(call.request.body)
    return orjson.dumps(render(request, slot=0, stop=(), vision=True, context_tokens=8192, call_joint="\n"))


@given(bodies, st.lists(st.sampled_from(REWRITES), unique=True), st.randoms(use_true_random=False))
def test_the_same_meaning_is_the_same_bytes(body: Body, rewrites: list[Rewrite], chance: random.Random) -> None:
    one = parsed(json.dumps(body).encode())
    other = parsed(as_json(reworded(body, rewrites, chance), chance), {"x-priority": "1"})
    assert other.request == one.request
    assert other.chain == one.chain
    assert engine_bytes(other) == engine_bytes(one)


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
def test_each_way_of_writing_it_differs_on_the_wire(rewrite: Rewrite) -> None:
    """Else the property above would hold for want of anything to hold for."""
    content = [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "a"}]
    messages = [{"role": "user", "content": content[1:]}, {"role": "assistant", "content": content}] * 6
    body = {"messages": messages, "system": [{"type": "text", "text": "You help."}], "tools": TOOLS}
    changed = [reworded(body, [rewrite], random.Random(seed)) for seed in range(9)]
    assert any(json.dumps(one) != json.dumps(body) for one in changed)


@pytest.mark.parametrize("part", ["schema", "input", "tools"])
def test_the_clients_own_order_is_kept(part: str) -> None:
    call = {"type": "tool_use", "id": "1", "name": "Read", "input": {"z": 1, "a": 2}}
    body = {"messages": [{"role": "assistant", "content": [call]}], "tools": TOOLS}
    turned: Any = copy.deepcopy(body)
    if part == "tools":
        turned["tools"].reverse()
    else:
        holder, key = (turned["tools"][0]["input_schema"], "properties")
        if part == "input":
            holder, key = turned["messages"][0]["content"][0], "input"
        holder[key] = dict(reversed(holder[key].items()))
    one, other = parsed(json.dumps(body).encode()), parsed(json.dumps(turned).encode())
    assert engine_bytes(one) != engine_bytes(other)
    assert one.request != other.request
