"""The slot table: one holder each, sticky, the least valuable given away first, the longest idle of equals."""

import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import EngineLost, Refused
from scheduler.contract import Gone, Kind, StopReason
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


# --- copies ---------------------------------------------------------------------------------------------------------


def asked(*messages: str) -> Chain:
    return Chain("s", "t", messages, tuple(range(10, 11 + len(messages))))


def test_of_two_copies_the_one_that_holds_more_of_the_prompt_is_used() -> None:
    """Two parallel requests of one conversation: which of them it goes on from shows in the next prompt only."""
    table = SlotTable(2)
    went_on, aside = asked("question", "answer", "more"), asked("question", "title please")
    with table.hold(Want("a", "agent", Kind.MAIN, went_on)) as one:
        one.held = Held("a", "agent", Kind.MAIN, went_on, 1300, 1300)
        with table.hold(Want("a", "agent", Kind.MAIN, aside)) as two:
            two.held = Held("a", "agent", Kind.MAIN, aside, 1200, 1200)
        two.held.ended_s = table.clock() + 1000  # the side line is the fresher one
    with table.hold(
        Want("a", "agent", Kind.MAIN, asked("question", "answer", "more", "answer", "even more"))
    ) as next_one:
        assert next_one is one


def test_a_copy_is_told_from_a_slot_that_was_lost() -> None:
    table = SlotTable(2)
    with table.hold(want("a")) as one, table.hold(want("a")) as two:
        assert (one.gone, two.gone) == (Gone.NEW, Gone.COPY)
    with table.hold(want("a")) as again:
        assert again.gone is Gone.HERE


def test_one_that_is_only_being_saved_is_waited_for_and_not_copied() -> None:
    table = SlotTable(2)
    number = use(table, "a")
    got: list[int] = []
    with table.keep(lambda idle: next(slot for slot in idle if slot.owner == "a")) as kept:
        assert kept is not None
        waiter = threading.Thread(target=lambda: got.append(use(table, "a")))
        waiter.start()
        waiter.join(0.05)
        assert got == []
    waiter.join(10)
    assert got == [number]


def test_a_second_request_waits_for_the_first_when_a_copy_costs_more() -> None:
    table = SlotTable(2)
    got: list[int] = []

    def second() -> None:
        with table.hold(want("a"), lambda: 60.0) as slot:
            got.append(slot.number)

    with table.hold(want("a")) as first:
        waiter = threading.Thread(target=second)
        waiter.start()
        waiter.join(0.05)
        assert got == []
    waiter.join(10)
    assert got == [first.number]


# --- what is told of a slot -----------------------------------------------------------------------------------------


def test_a_slot_that_waits_for_its_new_holder_s_cache_is_not_told_to_hold_it() -> None:
    table = SlotTable(1)
    answered(table, "old", Kind.SUBAGENT, StopReason.END_TURN, 5000)
    with table.hold(Want("new", "other agent", Kind.MAIN, NOTHING)):
        (told,) = table.snapshot()
    assert (told.conversation, told.tokens, told.agent, told.kind) == ("new", 0, None, None)


def test_why_a_conversation_s_cache_is_gone_is_remembered_for_the_last_ones_only() -> None:
    table = SlotTable(4)
    for number in range(10_000):
        use(table, f"c{number}")
    assert len(table._lost) == slots.REMEMBERED
    assert len(table.slots) == 4
    for name, gone in (("c0", Gone.NEW), ("c9000", Gone.EVICTED)):
        with table.hold(want(name)) as slot:
            assert slot.gone is gone


def test_a_slot_freed_for_idleness_says_so_to_whom_it_belonged() -> None:
    table = SlotTable(1)
    use(table, "a")
    with table.keep(lambda idle: idle[0]) as slot:
        assert slot is not None
        table.free(slot)
    with table.hold(want("a")) as again:
        assert again.gone is Gone.IDLE


# --- everything at random -------------------------------------------------------------------------------------------

KINDS = [Kind.MAIN, Kind.MAIN, Kind.SUBAGENT, Kind.SIDE, Kind.SIDE, Kind.WARM]


@dataclass
class Party:
    """Somebody who has a slot: a request of `conversation`, or the keeper."""

    manager: AbstractContextManager[Slot | None]
    slot: Slot
    conversation: str | None
    owner: str | None = field(init=False)

    def __post_init__(self) -> None:
        self.owner = self.slot.owner


