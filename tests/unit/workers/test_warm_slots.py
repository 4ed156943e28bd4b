"""Slots and warm-ups: what one leaves behind belongs to nobody, and it takes nobody's."""

import pytest

from infra.errors import Refused
from scheduler.contract import Kind
from scheduler.policy.chain import Chain
from workers.slots import Held, SlotTable, Want

pytestmark = pytest.mark.unit


def base_of(name: str, said: str) -> Chain:
    return Chain(name, "", (said,), (900, 1000))


def use(table: SlotTable, wanted: Want) -> int:
    """The slot that it was given; it holds 1000 tokens of the prompt afterwards."""
    with table.hold(wanted) as slot:
        slot.held = Held(wanted.conversation, wanted.agent, wanted.kind, wanted.chain, 1000, 1000)
        return slot.number


def warm_up(table: SlotTable, base: str) -> int:
    return use(table, Want(f"warm-{base}", "warm-up", Kind.WARM, base_of(base, ".")))


def ask(table: SlotTable, name: str, base: str) -> int:
    return use(table, Want(name, "agent", Kind.MAIN, base_of(base, f"I am {name}")))


def test_a_warmed_slot_is_free_and_goes_to_the_first_conversation_with_its_base() -> None:
    table = SlotTable(3)
    warm = [warm_up(table, base) for base in "ab"]
    assert len(set(warm)) == 2
    assert [info.conversation for info in table.snapshot()] == [None] * 3
    assert ask(table, "new", "b") == warm[1]


def test_a_conversation_with_another_base_leaves_warmed_slots_to_others() -> None:
    table = SlotTable(2)
    warm = warm_up(table, "a")
    assert ask(table, "new", "b") != warm


def test_a_warm_up_takes_nobodys_slot() -> None:
    table = SlotTable(2)
    for name in ("one", "two"):
        ask(table, name, "b")
    with pytest.raises(Refused):
        warm_up(table, "a")
    table.free(table.slots[1])
    assert warm_up(table, "a") == 1
