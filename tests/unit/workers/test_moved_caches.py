"""What is known of a conversation in several places: the newest and the best of it counts."""

from pathlib import Path

import pytest

from infra.errors import EngineTimeout
from scheduler.contract import Kind, Source
from tests.doubles.slot_engine import asked
from tests.unit.workers.house import BASE, House, crowd_out, talk
from workers.slots import Want
from workers.store import conversation_name

pytestmark = pytest.mark.unit


def test_one_that_grew_elsewhere_goes_on_from_its_file_and_not_from_its_old_slot(tmp_path: Path) -> None:
    here, elsewhere = House(tmp_path / "kv"), House(tmp_path / "kv")
    here.turn("a", *talk("a", 1))
    here.save("a")
    here.described(conversation_name("a"))
    for turns in range(2, 12):
        elsewhere.turn("a", *talk("a", turns))
    elsewhere.save("a")
    saved = elsewhere.described(conversation_name("a"))
    brought, cached = here.turn("a", *talk("a", 12))
    assert brought.source is Source.SAVED
    assert cached >= 0.95 * saved.tokens


def test_one_that_only_went_on_here_needs_no_file(tmp_path: Path) -> None:
    here = House(tmp_path / "kv")
    sources = {here.turn("a", *talk("a", turns))[0].source for turns in range(2, 12)}
    assert sources <= {Source.OWN, Source.NOTHING}
    assert not here.caches.info().restores


def test_after_a_compaction_elsewhere_the_longer_old_cache_does_not_take_the_place_of_the_short_new_one(
    tmp_path: Path,
) -> None:
    old, new = House(tmp_path / "kv"), House(tmp_path / "kv")
    old.turn("a", *talk("a", 8))
    new.now_s = old.now_s + 10
    new.turn("a", "A summary of it all. " * 60)
    new.save("a")
    entry = new.described(conversation_name("a"))
    old.now_s = new.now_s + 300
    assert old.save("a")
    assert new.described(conversation_name("a")).file == entry.file


def test_when_its_own_file_cannot_be_used_its_base_can(tmp_path: Path) -> None:
    house = House(tmp_path / "kv")
    house.turn("b", *talk("b", 1))
    with house.table.keep(lambda idle: next(slot for slot in idle if slot.owner == "b")) as slot:
        assert slot is not None
        assert house.caches.save_base(slot, Want("b", "agent", Kind.MAIN, asked(BASE, *talk("b", 1))))
    house.turn("a", *talk("a", 4))
    house.save("a")
    own = house.described(conversation_name("a"))
    (house.engine.folder / own.file).write_bytes(b"cut")
    crowd_out(house)
    brought, cached = house.turn("a", *talk("a", 5))
    assert brought.source is Source.BASE
    assert cached > 0


def test_one_that_the_store_can_never_hold_is_not_tried_and_others_are(tmp_path: Path) -> None:
    house = House(tmp_path / "kv", limit_bytes=3_000_000)
    house.turn("large", *talk("large", 30))
    house.turn("small", *talk("small", 2))
    assert not house.caches.worth_saving(house.slot_of("large"), 0)
    assert house.caches.worth_saving(house.slot_of("small"), 0)
    crowd_out(house)
    assert not house.failures


def test_a_prefill_that_is_cut_off_counts_as_what_was_there_before_it(tmp_path: Path) -> None:
    house = House(tmp_path / "kv")
    house.turn("a", *talk("a", 8))
    house.save("a")
    saved = house.described(conversation_name("a"))
    crowd_out(house)
    files, house.caches.saved = house.caches.saved, None  # so that it is not restored now
    house.turn("a", *talk("a", 9), share=0.05)
    house.caches.saved = files
    brought, cached = house.turn("a", *talk("a", 9))
    assert brought.source is Source.SAVED
    assert cached >= 0.95 * saved.tokens


def test_a_restore_that_took_too_long_leaves_the_file_for_others(tmp_path: Path) -> None:
    house = House(tmp_path / "kv")
    house.turn("a", *talk("a", 4))
    house.save("a")
    saved = house.described(conversation_name("a"))
    crowd_out(house)
    with house.engine.failing("restore", EngineTimeout("slow")):
        house.turn("a", *talk("a", 5))
    assert house.store.find(saved.what) == saved
