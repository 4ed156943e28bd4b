"""Caches between slots and store: what is said of them is so, whatever fails on the way."""

import shutil
import threading
from pathlib import Path

import pytest
import structlog

from infra.errors import Cancelled, EngineError, EngineLost, EngineTimeout
from scheduler.contract import Kind, Source, StopReason
from tests.doubles.slot_engine import asked
from tests.unit.workers.house import BASE, ERRORS, REFUSED, SPEEDS, House, answer, crowd_out, size, talk
from tests.unit.workers.test_tasks import Engine as TaskEngine
from tests.unit.workers.test_tasks import prompt as task_prompt
from tests.unit.workers.test_tasks import run as run_task
from workers import saved as saved_caches
from workers.caches import Brought, Caches
from workers.meter import WriteBudget
from workers.slots import Slot, Want
from workers.store import Entry, Store, base_name, conversation_name

pytestmark = pytest.mark.unit

WAIT_S = 20


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "kv")


# --- there and back -------------------------------------------------------------------------------------------------


def test_a_conversation_that_lost_its_slot_goes_on_from_its_file(house: House) -> None:
    house.turn("aa", *talk("a", 2))
    crowd_out(house)
    brought, cached = house.turn("aa", *talk("a", 3))
    assert brought.source is Source.SAVED
    assert brought.restored_tokens == cached == size(*talk("a", 2), answer(*talk("a", 2)))
    assert house.caches.info().restores == 1


def test_one_that_kept_its_slot_needs_no_file(house: House) -> None:
    house.turn("aa", *talk("a", 1))
    brought, cached = house.turn("aa", *talk("a", 2))
    assert brought == Brought(Source.OWN)
    assert cached == size(*talk("a", 1), answer(*talk("a", 1)))
    assert house.engine.restores == 0


def test_a_side_call_is_not_saved(house: House) -> None:
    house.turn("aa", *talk("title", 1), kind=Kind.SIDE, reason=StopReason.END_TURN)
    crowd_out(house)
    assert house.store.find(conversation_name("aa")) is None


def test_without_a_store_nothing_is_moved_and_all_is_answered(tmp_path: Path) -> None:
    house = House(tmp_path / "kv")
    house.caches = Caches(house.table, house.engine.client, None, house.meter, WriteBudget(1), "store_dir is off")
    for number in range(3):
        house.turn(f"a{number}", *talk(f"{number}", 1))
    assert (house.engine.saves, house.engine.restores) == (0, 0)
    assert house.caches.info().off == "store_dir is off"
    assert not house.caches.lacks_base(Brought(Source.NOTHING), Want("aa", "", Kind.MAIN, asked(BASE, "x")))


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_restore_that_fails_costs_a_prefill_and_the_books_are_right_again(house: House, error: EngineError) -> None:
    house.turn("aa", *talk("a", 2))
    crowd_out(house)
    with house.engine.failing("restore", error):
        brought, cached = house.turn("aa", *talk("a", 3))
    assert (brought.source, cached) == (Source.NOTHING, 0)
    assert house.failures == 1
    held = house.slot_of("aa").held
    assert held is not None
    assert (held.tokens, held.saved_tokens) == (size(*talk("a", 3), answer(*talk("a", 3))), 0)
    tokens = held.tokens
    again, cached = house.turn("aa", *talk("a", 4))
    assert (again.source, cached) == (Source.OWN, tokens)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_save_that_fails_costs_no_answer_and_leaves_no_file(house: House, error: EngineError) -> None:
    def fail(what: str, slot: int, file: str) -> EngineError | None:
        if what == "save":
            (house.engine.folder / file).write_bytes(b"half")
            return error
        return None

    house.turn("aa", *talk("a", 2))
    house.engine.fail = fail
    crowd_out(house)
    assert list(house.engine.folder.glob("*.kv")) == []
    assert house.failures == 1
    assert house.turn("aa", *talk("a", 3))[0].source is Source.NOTHING


def test_after_a_failed_save_none_is_tried_for_a_while(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(saved_caches, "monotonic", lambda: clock[0])
    house.turn("aa", *talk("a", 2))
    with house.engine.failing("save", REFUSED):
        assert not house.save("aa")
    assert not house.save("aa")
    assert (house.failures, house.engine.saves) == (1, 0)
    clock[0] += saved_caches.PAUSE_S
    assert house.save("aa")


def test_each_kind_of_trouble_is_told_once_and_each_case_is_counted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_caches, "PAUSE_S", 0.0)
    house.turn("aa", *talk("a", 2))
    with structlog.testing.capture_logs() as logged:
        for error in (REFUSED, EngineTimeout("slow"), REFUSED):
            with house.engine.failing("save", error):
                house.save("aa")
    kinds = [line["kind"] for line in logged if line["event"] == "cache_not_moved"]
    assert kinds == ["engine_refused", "engine_timeout"]
    assert house.failures == 3


