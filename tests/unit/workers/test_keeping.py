"""What a worker tells its claims of the caches in its free slots."""

from pathlib import Path

import pytest

from scheduler.contract import StopReason
from scheduler.policy.line import Cached, Rules
from tests.unit.workers.house import SPEEDS, House, answer, size
from workers.keeping import worth_keeping

pytestmark = pytest.mark.unit

RULES = Rules(return_hold_ms=5000)
LONG = "much to read " * 3000


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "kv")


def test_a_conversation_in_a_tool_call_is_told_with_its_prefill_and_the_time_it_has_left(house: House) -> None:
    house.turn("one", LONG)
    house.now_s += 1  # and one of the turn
    tokens = size(LONG, answer(LONG))
    assert tokens > 5 * SPEEDS.prefill_tokens_per_s
    [cached] = worth_keeping(house.caches, RULES)
    assert cached == Cached("one", 5, tokens * 1.0, 3000.0)


def test_its_level_is_that_of_its_last_request(house: House) -> None:
    house.turn("one", LONG, level=3)
    house.turn("one", LONG, answer(LONG), "more", level=7)
    assert [one.level for one in worth_keeping(house.caches, RULES)] == [7]


def test_its_own_gaps_say_how_long_it_is_awaited(house: House) -> None:
    house.turn("one", LONG)
    house.turn("one", LONG, answer(LONG), "more")
    [cached] = worth_keeping(house.caches, RULES)
    assert cached.left_ms == 2 * 1000 - 1000  # twice the second after which it came back, one of which has gone by


def test_one_that_ended_its_turn_is_not_awaited_but_told(house: House) -> None:
    house.turn("one", LONG, reason=StopReason.END_TURN)
    assert [(one.conversation, one.left_ms) for one in worth_keeping(house.caches, RULES)] == [("one", 0.0)]


def test_a_slot_at_work_or_of_nobody_holds_nothing_to_keep(house: House) -> None:
    house.turn("one", LONG)
    slot = house.slot_of("one")
    slot.busy = True
    assert worth_keeping(house.caches, RULES) == ()
    slot.busy = False
    house.table.free(slot)
    assert worth_keeping(house.caches, RULES) == ()


def test_without_an_engine_or_a_hold_nothing_is_kept(house: House) -> None:
    house.turn("one", LONG)
    assert worth_keeping(None, RULES) == ()
    assert worth_keeping(house.caches, Rules(return_hold_ms=0)) == ()
