"""A folder that turns against the store: read-only, without locks, written by a worker that was slower."""

import errno
import fcntl
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.config import Settings
from infra.errors import StoreError
from scheduler.contract import Kind, Source
from tests.doubles.slot_engine import asked
from tests.doubles.store_process import save, write
from tests.unit.workers.house import BASE, REFUSED, House, answer, talk
from workers import slots, store_probe
from workers.caches import Brought
from workers.keeper import save_all
from workers.llama.client import MOVE_TIMEOUT_S
from workers.slots import Want
from workers.store import Store, conversation_name

pytestmark = pytest.mark.unit

SPACE = "model-b1-f16-f16-4096-0"
WAIT_S = 20
JUMP_S, DAY_S = 3600.0, 86_400.0
ABC = conversation_name("abc")


def opened(folder: Path) -> Store:
    return Store(folder, SPACE, 10**9, 1e6)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def become_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system does after a fault of its disk: there, removing what is not there fails too."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)


def test_a_folder_that_became_read_only_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = talk("abc", 4)
    one = House(tmp_path / "kv")
    one.turn("abc", *texts)
    one.save("abc")
    one.described(ABC)
    other = House(tmp_path / "kv")
    become_read_only(monkeypatch)
    brought, _ = other.turn("abc", *texts, answer(*texts), "go on")
    assert brought.restored_tokens
    assert other.failures == 1


def test_whoever_waits_for_a_file_is_not_kept_waiting_by_a_description_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path / "kv")
    house.turn("abc", *talk("abc", 4))
    house.caches.promise_all()
    house.save("abc")
    saved = house.caches.saved
    assert saved is not None
    assert saved.promised == {ABC}
    become_read_only(monkeypatch)
    saved.describe()
    assert not saved.promised


@pytest.mark.usefixtures("no_locks")
def test_a_folder_without_locks_is_not_used(tmp_path: Path) -> None:
    settings = Settings(store_dir=str(tmp_path / "kv"))
    assert store_probe.prepare(settings) == f"{tmp_path / 'kv'} cannot be used: No locks available"


@pytest.mark.usefixtures("no_locks")
def test_a_lock_that_cannot_be_had_is_no_other_worker_that_holds_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(StoreError, match="No locks available"):
        store.sweep()
    with pytest.raises(StoreError, match="No locks available"), store.making("b-1", 1e6, threading.Event()):
        pass


def test_a_file_that_was_written_earlier_and_described_later_does_not_take_the_newer_ones_place(tmp_path: Path) -> None:
    slow, quick = opened(tmp_path), opened(tmp_path)
    older = replace(write(slow, tmp_path, ABC, b"old" * 100, 1000), written_s=1.0)
    slow.written(older)
    newer = replace(write(quick, tmp_path, ABC, b"new" * 200, 2000), written_s=2.0)
    quick.written(newer)
    quick.describe(newer)
    slow.describe(older)
    found = opened(tmp_path).find(ABC)
    assert found is not None
    assert found.file == newer.file
    assert not (tmp_path / older.file).exists()
    assert slow.find(ABC) == found


def test_a_file_that_was_written_later_takes_the_older_ones_place(tmp_path: Path) -> None:
    store = opened(tmp_path)
    save(store, tmp_path, ABC, b"old" * 100, 1000)
    newer = save(store, tmp_path, ABC, b"new" * 200, 2000)
    found = opened(tmp_path).find(ABC)
    assert found is not None
    assert found.file == newer.file


def test_what_was_written_before_the_clock_was_set_back_does_not_keep_its_place_for_an_hour(tmp_path: Path) -> None:
    store = opened(tmp_path)
    before = write(store, tmp_path, ABC, b"old" * 100, 1000)
    store.written(ahead := replace(before, written_s=time.time() + JUMP_S))
    store.describe(ahead)
    store.written(after := replace(write(store, tmp_path, ABC, b"new" * 200, 2000), written_s=time.time()))
    store.describe(after)
    found = store.find(ABC)
    assert found is not None
    assert (found.file, found.written_s) == (after.file, after.written_s)
    assert not (tmp_path / ahead.file).exists()