def test_a_file_that_the_engine_refuses_goes_and_one_that_it_never_saw_stays(house: House) -> None:
    house.turn("aa", *talk("a", 2))
    crowd_out(house)
    with house.engine.failing("restore", EngineLost("gone")):
        house.turn("aa", *talk("a", 3), share=0.1)
    assert house.store.find(conversation_name("aa"))
    crowd_out(house, "Yet another base. " * 300)
    with house.engine.failing("restore", REFUSED):
        house.turn("aa", *talk("a", 3), share=0.1)
    assert house.store.find(conversation_name("aa")) is None


# --- what others do meanwhile ---------------------------------------------------------------------------------------


def test_an_older_copy_does_not_take_the_place_of_what_the_conversation_became(tmp_path: Path) -> None:
    old, new = House(tmp_path / "kv"), House(tmp_path / "kv")
    old.turn("aa", *talk("a", 2))
    new.turn("aa", *talk("a", 4))
    new.save("aa")
    entry = new.described(conversation_name("aa"))
    assert old.save("aa")
    assert old.engine.saves == 0
    assert new.described(conversation_name("aa")).file == entry.file


def test_of_two_copies_in_one_worker_the_one_that_went_on_is_the_one_that_is_saved(house: House) -> None:
    """Two parallel requests of one conversation, then one of the two goes on; the other has a text of its own."""
    want = Want("aa", "agent", Kind.MAIN, asked(BASE, "aside " * 2000))
    with house.table.hold(want) as aside:
        house.caches.bring(aside, want, threading.Event())
        house.turn("aa", *talk("a", 2))
        house.caches.prompt(aside, want, house.engine.prefill(aside.number, want.chain))
    house.now_s += 1
    house.turn("aa", *talk("a", 3))
    [main] = [slot for slot in house.table.slots if slot is not aside]
    with house.table.keep(lambda _: main):
        assert house.caches.save(main)
    entry = house.described(conversation_name("aa"))
    with house.table.keep(lambda _: aside):
        house.caches.save(aside)
    assert house.described(conversation_name("aa")).file == entry.file


@pytest.mark.parametrize("loss", ["removed by a sweep", "replaced by an older one"])
def test_what_was_saved_and_is_not_there_any_more_is_saved_again_before_it_is_lost(house: House, loss: str) -> None:
    house.turn("aa", *talk("a", 4))
    house.save("aa")
    entry = house.described(conversation_name("aa"))
    house.store.discard(entry)
    if loss == "replaced by an older one":
        other = House(house.engine.folder)
        other.turn("aa", *talk("a", 1))
        other.save("aa")
        other.described(conversation_name("aa"))
    crowd_out(house)
    brought, cached = house.turn("aa", *talk("a", 5))
    assert brought.source is Source.SAVED
    assert cached == size(*talk("a", 4), answer(*talk("a", 4)))


def test_a_conversation_that_goes_back_behind_what_it_held_uses_what_is_saved(house: House) -> None:
    """Its history was rewritten and the request was cancelled; then the client comes with the old one again."""
    house.turn("aa", *talk("a", 4))
    house.save("aa")
    house.turn("aa", "Summarise. " * 500, share=0.1)
    brought, cached = house.turn("aa", *talk("a", 5))
    assert brought.source is Source.SAVED
    assert cached == size(*talk("a", 4), answer(*talk("a", 4)))


def test_a_worker_does_not_wait_for_its_own_promise(house: House) -> None:
    house.turn("aa", *talk("a", 2))
    house.caches.promise_all()
    crowd_out(house)
    done = threading.Event()

    def come_back() -> None:
        house.turn("aa", *talk("a", 3))
        done.set()

    threading.Thread(target=come_back, daemon=True).start()
    assert done.wait(1.5)  # a promise of another one is waited for longer than that


# --- prices ---------------------------------------------------------------------------------------------------------


