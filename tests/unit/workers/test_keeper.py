"""The keeper: what would be lost is saved in the gaps, idle slots are freed, and nobody is disturbed by it."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import structlog

from infra.errors import EngineLost
from scheduler.contract import Kind, StopReason
from tests.doubles.slot_engine import BYTES_PER_TOKEN
from tests.unit.workers.house import BASE, REFUSED, House, talk
from workers import keeper
from workers import saved as saved_caches
from workers.caches import Caches
from workers.keeper import keep_forever, leave, save_all, tidy
from workers.meter import WriteBudget
from workers.serving import Serving
from workers.store import conversation_name

pytestmark = pytest.mark.unit
IDLE_S = 300.0
WAIT_S = 20


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "kv", count=3)


def saved(house: House) -> set[str]:
    """The conversations that the store has, described."""
    return {path.stem.rpartition(".c-")[2] for path in house.engine.folder.glob("*.c-*.json")}


def owners(house: House) -> set[str | None]:
    return {info.conversation for info in house.table.snapshot()}


def budget(house: House, size_bytes: float) -> WriteBudget:
    """A budget with so much left that never grows."""
    house.caches.budget = WriteBudget(size_bytes / 600, clock=lambda: 0.0)
    return house.caches.budget


# --- idle slots -----------------------------------------------------------------------------------------------------


def test_a_slot_that_was_idle_for_long_is_freed_after_saving(house: House) -> None:
    budget(house, 0)
    house.turn("aa", *talk("a", 2))
    house.now_s += IDLE_S - 2
    tidy(house.caches, IDLE_S)
    assert (owners(house), saved(house)) == ({"aa", None}, set())
    house.now_s += 2
    tidy(house.caches, IDLE_S)
    assert (owners(house), saved(house)) == ({None}, {"aa"})


def test_a_freed_slot_still_serves_the_one_whose_it_was(house: House) -> None:
    house.turn("aa", *talk("a", 2))
    house.now_s += IDLE_S
    tidy(house.caches, IDLE_S)
    house.turn("aa", *talk("a", 3))
    assert house.engine.restores == 0


def test_a_title_is_freed_and_not_saved(house: House) -> None:
    house.turn("aa", *talk("a", 1), kind=Kind.SIDE, reason=StopReason.END_TURN)
    house.now_s += IDLE_S
    tidy(house.caches, IDLE_S)
    assert (owners(house), saved(house)) == ({None}, set())


def test_a_slot_that_cannot_be_saved_is_freed_all_the_same(house: House) -> None:
    house.turn("aa", *talk("a", 2))
    house.now_s += IDLE_S
    with house.engine.failing("save", REFUSED):
        tidy(house.caches, IDLE_S)
    assert owners(house) == {None}


def test_one_that_is_answering_is_never_freed_nor_saved(house: House) -> None:
    house.turn("aa", *talk("a", 2))
    house.now_s += IDLE_S
    with house.table.keep(lambda idle: next(slot for slot in idle if slot.owner == "aa")):
        tidy(house.caches, IDLE_S)
    assert (owners(house), house.engine.saves) == ({"aa", None}, 0)


def test_what_others_removed_from_the_store_is_saved_again_before_its_slot_is_freed(house: House) -> None:
    house.turn("aa", *talk("a", 2))
    house.save("aa")
    house.store.discard(house.described(conversation_name("aa")))
    budget(house, 0)
    house.now_s += IDLE_S
    tidy(house.caches, IDLE_S)
    assert saved(house) == {"aa"}


# --- what would be lost next, and what has doubled ------------------------------------------------------------------


def test_the_next_victim_is_saved_once_every_slot_has_an_owner(house: House) -> None:
    house.turn("aa", *talk("a", 2))
    house.save("aa")
    house.described(conversation_name("aa"))
    house.turn("aa", *talk("a", 3), reason=StopReason.END_TURN)  # a good deal more, and not doubled
    house.turn("bb", *talk("b", 20))
    tidy(house.caches, IDLE_S)
    before = house.described(conversation_name("aa")).tokens
    house.turn("cc", *talk("c", 20))
    tidy(house.caches, IDLE_S)
    assert house.described(conversation_name("aa")).tokens > before


def test_a_conversation_is_saved_each_time_that_it_has_doubled(house: House) -> None:
    written = []
    for turns in range(1, 30):
        before = house.engine.saves
        house.turn("aa", *talk("a", turns), base="Short.")
        house.now_s += 5
        tidy(house.caches, IDLE_S)
        written += [len(house.engine.held[house.slot_of("aa").number])] * (house.engine.saves - before)
    held = house.slot_of("aa").held
    assert held is not None
    assert 3 <= len(written) <= 8
    assert sum(written) <= 2 * held.tokens
    assert held.saved_tokens > held.tokens / 2


def test_checkpoints_keep_to_the_budget(house: House) -> None:
    house.turn("aa", *talk("a", 4))
    house.now_s += 5
    held = house.slot_of("aa").held
    assert held is not None
    budget(house, held.tokens * BYTES_PER_TOKEN * 0.9)
    tidy(house.caches, IDLE_S)
    assert house.engine.saves == 0
    left = budget(house, held.tokens * BYTES_PER_TOKEN * 1.5)
    tidy(house.caches, IDLE_S)
    assert house.engine.saves == 1
    assert not left.allows(held.tokens * BYTES_PER_TOKEN)


def test_saves_that_fail_or_are_not_tried_cost_nothing_of_the_budget(house: House) -> None:
    house.turn("aa", *talk("a", 4))
    house.now_s += 5
    held = house.slot_of("aa").held
    assert held is not None
    left = budget(house, held.tokens * BYTES_PER_TOKEN * 1.5)
    with house.engine.failing("save", REFUSED):
        for _ in range(10):
            tidy(house.caches, IDLE_S)
    assert house.failures == 1
    assert left.allows(held.tokens * BYTES_PER_TOKEN)


def test_without_a_store_slots_are_freed_and_that_is_all(house: House) -> None:
    house.caches = Caches(house.table, house.engine.client, None, house.meter, WriteBudget(1e12), "off")
    for name in ("aa", "bb", "cc"):
        house.turn(name, *talk(name, 8))
    house.now_s += IDLE_S
    tidy(house.caches, IDLE_S)
    assert owners(house) == {None}
    save_all(house.caches, 10)
    leave(house.caches)
    assert house.engine.saves == 0


# --- the end of a worker --------------------------------------------------------------------------------------------


def test_at_the_end_everything_that_may_come_back_is_saved_and_can_be_found(house: House) -> None:
    house.turn("aa", *talk("a", 2))
    house.turn("bb", *talk("b", 8))
    house.turn("cc", *talk("c", 2), kind=Kind.SIDE)
    save_all(house.caches, 10)
    assert saved(house) == {"aa", "bb"}


def test_at_the_end_the_most_valuable_is_saved_first_and_each_can_be_found_as_soon_as_it_is_saved(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(keeper, "monotonic", lambda: clock[0])
    found: list[set[str]] = []

    def note(what: str, *_: object) -> None:
        found.append(saved(house))
        clock[0] += 6

    house.engine.fail = note
    for name, turns in (("aa", 2), ("bb", 8), ("cc", 4)):
        house.turn(name, *talk(name, turns))
    save_all(house.caches, 10)
    assert found == [set(), {"bb"}]
    assert saved(house) == {"bb", "cc"}


def test_one_save_that_fails_at_the_end_does_not_hold_up_the_end(house: House) -> None:
    for name in ("aa", "bb"):
        house.turn(name, *talk(name, 2))
    with house.engine.failing("save", EngineLost("gone")):
        save_all(house.caches, 10)
    assert saved(house) == set()


def test_what_a_leaving_worker_promised_another_waits_for_and_finds(tmp_path: Path) -> None:
    house, other = House(tmp_path / "kv"), House(tmp_path / "kv")
    house.turn("aa", *talk("a", 2))
    leave(house.caches)
    got: list[str] = []
    waiter = threading.Thread(target=lambda: got.append(other.turn("aa", *talk("a", 3))[0].source.value))
    waiter.start()
    waiter.join(0.1)
    assert got == []
    tidy(house.caches, IDLE_S)
    waiter.join(WAIT_S)
    assert got == ["saved"]


def test_a_promise_that_is_not_worth_keeping_is_given_up(tmp_path: Path) -> None:
    house, other = House(tmp_path / "kv"), House(tmp_path / "kv")
    house.turn("aa", "short", base="short")
    leave(house.caches)
    assert house.caches.saved is not None
    assert house.caches.saved.promised == {conversation_name("aa")}
    tidy(house.caches, IDLE_S)
    assert house.caches.saved.promised == set()
    other.turn("aa", "short", base=BASE)


# --- the thread -----------------------------------------------------------------------------------------------------


def test_whatever_goes_wrong_the_keeper_goes_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "TICK_S", 0.001)
    stopping, tidied = threading.Event(), threading.Semaphore(0)

    def fails(*_: object) -> None:
        tidied.release()
        raise ZeroDivisionError

    monkeypatch.setattr(keeper, "tidy", fails)
    serving = cast(Serving, SimpleNamespace(caches=house.caches))
    with structlog.testing.capture_logs() as logged:
        thread = threading.Thread(target=keep_forever, args=(serving, IDLE_S, stopping))
        thread.start()
        assert tidied.acquire(timeout=WAIT_S)
        assert tidied.acquire(timeout=WAIT_S)
        stopping.set()
        thread.join(WAIT_S)
    assert {line["error"] for line in logged} == {"ZeroDivisionError"}


def test_an_answer_s_end_wakes_the_keeper(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "TICK_S", 5 * WAIT_S)
    stopping, tidied = threading.Event(), threading.Event()
    waits = threading.Event()
    wait = house.table.wait

    def noted(timeout_s: float) -> None:
        waits.set()
        wait(timeout_s)

    monkeypatch.setattr(type(house.table), "wait", lambda _, timeout_s: noted(timeout_s))

    def tidies(*_: object) -> None:
        tidied.set()
        stopping.set()

    monkeypatch.setattr(keeper, "tidy", tidies)
    serving = cast(Serving, SimpleNamespace(caches=house.caches))
    thread = threading.Thread(target=keep_forever, args=(serving, IDLE_S, stopping))
    thread.start()
    assert waits.wait(WAIT_S)
    while not tidied.is_set():  # it may not wait yet when the first answer ends
        house.turn("aa", "hello")
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_the_keeper_and_requests_at_the_same_time_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "TICK_S", 0.001)
    monkeypatch.setattr(saved_caches, "PAUSE_S", 0.0)
    house = House(tmp_path / "kv", count=3)
    stopping = threading.Event()
    serving = cast(Serving, SimpleNamespace(caches=house.caches))
    keeping = threading.Thread(target=keep_forever, args=(serving, 3.0, stopping))
    keeping.start()
    reused: list[bool] = []

    def converse(name: str) -> None:
        for turns in range(1, 12):
            texts = talk(name, turns)
            _, cached = house.turn(name, *texts)
            reused.append(turns == 1 or cached > 0)

    talks = [threading.Thread(target=converse, args=(f"{number:x}",)) for number in range(5)]
    for thread in talks:
        thread.start()
    for thread in talks:
        thread.join(3 * WAIT_S)
    stopping.set()
    keeping.join(WAIT_S)
    assert len(reused) == 55
    assert all(reused)
    assert house.failures == 0
    assert not any(slot.busy for slot in house.table.slots)