class Simulation:
    """One thread that plays all requests and the keeper, and checks the table after each step."""

    def __init__(self, seed: int, count: int, scratch: int, conversations: int) -> None:
        self.dice = random.Random(seed)
        self.now_s = 0.0
        self.table = SlotTable(count, scratch, clock=lambda: self.now_s)
        self.names = [f"c{number}" for number in range(conversations)]
        self.parties: list[Party] = []
        self.done = dict.fromkeys(["taken", "copied", "refused", "full", "saved", "freed", "failed"], 0)

    def step(self) -> None:
        self.now_s += self.dice.expovariate(1.0)
        act = self.dice.choices([self.arrive, self.end, self.keep], [5, 5, 1])[0]
        act()
        self.check()

    def arrive(self) -> None:
        kind = self.dice.choice(KINDS)
        name = self.dice.choice(self.names) if kind is not Kind.SIDE else f"side{self.dice.random()}"
        own = [slot for slot in self.table.slots if slot.owner == name]
        if any(slot.kept for slot in own):
            return  # it would wait, and there is nobody here to end the wait
        idle = [slot.number for slot in self.table.slots if not slot.busy]
        manager = self.table.hold(Want(name, "agent", kind, asked(name)))
        try:
            slot = manager.__enter__()
        except Refused:
            assert kind is Kind.WARM
            self.done["refused"] += 1
            return
        except EngineLost:
            assert idle == []
            self.done["full"] += 1
            return
        assert slot.number in idle, "a slot that somebody had was given away"
        if any(one.number in idle for one in own):
            assert slot in own, "its own slot was free, and it got another"
        if kind is not Kind.WARM:
            assert slot.owner == name
            assert (slot.gone is Gone.COPY) == (bool(own) and slot not in own), "two slots, and not as a copy"
            self.done["copied"] += slot.gone is Gone.COPY
        self.done["taken"] += 1
        if self.dice.random() < 0.9:
            tokens = self.dice.randrange(100, 50_000)
            slot.held = Held(name, "agent", kind, asked(name), tokens, tokens, 0, self.dice.choice(list(StopReason)))
        self.parties.append(Party(manager, slot, name))

    def end(self) -> None:
        if not self.parties:
            return
        party = self.parties.pop(self.dice.randrange(len(self.parties)))
        if party.conversation is not None and self.dice.random() < 0.2:
            self.done["failed"] += 1
            error = EngineLost("it died")
            assert not party.manager.__exit__(EngineLost, error, None)
        else:
            party.manager.__exit__(None, None, None)
        assert not party.slot.busy

    def keep(self) -> None:
        manager = self.table.keep(lambda idle: self.dice.choice(idle) if idle else None)
        slot = manager.__enter__()
        if slot is None:
            manager.__exit__(None, None, None)
            return
        if self.dice.random() < 0.5:
            self.table.free(slot)
            self.done["freed"] += 1
        self.done["saved"] += 1
        self.parties.append(Party(manager, slot, None))

    def check(self) -> None:
        had = [party.slot.number for party in self.parties]
        assert len(had) == len(set(had)), "two have one slot"
        assert {slot.number for slot in self.table.slots if slot.busy} == set(had)
        assert {slot.number for slot in self.table.slots if slot.kept} == {
            party.slot.number for party in self.parties if party.conversation is None
        }
        assert all(party.slot.owner == party.owner for party in self.parties), "evicted while it was running"
        assert len(self.table._lost) <= slots.REMEMBERED


@pytest.mark.parametrize(
    ("seed", "count", "scratch", "conversations"), [(1, 4, 0, 6), (2, 8, 1, 40), (3, 3, 2, 10_000), (4, 1, 0, 3)]
)
def test_two_hundred_thousand_random_steps_never_break_the_table(
    seed: int, count: int, scratch: int, conversations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "HOLD_LIMIT_S", 0.0)
    monkeypatch.setattr(slots, "KEPT_LIMIT_S", 0.0)
    play = Simulation(seed, count, scratch, conversations)
    for _ in range(50_000):
        play.step()
    while play.parties:
        play.end()
    assert not any(info.busy for info in play.table.snapshot())
    rare = {"copied"} if conversations == 10_000 or count == 1 else set()
    assert all(play.done[what] for what in play.done if what not in rare), play.done


class Crowd:
    """Threads that ask and keep; what is wrong with a slot while one has it is noted in `faults`."""

    def __init__(self) -> None:
        self.table = SlotTable(4)
        self.had_by = [0] * 4
        self.faults: list[str] = []
        self.over = threading.Event()

    def have(self, slot: Slot, owner: str | None) -> None:
        self.had_by[slot.number] += 1
        if self.had_by[slot.number] != 1 or slot.owner != owner:
            self.faults.append(f"{slot} is had by {self.had_by[slot.number]}, not {owner} alone")
        self.had_by[slot.number] -= 1

    def ask(self, seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(300):
            name = f"c{dice.randrange(8)}"
            with suppress(KeyError), self.table.hold(want(name), lambda: 0.001) as slot:
                self.have(slot, name)
                slot.held = Held(name, "agent", Kind.MAIN, NOTHING, 1000)
                if dice.random() < 0.2:
                    raise KeyError

    def keep(self) -> None:
        dice = random.Random(0)
        while not self.over.is_set():
            with self.table.keep(lambda idle: dice.choice(idle) if idle else None) as slot:
                if slot is not None:
                    self.have(slot, slot.owner)
                    if dice.random() < 0.3:
                        self.table.free(slot)
            self.table.wait(0.001)


def test_requests_and_the_keeper_in_threads_never_share_a_slot_nor_lose_one() -> None:
    crowd = Crowd()
    requests = [threading.Thread(target=crowd.ask, args=(seed,)) for seed in range(6)]
    keeper = threading.Thread(target=crowd.keep)
    for thread in (*requests, keeper):
        thread.start()
    for thread in requests:
        thread.join(60)
    crowd.over.set()
    keeper.join(10)
    assert crowd.faults == []
    assert not any(thread.is_alive() for thread in (*requests, keeper))
    assert not any(slot.busy or slot.kept for slot in crowd.table.slots)
