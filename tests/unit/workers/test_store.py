"""The folder of saved caches: whole files only, this space's only, within its bounds, whoever else works in it."""

import json
import os
import shutil
import subprocess
import threading
import time
import tracemalloc
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import StoreError
from infra.store_folder import SPARE_BYTES
from scheduler.policy.chain import Chain
from tests.doubles.memory import watched
from tests.doubles.processes import base_environment, python
from tests.doubles.store_process import SWEEP
from tests.doubles.store_process import save as saved_as
from tests.doubles.store_process import write as written_as
from workers import store as stores
from workers.store import Entry, Store, base_name, conversation_name

pytestmark = pytest.mark.unit

SPACE = "model-b1-f16-f16-4096-0"
ABC = conversation_name("abc")
AGES_AGO = 10_000
WAIT_S = 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def opened(folder: Path, space: str = SPACE, limit_bytes: int = 10**9, age_s: float = 1e6) -> Store:
    return Store(folder, space, limit_bytes, age_s)


def write(store: Store, folder: Path, what: str = ABC, data: bytes = b"cache" * 100, tokens: int = 1000) -> Entry:
    return written_as(store, folder, what, data, tokens)


def save(store: Store, folder: Path, what: str = ABC, data: bytes = b"cache" * 100, tokens: int = 1000) -> Entry:
    return saved_as(store, folder, what, data, tokens)


def found(store: Store, what: str = ABC) -> Entry:
    entry = store.find(what)
    assert entry is not None
    return entry


def names(folder: Path, end: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{end}"))


def age(path: Path, seconds: float) -> None:
    then_s = time.time() - seconds
    os.utime(path, (then_s, then_s))


def description(folder: Path, what: str = ABC, space: str = SPACE) -> Path:
    return folder / f"{space}.{what}.json"


# --- whole files only ---------------------------------------------------------------------------------------------


def test_what_was_saved_is_found_as_it_was_by_this_store_and_by_another(folder: Path) -> None:
    entry = save(opened(folder), folder)
    for store in (opened(folder), opened(folder)):
        again = found(store)
        assert replace(again, checksum="") == entry
        store.check(again)


def test_a_file_that_is_not_described_yet_is_found_only_by_the_process_that_wrote_it(folder: Path) -> None:
    mine, other = opened(folder), opened(folder)
    entry = write(mine, folder)
    assert mine.find(ABC) == entry
    mine.check(entry)
    assert other.find(ABC) is None
    mine.describe(entry)
    assert found(other).checksum


def test_nothing_is_found_where_nothing_was_saved_nor_in_a_folder_that_is_not_there(folder: Path) -> None:
    assert opened(folder).find(ABC) is None
    save(opened(folder), folder)
    assert opened(folder).find(conversation_name("abd")) is None
    assert opened(folder).find(base_name("abc")) is None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


SPOIL: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, "size"),
    "empty": (empty, "size"),
    "grown": (grow, "size"),
    "flipped": (flip, "checksum"),
    "missing": (Path.unlink, "missing"),
    "a folder": (make_folder, "size"),
}


@pytest.mark.parametrize("how", SPOIL)
def test_a_file_that_was_spoilt_is_not_to_be_used_and_goes(folder: Path, how: str) -> None:
    store = opened(folder)
    entry = save(store, folder)
    spoil, kind = SPOIL[how]
    spoil(folder / entry.file)
    with pytest.raises(StoreError) as told:
        store.check(found(store))
    assert told.value.kind == kind