def test_a_restore_s_price_holds_the_reading_for_its_checksum(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(saved_caches, "monotonic", lambda: clock[0])
    check = Store.check

    def slow(store: Store, entry: Entry) -> None:
        clock[0] += 10.0
        check(store, entry)

    house.turn("aa", *talk("a", 3))
    house.save("aa")
    entry = house.described(conversation_name("aa"))
    crowd_out(house)
    monkeypatch.setattr(Store, "check", slow)
    brought, _ = house.turn("aa", *talk("a", 4))
    assert brought.restore_ms == 10_000
    before, seen = SPEEDS.restore_bytes_per_s, entry.size_bytes / 10
    assert house.caches.info().restore_bytes_per_s == pytest.approx(before + 0.3 * (seen - before), rel=0.01)


# --- what the books say ---------------------------------------------------------------------------------------------


def test_a_prompt_that_is_refused_for_its_length_is_in_the_books_too() -> None:
    """The engine has begun with it before we refuse it, so the slot does not hold what it held."""
    engine = TaskEngine(task_prompt(901))
    run_task(engine)
    held = engine.caches.table.slots[0].held
    assert held is not None
    assert (held.tokens, held.prompt_tokens) == (4, 901)  # what it found; nobody knows how far it went on


def test_after_a_rewritten_history_only_the_common_beginning_counts_as_saved(house: House) -> None:
    house.turn("aa", *talk("a", 4))
    house.save("aa")
    _, cached = house.turn("aa", "Something else entirely. " * 100)
    held = house.slot_of("aa").held
    assert held is not None
    assert held.saved_tokens == cached == size()


# --- bases ----------------------------------------------------------------------------------------------------------


def making(house: House, want: Want, slot: Slot, stopped: threading.Event | None = None) -> Brought | None:
    """As `bases.prepare` does, but for the prefill itself."""
    with house.caches.making_base(slot, want, stopped or threading.Event()) as ready:
        if ready is None:
            base = Want(want.conversation, want.agent, want.kind, asked(BASE, "."))
            prompt = house.engine.prefill(slot.number, base.chain)
            house.caches.prompt(slot, base, prompt)
            house.caches.save_base(slot, base)
        return ready


def first(house: House, name: str, stopped: threading.Event | None = None) -> tuple[Brought | None, Brought]:
    """A conversation's first request until its base is there: what the making gave it, and what it was brought."""
    want = Want(name, "agent", Kind.MAIN, asked(BASE, *talk(name, 1)))
    with house.table.hold(want) as slot:
        brought = house.caches.bring(slot, want, threading.Event())
        assert house.caches.lacks_base(brought, want)
        return making(house, want, slot, stopped), brought


def test_a_base_that_one_worker_makes_is_restored_by_another_as_soon_as_that_is_done(tmp_path: Path) -> None:
    one, two = House(tmp_path / "kv"), House(tmp_path / "kv")
    got: list[Brought | None] = []
    want = Want("bb", "agent", Kind.MAIN, asked(BASE, *talk("b", 1)))
    with two.table.hold(want) as slot:
        assert two.caches.lacks_base(two.caches.bring(slot, want, threading.Event()), want)
        assert first(one, "aa")[0] is None
        waiter = threading.Thread(target=lambda: got.append(making(two, want, slot)))
        waiter.start()
        waiter.join(0.1)
        assert got == []  # the file has no description yet
        one.described(base_name(want.chain.base))
        waiter.join(WAIT_S)
    assert [ready.source if ready else None for ready in got] == [Source.BASE]
    assert two.engine.saves == 0


def test_a_base_that_was_being_made_when_its_request_was_cancelled_is_made_by_the_next(tmp_path: Path) -> None:
    one, two = House(tmp_path / "kv"), House(tmp_path / "kv")
    want = Want("aa", "agent", Kind.MAIN, asked(BASE, *talk("a", 1)))

    def cancelled() -> None:
        with (
            one.table.hold(want) as slot,
            one.caches.making_base(slot, want, threading.Event()) as ready,
        ):
            assert ready is None
            raise Cancelled("gone")

    with pytest.raises(Cancelled):
        cancelled()
    assert first(two, "bb")[0] is None


def test_a_base_that_could_not_be_saved_is_made_by_the_next(tmp_path: Path) -> None:
    one, two = House(tmp_path / "kv"), House(tmp_path / "kv")
    with one.engine.failing("save", REFUSED):
        assert first(one, "aa")[0] is None
    assert first(two, "bb")[0] is None
    assert two.described(base_name(asked(BASE).base)).return_chance == 1.0


def test_who_is_cancelled_while_another_makes_the_base_goes_on_at_once(tmp_path: Path) -> None:
    one, two = House(tmp_path / "kv"), House(tmp_path / "kv")
    stopped = threading.Event()
    stopped.set()
    want = Want("aa", "agent", Kind.MAIN, asked(BASE, "x"))
    with one.table.hold(want) as slot, one.caches.making_base(slot, want, threading.Event()) as mine:
        assert mine is None
        assert first(two, "bb", stopped)[0] == Brought(Source.NOTHING)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_base_that_cannot_be_restored_costs_a_prefill_and_the_books_are_right(
    tmp_path: Path, error: EngineError
) -> None:
    one = House(tmp_path / "kv")
    first(one, "aa")
    one.described(base_name(asked(BASE).base))
    two = House(tmp_path / "kv")
    with two.engine.failing("restore", error):
        two.turn("bb", *talk("b", 1))
    held = two.slot_of("bb").held
    assert held is not None
    assert held.tokens == len(two.engine.held[two.slot_of("bb").number])


def test_a_base_is_not_a_conversation_s_own_so_that_is_saved_as_well(house: House) -> None:
    first(house, "aa")
    house.turn("aa", *talk("aa", 2))
    crowd_out(house)
    assert house.store.find(conversation_name("aa"))


def test_for_a_store_that_cannot_be_written_bases_are_not_tried(tmp_path: Path) -> None:
    house = House(tmp_path / "kv")
    shutil.rmtree(tmp_path / "kv")
    (tmp_path / "kv").touch()
    ready, _ = first(house, "aa")
    assert ready == Brought(Source.NOTHING)
    assert house.failures == 1
