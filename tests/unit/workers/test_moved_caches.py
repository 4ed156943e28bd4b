"""A conversation that comes back from another worker: its old slot is not the best that there is of it."""

from pathlib import Path

import pytest

from scheduler.contract import Source
from tests.unit.workers.house import House, talk
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
