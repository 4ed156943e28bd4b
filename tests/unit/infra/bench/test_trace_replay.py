"""A trace is played with the sizes, the shared beginnings, and in the order in which it was recorded."""

import asyncio
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench import agents_bodies as bodies
from infra.bench.agents_house import Counter
from infra.bench.agents_session import Kind, Reply, Talk
from infra.bench.asking import Outcome
from infra.bench.trace import Request, Trace
from infra.bench.trace_replay import TraceReplay
from infra.bench.trace_words import Scale, Writer
from tests.unit.infra.bench.shapes import shape, traced

pytestmark = pytest.mark.unit

BASE = [("0" * 12, 4000), ("1" * 12, 400)]
MORE = [*BASE, ("2" * 12, 200), ("3" * 12, 800)]
SCALE = Scale(word=1.0, message=4.0, plain=20.0, with_tool=120.0)


class Told:
    """A server that counts each conversation as it is told to."""

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)

    def tokens(self, _: Talk) -> int:
        return self._counts.pop(0)


class Listener:
    """A side that answers at once when it is told to, and notes who came when."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.went: list[str] = []

    async def ask(self, talk: Talk) -> tuple[Outcome, Reply, str]:
        self.came.append(talk.name)
        for _ in range(3):
            await asyncio.sleep(0)
        self.went.append(talk.name)
        return Outcome(0.1, 0.2, 100, 0, 5), Reply("anything"), "w1"

    async def close(self) -> None:
        """Nothing is open."""


def talks(trace: Trace, text: str = "text") -> list[Talk]:
    writer = Writer(SCALE, text)
    rows = zip(trace.requests, trace.prompts, trace.places, strict=True)
    return [writer.talk(one, prompt, place) for one, prompt, place in rows]


def texts(talk: Talk) -> list[str]:
    return [said.text if isinstance(said, Reply) else said for said in talk.history]


def counted(talk: Talk, request: Request) -> float:
    """Tokens of a talk on a server of this scale."""
    beyond = SCALE.with_tool if request.tools else SCALE.plain
    return beyond + len(talk.base.rules.split()) + sum(SCALE.message + len(text.split()) for text in texts(talk))


@given(sizes=st.lists(st.integers(600, 4000), min_size=2, max_size=9), tools=st.booleans())
def test_a_prompt_takes_as_many_tokens_as_the_recorded_one(sizes: list[int], tools: bool) -> None:
    pieces = [(f"{number:012x}", size) for number, size in enumerate(sizes)]
    trace = traced(shape("cccc", pieces, 1.0, tools=tools))
    (talk,) = talks(trace)
    assert abs(counted(talk, trace.requests[0]) - trace.requests[0].prompt_tokens) <= 2 * len(pieces)


@pytest.mark.parametrize("counts", [(0, 0, 0), (20, 20, 20), (20, 20, 40), (90, 20, 120)])
def test_where_nobody_counts_or_the_model_is_not_shown_a_beginning_a_word_is_a_token(counts: tuple[int, ...]) -> None:
    """The demo model's template leaves system text out: more of it makes no prompt longer."""
    trace = traced(shape("cccc", BASE, 1.0, tools=False))
    scale = Scale.of(cast(Counter, Told(*counts)), trace)
    assert scale == Scale()
    (talk,) = [Writer(scale, "text").talk(trace.requests[0], trace.prompts[0], trace.places[0])]
    assert len(talk.base.rules.split()) == trace.prompts[0][0][1]


def test_a_beginning_that_is_too_small_to_be_written_is_made_up_for_by_the_first_message() -> None:
    pieces = [("0" * 12, 40), ("1" * 12, 800)]
    trace = traced(shape("cccc", pieces, 1.0))
    (talk,) = talks(trace)
    assert len(talk.base.rules.split()) == 1
    assert abs(counted(talk, trace.requests[0]) - trace.requests[0].prompt_tokens) <= 1