@pytest.mark.parametrize("jump_s", [-JUMP_S, JUMP_S], ids=["back", "on"])
def test_a_clock_that_is_set_by_an_hour_costs_no_saved_cache(tmp_path: Path, jump_s: float) -> None:
    """Neither described nor yet to be; and what is too old by then goes at the next sweep, not all of it."""
    store = Store(tmp_path, SPACE, 10**9, DAY_S, lambda: time.time() + jump_s)
    kept = save(store, tmp_path, ABC)
    fresh = write(store, tmp_path, conversation_name("fresh"))
    store.sweep()
    store.check(kept)
    store.describe(fresh)
    assert store.used_bytes == kept.size_bytes + fresh.size_bytes


def test_a_checkpoint_is_made_though_one_seems_to_be_from_later(tmp_path: Path) -> None:
    house = House(tmp_path / "kv")
    house.turn("abc", *talk("abc", 4))
    assert house.save("abc")
    entry, saved = house.described(ABC), house.caches.saved
    assert saved is not None
    assert saved.written_since(entry, rests_s=10)
    for jump_s in (-JUMP_S, JUMP_S):
        house.now_s += jump_s
        assert not saved.written_since(entry, rests_s=10)
        house.now_s -= jump_s


def test_a_disk_on_which_no_room_can_be_made_costs_no_saved_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    save(store, tmp_path, ABC)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(StoreError, match="too little room"):
        store.new_file(conversation_name("def"), 10**6)
    assert store.find(ABC) is not None


def test_the_next_in_line_makes_no_base_that_cannot_be_saved(tmp_path: Path) -> None:
    house = House(tmp_path / "kv", count=3)
    want = Want("aa", "agent", Kind.MAIN, asked(BASE, "hi"))
    with house.table.hold(want) as slot:
        brought = house.caches.bring(slot, want, threading.Event())
        assert house.caches.lacks_base(brought, want)
        house.turn("bb", "hello")
        with house.engine.failing("save", REFUSED):
            assert not house.save("bb")
        with house.caches.making_base(slot, want, threading.Event()) as ready:
            assert ready == Brought(Source.NOTHING)


def test_what_a_fork_was_to_save_and_did_not_is_saved_when_the_worker_leaves(tmp_path: Path) -> None:
    house = House(tmp_path / "kv", count=3)
    texts = talk("abc", 6)
    want = Want("abc", "agent", Kind.MAIN, asked(BASE, *texts))
    with ExitStack() as first:
        slot = first.enter_context(house.table.hold(want))
        house.caches.bring(slot, want, threading.Event())
        prompt = house.engine.prefill(slot.number, want.chain)
        house.caches.prompt(slot, want, prompt)
        with house.table.hold(want) as fork:
            assert fork is not slot
            house.caches.ended(slot, house.engine.answer(slot.number, prompt, asked(BASE, *texts, answer(*texts))))
            first.close()
            with house.table.keep(lambda idle: slot if slot in idle else None) as kept:
                assert kept is slot
                assert house.caches.save(slot)
                assert house.store.find(ABC) is None  # it is the fork's to save, whose client hangs up now
    save_all(house.caches, 10)
    assert house.store.find(ABC) is not None


def test_a_request_waits_for_a_save_however_long_an_engine_may_take_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slots.KEPT_LIMIT_S > MOVE_TIMEOUT_S
    monkeypatch.setattr(slots, "HOLD_LIMIT_S", 0.0)
    table = slots.SlotTable(1)
    want = Want("abc", "agent", Kind.MAIN, asked(BASE, "hi"))
    held = threading.Event()

    def ask() -> None:
        with table.hold(want):
            held.set()

    waits = threading.Event()
    wait_for = table._changed.wait_for

    def told(predicate: Callable[[], bool], timeout: float) -> bool:
        if not predicate():
            waits.set()
        return wait_for(predicate, timeout)

    monkeypatch.setattr(table._changed, "wait_for", told)
    with table.keep(lambda idle: idle[0]):
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        assert waits.wait(WAIT_S)
    assert held.wait(WAIT_S)
    asking.join()


@pytest.mark.parametrize(
    "flags", ["--lora {}", "--lora={}", "--lora-scaled {}:0.5", f"--x {'y' * 5000} --lora no,{{}}"]
)
def test_another_adapter_under_the_same_name_has_a_space_of_its_own(tmp_path: Path, flags: str) -> None:
    adapter = tmp_path / "adapter.gguf"
    settings = Settings(engine_args=flags.format(adapter))
    spaces = set()
    for content in (b"one", b"two", b"two"):
        adapter.write_bytes(content)
        spaces.add(store_probe.space(settings, "hash", "b1", 4096))
    assert len(spaces) == 2
