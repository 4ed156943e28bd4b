"""Another worker's process that works in a store, for tests of what two of them do to each other.

Owns: a process that holds a lock until it is told, and one that does everything at random.
Never: an engine.

usage: python -m tests.doubles.store_process hold FOLDER SPACE WHAT     says "held"; saves WHAT at a line on stdin, ends
       python -m tests.doubles.store_process work FOLDER SPACE SEED TURNS LIMIT_BYTES
"""

import random
import sys
import threading
from pathlib import Path

from infra.errors import StoreError
from scheduler.policy.chain import Chain
from workers.store import Entry, Store, conversation_name

CHAIN = Chain("s", "t", ("m1", "m2"), (10, 20, 30))
SWEEP = "sweep"


def write(store: Store, folder: Path, what: str, data: bytes = b"cache" * 100, tokens: int = 1000) -> Entry:
    """As an engine does: the file is there, and this process knows."""
    file = store.new_file(what, len(data))
    (folder / file).write_bytes(data)
    entry = Entry(what, file, len(data), "", CHAIN, tokens, tokens, 0.5)
    store.written(entry)
    return entry


def save(store: Store, folder: Path, what: str, data: bytes = b"cache" * 100, tokens: int = 1000) -> Entry:
    """Written and described: everyone's."""
    entry = write(store, folder, what, data, tokens)
    store.describe(entry)
    return entry


def hold(folder: Path, space: str, what: str) -> None:
    """Make a base, or sweep, and take one's time."""
    store = Store(folder, space, 10**9, 1e6)
    manager = store._only_one("sweep.lock") if what == SWEEP else store.making(what, 0, threading.Event())
    with manager as mine:
        assert mine
        sys.stdout.write("held\n")
        sys.stdout.flush()
        if sys.stdin.readline() and what != SWEEP:
            save(store, folder, what)


def work(folder: Path, space: str, seed: int, turns: int, limit_bytes: int) -> None:
    """Save, restore, discard and sweep a small set of names."""
    dice = random.Random(seed)
    store = Store(folder, space, limit_bytes, 1000)
    for turn in range(1, turns + 1):
        what = conversation_name(f"{dice.randrange(6)}")
        entry = store.find(what)
        try:
            if dice.random() < 0.4 or entry is None:
                save(store, folder, what, bytes([seed]) * dice.randrange(1, 1000), turn)
            else:
                store.check(entry)
                store.used(entry)
        except StoreError:
            if entry is not None:
                store.discard(entry)
        if dice.random() < 0.3:
            store.sweep()


if __name__ == "__main__":
    _, act, place, name, *rest = sys.argv
    if act == "hold":
        hold(Path(place), name, rest[0])
    else:
        work(Path(place), name, *map(int, rest))
