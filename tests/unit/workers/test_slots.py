"""The slot table: one holder each, sticky, the least valuable given away first, the longest idle of equals."""

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import EngineLost
from scheduler.contract import Kind, StopReason
from scheduler.policy.chain import Chain
from scheduler.policy.eviction import learnt_gap_s
from workers import slots
from workers.slots import Held, Slot, SlotTable, Want

pytestmark = pytest.mark.unit


NOTHING = Chain("", "", (), (0,))


def want(conversation: str, kind: Kind = Kind.MAIN, agent: str = "agent") -> Want:
    return Want(conversation, agent, kind, NOTHING)


@contextmanager
def held(table: SlotTable, wanted: Want) -> Iterator[Slot]:
    """The slot, and what it holds is the conversation's."""
    with table.hold(wanted) as slot:
        if slot.held is None or slot.held.conversation != wanted.conversation:
            slot.held = Held(wanted.conversation, wanted.agent, wanted.kind, wanted.chain)
        yield slot


def use(table: SlotTable, conversation: str) -> int:
    with held(table, want(conversation)) as slot:
        return slot.number


def test_a_conversation_comes_back_to_its_slot() -> None:
    table = SlotTable(3)
    first = {name: use(table, name) for name in "abc"}
    assert sorted(first.values()) == [0, 1, 2]
    assert {name: use(table, name) for name in "cab"} == first


def test_an_empty_slot_is_taken_before_anybody_elses() -> None:
    table = SlotTable(2)
    use(table, "a")
    assert use(table, "b") != use(table, "a")


def answered(table: SlotTable, conversation: str, kind: Kind, reason: StopReason, tokens: int = 1000) -> int:
    with held(table, want(conversation, kind)) as slot:
        assert slot.held is not None
        if slot.held.stop_reason is StopReason.TOOL_USE:
            slot.held.gap_s = learnt_gap_s(slot.held.gap_s, table.clock() - slot.held.ended_s)
        slot.held.tokens, slot.held.stop_reason = tokens, reason
        return slot.number


def test_a_side_call_is_given_away_before_older_conversations() -> None:
    table = SlotTable(3)
    answered(table, "main", Kind.MAIN, StopReason.TOOL_USE)
    side = answered(table, "title", Kind.SIDE, StopReason.END_TURN)
    answered(table, "other", Kind.MAIN, StopReason.END_TURN)
    assert use(table, "new") == side


def test_one_that_waits_for_a_human_is_given_away_before_one_that_runs_a_tool() -> None:
    table = SlotTable(2)
    tool = answered(table, "tool", Kind.MAIN, StopReason.TOOL_USE)
    human = answered(table, "human", Kind.MAIN, StopReason.END_TURN)
    assert use(table, "new") == human != tool


def test_the_gap_of_a_conversation_is_learnt_from_its_tool_calls() -> None:
    now = [0.0]
    table = SlotTable(2, clock=lambda: now[0])
    slow = answered(table, "slow", Kind.MAIN, StopReason.TOOL_USE)
    quick = answered(table, "quick", Kind.MAIN, StopReason.TOOL_USE)
    for name, gap_s in (("slow", 300.0), ("quick", 1.0)):
        now[0] += gap_s
        answered(table, name, Kind.MAIN, StopReason.TOOL_USE)
    assert quick != slow
    assert use(table, "new") == slow


def test_the_longest_unused_conversation_loses_its_slot() -> None:
    table = SlotTable(3)
    first = {name: use(table, name) for name in "abc"}
    use(table, "a")
    assert use(table, "new") == first["b"]


def test_a_second_request_of_a_busy_conversation_gets_another_slot() -> None:
    table = SlotTable(2)
    with table.hold(want("a")) as one, table.hold(want("a")) as two:
        assert one.number != two.number


def test_with_a_copy_in_two_slots_the_fresher_one_is_used() -> None:
    table = SlotTable(2)
    with ExitStack() as outer:
        one = outer.enter_context(held(table, want("a")))
        use(table, "a")
    assert use(table, "a") == one.number


def test_a_slot_is_given_back_when_its_request_fails() -> None:
    table = SlotTable(1)
    with pytest.raises(KeyError), table.hold(want("a")):
        raise KeyError
    assert [info.busy for info in table.snapshot()] == [False]


def test_one_who_finds_no_slot_is_told_so_and_not_left_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "HOLD_LIMIT_S", 0)
    table = SlotTable(1)
    with table.hold(want("a")), pytest.raises(EngineLost, match="slot"), table.hold(want("b")):
        pass


def test_one_who_waits_gets_the_slot_that_is_given_back() -> None:
    table = SlotTable(1)
    got: list[int] = []
    with table.hold(want("a")):
        waiter = threading.Thread(target=lambda: got.append(use(table, "b")))
        waiter.start()
    waiter.join()
    assert got == [0]


def test_threads_never_hold_one_slot_together() -> None:
    table = SlotTable(4)
    holders = [0] * 4
    seen: list[int] = []

    def run(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(200):
            with table.hold(want(f"c{dice.randrange(6)}")) as slot:
                holders[slot.number] += 1
                seen.append(holders[slot.number])
                holders[slot.number] -= 1

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1600
    assert set(seen) == {1}
    assert not any(info.busy for info in table.snapshot())


@given(st.lists(st.sampled_from("abcdefg"), max_size=40), st.integers(1, 5))
def test_one_after_the_other_the_table_keeps_the_last_used_conversations(order: list[str], count: int) -> None:
    table = SlotTable(count)
    for conversation in order:
        use(table, conversation)
    latest = list(dict.fromkeys(reversed(order)))[:count]
    kept = {info.conversation for info in table.snapshot()} - {None}
    assert kept == set(latest)