def test_a_turn_begins_with_the_one_before_it_and_another_agent_with_the_same_base() -> None:
    other = [BASE[0], ("9" * 12, 400)]
    trace = traced(shape("cccc", BASE, 1.0), shape("cccc", MORE, 2.0), shape("dddd", other, 2.0, session="ffff"))
    first, second, alien = talks(trace)
    assert texts(second)[:1] == texts(first)
    assert [isinstance(said, Reply) for said in second.history] == [False, True, False]
    assert alien.base == first.base
    assert texts(alien)[0] != texts(first)[0]
    assert alien.session != first.session
    assert second.session == first.session


def test_every_conversation_has_a_place_of_its_own_that_a_fixed_slot_can_be_chosen_by() -> None:
    helpers = [shape(name * 4, BASE, 2.0, kind="subagent") for name in "de"]
    other = [shape("ffff", BASE, 2.0, session="ffff"), shape("abab", BASE, 3.0, session="ffff", kind="subagent")]
    trace = traced(shape("cccc", BASE, 1.0), *helpers, shape("cccc", MORE, 4.0), *other)
    assert [(talk.kind, talk.agent, talk.number) for talk in talks(trace)] == [
        (Kind.MAIN, 0, 0),
        (Kind.SUBAGENT, 0, 0),
        (Kind.SUBAGENT, 0, 1),
        (Kind.MAIN, 0, 0),
        (Kind.MAIN, 1, 0),
        (Kind.SUBAGENT, 1, 0),
    ]
    assert [trace.most(kind) for kind in (Kind.MAIN, Kind.SUBAGENT, Kind.SIDE)] == [1, 2, 0]


def test_no_two_arms_share_a_word_order() -> None:
    trace = traced(shape("cccc", BASE, 1.0))
    (one,), (other,) = talks(trace, "one"), talks(trace, "other")
    assert one.base.rules != other.base.rules


def test_it_is_asked_for_in_either_form() -> None:
    trace = traced(shape("cccc", MORE, 1.0, level=2, kind="subagent"))
    (talk,) = talks(trace)
    assert all(
        text.encode() in bodies.messages_body(talk) and text.encode() in bodies.chat_body(talk, 0)
        for text in texts(talk)
    )
    assert bodies.headers(talk)["x-priority"] == "2"
    assert "x-claude-code-agent-id" in bodies.headers(talk)


async def test_nobody_comes_before_what_it_came_after_has_ended() -> None:
    helpers = [
        shape(name * 4, BASE, 2.0 + at / 10, kind="subagent", took_ms=500 + 100 * at) for at, name in enumerate("de")
    ]
    trace = traced(shape("cccc", BASE, 1.0), *helpers, shape("cccc", MORE, 4.0))
    side = Listener()
    turns, _ = await TraceReplay(trace, Writer(SCALE, "text"), 1000.0, side, lambda: None).run()
    assert side.came[0] == side.went[0] == side.came[3] == side.went[3]
    assert set(side.came[1:3]) == set(side.went[1:3])
    assert [(turn.kind, turn.number) for turn in turns if turn.kind is Kind.MAIN] == [(Kind.MAIN, 0), (Kind.MAIN, 1)]


async def test_pauses_are_shorter_by_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("infra.bench.trace_replay.asyncio.sleep", lambda pause_s: _note(pauses, pause_s))
    trace = traced(shape("cccc", BASE, 1.0), shape("cccc", MORE, 4.0), shape("dddd", BASE, 9.0, session="ffff"))
    await TraceReplay(trace, Writer(SCALE, "text"), 2.0, Instant(), lambda: None).run()
    assert sorted(pauses) == [0.0, 1.25, 4.0]


class Instant(Listener):
    async def ask(self, talk: Talk) -> tuple[Outcome, Reply, str]:
        return Outcome(0.1, 0.2, 100, 0, 5), Reply(talk.name), "w1"


async def _note(pauses: list[float], pause_s: float) -> None:
    pauses.append(pause_s)


def test_a_longer_conversation_only_grows() -> None:
    trace = traced(*(shape("cccc", MORE[: 2 * turn], turn) for turn in (1, 2)))
    for shorter, longer in pairwise(map(texts, talks(trace))):
        assert longer[: len(shorter)] == shorter
