"""Sessions grow as asked, share what they should, and are new in each arm but the same in shape."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol.request import parse
from infra.bench import agents_bodies as bodies
from infra.bench.agents_session import LONGEST_GAP, SIDE_WORDS, Base, Call, Kind, Reply, Talk
from scheduler.packing import unpack
from tests.unit.infra.bench.talks import cast, shape, talk
from workers.llama.render import render

pytestmark = pytest.mark.unit


def word_count(text: str) -> int:
    return len(text.partition(": ")[2].split())


@given(agent=st.integers(0, 20), turn=st.integers(0, 20))
def test_a_turn_brings_as_many_words_as_the_shape_allows(agent: int, turn: int) -> None:
    people = cast()
    assert 100 <= word_count(people.next_words(people.talk(Kind.MAIN, agent), turn)) <= 600
    assert SIDE_WORDS[0] <= word_count(people.next_words(people.talk(Kind.SIDE, agent), turn)) <= SIDE_WORDS[1]


def test_arms_of_a_run_have_the_same_lengths_and_pauses_but_no_text_in_common() -> None:
    one, two = cast("arm-one"), cast("arm-two")
    first, second = one.talk(Kind.MAIN, 1), two.talk(Kind.MAIN, 1)
    assert word_count(one.next_words(first, 2)) == word_count(two.next_words(second, 2))
    assert one.gap_s(first, 2) == two.gap_s(second, 2)
    assert one.next_words(first, 2) != two.next_words(second, 2)
    assert first.base.rules != second.base.rules
    assert first.base.tools[0] != second.base.tools[0]
    assert first.session != second.session


def test_the_same_seed_repeats_a_run() -> None:
    assert cast().next_words(talk(), 1) == cast().next_words(talk(), 1)
    assert bodies.messages_body(begun()) == bodies.messages_body(begun())


def test_pauses_are_bounded_and_can_be_none() -> None:
    pauses = [cast().gap_s(talk(), turn) for turn in range(200)]
    assert 0 < min(pauses) <= max(pauses) <= LONGEST_GAP
    eager = cast()
    eager.shape = shape(gap_s=0)
    assert eager.gap_s(talk(), 1) == 0


def test_agents_share_their_base_but_neither_task_nor_session() -> None:
    people = cast()
    first, second = people.talk(Kind.MAIN, 0), people.talk(Kind.MAIN, 1)
    assert first.base is second.base
    assert first.session != second.session
    assert people.next_words(first, 0)[:12] != people.next_words(second, 0)[:12]


def test_a_subagent_has_its_agent_s_session_another_base_and_an_id() -> None:
    people = cast()
    main, helper = people.talk(Kind.MAIN, 1), people.talk(Kind.SUBAGENT, 1)
    assert main.session == helper.session
    assert main.base is not helper.base
    assert "x-claude-code-agent-id" in bodies.headers(helper)
    assert "x-claude-code-agent-id" not in bodies.headers(main)
    assert bodies.headers(helper) != bodies.headers(people.talk(Kind.SUBAGENT, 1, 1))


@given(turns=st.integers(1, 12), subagents=st.integers(0, 12))
def test_every_subagent_is_started_once(turns: int, subagents: int) -> None:
    people = cast(turns=turns, subagents=subagents)
    started = [number for turn in range(turns) for number in people.spawned_after(turn)]
    assert sorted(started) == list(range(subagents))


@pytest.mark.parametrize("chars", [500, 8_000, 70_000])
def test_a_base_has_about_the_size_asked_for_and_is_mostly_tools(chars: int) -> None:
    base = Base("seed", chars)
    assert base.tools
    size = len(base.rules) + len(orjson.dumps(base.tools))
    assert 0.7 * chars < size < 1.2 * chars + 1500
    assert Base("seed", chars, with_tools=False).tools == []


def begun(*replies: Reply, kind: Kind = Kind.MAIN) -> Talk:
    spoken = talk(kind)
    for number, reply in enumerate(replies):
        spoken.say(f"words {number}")
        spoken.hear(reply)
    spoken.say("newest words")
    return spoken


REPLIES = {
    "nothing said yet": (),
    "text": (Reply("so it is"), Reply("and so")),
    "thinking": (Reply("so it is", thinking="hm", signature="s"),),
    "calls": (Reply("two calls", calls=[Call("c1", "Tool0", '{"value0": "x"}'), Call("c2", "Tool1", "{}")]),),
}


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("replies", REPLIES.values(), ids=REPLIES)
def test_both_forms_of_a_conversation_are_the_same_prompt(kind: Kind, replies: tuple[Reply, ...]) -> None:
    spoken = begun(*replies, kind=kind)
    call = parse(
        bodies.messages_body(spoken), bodies.headers(spoken), key_name="key", models=["model"], default_level=5
    )
    body = render(unpack(call.request.body), slot=1, stop=(), vision=False, context_tokens=40_960)
    rendered = orjson.loads(orjson.dumps(body))
    sent = orjson.loads(bodies.chat_body(spoken, 1))
    for message in sent["messages"]:
        for made in message.get("tool_calls", []):
            made["function"]["arguments"] = orjson.loads(made["function"]["arguments"])
    for message in rendered["messages"]:
        for made in message.get("tool_calls", []):
            made["function"]["arguments"] = orjson.loads(made["function"]["arguments"])
    assert sent["messages"] == rendered["messages"]
    assert sent.get("tools") == rendered.get("tools")


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    shorter = orjson.loads(bodies.chat_body(begun(Reply("one")), 0))["messages"]
    longer = orjson.loads(bodies.chat_body(begun(Reply("one"), Reply("two")), 0))["messages"]
    assert longer[: len(shorter) - 1] == shorter[:-1]


def test_what_got_no_answer_is_taken_back() -> None:
    spoken = talk()
    spoken.say("lost")
    spoken.unsay()
    assert spoken.history == []


def test_a_reply_is_read_from_either_form() -> None:
    blocks = [
        {"type": "content_block_start", "content_block": {"type": "thinking"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "so "}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "be it"}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "c1", "name": "Tool0"}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '{"a"'}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ": 1}"}},
    ]
    call = {"index": 0, "id": "c1", "function": {"name": "Tool0", "arguments": '{"a"'}}
    more = {"index": 0, "function": {"arguments": ": 1}"}}
    deltas = [
        {"reasoning_content": "hm"},
        {"content": "so "},
        {"content": "be it"},
        {"tool_calls": [call]},
        {"tool_calls": [more]},
    ]
    expected = Reply("so be it", "hm", calls=[Call("c1", "Tool0", '{"a": 1}')])
    for chunks in (blocks, [{"choices": [{"delta": delta}]} for delta in deltas]):
        hearing = bodies.Hearing()
        for chunk in chunks:
            hearing.chunk(chunk)
        hearing.reply.signature = ""
        assert hearing.reply == expected