@given(st.integers(0, 499), st.integers(0, 7))
def test_whichever_bit_is_flipped_it_is_seen(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    folder = tmp_path_factory.mktemp("flips") / "kv"
    store = opened(folder)
    entry = save(store, folder)
    data = bytearray((folder / entry.file).read_bytes())
    data[place] ^= 1 << bit
    (folder / entry.file).write_bytes(data)
    with pytest.raises(StoreError):
        store.check(found(store))


def test_a_file_that_became_shorter_before_it_was_read_for_its_checksum_is_never_described(folder: Path) -> None:
    """A disk that fills up may be noticed by nobody: the engine says that it wrote everything."""
    store = opened(folder)
    entry = write(store, folder)
    cut(folder / entry.file)
    with pytest.raises(StoreError):
        store.describe(entry)
    assert store.find(ABC) is None
    assert names(folder, ".json") == names(folder, ".kv") == []


@pytest.mark.parametrize("trouble", ["no file", "no room for the description"])
def test_a_file_that_could_not_be_described_is_forgotten_and_goes(
    folder: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder)
    entry = write(store, folder)
    if trouble == "no file":
        (folder / entry.file).unlink()
    else:
        description(folder).mkdir()  # a rename onto it fails
    with pytest.raises(StoreError):
        store.describe(entry)
    assert store.find(ABC) is None
    assert store._fresh == {}
    assert names(folder, ".kv") == names(folder, ".tmp") == []


# --- this space's files only --------------------------------------------------------------------------------------

GARBAGE = {
    "nothing": "",
    "no JSON": "{",
    "a list": "[]",
    "a number": "7",
    "null": "null",
    "an empty object": "{}",
    "no text": b"\xff\xfe\x00",
    "deep": "[" * 100_000,
    "another's fields": json.dumps({"off": "", "speeds": None}),
}


def described(folder: Path, **changes: object) -> dict[str, object]:
    """A good description of a good file, with changes."""
    entry = save(opened(folder), folder)
    fields: dict[str, object] = json.loads(description(folder).read_text())
    assert fields["file"] == entry.file
    return fields | changes


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_description_that_is_none_is_never_used_and_stops_no_sweep(folder: Path, garbage: str | bytes) -> None:
    store = opened(folder)
    save(store, folder)
    save(store, folder, conversation_name("def"))
    description(folder).write_bytes(garbage if isinstance(garbage, bytes) else garbage.encode())
    assert store.find(ABC) is None
    store.sweep()
    assert found(store, conversation_name("def"))


@pytest.mark.parametrize(
    "changes",
    [
        {"size_bytes": "500"},
        {"size_bytes": -1},
        {"size_bytes": None},
        {"tokens": "many"},
        {"tokens": -5},
        {"prompt_tokens": 1.5},
        {"return_chance": "likely"},
        {"return_chance": float("nan")},
        {"uses": []},
        {"checksum": None},
        {"file": 7},
        {"file": "../outside.kv"},
        {"file": "/etc/hostname"},
        {"file": "other-space.c-abc.00000000.kv"},
        {"file": f"{SPACE}.c-abcdef.00000000.kv"},
        {"what": "c-def"},
        {"what": 7},
        {"chain": []},
        {"chain": {"system": 1, "tools": 2, "messages": 3, "characters": 4}},
        {"chain": {"system": "", "tools": "", "messages": [["x"]], "characters": [0]}},
    ],
    ids=str,
)
def test_a_description_with_a_wrong_field_is_never_used_and_stops_no_sweep(
    folder: Path, changes: dict[str, object]
) -> None:
    description(folder).parent.mkdir()
    fields = described(folder, **changes)
    description(folder).write_text(json.dumps(fields))
    store = opened(folder, limit_bytes=1)
    assert store.find(ABC) is None
    store.sweep()


def test_a_description_never_leads_out_of_the_folder(folder: Path) -> None:
    outside = folder.parent / "outside.kv"
    outside.write_bytes(b"precious")
    fields = described(folder, file="../outside.kv", size_bytes=8, checksum="")
    description(folder).write_text(json.dumps(fields))
    store = opened(folder, limit_bytes=1, age_s=0)
    age(description(folder), AGES_AGO)
    store.sweep()
    save(store, folder, data=b"x")
    assert outside.read_bytes() == b"precious"


@pytest.mark.parametrize("what", [ABC, base_name("abc")])
def test_another_space_s_file_is_never_found_under_one_s_own_name(folder: Path, what: str) -> None:
    other = opened(folder, "other-b1-f16-f16-4096-0")
    save(other, folder, what)
    mine = opened(folder)
    assert mine.find(what) is None
    text = description(folder, what, "other-b1-f16-f16-4096-0").read_text()
    description(folder, what).write_text(text)  # somebody copies it to our name
    assert mine.find(what) is None


def test_one_conversation_s_file_is_never_found_under_another_s_name(folder: Path) -> None:
    store = opened(folder)
    save(store, folder)
    description(folder, conversation_name("def")).write_text(description(folder).read_text())
    assert store.find(conversation_name("def")) is None


def test_another_file_s_content_under_this_one_s_name_is_seen(folder: Path) -> None:
    mine, other = opened(folder), opened(folder, "other-b1-f16-f16-4096-0")
    entry = save(mine, folder, data=b"a" * 500)
    theirs = save(other, folder, data=b"b" * 500)
    shutil.copy(folder / theirs.file, folder / entry.file)
    with pytest.raises(StoreError, match="changed"):
        mine.check(found(mine))


# --- room -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_said_before_anything_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12, SPARE_BYTES + 99))
    store = opened(folder)
    assert store.new_file(ABC, 99)
    with pytest.raises(StoreError, match="256 MiB free, and 256 MiB of the disk are left to others") as told:
        store.new_file(ABC, 100)
    assert told.value.kind == "disk"


def test_a_disk_full_of_saved_caches_loses_the_least_valuable_for_a_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    store = opened(folder)
    entry = save(store, folder)

    def disk(_: object) -> object:
        held = sum(path.stat().st_size for path in folder.glob("*.kv"))
        return usage(10**12, 10**12, SPARE_BYTES + entry.size_bytes - held)

    monkeypatch.setattr(shutil, "disk_usage", disk)
    assert store.new_file("c-0ff", entry.size_bytes)
    assert store.find(ABC) is None


def test_more_than_the_store_may_hold_is_refused(folder: Path) -> None:
    store = opened(folder, limit_bytes=100)
    assert store.new_file(ABC, 100)
    with pytest.raises(StoreError, match="store_limit_bytes") as told:
        store.new_file(ABC, 101)
    assert told.value.kind == "limit"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = opened(tmp_path / "file" / "kv")
    with pytest.raises(StoreError, match="file/kv"):
        store.new_file(ABC, 1)
    with pytest.raises(StoreError), store.making(ABC, 0, threading.Event()):
        pass
    with pytest.raises(StoreError):
        store.sweep()
    assert store.find(ABC) is None


def test_a_folder_that_is_removed_in_mid_life_is_made_again(folder: Path) -> None:
    store = opened(folder)
    gone, fresh = save(store, folder), write(store, folder, conversation_name("def"))
    shutil.rmtree(folder)
    assert store.find(ABC) is None
    for entry in (gone, fresh):
        with pytest.raises(StoreError):
            store.check(entry)
        store.discard(entry)
    store.sweep()
    save(store, folder)
    store.check(found(store))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_removed_while_a_file_waits_for_its_description_costs_that_file_only(folder: Path) -> None:
    store = opened(folder)
    entry = write(store, folder)
    shutil.rmtree(folder)
    with pytest.raises(StoreError):
        store.describe(entry)
    assert store.find(ABC) is None
    save(store, folder)
    assert store._fresh == {}


def test_the_books_of_ten_thousand_conversations_are_empty_once_all_are_described(folder: Path) -> None:
    store = opened(folder)
    for number in range(10_000):
        entry = write(store, folder, conversation_name(f"{number:x}"), b"x")
        (folder / entry.file).unlink()
        with pytest.raises(StoreError):
            store.describe(entry)
    assert store._fresh == {}


def test_of_files_that_were_looked_for_nothing_is_kept(folder: Path) -> None:
    store = opened(folder)
    for number in range(100):
        save(store, folder, conversation_name(f"{number:x}"), b"x")
    with watched("*") as in_use_bytes:
        for number in range(100):
            assert store.find(conversation_name(f"{number:x}"))
        store.sweep()
        assert in_use_bytes() < 50_000


# --- sweeping -------------------------------------------------------------------------------------------------------


def test_a_sweep_has_one_chain_in_memory_at_a_time(folder: Path) -> None:
    store = opened(folder)
    for number in range(60):
        entry = write(store, folder, conversation_name(f"{number:x}"), b"x")
        messages = tuple(f"{number}-{turn:030x}" for turn in range(1000))
        entry = replace(entry, chain=Chain("s", "t", messages, tuple(range(10_000, 11_001))))
        store.written(entry)
        store.describe(entry)
    tracemalloc.start()
    try:
        store.sweep()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.used_bytes == 60
    assert peak_bytes < 3_000_000  # all of them together take more than twice as much


def test_a_sweep_brings_the_folder_within_its_limit_the_least_valuable_first(folder: Path) -> None:
    store = opened(folder, limit_bytes=2500)
    for number, tokens in enumerate((10, 1000, 500)):
        save(store, folder, conversation_name(f"{number}"), b"x" * 1000, tokens)
    store.sweep()
    assert store.find(conversation_name("0")) is None
    assert store.used_bytes == 2000
    assert len(names(folder, ".kv")) == len(names(folder, ".json")) == 2


def test_a_sweep_removes_what_is_older_than_the_age_and_a_use_makes_it_young(folder: Path) -> None:
    store = opened(folder, age_s=3600)
    for name in ("abc", "def"):
        save(store, folder, conversation_name(name))
        age(description(folder, conversation_name(name)), 4000)
    store.used(found(store))
    store.sweep()
    assert found(store).uses == 1
    assert store.find(conversation_name("def")) is None


def test_a_sweep_takes_other_spaces_files_too(folder: Path) -> None:
    other = opened(folder, "other-b1-f16-f16-4096-0")
    save(other, folder, data=b"x" * 1000, tokens=1)
    store = opened(folder, limit_bytes=1500)
    save(store, folder, data=b"x" * 1000)
    store.sweep()
    assert other.find(ABC) is None
    assert found(store)


LEFT = {
    "a file": f"{SPACE}.c-abc.0123abcd.kv",
    "another space's file": "other.b-00.0123abcd.kv",
    "a description": f"{SPACE}.c-abc.json.0123abcd.tmp",
    "a lock": f"{SPACE}.b-abc.lock",
}


@pytest.mark.parametrize("name", LEFT.values(), ids=LEFT.keys())
def test_what_a_worker_that_died_left_goes_when_it_is_old_and_never_before(folder: Path, name: str) -> None:
    store = opened(folder)
    save(store, folder, conversation_name("def"))
    (folder / name).write_bytes(b"half")
    age(folder / name, stores.UNFINISHED_S - 60)
    store.sweep()
    assert (folder / name).exists()
    age(folder / name, stores.UNFINISHED_S + 60)
    store.sweep()
    assert not (folder / name).exists()
    store.check(found(store, conversation_name("def")))


@pytest.mark.parametrize("name", ["notes.txt", "backup.kv", "x.c-abc.kv", "README.json", "x.c-zz.0123abcd.kv"])
def test_what_is_not_the_store_s_stays(folder: Path, name: str) -> None:
    store = opened(folder, age_s=1)
    save(store, folder)
    age(description(folder), AGES_AGO)
    (folder / name).write_text("mine")
    age(folder / name, 10 * stores.UNFINISHED_S)
    store.sweep()
    assert (folder / name).read_text() == "mine"


def test_an_old_file_that_is_described_or_written_by_this_process_stays(folder: Path) -> None:
    store = opened(folder)
    one, two = save(store, folder), write(store, folder, conversation_name("def"))
    for entry in (one, two):
        age(folder / entry.file, 2 * stores.UNFINISHED_S)
    store.sweep()
    store.check(one)
    store.check(two)


# --- two at once ----------------------------------------------------------------------------------------------------


def test_who_restores_a_file_while_another_replaces_it_reads_the_old_one_to_its_end(folder: Path) -> None:
    reader, writer = opened(folder), opened(folder)
    save(writer, folder, data=b"old" * 100)
    entry = found(reader)
    reader.check(entry)
    with (folder / entry.file).open("rb") as engine:
        newer = save(writer, folder, data=b"newer" * 100)
        assert engine.read() == b"old" * 100
    reader.used(entry)  # told late: it must not bring the old description back
    assert found(reader).file == newer.file
    reader.check(found(reader))
    assert names(folder, ".kv") == [newer.file]


def test_who_finds_a_file_gone_that_another_replaced_leaves_the_new_one_alone(folder: Path) -> None:
    reader, writer = opened(folder), opened(folder)
    save(writer, folder)
    entry = found(reader)
    newer = save(writer, folder)
    with pytest.raises(StoreError):
        reader.check(entry)
    reader.discard(entry)
    assert found(reader).file == newer.file
    reader.check(found(reader))


def test_of_two_files_of_one_name_that_wait_the_later_one_is_kept_whoever_finishes_last(folder: Path) -> None:
    store = opened(folder)
    first, second = write(store, folder, data=b"1" * 500), write(store, folder, data=b"2" * 500)
    store.describe(second)
    store.describe(first)
    assert found(store).file == second.file
    store.check(found(store))
    assert names(folder, ".kv") == [second.file]


def test_a_use_is_counted_on_what_others_have_counted(folder: Path) -> None:
    one, two = opened(folder), opened(folder)
    save(one, folder)
    seen = found(one)
    for store in (one, two, one):
        store.used(seen)
    assert found(two).uses == 3


def test_two_workers_that_describe_one_name_at_once_leave_no_file_that_stays(folder: Path) -> None:
    """The worst order: both have read the old description before either writes its own."""
    one, two = opened(folder), opened(folder)
    old = save(one, folder)
    both = [(one, write(one, folder, data=b"1" * 500)), (two, write(two, folder, data=b"2" * 500))]
    barrier = threading.Barrier(2)
    checksum = Store._checksum

    def slow(store: Store, file: str) -> str:
        barrier.wait(WAIT_S)
        return checksum(store, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_checksum", slow)
        threads = [threading.Thread(target=store.describe, args=(entry,)) for store, entry in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    entry = found(opened(folder))
    one.check(entry)
    assert not (folder / old.file).exists()
    for path in folder.glob("*.kv"):
        age(path, 2 * stores.UNFINISHED_S)
    two.sweep()
    assert names(folder, ".kv") == [entry.file]


class Other:
    """Another process that holds a lock while the block runs; `leave` makes it save and end."""

    def __init__(self, folder: Path, what: str) -> None:
        command = python("-m", "tests.doubles.store_process", "hold", str(folder), SPACE, what)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": base_environment(folder)}
        self.process = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]

    def __enter__(self) -> "Other":
        assert self.process.stdout.readline() == b"held\n"
        return self

    def leave(self) -> None:
        self.process.communicate(b"go\n", WAIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)

    def __exit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.communicate(timeout=WAIT_S)


def test_while_another_process_sweeps_nobody_else_does(folder: Path) -> None:
    store = opened(folder, age_s=1)
    save(store, folder)
    age(description(folder), AGES_AGO)
    with Other(folder, SWEEP):
        store.sweep()
        assert found(store)
    store.sweep()
    assert store.find(ABC) is None


def test_a_base_is_made_by_one_process_and_found_by_who_waited(folder: Path) -> None:
    store, base = opened(folder), base_name("feed")
    with Other(folder, base) as other:
        with store.making(base, 0, threading.Event()) as mine:
            assert not mine  # it took too long
        other.leave()
        with store.making(base, WAIT_S, threading.Event()) as mine:
            assert mine
            assert found(store, base)


def test_who_waits_for_a_base_can_be_stopped(folder: Path) -> None:
    store, base, stopped = opened(folder), base_name("feed"), threading.Event()
    made: list[bool] = []

    def wait() -> None:
        with store.making(base, 10 * WAIT_S, stopped) as mine:
            made.append(mine)

    with Other(folder, base):
        waiter = threading.Thread(target=wait)
        waiter.start()
        stopped.set()
        waiter.join(WAIT_S)
        assert made == [False]


def test_the_lock_of_a_process_that_was_killed_is_free(folder: Path) -> None:
    store, base = opened(folder), base_name("feed")
    with Other(folder, base) as other:
        other.kill()
    with store.making(base, WAIT_S, threading.Event()) as mine:
        assert mine


def test_one_who_fails_while_making_a_base_gives_the_lock_back(folder: Path) -> None:
    store, base = opened(folder), base_name("feed")
    with pytest.raises(KeyError), store.making(base, 0, threading.Event()):
        raise KeyError
    with store.making(base, 0, threading.Event()) as mine:
        assert mine


def test_other_bases_are_made_at_the_same_time(folder: Path) -> None:
    store = opened(folder)
    with (
        store.making(base_name("aa"), 0, threading.Event()) as one,
        store.making(base_name("bb"), 0, threading.Event()) as two,
    ):
        assert one
        assert two


def test_processes_that_save_restore_and_sweep_at_once_leave_a_sound_folder(folder: Path) -> None:
    processes = [
        subprocess.Popen(
            python("-m", "tests.doubles.store_process", "work", str(folder), SPACE, f"{seed}", "200", "3000"),
            env=base_environment(folder),
        )
        for seed in (1, 2, 3)
    ]
    assert [process.wait(3 * WAIT_S) for process in processes] == [0, 0, 0]
    store = opened(folder, limit_bytes=3000)
    for path in folder.glob("*.kv"):
        age(path, 2 * stores.UNFINISHED_S)
    store.sweep()
    entries = [entry for number in range(6) if (entry := store.find(conversation_name(f"{number}")))]
    assert set(names(folder, ".kv")) >= {entry.file for entry in entries if (folder / entry.file).exists()}
    assert len(names(folder, ".kv")) <= len(names(folder, ".json"))
    assert names(folder, ".tmp") == []
    assert sum(path.stat().st_size for path in folder.glob("*.kv")) <= 3000
    assert store.used_bytes <= 3000
