"""The stand-in's slots: what they hold and who gets which."""

import asyncio

import pytest

from tests.doubles.standin_slots import Pace, Slot, SlotTable

pytestmark = pytest.mark.unit


def table(count: int = 3) -> SlotTable:
    return SlotTable(count, 100, 1000, 1000)


def test_a_slot_knows_the_common_beginning() -> None:
    assert Slot(0, cached=["a", " b", " c"]).common(["a", " b", " x", " y"]) == 2


def test_one_word_is_always_left_to_process() -> None:
    assert Slot(0, cached=["a", " b"]).common(["a", " b"]) == 1


def test_a_number_past_the_last_slot_wraps() -> None:
    assert table().choose(7, ["a"]).number == 1


def test_without_a_number_the_slot_that_holds_most_is_chosen() -> None:
    slots = table()
    slots.slots[2].cached = ["a", " b"]
    assert slots.choose(-1, ["a", " b", " c"]).number == 2


async def test_without_a_number_a_busy_slot_is_left_alone() -> None:
    slots = table(2)
    slots.slots[0].cached = ["a", " b"]
    async with asyncio.timeout(5):
        await slots.slots[0].lock.acquire()
    assert slots.choose(-1, ["a", " b", " c"]).number == 1


async def test_an_answer_stands_still_while_a_file_moves_and_is_later_by_as_much() -> None:
    moving, pace = asyncio.Lock(), Pace(1e9)
    began = pace.start
    await moving.acquire()
    reaching = asyncio.create_task(pace.reach_past(moving, 1))
    await asyncio.sleep(0.01)
    assert not reaching.done()
    moving.release()
    await asyncio.wait_for(reaching, 5)
    assert pace.start > began
