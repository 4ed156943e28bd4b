"""Explaining an answer: never in its way, and only missing when the broker is."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from api.explaining import MOST_TASKS, Explainer, Explanation
from api.protocol.request import Call, parse
from infra.errors import BrokerDown
from scheduler.contract import Failed, Finished, Gone, Started, StopReason, TextDelta, ThinkingDelta
from scheduler.dispatch import Dispatcher
from scheduler.policy.misses import Cause, Turn
from scheduler.turns import Kept, Turns

pytestmark = pytest.mark.unit

DOWN = BrokerDown("the broker does not answer")
STARTED = Started("w1", 2, 1, 0, 1_000, 0, gone=Gone.HERE)
FINISHED = Finished(StopReason.END_TURN, None, 1_000, 10, 5, 99, 1, "hash", 1)
CALL = parse(
    b'{"model": "x\\u001b[31m", "messages": [{"role": "user", "content": "hello"}]}',
    {"x-agent-id": "reviewer"},
    key_name="k",
    models=["m"],
    default_level=5,
)


class Memory:
    """Turns in memory; `down` of the next calls meet no broker, and nothing is answered before `answers` is set."""

    def __init__(self, down: int = 0) -> None:
        self.kept: list[Kept] = []
        self.down = down
        self.down_for_writing = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def last(self, *_: str) -> Turn | None:
        await self._reached()
        return self.kept[-1].turn if self.kept else None

    async def keep(self, kept: Kept) -> None:
        await self._reached()
        if self.down_for_writing:
            self.down_for_writing -= 1
            raise DOWN
        self.kept.append(kept)

    async def _reached(self) -> None:
        await self.answers.wait()
        if self.down:
            self.down -= 1
            raise DOWN


def explainer(memory: Memory) -> Explainer:
    worker = SimpleNamespace(store=SimpleNamespace(off="a sliding window"))
    dispatcher = SimpleNamespace(view=SimpleNamespace(now_ms=5), worker=lambda _: worker)
    return Explainer(cast(Turns, memory), cast(Dispatcher, dispatcher))


def follow(explainer: Explainer, *deltas: Any, call: Call = CALL) -> Explanation:
    explanation = explainer.follow(call, f"req_{id(deltas)}")
    for delta in deltas:
        explanation.feed(delta)
    return explanation


async def test_an_answer_is_kept_with_its_account_after_its_end() -> None:
    memory = Memory()
    house = explainer(memory)
    explanation = follow(house, STARTED, ThinkingDelta("hm"), TextDelta("a"), FINISHED)
    assert memory.kept == []
    await house.settle(1)
    assert explanation.account is not None
    assert explanation.account.cause is Cause.FIRST_TURN
    [kept] = memory.kept
    assert (kept.agent, kept.slot, kept.turn.prompt_tokens, kept.turn.output_tokens) == ("reviewer", 2, 1_000, 5)
    assert (kept.turn.thought_at_tokens, kept.turn.asked_model) == (1_000, "x?[31m")
    assert (kept.why["cached_tokens"], kept.why["cause"]) == (10, "first_turn")


async def test_the_account_is_there_at_the_end_when_the_last_turn_was_read_meanwhile() -> None:
    house = explainer(Memory())
    explanation = follow(house)
    await asyncio.sleep(0)
    explanation.feed(STARTED)
    explanation.feed(FINISHED)
    assert explanation.account is not None
    explanation.leave()
    await house.settle(1)


async def test_the_second_turn_is_compared_with_the_first() -> None:
    memory = Memory()
    house = explainer(memory)
    for _ in range(2):
        follow(house, STARTED, FINISHED)
        await house.settle(1)
    assert [kept.cause for kept in memory.kept] == [Cause.FIRST_TURN, Cause.ENGINE]
    assert "a sliding window" in memory.kept[1].why["sentence"]


async def test_a_turn_that_ended_while_this_one_waited_in_line_is_compared_with() -> None:
    memory = Memory()
    house = explainer(memory)
    waits, hurries = follow(house), follow(house)
    await asyncio.sleep(0)
    follow(house, STARTED, FINISHED)
    await house.settle(1)
    for explanation, queue_ms in ((waits, 3_000), (hurries, 3)):
        explanation.feed(replace(STARTED, queue_ms=queue_ms))
        explanation.feed(FINISHED)
        await house.settle(1)
    assert waits.account is not None
    assert hurries.account is not None
    assert (waits.account.cause, hurries.account.cause) == (Cause.ENGINE, Cause.FIRST_TURN)


@pytest.mark.parametrize("deltas", [(), (STARTED,), (STARTED, Failed("engine_lost", "gone"))])
async def test_an_answer_that_never_came_leaves_nothing(deltas: tuple[Any, ...]) -> None:
    memory = Memory()
    house = explainer(memory)
    follow(house, *deltas).leave()
    await house.settle(1)
    assert memory.kept == []


async def test_an_answer_that_was_cut_off_has_left_its_prompt() -> None:
    memory = Memory()
    house = explainer(memory)
    follow(house, STARTED, TextDelta("a")).leave()
    await house.settle(1)
    assert [(kept.turn.prompt_tokens, kept.turn.output_tokens) for kept in memory.kept] == [(1_000, 0)]


async def test_a_broker_that_is_away_costs_the_explanation_and_one_warning() -> None:
    memory = Memory(down=3)
    house = explainer(memory)
    with capture_logs() as logs:
        for _ in range(3):
            explanation = follow(house, STARTED, FINISHED)
            await house.settle(1)
            assert explanation.account is None
        memory.down_for_writing = 2
        for _ in range(3):
            follow(house, STARTED, FINISHED)
            await house.settle(1)
    assert [line["event"] for line in logs] == ["turns_not_explained"]
    assert len(memory.kept) == 1


async def test_what_waits_for_the_broker_is_bounded_and_ended_with_the_house() -> None:
    memory = Memory()
    memory.answers.clear()
    house = explainer(memory)
    explanations = [follow(house, STARTED, TextDelta("a")) for _ in range(MOST_TASKS + 5)]
    for explanation in explanations:
        explanation.leave()
    await house.settle(0.01)
    assert memory.kept == []
