"""Scratch slots: side calls run there, and no living conversation gives way to one."""

import threading

import pytest

from scheduler.contract import Kind, StopReason
from scheduler.policy.chain import Chain
from workers.slots import Held, SlotTable, Want

pytestmark = pytest.mark.unit
PROMPT = Chain("s", "t", (), (100,))


def run(table: SlotTable, conversation: str, kind: Kind, reason: StopReason = StopReason.TOOL_USE) -> int:
    """One answer, after which the slot holds 10,000 tokens of it."""
    with table.hold(Want(conversation, "agent", kind, PROMPT)) as slot:
        slot.held = Held(conversation, "agent", kind, PROMPT, 10_000, 10_000, stop_reason=reason)
        return slot.number


def owners(table: SlotTable) -> set[str | None]:
    return {info.conversation for info in table.snapshot()}


def test_side_calls_go_to_the_scratch_slot_however_many_come() -> None:
    table = SlotTable(4, scratch=1)
    for name in ("a", "b", "c"):
        assert run(table, name, Kind.MAIN) != 3
    assert {run(table, f"title-{number}", Kind.SIDE) for number in range(30)} == {3}
    assert {"a", "b", "c"} < owners(table)


def test_a_fourth_conversation_takes_another_ones_place_and_not_the_scratch_slot() -> None:
    table = SlotTable(4, scratch=1)
    for name in ("a", "b", "c", "d"):
        assert run(table, name, Kind.MAIN) != 3


def test_a_conversation_uses_the_scratch_slot_rather_than_wait() -> None:
    table = SlotTable(2, scratch=1)
    with table.hold(Want("a", "agent", Kind.MAIN, PROMPT)):
        assert run(table, "b", Kind.MAIN) == 1


def test_a_side_call_waits_for_the_one_before_it_rather_than_cost_a_conversation() -> None:
    table = SlotTable(2, scratch=1)
    run(table, "a", Kind.MAIN)
    got: list[int] = []
    with table.hold(Want("title", "agent", Kind.SIDE, PROMPT)) as slot:
        waiter = threading.Thread(target=lambda: got.append(run(table, "summary", Kind.SIDE)))
        waiter.start()
        waiter.join(0.05)
        assert not got
    waiter.join()
    assert got == [slot.number] == [1]
    assert "a" in owners(table)


def test_without_a_scratch_slot_thirty_titles_at_once_displace_one_conversation() -> None:
    table = SlotTable(4)
    for name in ("a", "b", "c", "d"):
        run(table, name, Kind.MAIN)
    first_may_end = threading.Event()

    def title(number: int) -> None:
        with table.hold(Want(f"title-{number}", "agent", Kind.SIDE, PROMPT), lambda: 60.0) as slot:
            slot.held = Held(f"title-{number}", "agent", Kind.SIDE, PROMPT, 100, 100, stop_reason=StopReason.END_TURN)
            if number == 0:
                assert first_may_end.wait(10)

    threads = [threading.Thread(target=title, args=(number,)) for number in range(30)]
    threads[0].start()
    while not any(info.busy for info in table.snapshot()):
        threads[0].join(0.01)
    for thread in threads[1:]:
        thread.start()
    first_may_end.set()
    for thread in threads:
        thread.join()
    assert len({"a", "b", "c", "d"} & owners(table)) == 3


def test_a_side_call_whose_patience_ends_takes_a_slot() -> None:
    table = SlotTable(2)
    run(table, "a", Kind.MAIN)
    run(table, "b", Kind.MAIN)
    with table.hold(Want("title", "agent", Kind.SIDE, PROMPT)) as slot:
        assert run(table, "summary", Kind.SIDE) != slot.number


def test_while_the_price_of_a_copy_is_found_others_may_look_at_the_table() -> None:
    """It may be read from a folder that hangs; the heartbeat looks each second."""
    table = SlotTable(2)
    seen: list[int] = []

    def patience_s() -> float:
        looker = threading.Thread(target=lambda: seen.append(len(table.snapshot())), daemon=True)
        looker.start()
        looker.join(10)
        return 0.0

    with (
        table.hold(Want("a", "agent", Kind.MAIN, PROMPT)),
        table.hold(Want("a", "agent", Kind.MAIN, PROMPT), patience_s),
    ):
        assert seen == [2]
