"""A folder that turns against the store: read-only, without locks, written by a worker that was slower."""

import errno
import fcntl
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from infra.config import Settings
from infra.errors import StoreError
from tests.doubles.store_process import save, write
from tests.unit.workers.house import House, answer, talk
from workers import store_probe
from workers.store import Store, conversation_name

pytestmark = pytest.mark.unit

SPACE = "model-b1-f16-f16-4096-0"
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
